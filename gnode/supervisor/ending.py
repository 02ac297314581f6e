"""When an attempt is asked to end and when it is killed. Pure: the time comes in.

The supervisor drives one of these, and so does the launcher that takes over from a lost one.
"""

import enum

from gnode.task import LEFTOVER_GRACE_S

#: KILL is repeated until nothing is left: a process may have forked just before it was hit.
_KILL_AGAIN_S = 0.02
_KILL_AGAIN_S_MAX = 1.0


class Do(enum.Enum):
    """What to do to the job's processes now."""

    NOTHING = "nothing"
    EARLY = "early"
    NOTICE = "notice"
    TERM = "term"
    KILL = "kill"


class Ending:
    """One attempt's limits and the way it ends: asked once, then killed until nothing is left.

    All moments are seconds of CLOCK_BOOTTIME.

    Attributes:
        reason: why we stopped it (a StopReason's value), None while we did not.
        stopped_s: when we first asked it to end, None while we did not.
        signalled: the last move for which it was sent its own signal, 0 while there is none.
        signalled_s: when that was.
        lease_until_s: when its lease is over unless that is renewed; None: it has none, or is over.
        early_s: how long before the end of the walltime the job is told; None: it is not.
        notice_s: how long before TERM the job gets a signal when its machine shuts down; 0: none.
        launched_s: when an attempt that was prepared was launched; None: it was not.
    """

    __slots__ = (
        "_grace_s",
        "_kill_again_s",
        "_kill_s",
        "_lease_grace_s",
        "_leftover_grace_s",
        "_notice_due",
        "_over",
        "_started_s",
        "_term_s",
        "_walltime_s",
        "early_s",
        "launched_s",
        "lease_until_s",
        "notice_s",
        "reason",
        "signalled",
        "signalled_s",
        "stopped_s",
    )

    def __init__(
        self,
        *,
        walltime_s: float | None,
        grace_s: float,
        leftover_grace_s: float = LEFTOVER_GRACE_S,
        lease_until_s: float | None = None,
        lease_grace_s: float = 0.0,
        early_s: float | None = None,
    ) -> None:
        self.reason: str | None = None
        self.stopped_s: float | None = None
        self.signalled = 0
        self.signalled_s = 0.0
        self.launched_s: float | None = None
        self.early_s = early_s
        self.notice_s = 0.0
        self._started_s: float | None = None
        self._walltime_s = walltime_s
        self._over = False
        self._grace_s = grace_s
        self._leftover_grace_s = min(grace_s, leftover_grace_s)
        self.lease_until_s = lease_until_s
        self._lease_grace_s = lease_grace_s
        self._kill_s: float | None = None
        self._term_s: float | None = None
        self._notice_due = False
        self._kill_again_s = _KILL_AGAIN_S

    def started(self, now_s: float) -> None:
        """Note when the attempt started, with its stage-in: the walltime counts from there."""
        self._started_s = now_s

    def launch(self, at_s: float, walltime_s: float | None) -> None:
        """Note that a prepared attempt is launched, once: its walltime counts from there.

        One that is being stopped, or has ended, is not launched any more.
        """
        if self.launched_s is None and self.reason is None and not self._over:
            self.launched_s = self._started_s = at_s
            self._walltime_s = walltime_s

    def retime(self, walltime_s: float | None) -> None:
        """Set another walltime, counted from the start (None: no limit)."""
        self._walltime_s = walltime_s

    def _limit_s(self) -> float | None:
        """Return when the walltime ends, None if it cannot or does not matter any more."""
        if self._walltime_s is None or self._started_s is None or self._over or self.reason:
            return None
        return self._started_s + self._walltime_s

    def _early_due_s(self) -> float | None:
        """Return when the job is told that its walltime ends, None if it is not, or was."""
        limit_s = self._limit_s()
        return None if limit_s is None or self.early_s is None else limit_s - self.early_s

    def stop(self, reason: str, grace_s: float, now_s: float) -> None:
        """Ask the job to end; a second request can only shorten the grace.

        A job that has ended by itself keeps its outcome, though its leftovers are still ending.
        """
        if self.reason is None and not self._over:
            self.reason = reason
            self.stopped_s = now_s
            self._notice_due = reason == "shutdown" and self.notice_s > 0
            self._term_s = now_s + (self.notice_s if self._notice_due else 0.0)
            self._kill_s = self._term_s + grace_s
        elif self._kill_s is not None:
            self._kill_s = min(self._kill_s, now_s + grace_s)

    def skip_notice(self, now_s: float) -> None:
        """Send TERM at once: no process of the job handles the signal before it."""
        if self._term_s is not None and self._kill_s is not None:
            self._kill_s -= max(0.0, self._term_s - now_s)
            self._term_s = now_s

    def set_lease(self, until_s: float | None, grace_s: float) -> None:
        """Give a prepared attempt the lease with which it is launched."""
        self.lease_until_s, self._lease_grace_s = until_s, grace_s

    def renew(self, until_s: float) -> None:
        """Let the lease last until then, if it is not over."""
        if self.lease_until_s is not None:
            self.lease_until_s = max(self.lease_until_s, until_s)

    def check_lease(self, now_s: float) -> None:
        """End the attempt if its lease is over: for good, whatever comes later.

        The grace counts from the end of the lease, as the head counts: of a machine that was
        suspended meanwhile, nothing may be left of it.
        """
        if self.lease_until_s is not None and now_s >= self.lease_until_s:
            kill_s = self.lease_until_s + self._lease_grace_s
            self.lease_until_s = None
            self.stop("lease", max(0.0, kill_s - now_s), now_s)

    def ask(self, request: int, now_s: float) -> bool:
        """Note that the job is to save its state for a move; False if that was known already."""
        if request <= self.signalled:
            return False
        self.signalled, self.signalled_s = request, now_s
        return True

    def expire(self, now_s: float) -> None:
        """End the attempt if its walltime has passed before its program has started."""
        limit_s = self._limit_s()
        if limit_s is not None and now_s >= limit_s:
            self.stop("walltime", 0.0, now_s)

    def allow(self, limit_s: float, now_s: float) -> None:
        """Let an errand of an attempt whose program has ended take that long, then be killed."""
        self._over = True
        self._term_s = None
        self._kill_s = now_s + limit_s
        self._kill_again_s = _KILL_AGAIN_S

    def main_exited(self, now_s: float) -> None:
        """Note that the job's own process is gone: what it left behind has to go, too.

        After a stop the leftovers keep the whole grace: they may be saving a checkpoint while
        the shell that started them is gone already.
        """
        self._over = True
        if self._kill_s is None:
            self._term_s = now_s
            self._kill_s = now_s + self._leftover_grace_s

    def step(self, now_s: float) -> Do:
        """Return what is due now; each TERM once, KILL again and again, ever more slowly."""
        self.check_lease(now_s)
        limit_s = self._limit_s()
        if limit_s is not None and now_s >= limit_s:
            self.stop("walltime", self._grace_s, now_s)
        early_due_s = self._early_due_s()
        if early_due_s is not None and now_s >= early_due_s:
            self.early_s = None
            return Do.EARLY
        if self._kill_s is not None and now_s >= self._kill_s:
            self._term_s = None
            self._kill_s = now_s + self._kill_again_s
            self._kill_again_s = min(self._kill_again_s * 2, _KILL_AGAIN_S_MAX)
            return Do.KILL
        if self._notice_due:
            self._notice_due = False
            return Do.NOTICE
        if self._term_s is not None and now_s >= self._term_s:
            self._term_s = None
            return Do.TERM
        return Do.NOTHING

    def deadline_s(self) -> float | None:
        """Return when `step` has to be called at the latest, None if only an event can matter."""
        early_due_s = self._early_due_s()
        due_s = self._limit_s() if early_due_s is None else early_due_s
        due_s = due_s if self._kill_s is None else self._kill_s
        if self._term_s is not None and self.reason == "shutdown":
            due_s = self._term_s if due_s is None else min(due_s, self._term_s)
        if self.lease_until_s is None or due_s is None:
            return self.lease_until_s if due_s is None else due_s
        return min(due_s, self.lease_until_s)

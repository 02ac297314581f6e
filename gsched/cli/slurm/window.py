"""Which jobs sacct lists: those that were in a state between two moments. Pure."""

import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from gsched.cli.slurm import words as w
from gsched.cli.slurm.errors import SlurmError
from gsched.cli.slurm.moments import past_moment
from gsched.model.states import JobState
from gsched.protocol.api import JobRow

_NEVER: Final = float("inf")


class TimeSpan(NamedTuple):
    """A span of time, from its first moment to before its last."""

    since_s: float
    until_s: float

    def holds(self, row: JobRow, states: frozenset[str]) -> bool:
        """Return whether a job was in one of the states, in any of them if none is named.

        A job is pending until it starts, and running until it ends, in whichever state it is now;
        it gets another state at its end.
        """
        if not states:
            return self._meets(row.submitted_s, _end_s(row))
        return any(_WAS_IN.get(state, _has_ended_as(state))(self, row) for state in states)

    def _meets(self, begin_s: float, end_s: float) -> bool:
        return begin_s < self.until_s and end_s >= self.since_s

    def was_pending(self, row: JobRow) -> bool:
        """Return whether a job waited then."""
        return self._meets(row.submitted_s, min(row.started_s or _NEVER, _end_s(row)))

    def was_running(self, row: JobRow) -> bool:
        """Return whether a job ran then."""
        return row.started_s is not None and self._meets(row.started_s, _end_s(row))


_WAS_IN: Final[Mapping[str, Callable[[TimeSpan, JobRow], bool]]] = {
    **dict.fromkeys(("PENDING", "PD"), TimeSpan.was_pending),
    **dict.fromkeys(("RUNNING", "R"), TimeSpan.was_running),
}


def _has_ended_as(state: str) -> Callable[[TimeSpan, JobRow], bool]:
    def read(window: TimeSpan, row: JobRow) -> bool:
        end_s = _end_s(row)
        is_then = end_s == _NEVER or window.since_s <= end_s < window.until_s
        return is_then and state in w.state_of(row)

    return read


def _end_s(row: JobRow) -> float:
    if row.state != JobState.DONE:
        return _NEVER
    return row.submitted_s if row.ended_s is None else row.ended_s


def window_of(
    since: str, until: str, *, is_named: bool, has_states: bool, now_s: float
) -> TimeSpan:
    """Return what -S and -E mean, with Slurm's defaults, which depend on -j and -s.

    Without -S it is today, with -s this moment, and with -j all time; without -E it lasts until
    now, with -s and -S one second.

    Raises:
        SlurmError: one of them is invalid, or the end is before the begin.
    """
    until_s = past_moment(until, now_s=now_s) if until else None
    if since:
        since_s = past_moment(since, now_s=now_s)
    elif is_named:
        since_s = 0.0
    else:
        since_s = float(int(now_s)) if has_states else past_moment("today", now_s=now_s)
    if until_s is None:
        until_s = (since_s if since and has_states else now_s) + 1.0
    elif since_s > until_s:
        begin, end = (
            time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(each)) for each in (since_s, until_s)
        )
        raise SlurmError(f"Start time ({begin}) requested is after end time ({end}).")
    return TimeSpan(since_s, until_s)

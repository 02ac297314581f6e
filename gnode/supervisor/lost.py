"""The launcher's book of attempts that none of its own supervisors looks after.

*Lost*: the supervisor is dead and there is no exit record: see `takeover`. *Stray*: the supervisor
lives, but an earlier launcher forked it, so that we only see it end (by a pidfd).
"""

import contextlib
import os
import resource
import select
from collections.abc import Collection

from gnode.supervisor import kernel, proc, record, spool
from gnode.supervisor.journal import make_journal
from gnode.supervisor.takeover import LostAttempt

_LOOK_S = 0.25  # between two looks at attempts without a supervisor; there are none in health
_UNCLAIMED_MAX = 256  # exits of orphans that came in before their supervisor's


class LostAttempts:
    """Strays and lost attempts, by name."""

    def __init__(self, attempts: str, epoll: select.epoll) -> None:
        self._attempts = attempts
        self._epoll = epoll
        self._lost: dict[str, LostAttempt] = {}
        self._pids: dict[str, int] = {}  # the supervisors that were or are theirs
        self._strays: dict[str, int] = {}  # pidfd, or -1 while the supervisor is not known yet
        self._jobs: dict[str, int] = {}  # pidfds of the strays' jobs
        self._hopeless: list[str] = []
        self._unclaimed: dict[int, tuple[int, resource.struct_rusage]] = {}

    def adopted(self) -> bool:
        """Return whether children of ours, other than supervisors, belong to an attempt."""
        return any(lost.adopted for lost in self._lost.values())

    def patience_s(self) -> float:
        """Return how long the launcher may sleep at most, -1 for as long as it likes."""
        waiting = self._lost or -1 in self._strays.values()
        return _LOOK_S if waiting else -1

    def supervisor_pid(self, name: str) -> int:
        """Return the pid of the supervisor that an attempt here has or had, 0 if not here."""
        return self._pids.get(name, 0)

    def look_for_strays(self) -> None:
        """Find the attempts that an earlier launcher started and that have not ended."""
        for name in os.listdir(self._attempts):
            directory = f"{self._attempts}/{name}"
            if spool.was_begun(directory) and not spool.has_ended(directory):
                self.add_stray(name)

    def add_stray(self, name: str) -> None:
        """Watch an attempt that another launcher's supervisor has claimed."""
        self._strays[name] = -1
        self._pids[name] = 0

    def take_over(self, name: str, pid: int) -> None:
        """Look after an attempt whose supervisor, a child of ours, died."""
        self._pids[name] = pid
        lost = self._open(name, adopted=True)
        if lost is not None and lost.job_pid in self._unclaimed:
            lost.reaped(lost.job_pid, *self._unclaimed.pop(lost.job_pid))

    def _open(self, name: str, *, adopted: bool) -> LostAttempt | None:
        """Start to look after an attempt; None if its task is no use, which ends it."""
        directory = f"{self._attempts}/{name}"
        watched = None if adopted else self._watch_job(name)
        try:
            lost = LostAttempt(directory, adopted=adopted, watched=watched)
        except (OSError, ValueError) as error:
            spool.log(f"{directory}: cannot look after it: {error!r}")
            with contextlib.suppress(OSError):  # the directory may be gone altogether
                _write_unreadable(directory, record.unreadable(name, error))
            self._hopeless.append(name)
            if watched is not None:
                os.close(watched)
            return None
        self._lost[name] = lost
        return lost

    def _watch_job(self, name: str) -> int | None:
        """Return a pidfd that will tell a job's exit status, None if there is none to be had."""
        if name in self._jobs:
            return self._jobs.pop(name)
        started = spool.read_started(f"{self._attempts}/{name}")
        if started is None or not kernel.tells_exit_status():
            return None
        return proc.open_process(started.job_pid, started.job_start_ticks)

    def reaped(self, pid: int, status: int, usage: resource.struct_rusage) -> None:
        """Note the end of a child of ours that is no supervisor."""
        for lost in self._lost.values():
            if lost.adopted and lost.owns(pid):
                lost.reaped(pid, status, usage)
                if pid == lost.job_pid:
                    return
        # It may be the job's own process of an attempt whose supervisor's end we hear of next.
        self._unclaimed[pid] = (status, usage)
        while len(self._unclaimed) > _UNCLAIMED_MAX:
            del self._unclaimed[next(iter(self._unclaimed))]

    def supervisor_ended(self, pidfd: int) -> None:
        """Note that a stray's supervisor is gone: `step` looks at what it left."""
        for name, fd in self._strays.items():
            if fd == pidfd:
                self._epoll.unregister(fd)
                os.close(fd)
                self._strays[name] = -1
                return

    def step(self, supervisors: Collection[int]) -> list[tuple[str, int]]:
        """Do what is due; return the attempts that now have an exit record, with the pid.

        Args:
            supervisors: pids of our children that are supervisors.
        """
        ended = [name for name, fd in self._strays.items() if fd < 0 and self._settle(name)]
        for name in ended:
            del self._strays[name]
            if name in self._jobs:
                os.close(self._jobs.pop(name))
        ended = [name for name in ended if name not in self._lost and name not in self._hopeless]
        ended += self._hopeless
        self._hopeless.clear()
        if self._lost and not self._find_processes(supervisors):
            return [(name, self._pids.pop(name)) for name in ended]
        for name, lost in tuple(self._lost.items()):
            if lost.step():
                lost.close()
                del self._lost[name]
                ended.append(name)
        return [(name, self._pids.pop(name)) for name in ended]

    def _find_processes(self, supervisors: Collection[int]) -> bool:
        """Give each lost attempt its processes; return False if that cannot be told yet."""
        processes = proc.snapshot()
        own_pid = os.getpid()
        orphans = {
            process.pid
            for process in processes.values()
            if process.parent == own_pid and process.pid not in supervisors
        }
        for lost in self._lost.values():
            lost.find(processes, orphans)
        for lost in self._lost.values():
            lost.keep_known(processes, orphans)
        if not processes.keys() >= set(supervisors):
            return False  # another supervisor has just died: the orphans may be its
        adopting = next((lost for lost in self._lost.values() if lost.adopted), None)
        if orphans and adopting is not None:
            adopting.adopt(orphans, processes)
        return True

    def _settle(self, name: str) -> bool:
        """Find out about a stray; return True if it is none any more."""
        directory = f"{self._attempts}/{name}"
        if spool.has_ended(directory) or not spool.exists(directory, spool.TASK):
            return True
        started = spool.read_started(directory)
        if started is None:
            if spool.is_claimed(directory):
                return False  # its supervisor is about to write the record
            if spool.read_started(directory) is None:  # it may have just written it
                self._open(name, adopted=False)
                return True
            return False
        self._pids[name] = started.pid
        if not proc.lives(started.pid, started.start_ticks):
            if not spool.has_ended(directory):  # it may have just written it
                self._open(name, adopted=False)
            return True
        if name not in self._jobs and (job := self._watch_job(name)) is not None:
            self._jobs[name] = job
        try:
            pidfd = os.pidfd_open(started.pid)
        except ProcessLookupError:
            return False
        self._strays[name] = pidfd
        self._epoll.register(pidfd, select.EPOLLIN)
        return False


def _write_unreadable(directory: str, content: dict[str, object]) -> None:
    journal = make_journal(directory)
    try:
        spool.write_exit(journal, content)
    finally:
        journal.close()

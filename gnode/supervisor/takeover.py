"""What the launcher does for an attempt whose supervisor was killed.

The supervisor's orphans become the launcher's children, so the job runs on, its limits are still
enforced and its real exit code is still collected. An earlier launcher's supervisor leaves its
orphans to init: then the launcher watches the job's own process by a pidfd, from which Linux 6.15
and later also tell the exit status. Where they do not, or if the supervisor had collected the code
itself, the outcome is lost: whatever is left of the job is killed, and the record says so.
"""

import contextlib
import errno
import os
import resource
import signal
import time

from gnode.supervisor import cgroup, early, gate, kernel, lease, orders, proc, record, spool
from gnode.supervisor.asking import Asking
from gnode.supervisor.ending import Do, Ending
from gnode.supervisor.errors import LaunchError
from gnode.supervisor.journal import open_journal
from gnode.supervisor.proc import ProcessStat

_REAPED_WITHIN_S = 10.0  # where nobody reaps orphans (many containers), a status is never told
_BEFORE_THE_START = "the supervisor died while it was starting the job"


class LostAttempt:
    """One attempt without a supervisor, until its exit record is written.

    Attributes:
        adopted: its processes have become this process's children.
        job_pid: of the job's own process, 0 while it is not known.

    Args:
        directory: the attempt's spool.
        watched: a pidfd of the job's own process, whose exit status the kernel will tell; None if
            it is a child of this process, or lost.
    """

    __slots__ = (
        "_asking",
        "_commands",
        "_directory",
        "_ending",
        "_journal",
        "_marked",
        "_may_have_run",
        "_members",
        "_seen",
        "_task",
        "_ticks",
        "_unsent",
        "_warned",
        "_watched",
        "_zombie_until_s",
        "adopted",
        "job_pid",
    )

    def __init__(self, directory: str, *, adopted: bool, watched: int | None = None) -> None:
        task, started = spool.read_task(directory), spool.read_started(directory)
        if task is None:
            raise FileNotFoundError(f"{directory}: a supervisor without a task")
        if task.gate:
            task = gate.launched_task(directory) or task
        self.adopted = adopted
        self._watched = watched
        self._zombie_until_s: float | None = None
        self._warned = False
        self._directory, self._task = directory, task
        self._members: dict[int, int] = {}
        self._marked: set[int] = set()
        self._ending = Ending(
            walltime_s=task.walltime_s,
            grace_s=task.grace_s,
            leftover_grace_s=task.leftover_grace_s,
            lease_until_s=lease.until_s(task, lease.read(directory)),
            lease_grace_s=task.lease_grace_s,
            early_s=early.before_s(task),
        )
        self._ending.notice_s = early.notice_s(task)
        self.job_pid = started.job_pid if started else 0
        self._ticks = started.job_start_ticks if started else 0
        self._may_have_run = spool.may_have_run(directory)
        start_s = started.started_boottime_s if started else kernel.boottime_s()
        self._ending.started(start_s)
        self._seen = record.Seen(
            started_s=started.started_s if started else time.time(), started_boottime_s=start_s
        )
        self._journal = open_journal(directory)
        self._commands = spool.JournalCommands(directory, self._journal)
        # Stops and limits hold on. The supervisor has said up to where it has sent signals, and
        # answered for those of a migration.
        story = self._journal.story()
        self._asking = Asking(story.unhandled)
        if story.signalled:
            self._ending.ask(story.signalled, kernel.boottime_s())
        sent, unsent = self._commands.read(story.sent_bytes), self._commands.read()
        orders.obey(sent, self._ending, self._asking, kernel.boottime_s())
        self._unsent = orders.obey(unsent, self._ending, self._asking, kernel.boottime_s())
        if started and not self._may_have_run:  # its files were being copied: it is tried again
            self._ending.allow(0.0, kernel.boottime_s())
        if gate.is_shut(task, self._ending):  # its gate went with its supervisor
            self._ending.stop("fenced", 0.0, kernel.boottime_s())

    def owns(self, pid: int) -> bool:
        """Return whether a process that has just been reaped was the job's."""
        return pid == self.job_pid or pid in self._members

    def reaped(self, pid: int, status: int, usage: resource.struct_rusage) -> None:
        """Note the end of one of the job's processes."""
        self._seen.add(usage)
        self._members.pop(pid, None)
        if pid == self.job_pid:
            self._seen.status = status

    def find(self, processes: dict[int, ProcessStat], orphans: set[int]) -> None:
        """Find the processes that bear the job's mark, and take them out of ``orphans``.

        Args:
            processes: every process of the machine.
            orphans: this process's children that are no supervisors.
        """
        candidates = orphans if self.adopted else processes.keys()
        roots = cgroup.members(self._task) & processes.keys()
        for pid in candidates:
            if self._is_ours(processes.get(pid)):
                roots.add(pid)
        self._marked = proc.descendants(roots, processes)
        orphans -= self._marked

    def keep_known(self, processes: dict[int, ProcessStat], orphans: set[int]) -> None:
        """Keep what was the job's before, unless it bears another one's mark."""
        others = {
            pid
            for pid, ticks in self._members.items()
            if pid in processes and processes[pid].start_ticks == ticks
            if pid in orphans or processes[pid].parent != os.getpid()
        }
        self._keep(self._marked | others, processes)
        orphans -= self._members.keys()

    def adopt(self, orphans: set[int], processes: dict[int, ProcessStat]) -> None:
        """Take orphans that nobody claims: only a lost supervisor can have left them."""
        self._keep(orphans | self._members.keys(), processes)

    def _keep(self, roots: set[int], processes: dict[int, ProcessStat]) -> None:
        found = proc.descendants(roots, processes)
        self._members = {pid: processes[pid].start_ticks for pid in found}
        if self._may_have_run and not self.job_pid and self.adopted:
            self._recognise_main(processes)

    def _recognise_main(self, processes: dict[int, ProcessStat]) -> None:
        """Find the job's own process, if the supervisor died before it could record it.

        It is our child now and leads a session; of all that the job has started meanwhile only
        a daemon is that, too, and comes later.
        """
        own_pid = os.getpid()
        leaders = [
            processes[pid]
            for pid in self._members
            if processes[pid].parent == own_pid and processes[pid].session == pid
        ]
        if leaders:
            first = min(leaders, key=lambda process: process.start_ticks)
            self.job_pid, self._ticks = first.pid, first.start_ticks

    def _is_ours(self, process: ProcessStat | None) -> bool:
        """Return whether a process bears a mark of this attempt: session or environment.

        A session's number is not given out again while the session has members. The path of the
        attempt's own directory is in the environment that the job got (PBS_NODEFILE).
        """
        if process is None or process.pid == os.getpid():
            return False
        if self.job_pid and process.session == self.job_pid and process.start_ticks >= self._ticks:
            return True
        mark = f"{self._task.user_dir}/".encode("utf-8", "surrogateescape")
        return proc.has_environment_text(process.pid, mark)

    def step(self) -> bool:
        """Obey orders and limits; return True once nothing is left and the record is written."""
        now_s = kernel.boottime_s()
        self._unsent += orders.obey(self._commands.read(), self._ending, self._asking, now_s)
        if self._unsent:
            self._send()
        if self._ending.reason is None and not spool.exists(self._directory, spool.TASK):
            self._ending.stop("node_stop", 0.0, now_s)  # as its supervisor would have
        lease.look(self._directory, self._task, self._ending, now_s)
        gone = not self._main_may_be_waited_for()
        if gone:
            self._asking.drop()
            self._ending.main_exited(now_s)
        self._asking.step(
            lambda: set(self._members), self._ending, self._journal, self._task.grace_s, now_s
        )
        if gone and not self._members and cgroup.is_empty(self._task):
            return self._write_down()
        what = self._ending.step(now_s)
        if what is Do.EARLY:
            early.send(self._task, self.job_pid, set(self._members))
        elif what is Do.NOTICE:
            if not early.notify(self._task, self.job_pid, set(self._members)):
                self._ending.skip_notice(now_s)
        elif what is Do.TERM:
            proc.ask_to_end(self._members)
        elif what is Do.KILL:
            cgroup.kill(self._task)
            proc.send(self._members, signal.SIGKILL)
        return False

    def _send(self) -> None:
        """Send the signals that are due to all processes of the job."""
        with contextlib.suppress(OSError):  # a full disk: whoever takes over sends them again
            self._journal.announce_sent()
        for number in self._unsent:
            proc.send(self._members, number)
        self._unsent.clear()

    def _write_down(self) -> bool:
        """Write the exit record; False (try again later) while the disk does not take it."""
        if not spool.exists(self._directory, spool.TASK):
            return True  # nobody will ever look for it
        if not cgroup.remove(self._task):  # who has come in at the last moment is killed first
            cgroup.kill(self._task)
            proc.send(cgroup.members(self._task), signal.SIGKILL)
            return False
        try:
            spool.write_exit(self._journal, self._record())
        except OSError as error:
            if not self._warned:
                spool.log(f"{self._directory}: cannot write the exit record yet: {error}")
            self._warned = True
            return False
        return True

    def _main_may_be_waited_for(self) -> bool:
        """Return whether the job's own process lives and will tell us its exit code."""
        if not self.job_pid or self._seen.status is not None:
            return False
        process = proc.read_process(self.job_pid)
        is_there = process is not None and process.start_ticks == self._ticks
        if self.adopted or self._watched is None:
            return is_there and self.adopted
        if is_there and process is not None and process.state not in "ZX":
            return True
        self._seen.status = kernel.exit_status(self._watched)
        if self._seen.status is not None or not is_there:
            return False
        # A zombie: its parent, init mostly, has not reaped it yet.
        now_s = kernel.boottime_s()
        if self._zombie_until_s is None:
            self._zombie_until_s = now_s + _REAPED_WITHIN_S
        return now_s < self._zombie_until_s

    def close(self) -> None:
        """Give back what was open."""
        self._journal.close()
        if self._watched is not None:
            os.close(self._watched)
            self._watched = None

    def _record(self) -> dict[str, object]:
        if not self._may_have_run:
            error = LaunchError(
                _BEFORE_THE_START, stage="program", subject="job", errno=errno.EINTR
            )
            seen = self._seen if self.job_pid else None
            never = record.never_ran(self._task, error, seen)
            shut = gate.is_shut(self._task, self._ending)
            return gate.never_launched(never) if shut else never
        return record.ended(self._task, self._seen, self._ending, self._asking)

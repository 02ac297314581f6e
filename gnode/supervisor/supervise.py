"""The supervisor of one attempt: starts the job, ends it, writes down how it ended.

It runs in a process that the launcher has forked, and outlives launcher and gnode. While the job
just runs, it sleeps in one system call until a signal comes: the job's end, an order, the alarm.
"""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable

from gnode.supervisor import (
    affinity,
    away,
    cgroup,
    child,
    direct,
    early,
    errand,
    fence,
    filled,
    kernel,
    last_words,
    lease,
    native,
    orders,
    private,
    proc,
    record,
    shells,
    site_programs,
    spool,
    staging,
    terminal,
)
from gnode.supervisor.after_end import AfterEnd
from gnode.supervisor.asking import Asking
from gnode.supervisor.child import Surroundings
from gnode.supervisor.ending import Do, Ending
from gnode.supervisor.errors import LaunchError, reason
from gnode.supervisor.gate import TaskGate, is_shut, launched_task, never_launched
from gnode.supervisor.start_channel import AWAY, READY, STAGING, StartChannel
from gnode.supervisor.user_dir import UserDir
from gnode.task import SupervisorInfo
from gsched.failpoint import failpoint

#: All that wakes a supervisor; blocked, and taken one by one.
WATCHED = (signal.SIGCHLD, signal.SIGUSR1, signal.SIGALRM, signal.SIGTERM)
_ORDERS = (signal.SIGUSR1, signal.SIGTERM)
_WRITE_AGAIN_S = 1.0
_OVER_BEFORE = "exceeded its walltime limit during {}"
_GROUP_LOOK_S = 0.05  # while processes that are not ours are in the group, such as a reader
_SPOOL_LOOK_S = 10.0  # how often a supervisor makes sure that its attempt is still in the spool


class SupervisorIdentity:
    """Who this supervisor is; it does not change from one attempt to the next."""

    __slots__ = ("pid", "start_ticks")

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.start_ticks = proc.start_ticks("self")


def run(
    directory: str,
    around: Surroundings,
    own: SupervisorIdentity,
    opened: tuple[int, int] | None = None,
    course: native.Course | None = None,
) -> tuple[bytes, bytes] | None:
    """Run the attempt in ``directory`` to its end.

    Args:
        directory: of the attempt.
        around: see `Surroundings`.
        own: this process.
        opened: what `spool.open_task` has returned for it; closed here.
        course: how far the library has taken it, which has claimed it; None: it is untouched.

    Returns:
        Its exit record, not flushed (empty: it was taken out of the spool), and the record of its
        start (empty: it was not started) as they are in its journal; None: it is another
        supervisor's.
    """
    claim = (
        spool.claim(directory, opened)
        if course is None or opened is None
        else spool.claimed(directory, opened, course.journal_fd)
    )
    if claim is None:
        return None
    supervisor = _Supervisor(directory, claim, own, course)
    written = supervisor.run(around)
    claim.close()
    return written, supervisor.info


class _Supervisor:
    """One attempt's part on this node, from the fork to the exit record."""

    __slots__ = (
        "_asking",
        "_commands",
        "_course",
        "_directory",
        "_ending",
        "_errand_pid",
        "_errand_status",
        "_gate",
        "_is_away",
        "_job_pid",
        "_journal",
        "_lock_fd",
        "_look_s",
        "_own",
        "_seen",
        "_shells",
        "_started",
        "_stderr_path",
        "_task",
        "_timer",
        "_user_dir",
        "info",
    )

    def __init__(
        self,
        directory: str,
        claim: spool.AttemptClaim,
        own: SupervisorIdentity,
        course: native.Course | None,
    ) -> None:
        self.info = b""
        self._course = course
        self._own = own
        self._lock_fd = claim.lock_fd
        self._look_s = 0.0
        self._directory = directory
        self._task = task = claim.task
        self._journal = claim.journal
        self._commands = claim.commands
        self._asking = Asking()
        self._gate: TaskGate | None = None
        self._shells: shells.Shells | None = None
        self._job_pid = 0
        self._errand_pid = self._errand_status = 0
        self._stderr_path = ""
        self._is_away = False
        self._user_dir = UserDir(task)
        self._timer = kernel.BootTimer()
        self._started = False
        self._seen = record.Seen(started_s=time.time(), started_boottime_s=kernel.boottime_s())
        self._ending = Ending(
            walltime_s=task.walltime_s,
            grace_s=task.grace_s,
            leftover_grace_s=task.leftover_grace_s,
            lease_until_s=lease.until_s(task),
            lease_grace_s=task.lease_grace_s,
            early_s=None if task.gate else early.before_s(task),  # its walltime begins later
        )
        self._ending.notice_s = early.notice_s(task)

    def run(self, around: Surroundings) -> bytes:
        """Start the job, wait until nothing of it is left, record how it ended."""
        self._shells = shells.Shells(self._directory, around)
        try:
            self._run_program(around)
        except LaunchError as error:
            self._clear_launch()
            errands = self._errands(around)
            errands.blame_for_space(error)
            result = self._never_ran(error)
            words, fault = last_words.words(self._task, result), ""
            errands.note_cleaned(self._journal)
            if not self._is_away:
                away.remove_outbox(self._task)
        else:
            errands = self._errands(around)
            result = record.ended(self._task, self._seen, self._ending, self._asking)
            words = last_words.words(self._task, result)
            is_away, path = self._is_away, self._stderr_path
            if is_away and self._seen.status not in (None, 0):
                errands.note_full_output(result)
            faults = (errands.epilog_of_owner(result, path), errands.stage_out(is_away=is_away))
            errands.remove_container(self._directory, self._journal)
            is_staged = staging.takes_away(self._task, is_away=is_away)
            if is_staged or self._task.removal or self._task.programs:
                result.update(record.used(self._task, self._seen))
            fault = record.add_faults(result, *faults)
        if self._gate is not None:
            self._gate.close()
        self._user_dir.remove(self._task)
        errands.tell_owner(self._stderr_path, *filter(None, (fault, words)))
        private.leave(around)
        return self._write_down(result)

    def _run_program(self, around: Surroundings) -> None:
        """Start the job, and wait until nothing of it is left.

        Raises:
            LaunchError: the program was not started.
        """
        course = self._course
        if course is None:
            self._obey()
            self._refuse_if_stopped()
            child.check_owner(self._task, around)
        else:
            self._user_dir.adopt(course.user_dir_fd)
        if course is not None and course.stage == native.RUNS:
            self._go_on(course)
        else:
            self._launch(around, is_announced=course is not None)
            self._watch()
        if self._ending.reason is None:
            filled.check_unpacked(self._task, self._seen.status)

    def _never_ran(self, error: LaunchError) -> dict[str, object]:
        """Return the record of an attempt whose program was not started."""
        result = record.never_ran(self._task, error, self._seen if self._started else None)
        if self._ending.reason is not None:
            result["stop_reason"] = self._ending.reason
            record.merge_loss(self._task, self._ending, result)
        return never_launched(result) if is_shut(self._task, self._ending) else result

    def _errands(self, around: Surroundings) -> AfterEnd:
        return AfterEnd(self._task, self._ending, lambda *work: self._run_errand(around, *work))

    def _run_errand(
        self, around: Surroundings, work: Callable[[], str], limit_s: float
    ) -> str | None:
        """Do some work as a process of the attempt, whose program has ended.

        Returns:
            What went wrong, in words; None: it was stopped, or took too long.
        """
        self._ending.allow(limit_s, kernel.boottime_s())
        try:
            self._errand_pid, reader = errand.start(self._task, around, work)
        except OSError as error:
            return f"cannot fork: {reason(error)}"
        self._watch()
        fault = errand.faults(reader)
        return fault if self._errand_status == 0 else None

    def _write_down(self, result: dict[str, object]) -> bytes:
        """Write the exit record, however long the disk is full: it is the only copy."""
        self._shut_groups()
        warned = False
        while True:
            try:
                return spool.write_exit(self._journal, result, flush=False)
            except OSError as error:
                if self._is_abandoned():
                    return b""  # nobody will ever look for it
                if not warned:
                    spool.log(f"{self._directory}: cannot write the exit record yet: {error}")
            warned = True
            signal.sigtimedwait(WATCHED, _WRITE_AGAIN_S)
            self._shut_groups()

    def _shut_groups(self) -> None:
        """Remove the control groups; who has come in at the last moment is killed first."""
        while not cgroup.remove(self._task):
            self._ending.allow(0.0, kernel.boottime_s())
            self._watch()

    # --- starting ---

    def _go_on(self, course: native.Course) -> None:
        """Take a running attempt over from the library, and return when nothing is left of it."""
        seen = self._seen
        self._job_pid, seen.status = course.job_pid, course.status
        seen.started_s, seen.started_boottime_s = course.started_s, course.started_boottime_s
        seen.cpu_s, seen.memory_peak_bytes = course.cpu_s, course.memory_peak_bytes
        self._started = True
        self._ending.started(seen.started_boottime_s)
        if course.info:
            self._opened(*course.paths, "")
        else:
            self._publish(*course.paths, "")
        if seen.status is not None:
            self._ending.main_exited(kernel.boottime_s())
        if not course.is_over and not self._heed(course.signal):
            self._watch()

    def _launch(self, around: Surroundings, *, is_announced: bool) -> None:
        """Start the job's process and record it."""
        if not is_announced:
            self._user_dir.make()
            private.make(self._task, around)
            cgroup.prepare(self._task)
            self._announce_start()
        site_programs.prepare(self._task, lambda: self._pause(0.0))
        failpoint("supervisor.start.before_fork")
        if direct.is_possible(self._task, around):
            self._job_pid, paths = direct.start(
                self._task, around, self._journal, self._opened, self._pause
            )
            failpoint("supervisor.start.after_fork")
            self._publish(*paths)
        else:
            self._launch_by_fork(around)

    def _announce_start(self) -> None:
        try:
            self._journal.announce_start()
        except OSError as error:
            raise LaunchError(
                f"the node cannot keep the job's record: {reason(error)}: see gnodes",
                stage="spool",
                subject="node",
                errno=error.errno or 0,
            ) from error

    def _launch_by_fork(self, around: Surroundings) -> None:
        """Fork the job's process, let it prepare, record it and let it go."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stdin = -1
        if self._task.gate:
            self._gate = TaskGate(yields=self._task.yields)
            stdin = self._gate.reader
        with ours:
            listener = self._listen()
            since = around.owners.moment()
            try:
                pid = os.fork()
            except OSError as error:
                self._close_stdin()
                raise LaunchError(
                    f"cannot fork: {reason(error)}",
                    stage="fork",
                    subject="node",
                    errno=error.errno or 0,
                ) from error
            if pid == 0:
                os.close(ours.fileno())  # or we would not notice the supervisor's death
                child.become_job(
                    self._task, around, theirs.fileno(), stdin=stdin, listener=listener
                )
            self._job_pid = pid
            self._close_stdin()
            if listener is not None:
                listener.close()
            theirs.close()
            failpoint("supervisor.start.after_fork")
            channel = StartChannel(
                ours,
                self._task,
                lambda: self._pause(0.0),
                lambda: away.make_outbox(self._task),
                lambda groups: around.owners.note(self._task, groups, since),
            )
            if staging.has_begun_before(self._task):
                self._let_stage_in(channel)
            self._publish(*channel.paths(READY, self._before_s()))
            self._refuse_if_stopped()
            channel.let_continue()
            channel.wait_for_program()

    def _before_s(self) -> float:
        """Return how long all that the owner does before the program may take, seconds."""
        programs = self._task.programs
        prolog_s = programs.prolog_timeout_s if programs and programs.prolog_user else 0.0
        return staging.limit_s(self._task) + prolog_s

    def _let_stage_in(self, channel: StartChannel) -> None:
        """Let the job's process copy files; the attempt begins with that.

        One that is prepared begins when it is launched.
        """
        paths = channel.paths(STAGING)
        self._opened(*paths)
        if not self._task.gate:
            self._begin()
            self.info = self._journal.write_staging(self._description(*paths[:2]))
            self._obey()  # as when its program starts
        self._refuse_if_stopped()
        channel.let_continue()

    def _listen(self) -> socket.socket | None:
        """Return where gnode reaches the keeper of the job's terminal, None if it has none."""
        if self._task.detach_timeout_s is None:
            return None
        try:
            return terminal.listen(self._directory)
        except OSError as error:
            raise LaunchError(
                f"the node cannot make the job's terminal: {reason(error)}",
                stage="spool",
                subject="node",
                errno=error.errno or 0,
            ) from error

    def _close_stdin(self) -> None:
        """Close the job's end of its gate here: the job has its own."""
        if self._gate is not None:
            self._gate.close_reader()

    def _begin(self) -> None:
        self._started = True
        self._seen.started_s = time.time()
        self._seen.started_boottime_s = kernel.boottime_s()
        self._ending.started(self._seen.started_boottime_s)

    def _publish(self, stdout_path: str, stderr_path: str, place: str) -> None:
        self._opened(stdout_path, stderr_path, place)
        if not self._started:
            self._begin()
        self.info = self._journal.write_started(self._description(stdout_path, stderr_path))
        # Until now nobody could know whom to signal about an order, so none may go unread.
        self._obey()

    def _description(self, stdout_path: str, stderr_path: str) -> SupervisorInfo:
        return SupervisorInfo(
            pid=self._own.pid,
            start_ticks=self._own.start_ticks,
            job_pid=self._job_pid,
            job_start_ticks=proc.start_ticks(self._job_pid),
            started_s=self._seen.started_s,
            started_boottime_s=self._seen.started_boottime_s,
            stdout_path=stdout_path,
            stderr_path=stderr_path,
            away=self._is_away,
        )

    def _opened(self, _stdout_path: str, stderr_path: str, place: str) -> None:
        self._stderr_path = stderr_path
        if place == AWAY:
            self._is_away = True
            away.adapt(self._task)

    def _pause(self, pause_s: float) -> None:
        """Wait for a directory of the job, or for an order to stop it.

        Raises:
            LaunchError: it is to be stopped.
        """
        received = signal.sigtimedwait(_ORDERS, pause_s)
        if received is not None and received.si_signo == signal.SIGTERM:
            self._shut_down()
        elif received is not None:
            self._obey()
        self._refuse_if_stopped()

    def _shut_down(self) -> None:
        """Stop the job, as the machine shuts down without gnode: nobody else sends TERM."""
        self._ending.stop("shutdown", self._task.grace_s, kernel.boottime_s())

    def _refuse_if_stopped(self) -> None:
        lease.look(self._directory, self._task, self._ending, kernel.boottime_s())
        self._ending.expire(kernel.boottime_s())
        if self._ending.reason is not None:
            is_late = self._ending.reason == "walltime"
            step = "stage-in" if self._task.stage_in else "prolog_user"
            why = _OVER_BEFORE.format(step) if is_late else "stopped before it started"
            raise LaunchError(why, stage="order", subject="job")

    def _clear_launch(self) -> None:
        """Kill the process that did not become the job, and all that it has started."""
        if self._job_pid or self._task.programs:
            self._ending.allow(0.0, kernel.boottime_s())
            self._watch()

    # --- running ---

    def _watch(self) -> None:
        """Return when no process of the attempt is left."""
        while True:
            self._look_after_spool()
            lease.look(self._directory, self._task, self._ending, kernel.boottime_s())
            self._act(self._ending.step(kernel.boottime_s()))
            self._ask()
            times_s = (self._look_s, self._ending.deadline_s(), self._asking.due_s)
            self._timer.arm(min(time_s for time_s in times_s if time_s is not None))
            if self._heed(signal.sigwaitinfo(WATCHED).si_signo):
                return

    def _heed(self, number: int) -> bool:
        """Do what a signal asks for; return whether no process of the attempt is left."""
        if number == signal.SIGUSR1:
            self._obey()
        elif number == signal.SIGTERM:
            self._shut_down()
        elif self._reap():  # an alarm looks, too: others may have put processes into the group
            if cgroup.is_empty(self._task):
                return True
            self._look_s = kernel.boottime_s() + _GROUP_LOOK_S
        return False

    def _look_after_spool(self) -> None:
        """End the job if its attempt was taken out of the spool.

        Then gnode knows nothing of it, and the head may have started another attempt elsewhere.
        """
        now_s = kernel.boottime_s()
        if now_s < self._look_s:
            return
        self._look_s = now_s + _SPOOL_LOOK_S
        if self._ending.reason is None and self._is_abandoned():
            spool.log(f"{self._directory} is gone: ending the job")
            self._ending.stop("node_stop", 0.0, now_s)

    def _is_abandoned(self) -> bool:
        return not spool.is_same_file(f"{self._directory}/{spool.TASK}", self._lock_fd)

    def _reap(self) -> bool:
        """Take in every process that has ended; return whether that was the last one.

        We are a subreaper: whatever descends from us becomes our child when its parent ends, so
        to have no child means that nothing is left.
        """
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            self._seen.add(usage)
            if self._shells is not None:
                self._shells.reaped(pid)
            if pid == self._job_pid:
                self._seen.status = status
                self._ending.main_exited(kernel.boottime_s())
            elif pid == self._errand_pid:
                self._errand_pid, self._errand_status = 0, status
                self._ending.allow(0.0, kernel.boottime_s())  # what it has left is killed

    def _obey(self) -> None:
        orders_read = self._commands.read()
        if self._shells is not None:
            orders_read = self._shells.take(orders_read)
        now_s = kernel.boottime_s()
        signals = orders.obey(orders_read, self._ending, self._asking, now_s)
        if signals and self._job_pid:
            with contextlib.suppress(OSError):  # a full disk: whoever takes over sends them again
                self._journal.announce_sent()
            for number in signals:
                proc.send(self._members(), number)
        if self._ending.launched_s is not None and self._gate is not None and self._job_pid:
            self._open_gate(self._gate, self._ending.launched_s)
        if self._shells is not None and self._job_pid and self._seen.status is None:
            self._shells.start(self._task)

    def _open_gate(self, gate: TaskGate, launched_s: float) -> None:
        """Let a prepared job go on as the attempt that has just been launched.

        The order to do it came only after the launched task was written.
        """
        task = launched_task(self._directory)
        if task is None:
            spool.log(f"{self._directory}: launched without a task: ending the job")
            self._ending.stop("node_stop", 0.0, kernel.boottime_s())
            return
        before, self._task = self._task.env, task
        if self._is_away:
            away.adapt(task)
        self._gate = None
        self._seen.started_s = time.time() - (kernel.boottime_s() - launched_s)
        self._seen.started_boottime_s = launched_s
        self._ending.set_lease(lease.until_s(task, lease.read(self._directory)), task.lease_grace_s)
        affinity.confine(task, self._members)
        try:
            fence.set_up(task.fence)
        except LaunchError as error:
            spool.log(str(error))
            self._ending.stop("node_stop", 0.0, kernel.boottime_s())
            return
        self._ending.early_s = early.before_s(task)
        gate.raise_priority(self._job_pid, self._members(), task.nice)
        gate.open(before, task.env)

    def _ask(self) -> None:
        if self._seen.status is not None:
            self._asking.drop()
        self._asking.step(
            self._members, self._ending, self._journal, self._task.grace_s, kernel.boottime_s()
        )

    def _act(self, what: Do) -> None:
        if what is Do.EARLY:
            early.send(self._task, self._job_pid, self._members())
        elif what is Do.NOTICE:
            if not early.notify(self._task, self._job_pid, self._members()):
                self._ending.skip_notice(kernel.boottime_s())
        elif what is Do.TERM:
            proc.ask_to_end(self._members())
        elif what is Do.KILL:
            if self._errand_pid:  # first, or it would report its killed program as failed
                proc.send((self._errand_pid,), signal.SIGKILL)
            cgroup.kill(self._task)
            proc.send(self._members(), signal.SIGKILL)

    def _members(self) -> set[int]:
        return errand.members(self._task)

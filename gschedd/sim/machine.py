"""A modelled machine: spool, launcher, supervisors and the jobs' processes; gnode comes and goes.

What lies here survives gnode, as it does in reality: the launcher forks supervisors, each of which
owns one attempt, obeys commands and walltime (by the real `Ending`), and leaves an exit record.
"""

import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from gnode.core.inputs import SpoolEntry
from gnode.core.mark import HeadMark
from gnode.core.task import (
    AcceptedTask,
    AttemptKey,
    Command,
    LaunchCommand,
    RetimeCommand,
    ShellCommand,
    SignalCommand,
    StopCommand,
)
from gnode.supervisor.ending import Do, Ending
from gnode.task import SupervisorInfo
from gsched.model.job import ExitRecord, LaunchFailure
from gsched.model.resources import GpuShare, Inventory, Usage
from gsched.model.states import LaunchStage, OutcomeKind, StopReason, Subject
from gsched.protocol import node as n
from gschedd.sim.agenda import FOREVER, Agenda
from gschedd.sim.course import AdaptiveAttempt
from gschedd.sim.program import Program
from gschedd.sim.work import Work

ENDED_MAX: Final = 1_000  # attempts that a modelled node remembers after their end


@dataclass(slots=True)
class Spool:
    """What is on the machine's disk.

    Attributes:
        unflushed: attempts whose records do not outlive a power loss yet; gnode flushes them
            before it tells of them, and the launcher where no gnode does.
    """

    tasks: dict[AttemptKey, AcceptedTask] = field(default_factory=dict)
    infos: dict[AttemptKey, SupervisorInfo] = field(default_factory=dict)
    records: dict[AttemptKey, ExitRecord] = field(default_factory=dict)
    renewals: dict[AttemptKey, float] = field(default_factory=dict)
    mark: HeadMark = field(default_factory=HeadMark)
    ended: dict[AttemptKey, n.KnownAttempt] = field(default_factory=dict)
    launched: dict[AttemptKey, AcceptedTask] = field(default_factory=dict)
    unflushed: set[AttemptKey] = field(default_factory=set)

    def bury(self, known: n.KnownAttempt) -> None:
        """Keep what is known of an ended attempt; the oldest ones are dropped."""
        self.ended[AttemptKey(known.job, known.attempt)] = known
        if len(self.ended) > ENDED_MAX:
            del self.ended[next(iter(self.ended))]

    def found(self, key: AttemptKey) -> SpoolEntry:
        """Return what lies there of one attempt; a record that is read is flushed."""
        self.unflushed.discard(key)
        return SpoolEntry(
            key=key,
            task=self.tasks.get(key),
            info=self.infos.get(key),
            record=self.records.get(key),
            renewed_s=self.renewals.get(key),
            launched=self.launched.get(key),
        )

    def all_found(self) -> tuple[SpoolEntry, ...]:
        """Return everything that lies there, as a starting gnode finds it."""
        return tuple(self.found(key) for key in sorted({*self.tasks, *self.records}))

    def remove(self, key: AttemptKey) -> None:
        """Forget an attempt."""
        self.tasks.pop(key, None)
        self.infos.pop(key, None)
        self.records.pop(key, None)
        self.renewals.pop(key, None)
        self.launched.pop(key, None)
        self.unflushed.discard(key)


SIGTERM: Final = 15
SIGKILL: Final = 9
FIRST_PID: Final = 1000
_NO_DIRECTORY: Final = LaunchFailure(
    stage=LaunchStage.WORKDIR, subject=Subject.JOB, errno=errno.ENOENT
)


#: Ends of a gated job that others than its node have asked for.
_REQUESTED_ENDS: Final = frozenset({"delete", "rerun", "move", "node_stop", "peer_failed"})


@dataclass(slots=True, kw_only=True)
class Process:
    """A supervisor and its job; ``info`` is None until the job has been started.

    ``wake``: the event at ``wake_s``, at which the supervisor acts next.
    ``gated``: it was prepared, and waits for the launch of its attempt.
    """

    task: AcceptedTask
    pid: int
    program: Program
    ending: Ending
    info: SupervisorInfo | None = None
    begun_s: float = 0.0
    wake_s: float = FOREVER
    wake: int = 0
    gated: bool = False


class SimMachine:
    """One machine.

    Args:
        programs: what each job does, by its number; a job that is not there ends at once.
        start_s: from the fork of a supervisor to the start of its job, seconds.

    Attributes:
        boots: how often it was started; the boot id says it.
        processes: supervisors that live now, by attempt.
        sharing: the runtime by which jobs share its GPUs; empty: they cannot.
        skew_s: by how much its wall clock is ahead of the true one.
        suspended: nothing runs here now, and clocks go on.
        on_seen, on_ended, on_progress: tell gnode, if one runs; None if not.
        on_change: told whenever what is in use has changed.
        on_begin, on_record: told of every start and every end of a job; nothing survives of them
            in the spool for ever.
    """

    def __init__(
        self,
        name: str,
        inventory: Inventory,
        *,
        agenda: Agenda,
        work: Work,
        programs: Mapping[int, Program],
        start_s: float = 0.0,
    ) -> None:
        self.name = name
        self.sharing = ""
        self.inventory = inventory
        self.boots = 1
        self.skew_s = 0.0
        self.suspended = False
        self._missed: list[Callable[[], None]] = []
        self.spool = Spool()
        self.work = work
        self.processes: dict[AttemptKey, Process] = {}
        self.on_seen: Callable[[AttemptKey], None] | None = None
        self.on_ended: Callable[[AttemptKey], None] | None = None
        self.on_progress: Callable[[n.TrainingProgress], None] | None = None
        self.on_change: Callable[[SimMachine], None] | None = None
        self.on_begin: Callable[[SimMachine, AttemptKey], None] | None = None
        self.on_record: Callable[[SimMachine, ExitRecord], None] | None = None
        self.gpus_used = 0
        self.sharers = 0
        self._agenda = agenda
        self._programs = programs
        self._start_s = start_s
        self._next_pid = FIRST_PID
        self._look_s = FOREVER
        self._look_event = 0

    @property
    def boot_id(self) -> str:
        """Return the id of this boot."""
        return f"{self.name}-boot-{self.boots}"

    def wall_s(self) -> float:
        """Return the time as this machine's clock shows it, seconds since the epoch."""
        return self._agenda.now_s + self.skew_s

    # --- the launcher ---

    def fork(self, key: AttemptKey) -> int | None:
        """Give an attempt its one supervisor and return its process id; None if it is over."""
        process = self.processes.get(key)
        if process is not None:
            return process.pid
        task = self.spool.tasks.get(key)
        if task is None or key in self.spool.records:
            return None
        self._next_pid += 1
        process = Process(
            task=task,
            pid=self._next_pid,
            program=self._programs.get(key.job, _NOTHING),
            ending=Ending(
                walltime_s=task.walltime_s,
                grace_s=task.grace_s,
                lease_until_s=task.lease_from_s + task.lease_s if task.lease_s else None,
                lease_grace_s=task.lease_grace_s,
            ),
            gated=task.gate,
        )
        self.processes[key] = process
        if self._start_s:
            self._agenda.after(self._start_s, self._begin, key, process)
        else:
            self._begin(key, process)
        return process.pid

    def _begin(self, key: AttemptKey, process: Process) -> None:
        """Start the job's own process."""
        if self.processes.get(key) is not process:
            return
        if self.suspended:
            self._missed.append(partial(self._begin, key, process))
            return
        now_s = self._agenda.now_s
        self._look_at_lease(key, process)
        if process.ending.reason is not None or process.program.user_error:
            self._end(key, process, kind=OutcomeKind.LAUNCH_FAILED)
            return
        process.begun_s = now_s
        process.ending.started(now_s)
        process.info = SupervisorInfo(
            pid=process.pid,
            start_ticks=process.pid,
            job_pid=process.pid + 1_000_000,
            job_start_ticks=process.pid,
            started_s=self.wall_s(),
            started_boottime_s=now_s,
        )
        self.spool.infos[key] = process.info
        if process.gated:
            self._open_gate(key, process)
        else:
            self._work(key, process)
        self._arrange(key, process)
        self._plan()
        if self.on_seen is not None:
            self.on_seen(key)

    def _work(self, key: AttemptKey, process: Process) -> None:
        """Let the job do what an attempt does."""
        if self.on_begin is not None:
            self.on_begin(self, key)
        held = [GpuShare(index=index) for index in process.task.gpu_indices]
        held.extend(process.task.gpu_shares)
        self.work.start(key, process.program, self._agenda.now_s, held)
        if process.program.course is not None:
            process.program.course.joined(self)
        self.gpus_used += len(process.task.gpu_indices)
        self.sharers += bool(process.task.gpu_shares)
        self._changed()

    def _open_gate(self, key: AttemptKey, process: Process) -> None:
        """Let a prepared job go on, if its attempt was launched."""
        task = self.spool.launched.get(key)
        if not process.gated or process.info is None or process.ending.launched_s is None:
            return
        assert task is not None, "its supervisor was told only after that was written"
        process.task, process.gated = task, False
        process.program = self._programs.get(key.job, _NOTHING)
        process.begun_s = self._agenda.now_s
        if task.lease_s:
            renewed_s = self.spool.renewals.get(key, task.lease_from_s)
            process.ending.set_lease(renewed_s + task.lease_s, task.lease_grace_s)
        self._work(key, process)

    # --- supervisors ---

    def command(self, key: AttemptKey, command: Command) -> None:
        """Hand a supervisor a command, if it lives."""
        process = self.processes.get(key)
        if process is None:
            return
        match command:
            case StopCommand():
                process.ending.stop(command.reason, command.grace_s, self._agenda.now_s)
            case RetimeCommand():
                process.ending.retime(command.walltime_s)
            case LaunchCommand():
                process.ending.launch(command.at_s, command.walltime_s)
                self._open_gate(key, process)
                self._plan()
            case ShellCommand():
                pass  # nobody sits at a modelled machine
            case SignalCommand():
                if (
                    process.info is not None
                    and not process.gated
                    and command.signal in {SIGTERM, SIGKILL}
                ):
                    self._end(key, process, signal=command.signal)
                return
        if process.info is not None:
            self._act(key, process)

    def _act(self, key: AttemptKey, process: Process) -> None:
        """Do what a supervisor does when it wakes."""
        if self.processes.get(key) is not process:
            return
        if self.suspended:
            self._missed.append(partial(self._act, key, process))
            return
        self._look_at_lease(key, process)
        match process.ending.step(self._agenda.now_s):
            case Do.KILL:
                self._end(key, process, signal=SIGKILL)
            case Do.TERM if not process.program.ignores_term:
                self._end(key, process, signal=SIGTERM)
            case _:
                self._arrange(key, process)

    def _look_at_lease(self, key: AttemptKey, process: Process) -> None:
        """Read the last renewal where the lease would be over, as a supervisor does."""
        ending, now_s = process.ending, self._agenda.now_s
        if ending.lease_until_s is None or now_s < ending.lease_until_s:
            return
        if key in self.spool.renewals:
            ending.renew(self.spool.renewals[key] + process.task.lease_s)
        ending.check_lease(now_s)

    def _arrange(self, key: AttemptKey, process: Process) -> None:
        """Wake a supervisor when its next deadline comes."""
        deadline_s = process.ending.deadline_s()
        if deadline_s is not None and deadline_s < process.wake_s:
            self._stay_asleep(process)
            process.wake_s = deadline_s
            process.wake = self._agenda.at(deadline_s, self._wake, key, process)

    def _wake(self, key: AttemptKey, process: Process) -> None:
        process.wake_s = FOREVER
        self._act(key, process)

    def _stay_asleep(self, process: Process) -> None:
        """Cancel the next deadline of a supervisor that is over, or has an earlier one."""
        if process.wake_s < FOREVER:
            process.wake_s = FOREVER
            self._agenda.cancel(process.wake)

    def _plan(self) -> None:
        """Look at the work when the next job is done."""
        next_s = self.work.next_end_s()
        if next_s < FOREVER and next_s != self._look_s:
            if self._look_event:  # something else came in between
                self._agenda.cancel(self._look_event)
            self._look_s = next_s
            self._look_event = self._agenda.at(next_s, self._look, next_s)

    def _look(self, planned_s: float) -> None:
        if planned_s != self._look_s:
            return
        self._look_event = 0
        if self.suspended:
            self._missed.append(partial(self._look, planned_s))
            return
        self._look_s = FOREVER
        for key in self.work.done(self._agenda.now_s):
            process = self.processes[key]
            self._end(key, process, exit_code=process.program.exit_code)
        self._plan()

    def _end(
        self,
        key: AttemptKey,
        process: Process,
        *,
        kind: OutcomeKind | None = None,
        exit_code: int | None = None,
        signal: int | None = None,
    ) -> None:
        """Leave an exit record: nothing of the attempt is left here."""
        if kind is None:
            kind = OutcomeKind.EXITED if signal is None else OutcomeKind.SIGNALLED
        now_s = self._agenda.now_s
        wall_s = now_s - process.begun_s if process.info is not None else 0.0
        reason = process.ending.reason
        if process.gated:  # see `gnode.supervisor.gate.never_launched`
            kind, exit_code, signal = OutcomeKind.LAUNCH_FAILED, None, None
            reason = reason if reason in _REQUESTED_ENDS else None
        if reason == StopReason.LEASE:
            kind, exit_code = OutcomeKind.NODE_LOST, None
        cpu_s = self._vanish(key)
        ended_s = self.wall_s()
        user_error = (
            kind is OutcomeKind.LAUNCH_FAILED
            and process.program.user_error
            and not process.task.gate
        )
        self.spool.records[key] = ExitRecord(
            job=key.job,
            attempt=key.attempt,
            kind=kind,
            exit_code=exit_code,
            signal=signal,
            stop_reason=StopReason(reason) if reason is not None else None,
            failure=_NO_DIRECTORY if user_error else None,
            message="no such directory" if user_error else "",
            failed_s=ended_s if exit_code or signal else None,
            started_s=process.info.started_s if process.info is not None else 0.0,
            ended_s=ended_s,
            wall_s=wall_s,
            cpu_s=cpu_s,
            memory_peak_bytes=process.program.memory_bytes if process.info is not None else 0,
            work_done=process.program.checkpoint(wall_s, now_s),
        )
        if self.on_record is not None:
            self.on_record(self, self.spool.records[key])
        if self.on_ended is not None:
            self.spool.unflushed.add(key)
            self.on_ended(key)

    def _vanish(self, key: AttemptKey) -> float:
        """Remove the processes of an attempt and return the CPU seconds that they used."""
        process = self.processes.pop(key)
        self._stay_asleep(process)
        if process.info is None or process.gated:
            return 0.0
        cpu_s = self.work.stop(key, self._agenda.now_s)
        if process.program.course is not None:
            process.program.course.left(self)
        self.gpus_used -= len(process.task.gpu_indices)
        self.sharers -= bool(process.task.gpu_shares)
        self._changed()
        self._plan()
        return cpu_s

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change(self)

    def gpu_minute_percent(self) -> tuple[float, ...]:
        """Return how busy each GPU was in the last minute; empty while jobs share none."""
        if not self.sharers:
            return ()
        now_s = self._agenda.now_s
        return tuple(self.work.gpu_percent(gpu.index, now_s) for gpu in self.inventory.gpus)

    def work_done(self, key: AttemptKey) -> float | None:
        """Return what a training that runs has done over all attempts; None if none runs here."""
        process = self.processes.get(key)
        if process is None or process.info is None or process.gated:
            return None
        now_s = self._agenda.now_s
        return process.program.checkpoint(now_s - process.begun_s, now_s)

    # --- adaptive training jobs ---

    def finish(self, key: AttemptKey) -> None:
        """Let a part end by itself: all its work is done."""
        process = self.processes.get(key)
        if process is not None and process.info is not None and not process.gated:
            self._end(key, process, exit_code=process.program.exit_code)

    def say(self, message: n.TrainingProgress) -> None:
        """Let a training tell gnode something, if one runs."""
        if self.on_progress is not None:
            self.on_progress(message)

    def course(self, key: AttemptKey) -> AdaptiveAttempt | None:
        """Return what an adaptive training does here; None if none runs."""
        process = self.processes.get(key)
        if process is None or process.info is None or process.gated:
            return None
        return process.program.course

    def usage(self, key: AttemptKey) -> Usage:
        """Return what the samples of an attempt that has ended say of it."""
        record, task = self.spool.records[key], self.spool.tasks.get(key)
        gpus = task.gpu_indices if task is not None else ()
        return Usage(
            wall_s=record.wall_s,
            cpu_s=record.cpu_s,
            memory_peak_bytes=record.memory_peak_bytes,
            memory_mean_bytes=record.memory_peak_bytes,
            gpu_util_mean_percent=100.0 if gpus else 0.0,
            samples=1,
        )

    # --- mishaps ---

    def kill_leftover(self, key: AttemptKey) -> None:
        """Kill everything of an attempt without leaving a record; nothing if there is nothing."""
        if key in self.processes:
            self._vanish(key)

    def suspend(self) -> None:
        """Let nothing run any more."""
        self.suspended = True

    def resume(self) -> None:
        """Go on; whose time has come meanwhile acts at once."""
        self.suspended = False
        missed, self._missed = self._missed, []
        for act in missed:
            act()

    def lose_power(self) -> None:
        """Everything that runs dies; what was flushed to the disk stays."""
        for key in list(self.processes):
            self._vanish(key)
        self.boots += 1
        self.suspended = False
        self._missed.clear()


_NOTHING: Final = Program(work_s=0.0)

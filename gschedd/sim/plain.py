"""Attempts on a modelled machine where nothing fails: they start, end and are stopped.

Where messages are lost and daemons die, gnode's agent decides what a node does with an attempt, and
the fault world runs it. In a policy's simulation nothing is lost. What is left of the agent is to
fork a supervisor, and to tell that a job has started and how it has ended. Attempts that need more
(a lease, a checkpoint, a share of a GPU) have the agent there, too.
"""

from collections.abc import Callable
from typing import Final

from msgspec import structs

from gnode.core.program import NOWHERE
from gnode.core.task import (
    AcceptedTask,
    AttemptKey,
    Command,
    RetimeCommand,
    SignalCommand,
    StopCommand,
)
from gsched.model.resources import Load, Usage
from gsched.model.states import Join
from gsched.protocol import node as n
from gschedd.sim.machine import SimMachine

Order = n.ExitAck | n.StopAttempt | n.Signal | n.Retime


class PlainAttempts:
    """The plain attempts of one machine.

    Args:
        tell: sends a message to the head.
        load: returns how busy the machine is.
        samples: usage is measured here, as policies need.
    """

    def __init__(
        self,
        machine: SimMachine,
        *,
        tell: Callable[[n.NodeMessage], None],
        load: Callable[[], Load],
        samples: bool,
    ) -> None:
        self._machine = machine
        self._tell = tell
        self._load = load
        self._samples = samples
        self._tokens: dict[AttemptKey, str] = {}  # of those that the head has not acknowledged

    def hear(self, message: n.HeadMessage) -> bool:
        """Take in a message of the head; return whether it was about a plain attempt."""
        match message:
            case n.Launch():
                return self._launch(message)
            case n.ExitAck() | n.StopAttempt() | n.Signal() | n.Retime():
                key = AttemptKey(message.job, message.attempt)
                if key not in self._tokens:
                    return False
                self._obey(key, message)
                return True
            case _:
                return False

    def _launch(self, launch: n.Launch) -> bool:
        if not is_plain(launch):
            return False
        key = AttemptKey(launch.job, launch.attempt)
        self._tokens[key] = launch.token
        self._machine.spool.tasks[key] = _task_of(launch)
        self._machine.fork(key)
        return True

    def _obey(self, key: AttemptKey, order: Order) -> None:
        if isinstance(order, n.ExitAck):
            del self._tokens[key]
            self._machine.spool.remove(key)
        elif key in self._machine.spool.records:
            self._tell_end(key)
        else:
            self._machine.command(key, _command_of(order))

    def seen(self, key: AttemptKey) -> bool:
        """Tell the head that a job has started; return whether its attempt is a plain one."""
        token = self._tokens.get(key)
        if token is None:
            return False
        info = self._machine.spool.infos[key]
        self._tell(
            n.Started(
                job=key.job,
                attempt=key.attempt,
                pid=info.job_pid,
                started_s=info.started_s,
                stdout_path=NOWHERE,
                stderr_path=NOWHERE,
                token=token,
            )
        )
        return True

    def ended(self, key: AttemptKey) -> bool:
        """Tell the head how a job has ended; return whether its attempt is a plain one."""
        if key not in self._tokens:
            return False
        self._machine.spool.unflushed.discard(key)
        self._tell_end(key)
        return True

    def _tell_end(self, key: AttemptKey) -> None:
        record = self._machine.spool.records[key]
        usage = self._machine.usage(key) if self._samples else Usage()
        usage = structs.replace(
            usage,
            wall_s=record.wall_s,
            cpu_s=record.cpu_s,
            cpu_peak_cores=record.cpu_s / record.wall_s if record.wall_s > 0 else 0.0,
            memory_peak_bytes=record.memory_peak_bytes,
        )
        load = self._load() if self._samples else Load()
        token = self._tokens[key]
        self._tell(n.Exited(record=record, usage=usage, load=load, token=token))

    def forget(self) -> None:
        """Forget all of them: the machine has no power."""
        self._tokens.clear()


def is_plain(launch: n.Launch) -> bool:
    """Return whether an attempt needs nothing of an agent but to be started and stopped."""
    spec = launch.spec
    return not (
        launch.lease_s
        or launch.checkpoint_dir
        or launch.is_step_agent
        or launch.share.gpu_shares
        or spec.training is not None
        or spec.movable
        or spec.checkpoint_signal
        or spec.interactive is not None
    )


def _command_of(order: n.StopAttempt | n.Signal | n.Retime) -> Command:
    match order:
        case n.StopAttempt():
            return StopCommand(reason=order.reason, grace_s=order.grace_s)
        case n.Signal():
            return SignalCommand(signal=order.signal)
        case n.Retime():
            return RetimeCommand(walltime_s=order.walltime_s)


def _task_of(launch: n.Launch) -> AcceptedTask:
    """Return what a modelled supervisor goes by; there is no program."""
    spec = launch.spec
    task = object.__new__(AcceptedTask)  # all its fields at once: there is one for each job
    task.__dict__.update(
        _NO_TASK.__dict__,
        job=launch.job,
        attempt=launch.attempt,
        user=spec.owner.user,
        uid=spec.owner.uid,
        gid=spec.owner.gid,
        cwd=spec.workdir,
        walltime_s=launch.walltime_s,
        gpu_indices=launch.share.gpu_indices,
        join=spec.join,
        umask=spec.umask,
        grace_s=spec.grace_s,
    )
    return task


_NO_TASK: Final = AcceptedTask(
    job=0,
    attempt=0,
    user="",
    uid=0,
    gid=0,
    switch_user=False,
    argv=(),
    env={},
    cwd="",
    stdout_path=NOWHERE,
    stderr_path=NOWHERE,
    stdout_name="",
    stderr_name="",
    append=False,
    files=(),
    user_dir="",
    cgroup=None,
    memory_cgroup=None,
    walltime_s=None,
    join=Join.NO,
    umask=0,
    grace_s=0.0,
    failure_report=None,
)

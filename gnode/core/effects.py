"""All that a node's agent can want done, as values; the shell (or a simulator) obeys in order."""

from msgspec import Struct

from gnode.core.contained import ContainerPlan
from gnode.core.mark import HeadMark
from gnode.core.task import AcceptedTask, AttemptKey, Command
from gsched.model.configuration import ConfigRow
from gsched.model.gpu_outside import GpuUse
from gsched.model.gpu_tokens import GpuSharing
from gsched.model.health import HealthResult
from gsched.model.job import ExitRecord
from gsched.model.resources import GpuShare
from gsched.protocol.node import (
    AttemptMessage,
    AttemptReport,
    GoOn,
    Heartbeat,
    KnownAttempt,
    Launch,
    OutputRead,
    Probed,
    Renew,
    SurveyAttempts,
    TakeCheckpoint,
    TuneTraining,
    UnknownAttempt,
)
from gsched.protocol.sessions import OpenSession, SessionFailed
from gsched.protocol.uses import Uses


class AcceptTask(Struct, frozen=True, kw_only=True):
    """Write ``task.json``: from then on the attempt is accepted."""

    task: AcceptedTask


class AdmitSharing(Struct, frozen=True, kw_only=True):
    """Admit a task to the runtime by which jobs share GPUs; `Admitted` or `LaunchFailed` answers.

    It may take seconds, and nothing of the attempt is on disk before.

    Attributes:
        task: as it is without the runtime.
        container: in which it runs, and which needs parts of the runtime; None: in none.
    """

    task: AcceptedTask
    container: ContainerPlan | None = None


class EndSharing(Struct, frozen=True, kw_only=True):
    """Nothing of an attempt is left on the GPUs that it shared."""

    key: AttemptKey
    shares: tuple[GpuShare, ...]


class AttendSharing(Struct, frozen=True, kw_only=True):
    """An attempt is sent a signal: it must not wait for its shared GPUs for ``seconds``."""

    key: AttemptKey
    shares: tuple[GpuShare, ...]
    seconds: float


class KeepLaunched(Struct, frozen=True, kw_only=True):
    """Write ``launched.json``: from then on a prepared attempt is launched.

    Its supervisor is told afterwards.
    """

    task: AcceptedTask


class AskLaunch(Struct, frozen=True, kw_only=True):
    """Ask the launcher for a supervisor.

    Attributes:
        confined: nothing that it will start may gain rights by being setuid.
    """

    key: AttemptKey
    confined: bool = False


class LookAtSpool(Struct, frozen=True, kw_only=True):
    """Answer with `SpoolFound` for these attempts."""

    keys: tuple[AttemptKey, ...]


class AwaitStart(Struct, frozen=True, kw_only=True):
    """Tell when a supervisor has recorded the start: `SupervisorSeen`."""

    key: AttemptKey


class AwaitAnswer(Struct, frozen=True, kw_only=True):
    """Tell whether a supervisor has sent a job the signal of a migration: `SupervisorAnswered`."""

    key: AttemptKey
    request: int
    signal: int


class CommandSupervisor(Struct, frozen=True, kw_only=True):
    """Append a command for the supervisor and wake it."""

    key: AttemptKey
    command: Command
    pid: int
    start_ticks: int


class KillLeftover(Struct, frozen=True, kw_only=True):
    """Kill everything of the attempt, its supervisor included; `LeftoverGone` when none is left."""

    key: AttemptKey
    cgroup: str | None
    user_dir: str
    supervisor_pid: int
    supervisor_start_ticks: int


class WriteExit(Struct, frozen=True, kw_only=True):
    """Keep an exit record that gnode made itself, since no supervisor could."""

    record: ExitRecord


class RemoveContainer(Struct, frozen=True, kw_only=True):
    """Remove what the container of an ended attempt has left, if its supervisor has not."""

    key: AttemptKey


class RunEpilog(Struct, frozen=True, kw_only=True):
    """Have the epilog of an ended attempt run, unless it does or did: `EpilogEnded`."""

    key: AttemptKey


class DeliverOutput(Struct, frozen=True, kw_only=True):
    """Have the output of an ended attempt return to its host of submission: `OutputReturned`.

    ``runs``: of an attempt that runs, what its output gains until then, without an answer.
    """

    key: AttemptKey
    outbox: str
    host: str
    runs: bool = False


class RemoveFiles(Struct, frozen=True, kw_only=True):
    """Remove the directory that an ended attempt could write in: its space is needed."""

    user_dir: str


class Bury(Struct, frozen=True, kw_only=True):
    """Keep what is known of an ended attempt in the log of ended attempts, before its records go.

    A head whose database was restored asks for it: else it would run the job again.
    """

    known: KnownAttempt


class RecallEnded(Struct, frozen=True, kw_only=True):
    """Look into the log of ended attempts for the attempt of a launch: `Recalled`."""

    launch: Launch


class TellKnown(Struct, frozen=True, kw_only=True):
    """Answer a `SurveyAttempts` with the attempts that it names, and the ended ones."""

    attempts: tuple[KnownAttempt, ...]
    survey: SurveyAttempts


class RemoveSpool(Struct, frozen=True, kw_only=True):
    """Remove the records of an attempt; the head has its outcome."""

    key: AttemptKey


class SetAside(Struct, frozen=True, kw_only=True):
    """Move an unreadable attempt out of the spool, into ``lost+found``."""

    key: AttemptKey


class SendRegister(Struct, frozen=True, kw_only=True):
    """Answer the head's challenge with all attempts and the mark (the shell adds proof, load)."""

    attempts: tuple[AttemptReport, ...]
    mark: HeadMark
    probes: bool = False
    problem: str = ""
    health: tuple[HealthResult, ...] = ()
    config: ConfigRow | None = None
    cpu_binding: str = ""
    gpu_sharing: GpuSharing | None = None
    gpu_use: GpuUse | None = None


class RefuseHead(Struct, frozen=True, kw_only=True):
    """Close the connection to a head that must not be obeyed, say why, and back off."""

    message: str


class SendToHead(Struct, frozen=True, kw_only=True):
    """Send a message to the head."""

    message: (
        Heartbeat
        | Uses
        | OutputRead
        | UnknownAttempt
        | Probed
        | SessionFailed
        | Renew
        | AttemptMessage
    )


class TellJob(Struct, frozen=True, kw_only=True):
    """Pass an order to a training, over its socket; without one a `TrainingMessage` answers."""

    key: AttemptKey
    message: TakeCheckpoint | GoOn | TuneTraining


class SaveMark(Struct, frozen=True, kw_only=True):
    """Keep which heads this node has obeyed, and how far they had come."""

    mark: HeadMark


class KeepRenewal(Struct, frozen=True, kw_only=True):
    """Write into the spool that these attempts' leases were renewed at ``renewed_s``.

    That is seconds of CLOCK_BOOTTIME.
    """

    keys: tuple[AttemptKey, ...]
    renewed_s: float


class ReadFile(Struct, frozen=True, kw_only=True):
    """Read a job's output as its owner and send `OutputRead`.

    Attributes:
        switch_user: whether the reader must become ``uid`` first.
        offset: of the first byte; negative counts from the end.
        append: written to the end of the file, and nothing is read; empty: it is read.
        cgroup: of the attempt, in which the reader runs while the attempt does; None: it has none.
    """

    request: int
    path: str
    user: str
    uid: int
    gid: int
    switch_user: bool
    offset: int
    max_bytes: int
    append: bytes = b""
    cgroup: str | None = None


class ConnectTerminal(Struct, frozen=True, kw_only=True):
    """Connect a terminal of an attempt with the head, or send `SessionFailed`."""

    key: AttemptKey
    order: OpenSession


class Warn(Struct, frozen=True, kw_only=True):
    """Log a warning."""

    text: str


class Finish(Struct, frozen=True, kw_only=True):
    """The daemon is to end: all its attempts have."""


Effect = (
    AcceptTask
    | AdmitSharing
    | EndSharing
    | AttendSharing
    | KeepLaunched
    | AskLaunch
    | LookAtSpool
    | AwaitStart
    | AwaitAnswer
    | CommandSupervisor
    | KillLeftover
    | WriteExit
    | RemoveContainer
    | RunEpilog
    | DeliverOutput
    | RemoveFiles
    | Bury
    | RecallEnded
    | TellKnown
    | RemoveSpool
    | SetAside
    | SendRegister
    | RefuseHead
    | SendToHead
    | TellJob
    | SaveMark
    | KeepRenewal
    | ReadFile
    | ConnectTerminal
    | Warn
    | Finish
)

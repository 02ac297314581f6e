"""Everything that can happen to a node's agent, as values."""

from msgspec import Struct

from gnode.core.containers import ContainerRules
from gnode.core.gpu_access import GpuAccess
from gnode.core.site import NodeLimits, ProgramRules
from gnode.core.staging import Staging
from gnode.core.task import AcceptedTask, Account, AttemptKey
from gnode.task import SupervisorInfo
from gsched.model.configuration import ConfigRow
from gsched.model.gpu_outside import GpuUse
from gsched.model.gpu_tokens import GpuSharing
from gsched.model.health import HealthResult
from gsched.model.job import ExitRecord, LaunchFailure
from gsched.model.resources import Inventory, LiveUse, Load, Usage
from gsched.protocol.node import (
    Checkpointed,
    CheckpointFailed,
    ExitAck,
    GoOn,
    HighWater,
    KnownAttempt,
    Launch,
    Prepared,
    Probe,
    ReadOutput,
    Retime,
    Signal,
    StopAttempt,
    SurveyAttempts,
    TakeCheckpoint,
    TrainingProgress,
    TuneTraining,
)
from gsched.protocol.sessions import OpenSession

# --- the head ---


class HeadOffered(Struct, frozen=True, kw_only=True):
    """A head has proved that it knows the key; may it be obeyed?"""

    cluster: str
    epoch: int
    epoch_id: str = ""


class Welcomed(Struct, frozen=True, kw_only=True):
    """The head has let this node in."""

    cluster: str
    epoch: int
    epoch_id: str = ""
    seq: int = 0
    next_job: int = 0


class Disconnected(Struct, frozen=True, kw_only=True):
    """The connection is gone: nothing that was sent is sure to have arrived."""


class LaunchOrder(Struct, frozen=True, kw_only=True):
    """The head wants an attempt started; ``account`` is its owner here, None if unknown.

    ``lookup_failed``: it is not known whether there is such an account, as nobody answered.
    ``prepare``: it is only to be prepared; ``yields``: with a lower priority.
    """

    launch: Launch
    account: Account | None
    lookup_failed: bool = False
    prepare: bool = False
    yields: bool = False


class SurveyReceived(Struct, frozen=True, kw_only=True):
    """A head whose database may be an old copy asks what this node knows; it is not obeyed."""

    survey: SurveyAttempts


class Recalled(Struct, frozen=True, kw_only=True):
    """What the log of ended attempts holds of a launched attempt; None: nothing."""

    launch: Launch
    found: KnownAttempt | None


class LeaseRenewed(Struct, frozen=True, kw_only=True):
    """The head has sent back the number of a `Renew`; also one in safe mode, not obeyed."""

    number: int


class HeadOrder(Struct, frozen=True, kw_only=True):
    """Any other order of the head."""

    message: (
        StopAttempt
        | Signal
        | Retime
        | ExitAck
        | ReadOutput
        | TakeCheckpoint
        | GoOn
        | TuneTraining
        | HighWater
        | Probe
        | OpenSession
    )


# --- the jobs themselves ---


class TrainingMessage(Struct, frozen=True, kw_only=True):
    """A training has said something over its socket: how far it is, or what it has saved."""

    message: Prepared | Checkpointed | CheckpointFailed | TrainingProgress


# --- the launcher and the supervisors ---


class LauncherUp(Struct, frozen=True, kw_only=True):
    """A launcher takes requests; whether it is the same as before is not known.

    Everything of the spool that ends from now on is told by `SupervisorEnded`, whoever started it.
    """


class LauncherDown(Struct, frozen=True, kw_only=True):
    """The launcher is gone; what was asked of it may or may not have been done."""


class Launched(Struct, frozen=True, kw_only=True):
    """The attempt has a supervisor, forked now or, for a repeated request, earlier."""

    key: AttemptKey
    pid: int
    start_ticks: int


class SupervisorAnswered(Struct, frozen=True, kw_only=True):
    """A supervisor has sent a job the signal of a migration, or no process handles that."""

    key: AttemptKey
    request: int
    signal: int
    sent: bool


class Admitted(Struct, frozen=True, kw_only=True):
    """A task was admitted to the runtime for shared GPUs, which has added to its environment."""

    task: AcceptedTask

    @property
    def key(self) -> AttemptKey:
        """Return which attempt it is."""
        return self.task.key


class LaunchFailed(Struct, frozen=True, kw_only=True):
    """The launcher could not fork a supervisor, or gnode could not keep the task."""

    key: AttemptKey
    message: str
    failure: LaunchFailure | None = None


class SupervisorSeen(Struct, frozen=True, kw_only=True):
    """The start is in the journal: the job has been forked."""

    key: AttemptKey
    info: SupervisorInfo


class SupervisorEnded(Struct, frozen=True, kw_only=True):
    """The launcher says that an attempt is over; this is what was left in the spool.

    The launcher says it once the exit record is there, also where the supervisor was killed and
    the launcher had to take its place.
    """

    key: AttemptKey
    record: ExitRecord | None
    info: SupervisorInfo | None


class EpilogEnded(Struct, frozen=True, kw_only=True):
    """The epilog of an attempt has ended; ``fault`` is what went wrong, in words."""

    key: AttemptKey
    fault: str


class OutputReturned(Struct, frozen=True, kw_only=True):
    """The output of an attempt has returned; ``fault`` says where it is if it has not, in words."""

    key: AttemptKey
    fault: str


class LeftoverGone(Struct, frozen=True, kw_only=True):
    """Nothing of the attempt is left, after `KillLeftover`."""

    key: AttemptKey


class SpoolEntry(Struct, frozen=True, kw_only=True):
    """One attempt as it lies in the spool.

    Attributes:
        task: None if it cannot be read.
        info: of its supervisor, None if none ever wrote it.
        record: None if it is not over.
        doubt: why nobody can tell now whether there is a record; empty: it is as ``record`` says.
        renewed_s: when its lease was renewed last, seconds of CLOCK_BOOTTIME; None: not known.
        epilog: what went wrong in its epilog, empty: nothing; None: it has not ended.
        launched: of a prepared attempt: as it was launched, if it was.
        journal_bytes: of its orders and its start, most of them of shells if it is large.
    """

    key: AttemptKey
    task: AcceptedTask | None
    info: SupervisorInfo | None
    record: ExitRecord | None
    doubt: str = ""
    renewed_s: float | None = None
    launched: AcceptedTask | None = None
    journal_bytes: int = 0
    epilog: str | None = None


class SpoolFound(Struct, frozen=True, kw_only=True):
    """What lies in the spool: all of it at the start, or what `LookAtSpool` asked for.

    Attributes:
        ended: attempts of which only the log of ended ones knows; at the start only.
    """

    found: tuple[SpoolEntry, ...]
    ended: tuple[AttemptKey, ...] = ()


# --- the machine ---


class Measured(Struct, frozen=True, kw_only=True):
    """How busy the machine is, and what each sampled attempt has used so far.

    ``live``: what it uses at the moment; None: attempts were not sampled. ``gpu_use``: who else is
    on the GPUs; None: that is not known.
    """

    load: Load
    usage: dict[AttemptKey, Usage]
    live: dict[AttemptKey, LiveUse] | None = None
    gpu_use: GpuUse | None = None


class ProblemChanged(Struct, frozen=True, kw_only=True):
    """The machine can take no new jobs, for a reason in words, or can again (empty)."""

    problem: str


class HealthChanged(Struct, frozen=True, kw_only=True):
    """The last results of this node's health checks."""

    results: tuple[HealthResult, ...]


class ConfigRead(Struct, frozen=True, kw_only=True):
    """The configuration file was read, at the start or by a reload, or refused."""

    config: ConfigRow


class BindingChanged(Struct, frozen=True, kw_only=True):
    """New attempts are not bound to CPUs any more, for a reason in words, or are again (empty)."""

    reason: str


class SharingStatus(Struct, frozen=True, kw_only=True):
    """How jobs share GPUs here at the moment."""

    sharing: GpuSharing


class ShareAbused(Struct, frozen=True, kw_only=True):
    """Processes of an attempt are about to be killed, as it broke the rules of a shared GPU."""

    key: AttemptKey
    why: str


class SharingChanged(Struct, frozen=True, kw_only=True):
    """Jobs can share GPUs here from now on, or no longer: the head is told by a registration.

    Attributes:
        sharing: the runtime; empty: it cannot be used.
        access: to the GPUs from now on, as MIG instances were made; None: as before.
    """

    sharing: str
    access: GpuAccess | None = None


class SiteChanged(Struct, frozen=True, kw_only=True):
    """What the configuration says of jobs that start from now on: it was read again.

    Attributes:
        memory_root, limits, containers, staging, programs: as in `Site`.
        heartbeat_s: between two heartbeats, after the next one.
    """

    memory_root: tuple[int, str] | None
    limits: NodeLimits
    containers: ContainerRules
    staging: Staging
    programs: ProgramRules
    heartbeat_s: float


class InventoryChanged(Struct, frozen=True, kw_only=True):
    """What the machine has."""

    inventory: Inventory


class AlarmRang(Struct, frozen=True, kw_only=True):
    """The time that `Agent.next_alarm_s` named has come."""


class StopAllRequested(Struct, frozen=True, kw_only=True):
    """The administrator wants all attempts ended, and then the daemon.

    ``shuts_down``: because the machine shuts down.
    """

    shuts_down: bool = False


Input = (
    HeadOffered
    | Welcomed
    | Disconnected
    | SurveyReceived
    | LaunchOrder
    | Recalled
    | LeaseRenewed
    | HeadOrder
    | TrainingMessage
    | LauncherUp
    | LauncherDown
    | Launched
    | Admitted
    | LaunchFailed
    | SupervisorSeen
    | SupervisorEnded
    | SupervisorAnswered
    | LeftoverGone
    | EpilogEnded
    | OutputReturned
    | SpoolFound
    | Measured
    | ProblemChanged
    | HealthChanged
    | ConfigRead
    | BindingChanged
    | InventoryChanged
    | SharingStatus
    | ShareAbused
    | SharingChanged
    | SiteChanged
    | AlarmRang
    | StopAllRequested
)

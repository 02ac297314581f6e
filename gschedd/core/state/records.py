"""The records of the state: jobs, their attempts, and nodes. Facts make them."""

from typing import Final, Generic, TypeVar

from msgspec import Struct, field

from gsched.config.preemption import PreemptWay
from gsched.model.arrays import Spans
from gsched.model.ids import short_job_id, submitted_number
from gsched.model.job import ExitRecord, JobSpec, Outcome
from gsched.model.machine import Machine
from gsched.model.reports import Checkpoint, Progress
from gsched.model.resources import Allocation, Inventory, Load, Share, Usage
from gsched.model.states import (
    AttemptState,
    HoldKind,
    JobState,
    NodeState,
    PartState,
    PowerState,
    StopReason,
)
from gsched.model.training import Batching
from gsched.model.window import NodeWindow
from gschedd.plan.load import Prediction

T = TypeVar("T")


class Part(Struct, kw_only=True, omit_defaults=True):
    """An attempt on one of its nodes.

    Attributes:
        prediction: what it was expected to cost here, when it was assigned; None where nothing is
            learned, and where nothing of it runs.
    """

    share: Share
    state: PartState = PartState.PENDING
    pid: int = 0
    started_s: float | None = None
    stdout_path: str = ""
    stderr_path: str = ""
    record: ExitRecord | None = None
    usage: Usage | None = None
    prediction: Prediction | None = None


class Attempt(Struct, kw_only=True, omit_defaults=True):
    """One placement of a job.

    Attributes:
        token: tells it from an attempt of the same number in a lost history; see `Origin`.
        boot_ids: of each active node when the attempt was assigned; another boot proves its death.
        work_begun: of a training, what was done before, as its checkpoint has it.
        resumed: it has gone on from there: its first step is done.
        steps_s: how long all its steps take here by what its user said; 0 where that is no matter.
        startup_s: from its start to its first step; None: it has not said so.
        step_s: what one of its steps was measured to take, seconds; 0: it was not measured.
        step_known_s: when that was.
        stop: why it is being stopped, once it is; the first reason stands.
        lease_s: its nodes end it when they have not reached the head for so long; 0: never.
        lease_grace_s: from TERM to KILL then.
        batching: how an adaptive training splits its samples; None: it decides.
        profile_batches: an adaptive training measures its steps at several batch sizes first.
        gpu_types: of all GPUs that it holds, in the order of its parts, when it started: its node
            may lose some.
        reservation: that it runs in; empty: in none.
    """

    number: int
    state: AttemptState
    assigned_s: float
    parts: dict[str, Part]
    master_port: int = 0
    token: str = ""
    boot_ids: dict[str, str] = field(default_factory=dict)
    work_begun: float = 0.0
    resumed: bool = False
    steps_s: float = 0.0
    startup_s: float | None = None
    step_s: float = 0.0
    step_known_s: float = 0.0
    started_s: float | None = None
    ended_s: float | None = None
    stop: StopReason | None = None
    stop_grace_s: float = 0.0
    stop_message: str = ""
    stopped_by: str = ""
    lease_s: float = 0.0
    lease_grace_s: float = 0.0
    batching: Batching | None = None
    profile_batches: bool = False
    outcome: Outcome | None = None
    usage: Usage | None = None
    gpu_types: tuple[str, ...] = ()
    reservation: str = ""

    @property
    def allocation(self) -> Allocation:
        """Return what the attempt owns, in rank order."""
        return tuple([part.share for part in self.parts.values()])


class MigrationTarget(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a running job is to go on; without an allocation: in its queue.

    Attributes:
        batching: how an adaptive training splits its samples there; None: it decides.
        prepare: the number of its next attempt, which is prepared there; 0: it starts cold.
        ready_s: since when it does not wait for that, seconds since the epoch; 0: it does.
    """

    allocation: Allocation
    why: str
    by: str
    requested_s: float
    request: int = 0
    batching: Batching | None = None
    prepare: int = 0
    ready_s: float = 0.0


class MigrationProgress(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a move is, and what its phases took: seconds since the epoch, 0 while to come.

    Attributes:
        requested_s: when it was decided.
        saved_s: when its checkpoint was published.
        left_s: when nothing was left of the old attempt.
        placed_s: when it had its new place.
        resumed_s: when the first step there was done.
        save_s, restore_s: what writing and reading the checkpoint took, seconds.
        size_bytes: of the checkpoint.
        lost: how the job was killed at its checkpoint signal, so that it restarts instead.
        prepared_s: when the processes of its next attempt waited for the launch.
        warm: that attempt was started with them.
        cold: why not, in words.
    """

    requested_s: float
    saved_s: float = 0.0
    left_s: float = 0.0
    placed_s: float = 0.0
    resumed_s: float = 0.0
    save_s: float = 0.0
    restore_s: float = 0.0
    size_bytes: int = 0
    lost: str = ""
    prepared_s: float = 0.0
    warm: bool = False
    cold: str = ""

    @property
    def cost_s(self) -> float | None:
        """Return for how long a job that has moved could not work, seconds; None: it is not done.

        That is from the checkpoint, or from the order to one that only knows a signal, to the first
        step at the new place.
        """
        if not self.resumed_s:
            return None
        begun_s = self.saved_s - self.save_s if self.saved_s else self.requested_s
        return max(0.0, self.resumed_s - begun_s)


class Saved(Checkpoint, frozen=True, kw_only=True, omit_defaults=True):
    """A training's newest checkpoint; ``world_sizes``: the numbers of ranks it can go on with."""

    world_sizes: tuple[int, ...] = ()


class Reached(Progress, frozen=True, kw_only=True):
    """How far a training was when it last said so. Not durable: it says so again.

    Attributes:
        since_s, since_work: when its attempt was first heard, and what was done then.
        world_sizes: the numbers of ranks that it can run on, ascending; empty: it does not say.
        ready: its next attempt can be prepared.
    """

    attempt: int
    since_s: float
    since_work: float
    world_sizes: tuple[int, ...] = ()
    ready: bool = False


class IdleWarning(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """That a job's owner was warned of idle GPUs; see `gschedd.core.state.facts.GpusIdleWarned`.

    Attributes:
        attempt: of which attempt.
        reclaimed: by which action it gives back its GPUs; empty: it was only warned.
        reclaimed_gpus, planned_end_s: as in `gschedd.core.state.facts.IdleGpusReclaimed`.
    """

    attempt: int
    warned_s: float
    since_s: float
    gpus: dict[str, tuple[int, ...]]
    action: str
    acts_s: float = 0.0
    reclaimed: str = ""
    reclaimed_gpus: float = 0.0
    planned_end_s: float = 0.0


class Preempted(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """That a job had to give way last; see `gschedd.core.state.facts.JobPreempted`."""

    attempt: int
    at_s: float
    way: PreemptWay
    why: str
    job_for: int = 0
    or_requeue: bool = False
    behind: int = 0


class RoomClaim(Struct, frozen=True, kw_only=True):
    """What is kept for a waiting job; see `gschedd.core.state.facts.RoomClaimed`."""

    allocation: Allocation
    jobs: tuple[int, ...]
    until_s: float


class Elements(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What has become of the elements of an array.

    Those that are unfinished jobs are in none of these, but in `State.arrays`.

    Attributes:
        left: are no jobs yet, in the order in which they will be.
        held: as these, but do not become jobs until they are released.
        cancelled: never become jobs.
        succeeded, failed, deleted: how many jobs have ended in which way.
        worst: how the worst of them ended; None: all have succeeded.
        cpu_s, wall_s, gpu_s: what the jobs that have ended have used.
    """

    left: Spans = ()
    held: Spans = ()
    cancelled: Spans = ()
    succeeded: int = 0
    failed: int = 0
    deleted: int = 0
    worst: Outcome | None = None
    cpu_s: float = 0.0
    wall_s: float = 0.0
    gpu_s: float = 0.0


class SparseFields(Struct, kw_only=True, omit_defaults=True):
    """What few jobs have; the store keeps it in one column. Attributes of `Job` by these names.

    Attributes:
        move: where it goes on, while it moves.
        moves: how often it has moved.
        moves_lost: how often it was killed at its checkpoint signal and restarted instead.
        moves_requested: how often that was asked of it.
        prepared: the highest number of an attempt that was prepared for a move.
        moves_cost_s: for how long all its moves so far have kept it from working, seconds.
        spent_s: of its walltime, by attempts that it goes on from; see
            `gschedd.core.state.walltime`.
        migration: how far the present move is, or what the last one took.
        saved: its newest checkpoint.
        work_done: of a training, as its last checkpoint has it.
        work_total: of the whole training, in the unit of that; 0: it is the unit of its speed.
        guaranteed: whether it was guaranteed that it meets its deadline; None: nothing was said.
        meets: whether it is expected to now; None: nothing was said.
        expected_end_s: when it was expected to be done when that was said.
        avoid: nodes on which its last attempts failed to start: it tries others first.
        unknown_since_s: since when each attempt has failed on its owner's account; 0: none has.
        missing_since_s: since when each has failed for a directory that does not exist; 0: none.
        recovered: a node knew it and the database did not; it is never started (again).
        elements: of an array; None: it is none.
        idle: that its owner was warned of idle GPUs of its last attempt; None: that was not so.
        idle_requeues: how often it was requeued since its GPUs were idle.
        preempted: that it had to give way; None: it never had.
        preemptions: how often it had.
        preempted_gpu_s: the work that this has cost, in GPU-seconds.
        claim: the allocation that others vacate for it; None: it waits as all others.
        short_number: of an element of an array of Slurm what its commands call it; of such an array
            that of its first element; 0: none was reserved.
    """

    move: MigrationTarget | None = None
    moves: int = 0
    moves_lost: int = 0
    moves_requested: int = 0
    prepared: int = 0
    moves_cost_s: float = 0.0
    spent_s: float = 0.0
    migration: MigrationProgress | None = None
    saved: Saved | None = None
    work_done: float = 0.0
    work_total: float = 0.0
    guaranteed: bool | None = None
    meets: bool | None = None
    expected_end_s: float | None = None
    avoid: tuple[str, ...] = ()
    unknown_since_s: float = 0.0
    missing_since_s: float = 0.0
    recovered: bool = False
    elements: Elements | None = None
    idle: IdleWarning | None = None
    idle_requeues: int = 0
    preempted: Preempted | None = None
    preemptions: int = 0
    preempted_gpu_s: float = 0.0
    claim: RoomClaim | None = None
    short_number: int = 0


_NONE_SET: Final = SparseFields()


class Sparse(Generic[T]):
    """An attribute of a job that is a field of its `SparseFields`, which few jobs have.

    A million jobs would take 200 MB for the defaults of these fields.
    """

    __slots__ = ("_default", "_name")

    _default: T

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name
        self._default = getattr(_NONE_SET, name)

    def __get__(self, job: "Job", owner: type) -> T:
        sparse = job.sparse
        return self._default if sparse is None else getattr(sparse, self._name)

    def __set__(self, job: "Job", value: T) -> None:
        sparse = job.sparse
        if sparse is None:
            if value == self._default:
                return
            sparse = job.sparse = SparseFields()
        setattr(sparse, self._name, value)
        if sparse == _NONE_SET:
            job.sparse = None


class Job(Struct, kw_only=True, omit_defaults=True):
    """A job that is not done.

    Attributes:
        eligible_s: since when it may start: its queue time.
        not_before_s: until when a fault of the system delays it.
        faults: faults of the system in a row.
        cpu_s: CPU time of all ended attempts.
        sparse: what few jobs have; None: all of it is as at the submission.
    """

    id: int
    spec: JobSpec
    state: JobState
    submitted_s: float
    eligible_s: float
    holds: tuple[HoldKind, ...] = ()
    hold_reason: str = ""
    not_before_s: float = 0.0
    attempts: int = 0
    attempt: Attempt | None = None
    faults: int = 0
    requeues: int = 0
    requeue_reason: str = ""
    started_s: float | None = None
    ended_s: float | None = None
    cpu_s: float = 0.0
    wall_s: float = 0.0
    gpu_s: float = 0.0
    outcome: Outcome | None = None
    sparse: SparseFields | None = None

    move = Sparse[MigrationTarget | None]()
    moves = Sparse[int]()
    moves_lost = Sparse[int]()
    moves_requested = Sparse[int]()
    prepared = Sparse[int]()
    moves_cost_s = Sparse[float]()
    spent_s = Sparse[float]()
    migration = Sparse[MigrationProgress | None]()
    saved = Sparse[Saved | None]()
    work_done = Sparse[float]()
    work_total = Sparse[float]()
    guaranteed = Sparse[bool | None]()
    meets = Sparse[bool | None]()
    expected_end_s = Sparse[float | None]()
    avoid = Sparse[tuple[str, ...]]()
    unknown_since_s = Sparse[float]()
    missing_since_s = Sparse[float]()
    recovered = Sparse[bool]()
    elements = Sparse[Elements | None]()
    idle = Sparse[IdleWarning | None]()
    idle_requeues = Sparse[int]()
    preempted = Sparse[Preempted | None]()
    preemptions = Sparse[int]()
    preempted_gpu_s = Sparse[float]()
    claim = Sparse[RoomClaim | None]()
    short_number = Sparse[int]()

    @property
    def current_attempt(self) -> Attempt:
        """Return the attempt of a job that has one: it runs, starts or ends."""
        assert self.attempt is not None, f"job {short_job_id(self.id)} has no attempt"
        return self.attempt

    @property
    def target(self) -> MigrationTarget:
        """Return where a migrating job goes."""
        assert self.move is not None, f"job {short_job_id(self.id)} does not migrate"
        return self.move

    @property
    def array_elements(self) -> Elements:
        """Return what has become of the elements of an array."""
        assert self.elements is not None, f"job {short_job_id(self.id)} is no array"
        return self.elements

    @property
    def start_after_s(self) -> float:
        """Return the time before which it may not start, seconds since the epoch."""
        return max(self.spec.start_after_s, self.not_before_s)

    @property
    def order_number(self) -> int:
        """Return by what it is ordered among jobs of equal priority: when it was submitted.

        An element has the number of its array. A job that gave way may have a higher one.
        """
        number = submitted_number(self.id)
        if self.sparse is None or self.preempted is None:
            return number
        return max(number, self.preempted.behind)


class Probation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a node is trusted; see `gschedd.core.nodes.probation`.

    Attributes:
        drained: gsched has drained it itself, and may resume it.
        exhausted: for want of something that jobs use up.
        due_s: when it is probed, or asked again for a probe that it has not answered, seconds since
            the epoch; 0: no probe is planned.
        request: the number of the last request for a probe.
        failed: probes in a row that failed.
        passed_s: when one passed last.
        resumed_s: when it was resumed without an operator; the last few.
    """

    drained: bool = False
    exhausted: bool = False
    due_s: float = 0.0
    request: int = 0
    failed: int = 0
    passed_s: float = 0.0
    resumed_s: tuple[float, ...] = ()


class NodePower(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whether a node is powered down, or on its way there or back.

    Attributes:
        due_s: when it is to be off, or to have registered, seconds since the epoch; 0: no matter.
        reason: why it is so.
    """

    state: PowerState = PowerState.ON
    due_s: float = 0.0
    reason: str = ""


class Node(Struct, kw_only=True, omit_defaults=True):
    """A machine that has registered at least once.

    Attributes:
        vacating: jobs are to leave it.
        faults: starts in a row that failed through its own fault.
        fault_uids: whose jobs they were.
        fault_s: when the last of them was, seconds since the epoch.
        fault_message: what it said.
        probes: it can probe itself.
        sharing: the runtime by which jobs share its GPUs; empty: they cannot.
        drained_s, drained_by: since when it is drained, and by whom; 0: it is not.
        problem: why it takes no new jobs by its own word; empty: it does.
        problem_s: since when, seconds since the epoch.
        identity: to whom the name belongs; empty: it has registered before nodes had one.
        machine: on which it runs.
        windows: in which no job runs there, in order of their beginnings.
        window_number: the highest that a window of the node has had; it is not used again.
        power: what the site's programs of power saving have made of it.
    """

    name: str
    state: NodeState
    inventory: Inventory
    identity: str = ""
    machine: Machine = Machine()
    boot_id: str = ""
    incarnation: str = ""
    address: str = ""
    version: str = ""
    since_s: float = 0.0
    drained: bool = False
    drained_s: float = 0.0
    drained_by: str = ""
    vacating: bool = False
    reason: str = ""
    problem: str = ""
    problem_s: float = 0.0
    faults: int = 0
    fault_uids: tuple[int, ...] = ()
    fault_s: float = 0.0
    fault_message: str = ""
    probes: bool = False
    sharing: str = ""
    probation: Probation = Probation()
    windows: tuple[NodeWindow, ...] = ()
    window_number: int = 0
    power: NodePower = NodePower()
    load: Load | None = None
    heartbeat_s: float | None = None


class ArrayIndex:
    """Which elements of an unfinished array are jobs now.

    Attributes:
        job: the array.
        made: the numbers of its elements that are unfinished jobs.
        waiting: how many of them have no attempt.
    """

    __slots__ = ("job", "made", "waiting")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.made: set[int] = set()
        self.waiting = 0

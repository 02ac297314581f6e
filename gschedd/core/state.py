"""The head's state: what is durable, what follows from it, and what is neither."""

from collections.abc import Mapping

from msgspec import Struct, field

from gsched.model.arrays import Spans
from gsched.model.ids import ELEMENT_BASE, submitted_number
from gsched.model.job import ExitRecord, JobSpec, Outcome
from gsched.model.machine import Machine
from gsched.model.reports import Checkpoint, Progress
from gsched.model.resources import Allocation, Gpu, Inventory, Load, Request, Share, Usage
from gsched.model.states import (
    AttemptState,
    HoldKind,
    JobState,
    NodeState,
    PartState,
    StopReason,
)
from gsched.model.training import Batching
from gschedd.core.transient import Caches, Dirty, Unstored, Volatile, WaitingGroup
from gschedd.models.adaptive import GoodputKnowledge
from gschedd.models.startup import Startups
from gschedd.models.steptimes import StepTimes
from gschedd.plan.load import Prediction
from gschedd.plan.sharing import DEFAULT_RULES, SharingRules
from gschedd.plan.snapshot import JobClass, OrderKey
from gschedd.plan.space import SortedSpaces


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

    @property
    def allocation(self) -> Allocation:
        """Return what the attempt owns, in rank order."""
        return tuple(part.share for part in self.parts.values())


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
    asked_s: float
    request: int = 0
    batching: Batching | None = None
    prepare: int = 0
    ready_s: float = 0.0


class MigrationProgress(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a move is, and what its phases took: seconds since the epoch, 0 while to come.

    Attributes:
        asked_s: when it was decided.
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

    asked_s: float
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
        begun_s = self.saved_s - self.save_s if self.saved_s else self.asked_s
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
    """Fields of `Job` that most jobs leave at their defaults; the store keeps them in one column.

    Attributes:
        move: where it goes on, while it moves.
        moves: how often it has moved.
        moves_lost: how often it was killed at its checkpoint signal and restarted instead.
        moves_asked: how often that was asked of it.
        prepared: the highest number of an attempt that was prepared for a move.
        moves_cost_s: for how long all its moves so far have kept it from working, seconds.
        spent_s: of its walltime, by attempts that it goes on from; see
            `gschedd.core.attempts.walltime`.
        migration: how far the present move is, or what the last one took.
        saved: its newest checkpoint.
        work_done: of a training, as its last checkpoint has it.
        work_total: of the whole training, in the unit of that; 0: it is the unit of its speed.
        promised: whether it was promised that it meets its deadline; None: nothing was said.
        meets: whether it is expected to now; None: nothing was said.
        expected_end_s: when it was expected to be done when that was said.
        avoid: nodes on which its last attempts failed to start: it tries others first.
        unknown_since_s: since when each attempt has failed on its owner's account; 0: none has.
        missing_since_s: since when each has failed for a directory that does not exist; 0: none.
        recovered: a node knew it and the database did not; it is never started (again).
        elements: of an array; None: it is none.
        short_number: of an element of an array of Slurm what its commands call it; of such an array
            that of its first element; 0: none was reserved.
    """

    move: MigrationTarget | None = None
    moves: int = 0
    moves_lost: int = 0
    moves_asked: int = 0
    prepared: int = 0
    moves_cost_s: float = 0.0
    spent_s: float = 0.0
    migration: MigrationProgress | None = field(default=None, name="trip")
    saved: Saved | None = None
    work_done: float = 0.0
    work_total: float = 0.0
    promised: bool | None = None
    meets: bool | None = None
    expected_end_s: float | None = None
    avoid: tuple[str, ...] = ()
    unknown_since_s: float = 0.0
    missing_since_s: float = 0.0
    recovered: bool = False
    elements: Elements | None = None
    short_number: int = 0


class Job(SparseFields, kw_only=True, omit_defaults=True):
    """A job that is not done.

    Attributes:
        eligible_s: since when it may start: its queue time.
        not_before_s: until when a fault of the system delays it.
        faults: faults of the system in a row.
        cpu_s: CPU time of all ended attempts.
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

    @property
    def start_after_s(self) -> float:
        """Return the time before which it may not start, seconds since the epoch."""
        return max(self.spec.start_after_s, self.not_before_s)


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


class Node(Struct, kw_only=True, omit_defaults=True):
    """A machine that has registered at least once.

    Attributes:
        vacating: jobs are to leave it.
        faults: starts in a row that failed through its own fault.
        fault_uids: whose jobs they were.
        fault_s: when the last of them was, seconds since the epoch.
        fault_message: what it said.
        probes: it can probe itself.
        tunes: it passes batch sizes on to adaptive trainings.
        leases: it ends attempts whose lease has expired.
        prepares: it prepares attempts that may be launched soon.
        sharing: the runtime by which jobs share its GPUs; empty: they cannot.
        steps: it runs step agents.
        problem: why it takes no new jobs by its own word; empty: it does.
        identity: to whom the name belongs; empty: it has registered before nodes had one.
        machine: on which it runs.
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
    vacating: bool = False
    reason: str = ""
    problem: str = ""
    faults: int = 0
    fault_uids: tuple[int, ...] = ()
    fault_s: float = 0.0
    fault_message: str = ""
    probes: bool = False
    tunes: bool = False
    leases: bool = False
    prepares: bool = False
    sharing: str = ""
    steps: bool = False
    probation: Probation = Probation()
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


class State:
    """All that the head knows of what is not over, in three parts.

    The **durable** part is what facts have made of it. `gschedd.core.apply` alone writes it, the
    database holds it, and a head that starts reads it back. **Indices** follow from it and are kept
    in step by `gschedd.core.indexing` and `gschedd.core.ledger`; the simulator checks at each step
    that they say what the jobs say. What is **transient** has a class of its own each, in
    `gschedd.core.transient`.

    Attributes:
        queue_priorities: added to a job's own, by queue. Configuration.
        plans_training: the policy plans trainings one by one, by their deadlines. Configuration.
        plans_adaptive: it chooses batch sizes of adaptive trainings, too. Configuration.
        sharing: how jobs share GPUs. Configuration.
        epoch_id: of the start of the head that works on this state; the shell sets it.

        jobs: jobs that are not done, by id.
        nodes: by name.
        keys: client key ("uid:key") to job id, so that a retried submission finds its job.
        next_job: the id the next job gets.
        damaged: jobs whose records could not be read when the head started, with the attempt that
            may run on each node. What nodes run of them is left alone.
        damaged_nodes: nodes whose records could not be read, until they register.
        reached: how far the trainings that run have said to be. Nodes say it again.
        startups: how long trainings have taken until their first steps.
        move_costs: how long moves have kept trainings from working.
        step_times: how long steps of trainings have taken where.
        goodputs: what is known of the goodput of adaptive trainings.

        spaces: an index, as all below: free resources of each node.
        groups: waiting jobs by class.
        classes_of: classes of ``groups`` by their request.
        delayed: jobs in state waiting, sorted by (time, job).
        running: jobs with an attempt that is not over.
        by_node: the same by node.
        targets: jobs that move, until they are where they go to.
        targets_on: the same by the nodes that they go to.
        trainings: jobs that are planned by what is known of their run time and deadline.
        vacating: nodes that jobs are to leave.
        on_probation: nodes of which a probe is planned.
        ports: master ports in use.
        jobs_by_user, argument_bytes_by_user: what limits per user count.
        dependants: jobs that depend on a job, by that job.
        arrays: unfinished arrays by number, with their elements that are jobs.
        reruns: unfinished jobs and arrays that are reruns of a finished one, by that one.

        dirty: marks of what has changed, for the next scheduling cycle.
        caches: what follows from the state and is slow to work out.
        volatile: what may be lost.
        unstored: what the shell has to store.
    """

    def __init__(
        self,
        queue_priorities: Mapping[str, int] | None = None,
        *,
        plans_training: bool = False,
        plans_adaptive: bool = False,
        sharing: SharingRules = DEFAULT_RULES,
    ) -> None:
        self.sharing = sharing
        self.queue_priorities = dict(queue_priorities or {})
        self.plans_training = plans_training
        self.plans_adaptive = plans_adaptive
        self.epoch_id = ""
        self._init_durable()
        self._init_indices()
        self.dirty = Dirty()
        self.caches = Caches()
        self.volatile = Volatile()
        self.unstored = Unstored()

    def _init_durable(self) -> None:
        self.jobs: dict[int, Job] = {}
        self.nodes: dict[str, Node] = {}
        self.keys: dict[str, int] = {}
        self.next_job = 1
        self.damaged: dict[int, dict[str, int]] = {}
        self.damaged_nodes: set[str] = set()
        self.reached: dict[int, Reached] = {}
        self.startups = Startups()
        self.move_costs = Startups()
        self.step_times = StepTimes()
        self.goodputs = GoodputKnowledge()

    def _init_indices(self) -> None:
        self.spaces = SortedSpaces()
        self.groups: dict[JobClass, WaitingGroup] = {}
        self.classes_of: dict[Request, dict[JobClass, None]] = {}
        self.delayed: list[tuple[float, int]] = []
        self.running: dict[int, Job] = {}
        self.by_node: dict[str, dict[int, Job]] = {}
        self.targets: dict[int, Job] = {}
        self.targets_on: dict[str, dict[int, Job]] = {}
        self.trainings: dict[int, Job] = {}
        self.vacating: set[str] = set()
        self.on_probation: set[str] = set()
        self.ports: set[int] = set()
        self.jobs_by_user: dict[int, int] = {}
        self.argument_bytes_by_user: dict[int, int] = {}
        self.reruns: dict[int, set[int]] = {}
        self.dependants: dict[int, set[int]] = {}
        self.arrays: dict[int, ArrayIndex] = {}

    def damaged_on(self, node: str) -> int:
        """Return a job with a damaged record that may own something on a node; 0: none."""
        return next((job for job, nodes in self.damaged.items() if node in nodes), 0)

    def note_moved(self, job: int) -> None:
        """Note that a job runs, does not run any more, or has got another end."""
        self.dirty.ends.moved.add(job)
        running = self.running.get(job)
        if running is not None and running.attempt is not None:
            for node in running.attempt.parts:
                self.spaces.touch(node)

    def order_key(self, job: Job) -> OrderKey:
        """Return by what waiting jobs are ordered: priority with the queue's, submission, id.

        The first number holds priority and submission: an element has the place of its array.
        """
        priority = job.spec.priority + self.queue_priorities.get(job.spec.queue, 0)
        return (submitted_number(job.id) - priority * ELEMENT_BASE, job.id)

    def class_of(self, job: Job) -> JobClass:
        """Return what decides about the job together with others."""
        spec = job.spec
        training = job.id if self.plans_training and spec.is_training else 0
        return JobClass(
            queue=spec.queue, request=spec.request, walltime_s=spec.walltime_s, training=training
        )

    def generic_names(self) -> frozenset[str]:
        """Return the consumable resources that some node declares."""
        if self.caches.generic_names is None:
            self.caches.generic_names = frozenset(
                name for node in self.nodes.values() for name, _ in node.inventory.generic
            )
        return self.caches.generic_names

    def gpus_of(self, node: str) -> tuple[Gpu, ...]:
        """Return all GPUs of a node; none of one that is not known, as its record is damaged."""
        known = self.nodes.get(node)
        return known.inventory.gpus if known is not None else ()

    def total_gpus(self) -> int:
        """Return how many GPUs all nodes have, whether they take work now or not."""
        if self.caches.total_gpus is None:
            self.caches.total_gpus = sum(len(node.inventory.gpus) for node in self.nodes.values())
        return self.caches.total_gpus


def client_key(uid: int, key: str) -> str:
    """Return the key under which a submission is remembered: nobody can meet another's."""
    return f"{uid}:{key}"

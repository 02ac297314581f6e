"""Facts: what has happened. Past tense, never refused, kept for ever as event rows.

A fact holds all that `apply` needs; nothing is looked up elsewhere when it is applied, so applying
the same facts to the same state always gives the same state.
"""

from msgspec import Struct

from gsched.config.idle_gpus import IdleAction
from gsched.config.preemption import PreemptWay
from gsched.model.arrays import Spans
from gsched.model.job import ExitRecord, JobSpec, Outcome
from gsched.model.machine import Machine
from gsched.model.reservation import Reservation
from gsched.model.resources import Allocation, Inventory, Load, Usage
from gsched.model.states import HoldKind, JobState, PowerState, StopReason
from gsched.model.training import Batching
from gsched.model.window import NodeWindow
from gschedd.models.steptimes import Steps
from gschedd.plan.load import Prediction


class Fact(Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """Something that happened at ``at_s``, seconds since the epoch on the head's clock.

    ``cause`` is the input of the head from which it follows, such as ``submission``, ``request
    DeleteJob``, ``message Exited``, ``timer`` or ``cycle``; it changes nothing in the state.
    """

    at_s: float
    cause: str = ""


class JobFact(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """A fact about one job."""

    job: int


class AttemptFact(JobFact, frozen=True, kw_only=True, omit_defaults=True):
    """A fact about one attempt of a job."""

    attempt: int


class NodeFact(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """A fact about one node."""

    node: str


class JobSubmitted(JobFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """A job was accepted; ``state`` is where it begins: queued, waiting or held.

    With ``recovered`` it was accepted by a head whose database is lost, and a node knows it.
    Elements of an array of Slurm have short numbers, from ``short_number`` on; 0: they have none.
    """

    spec: JobSpec
    state: JobState
    recovered: bool = False
    short_number: int = 0


class JobDiscarded(JobFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """An operator gave up a job whose record is damaged; its rows are removed.

    ``attempts`` are those that may run, by node: they are ended.
    """

    by: str
    attempts: dict[str, int] = {}


class ElementsMade(JobFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """Elements of the array became jobs, each as the array's statement has it."""

    elements: Spans


class ElementsDropped(JobFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """Elements of the array that are no jobs yet will never be any; ``message`` says why."""

    elements: Spans
    by: str
    message: str = ""


class ElementsHeld(JobFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """Elements of the array that are no jobs yet do not become any until they are released."""

    elements: Spans
    by: str


class ElementsReleased(JobFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """These elements of the array may become jobs again."""

    elements: Spans
    by: str


class JobHeld(JobFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """Holds were put on a job."""

    holds: tuple[HoldKind, ...]
    by: str
    reason: str = ""


class JobReleased(JobFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """Holds were taken off a job."""

    holds: tuple[HoldKind, ...]
    by: str


class JobDue(JobFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """The time a job waited for has come; ``retry``: for its next try, after one that failed."""

    retry: bool = False


class JobAltered(JobFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """The owner or an operator changed the job; ``spec`` is the whole new statement."""

    spec: JobSpec
    by: str
    changed: tuple[str, ...]


class JobSignalled(AttemptFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """Somebody sent a signal to the job."""

    signal: int
    by: str


class AttemptAssigned(AttemptFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """The job was given an allocation: it owns these resources from now on.

    ``predictions`` are what it was expected to cost on each active node, where anything is learned.
    ``steps_s`` is how long all steps of a training take there by what its user said, seconds; 0
    where that is not said, and where some of them are done. ``token`` is the id of the head's
    epoch: job and attempt numbers repeat when a database is restored, with it they do not. Its
    nodes end it when they have not reached the head for ``lease_s``, ``lease_grace_s`` after TERM;
    0: they do not. ``batching`` is how an adaptive training splits its samples there, and
    ``profile_batches`` whether it measures several batch sizes first. ``reservation`` is the one
    that it runs in.
    """

    allocation: Allocation
    active: tuple[str, ...]
    master_port: int
    why: str
    predictions: dict[str, Prediction] = {}
    steps_s: float = 0.0
    token: str = ""
    lease_s: float = 0.0
    lease_grace_s: float = 0.0
    batching: Batching | None = None
    profile_batches: bool = False
    reservation: str = ""


class AttemptRecovered(AttemptFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """A node has an attempt that the database does not know, as it is an old copy.

    It takes the place of whatever attempt of the job is known here. ``assigned_s`` and ``token``
    are of the head that made it; ``stop`` is why that head has stopped it, as its record says.
    """

    allocation: Allocation
    active: tuple[str, ...]
    assigned_s: float
    token: str
    started_s: dict[str, float] = {}
    boot_ids: dict[str, str] = {}
    master_port: int = 0
    stop: StopReason | None = None


class MigrationRequested(AttemptFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """The job is to migrate, or to resize: it has this allocation from now on.

    Without an allocation it goes back to its queue. ``request`` numbers the job's moves.
    ``prepare`` is the number of the next attempt, whose processes are started there now and wait
    for its launch; 0: it starts cold, and ``cold`` says why.
    """

    allocation: Allocation
    why: str
    by: str
    request: int = 0
    batching: Batching | None = None
    prepare: int = 0
    cold: str = ""


class MigrationPrepared(JobFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """The processes of a migrating job's next attempt wait for its launch.

    If they are not ``ready``, they never will: the next attempt has another number, and starts
    cold.
    """

    ready: bool
    reason: str = ""


class CheckpointTaken(AttemptFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """The training has published a checkpoint, from which it can go on anywhere.

    ``request`` is that of the move for which it was asked; 0: it made one by itself. ``work_done``
    is over all attempts, of ``work_total`` in the training's own unit; without a total it is in the
    unit of its speed. ``world_sizes`` are the numbers of ranks that it can go on with, where they
    were not known.
    """

    request: int
    step: int
    work_done: float
    work_total: float = 0.0
    path: str = ""
    size_bytes: int = 0
    wall_s: float = 0.0
    world_sizes: tuple[int, ...] = ()


class BatchingChosen(AttemptFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """An adaptive training splits its samples otherwise from now on, where it runs."""

    batching: Batching


class MigrationAbandoned(AttemptFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """The job stays where it is, and runs on."""

    reason: str


class TargetLost(JobFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """The place that a moving job was to go to is not to be had: it goes to its queue instead."""

    reason: str


class TrainingResumed(AttemptFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """The first step of an attempt that goes on from a checkpoint is done: its move is over.

    ``step`` is the one from which it went on, ``restore_s`` is what reading its checkpoint took.
    ``lost``: it has restarted instead, as the attempt before it was killed at its signal.
    """

    step: int
    restore_s: float = 0.0
    lost: bool = False


class StartupMeasured(AttemptFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """It is known how long an attempt of a training took from its start to its first step.

    ``by_step``: it said so itself with that step; else it follows from its run time, at its end.
    ``kind``, ``program`` and ``owner_uid`` tell for which others that is of use.
    """

    startup_s: float
    kind: str
    program: str
    owner_uid: int
    by_step: bool = False


class StepsMeasured(AttemptFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """It is known how long a training's steps take where it runs; of use for all of its kind."""

    kind: str
    steps: Steps


class MigrationMeasured(AttemptFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """It is known for how long a move has kept a training from working, ``cost_s``.

    ``save_s`` of it and ``size_bytes`` are those of its checkpoint. ``kind``, ``program`` and
    ``owner_uid`` tell for which others that is of use.
    """

    cost_s: float
    kind: str
    program: str
    owner_uid: int
    save_s: float = 0.0
    size_bytes: int = 0


class DeadlineJudged(JobFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """What the policy expects of a job's deadline is known now, or has changed.

    The first of a job's that is ``firm`` is its guarantee. ``end_s`` is when it is expected to be
    done, seconds since the epoch.
    """

    meets: bool
    end_s: float | None = None
    gpus: int = 0
    why: str = ""
    firm: bool = True


class GpusIdleWarned(AttemptFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """The owner of a job is warned that it does not use its GPUs.

    ``gpus`` are the idle ones by node, of ``of`` in all, the first since ``since_s``. If they stay
    idle, ``action`` follows at ``acts_s``; 0: nothing does.
    """

    gpus: dict[str, tuple[int, ...]]
    of: int
    since_s: float
    action: IdleAction = "warn"
    acts_s: float = 0.0


class IdleWarningEnded(AttemptFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """No GPU of which the owner was warned is idle, or somebody is at the terminal: all is well."""


class IdleGpusReclaimed(AttemptFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """The job is to give back its idle GPUs: it is held, requeued or cancelled.

    It would have had its ``gpus`` until ``planned_end_s``, the end of its walltime or, if it has
    none, of its predicted run time; 0: that is not known.
    """

    action: IdleAction
    gpus: float
    planned_end_s: float = 0.0


class GpusIdled(AttemptFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """An attempt has ended whose GPUs were idle for ``idle_s``, added up, in GPU-seconds.

    ``action`` has ended it; empty: something else. ``returned_s`` are the GPU-seconds from then to
    the end of its walltime.
    """

    idle_s: float
    action: str = ""
    returned_s: float = 0.0


class JobPreempted(AttemptFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """A running job is to give way, by a migration or a stop that follows at once.

    ``job_for`` is the waiting job that gets its resources; 0: none. ``why`` is in words, ``gpus``
    is what the job held, and ``lost_s`` for how long its work since its last checkpoint took.
    ``or_requeue``: it is requeued if it does not save its state in time. ``behind``: it waits as if
    it had been submitted with this number; 0: in its first place.
    """

    way: PreemptWay
    why: str
    by: str
    job_for: int = 0
    gpus: float = 0.0
    lost_s: float = 0.0
    or_requeue: bool = False
    behind: int = 0


class RoomClaimed(JobFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """A waiting job is to start on this allocation as soon as ``jobs`` have given way.

    It is given up at ``until_s``.
    """

    allocation: Allocation
    jobs: tuple[int, ...]
    until_s: float


class ClaimEnded(JobFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """The allocation that running jobs were to vacate for a waiting job is not kept any more."""

    reason: str


class PartStarted(AttemptFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """The attempt runs on this node; ``warm``: its processes were prepared there."""

    node: str
    pid: int
    started_s: float
    stdout_path: str = ""
    stderr_path: str = ""
    warm: bool = False


class PartOpened(AttemptFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """A program of the attempt wants to start tasks on this node: a step agent starts there."""

    node: str
    boot_id: str = ""


class StopRequested(AttemptFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """The attempt is to end; asking twice is allowed, the first reason stands."""

    reason: StopReason
    grace_s: float
    by: str
    message: str = ""


class PartEnded(AttemptFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """Nothing of the attempt is left on this node."""

    node: str
    record: ExitRecord
    usage: Usage


class AttemptEnded(AttemptFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """The attempt is over everywhere; its resources are free.

    ``ended_s`` is when its last part ended, as its node said, which may be long before the head
    heard of it. ``work_done`` of a training that was moved is kept in its checkpoint.
    """

    outcome: Outcome
    usage: Usage
    ended_s: float
    work_done: float = 0.0


class JobRequeued(JobFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """The job waits again after an attempt that does not count as its end.

    ``not_before_s`` delays it after a fault of the system; ``faults`` counts those in a row.
    ``avoid`` are the nodes on which it failed to start, which it tries last. ``unknown_since_s`` is
    since when its attempts have failed on its owner's account, ``missing_since_s`` since when for a
    directory that does not exist.
    """

    reason: str
    faults: int
    not_before_s: float = 0.0
    holds: tuple[HoldKind, ...] = ()
    avoid: tuple[str, ...] = ()
    unknown_since_s: float = 0.0
    missing_since_s: float = 0.0


class JobEnded(JobFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """The job has its outcome; nothing more will happen to it. ``ended_s`` as in AttemptEnded."""

    outcome: Outcome
    ended_s: float
    by: str = ""


class NodeRegistered(NodeFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """A node connected and said what it has.

    ``highest_job`` is the highest number it has seen; ``probes``: it can probe itself;
    ``sharing``: the runtime by which jobs share its GPUs, empty for none. From its first
    registration on, the node's name belongs to ``identity``, on ``machine``.
    """

    inventory: Inventory
    boot_id: str
    incarnation: str
    address: str
    version: str
    load: Load
    highest_job: int = 0
    probes: bool = False
    problem: str = ""
    identity: str = ""
    machine: Machine = Machine()
    sharing: str = ""


class NodeProblemChanged(NodeFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """The node itself takes no new jobs, for a reason in words, or does again (empty)."""

    problem: str = ""


class NodeDisconnected(NodeFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """The connection to a node is gone; its attempts go on as far as anybody knows."""

    reason: str


class NodeDrained(NodeFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """The node takes no new work; with ``migrate`` its jobs are to leave it.

    ``automatic``: gsched did it itself, and probes the node at ``due_s`` (0: it does not);
    ``exhausted``: the node lacked something that jobs use up.
    """

    reason: str
    by: str
    migrate: bool = False
    automatic: bool = False
    exhausted: bool = False
    due_s: float = 0.0


class NodeResumed(NodeFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """The node takes new work again; ``automatic``: since a probe has passed."""

    by: str
    automatic: bool = False


class NodeWindowAdded(NodeFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """No job is to run on the node in a window of time."""

    window: NodeWindow


class NodeWindowBegun(NodeFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """The time of a window has come."""

    number: int


class NodeWindowEnded(NodeFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """A window is over; ``by`` has cancelled it, or nobody: its time has passed."""

    number: int
    by: str = ""


class ReservationCreated(Fact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """Nodes or GPUs are kept for some users and projects in a window of time."""

    reservation: Reservation


class ReservationChanged(Fact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """A reservation is another one: ``by`` has changed it, or nobody.

    Then it has its next window, or other nodes than one that has failed.
    """

    reservation: Reservation
    why: str
    by: str = ""


class ReservationBegun(Fact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """The window of a reservation has come."""

    name: str


class ReservationEnded(Fact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """A reservation is no more; ``by`` has deleted it, or nobody."""

    name: str
    why: str
    by: str = ""


class NodePowerChanged(NodeFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """The node is to be powered down or up, is off, or counts as on again.

    Attributes:
        due_s: when it is to be off, or to have registered; 0: no matter.
        by: the operator who has requested it; empty: gsched.
    """

    power: PowerState
    reason: str
    due_s: float = 0.0
    by: str = ""


class NodeProbeRequested(NodeFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """The node is to find out whether it can start jobs; it is asked again at ``due_s``."""

    request: int
    due_s: float


class NodeProbed(NodeFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """The node has found out; it is probed again at ``due_s``, 0 for not."""

    passed: bool
    message: str
    due_s: float = 0.0


class NodeRemoved(NodeFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """An operator has the node forgotten; who registers with its name is a new one."""

    by: str


class NodeReplaced(NodeFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """An operator says that the node is another installation, or another machine, from now on."""

    identity: str
    machine: Machine
    by: str


class NodeFaulted(NodeFact, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """The node could not start an attempt for reasons of its own, or did again.

    ``faults`` in a row; ``uids`` are the users whose attempts they were.
    """

    faults: int
    message: str
    uids: tuple[int, ...] = ()


AnyFact = (
    JobSubmitted
    | JobDiscarded
    | ElementsMade
    | ElementsDropped
    | ElementsHeld
    | ElementsReleased
    | JobHeld
    | JobReleased
    | JobDue
    | JobAltered
    | JobSignalled
    | AttemptAssigned
    | AttemptRecovered
    | MigrationRequested
    | CheckpointTaken
    | BatchingChosen
    | MigrationAbandoned
    | MigrationPrepared
    | TargetLost
    | TrainingResumed
    | StartupMeasured
    | StepsMeasured
    | MigrationMeasured
    | DeadlineJudged
    | GpusIdleWarned
    | IdleWarningEnded
    | IdleGpusReclaimed
    | GpusIdled
    | JobPreempted
    | RoomClaimed
    | ClaimEnded
    | PartOpened
    | PartStarted
    | StopRequested
    | PartEnded
    | AttemptEnded
    | JobRequeued
    | JobEnded
    | NodeRegistered
    | NodeProblemChanged
    | NodeDisconnected
    | NodeDrained
    | NodeResumed
    | NodeWindowAdded
    | NodeWindowBegun
    | NodeWindowEnded
    | NodePowerChanged
    | ReservationCreated
    | ReservationChanged
    | ReservationBegun
    | ReservationEnded
    | NodeFaulted
    | NodeProbeRequested
    | NodeProbed
    | NodeRemoved
    | NodeReplaced
)

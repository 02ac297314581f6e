"""Schema of the head's HTTP API (JSON), version 1.

The same types encode on the head and decode in the client, and `gschedd.http.schema` makes the
published OpenAPI document from them. Who the caller is never stands in a message: the head takes
it from the kernel. Times are seconds since the epoch, sizes bytes, durations seconds.
"""

from msgspec import Struct, field

from gsched.model.configuration import ConfigRow
from gsched.model.gpu_idle import IdleGpuRow
from gsched.model.gpu_outside import GpuUse
from gsched.model.gpu_tokens import GpuSharing, TokenUse
from gsched.model.health import HealthResult
from gsched.model.ids import format_array_id, format_job_id
from gsched.model.job import Labels, Stated
from gsched.model.limits import MAX_JOBS_PER_REQUEST as MAX_JOBS_PER_REQUEST  # noqa: PLC0414 - also said here
from gsched.model.limits import MAX_SUBMIT_BYTES
from gsched.model.numbers import Amount, Count, Number
from gsched.model.priorities import PriorityTerms
from gsched.model.reports import Checkpoint, Progress
from gsched.model.resources import Load, Usage
from gsched.model.states import NodeState, ShareClass
from gsched.model.training import Training
from gsched.model.window import NodeWindow
from gsched.protocol.uses import LiveRow


class ArrayRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How many elements of an array are in which state.

    Attributes:
        indices: of all elements, as they were stated: ``0-99:2``.
        at_once: so many may be unfinished jobs at once; 0: any number.
        elements: how many there are.
        left, held, cancelled: indices of those that are no jobs: yet, until they are released, and
            for good.
        waiting: neither running nor done, jobs or not.
        unstarted: the row stands for these elements alone, which were cancelled together before any
            of them started.
    """

    indices: str
    elements: int
    at_once: int = 0
    left: str = ""
    held: str = ""
    cancelled: str = ""
    waiting: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    deleted: int = 0
    unstarted: bool = False


class NotifyRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How mail and hooks work, by way: ``mail``, ``command``, ``url`` and ``user-url``.

    Attributes:
        trouble: why the process that delivers does not run; empty: it does.
        waiting: deliveries that are still to be made; ``sent`` and ``dropped`` since the first.
        reasons: why the last one was dropped.
        down: why a way does not work now.
    """

    trouble: str = ""
    waiting: dict[str, int] = {}
    sent: dict[str, int] = {}
    dropped: dict[str, int] = {}
    reasons: dict[str, str] = {}
    down: dict[str, str] = {}


class ShareRow(Struct, frozen=True, kw_only=True):
    """A part of one GPU, asked for or owned.

    Attributes:
        percent: of the GPU's time.
        memory_bytes: of its memory; 0: as much of it as of its time.
        index: of the GPU on its node; None: it is not known yet.
    """

    percent: int
    memory_bytes: int
    share_class: ShareClass
    index: int | None = None


class SharedGpuRow(Struct, frozen=True, kw_only=True):
    """A GPU on which jobs have shares.

    Attributes:
        percent, memory_bytes: that the jobs have together.
        gpu_memory_bytes: of the GPU.
        jobs: that share it, by id.
    """

    index: int
    percent: int
    memory_bytes: int
    gpu_memory_bytes: int
    jobs: tuple[int, ...]


class MoveRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A move of a running job: the one under way, or the last.

    Moments are seconds since the epoch, None while they are to come.

    Attributes:
        to: the nodes that it goes to; empty once it is there, or if it goes to its queue.
        gpus: how many it will have there; 0 where ``to`` is empty.
        phase: ``requested``, ``prepared``, ``checkpointed``, ``stopped``, ``placed`` or ``done``.
        requested_s: when it was decided.
        prepared_s: when the processes of its next attempt waited for the launch; None: they do not.
        start: of that attempt: ``warm``, or ``cold:`` and why; empty: it is not known.
        saved_s: when its checkpoint was published.
        left_s: when nothing of it was left at its old place.
        placed_s: when it had its new place.
        resumed_s: when its first step there was done.
        save_s, restore_s: what writing and reading the checkpoint took, seconds.
        cost_s: time without progress: from the checkpoint, or from the order to a job that knows
            only its signal, to the first step at the new place.
        lost: how the job was killed at its checkpoint signal: it restarts, and has not moved.
    """

    phase: str
    requested_s: float
    to: tuple[str, ...] = ()
    gpus: int = 0
    why: str = ""
    by: str = ""
    prepared_s: float | None = None
    start: str = ""
    saved_s: float | None = None
    left_s: float | None = None
    placed_s: float | None = None
    resumed_s: float | None = None
    save_s: float = 0.0
    restore_s: float = 0.0
    size_bytes: int = 0
    cost_s: float | None = None
    lost: str = ""


class StartRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When a job that waits is predicted to start; moments are seconds since the epoch.

    The queue is played forward in ``scenarios`` scenarios, in which jobs run as long as jobs like
    them did. New jobs are not expected.

    Attributes:
        expected_s: the median of the starts; None: unknown.
        early_s, late_s: four in five starts lie between them; None for late: it is unknown.
        not_before_s: it starts later than this, where that is all that is known.
        planned_s: by when it starts if every job runs as long as is planned for it: its limit, or
            what nine in ten jobs of its kind do not exceed.
        unknown: why nothing better can be said, in words.
        counted: jobs that run or are ahead, elements of arrays included.
        learned: of so many of them run times are learned: enough jobs of their kind have finished.
        blended: of so many only some jobs of their kind have finished, or other jobs: their
            walltimes count as well. Of the others only walltimes are known.
        runs: past runs from which run times are learned.
        other_runs: past runs that count beside walltimes.
    """

    expected_s: float | None = None
    early_s: float | None = None
    late_s: float | None = None
    not_before_s: float | None = None
    planned_s: float | None = None
    unknown: str = ""
    scenarios: int = 0
    counted: int = 0
    learned: int = 0
    blended: int = 0
    runs: int = 0
    other_runs: int = 0


class AheadRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job that is ahead of another one in its queue."""

    id: int
    name: str
    user: str
    cpus: int
    gpus: int = 0
    places: int = 1
    priority: int = 0
    walltime_s: float | None = None


class AheadRows(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The jobs that are ahead of one in its queue: the first of them, and what all request."""

    jobs: int
    cpus: int
    gpus: int = 0
    first: tuple[AheadRow, ...] = ()


API_VERSION = 1
MAX_BODY_BYTES = MAX_SUBMIT_BYTES
MAX_OUTPUT_CHUNK_BYTES = 256 * 1024


class ErrorBody(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One error: ``code`` is one of `gsched.errors.EXIT_CODES`."""

    code: str
    message: str
    hint: str = ""


class ErrorReply(Struct, frozen=True, kw_only=True):
    """The body of every answer whose status is 4xx or 5xx."""

    error: ErrorBody


class SubmitJob(Stated, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One job as its user states it; the head parses ``resources`` and applies defaults.

    Attributes:
        key: the client's own id of this submission (a UUID); the same key is the same job.
        resources: each as after ``-l``: ``nodes=2:ppn=1:gpus=2,walltime=1:00:00``.
        launch: ``script``, ``command`` or ``torchrun``.
        environment: names and values for the job.
        holds: ``user`` or ``operator``.
        places_max: up to so many places of ``resources`` are taken: GPUs of an elastic training.
        deadline_s: by when it is to be done; 0: there is none.
        deadline_after_s: the same, counted from its submission on the head's clock.
        urgency: ``urgent``, ``normal`` or ``relaxed``, instead of a deadline.
        movable: it can migrate: stop at a checkpoint and resume on other nodes.
        reject_if_late: it is refused, and nothing kept of it, unless its deadline can be met.
        checkpoint_dir: where it keeps its checkpoints, absolute; empty: in its directory.
        checkpoint_interval_s: between those that it makes by itself; None: it chooses.
        checkpoint_signal: it can be moved, and is asked by this signal to save its state and end.
        requeue_on: ``node-failure``: it is restarted after a node or a rank of it has died.
        requeue_limit: so often in a row; None: three times.
        warn_unknown: resources that no node has are ignored with a warning, as PBS clients expect.
        depends: on other jobs, each as after ``-W depend=``: ``afterok:12:13``.
        array: indices of the elements of an array: ``0-99:2%5``; empty: it is none.
        lines: one for each index from 0 on: element 7 gets line 7 as $GSCHED_ARRAY_LINE.
    """

    key: str
    name: str
    workdir: str
    resources: tuple[str, ...] = ()
    queue: str = ""
    priority: Number = 0
    start_after_s: Amount = 0.0
    join: str = "n"
    umask: Count = 0o022
    launch: str = "script"
    script: str = ""
    exclusive: bool = False
    grace_s: Amount | None = None
    environment: dict[str, str] = {}  # noqa: RUF012 - of a Struct, which copies it
    holds: tuple[str, ...] = ()
    places_max: Count = 0
    deadline_s: Amount = 0.0
    deadline_after_s: Amount = 0.0
    urgency: str = ""
    training: Training | None = None
    movable: bool = False
    reject_if_late: bool = False
    checkpoint_dir: str = ""
    checkpoint_interval_s: Amount | None = None
    checkpoint_signal: Count = 0
    requeue_on: str = ""
    requeue_limit: Count | None = None
    lease_s: Amount | None = None
    depends: tuple[str, ...] = ()
    warn_unknown: bool = False
    array: str = ""
    lines: str = ""


class SubmitRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/jobs``. With ``dry_run`` everything is checked and nothing is queued."""

    jobs: tuple[SubmitJob, ...]
    dry_run: bool = False


class SubmitResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer for one job: an id, or an error. Sent only after it is durable.

    Attributes:
        predicted_start_s: of a dry run: when it would start.
        start: of a dry run: the same with its uncertainty.
        deadline_s: of a job that has one, as the head understood it.
        planned_gpus: how many GPUs it is planned to begin with; 0: unknown.
        predicted_end_s: when it is expected to be done; None: unknown.
        meets_deadline: whether it is expected to be in time; None: unknown.
        late_reason: why it will be late.
    """

    id: int = 0
    warnings: tuple[str, ...] = ()
    predicted_start_s: float | None = None
    start: StartRow | None = None
    error: ErrorBody | None = None
    deadline_s: float | None = None
    planned_gpus: int = 0
    predicted_end_s: float | None = None
    meets_deadline: bool | None = None
    late_reason: str = ""


class SubmitReply(Struct, frozen=True, kw_only=True):
    """One result for each job of the request, in its order."""

    server: str
    results: tuple[SubmitResult, ...]


class OutcomeRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a job or attempt ended; ``exit_status`` is Torque's number."""

    kind: str
    exit_status: int
    shell_status: int
    exit_code: int | None = None
    signal: int | None = None
    node: str = ""
    rank: int | None = None
    message: str = ""


class JobRow(Labels, frozen=True, kw_only=True, omit_defaults=True):
    """One line of ``gstat`` or ``ghist``.

    Attributes:
        reason: why it waits, or that a node it runs on does not answer, in words; else empty.
        short_reason: the same in two to four words.
        next_try_s: when it is tried again after a start that failed, or an attempt that ended by no
            fault of its own; None: it does not wait for that.
        predicted_start_s: when it starts if all runs as long as is expected; None: unknown.
        short_number: of an element of an array of Slurm what Slurm's commands call it; else 0.
        nodes: names of the nodes of the present (or last) attempt.
        cpu_s: CPU time used by all attempts so far.
        wall_s: for how long its attempts have run so far, without the time between them.
        cpus: of a job that has an attempt those that it has, else those that it requests.
        gpus: of an elastic training that runs those that it has, else the least that it takes.
        gpu_share: what it has of a GPU, or asks for until it has an attempt; None: no such thing.
        gpus_most: what an elastic training takes at most; 0: as many as it requests.
        deadline_s: by when it is to be done; None: there is no deadline.
        predicted_end_s: when a training that is not done is expected to be.
        slack_s: from the predicted end, or the real one, to the deadline; below 0: it is late.
        meets_deadline: whether it is expected to be in time; of a job that is done: whether it
            ended well by then; None: unknown, or there is no deadline.
        moves: how often it has gone on elsewhere, or on other GPUs.
        moves_lost: how often it was killed at its checkpoint signal and restarted instead.
        moves_cost_s: for how long that has kept it from working, seconds.
        array: of an array, how many of its elements are in which state; None: it is none.
        start: when it is predicted to start, where that was requested; None: it does not wait.
        live: what it uses at the moment; None: it does not run, or nothing was told yet.
        memory_peak_bytes, memory_mean_bytes: of the present (or last) attempt, from samples.
        terms: of its priority; None: it does not wait, or jobs are not ordered by terms.
    """

    id: int
    name: str
    user: str
    queue: str
    state: str
    letter: str
    submitted_s: float
    cpus: int
    places: int
    gpus: int = 0
    gpu_share: ShareRow | None = None
    memory_bytes: int = 0
    priority: int = 0
    terms: PriorityTerms | None = None
    walltime_s: float | None = None
    started_s: float | None = None
    ended_s: float | None = None
    attempt: int = 0
    nodes: tuple[str, ...] = ()
    cpu_s: float = 0.0
    wall_s: float = 0.0
    reason: str = ""
    short_reason: str = ""
    predicted_start_s: float | None = None
    outcome: OutcomeRow | None = None
    gpus_most: int = 0
    deadline_s: float | None = None
    predicted_end_s: float | None = None
    slack_s: float | None = None
    meets_deadline: bool | None = None
    moves: int = 0
    moves_lost: int = 0
    moves_cost_s: float = 0.0
    array: ArrayRow | None = None
    start: StartRow | None = None
    live: LiveRow | None = None
    memory_peak_bytes: int = 0
    memory_mean_bytes: int = 0
    next_try_s: float | None = None
    short_number: int = 0

    def shown_id(self, server: str) -> str:
        """Return the job's identifier as users see it: ``12.server``; ``12[].server``: an array."""
        if self.array is None:
            return format_job_id(self.id, server)
        return format_array_id(self.id, server, self.array.indices if self.array.unstarted else "")

    @property
    def jobs(self) -> int:
        """Return how many jobs of a history the row stands for: of an array its elements do."""
        if self.array is None:
            return 1
        return self.array.elements if self.array.unstarted else 0


class JobList(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``GET /v1/jobs``: the jobs requested, and an error for each id that is none.

    ``warning`` says why what is shown may not be durable yet.
    """

    server: str
    now_s: float
    jobs: tuple[JobRow, ...]
    errors: dict[str, ErrorBody] = {}
    warning: str = ""


class PartRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An attempt on one of its nodes.

    Attributes:
        pid, live: its first process, 0 before the start; what it uses there at the moment.
        gpu_tokens: how it takes turns on the GPU that it shares, as the node has told last.
    """

    node: str
    state: str
    cpus: int
    pid: int = 0
    gpu_indices: tuple[int, ...] = ()
    gpu_shares: tuple[ShareRow, ...] = ()
    memory_bytes: int = 0
    started_s: float | None = None
    ended_s: float | None = None
    usage: Usage | None = None
    outcome: OutcomeRow | None = None
    live: LiveRow | None = None
    gpu_tokens: TokenUse | None = None


class AttemptRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One placement of a job; ``startup_s``: of a training, from its start to its first step."""

    attempt: int
    state: str
    assigned_s: float
    parts: tuple[PartRow, ...]
    started_s: float | None = None
    ended_s: float | None = None
    usage: Usage | None = None
    outcome: OutcomeRow | None = None
    startup_s: float | None = None


class EventRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happened. ``kind`` is the fact's name, ``text`` describes it.

    ``cause`` is the head's input from which it follows: a request, a message of a node, a timer or
    a scheduling cycle; empty for events of before it was recorded.
    """

    seq: int
    at_s: float
    kind: str
    text: str
    cause: str = ""


class JobStory(Stated, frozen=True, kw_only=True, omit_defaults=True):
    """``GET /v1/jobs/ID``: all that is known of one job.

    Attributes:
        resources: the request in PBS words, as it was understood.
        environment_names: names only; values are the owner's business.
        ahead, ahead_jobs: how many jobs are before it in its queue, if it waits, and these.
        cause: what it waits for itself, in words: its reason without who is ahead and the remedy.
        remedy: what its user can do to have it start earlier, in words.
        urgency: from which its deadline was computed, if it was.
        training: what its user said of its size.
        movable: it can migrate: stop at a checkpoint and resume on other nodes.
        startup_s: expected time from a start to its first step, seconds; 0: unknown.
        guaranteed: whether it was guaranteed that its deadline will be met; None: nothing was said.
        late_reason: why it will be late, where that is known.
        start_unknown: why it is not known yet when it starts; empty: it is, or it cannot be known.
        moves_requested: how often that was asked of it.
        move: the move under way, or the last one.
        checkpoint: its newest checkpoint that is known.
        progress: how far it is, as it says.
        advice: what keeps an adaptive training from adapting, and what to do.
        checkpoint_dir: where it keeps its checkpoints.
        checkpoint_signal: by which it is asked to save its state; 0: over its socket.
        restarts_max, restarts: how often in a row it is, and was, restarted after a node or rank
            of it has died.
        lease_s: how long it may run on a node that does not reach the head; 0: for ever.
        depends: on which jobs it still depends, as after ``-W depend=``.
        rerun_of: the finished job of which it is the rerun: ``56[]``, ``56[3]`` or ``57``.
        origin: ``PBS_O_*`` of its submission and ``PBS_SUBMIT_ARGS``, for its owner and operators.
    """

    server: str
    now_s: float
    row: JobRow
    attempts: tuple[AttemptRow, ...]
    events: tuple[EventRow, ...]
    workdir: str
    resources: str
    stdout_path: str
    stderr_path: str
    join: str
    launch: str
    rerunnable: bool
    grace_s: float
    submit_host: str = ""
    start_after_s: float = 0.0
    holds: tuple[str, ...] = ()
    ahead: int | None = None
    ahead_jobs: AheadRows | None = None
    cause: str = ""
    remedy: str = ""
    urgency: str = ""
    training: Training | None = None
    movable: bool = False
    startup_s: float = 0.0
    guaranteed: bool | None = None
    late_reason: str = ""
    moves_requested: int = 0
    move: MoveRow | None = None
    checkpoint: Checkpoint | None = None
    progress: Progress | None = None
    advice: str = ""
    checkpoint_dir: str = ""
    checkpoint_signal: int = 0
    restarts_max: int = 0
    restarts: int = 0
    start_unknown: str = ""
    lease_s: float = 0.0
    depends: str = ""
    rerun_of: str = ""
    origin: dict[str, str] = field(default_factory=dict)


class ActionResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one id: ``text`` says it in words, or ``error`` why not.

    Attributes:
        note: what the user should know although it was done.
        migration: that was requested: its number among those of the job, as ``moves_requested``
            counts them; 0: none was.
    """

    id: str
    text: str = ""
    note: str = ""
    migration: int = 0
    error: ErrorBody | None = None


class ActionReply(Struct, frozen=True, kw_only=True):
    """One result for each id, in order (``all`` gives one for each job it meant)."""

    results: tuple[ActionResult, ...]


class OutputChunk(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``GET /v1/jobs/ID/output``: bytes of a job's output, base64 by JSON's rules.

    Attributes:
        offset: of the first byte of ``data`` in the file.
        size_bytes: of the file now.
        ended: the job is done, so nothing more will come.
    """

    path: str
    node: str
    offset: int
    size_bytes: int
    data: bytes
    ended: bool


class NodeRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One node. ``state`` is ``up``, ``unreachable``, with ``drained`` beside it.

    Attributes:
        gpus_free: GPUs of which no job has anything.
        shared_gpus: GPUs on which jobs have shares.
        sharing: the runtime by which jobs share its GPUs; empty: they cannot.
        load_s: when ``load`` was told: with a heartbeat, or since.
        gpu_tokens: how jobs take turns on its shared GPUs, as it has told last.
        cpu_binding: how it binds jobs to CPUs, or why not; empty: it does not tell.
        gpu_fence: what keeps jobs from GPUs of others, likewise. ``gpu_use``: who else is there.
        health: the last results of its health checks.
        config: how it has read its configuration file; None: it is not connected, or does not tell.
        gpus_idle: GPUs that jobs hold and do not use.
        windows: of maintenance, in order; in one that has begun the node counts as drained.
        power: ``powering_down``, ``powered_down`` or ``powering_up``; empty: it is on.
        faults: starts in a row that failed through the node's own fault.
        automatic: gsched has drained it itself.
        probe_due_s: when it is probed next; 0: not. ``probes_failed``: in a row.
        resumptions: how often it was resumed without an operator within a day.
        problem: why the node takes no new jobs by its own word; empty: it does.
        reason: why it takes no jobs, whoever said so.
        identity: the beginning of the identity of its gnode.
        refused: in words, another gnode that wanted its place in the last minutes.
    """

    name: str
    state: str
    cpus: int
    cpus_free: int
    memory_bytes: int
    memory_free_bytes: int
    gpus: int = 0
    gpus_free: int = 0
    shared_gpus: tuple[SharedGpuRow, ...] = ()
    sharing: str = ""
    gpu_types: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    generic: dict[str, int] = {}
    generic_free: dict[str, int] = {}
    drained: bool = False
    vacating: bool = False
    problem: str = ""
    reason: str = ""
    address: str = ""
    version: str = ""
    since_s: float = 0.0
    heartbeat_s: float | None = None
    load: Load | None = None
    load_s: float | None = None
    identity: str = ""
    refused: str = ""
    jobs: tuple[int, ...] = ()
    faults: int = 0
    automatic: bool = False
    probe_due_s: float = 0.0
    probes_failed: int = 0
    resumptions: int = 0
    cpu_binding: str = ""
    gpu_fence: str = ""
    gpu_tokens: GpuSharing | None = None
    gpu_use: GpuUse | None = None
    health: tuple[HealthResult, ...] = ()
    config: ConfigRow | None = None
    gpus_idle: tuple[IdleGpuRow, ...] = ()
    windows: tuple[NodeWindow, ...] = ()
    power: str = ""

    @property
    def is_down(self) -> bool:
        """Return whether it is not connected, and not because it is powered down."""
        return self.state != NodeState.UP and not self.power


class NodeList(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``GET /v1/nodes``; ``warning`` says why what is shown may not be durable yet."""

    server: str
    now_s: float
    nodes: tuple[NodeRow, ...]
    warning: str = ""


class HistoryReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``GET /v1/history``: past jobs, newest first, and totals over all that matched.

    ``more`` is true where the limit cut the list; the totals count what was cut, too. ``damaged``
    names jobs that would be in the list, but whose records in the database cannot be read. Jobs
    that somebody deleted are in ``total_cancelled`` and not in ``total_failed``.
    """

    server: str
    now_s: float
    jobs: tuple[JobRow, ...]
    total_jobs: int
    total_cpu_s: float
    total_wall_s: float
    total_gpu_s: float
    total_failed: int
    more: bool = False
    damaged: tuple[int, ...] = ()
    total_cancelled: int = 0


class QueueRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One queue, and its unfinished jobs; all else is as in ``[[queue]]``.

    Attributes:
        jobs: number of unfinished jobs by state.
    """

    name: str
    enabled: bool = True
    started: bool = True
    priority: int = 0
    max_walltime_s: float = 0.0
    default_walltime_s: float = 0.0
    walltime_extension: str = ""
    walltime_extensions_per_user: int = 0
    allow_users: tuple[str, ...] = ()
    allow_groups: tuple[str, ...] = ()
    deny_users: tuple[str, ...] = ()
    detach_timeout_s: float = -1.0
    max_interactive_walltime_s: float = -1.0
    max_detach_timeout_s: float = -1.0
    default_memory_per_cpu_bytes: int = -1
    default_memory_per_gpu_bytes: int = -1
    jobs: dict[str, int] = {}


class DiskRow(Struct, frozen=True, kw_only=True):
    """The file system with the head's state directory, ``path``.

    Attributes:
        free_bytes: left for the head.
        free_inodes: likewise; of a file system that does not count them, ``total_inodes`` is 0.
        is_low: new jobs are refused.
    """

    path: str
    free_bytes: int
    total_bytes: int
    free_inodes: int
    total_inodes: int
    is_low: bool


class StatusReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``GET /v1/status``: how the head is.

    Attributes:
        epoch: grows with each start of the head; ``epoch_id`` is of this start alone.
        safe_mode: why nothing is dispatched, or empty.
        cycles: scheduling cycles since the start.
        dropped: counted warnings by name: messages that did not fit.
        queues: their names; the first is the default one.
        queue_rows: the same queues with their settings and jobs.
        damaged: rows of the database that cannot be read, in words; at most 100.
        quarantined: nodes that are refused for what they claim to know, and why.
        planner: what has befallen the process that plans training jobs, or empty.
        scheduling: jobs are started; False: an operator has stopped that.
        forecaster: the same of the process that computes forecasts.
        monitor: why page, metrics and reports do not work, or empty.
        notify: how mail and hooks work; None: the site has none.
        stalled: why nothing can be written to the database now, or empty.
        disk: room for the head's state directory.
        config: which configuration counts.
    """

    server: str
    version: str
    api_version: int
    cluster: str
    epoch: int
    pid: int
    started_s: float
    now_s: float
    jobs: dict[str, int]
    nodes_up: int
    nodes: int
    cycles: int
    last_cycle_s: float = 0.0
    safe_mode: str = ""
    policy: str = ""
    socket: str = ""
    node_address: str = ""
    database: str = ""
    dropped: dict[str, int] = {}
    queues: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()
    epoch_id: str = ""
    quarantined: dict[str, str] = {}
    planner: str = ""
    forecaster: str = ""
    monitor: str = ""
    queue_rows: tuple[QueueRow, ...] = ()
    notify: NotifyRow | None = None
    scheduling: bool = True
    stalled: str = ""
    disk: DiskRow | None = None
    config: ConfigRow | None = None


class Health(Struct, frozen=True, kw_only=True):
    """``GET /v1/health``: the head answers."""

    ok: bool

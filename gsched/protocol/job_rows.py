"""Jobs, their attempts and events as the head's API shows them: in lists and in whole stories."""

from msgspec import UNSET, Struct, UnsetType, field

from gsched.model.gpu_tokens import TokenUse
from gsched.model.ids import format_array_id, format_job_id
from gsched.model.job import Labels, Stated
from gsched.model.priorities import PriorityTerms
from gsched.model.reports import Checkpoint, Progress
from gsched.model.resources import Usage
from gsched.model.states import ShareClass
from gsched.model.training import Training
from gsched.protocol.api import ErrorBody
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
        preemptions: how often it had to give way to another job or to a reservation.
        preempted_gpu_s: the work that this has cost, in GPU-seconds.
        array: of an array, how many of its elements are in which state; None: it is none.
        start: when it is predicted to start, where that was requested; None: it does not wait.
        live: what it uses at the moment; None: it does not run, or nothing was told yet.
        memory_peak_bytes, memory_mean_bytes: of the present (or last) attempt, from samples.
        terms: of its priority; None: it does not wait, or jobs are not ordered by terms.
        reservation: in which it runs, or has run; else the one that it names; empty: in none.
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
    preemptions: int = 0
    preempted_gpu_s: float = 0.0
    array: ArrayRow | None = None
    start: StartRow | None = None
    live: LiveRow | None = None
    memory_peak_bytes: int = 0
    memory_mean_bytes: int = 0
    next_try_s: float | None = None
    short_number: int = 0
    reservation: str = ""

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


class JobColumns(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Jobs with one request that wait in the queue and have not run: what differs, in columns.

    Attributes:
        row: of the first of them; all of them have its queue, state, request and walltime.
        ids, names: of the jobs, in the order of the queue.
        users: their owners; empty: all have the owner of ``row``.
        ahead: how many jobs with this request are ahead of each; empty: all of them wait for the
            reason of ``row``.
        first: the id of the job that is ahead of all others, which the list may not have.
        submitted_s, priorities, terms, labels: with ``columns=all`` what else rows differ in; each
            empty where all jobs have what ``row`` has.
    """

    row: JobRow
    ids: list[int]
    names: list[str]
    users: list[str] = []
    ahead: list[int] = []
    first: int = 0
    submitted_s: list[float] = []
    priorities: list[int] = []
    terms: list[PriorityTerms] = []
    labels: list[Labels] = []


class JobList(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``GET /v1/jobs``: the jobs requested, and an error for each id that is none.

    ``warning`` says why what is shown may not be durable yet. With ``columns=1`` or ``columns=all``
    most jobs that wait are in ``columns`` and not in ``jobs``; no other list has that field.
    ``is_cut`` is there, and true, if the request had ``first`` and the list is longer.
    """

    server: str
    now_s: float
    jobs: tuple[JobRow, ...]
    errors: dict[str, ErrorBody] = {}
    warning: str = ""
    is_cut: bool | UnsetType = UNSET
    columns: tuple[JobColumns, ...] | UnsetType = UNSET


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

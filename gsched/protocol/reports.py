"""Reports of past use, which the monitor makes from its rows of usage."""

from msgspec import Struct


class UsageRow(Struct, kw_only=True):
    """The usage of one group of past jobs.

    Attributes:
        group: the user, queue and so on; ``total`` of all.
        cpu_hours, gpu_hours: that they had, whether they used them or not.
        cpu_hours_used: CPU time that they used.
        cpu_efficiency: the second part of the first; None: they had none.
        wait_mean_s: from submission to the start, of those that started.
        wall_s: for how long their attempts ran, seconds.
        causes: failed jobs by cause.
    """

    group: str
    jobs: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    cpu_hours: float = 0.0
    cpu_hours_used: float = 0.0
    gpu_hours: float = 0.0
    cpu_efficiency: float | None = None
    wait_mean_s: float | None = None
    wall_s: float = 0.0
    causes: dict[str, int] = {}


class UsageReply(Struct, frozen=True, kw_only=True):
    """``GET /v1/usage``: past jobs in groups; ``behind``: events that are not counted yet."""

    server: str
    since_s: float
    until_s: float
    by: str
    rows: list[UsageRow]
    behind: int = 0


class HeldRow(Struct, kw_only=True):
    """CPUs and GPUs that jobs had within a period, also jobs that still run.

    Attributes:
        gpu_type: ``a100``, or ``a100:2+h100:4`` of jobs with GPUs of several types; empty: no GPUs.
        cpus: of each of these jobs.
        runs: how many attempts there were.
        cpu_s, gpu_s: seconds times CPUs or GPUs.
    """

    user: str
    account: str
    queue: str
    gpu_type: str
    cpus: int
    runs: int = 0
    cpu_s: float = 0.0
    gpu_s: float = 0.0


class NodeTime(Struct, kw_only=True):
    """What all nodes together offered within a period: seconds times CPUs or GPUs.

    Attributes:
        down_cpu_s, down_gpu_s: of nodes that were not connected, which are not in the others.
        gpu_s_by_type: of ``gpu_s``.
        cpus, gpus, nodes: the most at one time.
    """

    cpu_s: float = 0.0
    gpu_s: float = 0.0
    down_cpu_s: float = 0.0
    down_gpu_s: float = 0.0
    gpu_s_by_type: dict[str, float] = {}
    cpus: int = 0
    gpus: int = 0
    nodes: int = 0


class BusyPoint(Struct, kw_only=True):
    """The parts of CPUs and GPUs that jobs had from ``at_s`` on; None: there were none."""

    at_s: float
    cpus: float | None = None
    gpus: float | None = None


class HeldReply(Struct, frozen=True, kw_only=True):
    """``GET /v1/held``: who had CPUs and GPUs within a period, and what there was."""

    server: str
    since_s: float
    until_s: float
    rows: list[HeldRow]
    offered: NodeTime
    behind: int = 0


class UsePart(Struct, kw_only=True):
    """CPU- and GPU-hours that jobs of a group had within a period, and parts of what there was."""

    group: str
    cpu_hours: float
    gpu_hours: float
    cpu_part: float | None = None
    gpu_part: float | None = None


class QueueWait(Struct, kw_only=True):
    """Waits of jobs that have ended in the period, from submission to start; seconds."""

    queue: str
    jobs: int
    median_s: float
    p90_s: float
    longest_s: float


class UsedPart(Struct, kw_only=True):
    """The parts of the CPUs, memory and GPUs of ended attempts that they used; None: unknown."""

    user: str
    cpu: float | None = None
    memory: float | None = None
    gpu: float | None = None
    cpu_hours: float = 0.0
    gpu_hours: float = 0.0


class DeadlineCount(Struct, kw_only=True):
    """Jobs with deadlines that have ended; ``broken``: missed ones that were guaranteed."""

    jobs: int
    met: int
    missed: int
    guaranteed: int
    broken: int


class ErrorSpread(Struct, kw_only=True):
    """Predictions of a quantity against what was measured.

    Attributes:
        bias: median of (predicted - measured) / measured; above 0: predictions are too high.
        error: median of the same without its sign.
        covered: part of the runs that stayed below the high prediction.
    """

    quantity: str
    runs: int
    bias: float
    error: float
    covered: float


class MoveCost(Struct, kw_only=True):
    """Migrations within the period: time without progress, and GPU-hours lost by it."""

    moves: int
    cost_s: float
    longest_s: float
    gpu_hours: float
    checkpoint_bytes: int


class PreemptionCost(Struct, kw_only=True):
    """Running jobs that gave way within the period to other jobs or to reservations.

    Attributes:
        attempts: that did.
        saved: of these, those that did not lose their work.
        gpu_hours: of work that the others lost.
    """

    attempts: int
    saved: int
    jobs: int
    users: int
    gpu_hours: float


class IdleRow(Struct, kw_only=True):
    """GPU-hours of a user's ended attempts that were idle, and those that were given back."""

    user: str
    gpu_hours: float
    returned_gpu_hours: float


class FailureRow(Struct, kw_only=True):
    """Failed attempts of one cause, and what they had."""

    cause: str
    attempts: int
    users: int
    cpu_hours: float
    gpu_hours: float
    nodes: dict[str, int] = {}


class PeriodReport(Struct, kw_only=True):
    """``GET /v1/report``: a period of the cluster.

    Attributes:
        form: ``daily``, ``weekly`` or ``monthly``.
        filters: in words, as ``user alice``; empty: all jobs count.
        now_s: when the report was made.
        total: of the jobs that have ended.
        busy: for the figure, in equal steps.
        behind: events that are not counted yet.
    """

    server: str
    form: str
    since_s: float
    until_s: float
    now_s: float
    filters: str
    total: UsageRow
    offered: NodeTime
    busy: list[BusyPoint]
    users: list[UsePart]
    accounts: list[UsePart]
    queues: list[UsePart]
    gpu_types: list[UsePart]
    waits: list[QueueWait]
    used: list[UsedPart]
    deadlines: DeadlineCount | None
    predictions: list[ErrorSpread]
    moves: MoveCost | None
    preemptions: PreemptionCost | None
    idle: list[IdleRow]
    failures: list[FailureRow]
    behind: int = 0


class MailReply(Struct, frozen=True, kw_only=True):
    """``POST /v1/report/mail``: the recipients to which a report goes, with their domains."""

    recipients: str

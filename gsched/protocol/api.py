"""Schema of the head's HTTP API (JSON), version 1.

The same types encode on the head and decode in the client, and `gschedd.http.schema` makes the
published OpenAPI document from them. Who the caller is never stands in a message: the head takes
it from the kernel. Times are seconds since the epoch, sizes bytes, durations seconds.
"""

from msgspec import Struct

from gsched.model.configuration import ConfigRow
from gsched.model.limits import MAX_SUBMIT_BYTES


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
        served: of a part that has ended: a host has read the file. Else whoever has requested the
            output reads ``path``, if it is there.
    """

    path: str
    node: str
    offset: int
    size_bytes: int
    data: bytes
    ended: bool
    served: bool = False


class QueueRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One queue, and its unfinished jobs; all else is as in ``[[queue]]``.

    Attributes:
        jobs: number of unfinished jobs by state.
    """

    name: str
    enabled: bool = True
    started: bool = True
    priority: int = 0
    preempt_mode: str = ""
    preempt_min_run_s: float = -1.0
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
        ruler: the head that rules, where this one stands by; else empty.
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
    ruler: str = ""
    disk: DiskRow | None = None
    config: ConfigRow | None = None


class Health(Struct, frozen=True, kw_only=True):
    """``GET /v1/health``: the head answers."""

    ok: bool

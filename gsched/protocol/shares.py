"""Fair shares and limits on the wire: what projects and users have used, and what that does."""

from msgspec import Struct


class StandingRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a project or a user of it stands.

    Attributes:
        project: its name; ``root`` above all of them.
        user: empty in the row of the project itself.
        depth: of the project in the tree; 0: it is the root.
        shares: against its siblings; None: of the root.
        norm_shares: its part of the shares of all siblings, 0 to 1.
        usage: billed, with decay and with what runs.
        norm_usage, effective_usage: its part of the usage of all, and of its project's.
        level_fs: normalised shares by effective usage; None: it has no usage, or is the root.
        fair_share: the factor of a user, 0 to 1; None: it is a project.
        cpu_s, gpu_s: held by attempts that have ended, without decay.
    """

    project: str
    user: str = ""
    depth: int = 0
    shares: float | None = None
    norm_shares: float = 0.0
    usage: float = 0.0
    norm_usage: float = 0.0
    effective_usage: float = 0.0
    level_fs: float | None = None
    fair_share: float | None = None
    cpu_s: float = 0.0
    gpu_s: float = 0.0


class SharesReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to ``GET /v1/shares``.

    Attributes:
        half_life_s: usage counts half after this time; 0: it is never forgotten.
        orders: waiting jobs are ordered by priority terms, of which the fair share is one.
        rows: each project, its users and then the projects below it.
        warning: why what is shown may not be durable.
    """

    now_s: float
    half_life_s: float
    orders: bool
    rows: tuple[StandingRow, ...]
    warning: str = ""


class LimitHolder(Struct, frozen=True, kw_only=True):
    """What a user has of a limit, in the unit of its key."""

    user: str
    amount: float


class LimitRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A limit; amounts are in the unit of its key.

    Attributes:
        limit_of: whose it is, in words.
        key: as in the file, of a type of GPU ``max_gpus_of.h100``.
        noun: what is counted, in words.
        used, left: None: of the walltime of a job.
        holders: who has most of it.
        others: how many users more have some.
        user, project, queue, qos: whose jobs count; empty: all.
    """

    limit_of: str
    key: str
    noun: str
    limit: float
    used: float | None = None
    left: float | None = None
    holders: tuple[LimitHolder, ...] = ()
    others: int = 0
    user: str = ""
    project: str = ""
    queue: str = ""
    qos: str = ""


class LimitsReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to ``GET /v1/limits``.

    Attributes:
        rows: limits of the site first.
        warning: why what is shown may not be durable.
    """

    now_s: float
    rows: tuple[LimitRow, ...]
    warning: str = ""

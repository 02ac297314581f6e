"""Fair shares on the wire: what projects and users have used, and what that does."""

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

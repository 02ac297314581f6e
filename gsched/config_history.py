"""The table ``[history]`` of the configuration file; `gsched.config` has all tables."""

from typing import Annotated

import msgspec
from msgspec import Struct

Days = Annotated[float, msgspec.Meta(ge=0, le=36500)]


class HistoryConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[history]``: what is remembered of jobs that have run; 0 keeps everything.

    Attributes:
        learn: whether what jobs cost is recorded and learned from.
        learn_rows: how many of the newest runs a head learns again when it starts.
        keep_days: how long the history is kept, since a run ended.
        keep_rows: how many runs are kept.
        keep_jobs_days: how long jobs that are done are kept, with their events, attempts and
            scripts, and events of nodes.
        keep_jobs_per_user: how many jobs that are done are kept of each user, the newest.
    """

    learn: bool = True
    learn_rows: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 5000
    keep_days: Days = 365.0
    keep_rows: Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)] = 500_000
    keep_jobs_days: Days = 365.0
    keep_jobs_per_user: Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)] = 250_000

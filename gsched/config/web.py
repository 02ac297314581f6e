"""The table ``[web]`` of the configuration file."""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Struct

#: The longest that a browser may stay logged in: a year.
SESSION_HOURS_MAX: Final = 8760.0


class WebConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[web]``: the page, metrics and reports, which a process beside the head serves.

    Attributes:
        enabled: whether there is such a process.
        listen: address and port of the page on loopback, as ``127.0.0.1:15080``; port 0: a free
            one, the same after each restart; empty: only the Unix socket beside the head's is
            there.
        base_path: path below which a reverse proxy shows the page, as ``/gsched``; empty: none.
        origin: scheme and name of a reverse proxy before the page, as
            ``https://cluster.example.org``; empty: none.
        session_hours: how long a browser stays logged in.
        sample_period_s: how often the use of nodes, GPUs and jobs is recorded.
        keep_sample_days: how long records of use are kept; 0 keeps all.
        metrics_access: who may read metrics on the TCP address: ``token``: who sends the token in
            ``metrics.token`` of the state directory; ``everyone``; ``none``: nobody.
        user_metrics: whether there are metrics of each user.
    """

    enabled: bool = True
    listen: str = "127.0.0.1:0"
    base_path: str = ""
    origin: str = ""
    session_hours: Annotated[float, msgspec.Meta(ge=0.1, le=SESSION_HOURS_MAX)] = 12.0
    sample_period_s: Annotated[float, msgspec.Meta(ge=1, le=3600)] = 15.0
    keep_sample_days: Annotated[float, msgspec.Meta(ge=0, le=36500)] = 31.0
    metrics_access: Literal["token", "everyone", "none"] = "token"
    user_metrics: bool = False

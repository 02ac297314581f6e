"""Schema of the configuration with which a head runs, as `gsched.protocol.api` is of all else."""

from typing import Any

from msgspec import UNSET, Struct


class RunningSetting(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One key.

    Attributes:
        table: as the file writes it, ``training.sia`` or ``queue[0]``.
        value: without secrets: as ``gsched config show`` prints it.
        stated: in the file, as the head has read it; UNSET: the value. A free port was stated as 0.
        changed: an operator has changed it since, on the running head.
    """

    table: str
    key: str
    value: Any
    stated: Any = UNSET
    changed: bool = False


class RunningConfig(Struct, frozen=True, kw_only=True):
    """``GET /v1/config``: the values in effect of all tables that the head reads.

    Attributes:
        started_s: when the head has read them.
    """

    server: str
    started_s: float
    settings: tuple[RunningSetting, ...]

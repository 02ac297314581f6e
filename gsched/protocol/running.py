"""Schema of the configuration with which a head runs, as `gsched.protocol.api` is of all else."""

from typing import Any

from msgspec import UNSET, Struct

from gsched.model.configuration import ConfigChange


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


class ReloadReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``POST /v1/reload``: what became of the file; a file that is refused is an error.

    Attributes:
        changed: keys that count from now on.
        waits: keys of the file that count after a restart.
        overridden: changes of queues that do not show, as an operator has set the key.
        nodes: keys of nodes of the cluster that were sent to them.
    """

    path: str
    changed: tuple[ConfigChange, ...] = ()
    waits: tuple[ConfigChange, ...] = ()
    overridden: tuple[str, ...] = ()
    nodes: tuple[ConfigChange, ...] = ()


class RunningConfig(Struct, frozen=True, kw_only=True):
    """``GET /v1/config``: the values in effect of all tables that the head reads.

    Attributes:
        started_s: when the head has read them.
    """

    server: str
    started_s: float
    settings: tuple[RunningSetting, ...]

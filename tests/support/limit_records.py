"""Records of limits and quotas: how much, in which scope, who enforces it, and why.

The rows are in `tests.support.quotas`, those of nodes in `tests.support.node_quotas`.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from gsched.model import limits


class Scope(StrEnum):
    """In which scope a limit counts."""

    REQUEST = "a request"
    JOB = "a job"
    ATTEMPT = "an attempt on a node"
    USER = "a user"
    ADDRESS = "an address"
    NODE = "a node"
    ALL = "all users"


class Limit(Struct, frozen=True, kw_only=True):
    """One limit.

    Attributes:
        of: the limited thing.
        most: the largest number that is allowed; of a configuration key, its default.
        unit: of that number.
        scope: in which scope it is counted.
        by: the module that enforces it.
        name: of the constant in `gsched.model.limits`, with the module's name where that is
            another one; or of the configuration key, as ``[head] max_queued_per_user``.
        why: the reason for the number.
    """

    of: str
    most: int
    unit: str
    scope: Scope
    by: str
    name: str
    why: str

    @property
    def is_key(self) -> bool:
        """Return whether a site can set it."""
        return self.name.startswith("[")

    @property
    def enforcer(self) -> str:
        """Return the daemon that enforces it, with the module."""
        daemon = "both daemons" if self.by == "gsched.logs" else "head"
        return f"{'node' if self.by.startswith('gnode.') else daemon}: `{self.by}`"

    @property
    def row(self) -> str:
        """Return its row of the document's table."""
        most = f"{self.most:,} {self.unit}"
        if self.is_key:
            most = f"{most} by default (`{self.name}`)"
        return f"| {self.of} | {most} | {self.scope} | {self.enforcer} | {self.why} |"


#: Name, unit and limited thing, and reason; of a configuration key, also its default.
_Row: TypeAlias = tuple[str, str, str] | tuple[str, str, str, int]


def rows_of(scope: Scope, by: str, *rows: _Row) -> Iterator[Limit]:
    """Yield the limits that a module enforces in a scope."""
    for name, limited, why, *default in rows:
        unit, _, of = limited.partition(": ")
        most = default[0] if default else getattr(limits, str(name))
        yield Limit(name=name, of=of, most=most, unit=unit, scope=scope, by=by, why=why)

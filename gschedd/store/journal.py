"""The replicated log: what the head's database takes in, kept elsewhere too, for a second head.

Each transaction of the head is a record: the statements that change its SQLite database, in their
order. A record is durable in the log before the database beside the head has it. A head on another
host replays the records into a database of its own, and goes on where the first one ended.

One head rules: the one with the lease. Each record carries the number of the lease and is refused
when another head has taken it since, so that no two heads ever write.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

from msgspec import Struct

from gsched.errors import StorageError
from gschedd.store.seals import SqlValue


class Statement(Struct, frozen=True, array_like=True):
    """A statement that changes the database, and the values of each of its runs."""

    sql: str
    runs: tuple[tuple[SqlValue, ...], ...]


class LogRecord(Struct, frozen=True):
    """A transaction of the head that had a lease."""

    position: int
    lease: int
    statements: tuple[Statement, ...]


class Ruler(Struct, frozen=True):
    """Who has the lease, and for how long still; negative: it is over."""

    holder: str
    number: int
    left_s: float


class StoreBase(Struct, frozen=True):
    """A whole database at a position of the log, and the version of its schema."""

    position: int
    schema: int


class LogView(Struct, frozen=True):
    """What a head that follows sees of the log at one moment.

    Attributes:
        base: the newest; None: nothing was written yet.
        lease: of the record at the position from which it looks; None: there is none (any more).
        records: the next ones behind that position, some hundreds at most.
    """

    ruler: Ruler
    base: StoreBase | None
    lease: int | None
    records: tuple[LogRecord, ...]


class LeaseLostError(StorageError):
    """Another head rules; this one must stop."""

    exit_code = 78  # whoever sees it first: the commit, or the renewal of the lease

    def __init__(self, number: int) -> None:
        super().__init__(
            f"another head rules this cluster: lease {number} of this one is over",
            hint="started again, it stands by: see gsched store status",
        )


class ReplicatedLog(Protocol):
    """The log of one cluster.

    Attributes:
        holder: this head, as no other head is named.
        away: why the server does not answer, while something waits for it; empty: it does.
    """

    holder: str
    lease_s: float
    away: str

    def acquire(self) -> int:
        """Return the number of the lease that this head has from now on; 0: another one rules."""

    def renew(self, number: int) -> None:
        """Renew the lease; wait for a server that is away.

        Raises:
            LeaseLostError: another head has it.
        """

    def release(self, number: int) -> None:
        """End the lease, so that another head need not wait; a server that is away is left."""

    def close(self) -> None:
        """Close the connection; it is opened again when it is needed."""

    def ruler(self) -> Ruler:
        """Return who rules, or has ruled last."""

    def append(self, number: int, position: int, statements: Sequence[Statement]) -> None:
        """Make a record durable; wait for a server that is away.

        Raises:
            LeaseLostError: another head rules; the record is not in the log.
        """

    def newest(self) -> int:
        """Return the position of the newest record or base; 0: there is nothing yet."""

    def view(self, position: int) -> LogView:
        """Return what there is from a position on, with one query."""

    def base(self) -> StoreBase | None:
        """Return the newest base; None: nothing was written yet."""

    def write_base(self, number: int, base: StoreBase, content: Iterator[bytes]) -> None:
        """Write a whole database, and remove those before it and the records that it covers.

        Raises:
            LeaseLostError: another head rules; nothing is written.
            StorageError: it cannot be written.
        """

    def files(self, number: int) -> "SharedFiles":
        """Return the files beside the log, for a head that has a lease."""

    def read_base(self, base: StoreBase) -> Iterator[bytes]:
        """Yield the parts of a base."""


class SharedFiles(Protocol):
    """Files of the cluster that are too large for the database, by name; they never change.

    Each waits for a server that is away.
    """

    def put(self, name: str, path: str) -> None:
        """Make a file durable, as another head finds it."""

    def fetch(self, name: str, path: str) -> bool:
        """Write a file to a path, which is new; return whether there is one."""

    def remove(self, name: str) -> None:
        """Remove a file, if this head rules."""

    def names(self, older_s: float) -> list[str]:
        """Return the names of files that were put so long ago."""


class HeadLease(Struct, frozen=True):
    """The lease of this head, and the log into which it writes."""

    log: ReplicatedLog
    number: int

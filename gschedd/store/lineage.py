"""The table of epochs: every start of a head on this database."""

import secrets
import sqlite3
from typing import Final

from msgspec import Struct

from gsched.clock import SystemClock
from gschedd.core.recovery.lineage import KEPT_EPOCHS, Epoch

_READ: Final = (
    "SELECT number, id, prev_seq, prev_job, first_job, accepted FROM epochs ORDER BY number"
)
_ADD: Final = (
    "INSERT INTO epochs (number, id, began_s, prev_seq, prev_job, first_job, accepted) "
    "VALUES (?, ?, ?, ?, ?, ?, ?)"
)


class Opened(Struct, frozen=True, kw_only=True):
    """What a store held when it was opened.

    Attributes:
        lineage: all epochs that are kept; the last is that of this start, already durable.
        behind: in words, why the database may be an old copy, else empty.
        is_copy: nothing is known to be missing, but the database is a copy, and copies are old.
        forgotten_from: the id from which on the database may lack jobs, where it may be old.
        seq: of the newest event.
    """

    cluster: str
    lineage: tuple[Epoch, ...]
    behind: str = ""
    is_copy: bool = False
    forgotten_from: int = 0
    seq: int = 0

    @property
    def epoch(self) -> int:
        """Return the number of this start."""
        return self.lineage[-1].number

    @property
    def epoch_id(self) -> str:
        """Return the id of this start, which no other has."""
        return self.lineage[-1].id


class HeadStart(Struct, frozen=True, kw_only=True):
    """What a start of the head writes: its epoch, and what it found."""

    epoch: Epoch
    meta: dict[str, str]


def read_epochs(db: sqlite3.Connection) -> tuple[Epoch, ...]:
    """Return all epochs that are kept, oldest first."""
    return tuple(
        Epoch(
            number=number,
            id=epoch_id,
            prev_seq=prev_seq,
            prev_job=prev_job,
            first_job=first_job,
            accepted=bool(accepted),
        )
        for number, epoch_id, prev_seq, prev_job, first_job, accepted in db.execute(_READ)
    )


def new_epoch_id() -> str:
    """Return an id that no other start of a head has, here or on a copy."""
    return secrets.token_hex(16)


def add_epoch(db: sqlite3.Connection, epoch: Epoch) -> None:
    """Begin an epoch, in the transaction that is open."""
    db.execute(
        _ADD,
        (
            epoch.number,
            epoch.id,
            SystemClock().wall_s(),
            epoch.prev_seq,
            epoch.prev_job,
            epoch.first_job,
            int(epoch.accepted),
        ),
    )
    db.execute("DELETE FROM epochs WHERE number <= ?", (epoch.number - KEPT_EPOCHS,))

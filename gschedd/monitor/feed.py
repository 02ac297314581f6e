"""What feeds the read model: committed events, each once, and samples of use."""

import logging
import sqlite3
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias

from gsched.protocol.samples import UseSamples
from gschedd.core.state import facts as f
from gschedd.monitor.store import Cursor, MonitorStore, MonitorTable
from gschedd.store.reader import Reader

log = logging.getLogger("gschedd.monitor")

#: Events that are read in one transaction.
EVENTS_MOST: Final = 1000


#: An event with its number.
Event: TypeAlias = tuple[int, f.AnyFact]


class ModelPart(Protocol):
    """A part of the read model: tables, and what changes them.

    Attributes:
        tables: of the database.
        kinds: names of the facts that it wants.
    """

    tables: Sequence[MonitorTable]
    kinds: Sequence[str]

    def note_events(self, db: sqlite3.Connection, events: Sequence[Event]) -> None:
        """Take events in, within the transaction that moves the cursor."""

    def note_samples(self, db: sqlite3.Connection, samples: UseSamples) -> None:
        """Take samples in, within a transaction."""


class Feed:
    """Reads events in their order and gives each to the parts that want it.

    Attributes:
        behind: events that are still to be read.
        newest: the number of the last event that was read since the start; 0: none was.
    """

    def __init__(self, reader: Reader, store: MonitorStore, parts: Sequence[ModelPart]) -> None:
        self._reader = reader
        self._store = store
        self._parts = parts
        self.behind = self.newest = 0
        self._wanted = frozenset(kind for part in parts for kind in part.kinds)

    def begin(self) -> None:
        """Go on after the last event that was read; begin again if it is another one now.

        That is so after the head's database was restored from a backup.
        """
        cursor = self._store.cursor
        if cursor.seq and self._reader.event_time_s(cursor.seq) != cursor.at_s:
            log.warning("event %d is another one now: all events are read again", cursor.seq)
            self._store.empty()

    def step(self) -> bool:
        """Take the next events in; return whether there may be more."""
        first, newest = self._store.cursor.seq + 1, self._reader.newest_event()
        if first > newest:
            return False
        last = min(newest, first + EVENTS_MOST - 1)
        found = self._reader.events_between(first, last, tuple(self._wanted))
        with self._store.transaction() as db:
            for part in self._parts:
                wanted = frozenset(part.kinds)
                part.note_events(db, [each for each in found if type(each[1]).__name__ in wanted])
            at_s = self._reader.event_time_s(last)
            self._store.move_cursor(Cursor(seq=last, at_s=at_s if at_s is not None else 0.0))
        self.behind, self.newest = newest - last, last
        return last < newest

    def sample(self, samples: UseSamples) -> None:
        """Give samples to all parts."""
        with self._store.transaction() as db:
            for part in self._parts:
                part.note_samples(db, samples)

    def write(self, work: Callable[[sqlite3.Connection], None]) -> None:
        """Run something in a transaction of its own."""
        with self._store.transaction() as db:
            work(db)

"""The notifier's own database: how far events are read, and what is still to be delivered.

A notice is put down in the transaction that moves the cursor, and taken out when it is delivered.
So a kill at any time loses none, and repeats only the deliveries that were under way.
"""

import bisect
import contextlib
import os
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from gsched.model.limits import MAX_HOST_NOTICES, MAX_NOTICES, MAX_USER_NOTICES
from gschedd.notify.notices import USER_URL, Address, endpoint_of

HOUR_S: Final = 3600
_SCHEMA: Final = """
    CREATE TABLE IF NOT EXISTS cursor (
        one INTEGER PRIMARY KEY CHECK (one = 1), seq INTEGER NOT NULL);
    CREATE TABLE IF NOT EXISTS outbox (
        id INTEGER PRIMARY KEY, way TEXT NOT NULL, lane TEXT NOT NULL, target TEXT NOT NULL,
        body BLOB NOT NULL, at_s REAL NOT NULL, tries INTEGER NOT NULL, next_s REAL NOT NULL);
    CREATE INDEX IF NOT EXISTS due ON outbox (lane, next_s, id);
    CREATE TABLE IF NOT EXISTS begun (job INTEGER PRIMARY KEY);
    CREATE TABLE IF NOT EXISTS counts (
        name TEXT PRIMARY KEY, count INTEGER NOT NULL, text TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS mails (
        uid INTEGER PRIMARY KEY, hour INTEGER NOT NULL, count INTEGER NOT NULL);
"""


class Waiting(Struct, frozen=True, kw_only=True):
    """A delivery that is still to be made; ``tries`` have failed."""

    id: int
    way: str
    lane: str
    target: str
    body: bytes
    at_s: float
    tries: int


class Ledger:
    """The database ``notify.db``. Every method that writes is one transaction, flushed."""

    def __init__(self, path: str) -> None:
        self._path = path
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.executescript(_SCHEMA)
        self._in_lane: dict[str, int] = {}
        self._in_way: Counter[str] = Counter()
        self._count_lanes()

    def _count_lanes(self) -> None:
        query = "SELECT lane, count(*) FROM outbox GROUP BY lane"
        self._in_lane = {str(lane): int(count) for lane, count in self._db.execute(query)}
        self._in_way = Counter(self.waiting())

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Make all that is written inside durable together, or nothing of it."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            self._count_lanes()
            raise
        self._db.execute("COMMIT")

    @property
    def cursor(self) -> int | None:
        """Return the newest event that was read; None: none was ever."""
        row = self._db.execute("SELECT seq FROM cursor").fetchone()
        return None if row is None else int(row[0])

    def move_cursor(self, seq: int) -> None:
        """Note that all events to this one are read; inside a transaction."""
        self._db.execute("INSERT OR REPLACE INTO cursor VALUES (1, ?)", (seq,))

    # --- inside the transaction that moves the cursor ---

    def begins(self, job: int) -> bool:
        """Return whether this is the first begin of a job, and note it."""
        done = self._db.execute("INSERT OR IGNORE INTO begun VALUES (?)", (job,))
        return done.rowcount > 0

    def ended(self, job: int) -> None:
        """Forget a job that has ended."""
        self._db.execute("DELETE FROM begun WHERE job = ?", (job,))

    def mails_in_hour(self, uid: int, now_s: float) -> int:
        """Count one more mail about jobs of a user; return how many there are in this hour."""
        hour = int(now_s // HOUR_S)
        row = self._db.execute("SELECT hour, count FROM mails WHERE uid = ?", (uid,)).fetchone()
        count = (row[1] if row is not None and row[0] == hour else 0) + 1
        self._db.execute("INSERT OR REPLACE INTO mails VALUES (?, ?, ?)", (uid, hour, count))
        return int(count)

    def put(self, address: Address, body: bytes, at_s: float) -> bool:
        """Add a delivery; return whether there is room in its lane and for its way."""
        waiting = self._in_lane.get(address.lane, 0)
        most = MAX_HOST_NOTICES if address.way == USER_URL else MAX_USER_NOTICES
        if waiting >= most or self._in_way[address.way] >= MAX_NOTICES:
            return False
        self._db.execute(
            "INSERT INTO outbox (way, lane, target, body, at_s, tries, next_s) "
            "VALUES (?, ?, ?, ?, ?, 0, 0)",
            (address.way, address.lane, address.target, body, at_s),
        )
        self._in_lane[address.lane] = waiting + 1
        self._in_way[address.way] += 1
        return True

    def count(self, name: str, text: str = "", by: int = 1) -> None:
        """Count something, and keep the last reason."""
        self._db.execute(
            "INSERT INTO counts VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE SET "
            "count = count + excluded.count, text = excluded.text",
            (name, by, text[:300]),
        )

    # --- deliveries ---

    def lanes(self) -> list[tuple[str, float]]:
        """Return the lanes in which something waits, and when the first of it is due."""
        query = "SELECT lane, min(next_s) FROM outbox GROUP BY lane"
        return [(str(lane), float(next_s)) for lane, next_s in self._db.execute(query)]

    def next_due(self, endpoint: str, after: str, now_s: float) -> Waiting | None:
        """Return a delivery of an endpoint that is due, of the lane whose turn it is.

        Args:
            endpoint: see `endpoint_of`.
            after: the lane that had its turn last.
            now_s: the time.
        """
        lanes = sorted(lane for lane in self._in_lane if endpoint_of(lane) == endpoint)
        turn = bisect.bisect_right(lanes, after)
        found = (self.due(lane, now_s) for lane in (*lanes[turn:], *lanes[:turn]))
        return next((each for each in found if each is not None), None)

    def due(self, lane: str, now_s: float) -> Waiting | None:
        """Return the first delivery of a lane that is due."""
        row = self._db.execute(
            "SELECT id, way, lane, target, body, at_s, tries FROM outbox "
            "WHERE lane = ? AND next_s <= ? ORDER BY next_s, id LIMIT 1",
            (lane, now_s),
        ).fetchone()
        return (
            None
            if row is None
            else Waiting(**dict(zip(Waiting.__struct_fields__, row, strict=True)))
        )

    def _remove(self, each: Waiting) -> None:
        self._db.execute("DELETE FROM outbox WHERE id = ?", (each.id,))
        self._in_way[each.way] -= 1
        self._in_lane[each.lane] = left = self._in_lane.get(each.lane, 1) - 1
        if not left:
            del self._in_lane[each.lane]

    def delivered(self, each: Waiting) -> None:
        """Take out what was delivered."""
        with self.transaction():
            self._remove(each)
            self.count(f"sent {each.way}")

    def dropped(self, each: Waiting, why: str) -> None:
        """Take out what cannot be delivered, and count it."""
        with self.transaction():
            self._remove(each)
            self.count(f"dropped {each.way}", why)

    def postponed(self, each: Waiting, next_s: float) -> None:
        """Note a try that failed, and when the next one is due."""
        with self.transaction():
            self._db.execute(
                "UPDATE outbox SET tries = tries + 1, next_s = ? WHERE id = ?", (next_s, each.id)
            )

    def counts(self) -> dict[str, tuple[int, str]]:
        """Return what was counted, with the last reason, by name."""
        query = "SELECT name, count, text FROM counts"
        return {str(name): (int(count), str(text)) for name, count, text in self._db.execute(query)}

    def waiting(self) -> dict[str, int]:
        """Return how many deliveries wait, by way."""
        query = "SELECT way, count(*) FROM outbox GROUP BY way"
        return {str(way): int(count) for way, count in self._db.execute(query)}

    def close(self) -> None:
        """Close the database."""
        self._db.close()


def open_ledger(path: str) -> tuple[Ledger, str]:
    """Return the ledger, and in words what was wrong with an unreadable one, which is set aside."""
    try:
        ledger = Ledger(path)
        _check(ledger)
    except sqlite3.OperationalError:
        raise  # the disk is full, or another program holds it: nothing is damaged
    except sqlite3.DatabaseError as error:
        aside = f"{path}.damaged"
        Path(path).rename(aside)
        for suffix in ("-wal", "-shm"):
            Path(path + suffix).unlink(missing_ok=True)
        return Ledger(path), f"{path} cannot be read ({error}): it is kept as {aside}"
    return ledger, ""


def _check(ledger: Ledger) -> None:
    rows: Sequence[tuple[str]] = ledger._db.execute("PRAGMA quick_check(1)").fetchall()  # noqa: SLF001 # its own module
    if rows[0][0] != "ok":
        raise sqlite3.DatabaseError(rows[0][0])

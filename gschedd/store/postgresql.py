"""The replicated log of `gschedd.store.journal` in PostgreSQL, whose clock counts for the lease."""

import itertools
import logging
import os
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

import msgspec
import psycopg

from gsched.errors import ConfigError, StorageError
from gschedd.store.journal import (
    LeaseLostError,
    LogRecord,
    LogView,
    Ruler,
    SharedFiles,
    Statement,
    StoreBase,
)

log = logging.getLogger("gschedd.store")

T = TypeVar("T")

#: Of the tables below.
FORMAT: Final = 1
RECORDS_AT_ONCE: Final = 200
CONNECT_TIMEOUT_S: Final = 5
FILE_PART_BYTES: Final = 4 * 1024 * 1024
MAX_NAME: Final = 63  # bytes of a name in PostgreSQL
RETRY_S: Final = 0.5
#: Records before the newest base that stay, for heads that follow at a distance.
KEPT_RECORDS: Final = 10_000

_TABLES: Final = (
    """CREATE TABLE IF NOT EXISTS gsched_lease (
        id int PRIMARY KEY CHECK (id = 1),
        format int NOT NULL,
        number bigint NOT NULL,
        holder text NOT NULL,
        until_at timestamptz NOT NULL
    )""",
    """CREATE TABLE IF NOT EXISTS gsched_log (
        position bigint PRIMARY KEY,
        lease bigint NOT NULL,
        data bytea NOT NULL
    )""",
    """CREATE TABLE IF NOT EXISTS gsched_base (
        position bigint NOT NULL,
        part int NOT NULL,
        schema int NOT NULL,
        data bytea NOT NULL,
        PRIMARY KEY (position, part)
    )""",
    """CREATE TABLE IF NOT EXISTS gsched_file (
        name text NOT NULL,
        part int NOT NULL,
        at timestamptz NOT NULL DEFAULT clock_timestamp(),
        data bytea NOT NULL,
        PRIMARY KEY (name, part)
    )""",
    "INSERT INTO gsched_lease VALUES (1, 0, 0, '', clock_timestamp()) ON CONFLICT DO NOTHING",
    f"UPDATE gsched_lease SET format = {FORMAT} WHERE format = 0",  # noqa: S608 # constants
)
_UNTIL: Final = "until_at = clock_timestamp() + make_interval(secs => %s)"
_ACQUIRE: Final = f"""
    UPDATE gsched_lease SET number = number + 1, holder = %s, {_UNTIL}
    WHERE until_at < clock_timestamp() OR holder = %s RETURNING number
"""  # noqa: S608 # constants
_RENEW: Final = f"UPDATE gsched_lease SET {_UNTIL} WHERE number = %s"  # noqa: S608 # constants
_RELEASE: Final = "UPDATE gsched_lease SET until_at = clock_timestamp() WHERE number = %s"
_APPEND: Final = f"""
    WITH held AS (UPDATE gsched_lease SET {_UNTIL} WHERE number = %s RETURNING number)
    INSERT INTO gsched_log SELECT %s, number, %s FROM held
"""  # noqa: S608 # constants
_RULER: Final = """
    SELECT holder, number, extract(epoch FROM until_at - clock_timestamp())::float8
    FROM gsched_lease
"""
_VIEW: Final = """
    SELECT holder, number, extract(epoch FROM until_at - clock_timestamp())::float8,
        base.position, base.schema, log.position, log.lease, log.data
    FROM gsched_lease
    LEFT JOIN LATERAL (
        SELECT position, schema FROM gsched_base ORDER BY position DESC LIMIT 1
    ) base ON true
    LEFT JOIN LATERAL (
        SELECT position, lease, CASE WHEN position > %s THEN data END AS data
        FROM gsched_log WHERE position >= %s ORDER BY position LIMIT %s
    ) log ON true
    ORDER BY log.position
"""

_encode = msgspec.msgpack.Encoder().encode


class PostgresLog:
    """The log in one PostgreSQL database, which belongs to one cluster.

    Each thread has one of its own.

    Args:
        url: ``postgresql://USER@HOST/DATABASE``; passwords come from the environment or
            ``~/.pgpass``, as libpq reads them.
        holder: this head, as no other head is named.
        lease_s: for how long it rules after its last sign.
    """

    def __init__(self, url: str, *, holder: str, lease_s: float) -> None:
        self._url = url
        self.holder = holder
        self.lease_s = lease_s
        self.away = ""
        self._pause = threading.Event()
        self._db: psycopg.Connection[tuple[object, ...]] | None = None

    def open(self) -> None:
        """Connect, and make the tables that are not there.

        Raises:
            StorageError: the server is away, or lets this user not in.
            ConfigError: it refuses more, or the tables are of another version.
        """
        try:
            db = self._connected()
            for statement in _TABLES:
                db.execute(statement)
            row = db.execute("SELECT format FROM gsched_lease").fetchone()
        except psycopg.OperationalError as error:  # perhaps for a while: try again
            raise StorageError(
                f"the PostgreSQL database {shown_url(self._url)}: {first_line(error)}",
                hint="start the server, or correct url in [store]; the user and the database must "
                "be there",
            ) from error
        except psycopg.Error as error:
            raise ConfigError(
                f"the PostgreSQL database {shown_url(self._url)}: {first_line(error)}",
                hint="check url in [store], and that this user may create tables",
            ) from error
        if row != (FORMAT,):
            raise ConfigError(
                f"the PostgreSQL database {shown_url(self._url)} belongs to another version of "
                "gsched",
                hint="run the version of gsched that the ruling head has",
            )

    def _connected(self) -> "psycopg.Connection[tuple[object, ...]]":
        if self._db is None or self._db.closed:
            self._db = psycopg.connect(
                self._url,
                autocommit=True,
                connect_timeout=CONNECT_TIMEOUT_S,
                application_name=self.holder[-MAX_NAME:],
                keepalives_idle=2,
                keepalives_interval=1,
                keepalives_count=3,
                tcp_user_timeout=int(1000 * max(1.0, self.lease_s)),
            )
        return self._db

    def _run(self, work: "Callable[[psycopg.Connection[tuple[object, ...]]], T]") -> T:
        """Do work that can be repeated, as often as the connection breaks meanwhile."""
        while True:
            try:
                done = work(self._connected())
            except psycopg.OperationalError as error:
                if not self.away:
                    log.warning("PostgreSQL does not answer: %s", first_line(error))
                self.away = first_line(error)
                self.close()
                self._pause.wait(RETRY_S)
            else:
                self.away = ""
                return done

    # --- the lease ---

    def acquire(self) -> int:
        """Return the number of the lease that this head has from now on; 0: another one rules."""
        values = (self.holder, self.lease_s, self.holder)
        row = self._run(lambda db: db.execute(_ACQUIRE, values).fetchone())
        return 0 if row is None else _number(row[0])

    def renew(self, number: int) -> None:
        """Renew the lease.

        Raises:
            LeaseLostError: another head has it.
        """
        if not self._run(lambda db: db.execute(_RENEW, (self.lease_s, number)).rowcount):
            raise LeaseLostError(number)

    def release(self, number: int) -> None:
        """End the lease, so that another head need not wait; a server that is away is left."""
        try:
            self._connected().execute(_RELEASE, (number,))
        except psycopg.Error as error:
            log.warning("the lease is not released: %s", first_line(error))

    def ruler(self) -> Ruler:
        """Return who rules, or has ruled last."""
        row = self._run(lambda db: db.execute(_RULER).fetchone())
        assert row is not None, "open() has made it"
        holder, number, left_s = row
        return Ruler(str(holder), _number(number), _seconds(left_s))

    # --- records ---

    def append(self, number: int, position: int, statements: Sequence[Statement]) -> None:
        """Make a record durable; wait for a server that is away.

        Raises:
            LeaseLostError: another head rules; the record is not in the log.
        """
        values = (self.lease_s, number, position, zlib.compress(_encode(statements), 1))
        is_repeated = False

        def write(db: "psycopg.Connection[tuple[object, ...]]") -> int:
            nonlocal is_repeated
            if is_repeated and self._lease_at(db, position) == number:
                return 1  # it had arrived, and its answer had not
            is_repeated = True
            return db.execute(_APPEND, values).rowcount

        try:
            written = self._run(write)
        except psycopg.errors.UniqueViolation:
            raise LeaseLostError(number) from None
        if not written:
            raise LeaseLostError(number)

    @staticmethod
    def _lease_at(db: "psycopg.Connection[tuple[object, ...]]", position: int) -> int | None:
        query = "SELECT lease FROM gsched_log WHERE position = %s"
        row = db.execute(query, (position,)).fetchone()
        return None if row is None else _number(row[0])

    def newest(self) -> int:
        """Return the position of the newest record or base; 0: there is nothing yet."""
        query = """SELECT greatest(
            (SELECT coalesce(max(position), 0) FROM gsched_log),
            (SELECT coalesce(max(position), 0) FROM gsched_base))"""
        row = self._run(lambda db: db.execute(query).fetchone())
        assert row is not None
        return _number(row[0])

    def view(self, position: int) -> LogView:
        """Return what there is from a position on, with one query."""
        values = (position, position, RECORDS_AT_ONCE)
        rows = self._run(lambda db: db.execute(_VIEW, values).fetchall())
        holder, number, left_s, base, schema, *_ = rows[0]
        found = {_number(row[5]): row[6:] for row in rows if row[5] is not None}
        return LogView(
            Ruler(str(holder), _number(number), _seconds(left_s)),
            None if base is None else StoreBase(_number(base), _number(schema)),
            _number(found[position][0]) if position in found else None,
            tuple(
                LogRecord(at, _number(lease), _statements(_bytes(data)))
                for at, (lease, data) in found.items()
                if at > position
            ),
        )

    # --- bases ---

    def base(self) -> StoreBase | None:
        """Return the newest base; None: nothing was written yet."""
        query = "SELECT position, schema FROM gsched_base ORDER BY position DESC LIMIT 1"
        row = self._run(lambda db: db.execute(query).fetchone())
        return None if row is None else StoreBase(_number(row[0]), _number(row[1]))

    def write_base(self, number: int, base: StoreBase, content: Iterator[bytes]) -> None:
        """Write a whole database, and remove those before it and the records that it covers.

        Raises:
            LeaseLostError: another head rules; nothing is written.
            StorageError: the server does not take it.
        """
        try:
            with self._connected().transaction(), self._connected().cursor() as cursor:
                cursor.execute(_RENEW, (self.lease_s, number))
                if not cursor.rowcount:
                    raise LeaseLostError(number)
                cursor.execute("DELETE FROM gsched_base")
                for part, data in enumerate(content):
                    cursor.execute(
                        "INSERT INTO gsched_base VALUES (%s, %s, %s, %s)",
                        (base.position, part, base.schema, zlib.compress(data, 1)),
                    )
                kept_from = base.position - KEPT_RECORDS
                cursor.execute("DELETE FROM gsched_log WHERE position <= %s", (kept_from,))
        except psycopg.Error as error:
            raise StorageError(
                f"PostgreSQL does not take the database: {first_line(error)}",
                hint="look at the server's log",
            ) from error

    def read_base(self, base: StoreBase) -> Iterator[bytes]:
        """Yield the parts of a base."""
        query = "SELECT data FROM gsched_base WHERE position = %s AND part = %s"
        part = 0
        while True:
            values = (base.position, part)
            row = self._run(lambda db, values=values: db.execute(query, values).fetchone())  # type: ignore[misc] # mypy cannot infer the default
            if row is None:
                return
            yield zlib.decompress(_bytes(row[0]))
            part += 1

    def files(self, number: int) -> SharedFiles:
        """Return the files beside the log, for a head that has a lease."""
        return _Files(self, number)

    def run(self, work: "Callable[[psycopg.Connection[tuple[object, ...]]], T]") -> T:
        """Do work of another part on this connection; see `_run`."""
        return self._run(work)

    def close(self) -> None:
        """Close the connection; it is opened again when it is needed."""
        if self._db is not None:
            self._db.close()
        self._db = None


class _Files:
    """`SharedFiles` in a table; all threads take turns at one connection."""

    def __init__(self, log: PostgresLog, number: int) -> None:
        self._log, self._number = log, number
        self._turn = threading.Lock()

    def put(self, name: str, path: str) -> None:
        """Make a file durable, as another head finds it."""

        def work(db: "psycopg.Connection[tuple[object, ...]]") -> None:
            with db.transaction(), open(path, "rb") as file:
                db.execute("DELETE FROM gsched_file WHERE name = %s", (name,))
                parts = iter(lambda: file.read(FILE_PART_BYTES), b"")
                for part, data in enumerate(parts):
                    db.execute(
                        "INSERT INTO gsched_file (name, part, data) VALUES (%s, %s, %s)",
                        (name, part, data),
                    )

        with self._turn:
            self._log.run(work)

    def fetch(self, name: str, path: str) -> bool:
        """Write a file to a path, which is new; return whether there is one."""
        query = "SELECT data FROM gsched_file WHERE name = %s AND part = %s"
        with self._turn, open(path, "wb") as file:
            for part in itertools.count():
                values = (name, part)
                row = self._log.run(lambda db, values=values: db.execute(query, values).fetchone())  # type: ignore[misc] # mypy cannot infer the default
                if row is None:
                    os.fsync(file.fileno())
                    return part > 0
                file.write(_bytes(row[0]))
        raise AssertionError("the parts of a file end")

    def remove(self, name: str) -> None:
        """Remove a file, if this head rules."""
        query = """DELETE FROM gsched_file WHERE name = %s
            AND EXISTS (SELECT 1 FROM gsched_lease WHERE number = %s)"""
        with self._turn:
            self._log.run(lambda db: db.execute(query, (name, self._number)))

    def names(self, older_s: float) -> list[str]:
        """Return the names of files that were put so long ago."""
        query = """SELECT name FROM gsched_file WHERE part = 0
            AND at < clock_timestamp() - make_interval(secs => %s)"""
        with self._turn:
            rows = self._log.run(lambda db: db.execute(query, (older_s,)).fetchall())
        return [str(row[0]) for row in rows]


def shown_url(url: str) -> str:
    """Return a URL without its password."""
    try:
        parts = psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.Error:
        return "of [store]"
    return " ".join(f"{key}={value}" for key, value in parts.items() if key != "password")


def first_line(error: BaseException) -> str:
    """Return what a server says, in one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _statements(data: bytes) -> tuple[Statement, ...]:
    found = msgspec.msgpack.decode(zlib.decompress(data))
    return tuple(Statement(sql, tuple(map(tuple, runs))) for sql, runs in found)


def _number(value: object) -> int:
    assert isinstance(value, int)
    return value


def _seconds(value: object) -> float:
    return msgspec.convert(value, float, strict=False)


def _bytes(value: object) -> bytes:
    assert isinstance(value, bytes | memoryview)
    return bytes(value)

"""Reading for pages, metrics and reports: the monitor's and the head's database together."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar
from urllib.parse import quote

from gschedd.store.seals import text_of

T = TypeVar("T")

READERS: Final = 2
#: Memory that SQLite keeps of each database for each reader, KiB.
CACHE_KIB: Final = 16 * 1024


class Database:
    """Runs queries in threads, on connections that cannot write and see what is committed.

    Tables of the monitor have their plain names; those of the head are ``head.jobs`` and so on.
    """

    def __init__(self, monitor: str, head: str) -> None:
        self._monitor = monitor
        self._head = head
        self._local = threading.local()
        self._threads = ThreadPoolExecutor(READERS, thread_name_prefix="reader")

    async def read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Return what a query returns; within it all reads see one moment of each database."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, query)

    def _run(self, query: Callable[[sqlite3.Connection], T]) -> T:
        db: sqlite3.Connection | None = getattr(self._local, "db", None)
        if db is None:
            db = self._local.db = self._connect()
        db.execute("BEGIN")
        try:
            return query(db)
        finally:
            db.execute("ROLLBACK")

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(f"file:{quote(self._monitor)}?mode=ro", uri=True, isolation_level=None)
        db.text_factory = text_of  # a damaged text must not fail the report of all others
        db.execute("ATTACH ? AS head", (f"file:{quote(self._head)}?mode=ro",))
        for name in ("main", "head"):
            db.execute(f"PRAGMA {name}.cache_size = -{CACHE_KIB}")
        return db

    def close(self) -> None:
        """Wait for the queries under way."""
        self._threads.shutdown()

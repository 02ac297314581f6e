"""A head with a store, and the monitor's rows of usage of it."""

import tempfile
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from gsched.config.tables import HistoryConfig
from gsched.config.web import WebConfig
from gschedd.monitor.accounting import Accounting
from gschedd.monitor.feed import Feed
from gschedd.monitor.model import MonitorBegin
from gschedd.monitor.store import MonitorStore
from gschedd.monitor.usage import UsageModel
from gschedd.shares.ledger import LedgerRow
from gschedd.store.reader import Reader
from tests.support.books import Books


def monitor_begin(
    *, history: HistoryConfig | None = None, database: str = "", state_dir: str = ""
) -> MonitorBegin:
    """Return what a head without mail tells its monitor."""
    return MonitorBegin(
        server="test",
        config=WebConfig(),
        history=history or HistoryConfig(),
        database=database,
        state_dir=state_dir,
        head_socket="",
        socket="",
        operators=(),
    )


class Watched:
    """A head with its store, and the monitor's read model of it."""

    def __init__(
        self, directory: Path, *, keep_days: float = 365.0, accounting: bool = False
    ) -> None:
        self.books = Books(directory)
        self.books.register(cpus=4, gpu_types=("a100", "h100"))
        history = HistoryConfig(keep_days=keep_days, accounting=accounting)
        begin = monitor_begin(
            history=history, database=self.books.store.path, state_dir=str(directory)
        )
        self.part = UsageModel(begin)
        self.accounting = Accounting(begin)
        parts = (self.accounting, self.part)
        path = str(directory / "monitor.db")
        self.store = MonitorStore(
            path, [table for part in parts for table in part.tables], head=self.books.store.path
        )
        self.feed = Feed(Reader(self.books.store.path), self.store, parts)

    def read(self) -> None:
        """Take all events in."""
        while self.feed.step():
            pass

    def sums(self) -> tuple[object, ...]:
        """Return jobs, CPU time used, run time, and GPU time, as the monitor has them."""
        query = "SELECT sum(jobs), sum(cpu_used_s), sum(wall_s), sum(gpus * wall_s) FROM usage"
        row: tuple[object, ...] = self.store.db.execute(query).fetchone()
        return row

    def sums_of_head(self) -> tuple[object, ...]:
        """Return the same by the head's tables."""
        query = (
            "SELECT count(failed), sum(cpu_s), sum(wall_s), sum(gpu_s) FROM head.jobs "
            "WHERE state = 'done' AND failed IS NOT NULL"
        )
        row: tuple[object, ...] = self.store.db.execute(query).fetchone()
        return row

    def rows(self, columns: str) -> list[tuple[object, ...]]:
        """Return columns of all rows."""
        return self.store.db.execute(
            f"SELECT {columns} FROM usage ORDER BY job, attempt"
        ).fetchall()

    def run(self, resources: str = "nodes=1", *, code: int = 0, **changes: object) -> int:
        """Run a job for 10 seconds."""
        job = self.books.submit(resources, **changes)
        self.books.schedule()
        self.books.exit(job, code=code)
        return job


def wrong_reports(rows: Iterable[LedgerRow], database: Path) -> list[str]:
    """Return where a monitor that reads all events of a head reports other use than was billed."""
    billed = {(row.project, row.user): (row.cpu_s, sum(row.gpu_s.values())) for row in rows}
    reported = _reported(database)
    nothing = (0.0, 0.0)
    return [
        f"{whose}: billed {billed.get(whose)}, reported {reported.get(whose)}"
        for whose in sorted(billed.keys() | reported.keys())
        for pairs in (zip(billed.get(whose, nothing), reported.get(whose, nothing), strict=True),)
        if any(abs(one - other) > 1e-6 + 1e-9 * one for one, other in pairs)
    ]


def _reported(database: Path) -> dict[tuple[str, str], tuple[float, float]]:
    """Return CPU- and GPU-seconds of ended attempts by account and user."""
    usage = UsageModel(monitor_begin(database=str(database)))
    with (
        tempfile.TemporaryDirectory() as directory,
        closing(Reader(str(database))) as reader,
        closing(MonitorStore(f"{directory}/monitor.db", usage.tables, head=str(database))) as store,
    ):
        feed = Feed(reader, store, (usage,))
        while feed.step():
            pass
        query = (
            "SELECT account, user, sum(cpus * wall_s), sum(gpus * wall_s) FROM usage GROUP BY 1, 2"
        )
        return {(account, user): (cpu_s, gpu_s) for account, user, cpu_s, gpu_s in
                store.db.execute(query)}  # fmt: skip

"""The index of unfinished jobs says what the head's table of jobs says, after each commit."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gsched.model.arrays import read_spans
from gsched.model.ids import ELEMENT_BASE, INDICES, array_of, element_number
from gsched.protocol import actions as a
from gsched.protocol.job_rows import JobRow
from gschedd.core.requests import commands as c
from gschedd.monitor.page.shown import JobFilter, choose
from gschedd.monitor.unfinished import UnfinishedJobs
from tests.support.books import Books
from tests.support.world import ALICE

_COLUMNS = "id, name, user, queue, state, submitted_s, started_s"
_INSIDE = (
    f"id >= {ELEMENT_BASE} AND EXISTS (SELECT 1 FROM jobs AS a WHERE "
    f"a.id = (jobs.id - {ELEMENT_BASE}) / {INDICES} AND a.state <> 'done')"
)
Rows = list[tuple[object, ...]]


class Follower:
    """A head with one node, and the index that follows its database."""

    def __init__(self, directory: Path) -> None:
        self.books = Books(directory)
        self.books.register(cpus=4)
        self.index = UnfinishedJobs(self.books.store.path)

    def read(self, query: str) -> Rows:
        """Return rows of the index."""

        async def read() -> Rows:
            return await self.index.read(lambda db: db.execute(query).fetchall())

        return asyncio.run(read())

    def choose(self, wanted: JobFilter) -> tuple[list[JobRow], dict[str, int]]:
        """Return a list of the page, and how many lines each list has."""

        async def read() -> tuple[list[JobRow], dict[str, int]]:
            return await self.index.read(lambda db: choose(db, wanted))

        return asyncio.run(read())

    def check(self) -> Rows:
        """Check that the index equals the head's table; return its rows."""
        with sqlite3.connect(f"file:{self.books.store.path}?mode=ro", uri=True) as db:
            where = "FROM jobs WHERE state <> 'done'"
            found = db.execute(f"SELECT {_COLUMNS}, {_INSIDE} {where} ORDER BY id").fetchall()
        db.close()
        running = {array_of(row[0]) for row in found if row[4] == "running"}
        expected = [
            (*row[:4], "running", *row[5:7], 2) if row[0] in running and row[4] == "queued" else row
            for row in found
        ]
        kinds = Counter((row[7], row[2], row[3], row[4]) for row in expected)
        counts = sorted((*kind, count) for kind, count in kinds.items())
        rows = self.read(f"SELECT {_COLUMNS}, inside FROM unfinished ORDER BY id")
        assert rows == expected
        assert self.read("SELECT * FROM counts WHERE jobs <> 0 ORDER BY 1, 2, 3, 4") == counts
        return rows

    def act(self, job: int, action: a.DeleteJob | a.HoldJob | a.AlterJob, spans: str = "") -> None:
        """Do something with a job, or with elements of an array."""
        command = c.ActOnJob(
            caller=ALICE, job=job, action=action, elements=read_spans(spans) if spans else ()
        )
        self.books.now_s += 1
        self.books.take(self.books.head.command(command, self.books.now_s))


@pytest.fixture
def follower(tmp_path: Path) -> Iterator[Follower]:
    made = Follower(tmp_path)
    yield made
    made.index.close()
    made.books.store.close()


def test_jobs_come_change_and_go(follower: Follower) -> None:
    books = follower.books
    assert follower.check() == []
    jobs = [books.submit(name=f"job-{at}") for at in range(6)]
    assert len(follower.check()) == 6
    books.schedule()
    assert {row[4] for row in follower.check()} == {"running", "queued"}
    follower.act(jobs[5], a.HoldJob(ids=(str(jobs[5]),)))
    follower.act(jobs[4], a.AlterJob(ids=(str(jobs[4]),), alteration=a.Alteration(name="other")))
    assert {row[1] for row in follower.check()} >= {"other", "job-5"}
    for job in jobs[:4]:
        books.exit(job)
    assert len(follower.check()) == 2


def test_elements_are_in_their_array_until_it_is_over(follower: Follower) -> None:
    books = follower.books
    array = books.submit(array="0-999")
    follower.check()
    books.schedule()
    rows = follower.check()
    assert {row[-1] for row in rows if row[0] != array} == {1}
    assert rows[0][-1] == 2
    waiting = books.submit()
    for state, numbers in (
        ("", [array, waiting]),
        ("waiting", [waiting]),
        ("held", []),
        ("running", [element_number(array, index) for index in range(4)]),
    ):
        listed, counts = follower.choose(JobFilter(state=state))
        assert [row.id for row in listed] == numbers
        assert counts == {"": 2, "waiting": 1, "held": 0, "running": 4}
        assert counts == follower.choose(JobFilter(state=state, name="*"))[1]
        assert {row.state for row in listed if row.id == array} <= {"running"}
    books.exit(element_number(array, 0))
    books.schedule()
    follower.check()
    follower.act(array, a.DeleteJob(ids=(str(array),)), "5-999")
    follower.check()


@pytest.mark.parametrize("events_most", [0, 1])
def test_after_many_events_all_jobs_are_read_again(follower: Follower, events_most: int) -> None:
    follower.index = UnfinishedJobs(follower.books.store.path, events_most=events_most)
    jobs = [follower.books.submit() for _ in range(5)]
    follower.check()
    follower.books.schedule()
    follower.books.exit(jobs[0])
    assert len(follower.check()) == 4


def test_a_restored_database_is_read_from_the_beginning(follower: Follower, tmp_path: Path) -> None:
    follower.books.submit(name="before")
    follower.check()
    with sqlite3.connect(follower.books.store.path) as db:
        db.execute("UPDATE jobs SET name = 'restored'")
        db.execute("UPDATE events SET at_s = at_s - 1000")
    db.close()
    assert [row[1] for row in follower.check()] == ["restored"]

"""A job's state and its events are shown as of one moment, with a real engine and database."""

import asyncio
from pathlib import Path

import pytest

from gsched.clock import SystemClock
from gsched.model.states import JobState
from gsched.protocol.actions import AnyJobAction, DeleteJob, HoldJob, ReleaseJob
from gschedd.core.requests import commands as c
from gschedd.core.state import facts as f
from gschedd.core.state.records import Job
from gschedd.engine.loop import Engine
from gschedd.engine.space import DiskSpace
from gschedd.engine.watches import Watches
from gschedd.http import stories
from gschedd.http.stories import Recorded, at_one_moment, recorded
from gschedd.store.reader import Reader
from tests.support.books import Books
from tests.support.world import ALICE


class Reading:
    """Reads a job while it is held and released: after so many reads, before they are used."""

    def __init__(self, books: Books, changes: int) -> None:
        self.engine = Engine(
            head=books.head,
            store=books.store,
            clock=SystemClock(),
            space=DiskSpace(str(books.directory)),
        )
        self.reads = 0
        self._books = books
        self._changes = changes
        self._reader = Reader(books.store.path)

    async def read(self, job: Job) -> Recorded:
        found = recorded(self._reader, job, with_origin=False)
        self.reads += 1
        if self.reads <= self._changes:
            asked: AnyJobAction = HoldJob(ids=()) if self.reads % 2 else ReleaseJob(ids=())
            command = c.ActOnJob(caller=ALICE, job=job.id, action=asked)
            (step,) = await self.engine.ask(
                lambda now_s: [self._books.head.command(command, now_s)]
            )
            assert step.error is None
        return found

    async def story(self, job: int) -> tuple[Job, Recorded]:
        async def find() -> Job:
            return self._books.head.state.jobs[job]

        running = asyncio.create_task(self.engine.run())
        try:
            return await asyncio.wait_for(at_one_moment(self.engine, find, self.read), 60)
        finally:
            running.cancel()
            await asyncio.wait({running})
            self.engine.close()


@pytest.fixture
def books(tmp_path: Path) -> Books:
    return Books(tmp_path)


@pytest.mark.parametrize(("changes", "reads"), [(0, 1), (1, 2), (3, 4)])
def test_a_job_that_changes_while_its_events_are_read_is_read_again(
    books: Books, changes: int, reads: int
) -> None:
    number = books.submit()
    reading = Reading(books, changes)
    job, past = asyncio.run(reading.story(number))

    last = past.events[-1][1]
    assert reading.reads == reads
    assert job.state is (JobState.HELD if changes else JobState.QUEUED)
    assert isinstance(last, f.JobHeld) == bool(changes)


def test_a_job_that_never_stands_still_is_shown_all_the_same(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stories, "READS", 3)
    number = books.submit()
    reading = Reading(books, changes=100)
    asyncio.run(reading.story(number))

    assert reading.reads == 3


def test_only_those_who_watch_a_job_are_told_and_nobody_is_kept() -> None:
    watches = Watches()
    with watches.of(1) as first, watches.of(1) as second, watches.of(2) as other:
        watches.note([1, 3])
        assert (first.changed, second.changed, other.changed) == (True, True, False)
    watches.note([1])
    assert not watches._of


def test_who_waits_for_the_end_of_a_job_is_woken_by_that_alone(books: Books) -> None:
    """Not by commits of other jobs, nor by other changes of this one, and not before it is kept."""
    mine, other = books.submit(), books.submit()
    engine, head = Reading(books, 0).engine, books.head

    async def ask(action: AnyJobAction, job: int) -> None:
        command = c.ActOnJob(caller=ALICE, job=job, action=action)
        (step,) = await engine.ask(lambda now_s: [head.command(command, now_s)])
        assert step.error is None

    async def scenario() -> None:
        running = asyncio.create_task(engine.run())
        with engine.watches.of(mine) as watch:
            waiting = asyncio.create_task(engine.ended(watch, 60.0))
            await ask(HoldJob(ids=()), mine)
            await ask(DeleteJob(ids=()), other)
            await engine.ended(watch, 0.05)
            assert watch.changed
            assert not waiting.done()
            await ask(DeleteJob(ids=()), mine)
            await asyncio.wait_for(waiting, 10.0)
            assert watch.ended.is_set()
            assert mine not in head.state.unstored.finished, "its end is durable"
        running.cancel()
        await asyncio.wait({running})
        engine.close()

    asyncio.run(scenario())

"""Safe mode ends only when all is durable; a database that cannot be written loses nothing."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gsched.clock import SystemClock
from gsched.model.job import ExitRecord
from gsched.model.origin import Origin
from gsched.model.resources import Share
from gsched.model.states import JobState, OutcomeKind, PartState
from gsched.protocol import node as n
from gschedd.engine.loop import Engine
from gschedd.engine.space import DiskSpace
from gschedd.http.launches import BlobCache, Launches
from gschedd.http.links import Links
from gschedd.http.safemode import SafeMode
from gschedd.http.witnesses import Witnesses
from gschedd.store.reader import Reader
from tests.support.books import Books


class CountedLinks(Links):
    """Real links, none of which is connected, that count how often all of them are closed."""

    closed = 0

    async def close(self) -> None:
        self.closed += 1
        await super().close()


class Parts:
    """Safe mode with a real engine, store and links, without the daemon around them."""

    def __init__(self, books: Books) -> None:
        clock = SystemClock()
        head, store, opened = books.head, books.store, books.opened
        store._db.execute("PRAGMA busy_timeout = 20")
        head.state.epoch_id = opened.epoch_id
        self.engine = Engine(
            head=head, store=store, clock=clock, space=DiskSpace(str(books.directory))
        )
        self.reader = Reader(store.path)
        self.witnesses = Witnesses(opened.cluster, opened.lineage)
        self.links = CountedLinks(
            engine=self.engine,
            launches=Launches(
                state=head.state, blobs=BlobCache(self.reader.blob), server="s", cluster="c"
            ),
            clock=clock,
        )
        self.safe_mode = SafeMode(
            engine=self.engine,
            store=store,
            links=self.links,
            witnesses=self.witnesses,
            opened=opened,
            was_there=self.was_there,
        )

    async def was_there(self, job: int) -> bool:
        return bool(self.reader.jobs([job]))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[SafeMode]:
        """Run the engine meanwhile."""
        task = asyncio.create_task(self.engine.run())
        try:
            yield self.safe_mode
        finally:
            while not task.done():  # `wait_for` may lose a cancellation
                task.cancel()
                await asyncio.wait({task}, timeout=1.0)
            self.engine.close()


@contextlib.contextmanager
def held(books: Books) -> Iterator[None]:
    """Have another program hold the database, so that nothing can be written."""
    other = sqlite3.connect(books.store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


@pytest.fixture
def books(tmp_path: Path) -> Books:
    directory = tmp_path / "state"
    directory.mkdir()
    return Books(directory)


def as_old_copy(books: Books) -> int:
    """Make the database one that lacks something, with a queued job, and return the job."""
    books.register()
    job = books.submit()
    books.store.note_loss("an old copy", forgotten_from=job + 1)
    books.reopen()
    return job


def ended_on(books: Books, number: int, node: str) -> n.KnownAttempts:
    """Return what a node says that knows the end of a job."""
    job = books.head.state.jobs[number]
    record = ExitRecord(
        job=number, attempt=1, kind=OutcomeKind.EXITED, exit_code=3, ended_s=books.now_s
    )
    origin = Origin(
        token="aa",
        spec=job.spec,
        submitted_s=job.submitted_s,
        assigned_s=books.now_s,
        allocation=(Share(node=node, cpus=1),),
        active=(node,),
    )
    known = n.KnownAttempt(job=number, attempt=1, state=PartState.ENDED, exit=record, origin=origin)
    return n.KnownAttempts(attempts=(known,), done=True)


def test_a_late_node_is_asked_again_until_what_it_knows_is_durable(books: Books) -> None:
    """The database could not be written when it told: it must not be let in before that."""
    job = as_old_copy(books)

    async def scene() -> None:
        parts = Parts(books)
        async with parts.running() as safe_mode:
            await safe_mode.accept(without=True)
            assert books.head.state.jobs[job].state is JobState.HELD
            assert safe_mode.question("n1", late=True) is not None
            with held(books):
                assert await safe_mode.take_known("n1", ended_on(books, job, "n1"))
                assert safe_mode.question("n1", late=True) is not None
            while parts.engine.stalled:  # noqa: ASYNC110 # it has no event
                await asyncio.sleep(0.05)
            assert await safe_mode.take_known("n1", n.KnownAttempts(attempts=(), done=True))
            assert safe_mode.question("n1", late=True) is None

    asyncio.run(scene())
    books.reopen()
    assert job not in books.head.state.jobs
    assert books.opened.behind == ""


def test_a_head_that_stops_before_the_holds_are_durable_begins_in_safe_mode_again(
    books: Books,
) -> None:
    """Else the jobs that may have run would be started by the next head."""
    job = as_old_copy(books)

    async def scene() -> None:
        parts = Parts(books)
        accepting = asyncio.create_task(parts.safe_mode.accept(without=True))
        while not books.store._lineage[-1].accepted:  # noqa: ASYNC110 # nor has it
            await asyncio.sleep(0.01)
        accepting.cancel()  # the engine does not run, so nothing was taken back
        with contextlib.suppress(asyncio.CancelledError):
            await accepting
        assert books.head.safe_mode
        parts.engine.close()

    asyncio.run(scene())
    books.reopen()
    assert books.opened.behind == "an old copy"
    assert books.opened.forgotten_from == job + 1


def test_two_operators_who_accept_at_once_accept_one_loss(books: Books) -> None:
    """What was lost is taken back once, and one epoch begins."""
    as_old_copy(books)
    before = len(books.opened.lineage)

    async def scene() -> None:
        parts = Parts(books)
        async with parts.running() as safe_mode:
            await asyncio.gather(safe_mode.accept(without=True), safe_mode.accept(without=True))
            assert len(safe_mode.opened.lineage) == before + 1
            assert parts.links.closed == 1

    asyncio.run(scene())
    assert books.head.safe_mode == ""


def test_safe_mode_that_cannot_be_noted_is_noted_later_and_all_nodes_are_asked(
    books: Books,
) -> None:
    """A full disk keeps neither the nodes connected nor the loss a secret of this process."""
    books.register()

    async def scene() -> None:
        parts = Parts(books)
        async with parts.running() as safe_mode:
            with held(books):
                await safe_mode.on_older_head("n1 has obeyed a later head")
                assert parts.links.closed == 1
                assert books.head.safe_mode
            await safe_mode.on_older_head("n2 has obeyed a later head")
            assert parts.links.closed == 1

    asyncio.run(scene())
    books.reopen()
    assert books.opened.behind == "n2 has obeyed a later head"
    assert not books.opened.is_copy

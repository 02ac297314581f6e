"""Reports that come one after the other share a batch; nothing else waits for that."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gsched.clock import SystemClock
from gschedd.core.state.step import Step
from gschedd.engine import loop
from gschedd.engine.loop import Engine
from gschedd.engine.space import DiskSpace
from tests.support.books import Books

LONG_S = 5.0


class Seen:
    """Which inputs were run, and the time that each batch was run with."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.batches: dict[float, list[str]] = {}

    async def tell(self, name: str) -> None:
        await self._engine.tell(lambda now_s: self._note(name, now_s))

    async def ask(self, name: str) -> None:
        await self._engine.ask(lambda now_s: self._note(name, now_s), is_request=True)

    def _note(self, name: str, now_s: float) -> tuple[Step, ...]:
        self.batches.setdefault(now_s, []).append(name)
        return (Step(),)

    @property
    def names(self) -> list[list[str]]:
        """Return the names of each batch."""
        return list(self.batches.values())

    async def wait(self, count: int, timeout_s: float = 2.0) -> None:
        """Wait until so many inputs were run."""
        until_s = time.monotonic() + timeout_s
        while sum(map(len, self.names)) < count:
            assert time.monotonic() < until_s, self.names
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def running(directory: Path) -> AsyncIterator[Seen]:
    books = Books(directory)
    engine = Engine(
        head=books.head, store=books.store, clock=SystemClock(), space=DiskSpace(str(directory))
    )
    task = asyncio.create_task(engine.run())
    try:
        yield Seen(engine)
    finally:
        while not task.done():  # `wait_for` may lose a cancellation
            task.cancel()
            await asyncio.wait({task}, timeout=1.0)
        engine.close()


@pytest.fixture
def _long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "GATHER_S", LONG_S)


def test_reports_share_a_batch(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as seen:
            for number in range(40):
                await seen.tell(str(number))
                await asyncio.sleep(0.0005)
            await seen.wait(40)
            names = [name for batch in seen.names for name in batch]
            assert names == [str(number) for number in range(40)]
            times = list(seen.batches)
            pauses_s = [after - before for before, after in itertools.pairwise(times)]
            assert all(pause_s > 0.8 * loop.GATHER_S for pause_s in pauses_s), pauses_s

    asyncio.run(scenario())


@pytest.mark.usefixtures("_long")
def test_the_first_report_does_not_wait_and_a_request_ends_the_wait(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as seen:
            await seen.tell("a")
            await seen.wait(1)
            await seen.tell("b")
            await seen.tell("c")
            await asyncio.sleep(0.2)
            assert seen.names == [["a"]]

            await asyncio.wait_for(seen.ask("X"), 2.0)

            assert seen.names == [["a"], ["X", "b", "c"]]

    asyncio.run(scenario())


@pytest.mark.usefixtures("_long")
def test_many_reports_do_not_wait(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as seen:
            await seen.tell("a")
            await seen.wait(1)
            for number in range(loop.ENOUGH):
                await seen.tell(str(number))

            await seen.wait(1 + loop.ENOUGH)

    asyncio.run(scenario())

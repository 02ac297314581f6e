"""Reports that come one after the other share a batch; nothing else waits for that."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gsched.clock import Clock, SystemClock, thread_cpu_s
from gschedd.core.state.step import Step
from gschedd.engine import loop
from gschedd.engine.loop import Engine
from gschedd.engine.space import DiskSpace
from tests.support.books import Books
from tests.support.processes import PATIENCE_S

LONG_S = 5.0


class Seen:
    """Which inputs were run, and the time that each batch was run with."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.batches: dict[float, list[str]] = {}

    async def tell(self, name: str) -> None:
        await self.engine.tell(lambda now_s: self._note(name, now_s))

    async def ask(self, name: str) -> None:
        await self.engine.ask(lambda now_s: self._note(name, now_s), is_request=True)

    def _note(self, name: str, now_s: float) -> tuple[Step, ...]:
        self.batches.setdefault(now_s, []).append(name)
        return (Step(),)

    @property
    def names(self) -> list[list[str]]:
        """Return the names of each batch."""
        return list(self.batches.values())

    async def wait(self, count: int, timeout_s: float = PATIENCE_S) -> None:
        """Wait until so many inputs were run."""
        until_s = time.monotonic() + timeout_s
        while sum(map(len, self.names)) < count:
            assert time.monotonic() < until_s, self.names
            await asyncio.sleep(0.005)


class SetClock(SystemClock):
    """A clock that somebody sets."""

    ahead_s = 0.0

    def wall_s(self) -> float:
        """Return the time as it was set."""
        return super().wall_s() + self.ahead_s


@contextlib.asynccontextmanager
async def running(directory: Path, clock: Clock | None = None) -> AsyncIterator[Seen]:
    books = Books(directory)
    engine = Engine(
        head=books.head,
        store=books.store,
        clock=clock or SystemClock(),
        space=DiskSpace(str(directory)),
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


def test_inputs_that_take_long_are_batches_of_their_own(tmp_path: Path) -> None:
    """Whoever asks meanwhile waits for one of them, not for all."""

    def work(now_s: float) -> tuple[Step, ...]:
        until_s = thread_cpu_s() + loop.BATCH_S
        while thread_cpu_s() < until_s:
            pass
        batches.append(now_s)
        return (Step(),)

    batches: list[float] = []

    async def scenario() -> None:
        async with running(tmp_path) as seen:
            await seen.tell("a")
            await seen.wait(1)
            for _ in range(3):
                await seen.engine.tell(work)
            await seen.tell("b")
            await seen.tell("c")
            await seen.wait(3)
            assert len(set(batches)) == 3
            assert seen.names == [["a"], ["b", "c"]]

    asyncio.run(scenario())


def test_a_clock_that_was_set_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Forward and back, in words; what corrects a drift is not."""

    async def scenario() -> None:
        clock = SetClock()
        async with running(tmp_path, clock) as seen:
            for number, ahead_s in enumerate((0.0, 2.0, 3602.5, 3602.5, -7198.0)):
                clock.ahead_s = ahead_s
                await seen.ask(str(number))

    asyncio.run(scenario())
    told = [each.getMessage() for each in caplog.records if "was set" in each.getMessage()]
    assert [each.partition(":")[0] + each[each.index(" by ") :][:12] for each in told] == [
        "the clock of this machine was set forward by 01 by 01:00:00",
        "the clock of this machine was set back by 03 by 03:00:00",
    ]

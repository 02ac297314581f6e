"""What a cycle needs to know of many nodes is worked out in pieces before it; it decides alike."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gsched.clock import SystemClock
from gsched.config.policies import BalanceConfig
from gsched.model.resources import Load
from gschedd.core.cycle import warm_up
from gschedd.core.cycle.warm_up import warmed_up
from gschedd.core.head import Head
from gschedd.core.state.step import Step
from gschedd.core.state.transient import Ends
from gschedd.engine import loop
from gschedd.engine.loop import Engine
from gschedd.engine.space import DiskSpace
from gschedd.plan.space import SortedSpaces
from gschedd.policies.queue import balance
from tests.support.books import Books
from tests.support.processes import PATIENCE_S
from tests.support.world import World, node

NODES, FEW = 30, 5
BOOKS_OF = balance.books_of(BalanceConfig())


@pytest.fixture
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_up, "FEW", FEW)


def started() -> Head:
    """Return a head with 20 running jobs and one that waits, with nothing worked out yet."""
    names = [f"n{number:02}" for number in range(NODES)]
    world = World(*(node(name, cpus=4) for name in names), policy=balance.plan)
    for number in range(20):
        world.submit(f"nodes=1:ppn={1 + number % 4},walltime={1 + number}:0:0", runs_s=1e6)
    head = world.head
    for number, name in enumerate(names):
        head.note_load(name, Load(cpu_percent=number * 3.0), world.now_s)
    spaces, head.state.spaces = head.state.spaces, SortedSpaces()
    for name, space in spaces.items():
        head.state.spaces[name] = space
    head.state.dirty.ends = Ends()
    head.state.dirty.ends.moved.update(head.state.running)
    world.settle = lambda: None  # type: ignore[method-assign] # the cycle is that of the test
    world.submit("nodes=2:ppn=4,walltime=1:0:0")
    world.submit("nodes=25:ppn=4,walltime=1:0:0")
    world.submit("nodes=1:ppn=1,walltime=1:0:0")
    return head


def pieces(head: Head, now_s: float) -> Iterator[None]:
    return warmed_up(head.state, head.settings, head.model, BOOKS_OF, now_s)


@pytest.mark.usefixtures("_few")
def test_a_cycle_after_it_decides_the_same_and_has_little_left_to_do() -> None:
    cold, warm = started(), started()
    now_s = 2e9

    count = sum(1 for _ in pieces(warm, now_s))

    assert count >= (NODES + 20) // FEW - 2
    assert len(warm.state.dirty.ends.moved) <= FEW
    assert len(BOOKS_OF(warm.state.spaces).stale) <= FEW
    assert BOOKS_OF(cold.state.spaces).stale == set(cold.state.nodes)
    facts = warm.cycle(now_s).facts
    assert facts == cold.cycle(now_s).facts
    assert len(facts) == 2
    assert warm.waits == cold.waits


@pytest.mark.usefixtures("_few")
def test_nodes_that_report_or_go_meanwhile_do_not_keep_it_from_its_end() -> None:
    head = started()
    now_s = 2e9
    gone = next(name for name in reversed(head.state.nodes) if not head.state.by_node.get(name))
    count = 0
    for _ in pieces(head, now_s):
        for name in head.state.spaces:
            head.note_load(name, Load(cpu_percent=50.0), now_s)
        count += 1
        if count == 6:
            del head.state.spaces[gone], head.state.nodes[gone]

    assert count < 20
    assert head.cycle(now_s).facts
    assert len(BOOKS_OF(head.state.spaces).stale) <= 3  # on which the jobs have started


def test_inputs_are_taken_between_its_pieces_and_the_cycle_comes_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    books = Books(tmp_path)
    head, seen = books.head, list[str]()

    def slowly(*_: object) -> Iterator[None]:
        for number in range(30):
            assert not head.cycles
            seen.append(f"piece {number}")
            yield

    monkeypatch.setattr(loop, "warmed_up", slowly)
    monkeypatch.setattr(loop, "WARM_S", 0.0)
    engine = Engine(
        head=head, store=books.store, clock=SystemClock(), space=DiskSpace(str(tmp_path))
    )

    def note(name: str) -> list[Step]:
        seen.append(name)
        head.state.dirty.mark_all()
        return [Step()]

    async def scenario() -> None:
        task = asyncio.create_task(engine.run())
        await engine.ask(lambda _: note("first"), is_request=True)
        await engine.ask(lambda _: note("second"), is_request=True)
        until_s = time.monotonic() + PATIENCE_S
        while head.state.dirty.any:
            assert time.monotonic() < until_s, seen
            await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.wait({task})

    asyncio.run(scenario())
    engine.close()

    assert seen.index("second") < seen.index("piece 29")
    assert seen[-1] == "piece 29"


def test_a_fault_in_it_is_logged_and_the_cycle_comes_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    books = Books(tmp_path)

    def broken(*_: object) -> Iterator[None]:
        yield
        raise RuntimeError("a node without a name")

    monkeypatch.setattr(loop, "warmed_up", broken)
    engine = Engine(
        head=books.head, store=books.store, clock=SystemClock(), space=DiskSpace(str(tmp_path))
    )

    def note(now_s: float) -> list[Step]:
        del now_s
        books.head.state.dirty.mark_all()
        return [Step()]

    async def scenario() -> None:
        task = asyncio.create_task(engine.run())
        await engine.ask(note)
        until_s = time.monotonic() + PATIENCE_S
        while books.head.state.dirty.any:
            assert time.monotonic() < until_s
            await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.wait({task})

    asyncio.run(scenario())
    engine.close()

    assert books.head.cycles == 1
    assert "a node without a name" in caplog.text

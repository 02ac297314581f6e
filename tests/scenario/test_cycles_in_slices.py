"""A cycle of a large cluster is done in slices: it decides the same, and nothing else changes."""

import asyncio
from pathlib import Path

import pytest

from gsched.clock import SystemClock
from gsched.model.resources import Load
from gsched.protocol.actions import HoldJob
from gschedd.core.head import Head
from gschedd.core.requests import commands as c
from gschedd.core.state.step import Step
from gschedd.engine import loop, slices
from gschedd.engine.loop import Engine
from gschedd.engine.slices import Slices
from gschedd.engine.space import DiskSpace
from gschedd.plan import rests
from gschedd.plan.snapshot import Policy
from gschedd.policies.queue import balance, fifo
from tests.support.books import Books
from tests.support.world import ALICE, World, node

NODES = 30


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "LARGE", 0)
    monkeypatch.setattr(slices, "SLICE_S", 0.0)
    monkeypatch.setattr(rests, "EVERY", 1)


def full(policy: Policy, *wide: str) -> World:
    """Return a cluster on which two jobs run on each node, and on which a cycle is due."""
    world = World(*(node(f"n{number:02}", cpus=4) for number in range(NODES)), policy=policy)
    for number in range(2 * NODES):
        world.submit(f"nodes=1:ppn=2,walltime={1 + number % 7}:0:0", runs_s=1e6)
    for number in range(NODES):
        world.head.note_load(f"n{number:02}", Load(cpu_percent=number * 3.0), world.now_s)
    world.settle = lambda: None  # type: ignore[method-assign] # the cycle is that of the test
    for request in wide:
        world.submit(request)
    return world


@pytest.mark.parametrize("policy", [fifo.plan, balance.plan])
@pytest.mark.parametrize("wide", ["nodes=15:ppn=4", "nodes=20:ppn=2+5:ppn=4", "nodes=30:ppn=1"])
def test_it_decides_the_same(policy: Policy, wide: str) -> None:
    requests = (f"{wide},walltime=1:0:0", "nodes=1:ppn=1,walltime=0:30:0")
    at_once, sliced = full(policy, *requests), full(policy, *requests)
    done, count = Slices(), 0

    step = at_once.head.cycle(2e9)

    def rested() -> None:
        nonlocal count
        count += 1

    also = asyncio.run(done.between_turns(lambda: sliced.head.cycle(2e9), rested))

    done.close()
    assert count > NODES
    assert also == step
    assert sliced.head.waits == at_once.head.waits
    assert any(wait.reserved for wait in sliced.head.waits.values())


class Resting:
    """A policy that rests, and has somebody called meanwhile."""

    def __init__(self, head: Head) -> None:
        self.cycles = 0
        self._policy = head.policy
        head.policy = self

    def __call__(self, snapshot):  # type: ignore[no-untyped-def] # as any policy
        self.cycles += 1
        for _ in rests.with_rests(range(200)):
            pass
        return self._policy(snapshot)


def engine_of(books: Books) -> Engine:
    return Engine(
        head=books.head,
        store=books.store,
        clock=SystemClock(),
        space=DiskSpace(str(books.directory)),
    )


def test_queries_are_answered_meanwhile_and_inputs_come_after_it(tmp_path: Path) -> None:
    books = Books(tmp_path)
    books.register()
    mine = books.submit("nodes=1:ppn=4")
    engine, policy = engine_of(books), Resting(books.head)
    during: list[int] = []
    seen: list[str] = []

    async def ask(name: str) -> None:
        def note(_: float) -> list[Step]:
            seen.append(f"{name} after {policy.cycles}")
            books.head.state.dirty.mark_all()
            return [Step()]

        await engine.ask(note, is_request=True)

    async def scenario() -> None:
        task = asyncio.create_task(engine.run())
        await ask("first")
        while policy.cycles < 1:  # noqa: ASYNC110 - a turn, as short as it can be
            await asyncio.sleep(0)
        asking = asyncio.create_task(ask("second"))
        while not asking.done():
            if len(seen) == 1:
                await asyncio.wait_for(engine.settled(), 1.0)  # all of the state is durable
                during.append(books.head.state.jobs[mine].id)
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})

    asyncio.run(scenario())
    engine.close()
    assert seen[0] == "first after 0"
    assert seen[1] == "second after 1"
    assert len(during) > 20


def test_what_is_not_durable_is_not_shown_between_slices(tmp_path: Path) -> None:
    """Reports of nodes share a commit with the cycle that follows, so that comes before it."""
    books = Books(tmp_path)
    books.register()
    job, _ = books.submit("nodes=1:ppn=4"), books.submit("nodes=1:ppn=4")
    engine, policy = engine_of(books), Resting(books.head)
    hold = c.ActOnJob(caller=ALICE, job=job, action=HoldJob(ids=()))
    looks = 0

    def is_between() -> bool:
        return policy.cycles > 0 and not books.head.state.unstored.is_empty

    async def scenario() -> None:
        nonlocal looks
        task = asyncio.create_task(engine.run())
        books.head.state.dirty.mark_all()
        with engine.watches.of(job) as watch:
            await engine.tell(lambda now_s: [books.head.command(hold, now_s)])
            while not is_between():  # noqa: ASYNC110 - as above
                await asyncio.sleep(0)
            while is_between():
                looks += 1
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(engine.settled(), 0)
                assert watch.changed, "who has read it reads it again"
            await asyncio.wait_for(engine.settled(), 10.0)
        task.cancel()
        await asyncio.wait({task})

    asyncio.run(scenario())
    engine.close()
    assert looks > 10

"""What a cycle looks at: only what has changed; and the order of nodes that finds the best."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gsched.model.resources import Chunk
from gschedd.core.cycle.run import snapshot
from gschedd.plan.room import best_space, least_left, leftover
from gschedd.plan.snapshot import Plan, RunningJob, Snapshot, end_order
from gschedd.plan.space import FreeNode, SortedSpaces, Spaces, room_key
from gschedd.policies.queue import fifo
from tests.support.spaces import chunks, node_spaces
from tests.support.world import ALICE, World, node

NAMES = [f"n{number}" for number in range(6)]
nodes = st.tuples(*(node_spaces(name) for name in NAMES))


@given(start=nodes, later=nodes, chunk=chunks(count=1), exclusive=st.booleans())
def test_the_order_finds_what_looking_at_all_finds(
    start: tuple[FreeNode, ...], later: tuple[FreeNode, ...], chunk: Chunk, *, exclusive: bool
) -> None:
    """Also after every node has changed, below and above the overlay."""
    base = SortedSpaces()
    for space in start:
        base[space.name] = space
    overlay = Spaces(base)
    for space in later[:3]:
        base[space.name] = space

    assert base.order == sorted(map(room_key, base.values()))
    for spaces in (overlay, Spaces(dict(base)), Spaces(base, {s.name: s for s in later[2:]})):
        expected = best_space(chunk, list(spaces), exclusive=exclusive, rank=leftover)
        assert next(least_left(chunk, spaces, exclusive=exclusive), None) == expected


class Asked:
    """Fifo, and how many jobs it was shown each time."""

    def __init__(self) -> None:
        self.shown: list[int] = []

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Note and answer."""
        self.shown.append(sum(len(group.order) for group in snapshot.groups))
        return fifo.plan(snapshot)


def test_a_further_job_of_a_class_that_waits_costs_nothing() -> None:
    """No policy is asked, whatever waits; it has its reason at once."""
    asked = Asked()
    world = World(node("n1", cpus=1), policy=asked)
    world.submit(runs_s=100)
    world.submit(runs_s=100)
    before = len(asked.shown)

    third = world.submit(runs_s=100)

    assert len(asked.shown) == before
    assert "needs 1 CPU" in world.why(third)


def test_a_new_class_is_looked_at_with_the_reserved_one_only() -> None:
    """The others have been decided, and nothing was given back."""
    asked = Asked()
    world = World(node("n1", cpus=4), policy=asked)
    world.submit("ncpus=4", runs_s=100)
    for cpus in (4, 3, 2):
        world.submit(f"ncpus={cpus}", runs_s=100)

    world.submit("ncpus=1", runs_s=100)

    assert asked.shown[-1] == 2


def test_what_is_given_back_brings_back_those_it_may_help() -> None:
    """A node with two CPUs helps nobody who wants three."""
    asked = Asked()
    world = World(node("n1", cpus=4), node("n2", cpus=2), policy=asked)
    world.submit("ncpus=4", runs_s=100)
    world.submit("ncpus=2", runs_s=10)
    for _ in range(5):
        world.submit("ncpus=4", runs_s=100)
    waiting = world.submit("ncpus=3", runs_s=100)
    before = len(asked.shown)

    world.run_for(11)

    assert len(asked.shown) == before
    assert "needs 3 CPUs" in world.why(waiting)
    world.run_for(90)
    assert asked.shown[-1] == 6


@pytest.mark.parametrize("how", ["delete", "hold"])
def test_those_behind_a_job_that_leaves_the_queue_are_looked_at(how: str) -> None:
    """They waited so as not to delay it; nothing else has to happen."""
    world = World(node("n1", cpus=4))
    world.submit("ncpus=3", runs_s=100)
    first = world.submit("ncpus=4", runs_s=100)
    behind = world.submit("ncpus=1", runs_s=1000)
    assert "would delay" in world.why(behind)

    getattr(world, how)(first, by=ALICE)

    assert world.state(behind) == "running"


def test_what_runs_is_in_the_order_of_its_ends() -> None:
    """Whatever has started, ended or got another limit meanwhile; as if it were made anew."""
    world = World(node("n1", cpus=9))
    limits = [90, 30, 60, None, 10]
    jobs = [
        world.submit(f"walltime={limit}" if limit else "", runs_s=limit or 5) for limit in limits
    ]

    def seen() -> list[RunningJob]:
        return list(snapshot(world.head.state, world.settings, world.now_s).running)

    assert [each.job for each in seen()] == [jobs[n] for n in (4, 1, 2, 0, 3)]
    world.run_for(0)
    world.alter(jobs[0], resources=("walltime=5",))
    world.run_for(6)
    running = seen()
    assert running == sorted(running, key=end_order)
    assert {each.job for each in running} == set(world.head.state.running)
    assert Counter(each.job for each in running).most_common(1)[0][1] == 1

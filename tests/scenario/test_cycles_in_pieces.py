"""Cycles that start many jobs: each starts a limited number, and all together what one would."""

import random

import pytest
from msgspec import structs

from baselines.registry import ALL
from gsched.model.resources import Allocation
from gschedd.core.cycle.run import MAX_STARTS, most_starts, snapshot
from gschedd.core.state import facts as f
from gschedd.plan.snapshot import Plan, Policy, Snapshot
from tests.support.world import World, node

Starts = list[tuple[int, Allocation]]


class Unhurried(World):
    """Runs no cycle before it is told to."""

    def settle(self) -> None:
        pass


def starts_of(facts: tuple[f.AnyFact, ...]) -> Starts:
    return [(fact.job, fact.allocation) for fact in facts if isinstance(fact, f.AttemptAssigned)]


def cycle(world: World) -> Starts:
    return starts_of(world.head.cycle(world.now_s).facts)


@pytest.mark.parametrize("policy", ["balance", "fifo", "torque", "fewest", "paper"])
def test_pieces_of_a_plan_start_what_the_whole_plan_starts(policy: str) -> None:
    """Also behind a reservation, and with jobs that run already.

    The same classes wait, for a reason that holds after the last start. Where jobs end at the same
    moment, a later piece may reserve another one of the nodes that fit then.
    """
    for seed in range(20):
        whole, pieces = (crowded(policy, seed) for _ in range(2))
        seen = snapshot(whole.head.state, whole.settings, whole.now_s)
        planned = whole.policy(seen)
        pieces.head.policy = limited(pieces.policy, starts_max=2)

        pieces.head.state.dirty.mark_all()
        found = cycle(pieces)
        while pieces.head.unfinished:
            found += cycle(pieces)

        assert [(start.job, start.allocation) for start in planned.starts] == found
        assert pieces.head.cycles > len(found) / 2
        assert pieces.head.waits.keys() == {wait.job_class for wait in planned.waits}


@pytest.mark.parametrize("policy", ["balance", "fifo"])
def test_cycles_with_fewer_starts_start_the_same_jobs_in_the_same_places(policy: str) -> None:
    whole, pieces = (crowded(policy, 3) for _ in range(2))
    found: list[Starts] = []
    for world, starts in ((whole, MAX_STARTS), (pieces, 2)):
        world.head.starts_max = starts
        world.head.state.dirty.mark_all()
        found.append(cycle(world))
        while world.head.unfinished:
            more = cycle(world)
            assert len(more) <= starts
            found[-1] += more

    assert found[0] == found[1]
    assert pieces.head.cycles > whole.head.cycles


def limited(policy: Policy, *, starts_max: int) -> Policy:
    """Return a policy whose plans have at most some starts."""

    def plan(snapshot: Snapshot) -> Plan:
        return policy(structs.replace(snapshot, starts_max=starts_max))

    return plan


def crowded(policy: str, seed: int) -> Unhurried:
    """Return a head whose nodes are half full, with a queue of unlike jobs."""
    chance = random.Random(seed)
    nodes = [node(f"n{number}", cpus=chance.randint(12, 24)) for number in range(4)]
    world = Unhurried(*nodes, policy=ALL.choose(policy).plan)
    for size, count in ((4, 3), (12, 30)):
        for _ in range(count):
            world.submit(
                f"ncpus={chance.randint(1, size)},walltime={chance.randint(600, 86400)}",
                priority=-chance.randint(0, 3),
            )
        if size == 4:
            cycle(world)
            assert world.head.state.running
    return world


def test_a_cycle_with_many_starts_is_continued_by_the_next_one() -> None:
    """No job waits for an event, and the cycle that finds nothing more says so."""
    world = Unhurried(node("n1", cpus=MAX_STARTS + 100))
    jobs = [world.submit() for _ in range(MAX_STARTS + 50)]

    first = cycle(world)
    assert world.head.state.dirty.any
    second = cycle(world)

    assert world.head.cycle(world.now_s).facts == ()
    assert [job for job, _ in first] == jobs[:MAX_STARTS]
    assert [job for job, _ in second] == jobs[MAX_STARTS:]


def test_a_policy_whose_starts_are_all_refused_is_not_asked_for_ever() -> None:
    """It says that there is more each time, and nothing of it can be carried out."""
    world = Unhurried(node("n1", cpus=2))
    world.submit()
    plan = ALL.choose("fifo").plan(snapshot(world.head.state, world.settings, world.now_s))
    bad = tuple(structs.replace(start, job=999) for start in plan.starts)
    world.head.policy = lambda snapshot: Plan(starts=bad, more=True)

    assert cycle(world) == []
    assert not world.head.unfinished


def test_the_more_nodes_the_fewer_starts_has_a_cycle() -> None:
    """Each start compares all nodes, and every request waits meanwhile."""
    assert [most_starts(nodes) for nodes in (0, 1, 100, 5000)] == [256, 256, 80, 16]

"""Nodes kept in the order of a ranking tell what a look at all of them does."""

import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from baselines import fewest, paper, roundrobin, torque
from baselines.kit.by_space import BLOCK_NODES, BySpace, RankedNodes, SpaceKey
from gsched.config.policies import WeightsConfig
from gsched.model.resources import Allocation, Chunk, Request, Share
from gschedd.plan.fit import FEW, NoFit, place
from gschedd.plan.load import NodeLoad, NodeRates, Use
from gschedd.plan.ranked import OrderedRank
from gschedd.plan.room import shortage
from gschedd.plan.snapshot import ByEnd, Group, JobClass, Plan, Policy, RunningJob, Snapshot
from gschedd.plan.space import FreeNode, SortedSpaces, Spaces
from gschedd.policies.kit.utilisation import LeastImbalance
from gschedd.policies.queue import balance
from tests.support.spaces import chunks, requests, space


def by_owners(space: FreeNode) -> tuple[int, str]:
    return (space.owners, space.name)


def by_name(space: FreeNode) -> tuple[str]:
    return (space.name,)


def by_memory(space: FreeNode) -> tuple[int, str]:
    return (-space.memory_bytes, space.name)


KEYS: tuple[SpaceKey, ...] = (by_owners, by_name, by_memory)


def sorted_spaces(*given: FreeNode) -> SortedSpaces:
    """Return nodes as the head keeps them."""
    nodes = SortedSpaces()
    for each in given:
        nodes[each.name] = each
    return nodes


#: Up to FEW nodes with room are ranked each, of more the order is asked.
COUNTS = (1, 3, FEW + 4)


def random_node(chance: random.Random, name: str, largest: int = 4) -> FreeNode:
    """Return a node as one may be; drawing each of many by itself would take most of the time."""
    return space(
        name,
        cpus=chance.randint(0, largest),
        memory_bytes=chance.randint(0, largest),
        gpu_types=tuple(chance.choice(("", "a", "b")) for _ in range(chance.choice((0, 0, 1, 3)))),
        features=chance.choice(((), ("red",), ("blue", "red"))),
        generic={"licence": chance.randint(1, 2)} if chance.random() < 0.5 else {},
        owners=chance.choice((0, 0, 0, 1)),
        open=chance.random() < 0.8,
    )


@st.composite
def changing(draw: st.DrawFn) -> list[list[FreeNode]]:
    """Return a cluster, and what its nodes become one after the other."""
    chance = random.Random(draw(st.integers(0, 2**32)))
    names = [f"n{number}" for number in range(chance.choice(COUNTS))]
    first = [random_node(chance, name) for name in names]
    more = [
        [random_node(chance, name) for name in chance.choices(names, k=chance.randint(0, 4))]
        for _ in range(chance.randint(1, 4))
    ]
    return [first, *more]


@given(steps=changing(), request=requests(), turn=st.integers(0, 20), key=st.sampled_from(KEYS))
def test_an_order_places_as_a_look_at_all_nodes_does(
    steps: list[list[FreeNode]], request: Request, turn: int, key: SpaceKey
) -> None:
    """While nodes change between plans, and while a plan takes and gives."""
    nodes = SortedSpaces()
    for changes in steps:
        for each in changes:
            nodes[each.name] = each
        rank = BySpace(nodes, key, turn=turn)
        free = Spaces(nodes)
        for _ in range(3):
            found = place(request, free, rank)
            plain = place(request, Spaces({s.name: s for s in free}), rank.__call__)
            if isinstance(found, NoFit):
                assert isinstance(plain, NoFit)
                break
            assert found == plain
            free.take(found)


@given(steps=changing(), chunk=chunks(), exclusive=st.booleans(), turn=st.integers(0, 9))
def test_all_that_have_room_come_in_order(
    steps: list[list[FreeNode]],
    chunk: Chunk,
    exclusive: bool,  # noqa: FBT001 -- drawn
    turn: int,
) -> None:
    """Each once, those that the plan has changed among the others."""
    nodes = sorted_spaces(*steps[0])
    rank = BySpace(nodes, by_owners, turn=turn)
    free = Spaces(nodes, {each.name: each for each in steps[1]})

    found = list(rank.fitting(chunk, free, exclusive=exclusive))

    expected = [each for each in free if not shortage(chunk, each, exclusive=exclusive)]
    assert found == sorted(expected, key=lambda each: rank(chunk, each))


@given(
    moves=st.lists(st.tuples(st.integers(0, 5 * BLOCK_NODES), st.integers(0, 9)), max_size=300),
    begin=st.integers(0, 9),
)
def test_blocks_stay_sorted_however_nodes_move(moves: list[tuple[int, int]], begin: int) -> None:
    """Nodes come and change their places; blocks are cut in two and vanish."""
    ranked, keys = RankedNodes(), dict[str, tuple[int, str]]()
    for number, key in moves:
        name = f"n{number}"
        keys[name] = (key, name)
        ranked.put(name, keys[name])
    nodes = {name: space(name) for name in keys}

    walked = ranked.walk(Chunk(), nodes, exclusive=False, passed=(), begin=(begin,))

    ordered = sorted(keys.values())
    ring = [k for k in ordered if k >= (begin,)] + [k for k in ordered if k < (begin,)]
    assert [each.name for each in walked] == [name for _, name in ring]
    assert [ranked.at(place) for place in range(len(ranked))] == ordered


def test_blocks_without_room_are_not_looked_into() -> None:
    """However many full nodes stand first."""

    class Counting(dict[str, FreeNode]):
        looks = 0

        def __getitem__(self, name: str) -> FreeNode:
            self.looks += 1
            return super().__getitem__(name)

    names = [f"n{number:04}" for number in range(40 * BLOCK_NODES)]
    nodes = Counting({name: space(name, cpus=0) for name in names})
    nodes[names[-1]] = space(names[-1], cpus=4)
    ranked = RankedNodes()
    ranked.fill({name: (name,) for name in names})

    def first() -> FreeNode | None:
        return next(ranked.walk(Chunk(cpus=1), nodes, exclusive=False, passed=()), None)

    assert first() == nodes[names[-1]]
    nodes.looks = 0
    assert first() is not None
    assert nodes.looks <= 2 * BLOCK_NODES


@pytest.mark.parametrize("policy", [torque.plan, fewest.plan, roundrobin.plan])
@given(steps=changing(), asked=st.lists(requests(), min_size=1, max_size=4))
def test_plans_are_the_same_on_nodes_that_remember(
    policy: Policy, steps: list[list[FreeNode]], asked: list[Request]
) -> None:
    """The snapshot alone decides, not what was planned before."""
    nodes = SortedSpaces()
    for changes in steps:
        for each in changes:
            nodes[each.name] = structs.replace(each, owners=each.owners % 2)
        remembered, anew = (
            policy(_snapshot(kept, asked)) for kept in (nodes, dict[str, FreeNode](nodes))
        )
        assert _starts(remembered) == _starts(anew)
        assert [wait.first for wait in remembered.waits] == [wait.first for wait in anew.waits]


class _Running(ByEnd):
    """Running jobs as the head tells them."""

    def __init__(self, jobs: list[RunningJob]) -> None:
        self._jobs = sorted(jobs, key=lambda job: job.job)

    def on(self, node: str) -> list[RunningJob]:
        return [job for job in self._jobs if any(share.node == node for share in job.allocation)]

    def __contains__(self, job: object) -> bool:
        return job in self._jobs

    def __iter__(self) -> Iterator[RunningJob]:
        return iter(self._jobs)

    def __len__(self) -> int:
        return len(self._jobs)


Moment = tuple[FreeNode, NodeLoad | None, list[Use]]


@st.composite
def moments(draw: st.DrawFn) -> list[Moment]:
    """Return what becomes of nodes, one after the other: space, report, jobs that run."""
    chance = random.Random(draw(st.integers(0, 2**32)))
    names = [f"n{number}" for number in range(chance.choice(COUNTS))]
    names += chance.choices(names, k=chance.randint(0, 12))
    with_gpus = chance.random() < 0.5
    return [_moment(chance, name, with_gpus=with_gpus) for name in names]


def _moment(chance: random.Random, name: str, *, with_gpus: bool) -> Moment:
    each = structs.replace(random_node(chance, name, largest=8), total_cpus=8)
    if not with_gpus:
        each = structs.replace(each, gpus=(), all_gpus=(), total_gpus=0)
    shares = (0.0, 0.0, 0.2, 0.5, 0.97, 1.0)
    load = NodeLoad(
        name=name,
        rates=NodeRates(cores=8, memory_bytes=8, gpus=each.total_gpus, gpu_memory_bytes=4),
        used=Use(
            cpu_cores=8 * chance.choice(shares),
            memory_bytes=8 * chance.choice(shares),
            gpus=each.total_gpus * chance.choice(shares),
        ),
        reported_s=100.0,
    )
    uses = [
        Use(cpu_cores=chance.randint(0, 4), memory_bytes=chance.randint(0, 4))
        for _ in range(chance.randint(0, 3))
    ]
    return each, load if chance.random() < 0.75 else None, uses


@pytest.mark.parametrize("policy", [balance.plan, paper.plan])
@given(steps=moments(), asked=st.lists(requests(), min_size=1, max_size=4), young=st.booleans())
def test_what_is_kept_of_loads_changes_no_plan(
    policy: Policy,
    steps: list[Moment],
    asked: list[Request],
    young: bool,  # noqa: FBT001 -- drawn
) -> None:
    """While nodes report and jobs come and go, the snapshot alone decides."""
    nodes, loads = SortedSpaces(), dict[str, NodeLoad]()
    running: dict[str, list[RunningJob]] = {}
    for number, (each, load, uses) in enumerate(steps, 1):
        name = each.name
        nodes[name] = each
        running[name] = [
            RunningJob(
                job=1000 * number + place,
                allocation=(Share(node=name, cpus=1),),
                started_s=95.0 if young else 5.0,
                end_s=None,
                uses={name: use},
            )
            for place, use in enumerate(uses)
        ]
        loads.pop(name, None)
        if load is not None:
            loads[name] = load
        nodes.touch(name)
        seen = structs.replace(
            _snapshot(nodes, asked),
            loads=loads,
            running=_Running([job for jobs in running.values() for job in jobs]),
        )
        remembered = policy(seen)
        anew = policy(structs.replace(seen, nodes=dict(nodes), running=list(seen.running)))
        assert _starts(remembered) == _starts(anew)


@given(steps=moments(), asked=st.lists(requests(), min_size=1, max_size=4))
def test_the_most_even_node_is_the_one_that_a_look_at_all_finds(
    steps: list[Moment], asked: list[Request]
) -> None:
    """Nodes passed over unseen are no better, also after the plan has started something."""
    last = {each.name: (each, load) for each, load, _ in steps}
    nodes = sorted_spaces(*(each for each, _ in last.values()))
    loads = {name: load for name, (_, load) in last.items() if load is not None}
    seen = structs.replace(_snapshot(nodes, asked), loads=loads)
    even = LeastImbalance(seen, weights=WeightsConfig(), window_s=10.0)
    free = Spaces(nodes)
    for job, request in enumerate(asked):
        for chunk in request.chunks:
            rank = even.rank(job)
            assert isinstance(rank, OrderedRank)
            found = list(rank.fitting(chunk, free, exclusive=request.exclusive))
            may = [s for s in free if not shortage(chunk, s, exclusive=request.exclusive)]
            assert found == sorted(may, key=lambda each: rank(chunk, each))
            best = rank.best(chunk, free, exclusive=request.exclusive)
            assert best == (found[0] if found else None)
        allocation = place(request, free, even.rank(job))
        if not isinstance(allocation, NoFit):
            free.take(allocation)
            even.started(job, allocation)


@pytest.mark.parametrize("seed", range(5))
def test_nodes_that_are_alike_come_in_order_however_they_are_used(seed: int) -> None:
    """Low on CPU and high on memory, idle ones, full ones: by all shares, not by the first."""
    chance = random.Random(seed)
    names = [f"n{number:02}" for number in range(40)]
    nodes = sorted_spaces(
        *(space(name, cpus=chance.choice((0, 1, 4)), memory_bytes=4) for name in names)
    )
    rates = NodeRates(cores=8, memory_bytes=8)
    loads = {
        name: NodeLoad(
            name=name,
            rates=rates,
            used=Use(cpu_cores=8 * chance.random(), memory_bytes=8 * chance.random())
            if chance.random() < 0.8
            else Use(),
            reported_s=100.0,
        )
        for name in names
    }
    asked = [Request(chunks=(Chunk(cpus=1, memory_bytes=2),))]
    seen = structs.replace(_snapshot(nodes, asked), loads=loads)
    even = LeastImbalance(seen, weights=WeightsConfig(), window_s=10.0)
    rank = even.rank(0)
    assert isinstance(rank, OrderedRank)
    (chunk,) = asked[0].chunks

    found = list(rank.fitting(chunk, Spaces(nodes), exclusive=False))

    may = [each for each in nodes.values() if each.cpus]
    assert found == sorted(may, key=lambda each: rank(chunk, each))
    assert found != sorted(may, key=lambda each: even.shares(each.name))
    assert rank.best(chunk, Spaces(nodes), exclusive=False) == found[0]


def _snapshot(nodes: dict[str, FreeNode], asked: list[Request]) -> Snapshot:
    job_classes = {JobClass(queue="q", request=each, walltime_s=None): number
              for number, each in enumerate(asked)}  # fmt: skip
    groups = [
        Group(job_class=job_class, order=[(0, number)]) for job_class, number in job_classes.items()
    ]
    return Snapshot(now_s=0, nodes=nodes, groups=groups, running=[])


def _starts(plan: Plan) -> list[tuple[int, Allocation]]:
    return [(start.job, start.allocation) for start in plan.starts]

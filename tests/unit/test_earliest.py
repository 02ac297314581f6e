"""Where a job fits at the earliest is where a search after each end and each window finds it."""

import heapq
import random
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gsched.model.resources import Chunk, Request, Share
from gsched.model.states import Placement
from gsched.model.window import NodeWindow
from gschedd.plan.fit import NoFit, may_help, place
from gschedd.plan.room import Rank, leftover
from gschedd.plan.snapshot import RunningJob, end_order
from gschedd.plan.space import FreeNode, Spaces, take
from gschedd.plan.windows import Windows, barred, without
from gschedd.policies.kit import earliest as module
from gschedd.policies.kit.earliest import EarliestFit, WaitingRequest, earliest
from tests.support.spaces import requests, space

NOW_S = 1000.0
TIMES = (NOW_S, 10_000.0)


def cluster(chance: random.Random) -> dict[str, FreeNode]:
    nodes = [
        space(
            f"n{number}",
            cpus=chance.randint(1, 4),
            memory_bytes=chance.randint(0, 4),
            gpu_types=tuple(chance.choice(("", "a", "b")) for _ in range(chance.choice((0, 2, 3)))),
            features=chance.choice(((), ("red",), ("blue", "red"))),
            generic={"licence": 2} if chance.random() < 0.5 else {},
            open=chance.random() < 0.9,
        )
        for number in range(chance.randint(1, 8))
    ]
    return {each.name: each for each in nodes}


def share_of(space: FreeNode, chance: random.Random) -> Share:
    """Return some of what is free on a node."""
    return Share(
        node=space.name,
        cpus=chance.randint(min(1, space.cpus), space.cpus),
        memory_bytes=chance.randint(0, space.memory_bytes),
        gpu_indices=tuple(each.index for each in space.gpus if chance.random() < 0.6),
        generic=space.generic if chance.random() < 0.5 else (),
        exclusive=not space.owners and chance.random() < 0.1,
    )


def run_some(nodes: dict[str, FreeNode], chance: random.Random) -> list[RunningJob]:
    """Let jobs run on nodes, which then have less room; in the order of their planned ends."""
    running: list[RunningJob] = []
    for job in range(chance.randint(1, 14)):
        names = chance.sample(sorted(nodes), min(len(nodes), chance.choice((1, 1, 1, 2, 3))))
        allocation = tuple(
            share_of(nodes[name], chance) for name in names if not nodes[name].exclusive
        )
        for share in allocation:
            nodes[share.node] = take(nodes[share.node], share)
        end_s = None if chance.random() < 0.1 else NOW_S + chance.randint(-2, 12)
        if allocation:
            running.append(RunningJob(job=job, allocation=allocation, started_s=job, end_s=end_s))
    return sorted(running, key=end_order)


def some_windows(nodes: dict[str, FreeNode], chance: random.Random) -> Windows:
    found: dict[str, tuple[NodeWindow, ...]] = {}
    for name, node in nodes.items():
        if chance.random() < 0.4:
            starts = [NOW_S + chance.randint(-3, 14) for _ in range(chance.choice((1, 1, 2)))]
            gpus = tuple(gpu.index for gpu in node.all_gpus[:1])
            part = Share(node=name, cpus=1, gpu_indices=gpus) if gpus else None
            found[name] = tuple(
                NodeWindow(
                    number=1,
                    from_s=at_s,
                    to_s=at_s + chance.randint(1, 6),
                    share=chance.choice((None, part)),
                )
                for at_s in starts
            )
    return found


def after_each_end(
    waiting: WaitingRequest, free: Spaces, running: list[RunningJob], windows: Windows
) -> EarliestFit | None:
    """Search among all nodes whenever something ends, or a window does."""
    now_s, never_s = TIMES
    later = free.copy()
    ends = (
        (each.end_s, each.allocation, [share.node for share in each.allocation]) for each in running
    )
    over = sorted((each.to_s, node) for node, some in windows.items() for each in some)
    opened = ((to_s, (), [node]) for to_s, node in over)
    events = heapq.merge(ends, opened, key=lambda each: (each[0] is None, each[0] or 0.0))
    for end_s, allocation, names in events:
        later.give(allocation)
        if not any(may_help(waiting.request, later[name]) for name in names):
            continue
        at_s = never_s if end_s is None else max(end_s, now_s)
        where = without(later, barred(windows, at_s, waiting.walltime_s))
        found = place(waiting.request, where, waiting.rank)
        if not isinstance(found, NoFit):
            return EarliestFit(end_s, found, later)
    return None


@given(
    seed=st.integers(0, 2**32),
    request=requests(),
    walltime_s=st.sampled_from([None, 1.0, 3.0, 8.0]),
    has_windows=st.booleans(),
)
def test_it_fits_where_a_search_after_each_end_finds_it(
    seed: int, request: Request, walltime_s: float | None, *, has_windows: bool
) -> None:
    """Any request, on nodes of any kind, with windows of nodes and of parts of them."""
    chance = random.Random(seed)
    nodes = cluster(chance)
    running = run_some(nodes, chance)
    windows = some_windows(nodes, chance) if has_windows else {}
    free = Spaces(nodes)
    waiting = WaitingRequest(request=request, walltime_s=walltime_s, rank=leftover)
    if not isinstance(
        place(request, without(free, barred(windows, NOW_S, walltime_s)), leftover), NoFit
    ):
        return

    found = earliest(waiting, free, running, windows, TIMES)

    wanted = after_each_end(waiting, free, running, windows)
    assert (found is None) == (wanted is None)
    if found is not None and wanted is not None:
        assert (found.end_s, found.allocation) == (wanted.end_s, wanted.allocation)
        for share in found.allocation:
            assert found.later[share.node] == wanted.later[share.node]


def test_many_places_are_searched_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many ends it takes: a search after each would take nodes times jobs."""
    nodes = {f"n{number:03}": space(f"n{number:03}", cpus=2) for number in range(200)}
    running = []
    for job, name in enumerate([*nodes, *nodes]):
        share = Share(node=name, cpus=1)
        nodes[name] = take(nodes[name], share)
        running.append(RunningJob(job=job, allocation=(share,), started_s=0.0, end_s=NOW_S + job))
    searches: Counter[Placement] = Counter()

    def counted(request: Request, spaces: Spaces, rank: Rank) -> object:
        searches[request.placement] += 1
        return place(request, spaces, rank)

    monkeypatch.setattr(module, "place", counted)
    for placement in (Placement.SCATTER, Placement.FREE):
        request = Request(chunks=(Chunk(count=100, cpus=2),), placement=placement)
        waiting = WaitingRequest(request=request, walltime_s=None, rank=leftover)

        found = earliest(waiting, Spaces(nodes), running, {}, TIMES)

        assert found is not None
        assert found.end_s == NOW_S + 299
        assert searches[placement] == 1


def test_ends_are_not_looked_at_where_no_node_could_help() -> None:
    closed = {f"n{number}": space(f"n{number}", cpus=4, open=False) for number in range(3)}
    waiting = WaitingRequest(
        request=Request(chunks=(Chunk(count=1, cpus=4),)), walltime_s=None, rank=leftover
    )

    class Unread(list[RunningJob]):
        def __iter__(self) -> Iterator[RunningJob]:
            raise AssertionError("ends are looked at")

    assert earliest(waiting, Spaces(closed), Unread(), {}, TIMES) is None
    opened = Spaces({**closed, "n9": space("n9", cpus=4)})
    with pytest.raises(AssertionError):
        earliest(waiting, opened, Unread(), {}, TIMES)

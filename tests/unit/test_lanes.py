"""Lanes of users in a class: what is merged of them, and that plans are those of single classes."""

import random
from collections.abc import Mapping, Sequence

import pytest

from gsched.model.resources import Chunk, Request, Share
from gschedd.plan.lanes import Front, LaneOrder, jobs_before
from gschedd.plan.load import Basis, Kind, NodeLoad, NodeRates, Prediction, Predictor, Use
from gschedd.plan.snapshot import Group, JobClass, OrderKey, Plan, RunningJob, Snapshot
from gschedd.plan.space import FreeNode, take
from gschedd.policies.queue import balance, fifo
from tests.support.spaces import space

NOW_S = 1000.0


class KnownTimes(Predictor):
    """Predicts of each user how long the jobs run, and nothing of some."""

    def __init__(self, times_s: Mapping[str, float]) -> None:
        self.times_s = times_s

    def predict(self, kind: Kind, node: NodeLoad, now_s: float) -> Prediction:
        """Return what is known of the user."""
        known = self.times_s.get(kind.key)
        basis = Basis.ALL if known is None else Basis.KIND
        return Prediction(use=Use(), high=Use(), basis=basis, records=9, wall_high_s=known)


def lanes_of(order: Sequence[OrderKey], rng: random.Random, count: int) -> list[list[OrderKey]]:
    """Return jobs in lanes of random lengths, each in order."""
    lanes: list[list[OrderKey]] = [[] for _ in range(count)]
    for key in sorted(order):
        rng.choice(lanes).append(key)
    return [lane for lane in lanes if lane]


def merged(lanes: Sequence[list[OrderKey]]) -> LaneOrder:
    """Return the order of lanes whose places are their keys."""
    fronts: list[Front] = [(lane[0], 0, lane) for lane in lanes]
    fronts.sort()
    return LaneOrder(fronts, lambda place: place, sum(map(len, lanes)))


@pytest.mark.parametrize("seed", range(20))
def test_lanes_are_merged_by_their_first_jobs(seed: int) -> None:
    """Whatever is looked at first."""
    rng = random.Random(seed)
    keys = [(rng.randint(0, 30), job) for job in range(rng.randint(1, 40))]
    order, wanted = merged(lanes_of(keys, rng, 7)), sorted(keys)
    at = rng.randrange(len(keys))

    assert order[at] == wanted[at]
    assert order[:at] == wanted[:at]
    assert (order[0], order[-1], len(order)) == (wanted[0], wanted[-1], len(wanted))
    assert list(order) == wanted
    assert jobs_before(order, wanted[at]) == at


@pytest.mark.parametrize("policy", [fifo.plan, balance.plan])
@pytest.mark.parametrize("seed", range(40))
def test_a_plan_of_lanes_is_that_of_a_class_for_each_lane(seed: int, policy: object) -> None:
    """The same jobs start in the same places, in the same order."""
    rng = random.Random(seed)
    lanes, seen = crowd(rng)
    apart = [Group(job_class=each, order=lane) for each, of in lanes.items() for lane in of]
    together = [Group(job_class=each, order=merged(of)) for each, of in lanes.items()]

    one, other = (made(policy, seen, groups) for groups in (apart, together))

    assert [(s.job, s.allocation, s.why) for s in other.starts] == [
        (s.job, s.allocation, s.why) for s in one.starts
    ]
    assert len(other.waits) == len({wait.job_class for wait in one.waits})


def made(policy: object, seen: Snapshot, groups: Sequence[Group]) -> Plan:
    """Return the plan for other groups."""
    assert callable(policy)
    plan = policy(
        Snapshot(
            now_s=seen.now_s,
            nodes=seen.nodes,
            groups=groups,
            running=seen.running,
            loads=seen.loads,
            kinds=seen.kinds,
            predictor=seen.predictor,
            starts_max=seen.starts_max,
        )
    )
    assert isinstance(plan, Plan)
    return plan


def crowd(rng: random.Random) -> tuple[dict[JobClass, list[list[OrderKey]]], Snapshot]:
    """Return waiting jobs of many users by class and lane, and a full cluster."""
    spaces: dict[str, FreeNode] = {f"n{at}": space(f"n{at}", cpus=8) for at in range(4)}
    running = []
    for at, name in enumerate(spaces):
        share = Share(node=name, cpus=rng.randint(2, 8))
        spaces[name] = take(spaces[name], share)
        end_s = NOW_S + rng.uniform(10, 400)
        running.append(RunningJob(job=9000 + at, allocation=(share,), started_s=0.0, end_s=end_s))
    users = [f"u{at}" for at in range(8)]
    times_s = {user: rng.uniform(5, 600) for user in users if rng.random() < 0.8}
    kinds: dict[int, Kind] = {}
    lanes: dict[JobClass, list[list[OrderKey]]] = {}
    job = 0
    for cpus in (1, 2, 6, 8):
        asked = Request(chunks=(Chunk(count=1, cpus=cpus),))
        job_class = JobClass(queue="batch", request=asked, walltime_s=rng.choice([60.0, 500.0]))
        for user in users:
            lane = []
            for _ in range(rng.randint(0, 3)):
                job += 1
                kinds[job] = Kind(key=user)
                lane.append((rng.randint(0, 20), job))
            if lane:
                lanes.setdefault(job_class, []).append(sorted(lane))
    loads = {
        name: NodeLoad(name=name, rates=NodeRates(cores=8, memory_bytes=1 << 34)) for name in spaces
    }
    predictor = KnownTimes(times_s) if rng.random() < 0.8 else None
    seen = Snapshot(
        now_s=NOW_S,
        nodes=spaces,
        groups=(),
        running=running,
        loads=loads,
        kinds=kinds,
        predictor=predictor,
        starts_max=rng.choice([None, 3]),
    )
    return lanes, seen

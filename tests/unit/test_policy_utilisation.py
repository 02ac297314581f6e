"""Where ``balance`` sends jobs: to the node that leaves all of them used most evenly."""

import random
from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gsched.model.resources import Chunk, Request, Share
from gschedd.plan.load import Basis, Kind, NodeLoad, NodeRates, Prediction, Predictor, Use
from gschedd.plan.snapshot import Group, JobClass, Plan, RunningJob, Snapshot
from gschedd.plan.space import FreeNode
from gschedd.policies.kit.utilisation_index import HARDLY_USED, Imbalance, Shares, Sort, Unevenness
from gschedd.policies.queue.balance import plan
from tests.support.runs import GB, kind
from tests.support.spaces import space

NOW_S = 10_000.0
REPORTED_S = NOW_S - 100


class PredictionTable(Predictor):
    """A predictor that says of each kind what it was told to."""

    def __init__(self, said: Mapping[str, Use]) -> None:
        self.said = said

    def predict(self, kind: Kind, node: NodeLoad, now_s: float) -> Prediction:
        use = self.said[kind.key]
        return Prediction(use=use, high=use, basis=Basis.KIND)


def node(name: str, *, cores: float, cpu: float, memory: float = 0.0) -> NodeLoad:
    """Return a node of 100 GB as its report has it; ``cpu`` and ``memory`` are shares in use."""
    return NodeLoad(
        name=name,
        rates=NodeRates(cores=cores, memory_bytes=100 * GB),
        used=Use(cpu_cores=cpu * cores, memory_bytes=memory * 100 * GB),
        reported_s=REPORTED_S,
    )


def seen(
    loads: Sequence[NodeLoad],
    waiting: Sequence[str],
    said: Mapping[str, Use],
    *,
    running: Mapping[str, Sequence[str]] | None = None,
    spaces: Sequence[FreeNode] | None = None,
) -> Snapshot:
    """Return a snapshot.

    Args:
        loads: one for each node; all have 100 free CPUs to give away.
        waiting: kinds of the waiting jobs, which ask for 1 CPU each.
        said: what each kind is expected to use.
        running: kinds of the jobs that run on each node, and did when it reported.
    """
    kinds = {number: kind(key) for number, key in enumerate(waiting, 1)}
    jobs: list[RunningJob] = []
    for name, keys in (running or {}).items():
        for key in keys:
            number = 1000 + len(jobs)
            kinds[number] = kind(key)
            share = Share(node=name, cpus=1)
            jobs.append(RunningJob(job=number, allocation=(share,), started_s=0.0, end_s=None))
    job_class = JobClass(queue="batch", request=Request(chunks=(Chunk(cpus=1),)), walltime_s=None)
    order = [(0, number) for number in range(1, len(waiting) + 1)]
    return Snapshot(
        now_s=NOW_S,
        nodes={each.name: each for each in spaces or [space(at.name, cpus=100) for at in loads]},
        groups=[Group(job_class=job_class, order=order)] if order else [],
        running=jobs,
        loads={load.name: load for load in loads},
        kinds=kinds,
        predictor=PredictionTable(said),
    )


def where(made: Plan) -> list[str]:
    return [start.allocation[0].node for start in made.starts]


def test_large_and_small_nodes_are_filled_in_proportion() -> None:
    """A node with three times the cores gets three times the jobs, from the first on."""
    loads = [node("n1", cores=4, cpu=0.0), node("n2", cores=12, cpu=0.0)]

    made = plan(seen(loads, ["k"] * 8, {"k": Use(cpu_cores=1)}))

    assert where(made).count("n1") == 2
    assert where(made).count("n2") == 6
    assert "n1" in where(made)[:4]


def test_an_idle_cluster_fills_its_largest_node_first() -> None:
    """Whichever node the only job is on, one is in use and the others are not."""
    loads = [node(name, cores=cores, cpu=0.0) for name, cores in (("n1", 4), ("n2", 8), ("n3", 6))]

    assert where(plan(seen(loads, ["k"], {"k": Use(cpu_cores=1)}))) == ["n2"]


@pytest.mark.parametrize(
    ("use", "best"),
    [(Use(cpu_cores=2, memory_bytes=GB), "n2"), (Use(cpu_cores=0.1, memory_bytes=20 * GB), "n1")],
)
def test_a_job_goes_where_what_it_needs_is_idle(use: Use, best: str) -> None:
    """One node's cores are busy, the other's memory: what the job uses more of decides."""
    loads = [
        node("n1", cores=8, cpu=0.6, memory=0.2),
        node("n2", cores=8, cpu=0.2, memory=0.6),
    ]

    assert where(plan(seen(loads, ["k"], {"k": use}))) == [best]


def test_memory_that_hardly_anyone_uses_decides_nothing() -> None:
    """1 % of one node's memory in use, none of the other's: cores decide."""
    loads = [
        node("n1", cores=8, cpu=0.4, memory=0.01),
        node("n2", cores=8, cpu=0.5, memory=0.0),
    ]

    made = plan(seen(loads, ["k"], {"k": Use(cpu_cores=1, memory_bytes=GB // 2)}))

    assert where(made) == ["n1"]


def test_of_two_full_nodes_the_one_whose_jobs_want_less_is_taken() -> None:
    """Both report 100 %; the jobs on the first want twice as many cores as it has."""
    loads = [node("n1", cores=4, cpu=1.0), node("n2", cores=4, cpu=1.0)]
    said = {"wide": Use(cpu_cores=4), "k": Use(cpu_cores=1)}
    running = {"n1": ["wide", "wide"], "n2": ["wide"]}

    assert where(plan(seen(loads, ["k"], said, running=running))) == ["n2"]


def test_a_node_that_takes_nothing_does_not_count() -> None:
    """The drained node's idleness would make the busier of the others look like the even choice."""
    loads = [node("n1", cores=8, cpu=0.5), node("n2", cores=8, cpu=0.3), node("n3", cores=8, cpu=0)]
    spaces = [space("n1", cpus=100), space("n2", cpus=100), space("n3", cpus=100, open=False)]

    assert where(plan(seen(loads, ["k"], {"k": Use(cpu_cores=1)}, spaces=spaces))) == ["n2"]


def test_gpu_nodes_are_spared_until_the_others_would_be_over_used() -> None:
    """Slots alone do not tell: the node has 100 CPUs to give, and jobs want four cores each."""
    gpu_rates = NodeRates(cores=8, memory_bytes=100 * GB, gpus=1, gpu_memory_bytes=16 * GB)
    loads = [
        node("n1", cores=8, cpu=0.0),
        NodeLoad(name="n2", rates=gpu_rates, reported_s=REPORTED_S),
    ]
    spaces = [space("n1", cpus=100), space("n2", cpus=100, gpu_types=("a",))]

    made = plan(seen(loads, ["k"] * 3, {"k": Use(cpu_cores=4)}, spaces=spaces))

    assert where(made) == ["n1", "n1", "n2"]


@given(
    shares=st.lists(st.floats(0.0, 3.0), min_size=1, max_size=6),
    more=st.floats(0.0, 2.0),
    data=st.data(),
)
def test_unevenness_is_standard_deviation_over_mean(
    shares: list[float], more: float, data: st.DataObject
) -> None:
    """What is kept as sums equals the definition, also after changes."""
    spread = Imbalance()
    for _ in shares:
        spread.change(None, 0.5)
    spread.change(None, 7.0)
    for share in shares:
        spread.change(0.5, share)
    spread.change(7.0, None)
    chosen = data.draw(st.integers(0, len(shares) - 1))

    after = [share + more * (number == chosen) for number, share in enumerate(shares)]
    expected = pstdev(after) / max(fmean(after), HARDLY_USED)
    assert spread.after(shares[chosen], more) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("seed", range(40))
def test_the_best_node_is_the_first_in_order(seed: int) -> None:
    """Of many nodes, some of them full; some score alike, and what is left on them decides."""
    chance = random.Random(seed)
    sort, spreads = Sort(), (Imbalance(), Imbalance(), Imbalance(), Imbalance())
    weights = chance.choice(((0.25, 0.25), (0.1, 0.9), (0.0, 1.0), (1.0, 0.0)))
    names = [f"n{number:03}" for number in range(200)]
    spaces, shares, left = {}, dict[str, Shares](), {}
    for name in names:
        spaces[name], left[name] = space(name), chance.random()
        cpu = chance.choice((0.0, 0.5, chance.random()))
        shares[name] = (cpu, chance.choice((1 - cpu, chance.random(), 0.5)), 0.0, 0.0)
        sort.add(name, shares[name])
        for place, spread in enumerate(spreads):
            spread.change(None, shares[name][place])
    for name in chance.sample(names, 50):
        sort.remove(name, shares[name])
        del spaces[name]
    full = set(chance.sample(names, chance.choice((0, 50, 199, 200))))
    more = (chance.random() / 4, chance.random() / 4)
    uneven = Unevenness((p, weights[p], spreads[p].term(more[p])) for p in (0, 1) if weights[p])

    def may(name: str) -> FreeNode | None:
        return None if name in full else spaces[name]

    found = list(sort.by_key(uneven, lambda name: (uneven(shares[name]), -left[name], name), may))

    assert sort.best(uneven, left.__getitem__, may) == (found[0] if found else None)

"""The balancing policy: where jobs go, what predictions do, and what a young job counts for."""

from collections.abc import Mapping, Sequence

import pytest
from msgspec import structs

from baselines import paper
from baselines.registry import POLICIES
from gsched.config.policies import BalanceConfig, WeightsConfig
from gsched.model.resources import Allocation, Chunk, Request, Share
from gschedd.plan.load import Basis, Kind, NodeLoad, NodeRates, Prediction, Predictor, Use
from gschedd.plan.snapshot import Group, JobClass, Plan, Policy, RunningJob, Snapshot
from gschedd.plan.space import FreeNode, take
from gschedd.plan.times import ENOUGH_RUNS
from gschedd.policies.kit.capacity import Largest, guaranteed, largest, value
from gschedd.policies.queue.balance import balance, plan
from tests.support.runs import GB, kind, node, rates
from tests.support.spaces import space

NOW_S = 10_000.0


class PredictionTable(Predictor):
    """A predictor that says what it was told to; the kind's key finds it."""

    def __init__(self, records: int = 99, **said: Use | tuple[Use, float]) -> None:
        self.said = said
        self.records = records
        self.asked: list[tuple[str, str]] = []

    def predict(self, kind: Kind, node: NodeLoad, now_s: float) -> Prediction:
        self.asked.append((kind.key, node.name))
        said = self.said[kind.key]
        use, wall_s = said if isinstance(said, tuple) else (said, None)
        return Prediction(
            use=use,
            high=use,
            basis=Basis.KIND,
            wall_s=wall_s,
            wall_high_s=wall_s,
            records=self.records,
        )


def job_class(
    cpus: int = 1, walltime_s: float | None = None, *, gpus: int = 0, count: int = 1
) -> JobClass:
    request = Request(chunks=(Chunk(count=count, cpus=cpus, gpus=gpus),))
    return JobClass(queue="batch", request=request, walltime_s=walltime_s)


def seen(
    nodes: Sequence[FreeNode],
    waiting: Sequence[tuple[JobClass, list[int]]],
    running: Sequence[RunningJob] = (),
    loads: Sequence[NodeLoad] = (),
    kinds: Mapping[int, str] | None = None,
    predictor: PredictionTable | None = None,
) -> Snapshot:
    spaces = {each.name: each for each in nodes}
    for job in running:
        for share in job.allocation:
            spaces[share.node] = take(spaces[share.node], share)
    return Snapshot(
        now_s=NOW_S,
        nodes=spaces,
        groups=[Group(job_class=each, order=[(0, job) for job in ids]) for each, ids in waiting],
        running=running,
        loads={load.name: load for load in loads},
        kinds={job: kind(key) for job, key in (kinds or {}).items()},
        predictor=predictor,
    )


def on(name: str, cpus: int = 1, *gpus: int) -> Allocation:
    return (Share(node=name, cpus=cpus, gpu_indices=gpus),)


def where(made: Plan) -> list[str]:
    return [start.allocation[0].node for start in made.starts]


def test_value_is_the_papers_sum_of_rate_and_idleness() -> None:
    """All four quarters, by hand."""
    one = NodeRates(
        cores=8, core_rate=2.0, memory_bytes=64, gpus=2, gpu_rate=3.0, gpu_memory_bytes=32
    )
    most = Largest(cpu=32, memory=128, gpu=12, gpu_memory=32)
    used = Use(cpu_cores=2, memory_bytes=16, gpus=0.5, gpu_memory_bytes=8)

    found = value(one, used, most, WeightsConfig(), with_gpus=True)

    q1, q2 = 16 / 32 * (1 - 2 / 8), 64 / 128 * (1 - 16 / 64)
    q3, q4 = 6 / 12 * (1 - 0.5 / 2), 32 / 32 * (1 - 8 / 32)
    assert found == pytest.approx(0.25 * (q1 + q2 + q3 + q4))


def test_gpus_count_for_nothing_to_a_job_without_them() -> None:
    """Their weights are spread: a node with GPUs and one without are worth the same."""
    with_gpus, without = rates(gpus=4), rates()
    most = largest({"a": with_gpus, "b": without})

    values = [
        value(each, Use(cpu_cores=4), most, WeightsConfig(cpu=0.4, memory=0.1), with_gpus=False)
        for each in (with_gpus, without)
    ]

    assert values == [pytest.approx((0.4 * 0.5 + 0.1) / 0.5)] * 2


def test_a_node_without_gpus_has_none_left() -> None:
    """Q3 = Q4 = 0, also where no node has a GPU."""
    assert value(rates(), Use(), largest({"a": rates()}), WeightsConfig(), with_gpus=True) == 0.5


def test_an_overcrowded_node_counts_below_zero() -> None:
    """Else two full nodes would look alike."""
    most = largest({"a": rates()})
    full = [
        value(rates(), Use(cpu_cores=cores), most, WeightsConfig(memory=0), with_gpus=False)
        for cores in (8, 12)
    ]

    assert full == [0.0, -0.5]


def test_the_paper_sends_jobs_where_most_is_left_and_each_start_counts() -> None:
    """Four jobs on a large and a small node: three to the large one, not four."""
    nodes = [space("n1", cpus=4), space("n2", cpus=12)]

    made = paper.plan(seen(nodes, [(job_class(3), [1, 2, 3, 4])]))

    assert where(made) == ["n2", "n2", "n2", "n1"]


def test_first_fit_would_fill_the_first_node() -> None:
    """Equal nodes are raised together."""
    nodes = [space(name, cpus=4) for name in ("n1", "n2", "n3", "n4")]

    made = plan(seen(nodes, [(job_class(1), [1, 2, 3, 4, 5])]))

    assert where(made) == ["n1", "n2", "n3", "n4", "n1"]


def test_measured_load_counts_and_not_what_was_asked_for() -> None:
    """n1's job requested much and does little; n2's asked for little and does much."""
    nodes = [space("n1", cpus=8), space("n2", cpus=8)]
    running = [
        RunningJob(job=1, allocation=on("n1", 6), started_s=0, end_s=None),
        RunningJob(job=2, allocation=on("n2", 1), started_s=0, end_s=None),
    ]
    loads = [
        node("n1", used=Use(cpu_cores=1), running=1, reported_s=NOW_S),
        node("n2", used=Use(cpu_cores=7), running=1, reported_s=NOW_S),
    ]

    assert where(plan(seen(nodes, [(job_class(), [9])], running, loads))) == ["n1"]
    assert where(plan(seen(nodes, [(job_class(), [9])], running))) == ["n2"]


def test_a_predicted_cost_keeps_a_burst_from_one_node() -> None:
    """Ten jobs within one report: asked for one CPU each, known to use four."""
    nodes = [space("n1", cpus=16), space("n2", cpus=16)]
    loads = [node("n1", rates(cores=16)), node("n2", rates(cores=16), used=Use(cpu_cores=9))]
    kinds = dict.fromkeys(range(1, 11), "heavy")
    waiting = [(job_class(), list(range(1, 11)))]

    told = plan(seen(nodes, waiting, (), loads, kinds, PredictionTable(heavy=Use(cpu_cores=4))))
    untold = plan(seen(nodes, waiting, (), loads))

    assert where(told) == ["n1", "n1", "n1", "n2", "n1", "n2", "n1", "n2", "n1", "n2"]
    assert where(untold).count("n1") == 10, "one by one until it is as busy as the other"


def test_a_young_job_keeps_its_predicted_part_and_an_old_one_is_in_the_report() -> None:
    """Started 2 s before the report, after it, and long before it."""
    nodes = [space("n1", cpus=8), space("n2", cpus=8)]
    loads = [
        node("n1", reported_s=NOW_S - 5),
        node("n2", used=Use(cpu_cores=1), reported_s=NOW_S - 5),
    ]
    told = PredictionTable(heavy=Use(cpu_cores=3))

    def chosen(started_s: float) -> list[str]:
        running = [RunningJob(job=1, allocation=on("n1"), started_s=started_s, end_s=None)]
        kinds = {1: "heavy", 9: "heavy"}
        return where(plan(seen(nodes, [(job_class(), [9])], running, loads, kinds, told)))

    assert chosen(NOW_S - 7) == ["n2"]
    assert chosen(NOW_S - 1) == ["n2"]
    assert chosen(NOW_S - 600) == ["n1"]


def test_a_young_job_of_no_known_kind_counts_as_what_it_asked_for() -> None:
    """Better too much than nothing."""
    nodes = [space("n1", cpus=8), space("n2", cpus=8)]
    loads = [node("n1", reported_s=NOW_S), node("n2", used=Use(cpu_cores=1), reported_s=NOW_S)]
    running = [RunningJob(job=1, allocation=on("n1", 4), started_s=NOW_S, end_s=None)]

    assert where(plan(seen(nodes, [(job_class(), [9])], running, loads))) == ["n2"]


def test_jobs_without_gpus_keep_off_gpu_nodes_while_others_can_take_them() -> None:
    """However idle the GPU node is; and when no other can, it takes them."""
    nodes = [space("n1", cpus=2), space("n2", cpus=16, gpu_types=("a", "a"))]

    made = plan(seen(nodes, [(job_class(), [1, 2, 3])]))

    assert where(made) == ["n1", "n1", "n2"]


def test_a_gpu_job_goes_to_the_idler_gpus() -> None:
    """By what is reported of the GPUs, although n1's cores are idler."""
    nodes = [space(name, cpus=8, gpu_types=("a", "a")) for name in ("n1", "n2")]
    nodes.append(space("n3", cpus=99))
    of = rates(gpus=2)
    loads = [
        node("n1", of, used=Use(gpus=1.8, gpu_memory_bytes=30 * GB)),
        node("n2", of, used=Use(cpu_cores=3)),
    ]

    assert where(plan(seen(nodes, [(job_class(gpus=1), [1])], (), loads))) == ["n2"]


def test_weights_decide_what_counts() -> None:
    """n1 has idle cores, n2 has idle memory."""
    nodes = [space(name, cpus=8, memory_bytes=64 * GB) for name in ("n1", "n2")]
    loads = [node("n1", used=Use(memory_bytes=60 * GB)), node("n2", used=Use(cpu_cores=7))]
    snapshot = seen(nodes, [(job_class(), [1])], (), loads)

    by_cpu, by_memory = (
        balance(BalanceConfig(weights=weights))
        for weights in (WeightsConfig(cpu=1, memory=0), WeightsConfig(cpu=0, memory=1))
    )

    assert where(by_cpu(snapshot)) == ["n1"]
    assert where(by_memory(snapshot)) == ["n2"]


def crowded(wall_s: float, records: int = 99) -> Snapshot:
    """Return a node that job 2 needs all of, job 1 uses for 5000 s more, and job 3 could use."""
    running = [RunningJob(job=1, allocation=on("n1", 3), started_s=0, end_s=NOW_S + 5000)]
    return seen(
        [space("n1", cpus=4)],
        [(job_class(4, 50_000), [2]), (job_class(1, 9000), [3])],
        running,
        [node("n1")],
        {2: "large", 3: "small"},
        PredictionTable(records, large=Use(), small=(Use(cpu_cores=1), wall_s)),
    )


def started(made: Plan) -> list[int]:
    return [start.job for start in made.starts]


@pytest.mark.parametrize("policy", [p for n, p in POLICIES.items() if n != "paper"])
def test_a_predicted_run_time_lets_a_job_pass_that_padded_its_walltime(policy: Policy) -> None:
    """It asked for 9000 s and is known to take 300; under every policy that reserves."""
    snapshot = crowded(300)

    assert started(policy(snapshot)) == [3]
    assert started(policy(crowded(5001))) == []
    assert started(policy(structs.replace(snapshot, predicted_times=False))) == []


def test_few_runs_predict_no_time() -> None:
    """One short run does not let a job pass."""
    assert started(plan(crowded(300, ENOUGH_RUNS))) == [3]
    assert started(plan(crowded(300, ENOUGH_RUNS - 1))) == []


def test_a_job_that_must_not_pass_is_told_what_it_is_expected_to_take() -> None:
    """Its walltime is not what holds it up; where that is what counts, it is said instead."""
    told = plan(crowded(5001)).waits[1].reason
    untold = plan(structs.replace(crowded(300), predicted_times=False)).waits[1].reason

    assert str(told).endswith("its expected run time is 01:23:21")
    assert str(untold).endswith("a shorter walltime may let it backfill")


def test_without_reservation_whatever_fits_passes() -> None:
    """The paper's improved first come, first served."""
    snapshot = crowded(90_000)

    for policy in (balance(BalanceConfig(reserve=False)), paper.plan):
        made = policy(snapshot)
        assert started(made) == [3]
        assert [wait.reserved for wait in made.waits] == [False]
    assert started(plan(snapshot)) == []


def test_the_papers_algorithm_sends_any_job_where_most_is_left() -> None:
    """Also to a node with GPUs, which ours keeps free for those that need them."""
    nodes = [space("n1", cpus=2), space("n2", cpus=16, gpu_types=("a", "a"))]
    snapshot = seen(nodes, [(job_class(), [1, 2, 3])])

    assert where(paper.plan(snapshot)) == ["n2", "n2", "n2"]
    assert where(plan(snapshot)) == ["n1", "n1", "n2"]


def test_each_node_of_a_job_is_charged() -> None:
    """A job on two nodes costs something on both: the third takes the next one."""
    nodes = [space(name, cpus=8) for name in ("n1", "n2", "n3")]
    waiting = [(job_class(2, count=2), [1]), (job_class(1), [2])]

    made = plan(seen(nodes, waiting))

    assert [[share.node for share in start.allocation] for start in made.starts] == [
        ["n1", "n2"],
        ["n3"],
    ]


def test_a_job_on_a_node_that_is_gone_is_passed_over() -> None:
    """Its report may outlive the node."""
    running = [RunningJob(job=1, allocation=on("gone"), started_s=NOW_S, end_s=None)]
    snapshot = Snapshot(
        now_s=NOW_S,
        nodes={"n1": space("n1")},
        groups=[Group(job_class=job_class(), order=[(0, 9)])],
        running=running,
        loads={"gone": node("gone", reported_s=NOW_S)},
    )

    assert where(plan(snapshot)) == ["n1"]


def test_without_a_report_a_node_is_as_busy_as_what_was_guaranteed() -> None:
    """CPUs, memory and GPUs, from its free space."""
    half = take(space("n1", cpus=8, memory_bytes=64, gpu_types=("a", "a")), on("n1", 6, 1)[0])

    load = guaranteed(half)

    assert (load.used.cpu_cores, load.used.gpus, load.running) == (6, 1, 1)
    assert (load.rates.cores, load.rates.memory_bytes, load.rates.gpus) == (8, 64, 2)

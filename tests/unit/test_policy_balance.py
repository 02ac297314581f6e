"""The balancing policy: where jobs go, what predictions do, and what a young job counts for."""

from collections.abc import Mapping, Sequence

import pytest

from gsched.model.resources import Allocation, Chunk, Request, Share
from gschedd.plan.load import Basis, Kind, NodeLoad, NodeRates, Prediction, Use
from gschedd.plan.snapshot import Group, Plan, Policy, RunningJob, Shape, Snapshot
from gschedd.plan.space import NodeSpace, take
from gschedd.policies.balance import (
    ENOUGH_RUNS,
    Largest,
    Settings,
    Weights,
    balance,
    largest,
    plan,
    promised,
    value,
)
from tests.support.runs import GB, kind, node, rates
from tests.support.spaces import space

NOW_S = 10_000.0


class Foretold:
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


def shape(
    cpus: int = 1, walltime_s: float | None = None, *, gpus: int = 0, count: int = 1
) -> Shape:
    request = Request(chunks=(Chunk(count=count, cpus=cpus, gpus=gpus),))
    return Shape(queue="batch", request=request, walltime_s=walltime_s)


def seen(
    nodes: Sequence[NodeSpace],
    waiting: Sequence[tuple[Shape, list[int]]],
    running: Sequence[RunningJob] = (),
    loads: Sequence[NodeLoad] = (),
    kinds: Mapping[int, str] | None = None,
    predictor: Foretold | None = None,
) -> Snapshot:
    spaces = {each.name: each for each in nodes}
    for job in running:
        for share in job.allocation:
            spaces[share.node] = take(spaces[share.node], share)
    return Snapshot(
        now_s=NOW_S,
        nodes=spaces,
        groups=[Group(shape=each, order=[(0, job) for job in ids]) for each, ids in waiting],
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

    found = value(one, used, most, Weights(), with_gpus=True)

    q1, q2 = 16 / 32 * (1 - 2 / 8), 64 / 128 * (1 - 16 / 64)
    q3, q4 = 6 / 12 * (1 - 0.5 / 2), 32 / 32 * (1 - 8 / 32)
    assert found == pytest.approx(0.25 * (q1 + q2 + q3 + q4))


def test_gpus_count_for_nothing_to_a_job_without_them() -> None:
    """Their weights are spread: a node with GPUs and one without are worth the same."""
    with_gpus, without = rates(gpus=4), rates()
    most = largest({"a": with_gpus, "b": without})

    values = [
        value(each, Use(cpu_cores=4), most, Weights(cpu=0.4, memory=0.1), with_gpus=False)
        for each in (with_gpus, without)
    ]

    assert values == [pytest.approx((0.4 * 0.5 + 0.1) / 0.5)] * 2


def test_a_node_without_gpus_has_none_left() -> None:
    """Q3 = Q4 = 0, also where no node has a GPU."""
    assert value(rates(), Use(), largest({"a": rates()}), Weights(), with_gpus=True) == 0.5


def test_an_overcrowded_node_counts_below_zero() -> None:
    """Else two full nodes would look alike."""
    most = largest({"a": rates()})
    full = [
        value(rates(), Use(cpu_cores=cores), most, Weights(memory=0), with_gpus=False)
        for cores in (8, 12)
    ]

    assert full == [0.0, -0.5]


def test_jobs_go_where_most_is_left_and_each_start_counts() -> None:
    """Four jobs on a large and a small node: three to the large one, not four."""
    nodes = [space("n1", cpus=4), space("n2", cpus=12)]

    made = plan(seen(nodes, [(shape(3), [1, 2, 3, 4])]))

    assert where(made) == ["n2", "n2", "n2", "n1"]


def test_first_fit_would_fill_the_first_node() -> None:
    """Equal nodes are raised together."""
    nodes = [space(name, cpus=4) for name in ("n1", "n2", "n3", "n4")]

    made = plan(seen(nodes, [(shape(1), [1, 2, 3, 4, 5])]))

    assert where(made) == ["n1", "n2", "n3", "n4", "n1"]


def test_measured_load_counts_and_not_what_was_asked_for() -> None:
    """n1's job asked for much and does little; n2's asked for little and does much."""
    nodes = [space("n1", cpus=8), space("n2", cpus=8)]
    running = [
        RunningJob(job=1, allocation=on("n1", 6), started_s=0, end_s=None),
        RunningJob(job=2, allocation=on("n2", 1), started_s=0, end_s=None),
    ]
    loads = [
        node("n1", used=Use(cpu_cores=1), running=1, reported_s=NOW_S),
        node("n2", used=Use(cpu_cores=7), running=1, reported_s=NOW_S),
    ]

    assert where(plan(seen(nodes, [(shape(), [9])], running, loads))) == ["n1"]
    assert where(plan(seen(nodes, [(shape(), [9])], running))) == ["n2"]


def test_a_predicted_cost_keeps_a_burst_from_one_node() -> None:
    """Ten jobs within one report: asked for one CPU each, known to use four."""
    nodes = [space("n1", cpus=16), space("n2", cpus=16)]
    loads = [node("n1", rates(cores=16)), node("n2", rates(cores=16), used=Use(cpu_cores=9))]
    kinds = dict.fromkeys(range(1, 11), "heavy")
    waiting = [(shape(), list(range(1, 11)))]

    told = plan(seen(nodes, waiting, (), loads, kinds, Foretold(heavy=Use(cpu_cores=4))))
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
    told = Foretold(heavy=Use(cpu_cores=3))

    def chosen(started_s: float) -> list[str]:
        running = [RunningJob(job=1, allocation=on("n1"), started_s=started_s, end_s=None)]
        kinds = {1: "heavy", 9: "heavy"}
        return where(plan(seen(nodes, [(shape(), [9])], running, loads, kinds, told)))

    assert chosen(NOW_S - 7) == ["n2"]
    assert chosen(NOW_S - 1) == ["n2"]
    assert chosen(NOW_S - 600) == ["n1"]


def test_a_young_job_of_no_known_kind_counts_as_what_it_asked_for() -> None:
    """Better too much than nothing."""
    nodes = [space("n1", cpus=8), space("n2", cpus=8)]
    loads = [node("n1", reported_s=NOW_S), node("n2", used=Use(cpu_cores=1), reported_s=NOW_S)]
    running = [RunningJob(job=1, allocation=on("n1", 4), started_s=NOW_S, end_s=None)]

    assert where(plan(seen(nodes, [(shape(), [9])], running, loads))) == ["n2"]


def test_jobs_without_gpus_keep_off_gpu_nodes_while_others_can_take_them() -> None:
    """However idle the GPU node is; and when no other can, it takes them."""
    nodes = [space("n1", cpus=2), space("n2", cpus=16, gpu_types=("a", "a"))]

    made = plan(seen(nodes, [(shape(), [1, 2, 3])]))

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

    assert where(plan(seen(nodes, [(shape(gpus=1), [1])], (), loads))) == ["n2"]


def test_weights_decide_what_counts() -> None:
    """n1 has idle cores, n2 has idle memory."""
    nodes = [space(name, cpus=8, memory_bytes=64 * GB) for name in ("n1", "n2")]
    loads = [node("n1", used=Use(memory_bytes=60 * GB)), node("n2", used=Use(cpu_cores=7))]
    snapshot = seen(nodes, [(shape(), [1])], (), loads)

    by_cpu, by_memory = (
        balance(Settings(weights=weights))
        for weights in (Weights(cpu=1, memory=0), Weights(cpu=0, memory=1))
    )

    assert where(by_cpu(snapshot)) == ["n1"]
    assert where(by_memory(snapshot)) == ["n2"]


@pytest.mark.parametrize(
    ("weights", "complaint"),
    [(Weights(gpu=-0.1), "below 0"), (Weights(cpu=0, memory=0), "must not both be 0")],
)
def test_impossible_weights_are_refused(weights: Weights, complaint: str) -> None:
    """With what is wrong."""
    with pytest.raises(ValueError, match=complaint):
        balance(Settings(weights=weights))


def blocked_behind(end_s: float | None) -> tuple[list[NodeSpace], list[RunningJob]]:
    """Return a node of four CPUs, three of them in use until some time."""
    running = [RunningJob(job=1, allocation=on("n1", 3), started_s=NOW_S - 100, end_s=end_s)]
    return [space("n1", cpus=4)], running


def decide(
    policy: Policy, walls_s: Mapping[str, float], records: int = 99, limit_s: float = 9000
) -> Plan:
    """Plan for job 2, which needs all of a node in use by job 1, and job 3, which could pass."""
    nodes, running = blocked_behind(NOW_S + 5000)
    told = Foretold(records, **{key: (Use(cpu_cores=1), wall_s) for key, wall_s in walls_s.items()})
    return policy(
        seen(
            nodes,
            [(shape(4, 50_000), [2]), (shape(1, limit_s), [3])],
            running,
            [],
            {1: "first", 2: "large", 3: "small"},
            told,
        )
    )


def test_a_predicted_run_time_lets_a_job_pass_that_padded_its_walltime() -> None:
    """It asked for 9000 s and is known to take 300."""
    walls_s = {"first": 2000.0, "large": 100.0, "small": 300.0}

    made = decide(plan, walls_s)
    by_walltime = decide(balance(Settings(predicted_times=False)), walls_s)

    assert [start.job for start in made.starts] == [3]
    assert made.waits[0].predicted_start_s == NOW_S + 1900
    assert by_walltime.starts == ()
    assert by_walltime.waits[0].predicted_start_s == NOW_S + 5000


def test_few_runs_foretell_no_time() -> None:
    """One short run does not let a job pass."""
    walls_s = {"first": 2000.0, "large": 100.0, "small": 300.0}

    assert decide(plan, walls_s, ENOUGH_RUNS).starts != ()
    assert decide(plan, walls_s, ENOUGH_RUNS - 1).starts == ()


def test_a_job_that_outlived_its_prediction_is_taken_to_be_half_done() -> None:
    """Foretold 40 s, running for 100: expected for another 100, but not beyond its walltime."""
    walls_s = {"first": 40.0, "large": 100.0, "small": 300.0}

    assert decide(plan, walls_s).waits[0].predicted_start_s == NOW_S + 100


def test_a_prediction_longer_than_the_walltime_counts_as_the_walltime() -> None:
    """A job ends by then whatever was foretold."""
    walls_s = {"first": 90_000.0, "large": 100.0, "small": 90_000.0}

    made = decide(plan, walls_s)

    assert made.starts == ()
    assert made.waits[0].predicted_start_s == NOW_S + 5000


def test_a_job_that_must_end_in_time_may_pass_whatever_was_foretold() -> None:
    """Its walltime of 4000 s is over before the reservation at 5000."""
    walls_s = {"first": 90_000.0, "large": 100.0, "small": 90_000.0}

    assert [start.job for start in decide(plan, walls_s, limit_s=4000).starts] == [3]


def test_without_reservation_whatever_fits_passes() -> None:
    """The paper's improved first come, first served."""
    walls_s = {"first": 2000.0, "large": 100.0, "small": 90_000.0}

    made = decide(balance(Settings(reserve=False)), walls_s)

    assert [start.job for start in made.starts] == [3]
    assert [wait.reserved for wait in made.waits] == [False]
    assert decide(plan, walls_s).starts == ()


def test_each_node_of_a_job_is_charged() -> None:
    """A job on two nodes costs something on both: the third takes the next one."""
    nodes = [space(name, cpus=8) for name in ("n1", "n2", "n3")]
    waiting = [(shape(2, count=2), [1]), (shape(1), [2])]

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
        groups=[Group(shape=shape(), order=[(0, 9)])],
        running=running,
        loads={"gone": node("gone", reported_s=NOW_S)},
    )

    assert where(plan(snapshot)) == ["n1"]


def test_without_a_report_a_node_is_as_busy_as_what_was_promised() -> None:
    """CPUs, memory and GPUs, from its free space."""
    half = take(space("n1", cpus=8, memory_bytes=64, gpu_types=("a", "a")), on("n1", 6, 1)[0])

    load = promised(half)

    assert (load.used.cpu_cores, load.used.gpus, load.running) == (6, 1, 1)
    assert (load.rates.cores, load.rates.memory_bytes, load.rates.gpus) == (8, 64, 2)

"""The balancing paper's rule: its three cases, and the conversion between unequal nodes."""

import pytest

from baselines.kit.paper_model import PaperModel, convert
from gschedd.plan.load import Basis, NodeRates, Use
from tests.support.runs import GB, kind, node, rates, run

NOW_S = 5000.0


def test_conversion_keeps_work_per_second_and_bytes() -> None:
    """util_b = util_a * (rate_a * cores_a) / (rate_b * cores_b); memory by bytes."""
    slow, fast = rates(cores=4, core_rate=2.0, gpus=1), rates(cores=16, core_rate=3.0, gpus=2)
    used = Use(cpu_cores=3.0, memory_bytes=5 * GB, gpus=0.5, gpu_memory_bytes=GB)

    there = convert(used, slow, fast)

    assert there.cpu_cores / 16 == pytest.approx((3.0 / 4) * (2.0 * 4) / (3.0 * 16))
    assert (there.memory_bytes, there.gpus, there.gpu_memory_bytes) == (5 * GB, 0.5, GB)


def test_a_node_without_gpus_uses_none() -> None:
    """Whatever the job did elsewhere."""
    there = convert(Use(gpus=1, gpu_memory_bytes=GB), rates(gpus=1), rates())

    assert there == Use()


def test_a_kind_seen_once_is_that_record_converted() -> None:
    """Case 1, n = 1; other kinds do not matter."""
    model = PaperModel()
    model.learn(run("k", cpu_cores=2, memory_bytes=GB, wall_s=60))
    model.learn(run("other", cpu_cores=8, memory_bytes=9 * GB, wall_s=900))

    said = model.predict(kind("k"), node("n2", rates(core_rate=2.0)), NOW_S)

    assert said.use == Use(cpu_cores=1, memory_bytes=GB)
    assert (said.wall_s, said.basis, said.records) == (60, Basis.KIND, 1)


def test_a_kind_seen_often_is_the_mean_of_all_converted_loads() -> None:
    """Case 1, n runs on unequal nodes: more of them than any window would keep."""
    model = PaperModel()
    for number in range(200):
        where = node("n1") if number % 2 else node("n2", rates(core_rate=4.0))
        model.learn(run("k", cpu_cores=2, memory_bytes=number * GB, wall_s=number + 1, where=where))

    said = model.predict(kind("k"), node("n3", rates(core_rate=2.0)), NOW_S)

    assert said.use.cpu_cores == pytest.approx((2 * 1 / 2 + 2 * 4 / 2) / 2)
    assert said.use.memory_bytes == pytest.approx(99.5 * GB)
    assert said.wall_s == pytest.approx(100.5)
    assert said.records == 200


def test_nothing_recorded_is_the_load_of_the_node_by_its_jobs() -> None:
    """Case 2, N = 0, and none if nothing runs there."""
    busy = node(used=Use(cpu_cores=6, memory_bytes=3 * GB), running=3)

    said = PaperModel().predict(kind(), busy, NOW_S)
    idle = PaperModel().predict(kind(), node(used=Use(cpu_cores=6)), NOW_S)

    assert said.use == Use(cpu_cores=2, memory_bytes=GB)
    assert (said.basis, said.wall_s) == (Basis.NODE, None)
    assert idle.use == Use()


def test_one_record_of_another_kind_stands_for_all() -> None:
    """Case 2, N = 1."""
    model = PaperModel()
    model.learn(run("other", cpu_cores=4, wall_s=50))

    said = model.predict(kind("new"), node("n2", rates(core_rate=2.0)), NOW_S)

    assert (said.use.cpu_cores, said.wall_s, said.basis) == (2, 50, Basis.ALL)


def test_of_the_latest_records_the_newest_fifth_weighs_more() -> None:
    """Case 2, N > L: w * mean(newest ceil(0.2 L)) + (1 - w) * mean(rest), older ones forgotten."""
    model = PaperModel(latest=6, weight=0.7)
    for number, cores in enumerate([99, 1, 2, 3, 6, 10, 20]):
        model.learn(run(f"k{number}", cpu_cores=cores, wall_s=cores * 10))

    said = model.predict(kind("new"), node(), NOW_S)

    expected = 0.7 * (10 + 20) / 2 + 0.3 * (1 + 2 + 3 + 6) / 4
    assert said.use.cpu_cores == pytest.approx(expected)
    assert said.wall_s == pytest.approx(10 * expected)
    assert said.high == said.use


@pytest.mark.parametrize(("latest", "weight"), [(0, 0.6), (20, -0.1), (20, 1.1)])
def test_impossible_parameters_are_refused(latest: int, weight: float) -> None:
    """A window of nothing, a weight that is no share."""
    with pytest.raises(ValueError, match="must be at least 1"):
        PaperModel(latest=latest, weight=weight)


def test_gpu_work_is_converted_by_gpu_rate() -> None:
    """The GPU's own rate counts, not the cores'."""
    strong = NodeRates(cores=8, core_rate=9.0, memory_bytes=GB, gpus=1, gpu_rate=4.0)
    model = PaperModel()
    model.learn(run("k", gpus=0.8, where=node("n1", rates(gpus=1))))

    assert model.predict(kind("k"), node("n2", strong), NOW_S).use.gpus == pytest.approx(0.2)

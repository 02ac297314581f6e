"""gsched's own predictor: what it gets right that a mean does not."""

import pickle
import random

import pytest

from baselines.kit.paper_model import PaperModel
from gschedd.models.family import MAX_KEPT_RUNS, WELL_KNOWN
from gschedd.models.robust import LEARN_EVERY_S, RobustModel
from gschedd.models.view import CUT_SHORT
from gschedd.plan.load import Basis, PredictedTime, Use
from tests.support.runs import GB, kind, node, rates, run

NOW_S = 1e6


def taught(*walls_s: float, key: str = "k") -> RobustModel:
    """Return a model that saw runs of one kind, one after the other."""
    model = RobustModel()
    for number, wall_s in enumerate(walls_s):
        model.learn(run(key, wall_s=wall_s, ended_s=1000.0 * (number + 1)))
    return model


def wall_s(model: RobustModel, key: str = "k") -> float:
    said = model.predict(kind(key), node(), NOW_S).wall_s
    assert said is not None
    return said


def test_nothing_recorded_is_what_the_job_asks_for() -> None:
    """At least a core, and no more than the node has."""
    small = node(of=rates(cores=4, gpus=2))
    asks = kind(cpus=9, gpus=1, memory_bytes=GB)

    said = RobustModel().predict(asks, small, NOW_S)
    plain = RobustModel().predict(kind(), node(), NOW_S)

    assert said.use == Use(cpu_cores=4, memory_bytes=GB, gpus=1, gpu_memory_bytes=16 * GB)
    assert (said.basis, said.wall_s) == (Basis.REQUESTED, None)
    assert plain.use == Use(cpu_cores=1)


def test_one_outlier_moves_nothing() -> None:
    """A mean would say 1090 s."""
    assert wall_s(taught(*[100.0] * 9, 10_000.0, 100.0)) == pytest.approx(100, rel=0.05)


def test_runs_that_failed_early_teach_no_run_time() -> None:
    """A third of the runs die after a second."""
    model = RobustModel()
    for number in range(12):
        failed = number % 3 == 2
        model.learn(
            run(
                "k",
                wall_s=1.0 if failed else 600.0,
                succeeded=not failed,
                ended_s=1000.0 * (number + 1),
            )
        )

    assert wall_s(model) == pytest.approx(600, rel=0.05)


def test_a_jump_is_followed_within_a_few_runs() -> None:
    """The program was made ten times faster; a mean over all needs hundreds of runs."""
    model = taught(*[1000.0] * 30, *[100.0] * 4)
    paper = PaperModel()
    for number in range(34):
        paper.learn(run("k", wall_s=1000.0 if number < 30 else 100.0))

    assert wall_s(model) == pytest.approx(100, rel=0.1)
    assert paper.predict(kind("k"), node(), NOW_S).wall_s == pytest.approx(894, rel=0.01)


def test_scattered_runs_are_told_by_their_middle_not_by_the_last() -> None:
    """Ten-fold scatter without drift: within a factor of 1.6 of the true median."""
    rng = random.Random(5)
    walls = [300 * 10 ** rng.gauss(0, 0.5) for _ in range(200)]

    assert wall_s(taught(*walls)) == pytest.approx(300, rel=0.6)


def test_a_computing_job_is_faster_on_a_faster_node_and_as_busy() -> None:
    """Its run time follows the node's rate; the paper would say half a core."""
    model = RobustModel()
    for number in range(12):
        rate = (1.0, 2.0, 3.0)[number % 3]
        where = node(f"n{number % 3}", rates(core_rate=rate))
        model.learn(
            run("k", cpu_cores=4, wall_s=600 / rate, where=where, ended_s=2000.0 * (number + 1))
        )

    said = model.predict(kind("k"), node("n9", rates(core_rate=4.0)), NOW_S)

    assert said.wall_s == pytest.approx(150, rel=0.1)
    assert said.use.cpu_cores == pytest.approx(4, rel=0.1)


def test_a_job_that_waits_takes_as_long_everywhere_and_is_less_busy_on_a_faster_node() -> None:
    """A stream in real time: here the paper's conversion is right, and is learned."""
    model = RobustModel()
    for number in range(12):
        rate = (1.0, 2.0, 3.0)[number % 3]
        where = node(f"n{number % 3}", rates(core_rate=rate))
        model.learn(
            run("k", cpu_cores=4 / rate, wall_s=600, where=where, ended_s=2000.0 * (number + 1))
        )

    said = model.predict(kind("k"), node("n9", rates(core_rate=4.0)), NOW_S)

    assert said.wall_s == pytest.approx(600, rel=0.1)
    assert said.use.cpu_cores == pytest.approx(1, rel=0.15)


def test_a_node_that_is_slower_than_its_rate_is_found_out() -> None:
    """Learned from other kinds: a job that was never there is expected to take longer there."""
    model = RobustModel()
    rng = random.Random(1)
    for number in range(400):
        slow = rng.random() < 0.5
        where = node("lame" if slow else "fine")
        usual_s = 100.0 * (number % 5 + 1)
        model.learn(
            run(
                f"k{number % 5}",
                wall_s=usual_s * (1.5 if slow else 1.0),
                where=where,
                ended_s=2000.0 * (number + 1),
            )
        )
    for number in range(5):
        model.learn(run("new", wall_s=100, where=node("fine"), ended_s=1e6 + 1000 * number))

    said = model.predict(kind("new"), node("lame"), 2e6)

    assert said.wall_s == pytest.approx(150, rel=0.15)


def test_a_kind_never_seen_is_told_from_its_program_then_its_owner_then_all() -> None:
    """The nearest family of which anything is known, scaled by what was requested."""
    model = RobustModel()
    model.learn(run(kind("a", program="p", cpus=2), cpu_cores=1.5, wall_s=100, ended_s=1))
    model.learn(run(kind("b", program="q", owner_uid=7, cpus=4), cpu_cores=1, wall_s=9, ended_s=2))

    edited = model.predict(kind("a2", program="p", cpus=4), node(), NOW_S)
    mine = model.predict(kind("c", program="r", cpus=2), node(), NOW_S)
    anyone = model.predict(kind("d", program="s", owner_uid=8), node(), NOW_S)

    assert edited.basis is Basis.PROGRAM
    assert edited.use.cpu_cores == pytest.approx(3.0)
    assert mine.basis is Basis.REQUEST
    assert mine.wall_s == pytest.approx(100)
    assert anyone.basis is Basis.ALL


def test_the_high_value_holds_for_about_nine_of_ten() -> None:
    """Lognormal run times: of the next 300, 80 to 98 per cent stay below what was said."""
    rng = random.Random(3)
    model = RobustModel()
    inside = 0
    for number in range(500):
        wall = 100 * 2.0 ** rng.gauss(0, 1)
        if number >= 200:
            high = model.predict(kind("k"), node(), NOW_S).wall_high_s
            assert high is not None
            inside += wall <= high
        model.learn(run("k", wall_s=wall, ended_s=10_000.0 * (number + 1)))

    assert 0.80 <= inside / 300 <= 0.98


def test_nothing_is_guaranteed_beyond_the_node() -> None:
    """Sixteen cores on a node of four are four; a node without GPUs uses none."""
    model = RobustModel()
    model.learn(run("k", cpu_cores=16, gpus=1.0, where=node("big", rates(cores=32, gpus=2))))

    said = model.predict(kind("k"), node("small", rates(cores=4)), NOW_S)

    assert said.high.cpu_cores == 4
    assert said.use.gpus == 0


def test_runs_that_ended_beside_a_job_do_not_count_as_known_to_it() -> None:
    """Bursts of equal runs, each unlike the last burst: the last value knows nothing of the next.

    Scored at its end, "as the last one" would look perfect, as the burst's others have ended.
    """
    model = RobustModel()
    for burst in range(40):
        wall = 5000.0 if burst % 4 == 3 else 100.0
        for number in range(8):
            model.learn(run("k", wall_s=wall, ended_s=10_000.0 * burst + wall + number * 0.01))

    assert wall_s(model) == pytest.approx(100, rel=0.1)


def test_equal_histories_give_equal_predictions() -> None:
    """Nothing random inside."""
    walls = [random.Random(9).uniform(1, 1000) for _ in range(50)]

    first, second = taught(*walls), taught(*walls)

    assert first.predict(kind("k"), node(), 1) == second.predict(kind("k"), node(), 2)


def test_memory_is_bounded_by_the_number_of_kinds() -> None:
    """The kind that was longest without a run is forgotten; its owner's runs are not."""
    model = RobustModel(max_kinds=3)
    for number in range(5):
        model.learn(run(f"k{number}", memory_bytes=GB, ended_s=1000.0 * number))

    assert model.predict(kind("k4"), node(), NOW_S).basis is Basis.KIND
    assert model.predict(kind("k0"), node(), NOW_S).basis is Basis.REQUEST


def test_a_well_known_kind_is_learned_once_a_second_on_a_node() -> None:
    """A thousand runs of a moment teach no more than the first of them; others go on teaching."""
    model = RobustModel()
    for number in range(WELL_KNOWN):
        model.learn(run("busy", wall_s=10.0, ended_s=float(number)))
    known = model.predict(kind("busy"), node("n1"), 0.0)
    at_s = WELL_KNOWN - 1 + LEARN_EVERY_S / 2
    for _ in range(1000):
        model.learn(run("busy", wall_s=1000.0, ended_s=at_s))
    assert model.predict(kind("busy"), node("n1"), 0.0) == known

    for _ in range(2):
        model.learn(run("rare", wall_s=1000.0, ended_s=at_s))
    assert model.predict(kind("rare"), node("n1"), 0.0).records == 2
    for number in range(WELL_KNOWN):
        at_s += LEARN_EVERY_S
        model.learn(run("busy", wall_s=1000.0, ended_s=at_s + number))
    learned = model.predict(kind("busy"), node("n1"), 0.0)
    assert learned.wall_s == pytest.approx(1000.0, rel=0.1)


def weighed(model: RobustModel) -> dict[float, float]:
    """Return what past runs count together, by their run time to ten seconds."""
    total: dict[float, float] = {}
    for wall_s, weight in model.runs(kind("k"), node()):
        total[round(wall_s, -1)] = total.get(round(wall_s, -1), 0.0) + weight
    return total


def test_runs_that_are_told_stand_for_all_of_a_kind_not_for_the_latest() -> None:
    """The elements of a wide array have begun together, so that the short ones have ended first."""
    model = RobustModel()
    for number in range(200):
        model.learn(run("k", wall_s=100.0 + number, ended_s=1000.0 + 100 + number))

    walls_s = [wall_s for wall_s, _ in model.runs(kind("k"), node())]

    assert len(walls_s) <= MAX_KEPT_RUNS
    assert sum(walls_s) / len(walls_s) == pytest.approx(200, rel=0.02)


def test_after_a_jump_the_runs_that_are_told_are_the_latest() -> None:
    told = weighed(taught(*[1000.0] * 30, *[100.0] * 4))

    assert told[100.0] > 3 * told[1000.0]


def test_runs_that_failed_count_for_little_and_other_kinds_runs_for_nothing() -> None:
    model = taught(600.0, 600.0)
    model.learn(run("k", wall_s=10.0, succeeded=False, ended_s=9000.0))

    assert weighed(model) == pytest.approx({600.0: 2.0, 10.0: CUT_SHORT})
    assert model.runs(kind("other"), node()) == ()
    assert model.detach([kind("k")]).runs(kind("k"), node()) == model.runs(kind("k"), node())


def test_what_is_detached_piece_by_piece_predicts_as_the_model_did() -> None:
    """Of kinds with runs and without; what is learned later changes nothing."""
    model = taught(600.0, 620.0, 590.0, 610.0, 600.0, 605.0)
    model.learn(run("slow", where=node("n2"), wall_s=5000.0, ended_s=9000.0))
    kinds = [kind("k"), kind("slow"), kind("new"), kind("edited", program="k-program")]
    nodes = [node("n1"), node("n2")]
    expected = [
        (model.predict(each, on, 0.0), model.spread(each), model.runs(each, on))
        for each in kinds
        for on in nodes
    ]

    first = model.detach(kinds[:1])
    known = pickle.loads(pickle.dumps(model.detach(kinds[1:], first)))
    for number in range(40):
        model.learn(run("k", wall_s=1.0, ended_s=20_000.0 + 10 * number))

    assert expected == [
        (known.predict(each, on, 0.0), known.spread(each), known.runs(each, on))
        for each in kinds
        for on in nodes
    ]
    assert model.predict(kind("k"), node("n1"), 0.0) != expected[0][0]


def test_a_run_time_is_that_of_the_whole_prediction() -> None:
    """Asked for alone, before the prediction and after it."""
    model = taught(*[1000.0] * 20, *[100.0] * 10)
    kinds = [kind("k"), kind("edited", program="k-program"), kind("other", owner_uid=77)]
    pairs = [(each, on) for each in kinds for on in (node("n1"), node("n2", rates(core_rate=2.0)))]
    alone = [model.run_time(*pair, 0.0) for pair in pairs]
    whole = [model.predict(*pair, 0.0) for pair in pairs]

    assert alone == [
        PredictedTime(basis=each.basis, wall_high_s=each.wall_high_s, records=each.records)
        for each in whole
    ]
    assert alone == [each.run_time for each in whole]
    assert [model.run_time(*pair, 0.0) for pair in pairs] == alone
    model.learn(run("k", wall_s=7.0, ended_s=90_000.0))
    assert model.run_time(*pairs[0], 0.0) != alone[0]


def test_a_model_that_knows_nothing_predicts_no_run_time() -> None:
    """Plans go by the walltime then."""
    found = RobustModel().run_time(kind("k"), node("n1"), 0.0)
    assert found == PredictedTime(basis=Basis.REQUESTED)

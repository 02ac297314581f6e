"""What a learner makes of reports: bounded, cheap to ask, and bootstrapped from one GPU."""

import math
import subprocess
import sys

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from gsched.model.reports import StepSample
from gsched.model.training import Adaptive, Scaling
from gschedd.models.goodput.evaluation import step_times
from gschedd.models.goodput.learner import (
    LATEST,
    MAX_CELLS,
    MAX_TYPES,
    GoodputLearner,
    learner_of,
)
from gschedd.models.goodput.records import (
    BatchLimits,
    GradientNoise,
    Observation,
    ThroughputParameters,
)

FAST = ThroughputParameters(
    compute_s=0.01,
    compute_per_sample_s=0.001,
    node_sync_s=0.02,
    network_sync_s=0.08,
    overlap=1.5,
)
SLOW = structs.replace(FAST, compute_s=0.04, compute_per_sample_s=0.004)
NODES, GPUS = np.array([1, 1, 1, 2]), np.array([1, 2, 4, 8])


def learner(*, batch_max: int = 4096, per_gpu_max: int = 128) -> GoodputLearner:
    limits = BatchLimits(batch=128, batch_max=batch_max, per_gpu_max=per_gpu_max)
    return GoodputLearner(limits=limits)


def report(
    own: ThroughputParameters, gpu_type: str, nodes: int, gpus: int, batch: int, more: int = 0
) -> Observation:
    times = step_times(own, nodes=nodes, replicas=gpus, per_gpu=batch, accumulation=more)
    return Observation(
        gpu_type=gpu_type,
        nodes=nodes,
        gpus=gpus,
        batch_per_gpu=batch,
        accumulation=more,
        gradient_s=float(times.gradient_s),
        step_s=float(times.step_s),
    )


def profile(own: ThroughputParameters, *batches: int) -> list[StepSample]:
    seen = [report(own, "", 1, 1, batch) for batch in batches]
    return [
        StepSample(batch_per_gpu=each.batch_per_gpu, step_s=each.step_s, gradient_s=each.gradient_s)
        for each in seen
    ]


def test_scaling_counts_as_perfect_until_it_was_seen() -> None:
    """With the same batch on each GPU, N GPUs are predicted N times as fast as one."""
    found = learner(batch_max=1024)
    found.profile("a", profile(FAST, 16, 32, 64, 128))
    found.measure_noise(square_norm=0.0, variance=1.0)

    best = found.model().best("a", NODES, GPUS)

    assert list(best.batch_per_gpu) == [128, 128, 128, 128]
    assert best.goodput == pytest.approx(best.goodput[0] * GPUS, rel=1e-3)


def test_reports_from_several_gpus_end_the_perfect_scaling() -> None:
    found = learner(batch_max=512)
    found.profile("a", profile(FAST, 16, 32, 64, 128))
    found.measure_noise(square_norm=0.0, variance=1.0)
    before = found.model()

    assert found.add(report(FAST, "a", 1, 4, 64))
    after = found.model()

    perfect = before.best("a", NODES, GPUS).goodput
    seen = after.best("a", NODES, GPUS).goodput
    assert seen[0] == pytest.approx(perfect[0], rel=0.01)
    assert all(seen[1:] < 0.99 * perfect[1:])
    times = step_times(after.models[0].parameters, nodes=1, replicas=4, per_gpu=64)
    assert float(times.step_s) == pytest.approx(report(FAST, "a", 1, 4, 64).step_s, rel=0.02)


def test_steps_of_the_training_correct_the_level_of_its_profile() -> None:
    """Real passes take three times as long, with their data and their neighbours: at all batches.

    The profile says how a pass depends on the batch, whichever batch was reported.
    """
    slower = structs.replace(
        FAST,
        compute_s=3 * FAST.compute_s,
        compute_per_sample_s=3 * FAST.compute_per_sample_s,
        node_sync_s=FAST.node_sync_s,
    )
    found = learner(batch_max=1024)
    found.profile("a", profile(FAST, 16, 32, 64, 128))
    found.add(report(slower, "a", 1, 1, 32))

    (model,) = found.model().models
    for batch in (16, 32, 50, 128):
        times = step_times(model.parameters, nodes=1, replicas=1, per_gpu=batch)
        expected = report(slower, "a", 1, 1, batch).step_s
        assert float(times.step_s) == pytest.approx(expected, rel=0.02)


def test_passes_on_several_gpus_correct_a_profile_until_there_are_some_on_one() -> None:
    found = learner(batch_max=1024)
    found.profile("a", profile(FAST, 16, 32, 64, 128))
    found.add(report(SLOW, "a", 1, 4, 64))
    (model,) = found.model().models
    several = float(step_times(model.parameters, nodes=1, replicas=1, per_gpu=64).step_s)
    assert several == pytest.approx(report(SLOW, "a", 1, 1, 64).step_s, rel=0.1)

    found = learner(batch_max=1024)
    found.profile("a", profile(FAST, 16, 32, 64, 128))
    found.add(report(FAST, "a", 1, 1, 64))
    found.add(report(SLOW, "a", 1, 4, 64))
    assert found.records["a"]._shift() == pytest.approx(0.0, abs=1e-6)


def test_a_type_with_one_gpu_seen_borrows_the_scaling_of_another() -> None:
    """The ratio of one GPU holds on eight, until eight of the type itself were seen."""
    found = learner()
    for gpu_type, own in (("a", FAST), ("b", SLOW)):
        found.profile(gpu_type, profile(own, 16, 32, 64, 128))
    found.add(report(FAST, "a", 1, 4, 64))
    found.add(report(FAST, "a", 2, 8, 64))

    models = {model.gpu_type: model for model in found.model().models}
    assert models["a"].scaling is None
    assert models["b"].scaling == models["a"].parameters

    found.add(report(SLOW, "b", 1, 2, 64))
    models = {model.gpu_type: model for model in found.model().models}
    assert models["b"].scaling is None


def test_the_lender_has_seen_several_nodes() -> None:
    """Not the type of which most is known inside one node."""
    found = learner()
    for name in "abc":
        found.profile(name, profile(FAST, 16, 64))
    found.add(report(FAST, "a", 2, 4, 64))
    for gpus in (2, 3, 4):
        found.add(report(SLOW, "b", 1, gpus, 64))

    models = {model.gpu_type: model for model in found.model().models}

    assert models["c"].scaling == models["a"].parameters


def test_nothing_is_fitted_again_while_reports_say_the_same() -> None:
    """Fluctuations of a percent are no news; a change of ten percent is, before long."""
    found = learner()
    found.profile("a", profile(FAST, 16, 64))
    steady = report(FAST, "a", 1, 4, 64)
    assert found.add(steady)
    before = found.model()

    for factor in (1.01, 0.99, 1.0, 1.01):
        assert not found.add(structs.replace(steady, step_s=steady.step_s * factor))
    assert found.model() == before

    slower = structs.replace(steady, step_s=steady.step_s * 1.1)
    news = [found.add(slower) for _ in range(2 * LATEST)]
    assert any(news)
    times = step_times(found.model().models[0].parameters, nodes=1, replicas=4, per_gpu=64)
    assert float(times.step_s) == pytest.approx(slower.step_s, rel=0.05)


def test_memory_is_bounded_and_the_profile_outlives_reports() -> None:
    """A thousand batches on eight GPUs push each other out, not the profile on one."""
    found = learner()
    batches = (8, 16, 32, 64, 128)
    found.profile("a", profile(FAST, *batches))
    for batch in range(1, 1000):
        found.add(report(FAST, "a", 2, 8, batch))

    cells = found.records["a"].cells.values()
    assert len(cells) == MAX_CELLS
    assert sorted(cell.per_gpu for cell in cells if cell.replicas == 1) == list(batches)
    assert max(cell.per_gpu for cell in cells) == 999

    for number in range(2 * MAX_TYPES):
        found.add(report(FAST, f"type {number}", 1, 1, 8))
    assert len(found.records) == MAX_TYPES


times = st.floats(allow_nan=True, allow_infinity=True)
counts = st.integers(-2, 2**40)


@given(
    st.lists(
        st.builds(
            Observation,
            gpu_type=st.sampled_from("ab"),
            nodes=counts,
            gpus=counts,
            batch_per_gpu=counts,
            accumulation=counts,
            gradient_s=times,
            step_s=times,
        ),
        max_size=8,
    )
)
def test_no_report_makes_a_model_that_cannot_answer(reports: list[Observation]) -> None:
    """Reports come from scripts, so any number may be in them."""
    found = GoodputLearner(limits=BatchLimits(batch=128, batch_max=4096), replica_gpus=(("b", 2),))
    for each in reports:
        found.add(each)

    model = found.model()

    for gpu_type in "abc":
        best = model.best(gpu_type, NODES, GPUS)
        assert np.isfinite(best.goodput).all()
        assert (best.goodput >= 0).all()


def test_impossible_observations_are_ignored() -> None:
    found = GoodputLearner(limits=BatchLimits(batch=8, batch_max=8), replica_gpus=(("a", 4),))
    good = report(FAST, "a", 1, 8, 4)

    for change in (
        {"step_s": 0.0},
        {"step_s": math.nan},
        {"step_s": math.inf},
        {"gpus": 6},
        {"gpus": 0},
        {"nodes": 0},
        {"batch_per_gpu": 0},
        {"accumulation": -1},
    ):
        assert not found.add(structs.replace(good, **change)), change
    assert found.model().types() == frozenset()
    assert found.add(good)
    assert found.records["a"].cells.keys() == {"1 2 4 0"}


def test_a_pass_takes_no_longer_than_its_part_of_the_step() -> None:
    found = learner()
    found.add(
        Observation(
            gpu_type="a",
            nodes=1,
            gpus=1,
            batch_per_gpu=32,
            accumulation=3,
            gradient_s=5.0,
            step_s=4.0,
        )
    )

    (cell,) = found.records["a"].cells.values()
    assert cell.observation().gradient_s == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("given", "profiled", "expected"),
    [(0, 0, 64), (0, 100, 100), (96, 0, 96), (96, 80, 80), (64, 100, 64)],
)
def test_memory_limits_a_batch_as_found_as_given_or_as_seen(
    given: int, profiled: int, expected: int
) -> None:
    found = learner(per_gpu_max=given)

    found.profile("a", profile(FAST, 16, 64), profiled)

    assert found.model().models[0].per_gpu_max == expected


def test_noise_counts_when_it_was_measured() -> None:
    found = learner()
    assert found.model().noise == GradientNoise()

    found.measure_noise(square_norm=2.0, variance=3.0)
    found.measure_noise(square_norm=0.0, variance=0.0)
    found.measure_noise(square_norm=math.nan, variance=1.0)

    assert found.model().noise == GradientNoise(square_norm=2.0, variance=3.0)


def test_learners_that_heard_the_same_make_equal_models() -> None:
    """In whatever order they heard it, as far as the numbers are the same."""

    def made() -> GoodputLearner:
        found = learner()
        for gpu_type in "ba":
            found.profile(gpu_type, profile(FAST, 16, 64))
        return found

    assert made().model() == made().model()
    assert [model.gpu_type for model in made().model().models] == ["a", "b"]


def test_a_learner_survives_being_saved() -> None:
    found = learner()
    found.profile("a", profile(FAST, 16, 32, 64), 100)
    found.add(report(FAST, "a", 2, 8, 64))
    found.measure_noise(square_norm=2.0, variance=3.0)
    found.model()

    restored = msgspec.json.decode(msgspec.json.encode(found), type=GoodputLearner)

    assert restored.model() == found.model()
    again = report(FAST, "a", 2, 8, 64)
    assert (restored.add(again), found.add(again)) == (False, False)


@pytest.mark.parametrize(
    ("scaling", "is_fixed"),
    [(Scaling.ADAPTIVE, False), (Scaling.STRONG, True), (Scaling.RIGID, True)],
)
def test_limits_follow_from_what_the_user_said(scaling: Scaling, *, is_fixed: bool) -> None:
    said = Adaptive(
        batch=128,
        batch_max=4096,
        batch_per_gpu_max=256,
        scaling=scaling,
        replica_gpus=(("a", 4),),
    )

    model = learner_of(said).model()

    assert model.limits == BatchLimits(batch=128, batch_max=4096, per_gpu_max=256, fixed=is_fixed)
    assert model.gpus_of_replica("a") == 4


def test_reports_are_taken_without_numpy() -> None:
    """The head takes reports also where no policy asks for a model."""
    program = """
import sys
from gschedd.models.goodput.learner import GoodputLearner
from gschedd.models.goodput.records import BatchLimits, Observation
learner = GoodputLearner(limits=BatchLimits(batch=1, batch_max=2))
assert learner.add(Observation(gpu_type="a", nodes=1, gpus=1, batch_per_gpu=1, step_s=1.0))
sys.exit("numpy" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0

"""How long steps of training jobs take: what is measured, and what follows for other layouts."""

import pytest

from gschedd.models.steptimes import MeasuredSpeed, Steps, StepTimes
from gschedd.plan.training import Layout, Size

KIND = "1:kind:net"
SAMPLES, GRADIENT_BYTES, TOTAL = 64.0, 1e9, 64_000.0
#: One GPU computes a step in 8 s; two send 1 GB in a ring, at 2 GB/s inside a node.
ALONE_S = 8.0


def steps(counts: tuple[int, ...], step_s: float, **changes: object) -> Steps:
    """Return a measurement."""
    fields: dict[str, object] = {
        "counts": counts,
        "gpu_type": "a100",
        "samples": SAMPLES,
        "step_s": step_s,
        "gradient_bytes": GRADIENT_BYTES,
        "work_total": TOTAL,
        **changes,
    }
    return Steps(**fields)  # type: ignore[arg-type] # as named


def size_after(*measured: Steps, devices: dict[str, float] | None = None) -> Size:
    """Return the size of the next training of a kind."""
    times = StepTimes()
    for each in measured:
        times.learn(KIND, 1, each)
    size = times.size_of_kind(KIND, devices or {})
    assert size is not None
    return size


def step_s(size: Size, *counts: int, device: float = 1.0, bandwidth_bytes_s: float = 10e9) -> float:
    """Return how long a step takes on a layout."""
    layout = Layout(counts=counts, device=device, bandwidth_bytes_s=bandwidth_bytes_s)
    return SAMPLES / size.speed.rate(layout)


def test_a_layout_that_was_seen_takes_what_it_took() -> None:
    """The one in the middle of the latest, whatever any formula says."""
    seen = [steps((2, 1), each_s) for each_s in (3.0, 99.0, 3.1)]

    size = size_after(steps((1,), ALONE_S), *seen)

    assert step_s(size, 2, 1) == pytest.approx(3.1)
    assert step_s(size, 1) == pytest.approx(ALONE_S)
    assert size.work == TOTAL


def test_other_layouts_follow_from_one_gpu_and_the_measured_bandwidth() -> None:
    """Two GPUs lose 0.5 s of a step for 1 GB; four send 1.5 GB, and compute two seconds."""
    size = size_after(steps((1,), ALONE_S), steps((2,), ALONE_S / 2 + 0.5))

    assert step_s(size, 4) == pytest.approx(ALONE_S / 4 + 0.75)
    # between nodes nothing was measured: the layout's bandwidth counts
    assert step_s(size, 1, 1, bandwidth_bytes_s=4e9) == pytest.approx(ALONE_S / 2 + 0.25)


def test_bandwidth_inside_a_node_and_between_nodes_are_told_apart() -> None:
    size = size_after(
        steps((1,), ALONE_S), steps((2,), ALONE_S / 2 + 0.5), steps((1, 1), ALONE_S / 2 + 2.0)
    )

    assert step_s(size, 4) == pytest.approx(ALONE_S / 4 + 0.75)
    assert step_s(size, 2, 2) == pytest.approx(ALONE_S / 4 + 3.0)


def test_without_a_step_on_one_gpu_communication_is_what_it_says() -> None:
    """Equation 2: what is left of the step is computing."""
    size = size_after(steps((2,), 4.5, communication_s=0.5))

    assert step_s(size, 1) == pytest.approx(8.0)
    assert step_s(size, 4) == pytest.approx(2.75)


def test_a_kind_that_never_had_several_gpus_gets_the_bandwidth_that_others_had() -> None:
    times = StepTimes()
    times.learn("1:kind:other", 1, steps((2,), 1.0, communication_s=0.25, gradient_bytes=5e8))
    times.learn(KIND, 2, steps((1,), ALONE_S))

    size = times.size_of_kind(KIND, {})

    assert size is not None
    assert step_s(size, 2) == pytest.approx(ALONE_S / 2 + 0.5)


def test_where_nobody_knows_what_is_sent_more_gpus_are_no_faster() -> None:
    """Neither are fewer held to be faster than their share."""
    size = size_after(steps((2,), 4.0, gradient_bytes=0.0))

    assert step_s(size, 4) == pytest.approx(4.0)
    assert step_s(size, 2, 1) == pytest.approx(4.0)
    assert step_s(size, 1) == pytest.approx(8.0)


def test_gpu_types_are_told_apart_by_their_speed() -> None:
    """A step seen on slow GPUs says what fast ones take; where both were seen, what each took."""
    devices = {"a100": 1.0, "t4": 0.25}
    slow_only = size_after(steps((1,), 32.0, gpu_type="t4"), devices=devices)
    both = size_after(steps((1,), 36.0, gpu_type="t4"), steps((1,), ALONE_S), devices=devices)

    assert step_s(slow_only, 1) == pytest.approx(ALONE_S)
    assert step_s(both, 1, device=0.25) == pytest.approx(36.0)
    assert step_s(both, 1) == pytest.approx(ALONE_S)


def test_of_types_that_nobody_tells_apart_the_slower_counts() -> None:
    size = size_after(steps((1,), 9.0, gpu_type="x"), steps((1,), 7.0, gpu_type="y"))

    assert step_s(size, 1) == pytest.approx(9.0)


def test_another_model_under_the_same_name_begins_anew() -> None:
    """A shorter last step of an epoch is still the same training."""
    first = steps((1,), ALONE_S)
    size = size_after(first, steps((2,), 4.0, samples=SAMPLES - 1), steps((1,), 2.0))
    other = size_after(first, steps((2,), 4.0, gradient_bytes=2e9))

    assert isinstance(size.speed, MeasuredSpeed)
    assert {step.counts for step in size.speed.seen} == {(1,), (2,)}
    assert isinstance(other.speed, MeasuredSpeed)
    assert {step.counts for step in other.speed.seen} == {(2,)}


def test_a_job_has_its_own_work_and_what_its_kind_knows() -> None:
    """Unless it is another training than those of its kind."""
    times = StepTimes()
    times.learn(KIND, 1, steps((1,), ALONE_S))
    times.learn(KIND, 2, steps((2,), 4.5, work_total=2 * TOTAL))

    own = times.size_of_job(2, KIND, {})

    assert own is not None
    assert own.work == 2 * TOTAL
    assert step_s(own, 1) == pytest.approx(ALONE_S)
    assert times.size_of_job(3, KIND, {}) is None
    assert not times.knows(3)
    times.learn(KIND, 4, steps((2,), 1.0, gradient_bytes=5.0))
    mine = times.size_of_job(2, KIND, {})
    assert mine is not None
    assert step_s(mine, 2) == pytest.approx(4.5)


def test_what_is_learned_later_counts_for_who_asked_before() -> None:
    """Also a speed of GPUs that the site has changed meanwhile."""
    times = StepTimes()
    times.learn(KIND, 1, steps((2,), 5.0))
    first = times.size_of_kind(KIND, {})
    times.learn(KIND, 1, steps((1,), ALONE_S))
    second = times.size_of_kind(KIND, {})
    third = times.size_of_kind(KIND, {"a100": 2.0})

    assert first is not None
    assert second is not None
    assert third is not None
    assert step_s(first, 1) == pytest.approx(10.0)
    assert step_s(second, 1) == pytest.approx(ALONE_S)
    assert step_s(third, 1) == pytest.approx(2 * ALONE_S)


def test_nothing_is_said_of_a_kind_whose_work_nobody_knows() -> None:
    times = StepTimes()
    times.learn(KIND, 1, steps((1,), ALONE_S, work_total=0.0))

    assert times
    assert times.size_of_kind(KIND, {}) is None
    assert times.size_of_job(1, KIND, {}) is None
    assert not StepTimes()

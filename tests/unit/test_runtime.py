"""The run-time model: what the paper says of it, and what was measured elsewhere."""

import json
from pathlib import Path
from statistics import fmean

import pytest
from msgspec import structs

from gsched.model.training import Training, Urgency
from gschedd.models.runtime import (
    PaperSpeed,
    WalltimeSpeed,
    allowed_time_s,
    one_gpu_time_s,
    size_of_run,
    size_of_training,
)
from gschedd.plan.training import BETWEEN_BYTES_S, INSIDE_BYTES_S, Layout, Speed

MEASURED = Path(__file__).resolve().parents[3] / "shared/data/elasticflow/chronus_model_info.json"

ALEXNET = PaperSpeed(parameters=57.41e6, batch=16, step_time_s=0.0105)
VGG16 = PaperSpeed(parameters=134.67e6, batch=16, step_time_s=0.035)


def inside(gpus: int, device: float = 1.0) -> Layout:
    return Layout(counts=(gpus,), device=device, bandwidth_bytes_s=INSIDE_BYTES_S)


def across(*counts: int) -> Layout:
    return Layout(counts=counts, bandwidth_bytes_s=BETWEEN_BYTES_S)


def beats_one_gpu(speed: Speed, layout: Layout) -> bool:
    """Return whether a layout is one GPU, or faster than one of its GPUs alone (inequality 11)."""
    return layout.gpus == 1 or speed.rate(layout) > speed.rate(
        Layout(counts=(1,), device=layout.device)
    )


def test_alexnet_gains_from_eight_gpus_only() -> None:
    """As in the paper's figure: two and four GPUs of a node are not faster than one, eight are."""
    faster = {gpus: beats_one_gpu(ALEXNET, inside(gpus)) for gpus in (1, 2, 4, 8)}

    assert faster == {1: True, 2: False, 4: False, 8: True}


def test_vgg_gains_from_four_gpus_of_one_node_only() -> None:
    """As in the paper's figure: slower on two, faster on four, not on four of several nodes."""
    assert not beats_one_gpu(VGG16, inside(2))
    assert beats_one_gpu(VGG16, inside(4))
    assert not beats_one_gpu(VGG16, across(2, 2))


def test_the_equations_by_hand() -> None:
    """VGG-16 on 2 + 2 GPUs: every step of equations 1 to 5 with a pocket calculator."""
    layout = across(2, 2)

    assert VGG16.communication_s(layout) == pytest.approx(2 * 3 / 4 * 4 * 134.67e6 / 6e9)
    assert VGG16.step_s(layout) == pytest.approx(0.035 + 0.134670)
    assert VGG16.rate(layout) == VGG16.batch * layout.gpus / VGG16.step_s(layout)
    steps = 50_000 / (16 * 4)
    assert 50_000 * 60 / VGG16.rate(layout) == pytest.approx(0.16967 * steps * 60)
    assert VGG16.communication_s(inside(1)) == 0


@pytest.mark.parametrize("gpus", range(2, 17))
@pytest.mark.parametrize(
    "speed", [ALEXNET, VGG16, PaperSpeed(parameters=7e6, batch=8, step_time_s=0.1)]
)
def test_comparing_rates_is_equation_11(speed: PaperSpeed, gpus: int) -> None:
    """T_comm < (N - 1) T_cal says the same."""
    for layout in (inside(gpus), across(*[1] * gpus)):
        by_paper = speed.communication_s(layout) < (gpus - 1) * speed.step_time_s

        assert beats_one_gpu(speed, layout) == by_paper


def test_a_faster_device_computes_faster_and_talks_no_faster() -> None:
    """Twice the speed halves T_cal alone, so that more GPUs gain less."""
    assert ALEXNET.step_s(inside(1, device=2.0)) == pytest.approx(0.0105 / 2)
    assert ALEXNET.communication_s(inside(8, device=2.0)) == ALEXNET.communication_s(inside(8))
    assert beats_one_gpu(VGG16, inside(4))
    assert not beats_one_gpu(VGG16, inside(4, device=2.0))


def test_the_allowed_time_is_alpha_times_that_on_one_gpu() -> None:
    """Equation 6."""
    said = Training(parameters=1e6, samples=1000, batch=10, epochs=6, step_time_s=0.5)
    size = size_of_training(said)
    assert size is not None

    assert one_gpu_time_s(size) == pytest.approx(1000 / 10 * 6 * 0.5)
    assert [allowed_time_s(size, each) for each in Urgency] == pytest.approx([150, 300, 450])


def test_what_was_measured_goes_before_the_model() -> None:
    """Both were said; the table is believed."""
    said = Training(
        parameters=1e6, samples=1000, batch=10, epochs=6, step_time_s=0.5,
        iterations=600, rates=((1, 2.0), (2, 3.0)),
    )  # fmt: skip
    size = size_of_training(said)
    assert size is not None

    assert size.work == 600
    assert size.speed.rate(inside(2)) == 3.0


@pytest.mark.parametrize("missing", ["parameters", "samples", "batch", "epochs", "step_time_s"])
def test_too_little_gives_no_size(missing: str) -> None:
    """Each of the five is needed: nothing is guessed."""
    said = Training(parameters=1e6, samples=1000, batch=10, epochs=6, step_time_s=0.5)

    assert size_of_training(structs.replace(said, **{missing: 0.0})) is None


def test_impossible_numbers_are_refused() -> None:
    """In words that show them."""
    with pytest.raises(ValueError, match="batch=-1"):
        PaperSpeed(parameters=1, batch=-1, step_time_s=1)
    with pytest.raises(ValueError, match="gpus=-1"):
        WalltimeSpeed(gpus=-1)


def test_a_run_time_alone_is_kept_with_any_concave_speed_up() -> None:
    """Whatever the true speed-up, the planned end on another number of GPUs is not too early."""
    size = size_of_run(3600, 4)
    for exponent in (0.0, 0.3, 0.7, 1.0):
        for gpus in (1, 2, 4, 8):
            truth_s = 3600 / (gpus / 4) ** exponent
            planned_s = size.work / size.speed.rate(inside(gpus))

            assert planned_s >= truth_s - 1e-6

    assert size.work / size.speed.rate(inside(4)) == 3600
    assert size.work / size.speed.rate(inside(4, device=2.0)) == 1800
    assert size_of_run(3600, 0).speed.rate(inside(1)) == 1


#: Parameters as torchvision counts them; step times of the experiments where the model is among
#: them, a guess for ResNet-101 from ResNet-50's. Nothing here was fitted to the measurements.
MODELS = {
    "alexnet": PaperSpeed(parameters=61.1e6, batch=16, step_time_s=0.0105),
    "vgg16": PaperSpeed(parameters=138.36e6, batch=16, step_time_s=0.035),
    "resnet101": PaperSpeed(parameters=44.55e6, batch=16, step_time_s=0.1),
    "mobilenet_v2": PaperSpeed(parameters=3.5e6, batch=16, step_time_s=0.035),
    "inception_v3": PaperSpeed(parameters=27.16e6, batch=16, step_time_s=0.082),
}


def test_measured_placement_penalties_are_predicted_better_than_by_none() -> None:
    """Relative speeds over 2 and 4 nodes of five models, measured on machines that are not known.

    The mean error is 0.135, and 0.252 if placement made no difference; the two models that lose
    most are the two that are said to. Over four nodes AlexNet, VGG-16 and MobileNet-V2 lose far
    more than the model says (0.27 measured, 0.65 predicted for AlexNet on eight GPUs): it knows one
    bandwidth between nodes, however many there are.
    """
    if not MEASURED.exists():
        pytest.skip(f"the measurements are not here: {MEASURED.name}")
    table = json.loads(MEASURED.read_text("utf-8"))
    errors: list[float] = []
    penalty: dict[str, tuple[float, float]] = {}
    no_model: list[float] = []
    for name, speed in MODELS.items():
        pairs = [
            (relative, speed.rate(across(*[gpus // nodes] * nodes)) / speed.rate(inside(gpus)))
            for gpus, by_nodes in ((int(key), row) for key, row in table[name].items())
            for nodes, relative in ((int(key), value) for key, value in by_nodes.items())
            if nodes > 1
        ]
        errors += [abs(measured - predicted) for measured, predicted in pairs]
        no_model += [abs(1 - measured) for measured, _ in pairs]
        penalty[name] = (fmean(pair[0] for pair in pairs), fmean(pair[1] for pair in pairs))

    assert fmean(errors) == pytest.approx(0.135, abs=0.002)
    assert fmean(errors) < 0.6 * fmean(no_model)
    by_measure = sorted(penalty, key=lambda name: penalty[name][0])
    by_model = sorted(penalty, key=lambda name: penalty[name][1])
    assert set(by_measure[:2]) == set(by_model[:2]) == {"alexnet", "vgg16"}

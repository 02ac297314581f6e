"""Adaptive training jobs in one process: learning rates, mistakes in scripts, scaled losses."""

import math
from collections.abc import Iterator
from typing import Any

import pytest

from gsched import elastic
from gsched.elastic.adaptive.noise import Noise
from gsched.elastic.adaptive.rates import Rates, factor, rule_for
from gsched.elastic.errors import StepError
from tests.support.late_torch import IN_ONE_WORKER, torch

pytestmark = IN_ONE_WORKER

NOISE = Noise(sqr=1.0, var=3.0)


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Outside gsched, and with the global generator as it was."""
    for name in ("BATCH_PER_GPU", "ACCUMULATION", "CHECKPOINT_DIR", "ELASTIC_SOCKET"):
        monkeypatch.delenv(f"GSCHED_{name}", raising=False)
    state = torch.get_rng_state()
    yield
    torch.set_rng_state(state)


def started(
    adaptive: elastic.Adaptive | None = None, **more: Any
) -> tuple[elastic.AdaptiveTraining, Any, Any, Any]:
    """Return a training on 64 points with a tuned batch of 8, its model, optimiser and data."""
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1)
    points = torch.randn(64, 4)
    data = torch.utils.data.TensorDataset(points, points.sum(dim=1, keepdim=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    samples = elastic.Samples(64, global_batch=8, epochs=2)
    training = elastic.start(
        model, optimizer, samples, adaptive=adaptive or elastic.Adaptive(), **more
    )
    return training, model, optimizer, data


def loss_of(model: Any, batch: Any) -> Any:
    points, wanted = batch
    return torch.nn.functional.mse_loss(model(points), wanted)


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        ("SGD", elastic.Rule.ADASCALE),
        ("Adam", elastic.Rule.SQUARE_ROOT),
        ("AdamW", elastic.Rule.SQUARE_ROOT),
        ("RMSprop", elastic.Rule.SQUARE_ROOT),
    ],
)
def test_rule_follows_the_optimiser(kind: str, rule: elastic.Rule) -> None:
    parameters = [torch.nn.Parameter(torch.zeros(1))]

    assert rule_for([getattr(torch.optim, kind)(parameters, lr=0.1)]) is rule


def test_factors_of_the_rules() -> None:
    """AdaScale's for var = 3, sqr = 1 and four times the batch: 4 / (3/4 + 1)."""
    wanted = {"adascale": 4 / 1.75, "square-root": 2.0, "linear": 4.0, "none": 1.0}

    assert {str(rule): factor(rule, 4.0, NOISE) for rule in elastic.Rule} == pytest.approx(wanted)
    assert factor(elastic.Rule.ADASCALE, 4.0, None) == 1.0
    assert {factor(rule, 0.5, NOISE) for rule in elastic.Rule} == {1.0}


@pytest.mark.parametrize("as_tensor", [False, True])
def test_rate_is_another_in_the_step_only(*, as_tensor: bool) -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    rate: Any = torch.tensor(0.5) if as_tensor else 0.5
    optimizer = torch.optim.SGD([weight], lr=rate)
    Rates([optimizer], lambda: 3.0)
    for wanted in (1.0 - 1.5, 1.0 - 3.0):
        weight.grad = torch.ones(1)
        optimizer.step()
        assert weight.item() == pytest.approx(wanted)
        assert optimizer.param_groups[0]["lr"] == 0.5
    if as_tensor:
        assert optimizer.param_groups[0]["lr"] is rate


def test_rate_is_the_tuned_one_after_a_step_that_raised() -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    optimizer = torch.optim.SGD([weight], lr=0.5)
    Rates([optimizer], lambda: 3.0)

    def closure() -> Any:
        raise RuntimeError("no loss")

    with pytest.raises(RuntimeError, match="no loss"):
        optimizer.step(closure)
    optimizer.step()

    assert weight.item() == pytest.approx(1.0 - 1.5)
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_weight_that_is_not_used_is_told_in_the_first_step() -> None:
    """Not only when a policy lets gradients be accumulated, hours later."""
    training, model, optimizer, data = started()
    next(iter(training.epochs()))

    def step() -> None:
        for batch in next(training.steps(data)):
            loss_of(model, batch).backward()
        optimizer.step()
        training.step()

    with pytest.raises(StepError, match=r"training\.weight"):
        step()


def test_micro_batches_that_are_left_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GSCHED_BATCH_PER_GPU", "2")
    monkeypatch.setenv("GSCHED_ACCUMULATION", "3")
    training, model, optimizer, data = started()
    next(iter(training.epochs()))
    for batch in next(training.steps(data)):
        (training.weight * loss_of(model, batch)).backward()
        optimizer.step()
        with pytest.raises(StepError, match="3 micro-batches of this step were not used"):
            training.step()
        break


def test_loops_without_micro_batches_are_refused() -> None:
    training, _, _, data = started()
    next(iter(training.epochs()))
    for batches in (lambda: training.loader(data), training.batches):
        with pytest.raises(StepError, match=r"training\.steps"):
            next(iter(batches()))


def test_name_of_its_own_state_is_taken() -> None:
    with pytest.raises(elastic.BadArgumentError, match="choose another"):
        started(also={"adaptive": torch.nn.Linear(1, 1)})


def test_batch_that_gsched_gives_to_a_script_that_has_its_own_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GSCHED_BATCH_PER_GPU", "2")
    model = torch.nn.Linear(1, 1)
    elastic.start(model, torch.optim.SGD(model.parameters()), elastic.Samples(8, global_batch=8))

    assert "calls elastic.start() without adaptive=" in capsys.readouterr().err


class Scaler:
    """Another scale in each step, as a scaler that looks for one has."""

    def __init__(self) -> None:
        self.steps = 0

    def get_scale(self) -> float:
        return 2.0 ** (self.steps % 5 + 3)


def noise_with(monkeypatch: pytest.MonkeyPatch, scaler: Scaler | None, accumulation: int) -> Noise:
    monkeypatch.setenv("GSCHED_BATCH_PER_GPU", "8")
    monkeypatch.setenv("GSCHED_ACCUMULATION", str(accumulation))
    alone = elastic.Alone.HALVES if accumulation else elastic.Alone.DIFFERENCES
    training, model, optimizer, data = started(elastic.Adaptive(scaler=scaler, alone=alone))
    for _ in training.epochs():
        for parts in training.steps(data):
            optimizer.zero_grad()
            scale = scaler.get_scale() if scaler is not None else 1.0
            for batch in parts:
                (scale * training.weight * loss_of(model, batch)).backward()
            for parameter in model.parameters():
                parameter.grad /= scale
            optimizer.step()
            training.step()
            if scaler is not None:
                scaler.steps += 1
    assert training.noise is not None
    return training.noise


@pytest.mark.parametrize("accumulation", [0, 3])
def test_noise_is_that_of_the_losses_without_their_scale(
    monkeypatch: pytest.MonkeyPatch, accumulation: int
) -> None:
    plain = noise_with(monkeypatch, None, accumulation)
    scaled = noise_with(monkeypatch, Scaler(), accumulation)

    assert scaled.sqr == pytest.approx(plain.sqr, rel=1e-4)
    assert scaled.var == pytest.approx(plain.var, rel=1e-4)
    assert plain.var > 1e-6


def test_schedule_counts_tuned_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GSCHED_BATCH_PER_GPU", "8")
    monkeypatch.setenv("GSCHED_ACCUMULATION", "3")
    training, model, optimizer, data = started()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.9)
    seen = []
    for _ in training.epochs():
        for parts in training.steps(data):
            optimizer.zero_grad()
            for batch in parts:
                (training.weight * loss_of(model, batch)).backward()
            optimizer.step()
            training.step()
            training.advance(schedule)
            seen.append((training.scale_invariant_steps, schedule.last_epoch))

    assert [count for _, count in seen] == [math.floor(progress) for progress, _ in seen]
    assert len(seen) == 4
    assert 4.5 < seen[-1][0] < 16
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.9 ** seen[-1][1])

"""Profiling batch sizes: it measures what a pass takes, finds the limit, and changes nothing."""

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gsched import elastic
from gsched.elastic.adaptive.profiling import Calls, profile, sizes_between
from gsched.model.reports import ProgressReport
from tests.support.cluster import wait_until
from tests.support.elastic_listener import Listener
from tests.support.late_torch import IN_ONE_WORKER, models, torch

pytestmark = IN_ONE_WORKER

COUNT, TUNED, LARGEST = 96, 12, 192


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Outside gsched, and with the global generators as they were."""
    for name in list(os.environ):
        if name.startswith("GSCHED_"):
            monkeypatch.delenv(name)
    state, pythons, threads = torch.get_rng_state(), random.getstate(), torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.set_rng_state(state)
    random.setstate(pythons)


def network(*first: Any) -> Any:
    nn = torch.nn
    return nn.Sequential(
        *first, nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Tanh(), nn.Linear(8, 1)
    )


def out_of_memory() -> Exception:
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")  # type: ignore[no-any-return]  # torch is Any here


def train(
    *first: Any,
    profile_at: int = 0,
    seen: list[int] | None = None,
    own: Any = None,
    each: Callable[[elastic.AdaptiveTraining], None] = lambda _: None,
) -> tuple[elastic.AdaptiveTraining, Any, list[Any]]:
    """Train two epochs; return the training and all the state that there is in the end."""
    random.seed(5)
    torch.manual_seed(5)
    model = network(*first)
    points = torch.randn(COUNT, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    training = elastic.start(
        model,
        optimizer,
        elastic.Samples(COUNT, global_batch=TUNED, epochs=2),
        also={} if own is None else {"noise": own},
        adaptive=elastic.Adaptive(batch_max=LARGEST),
    )
    used: list[Any] = []
    for _ in training.epochs():
        for parts in training.steps():
            optimizer.zero_grad()
            for indices in parts:
                used.append(indices)
                if seen is not None:
                    seen.append(len(indices))
                (training.weight * model(points[indices]).square().mean()).backward()
            optimizer.step()
            if training.step_count == 12:
                training.checkpoint()
            each(training)
            training.step()
            if training.step_count == profile_at:
                training.profile()
    state = [
        *model.state_dict().values(),
        *(part for each in optimizer.state.values() for part in each.values()),
        *(each.grad for each in model.parameters()),
        torch.get_rng_state(),
    ]
    return training, [each.detach().clone() for each in state], [used, random.getstate()]


def test_profile_leaves_every_bit_as_it_was() -> None:
    """Weights, buffers, optimiser, gradients, generators, and which samples are used."""
    noisy = models.Noisy(own := torch.Generator().manual_seed(3))
    _, expected, others = train(noisy, own=own)
    plain_sizes = set(noisy.sizes)
    noisy = models.Noisy(own := torch.Generator().manual_seed(3))
    _, found, found_others = train(noisy, own=own, profile_at=3)

    assert set(noisy.sizes) - plain_sizes >= set(sizes_between(TUNED, LARGEST)) - plain_sizes
    assert len(set(noisy.sizes)) >= 10
    assert found_others == others
    assert len(found) == len(expected)
    for one, other in zip(expected, found, strict=True):
        assert torch.equal(one, other)


def told(training: elastic.AdaptiveTraining) -> ProgressReport:
    """Return what the training tells besides its progress, as the head decodes it."""
    training._more_progress(1.0)  # the first report is of the first step
    body = training._more_progress(1.0)
    return msgspec.convert({"step": 1, **body}, ProgressReport, strict=True)


@pytest.mark.parametrize(
    "error",
    [
        out_of_memory,
        lambda: RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"),
    ],
)
def test_new_training_finds_what_fits_and_never_tries_more(
    monkeypatch: pytest.MonkeyPatch, error: Callable[[], Exception]
) -> None:
    """The tuned batch itself does not fit: it is trained in two parts."""
    monkeypatch.setenv("GSCHED_PROFILE_BATCHES", "1")
    seen: list[int] = []
    training, _, (used, _) = train(models.Bounded(7, error), seen=seen)
    report = told(training)

    assert max(seen) <= 6
    assert {2} == set(seen[:18])  # three steps of small micro-batches
    assert {6} == set(seen[18:])
    assert Counter(chain(*used)) == dict.fromkeys(range(COUNT), 2)
    assert report.batch_per_gpu_max in (6, 7)
    assert (report.batch_per_gpu, report.accumulation) == (6, 1)
    assert [each.batch_per_gpu for each in report.profile] == [2, 3, 6] + (
        [7] if report.batch_per_gpu_max == 7 else []
    )


def test_limit_is_remembered_with_the_checkpoint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of the same kind of device; another one is not held to it."""
    monkeypatch.setenv("GSCHED_PROFILE_BATCHES", "1")
    monkeypatch.setenv("GSCHED_CHECKPOINT_DIR", str(tmp_path))
    monkeypatch.setenv("GSCHED_CHECKPOINT_INTERVAL_S", "0")
    train(models.Bounded(7, out_of_memory))
    monkeypatch.delenv("GSCHED_PROFILE_BATCHES")
    again = elastic.start(
        (model := network(models.Bounded(7, out_of_memory))),
        torch.optim.Adam(model.parameters()),
        elastic.Samples(COUNT, global_batch=TUNED, epochs=2),
        adaptive=elastic.Adaptive(),
    )

    assert again.restored_step == 13
    assert (again.batch_per_gpu, again.accumulation) == (6, 1)
    again._learned.limits = {"other": 3}
    assert (again.batch_per_gpu, again.accumulation) == (12, 0)


def test_profile_tells_what_steps_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GSCHED_PROFILE_BATCHES", "1")
    training, _, _ = train(models.Slow())
    report = told(training)

    assert (report.batch, report.batch_max) == (TUNED, LARGEST)
    assert report.batch_per_gpu_max == 0
    assert len(report.profile) == 10
    assert [each.batch_per_gpu for each in report.profile] == sizes_between(TUNED, LARGEST)
    for each in report.profile:
        least_s = 0.02 + 0.003 * each.batch_per_gpu
        assert each.step_s >= least_s
        assert each.gradient_s == each.step_s
    assert report.profile[-1].step_s > 2 * report.profile[0].step_s


def test_profile_ends_with_its_budget() -> None:
    model = network(models.Slow())
    calls = Calls(model)
    calls.begin(4)
    model(torch.randn(4, 4))
    found = profile(model, calls, [2, 4, 8, 1000], budget_s=1.5)

    sizes = [each.size for each in found.times]
    assert sizes in ([2], [2, 4], [2, 4, 8])  # a pass of 1,000 takes 3 s, and there are two
    assert (found.limit, found.fault) == (0, None)


@pytest.mark.parametrize("error", [ValueError("no so many"), RuntimeError("shapes differ")])
def test_model_that_cannot_be_profiled_is_trained(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    first = models.Bounded(20, lambda: error)
    words = f"{type(error).__name__}: {error}"
    _, expected, others = train(first)
    training, found, found_others = train(first, profile_at=3)

    assert f"batch sizes are not profiled: {words}" in capsys.readouterr().err
    assert found_others == others
    assert all(map(torch.equal, expected, found))
    assert all(each.batch_per_gpu <= 20 for each in told(training).profile)


def test_model_that_is_not_called_is_told() -> None:
    calls = Calls(network())
    calls.begin(4)

    assert "the model was not called" in str(profile(network(), calls, [2, 4]).fault)


@pytest.mark.parametrize(
    ("tuned", "batch_max", "least", "most"),
    [(128, 4096, 8, 4096), (128, 0, 8, 2048), (4, 8, 2, 8), (1, 1, 1, 1), (8, 8, 2, 8)],
)
def test_sizes_are_about_ten_with_equal_ratios(
    tuned: int, batch_max: int, least: int, most: int
) -> None:
    sizes = sizes_between(tuned, batch_max)

    assert (sizes[0], sizes[-1]) == (least, most)
    assert sizes == sorted(set(sizes))
    assert len(sizes) == min(10, most - least + 1)


def reports(listener: Listener, training: elastic.AdaptiveTraining) -> list[ProgressReport]:
    """Return all reports of a training job that has finished, once the last one has arrived."""
    wait_until(
        lambda: listener.all("progress")[-1]["step"] == training.step_count, what="the last report"
    )
    return [msgspec.convert(each, ProgressReport, strict=True) for each in listener.all("progress")]


def test_reports_hold_what_a_goodput_is_estimated_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first one nothing of the batch: the first step takes longer than others."""
    listener = Listener()
    monkeypatch.setenv("GSCHED_ELASTIC_SOCKET", listener.name)
    monkeypatch.setenv("GSCHED_BATCH_PER_GPU", "8")
    monkeypatch.setenv("GSCHED_ACCUMULATION", "2")
    try:
        training, _, _ = train(models.Slow())
        training.finish()
        first, *_, last = reports(listener, training)
    finally:
        listener.close()

    assert (first.step, first.batch_per_gpu, first.gradient_s) == (1, 0, 0.0)
    assert (last.batch_per_gpu, last.accumulation) == (8, 2)
    assert last.step_s >= 3 * 0.044
    assert last.gradient_s == pytest.approx(last.step_s / 3)
    assert last.gradient_var > 0
    assert last.gradient_sqr > 0
    assert last.work_total == 2 * COUNT


def test_batch_changes_while_the_training_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Told by the node, in the middle of an epoch: each sample is still used once."""
    listener = Listener()
    monkeypatch.setenv("GSCHED_ELASTIC_SOCKET", listener.name)

    def tune(training: elastic.AdaptiveTraining) -> None:
        if training.step_count == 3:
            listener.wait_for("progress")
            listener.say(tune={"per_gpu": 8, "accumulation": 2})
            talk: Any = training._reporter._conversation
            wait_until(lambda: talk._tuning is not None, 60.0, what="the batch size")

    try:
        training, _, (used, _) = train(each=tune)
        training.finish()
        *_, last = reports(listener, training)
    finally:
        listener.close()

    sizes = [len(indices) for indices in used]
    assert sizes[-12:] == [8] * 12
    assert Counter(chain(*used)) == dict.fromkeys(range(COUNT), 2)
    assert (last.batch_per_gpu, last.accumulation) == (8, 2)

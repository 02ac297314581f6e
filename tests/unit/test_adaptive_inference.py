"""Adaptive jobs that infer: each sample once, forward passes only, batches as gsched says."""

import os
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import Any

import msgspec
import pytest

from gsched import elastic
from gsched.model.reports import ProgressReport
from tests.support.late_torch import IN_ONE_WORKER, torch

pytestmark = IN_ONE_WORKER

COUNT, BATCH, LARGEST = 100, 8, 64


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Outside gsched."""
    for name in list(os.environ):
        if name.startswith("GSCHED_"):
            monkeypatch.delenv(name)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def infer(model: Any, *, stop: int = 0) -> tuple[elastic.AdaptiveTraining, list[list[int]]]:
    """Go through the samples once; stop at a checkpoint after so many steps."""
    training = elastic.start(
        model,
        [],
        elastic.Samples(COUNT, global_batch=BATCH, drop_last=False, shuffle=False),
        adaptive=elastic.Adaptive(batch_max=LARGEST, inference=True),
    )
    points = torch.randn(COUNT, 4)
    used: list[list[int]] = []
    for _ in training.epochs():
        for parts in training.steps():
            if stop and training.step_count >= stop:
                return training, used
            for indices in parts:
                used.append(indices)
                with torch.no_grad():
                    model(points[indices])
            if training.step_count + 1 == stop:
                training.checkpoint()
            training.step()
    return training, used


def network() -> Any:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh())
    return model.requires_grad_(requires_grad=False)


def test_each_sample_is_used_once_with_the_batch_of_gsched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GSCHED_BATCH_PER_GPU", "24")
    training, used = infer(network())

    assert [len(each) for each in used] == [24, 24, 24, 24, 4]
    assert Counter(chain(*used)) == dict.fromkeys(range(COUNT), 1)
    assert training.noise is None


def test_batch_max_is_that_of_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """It bounds profiles; gsched may give each of many ranks as much."""
    monkeypatch.setenv("GSCHED_BATCH_PER_GPU", "90")
    _, used = infer(network())

    assert [len(each) for each in used] == [90, 10]


def test_forward_passes_are_profiled_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GSCHED_PROFILE_BATCHES", "1")
    model = network()
    before = [each.clone() for each in model.parameters()]
    training, used = infer(model)
    training._more_progress(1.0)
    body = training._more_progress(0.5)
    report = msgspec.convert({"step": 1, **body}, ProgressReport, strict=True)

    assert Counter(chain(*used)) == dict.fromkeys(range(COUNT), 1)
    assert [each.batch_per_gpu for each in report.profile][-1] == LARGEST
    assert len(report.profile) >= 9
    assert report.gradient_s == 0.5
    assert (report.gradient_sqr, report.gradient_var, report.batch) == (0.0, 0.0, BATCH)
    assert all(map(torch.equal, before, model.parameters()))


def test_a_job_that_is_stopped_goes_on_with_the_samples_that_are_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("GSCHED_CHECKPOINT_DIR", str(tmp_path))
    monkeypatch.setenv("GSCHED_CHECKPOINT_INTERVAL_S", "0")
    model = network()
    _, first = infer(model, stop=5)
    monkeypatch.setenv("GSCHED_BATCH_PER_GPU", "30")
    training, rest = infer(model)

    assert training.restored_step == 5
    assert Counter(chain(*first, *rest)) == dict.fromkeys(range(COUNT), 1)
    assert len(rest[0]) == 30


def test_progress_is_not_for_inference() -> None:
    with pytest.raises(ValueError, match="makes no progress"):
        elastic.Adaptive(inference=True, until=elastic.Until.PROGRESS)

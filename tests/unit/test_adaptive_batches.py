"""Micro-batches of adaptive training jobs: each sample once, whatever changes between attempts."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gsched import elastic
from gsched.elastic.adaptive.batches import (
    AdaptiveSamples,
    adaptive_samples,
    batching,
    is_regular,
    split,
)
from gsched.elastic.environment import Environment
from gsched.elastic.errors import BadEnvironmentError
from gsched.elastic.samples import Samples


def made(samples: Samples, batch: int) -> AdaptiveSamples:
    return adaptive_samples(samples, batch, 0, endless=False)


@given(
    st.integers(1, 200).flatmap(lambda count: st.tuples(st.just(count), st.integers(1, count))),
    st.sampled_from(["drop", "keep"]),
    st.data(),
)
def test_every_sample_of_an_epoch_is_used_once_with_any_changing_batch(
    sizes: tuple[int, int], last: str, data: st.DataObject
) -> None:
    count, tuned = sizes
    samples = Samples(count, tuned, drop_last=last == "drop")
    offset, used = 0, list[int]()
    while True:
        world_size = data.draw(st.integers(1, 5))
        now = made(samples, data.draw(st.integers(world_size, 80)))
        per_gpu = data.draw(st.integers(1, 40))
        size = now.batch_at(offset)
        if size == 0:
            break
        weights = 0.0
        for rank in range(world_size):
            parts = split(size, offset, rank, world_size, per_gpu)
            assert parts
            weights += sum(part.weight for part in parts)
            for part in parts:
                assert 0 < part.end - part.begin <= per_gpu
                if part.weight > 0:
                    assert part.weight == (part.end - part.begin) * world_size / size
                    used += range(part.begin, part.end)
        assert weights == pytest.approx(world_size)
        offset += size

    assert used == list(range(count - (count % tuned if samples.drop_last else 0)))
    assert samples.per_epoch == len(used)


@given(st.integers(1, 400), st.integers(1, 6), st.integers(1, 50))
def test_regular_steps_have_micro_batches_of_about_one_size(
    size: int, world_size: int, per_gpu: int
) -> None:
    parts = [split(size, 0, rank, world_size, per_gpu) for rank in range(world_size)]
    found = {part.end - part.begin for each in parts for part in each}
    alike = len({len(each) for each in parts}) == 1 and min(found) >= 0.9 * max(found)
    alike = alike and all(part.weight > 0 for each in parts for part in each)

    assert is_regular(size, world_size, per_gpu) == alike


@pytest.mark.parametrize(
    ("variables", "world_size", "expected"),
    [
        ({}, 1, (128, 128)),
        ({}, 4, (128, 32)),
        ({}, 3, (128, 43)),
        ({}, 200, (200, 1)),
        ({"GSCHED_BATCH_PER_GPU": "64"}, 4, (256, 64)),
        ({"GSCHED_BATCH_PER_GPU": "64", "GSCHED_ACCUMULATION": "3"}, 2, (512, 64)),
        ({"GSCHED_ACCUMULATION": "3"}, 2, (128, 64)),
        ({"GSCHED_BATCH_PER_GPU": "43"}, 3, (128, 43)),  # the tuned batch, divided unevenly
        ({"GSCHED_BATCH_PER_GPU": "22", "GSCHED_ACCUMULATION": "1"}, 3, (128, 22)),
        ({"GSCHED_BATCH_PER_GPU": "1"}, 200, (200, 1)),
        ({"GSCHED_BATCH_PER_GPU": "900", "GSCHED_ACCUMULATION": "3"}, 2, (1000, 900)),
    ],
)
def test_batch_follows_the_environment(
    variables: dict[str, str], world_size: int, expected: tuple[int, int]
) -> None:
    read = Environment.read(variables)

    assert batching(128, 1000, read.batch_per_gpu, read.accumulation, world_size) == expected


@pytest.mark.parametrize("text", ["-1", "1.5", "many", "inf"])
def test_variables_that_make_no_sense_are_refused(text: str) -> None:
    for name in ("GSCHED_BATCH_PER_GPU", "GSCHED_ACCUMULATION", "GSCHED_PROFILE_BATCHES"):
        with pytest.raises(BadEnvironmentError, match=name):
            Environment.read({name: text})


def test_profiling_is_asked_for_with_one() -> None:
    for text, asked in (("", False), ("0", False), ("1", True)):
        assert Environment.read({"GSCHED_PROFILE_BATCHES": text}).profile_batches is asked


@pytest.mark.parametrize(
    ("given_", "accepted", "refused"),
    [
        ({}, (1, 3, 128, 200), (201,)),
        ({"world_sizes": (2, 4)}, (2, 4), (1, 3, 8)),
    ],
)
def test_ranks_up_to_the_largest_batch_are_accepted(
    given_: dict[str, Any], accepted: tuple[int, ...], refused: tuple[int, ...]
) -> None:
    samples = adaptive_samples(Samples(5000, 128, **given_), 128, 200, endless=False)

    for number in accepted:
        assert samples.fault_from(number, 77) is None
        assert number in samples.accepted(1 << 16)
    for number in refused:
        fault = samples.fault_from(number, 77)
        assert fault is not None
        assert fault.startswith(f"it cannot run on {number} ranks: it")
    assert samples.accepted_from(77) == samples.accepted()


def test_a_model_that_is_split_accepts_whole_replicas() -> None:
    samples = adaptive_samples(Samples(5000, 128), 128, 200, endless=False, replica_ranks=4)

    assert samples.accepted(13) == (4, 8, 12)
    assert samples.fault(800) is None
    assert samples.fault(804) is not None
    fault = samples.fault(6)
    assert fault == "it cannot run on 6 ranks: each replica of its model is split over 4"


def test_replicas_have_a_rank_at_least() -> None:
    with pytest.raises(ValueError, match="replica_ranks=0: should be a whole number from 1"):
        elastic.Adaptive(replica_ranks=0)


def test_work_of_a_training_is_that_of_the_tuned_batch() -> None:
    samples = Samples(1010, 100, epochs=3)
    endless = adaptive_samples(samples, 400, 0, endless=True)

    assert (endless.total, endless.steps_tuned) == (3000, 30)
    assert endless.epochs > 1_000_000
    assert made(samples, 400).epochs == 3

"""Which samples a step uses; the order itself needs torch and is met in tests/system."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gsched.elastic.errors import StepError, WorldSizeError
from gsched.elastic.samples import Position, SampleOrder, Samples, order_seed


@st.composite
def training_jobs(draw: st.DrawFn) -> Samples:
    count = draw(st.integers(1, 60))
    return Samples(
        count,
        draw(st.integers(1, count)),
        epochs=draw(st.integers(1, 3)),
        shuffle=False,
        drop_last=draw(st.booleans()),
        uneven=draw(st.booleans()),
    )


@given(training_jobs(), st.data())
def test_every_sample_of_an_epoch_is_used_once_on_any_changing_number_of_ranks(
    samples: Samples, data: st.DataObject
) -> None:
    """The number of ranks is drawn anew for each step; each rank gets at least one sample."""
    order, position, used = SampleOrder(samples), Position(), list[int]()
    while (batch := samples.batch_at(position.offset)) > 0:
        world_size = data.draw(st.sampled_from(samples.accepted()))
        assert samples.fault(world_size) is None
        for rank in range(world_size):
            begin, end = samples.part(batch, rank, world_size)
            assert end > begin
            if not samples.uneven:
                assert (end - begin) * world_size == batch
            used += order.part(0, position.offset + begin, position.offset + end)
        position = position.after_step(samples)

    assert used == list(range(samples.per_epoch))
    assert position.samples_done == samples.per_epoch
    assert samples.count - samples.per_epoch < samples.global_batch
    if not samples.drop_last:
        assert samples.per_epoch == samples.count


@given(training_jobs(), st.integers(0, 60), st.data())
def test_an_epoch_that_had_another_batch_before_ends_with_parts_for_all(
    samples: Samples, offset: int, data: st.DataObject
) -> None:
    """As with a batch of so many samples for each rank, after a change of their number."""
    offset = min(offset, samples.count)
    accepted = samples.accepted(offset=offset)
    assert accepted
    world_size = data.draw(st.sampled_from(accepted))
    samples.check(world_size, offset)
    while (batch := samples.batch_at(offset)) > 0:
        parts = [samples.part(batch, rank, world_size) for rank in range(world_size)]
        sizes = {end - begin for begin, end in parts}
        assert min(sizes) > 0
        assert samples.uneven or len(sizes) == 1
        offset += batch

    assert samples.count - offset < (samples.global_batch if samples.drop_last else 1)


@given(training_jobs(), st.integers(1, 64))
def test_what_is_told_as_accepted_is_what_is_accepted(samples: Samples, world_size: int) -> None:
    assert (world_size in samples.accepted()) == (samples.fault(world_size) is None)


@pytest.mark.parametrize(
    ("samples", "world_size", "words"),
    [
        (Samples(100, 8), 3, "global batch, 8 samples, does not split into equal parts"),
        (Samples(100, 8), 3, "it does on 1, 2, 4 or 8"),
        (Samples(100, 8), 16, "global batch is 8 samples, less than one for each rank"),
        (Samples(100, 8, drop_last=False), 8, "last batch of an epoch is 4 samples, less than one"),
        (Samples(99, 8, drop_last=False), 2, "last batch of an epoch, 3 samples, does not split"),
        (Samples(100, 8, world_sizes=(2, 4)), 8, "it says that it can on 2 or 4"),
        (Samples(100, 8, world_sizes=(2, 3)), 3, "does not split into equal parts (it does on 2)"),
    ],
)
def test_ranks_that_do_not_do_are_refused_in_words(
    samples: Samples, world_size: int, words: str
) -> None:
    with pytest.raises(WorldSizeError) as refused:
        samples.check(world_size)

    assert words in str(refused.value)
    assert refused.value.code == 78


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"count": 0, "global_batch": 1}, "count=0"),
        ({"count": 4, "global_batch": 0}, "global_batch=0"),
        ({"count": 4, "global_batch": 8}, "more than the 4 samples"),
        ({"count": 4, "global_batch": 2, "epochs": -1}, "epochs=-1"),
        ({"count": 4.5, "global_batch": 2}, "count=4.5"),
        ({"count": 4, "global_batch": 2, "seed": 1.5}, "seed=1.5"),
    ],
)
def test_impossible_data_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Samples(**arguments)


def test_steps_count_over_epochs_and_end_with_them() -> None:
    samples = Samples(10, 4, epochs=2)
    position = Position().after_step(samples).after_step(samples)
    assert (position.step, position.offset, position.samples_done) == (2, 8, 8)
    with pytest.raises(StepError):
        position.after_step(samples)  # two are left over
    position = position.next_epoch().after_step(samples)
    assert (position.epoch, position.step, position.offset, position.samples_done) == (1, 3, 4, 12)
    with pytest.raises(StepError):
        position.next_epoch().after_step(samples)


def test_neighbouring_seeds_share_no_order() -> None:
    seeds = {order_seed(seed, epoch) for seed in range(20) for epoch in range(20)}

    assert len(seeds) == 400
    assert all(0 <= seed < 1 << 63 for seed in seeds)

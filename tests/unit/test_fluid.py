"""Shares of GPUs over time, on cases computed by hand."""

import pytest
from msgspec import structs

from gschedd.allocation.fluid import Grid, Need, steps_for
from gschedd.allocation.shares import Levels, Timeline

#: Twice the GPUs are not quite twice as fast.
LEVELS = Levels(gpus=(1, 2, 4), rates=(1.0, 1.8, 3.0))


def grid(gpus: int, *, now_gpus: int | None = None) -> Grid:
    """Return steps of 100 s from 0 to 400 s."""
    timeline = Timeline(0.0, gpus)
    return Grid.of(
        timeline, [0.0, 100.0, 200.0, 300.0, 400.0], gpus if now_gpus is None else now_gpus
    )


def need(work: float, deadline_s: float, **changes: object) -> Need:
    return structs.replace(Need(job=1, deadline_s=deadline_s, work=work, levels=LEVELS), **changes)


def test_the_lowest_level_in_time_is_taken_and_no_more() -> None:
    """300 of work in 200 s need 1.5 a second: two GPUs, for 166.7 s."""
    free = grid(4)

    share = free.take_share(need(300.0, 200.0))

    assert share is not None
    assert (share.level, share.gpus) == (2, 2)
    assert share.end_s == pytest.approx(300 / 1.8)
    assert free.free == pytest.approx([2.0, 4 - 2 * (300 / 1.8 - 100) / 100, 4.0, 4.0])


def test_what_cannot_be_in_time_takes_nothing() -> None:
    """Four GPUs do 300 in 100 s, not 301."""
    free = grid(4)

    assert free.take_share(need(301.0, 100.0)) is None
    assert free.free == [4.0] * 4
    assert free.take_share(need(300.0, 100.0)) is not None


def test_where_less_is_free_less_is_taken() -> None:
    """One GPU now, four later: 100 in the first step, the rest on two GPUs."""
    free = grid(4, now_gpus=1)

    share = free.take_share(need(280.0, 200.0))

    assert share is not None
    assert (share.level, share.gpus) == (2, 1)
    assert share.end_s == pytest.approx(200.0)
    assert free.free == pytest.approx([0.0, 2.0, 4.0, 4.0])


def test_a_change_of_the_number_costs_its_time() -> None:
    """From four GPUs to one costs 20 s: 90 of work then end at 110 s, and 81 s are too few."""
    begun = need(90.0, 110.0, has=4, begun=True, move_s=20.0)

    share = grid(4).take_share(begun)
    assert share is not None
    assert share.level == 1
    assert share.end_s == pytest.approx(110.0)

    sooner = grid(4).take_share(structs.replace(begun, deadline_s=109.0))
    assert sooner is not None
    assert sooner.level == 2


def test_what_cannot_be_moved_gets_one_number_without_a_break() -> None:
    """All is taken in the second step, so it waits for the third."""
    free = grid(4)
    free.free[1] = 0.0

    share = free.take_share(need(150.0, 400.0, rigid=True))

    assert share is not None
    assert (share.level, share.gpus) == (1, 0)
    assert share.end_s == pytest.approx(350.0)
    assert free.free == pytest.approx([4.0, 0.0, 3.0, 3.5])


def test_what_starts_has_done_a_part_before_it_can_be_changed() -> None:
    """On two GPUs it does 180 in the first step; 100 more take one GPU, not begun anew."""
    held = need(280.0, 200.0, has=2, begun=True, held=True, held_rate=1.8)
    free = grid(4, now_gpus=0)

    share = free.take_share(held)

    assert share is not None
    assert share.level == 1
    assert share.end_s == pytest.approx(200.0)
    assert free.free == pytest.approx([0.0, 3.0, 4.0, 4.0])


def test_nothing_is_done_before_the_first_step() -> None:
    """Of 200 s 30 are lost: one GPU does 170 in what is left, two are needed for more."""
    share = grid(4).take_share(need(170.0, 200.0, startup_s=30.0))
    more = grid(4).take_share(need(171.0, 200.0, startup_s=30.0))

    assert share is not None
    assert share.level == 1
    assert share.end_s == pytest.approx(200.0)
    assert more is not None
    assert more.level == 2
    assert more.end_s == pytest.approx(30 + 171 / 1.8)


def test_the_start_is_lost_when_it_begins_not_while_it_waits() -> None:
    """Nothing is free in the first step, so the start takes 30 s of the second."""
    free = grid(4, now_gpus=0)

    share = free.take_share(need(70.0, 200.0, startup_s=30.0))

    assert share is not None
    assert (share.level, share.gpus) == (1, 0)
    assert share.end_s == pytest.approx(200.0)


def test_what_cannot_be_moved_holds_its_gpus_while_it_starts() -> None:
    """70 of work and 30 s of start fill a step, 71 need two GPUs."""
    free = grid(4)

    share = free.take_share(need(70.0, 100.0, startup_s=30.0, rigid=True))
    more = grid(4).take_share(need(71.0, 100.0, startup_s=30.0, rigid=True))

    assert share is not None
    assert share.level == 1
    assert share.end_s == pytest.approx(100.0)
    assert free.free[0] == 3.0
    assert more is not None
    assert more.level == 2


def test_one_that_runs_has_what_is_left_of_its_start_before_its_steps() -> None:
    """Its number unchanged: 30 s; changed: the time of the change instead."""
    begun = need(70.0, 100.0, has=1, begun=True, startup_s=30.0, move_s=50.0)
    stays = grid(4).take_share(begun)
    changes = grid(4).take_share(structs.replace(begun, work=80.0))

    assert stays is not None
    assert stays.level == 1
    assert stays.end_s == pytest.approx(100.0)
    assert changes is not None
    assert changes.level == 2
    assert changes.end_s == pytest.approx(50 + 80 / 1.8)


def test_what_is_held_does_nothing_while_it_starts() -> None:
    """Of the first 100 s 40 are lost: on two GPUs it does 108 in it, and 72 later on one."""
    held = need(180.0, 200.0, has=2, begun=True, held=True, held_rate=1.8, startup_s=40.0)
    share = grid(4, now_gpus=0).take_share(held)
    quick = grid(4, now_gpus=0).take_share(structs.replace(held, work=90.0))

    assert share is not None
    assert share.end_s == pytest.approx(172.0)
    assert quick is not None
    assert quick.end_s == pytest.approx(40 + 90 / 1.8)


def test_a_grid_sums_up_a_profile() -> None:
    """Two of four GPUs are held for half of the first step."""
    timeline = Timeline(0.0, 4)
    timeline.take(2, until_s=50.0)

    found = Grid.of(timeline, [0.0, 100.0, 200.0], 4)

    assert (found.starts_s, found.lasts_s) == ([0.0, 100.0], [100.0, 100.0])
    assert found.free == pytest.approx([3.0, 4.0])


def test_a_part_is_kept_of_what_begins_later() -> None:
    assert grid(4).kept_back(0.25, 150.0).free == [4.0, 4.0, 3.0, 3.0]


def test_steps_end_at_deadlines_and_are_not_too_many() -> None:
    """All deadlines where they are few; about as many steps as asked for where they are not."""
    few = steps_for(0.0, [500.0, 900.0, -5.0], 8)
    many = steps_for(0.0, [float(each) for each in range(100, 10_100, 100)], 16)

    assert few[0] == 0.0
    assert few[-1] == 900.0
    assert 500.0 in few
    assert (many[0], many[-1]) == (0.0, 10_000.0)
    assert len(many) <= 18
    assert steps_for(0.0, [-5.0], 8) == [0.0]

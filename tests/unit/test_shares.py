"""Minimum satisfactory shares, by cases computed by hand and by trying every level."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gschedd.allocation.shares import (
    NOTHING,
    Demand,
    Levels,
    MinimumShare,
    Shares,
    Timeline,
    claim,
    least_level,
    levels_of,
)

#: Twice the GPUs, twice the speed, up to four; eight give no more than six would.
LEVELS = Levels(gpus=(1, 2, 4, 8), rates=(1.0, 2.0, 4.0, 6.0))


def demand(job: int, deadline_s: float, work: float, levels: Levels = LEVELS) -> Demand:
    return Demand(job=job, deadline_s=deadline_s, work=work, levels=levels)


def test_numbers_that_are_not_faster_are_no_levels() -> None:
    rates = {1: 3.0, 2: 2.0, 4: 3.0, 8: 5.0, 16: 5.0, 32: 0.0}

    assert levels_of([8, 4, 2, 1, 16, 32, 8], rates.__getitem__) == Levels(
        gpus=(1, 8), rates=(3.0, 5.0)
    )


def test_the_least_level_is_the_lowest_that_is_in_time() -> None:
    """100 of work: on two GPUs it takes 50 s, on one 100 s."""
    idle = Timeline(0.0, 8)

    assert least_level(idle, LEVELS, 100, 100.0) == 0
    assert least_level(idle, LEVELS, 100, 99.0) == 1
    assert least_level(idle, LEVELS, 100, 50.0) == 1
    assert least_level(idle, LEVELS, 100, 49.0) == 2
    assert least_level(idle, LEVELS, 100, 100 / 6 - 0.01) is None
    assert least_level(idle, LEVELS, 100, -1.0) is None


def test_where_less_is_free_the_largest_level_that_fits_is_had() -> None:
    """Three GPUs free for 10 s, then eight: 20 of work on two, then 60 on eight in 10 s."""
    timeline = Timeline(0.0, 8)
    timeline.take(5, until_s=10.0)

    assert least_level(timeline, LEVELS, 80, 20.0) == 3
    assert least_level(timeline, LEVELS, 81, 20.0) is None
    taken = claim(timeline, LEVELS, 3, 80)
    assert taken == MinimumShare(level=8, gpus=2, end_s=20.0, gpu_s=2 * 10 + 8 * 10)
    assert (timeline.starts_s, timeline.free) == ([0.0, 10.0, 20.0], [1, 0, 8])


def test_two_training_jobs_share_the_slots() -> None:
    """The one with the earlier deadline takes what it needs, the other what is left, then all.

    On four GPUs: 40 of work by 20 s need two of them for 20 s. Then 120 of work by 45 s: with two
    for 20 s and four for 20 s more it is done at 40 s; on two alone it would take until 60 s.
    """
    shares = Shares(Timeline(0.0, 4), [demand(2, 45.0, 120), demand(1, 20.0, 40)])

    assert shares.late == set()
    assert shares.claims[1] == MinimumShare(level=2, gpus=2, end_s=20.0, gpu_s=40.0)
    assert shares.claims[2] == MinimumShare(level=4, gpus=2, end_s=40.0, gpu_s=2 * 20 + 4 * 20)
    assert list(zip(shares.timeline.starts_s, shares.timeline.free, strict=True)) == [
        (0.0, 0),
        (20.0, 0),
        (40.0, 4),
    ]


def test_who_would_make_another_late_is_not_admitted() -> None:
    """The cluster is full until 20 s: an earlier deadline would take what the others need."""
    shares = Shares(Timeline(0.0, 4), [demand(1, 20.0, 80)])
    before = dict(shares.claims)

    assert not shares.admit(demand(2, 10.0, 10)), "it would be in time, but job 1 would not"
    assert not shares.admit(demand(3, 22.0, 20)), "it would be late itself: 8 of 20 by then"
    assert not shares.admit(demand(4, 2.0, 13)), "impossible on an idle cluster"
    assert shares.claims == before
    assert shares.admit(demand(5, 25.0, 20)), "four GPUs from 20 s to 25 s"
    assert shares.claims[5].end_s == 25.0


def test_who_is_late_anyway_does_not_stand_in_the_way() -> None:
    """What nobody can save is not a reason to refuse others."""
    shares = Shares(Timeline(0.0, 4), [demand(1, 20.0, 81)])

    assert shares.late == {1}
    assert shares.admit(demand(2, 10.0, 40))
    assert shares.late == {1}
    assert shares.claims[2].gpus == 4


def test_several_are_admitted_together_or_none_of_them() -> None:
    """Each alone would be in time."""
    shares = Shares(Timeline(0.0, 4))

    assert not shares.admit(demand(1, 10.0, 30), demand(2, 10.0, 30))
    assert shares.claims == {}
    assert shares.admit(demand(1, 10.0, 20), demand(2, 10.0, 20))
    assert {job: claimed.gpus for job, claimed in shares.claims.items()} == {1: 2, 2: 2}


def test_of_equal_deadlines_the_lower_id_is_first() -> None:
    shares = Shares(Timeline(0.0, 1), [demand(2, 10.0, 6), demand(1, 10.0, 6)])

    assert set(shares.claims) == {1}
    assert shares.late == {2}


def test_what_others_hold_comes_back_when_it_ends() -> None:
    """One that runs without a deadline holds three GPUs until 30 s, another one two for ever."""
    timeline = Timeline(5.0, 6)
    timeline.take(3, until_s=30.0)
    timeline.take(2)

    assert list(timeline.between(50.0)) == [(25.0, 1), (20.0, 4)]
    assert claim(timeline, LEVELS, 2, 25 + 80) == MinimumShare(
        level=4, gpus=1, end_s=50.0, gpu_s=25 + 4 * 20
    )


def test_nothing_is_claimed_where_there_is_nothing_to_do_or_to_have() -> None:
    full = Timeline(0.0, 0)

    assert claim(full, LEVELS, 1, 10) == MinimumShare(level=2, gpus=0, end_s=math.inf, gpu_s=0.0)
    assert claim(Timeline(0.0, 4), LEVELS, -1, 10) == NOTHING
    assert claim(Timeline(0.0, 4), LEVELS, 1, 0) == NOTHING
    assert least_level(full, Levels(gpus=(), rates=()), 10, 100.0) is None


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    timeline = Timeline(1e9, draw(st.integers(0, 9)))
    for _ in range(draw(st.integers(0, 5))):
        timeline.take(draw(st.integers(0, 3)), until_s=1e9 + draw(st.integers(0, 60)))
    return timeline


levels = st.dictionaries(st.integers(1, 10), st.just(0.0) | st.floats(0.01, 10), max_size=4).map(
    lambda rates: levels_of(rates, rates.__getitem__)
)


def done_by(
    timeline: Timeline, chosen: Levels, index: int, until_s: float, startup_s: float = 0.0
) -> float:
    """Return the work done on at most a level, step by step; nothing is at first."""
    done = 0.0
    for lasts_s, free in timeline.between(until_s):
        fitting = min(chosen.floor(free) - 1, index)
        if fitting >= 0:
            works_s = max(0.0, lasts_s - startup_s)
            startup_s -= lasts_s - works_s
            done += works_s * chosen.rates[fitting]
    return done


startups = st.sampled_from([0.0, 0.0, 3.0, 25.0])


@given(timelines(), levels, st.floats(0.1, 500), st.integers(0, 90), startups)
def test_the_least_level_is_what_trying_each_one_finds(
    timeline: Timeline, chosen: Levels, work: float, in_s: int, startup_s: float
) -> None:
    by_trying = next(
        (
            index
            for index in range(len(chosen.gpus))
            if done_by(timeline, chosen, index, 1e9 + in_s, startup_s) >= work
        ),
        None,
    )

    found = least_level(timeline, chosen, work, 1e9 + in_s, startup_s)

    if found != by_trying:  # only where rounding decides
        assert found is not None
        done = done_by(timeline, chosen, found, 1e9 + in_s, startup_s)
        assert math.isclose(done, work, rel_tol=1e-6)


@given(timelines(), levels, st.floats(0.1, 500), startups, st.data())
def test_a_claim_takes_what_it_says_and_is_done_when_it_says(
    timeline: Timeline, chosen: Levels, work: float, startup_s: float, data: st.DataObject
) -> None:
    if not chosen.gpus:
        return
    index = data.draw(st.integers(0, len(chosen.gpus) - 1))
    before = timeline.copy()

    taken = claim(timeline, chosen, index, work, startup_s)

    assert taken.gpus <= taken.level == chosen.gpus[index]
    if math.isinf(taken.end_s):
        assert chosen.floor(before.free[-1]) == 0
        return
    done = done_by(before, chosen, index, taken.end_s, startup_s)
    assert math.isclose(done, work, rel_tol=1e-5)
    left = sum(lasts_s * free for lasts_s, free in timeline.between(taken.end_s))
    had = sum(lasts_s * free for lasts_s, free in before.between(taken.end_s))
    assert math.isclose(had - left, taken.gpu_s, rel_tol=1e-5, abs_tol=1e-5)
    assert all(free >= min(0, *before.free) for free in timeline.free), "nothing is taken twice"
    assert free_after(timeline, taken.end_s) == free_after(before, taken.end_s)


def free_after(timeline: Timeline, at_s: float) -> int:
    """Return what is free a second later."""
    return [free for _, free in timeline.between(at_s + 1)][-1]


@given(timelines(), st.lists(st.tuples(st.integers(1, 60), st.floats(1, 300)), max_size=6))
def test_whoever_is_admitted_stays_in_time(
    timeline: Timeline, asked: list[tuple[int, float]]
) -> None:
    shares = Shares(timeline)
    admitted = [
        demand(job, 1e9 + in_s, work)
        for job, (in_s, work) in enumerate(asked)
        if shares.admit(demand(job, 1e9 + in_s, work))
    ]

    assert set(shares.claims) == {each.job for each in admitted}
    for each in admitted:
        assert shares.claims[each.job].end_s <= each.deadline_s + 1e-4
    assert Shares(timeline, admitted).claims == shares.claims, "the order of asking is forgotten"


@pytest.mark.parametrize("free", range(10))
def test_the_floor_counts_the_levels_that_fit(free: int) -> None:
    assert LEVELS.floor(free) == sum(count <= free for count in LEVELS.gpus)

"""Two training jobs fragment two nodes, a third needs a whole one: who is moved, and what for."""

import pytest

from scripts.reproduce.compaction_case import Told
from scripts.reproduce.compaction_sim import LATE_AT_S, MOVE_S, Costs, simulate

FRAGMENTED = ["opener n2", "left n1", "filler n1", "right n2"]


def steps(told: Told) -> list[str]:
    return [str(step) for step in told.steps]


def test_drs_moves_one_so_that_the_third_is_in_time() -> None:
    """The one on the first node joins the other one, which nobody disturbs; all are in time."""
    told = simulate("drs")

    assert steps(told) == [*FRAGMENTED, "left n1>n2", "whole n1"]
    assert all(told.met(name) for name in told.deadline_s)
    assert told.started_s["whole"] == pytest.approx(LATE_AT_S, abs=1.0)
    assert told.ended_s["left"] == pytest.approx(told.started_s["left"] + 100 + MOVE_S)
    assert told.ended_s["right"] == pytest.approx(told.started_s["right"] + 110)


@pytest.mark.parametrize("policy", ["drs-still", "edf", "fifowhole"])
def test_without_moves_the_third_is_late(policy: str) -> None:
    """It waits until one of the others ends."""
    told = simulate(policy)

    assert not told.moves
    assert not told.met("whole")
    assert told.started_s["whole"] >= told.ended_s["left"]


def test_deadline_moves_the_same_one_once_it_may_be_moved() -> None:
    """What was started is left alone for 30 s first."""
    told = simulate("deadline")

    assert steps(told) == [*FRAGMENTED, "left n1>n2", "whole n1"]
    assert all(told.met(name) for name in told.deadline_s)
    assert told.started_s["whole"] == pytest.approx(told.started_s["left"] + 30.0)


def test_a_move_has_to_pay() -> None:
    """With 45 s a move would still let the third be in time, with 55 it would not."""
    assert simulate("drs", Costs(move_s=45.0)).moves
    too_slow = simulate("drs", Costs(move_s=55.0))

    assert not too_slow.moves
    assert not too_slow.met("whole")


def test_nobody_is_moved_for_one_that_would_be_late_all_the_same() -> None:
    """Its steps alone take longer than it has."""
    told = simulate("drs", Costs(step_s={"whole": 1.5}))

    assert not told.moves

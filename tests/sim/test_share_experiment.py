"""The experiment on share_for_others: a larger share shortens the wait of other jobs."""

import json
from pathlib import Path

import pytest

from scripts.reproduce import share_main
from scripts.reproduce.share_main import others, simulate


def test_a_share_shortens_the_wait_of_others_and_costs_deadlines() -> None:
    """Twice as many training jobs as the cluster can do; half of the nodes, or none."""
    none, half = (
        simulate(share, policy="deadline", training_jobs_per_hour=8.0, others_per_hour=2.0, seed=3)
        for share in (0.0, 0.5)
    )

    assert half.wait_s < none.wait_s / 4
    assert half.longest_s < none.longest_s
    assert half.met < none.met


def test_equal_seeds_give_equal_jobs() -> None:
    """Another seed gives others."""
    assert others(2.0, 24.0, 1) == others(2.0, 24.0, 1)
    assert others(2.0, 24.0, 1) != others(2.0, 24.0, 2)


def test_the_command_writes_a_row_and_an_outcome_for_each_point(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One seed, one rate, two shares."""
    target = tmp_path / "share.json"
    arguments = ["--seeds", "1-1", "--per-hour", "1", "--shares", "0,0.25", "--json", str(target)]

    assert share_main.main(arguments) == 0
    points = json.loads(target.read_text("utf-8"))["points"]
    assert [(point["per_hour"], point["share"]) for point in points] == [(1, 0), (1, 0.25)]
    assert all(0 <= run["met"] <= 1 for point in points for run in point["runs"])
    assert "others wait, mean, h" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--shares", "0,1"], "from 0 to below 1"),
        (["--shares", "x"], "from 0 to below 1"),
        (["--per-hour", "0"], "not a number above 0"),
        (["--others", "nan"], "not a number above 0"),
        (["--policy", "fifo"], "invalid choice: 'fifo'"),
    ],
)
def test_bad_arguments_are_refused(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the range that is right."""
    with pytest.raises(SystemExit):
        share_main.main(arguments)

    assert complaint in capsys.readouterr().err

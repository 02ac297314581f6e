"""What gnode does with the token daemon's file while that does not run."""

import json
from pathlib import Path

import pytest

from gnode.gpushare.keeper import DaemonKeeper


def test_jobs_that_run_stay_in_the_file_and_others_go(tmp_path: Path) -> None:
    """Processes of those that run connect to the next daemon before gnode admits them again."""
    path = tmp_path / "groups.json"
    rows = [{"group": name, "secret_hash": name} for name in ("1.1", "2.1", "3.1")]
    path.write_text(json.dumps(rows))

    DaemonKeeper(tmp_path).keep({"1.1", "3.1", "4.1"})

    assert json.loads(path.read_text()) == [rows[0], rows[2]]


@pytest.mark.parametrize("text", ["", "{}", '[{"gpu": 1}]', "[1]"])
def test_a_damaged_file_is_left_to_the_daemon(text: str, tmp_path: Path) -> None:
    """Which says so, and begins without jobs."""
    path = tmp_path / "groups.json"
    path.write_text(text)

    DaemonKeeper(tmp_path).keep({"1.1"})

    assert path.read_text() == text


def test_without_a_file_there_is_nothing_to_keep(tmp_path: Path) -> None:
    DaemonKeeper(tmp_path).keep(set())

    assert list(tmp_path.iterdir()) == []

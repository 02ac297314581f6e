"""scripts/bench/sia --ilp: one stored assignment problem."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


def stored(path: Path, **changes: Any) -> Path:
    """Write a problem of three jobs and four GPUs of two types; a change to None leaves one out."""
    arrays = {
        "cost": np.array([[1.0, 0.6, 0.5], [1.0, np.inf, 0.4], [0.9, 0.7, np.nan]]),
        "config_type": np.array([0, 0, 1]),
        "config_gpus": np.array([1, 2, 2]),
        "capacity": np.array([2, 2]),
        "lambda_n": np.float64(1.1),
        "prev_config": np.array([-1, 0, -1]),
        "forced_jobs": np.array([], dtype=int),
    }
    arrays.update(changes)
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def run(path: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts/bench/sia_bench.py"), "--ilp", str(path), *options],
        capture_output=True,
        text=True,
        check=False,
    )


def told(output: str) -> dict[str, str]:
    return {line.partition(" ")[0]: line.partition(" ")[2].strip() for line in output.splitlines()}


@pytest.mark.parametrize("options", [(), ("--prove",)])
def test_objective_gap_and_time_are_printed(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Best: one job on both GPUs of type 0, one on those of type 1, the third waits: 0.4 + 0.6."""
    result = run(stored(tmp_path / "a.npz"), *options)
    lines = told(result.stdout)

    assert result.returncode == 0, result.stderr
    assert float(lines["objective"]) == pytest.approx(0.4 + 0.6 + 1.1)
    assert float(lines["gap"]) < 1e-6
    assert lines["time"].endswith(" ms")


def test_forced_jobs_keep_their_configuration(tmp_path: Path) -> None:
    """Job 1 keeps one GPU of type 0, so that job 0 gets those of type 1, and job 2 the other."""
    result = run(stored(tmp_path / "a.npz", forced_jobs=np.array([1])))

    assert float(told(result.stdout)["objective"]) == pytest.approx(0.5 + 1.0 + 0.9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cost": None}, "has no array cost; it has config_type"),
        ({"cost": np.ones(3)}, "cost has 1 dimensions (shape (3,)), and needs 2"),
        ({"cost": np.array([["a"]])}, "cost holds <U1, and numbers are needed"),
        ({"capacity": np.array([2.0, np.nan])}, "capacity holds a value that is not finite"),
        ({"config_type": np.array([0, 1])}, "config_type has shape (2,)"),
        ({"config_type": np.array([0, 0, 0.5])}, "config_type holds values that are not whole"),
        ({"prev_config": np.array([0])}, "prev_config has shape (1,), and cost has 3 jobs"),
        ({"forced_jobs": np.array([3])}, "forced_jobs names job 3: jobs are 0 to 2"),
        (
            {"forced_jobs": np.array([1]), "capacity": np.array([0, 2])},
            "jobs that keep their configuration use 1 units of type 0, which has 0",
        ),
    ],
)
def test_bad_files_are_told_clearly(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = stored(tmp_path / "bad.npz", **changes)
    result = run(path)

    assert result.returncode == 2
    assert result.stderr.startswith(f"{path}: ")
    assert message in result.stderr
    assert result.stdout == ""


def test_files_that_are_none_are_told_clearly(tmp_path: Path) -> None:
    text = tmp_path / "text.npz"
    text.write_text("cost 1 2 3")

    assert "is no .npz file of plain arrays" in run(text).stderr
    assert "cannot be read: No such file" in run(tmp_path / "none.npz").stderr

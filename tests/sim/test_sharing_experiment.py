"""scripts/reproduce/sharing: what sharing gains in the model, and what it cannot gain."""

import json
from pathlib import Path

import pytest

from gschedd.plan.sharing import SharingRules
from scripts.reproduce.sharing_main import compare, draw, main, simulate

RULES = SharingRules()
WINDOW_S = 1200.0


@pytest.mark.parametrize("seed", range(5))
def test_jobs_that_share_end_earlier_and_do_the_same_work(seed: int) -> None:
    """Sharing costs nothing in the model: what is gained in time is gained in utilisation."""
    alone, shared = compare(seed, RULES, WINDOW_S)

    assert shared.completion_s < alone.completion_s
    assert shared.run_s >= alone.run_s
    assert shared.wait_s <= alone.wait_s
    work = alone.completion_s * alone.utilisation
    assert shared.completion_s * shared.utilisation == pytest.approx(work, rel=0.01)


def test_with_one_low_job_on_a_gpu_nothing_is_gained() -> None:
    alone, shared = compare(0, SharingRules(low_max=1), WINDOW_S)

    assert shared.completion_s == pytest.approx(alone.completion_s, rel=0.001)


def test_the_same_seed_is_the_same_run() -> None:
    jobs = draw(3, window_s=WINDOW_S)

    assert draw(3, window_s=WINDOW_S) == jobs != draw(4, window_s=WINDOW_S)
    assert simulate(jobs, RULES) == simulate(jobs, RULES)


def test_the_script_prints_and_writes_its_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sharing.json"

    assert main(["--seeds", "0-1", "--json", str(path)]) == 0
    assert "completion_percent" in capsys.readouterr().out
    assert len(json.loads(path.read_text())["gains"]["utilisation_points"]) == 2

"""scripts/reproduce/sharing: what sharing gains and costs in the models."""

import json
from pathlib import Path

import pytest

from gsched.config.nodes import SharingRules
from gschedd.sim.gpu_costs import SharingCosts
from scripts.reproduce import sharing_main
from scripts.reproduce.sharing_main import as_published, compare, main
from scripts.reproduce.sharing_model import (
    BENCH_USE,
    MEASURED,
    PAPER,
    Group,
    draw,
    fitted_costs,
    fitted_use,
    measured_costs,
    run_pair,
    simulate,
)

RULES = SharingRules()
GROUP = Group()


@pytest.mark.parametrize("seed", range(5))
def test_jobs_that_share_end_earlier_and_do_the_same_work(seed: int) -> None:
    """Sharing costs nothing in the fluid: what is gained in time is gained in utilisation."""
    alone, shared = compare(seed, RULES, GROUP)

    assert shared.completion_s < alone.completion_s
    assert shared.run_s >= alone.run_s
    assert shared.wait_s <= alone.wait_s
    work = alone.completion_s * alone.utilisation
    assert shared.completion_s * shared.utilisation == pytest.approx(work, rel=0.01)


def test_jobs_that_wait_for_each_other_gain_less_than_the_bound() -> None:
    alone, bound = compare(0, RULES, GROUP)
    _, shared = compare(0, RULES, GROUP, measured_costs())

    assert bound.completion_s < shared.completion_s < alone.completion_s
    assert shared.run_s > bound.run_s


def test_with_one_low_job_on_a_gpu_nothing_is_gained() -> None:
    alone, shared = compare(0, SharingRules(low_max=1), GROUP)

    assert shared.completion_s == pytest.approx(alone.completion_s, rel=0.001)


def test_the_same_seed_is_the_same_run() -> None:
    jobs = draw(3, GROUP)

    assert draw(3, GROUP) == jobs != draw(4, GROUP)
    assert simulate(jobs, RULES) == simulate(jobs, RULES)


def test_a_group_as_published_is_as_long_and_as_busy_with_a_gpu_each() -> None:
    group = as_published([0, 1], 1200.0)
    found = [simulate(draw(seed, group), RULES) for seed in (0, 1)]

    mean_s = sum(each.completion_s for each in found) / 2
    busy = sum(each.utilisation for each in found) / 2
    assert mean_s == pytest.approx(PAPER.alone_minutes * 60, rel=0.01)
    assert 100 * busy == pytest.approx(PAPER.utilisation_percent, rel=0.01)


@pytest.mark.parametrize("window", MEASURED)
def test_the_measured_costs_give_back_what_was_measured(window: int) -> None:
    slow, low = MEASURED[window]
    pair = run_pair(BENCH_USE, 1.0, measured_costs(window))

    assert 100 * (1 / pair.high - 1) == pytest.approx(slow, abs=0.01)
    assert 100 * pair.low == pytest.approx(low, abs=0.01)


def test_the_fitted_costs_give_back_the_published_figures() -> None:
    use = fitted_use()
    pair = run_pair(use, use, fitted_costs())
    packed = run_pair(use, use, SharingCosts(packed=True))

    assert 100 * (1 / pair.high - 1) == pytest.approx(PAPER.high_loss_percent, abs=0.01)
    assert 100 * pair.low == pytest.approx(PAPER.low_percent, abs=0.01)
    assert 100 * (1 / packed.high - 1) == pytest.approx(PAPER.packed_loss_percent, abs=0.01)


def test_the_script_prints_and_writes_its_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "sharing.json"
    monkeypatch.setattr(sharing_main, "WINDOWS", (20.0,))

    assert main(["--seeds", "0-1", "--json", str(path)]) == 0
    out = capsys.readouterr().out
    assert all(word in out for word in ("bound", "measured", "fitted", "-19.49", "32.88"))
    found = json.loads(path.read_text())
    assert len(found["group"]["bound"]["utilisation_points"]) == 2
    assert [row["window_minutes"] for row in found["sensitivity"]] == [20.0]
    assert found["pairs"][-1]["low_percent"] == pytest.approx(20.79, abs=0.01)

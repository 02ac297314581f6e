"""The DRS experiments: what is drawn, what a run comes to, and what is printed of it."""

import json
from pathlib import Path
from statistics import fmean

import pytest

from gsched.model.training import ALPHA
from gschedd.models.runtime import one_gpu_time_s, size_of_training
from scripts.reproduce import drs_main
from scripts.reproduce.drs_runs import POLICIES, Outcome, simulate
from scripts.reproduce.drs_workload import HEAVY, HOUR_S, Scenario, draw

SMALL = Scenario(per_hour=3, reception_h=4, nodes=2)


def test_equal_seeds_give_equal_lists() -> None:
    """And another seed another one."""
    assert draw(SMALL, 1) == draw(SMALL, 1)
    assert draw(SMALL, 1) != draw(SMALL, 2)


def test_lists_have_the_rates_and_shares_that_were_asked_for() -> None:
    """Over 1,000 hours: arrivals, heavy models, and alphas of 0.5, 1 and 1.5 in 10, 30 and 60 %."""
    jobs = draw(Scenario(per_hour=4, reception_h=1000, heavy=0.3), 3)
    alphas = []
    for job in jobs:
        assert job.training is not None
        size = size_of_training(job.training)
        assert size is not None
        assert job.deadline_s is not None
        alphas.append(round(job.deadline_s / one_gpu_time_s(size), 6))

    assert len(jobs) == pytest.approx(4000, rel=0.05)
    assert all(0 <= job.submit_s < 1000 * HOUR_S for job in jobs)
    assert fmean(job.kind in HEAVY for job in jobs) == pytest.approx(0.3, abs=0.03)
    shares = [fmean(each == alpha for each in alphas) for alpha in ALPHA.values()]
    assert shares == pytest.approx([0.1, 0.3, 0.6], abs=0.03)


def test_a_sweep_changes_only_what_it_sweeps() -> None:
    """More urgent ones: the same arrivals and kinds; other kinds: the same arrivals."""
    base, urgent = draw(Scenario(), 5), draw(Scenario(urgent=0.5), 5)
    heavy = draw(Scenario(heavy=1.0), 5)

    assert [(job.submit_s, job.kind) for job in base] == [
        (job.submit_s, job.kind) for job in urgent
    ]
    assert [job.deadline_s for job in base] != [job.deadline_s for job in urgent]
    assert [job.submit_s for job in base] == [job.submit_s for job in heavy]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_run_ends_and_its_figures_are_possible(policy: str) -> None:
    """Every training ends; equal runs come to the same."""
    found = simulate(policy, SMALL, 1)

    assert found == simulate(policy, SMALL, 1)
    assert found.jobs == len(draw(SMALL, 1))
    assert 0 <= found.rate <= 1
    assert found.completion_s > found.waiting_s >= 0
    assert 0 < found.utilisation <= 1
    assert len(found.over_time) == 3
    assert 0 < found.busy <= 1
    assert policy not in {"norm", "edf", "fifo"} or found.migrations == 0


def test_an_idle_cluster_meets_every_deadline_under_drs() -> None:
    """One training in ten hours: nobody is in its way."""
    found = simulate("drs", Scenario(per_hour=0.1, reception_h=200), 2)

    assert found.jobs > 10
    assert found.rate == 1.0
    assert found.waiting_s == 0.0


def test_the_use_of_gpus_is_printed_over_the_whole_run_and_while_jobs_arrive(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two means, each named, and the published figure."""
    drs_main.main(["--seeds", "1", "--sweeps", "utilisation", "--policies", "drs"])

    told = capsys.readouterr().out
    found = simulate("drs", Scenario(), 1)
    row = next(line for line in told.splitlines() if line.strip().startswith("drs"))
    cells = [cell.strip() for cell in row.split("│")]
    assert cells[-3:] == [f"{100 * found.utilisation:.1f}", f"{100 * found.busy:.1f}", "91.27"]
    assert found.utilisation != pytest.approx(found.busy, abs=0.005)
    assert "whole run" in told


def test_the_command_writes_tables_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside the published figures; each outcome stands in the file."""
    target = tmp_path / "out.json"
    status = drs_main.main(
        ["--seeds", "1-2", "--sweeps", "nodes", "--policies", "drs,edf", "--json", str(target)]
    )

    assert status == 0
    said = json.loads(target.read_text("utf-8"))
    assert said["seeds"] == [1, 2]
    runs = said["sweeps"]["nodes"]["2"]["edf"]
    assert [set(each) for each in runs] == [set(Outcome.__struct_fields__)] * 2
    assert "deadlines met" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--seeds", "5-1"], "holds no seed"),
        (["--seeds", "x"], "is no range"),
        (["--policies", "drs,sjf"], "unknown policy 'sjf': known are drs, norm"),
        (["--sweeps", "mu"], "unknown sweep 'mu': known are lambda"),
        (["--workers", "0"], "not a number of 1 or more"),
        (["--move-s", "-1"], "not a number of seconds"),
    ],
)
def test_bad_arguments_are_refused_in_words(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what would be right."""
    with pytest.raises(SystemExit):
        drs_main.main(arguments)

    assert complaint in capsys.readouterr().err

"""The balancing experiment, on few lists: the order of the policies, and what the script writes."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median, pstdev

import pytest

from gsched.errors import NotPermittedError
from scripts.reproduce.balance_jobs import SCENARIOS, cluster, draw
from scripts.reproduce.balance_main import main
from scripts.reproduce.balance_real import imbalance
from scripts.reproduce.balance_report import against, quantile, rows
from scripts.reproduce.balance_runs import Curves, Run, simulate

SEEDS = (0, 1)


def runs_of(scenario: str, policies: Sequence[str]) -> dict[str, list[Run]]:
    chosen = SCENARIOS[scenario]
    nodes = cluster(chosen)
    return {
        policy: [simulate(policy, nodes, draw(chosen, seed), seed) for seed in SEEDS]
        for policy in policies
    }


def medians(runs: Mapping[str, Sequence[Run]], field: str) -> list[float]:
    return [median(getattr(run, field) for run in each) for each in runs.values()]


@pytest.mark.parametrize("scenario", ["paper", "kinds"])
def test_ours_is_more_even_than_the_papers_and_that_than_first_fit(scenario: str) -> None:
    """CPU and memory, and nobody pays for it with a longer total completion."""
    runs = runs_of(scenario, ["torque", "paper", "balance"])

    for field in ("cpu_imbalance", "memory_imbalance"):
        first_fit, paper, ours = medians(runs, field)
        assert ours < 0.9 * paper
        assert paper < 0.9 * first_fit
    first_fit, paper, ours = medians(runs, "makespan_s")
    assert ours <= 1.01 * paper
    assert paper <= first_fit
    assert all(run.failed == 0 and run.jobs == 200 for each in runs.values() for run in each)


def test_the_nodes_curves_are_what_the_simulator_averages() -> None:
    """The curves are followed apart from the recorder; their imbalance is about the recorder's."""
    (found,) = runs_of("paper", ["torque"]).values()
    run = found[0]

    (steps,) = {len(curves.cpu) for curves in run.nodes.values()}
    moments = [[curves.cpu[step] for curves in run.nodes.values()] for step in range(steps)]
    by_curves = fmean(pstdev(each) / fmean(each) for each in moments if fmean(each) > 0)
    assert by_curves == pytest.approx(run.cpu_imbalance, rel=0.15)
    assert list(run.nodes) == ["node1", "node2", "node3", "node4"]


def test_the_same_seed_gives_the_same_list_and_another_one_another() -> None:
    """Every policy gets the list that another one got."""
    chosen = SCENARIOS["paper"]

    assert draw(chosen, 5) == draw(chosen, 5)
    assert draw(chosen, 5) != draw(chosen, 6)


def run_of(policy: str, **figures: float) -> Run:
    fields = {"makespan_s": 1.0, "completion_s": 1.0, "cpu_imbalance": 1.0, "memory_imbalance": 1.0}
    return Run(
        policy=policy,
        seed=1,
        jobs=1,
        failed=0,
        nodes={"n1": Curves(step_s=1.0, cpu=[0.5], memory=[0.5])},
        **(fields | figures),
    )


def test_rows_hold_the_median_and_the_middle_half() -> None:
    """Five values: the third, and the second and fourth."""
    runs = {"paper": [run_of("paper", makespan_s=value) for value in (5, 1, 4, 2, 3)]}

    (row,) = rows(runs)

    assert (row["makespan_s_q1"], row["makespan_s"], row["makespan_s_q3"]) == (2, 3, 4)
    assert quantile([1, 2], 0.25) == 1.25


def test_policies_are_compared_list_by_list() -> None:
    """The median of the ratios, not the ratio of the medians; equal is as good."""
    runs = {
        "paper": [run_of("paper", makespan_s=value) for value in (1, 2, 8)],
        "balance": [run_of("balance", makespan_s=value) for value in (2, 2, 4)],
    }

    assert against(runs, "balance", "paper")["makespan_s"] == (1.0, 2)
    assert against(runs, "balance", "fewest") == {}


def test_imbalance_is_deviation_over_mean_at_each_moment() -> None:
    """One of two nodes in use, then both alike, then none, which does not count."""
    assert imbalance({"n1": [0.5, 0.4, 0.0], "n2": [0.0, 0.4, 0.0]}) == pytest.approx(0.5)


def test_the_script_writes_what_it_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One list under two policies, with the curves of each node."""
    out = tmp_path / "balance.json"
    arguments = ["--seeds", "3", "--scenario", "paper", "--policies", "fewest,balance"]

    assert main([*arguments, "--json", str(out)]) == 0

    document = json.loads(out.read_text())
    assert [row["policy"] for row in document["paper"]["table"]] == ["fewest", "balance"]
    assert set(document["paper"]["runs"]["balance"][0]["nodes"]) == {
        f"node{n}" for n in range(1, 5)
    }
    printed = capsys.readouterr().out
    assert "gsched's" in printed
    assert "memory used, 0 to 100 %" in printed


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--seeds", "5-1"], "holds no seed"),
        (["--seeds", "x"], "is no range"),
        (["--policies", "nice"], "known are torque"),
    ],
)
def test_bad_arguments_are_refused_in_words(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was asked, and what can be."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)

    assert caught.value.code == 2
    assert complaint in capsys.readouterr().err


def test_real_jobs_need_root(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Said before anything is started."""
    monkeypatch.setattr("scripts.reproduce.balance_groups.os.geteuid", lambda: 1000)

    assert main(["--real"]) == NotPermittedError.exit_code

    error = capsys.readouterr().err
    assert "only root may make" in error
    assert "Traceback" not in error

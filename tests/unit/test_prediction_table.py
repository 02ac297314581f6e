"""The table of prediction errors: what it counts, and that gsched's rule is the better one."""

import json
from pathlib import Path

import pytest

from gschedd.plan.load import Basis, Prediction, Use
from scripts.reproduce.generated_kinds import generate
from scripts.reproduce.prediction_table import (
    Scored,
    errors,
    main,
    quantile,
    read_durations,
    replay,
    table,
)
from tests.support.runs import run


def test_an_error_is_relative_to_what_was_measured() -> None:
    """150 s predicted for 100 s is one half, whoever said it."""
    said = Prediction(use=Use(cpu_cores=1), high=Use(), basis=Basis.KIND, wall_s=150)
    job = Scored(run(wall_s=100, cpu_cores=4), {"paper": said})

    assert errors([job], "paper", "wall") == [0.5]
    assert errors([job], "paper", "cpu") == [0.75]


def test_a_quantile_is_a_value_that_was_there() -> None:
    """Of ten, the fifth and the ninth."""
    values = list(range(10, 0, -1))

    assert [quantile(values, part) for part in (0.5, 0.9, 1.0)] == [5, 9, 10]


def test_a_run_is_predicted_from_what_had_ended_before_it() -> None:
    """Nothing of the future, nothing that still runs, and not the run itself."""
    runs = generate(3, jobs=300)[1]
    changed = [each if n < 200 else each._replace(record=run("x")) for n, each in enumerate(runs)]

    first, second = replay(runs, 100)[:100], replay(changed, 100)[:100]

    assert [job.said for job in first] == [job.said for job in second]


def test_gsched_is_closer_than_the_paper_in_every_figure() -> None:
    """Median and 90th percentile, on a seed that was never used to choose anything."""
    rows = table(replay(generate(77, jobs=1500)[1], 750), ["cpu", "memory", "wall"])

    by = {(row["quantity"], row["model"]): row for row in rows}
    for quantity in ("cpu", "memory", "wall"):
        for figure in ("median", "p90"):
            ours, papers = by[quantity, "gsched"][figure], by[quantity, "paper"][figure]
            assert isinstance(ours, float)
            assert isinstance(papers, float)
            assert ours < papers, f"{quantity} {figure}"


def test_recorded_durations_are_read_in_the_order_of_submission(tmp_path: Path) -> None:
    """A kind is a model with its batch size and GPUs."""
    head = "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration\n"
    rows = "b,50,1,bert,9,64,2,300\na,20,1,gpt2,9,32,1,100\n"
    (tmp_path / "cluster01.csv").write_text(head + rows)

    (runs,) = read_durations(tmp_path).values()

    assert [each.record.kind.key for each in runs] == ["gpt2/32/1", "bert/64/2"]
    assert [each.record.ended_s for each in runs] == [120, 350]


def test_missing_durations_are_skipped_with_a_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the rest is still written."""
    written = tmp_path / "out.json"
    folder = tmp_path / "none"
    code = main(
        ["--seeds", "5", "--jobs", "60", "--durations", str(folder), "--json", str(written)]
    )

    report = json.loads(written.read_text())
    assert code == 0
    assert report["durations"] == "skipped: no cluster*.csv in none"
    assert report["held_out_jobs"] == 30
    assert "skipped: no cluster" in capsys.readouterr().out

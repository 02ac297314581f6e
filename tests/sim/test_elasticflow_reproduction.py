"""ElasticFlow's traces as training jobs, and what the reproduction counts."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from gsched.errors import UsageError
from gschedd.models.runtime_table import TableSpeed
from scripts.reproduce.elasticflow_main import DATA, main
from scripts.reproduce.elasticflow_traces import (
    as_asked,
    asked_load,
    possible,
    read_tables,
    read_trace,
    training_jobs,
)

TABLE = """global_batch_size,1,2,4,8
4,1.0,1.8,3.0,4.0
64,0.5,nan,,4.0
"""
#: Deadlines after 150 s, 190 s and 50 s; the last one comes first.
TRACE = """job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration
a,1000,300,net,1150,4,2,167
b,1000,300,net,1190,4,1,300
c,990,300,net,1040,4,4,100
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a folder with a trace and a table."""
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "net.csv").write_text(TABLE, encoding="utf-8")
    (tmp_path / "trace.csv").write_text(TRACE, encoding="utf-8")
    return tmp_path


def run(data: Path, *arguments: str) -> tuple[int, list[dict[str, object]]]:
    """Run the reproduction, and return its exit status and what it wrote."""
    given: Sequence[str] = (
        "--trace", str(data / "trace.csv"),
        "--throughputs", str(data / "tables"),
        "--json", str(data / "out.json"),
        *arguments,
    )  # fmt: skip
    status = main(given)
    return status, json.loads((data / "out.json").read_text()) if not status else []


def policies(found: list[dict[str, object]]) -> list[dict[str, float]]:
    """Return the figures of each policy on the first trace."""
    (first,) = found
    return cast("list[dict[str, float]]", first["policies"])


def test_tables_have_what_was_measured_and_has_a_sample_for_each_gpu(data: Path) -> None:
    """Eight GPUs are too many for a batch of four; what is empty was not measured."""
    tables = read_tables(data / "tables")

    assert tables["net", 4] == ((1, 1.0), (2, 1.8), (4, 3.0))
    assert tables["net", 64] == ((1, 0.5), (8, 4.0))


def test_a_trace_becomes_training_jobs_in_order_of_their_submission(data: Path) -> None:
    rows = read_trace(data / "trace.csv")
    jobs = list(training_jobs(rows, read_tables(data / "tables"), gpus=2))

    assert [(job.submit_s, job.deadline_s) for job in jobs] == [(0, 50), (10, 150), (10, 190)]
    assert {(job.gpus, job.gpus_max) for job in jobs} == {(1, 2)}
    assert [job.gpus for job in as_asked(jobs, rows)] == [2, 2, 1]
    assert jobs[0].training is not None
    assert TableSpeed.of(jobs[0].training).at(4) == 3.0


def test_what_could_be_in_time_and_what_was_asked_for(data: Path) -> None:
    """300 iterations take 100 s on four GPUs and 167 s on two; 1,034 GPU s were requested."""
    rows, tables = read_trace(data / "trace.csv"), read_tables(data / "tables")

    assert possible(rows, tables, gpus=4) == pytest.approx(2 / 3)
    assert possible(rows, tables, gpus=2) == pytest.approx(1 / 3)
    assert asked_load(rows, gpus=4) == pytest.approx((2 * 167 + 300 + 400) / (10 * 4))


def test_the_rates_count_all_jobs_and_those_that_were_accepted(data: Path) -> None:
    """On four GPUs c is impossible, and a needs all of them for 100 s; then b is 10 s late."""
    status, found = run(data, "--nodes", "1", "--gpus-per-node", "4", "--policies", "elasticflow")

    assert status == 0
    (figures,) = policies(found)
    assert figures["met"] == pytest.approx(1 / 3)
    assert figures["accepted"] == pytest.approx(1 / 3)
    assert figures["met_of_accepted"] == 1.0
    assert figures["unfinished"] == 0
    assert found[0]["possible"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("asked", [(), ("--reject-late",)])
def test_what_is_only_expected_is_not_accepted(data: Path, asked: tuple[str, ...]) -> None:
    """Themis guarantees nothing, ElasticFlow what it admits; both meet the same two deadlines."""
    names = "themis,elasticflow"
    _, found = run(data, "--nodes", "3", "--gpus-per-node", "4", "--policies", names, *asked)

    themis, elasticflow = policies(found)
    assert themis["met"] == elasticflow["met"] == pytest.approx(2 / 3)
    assert themis["accepted"] == 0
    assert not themis["met_of_accepted"]
    assert elasticflow["accepted"] == pytest.approx(2 / 3)
    assert elasticflow["met_of_accepted"] == 1.0


def test_with_room_for_all_whoever_can_be_in_time_is(data: Path) -> None:
    _, found = run(data, "--nodes", "3", "--gpus-per-node", "4", "--policies", "elasticflow,themis")

    for figures in policies(found):
        assert figures["met"] == pytest.approx(2 / 3)


def test_nodes_for_a_load_are_as_many_as_were_asked_for_over_it(data: Path) -> None:
    _, found = run(data, "--load", "10", "--gpus-per-node", "4", "--policies", "fifowhole")

    assert found[0]["nodes"] == 3, "25.85 nodes' worth was requested while jobs arrived"


def test_what_is_no_trace_is_named(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data / "trace.csv").write_text("job,when\n1,2\n", encoding="utf-8")

    assert run(data)[0] == 2
    assert "lacks submission_time or submit_time" in capsys.readouterr().err
    with pytest.raises(UsageError, match="is no throughput table"):
        read_tables(data)
    with pytest.raises(UsageError, match="no throughput tables in"):
        read_tables(data / "nowhere")


@pytest.mark.skipif(not DATA.exists(), reason="ElasticFlow's traces are not here")
def test_the_paper_s_trace_as_its_authors_simulator_has_it(tmp_path: Path) -> None:
    """EDF meets next to nothing, fairness about half, shares nearly all that is possible."""
    assert main(["--nodes", "16", "--policies", "edf-scaled,themis-asked,elasticflow",
                 "--json", str(tmp_path / "out.json")]) == 0  # fmt: skip

    (found,) = json.loads((tmp_path / "out.json").read_text())
    met = {each["policy"]: each["met"] for each in found["policies"]}
    assert met["edf-scaled"] == pytest.approx(0.087, abs=0.03)
    assert met["themis-asked"] == pytest.approx(0.410, abs=0.12)
    assert 0.87 < met["elasticflow"] <= found["possible"] == pytest.approx(0.944, abs=0.001)
    assert all(each["unfinished"] == 0 for each in found["policies"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--policies", "elasticflow,bogus"], "no policy 'bogus'; there are deadline, drs"),
        (["--nodes", "0"], "0 is less than 1"),
        (["--load", "0"], "0.0 is not above 0"),
        (["--move-s", "-1"], "-1.0 is not 0 or more"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_before_anything_runs(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)

    assert caught.value.code == 2
    said = capsys.readouterr()
    assert words in said.err
    assert not said.out

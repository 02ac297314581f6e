"""ghist --predictions and gnodes --predictions: tables, totals, what they ask the head."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from msgspec import structs

from gsched.cli.show.predictions import NODES
from gsched.protocol.api import ErrorBody
from gsched.protocol.job_rows import JobList, JobRow
from gsched.protocol.predictions import (
    CostRow,
    ErrorsRow,
    NodePredictionRow,
    NodePredictions,
    PredictionRow,
    PredictionsReply,
    SpreadRow,
    SpreadsRow,
    UseRow,
)
from tests.support.canned_head import CannedHead, canned_head
from tests.support.commands import run_at_terminal, run_command

GB = 1024**3
ROW = PredictionRow(
    job=18,
    attempt=2,
    node="n1",
    name="train",
    user="alice",
    ended_s=900.0,
    measured=CostRow(
        use=UseRow(cpu_cores=2, memory_bytes=4 * GB, gpus=0.75, gpu_memory_bytes=GB), wall_s=3600
    ),
    basis="kind",
    records=12,
    predicted=CostRow(use=UseRow(cpu_cores=1.5, memory_bytes=6 * GB, gpus=1), wall_s=3700),
    errors=ErrorsRow(cpu=-0.25, memory=0.5, gpu=1 / 3, wall=0.028),
)
FAR_OFF = structs.replace(ROW, errors=ErrorsRow(gpu=16384.0, memory=-0.5, cpu=9.99))
UNKNOWN = PredictionRow(
    job=17,
    attempt=1,
    node="n2",
    name="first",
    user="alice",
    ended_s=800.0,
    measured=CostRow(use=UseRow(cpu_cores=1), wall_s=10),
)
SPREADS = SpreadsRow(
    cpu=SpreadRow(runs=60, median=0.1, p90=0.4), wall=SpreadRow(runs=59, median=0.05, p90=1.25)
)
PAST = PredictionsReply(
    server="head",
    now_s=1000.0,
    learns=True,
    rows=(ROW, UNKNOWN),
    total_runs=70,
    errors=SPREADS,
    more=True,
)
BUSY = NodePredictionRow(
    name="n1",
    has=UseRow(cpu_cores=8, memory_bytes=64 * GB, gpus=2, gpu_memory_bytes=32 * GB),
    jobs=3,
    unpredicted=1,
    predicted=UseRow(cpu_cores=2.5, memory_bytes=6 * GB, gpus=1, gpu_memory_bytes=GB),
    measured=UseRow(cpu_cores=3.25, memory_bytes=7 * GB, gpus=0.5, gpu_memory_bytes=2 * GB),
    heartbeat_s=900.0,
    errors=SPREADS,
)
FAR = SpreadRow(runs=9, median=0.35, p90=2.5)
NEW = NodePredictionRow(name="n2", has=UseRow(cpu_cores=4, memory_bytes=8 * GB))


@pytest.fixture
def head(tmp_path: Path) -> Iterator[CannedHead]:
    """Return a head with two past runs and two nodes."""
    with canned_head(tmp_path / "s") as head:
        head.answers["GET /v1/history/predictions"] = PAST
        head.answers["GET /v1/nodes/predictions"] = NodePredictions(
            server="head", now_s=1000.0, learns=True, nodes=(BUSY, NEW)
        )
        head.answers["GET /v1/jobs"] = JobList(
            server="head",
            now_s=1000.0,
            jobs=(
                JobRow(
                    id=18,
                    name="train",
                    user="alice",
                    queue="batch",
                    state="done",
                    letter="C",
                    submitted_s=1.0,
                    cpus=1,
                    places=1,
                ),
            ),
            errors={"99": ErrorBody(code="unknown_job", message="Unknown Job Id 99.head")},
        )
        yield head


def cells(text: str) -> list[dict[str, str]]:
    """Return the lines of a table by their titles."""
    titles, *lines = (line.split("\t") for line in text.splitlines())
    return [dict(zip(titles, line, strict=True)) for line in lines]


def test_past_runs_stand_beside_their_predictions(head: CannedHead) -> None:
    """Errors have a sign; what was not predicted or measured is empty."""
    first, second = cells(run_command("ghist", "--predictions", head=head.path).stdout)

    assert (first["Job ID"], first["Try"], first["Node"]) == ("18.head", "2", "n1")
    assert (first["Basis"], first["Runs"]) == ("kind", "12")
    assert (first["CPUs pred"], first["CPUs"], first["CPU err"]) == ("1.50", "2", "-25%")
    assert (first["Mem pred"], first["Memory"], first["Mem err"]) == ("6gb", "4gb", "+50%")
    assert (first["GPUs pred"], first["GPUs"], first["GPU err"]) == ("1", "0.75", "+33%")
    assert (first["Time pred"], first["Time"], first["Time err"]) == (
        "01:01:40",
        "01:00:00",
        "+3%",
    )
    assert (second["Basis"], second["CPUs pred"], second["CPUs"]) == ("-", "-", "1")
    assert (second["Time pred"], second["Time err"], second["Mem pred"]) == ("-", "-", "-")


def test_the_errors_of_all_are_told_in_one_line(head: CannedHead) -> None:
    """On stderr in a pipe."""
    ran = run_command("ghist", "--predictions", head=head.path)

    assert ran.stderr == (
        "ghist: 70 runs (showing the newest 2: see --limit); prediction error "
        "(median/90th percentile): CPU 10%/40%, run time 5%/125%\n"
    )


def test_a_terminal_gets_a_table_that_fits(head: CannedHead) -> None:
    """What matters most stays: which job, where, and the errors."""
    ran = run_at_terminal("ghist", "--predictions", "--color", "never", typed="", head=head.path)

    lines = [line.rstrip() for line in ran.stdout.splitlines()]
    title = next(line for line in lines if "Job ID" in line)
    row = next(line for line in lines if "18.head" in line)
    assert "\t" not in ran.stdout
    assert max(map(len, lines[: lines.index("")])) <= 100
    assert title.index("Time err") + len("Time err") == row.index("+3%") + len("+3%")
    assert "-25%" in row


def test_filters_and_ids_go_to_the_head(head: CannedHead) -> None:
    """As without --predictions; of ids only those that there are."""
    run_command("ghist", "--predictions", "--user", "alice", "--limit", "7", head=head.path)
    assert parse_qs(urlsplit(head.asked[-1][1]).query) == {"user": ["alice"], "limit": ["7"]}

    ran = run_command("ghist", "--predictions", "18", "99", head=head.path)
    asked = parse_qs(urlsplit(head.asked[-1][1]).query)
    assert asked == {"ids": ["18"], "limit": ["1000000000"]}
    assert "Unknown Job Id 99.head" in ran.stderr
    assert ran.status == 153

    refused = run_command("ghist", "--predictions", "--user", "bob", "18", head=head.path)
    assert refused.status == 2
    assert "give one of them" in refused.stderr


def test_json_of_past_runs_is_the_whole_answer(head: CannedHead) -> None:
    """With the errors of all, and null for what is unknown."""
    document = json.loads(run_command("ghist", "--predictions", "--json", head=head.path).stdout)

    assert document["schema"] == 1
    assert document["rows"][0]["errors"]["cpu"] == -0.25
    assert document["rows"][1]["predicted"] is None
    assert document["errors"]["wall"] == {"runs": 59, "median": 0.05, "p90": 1.25}


def test_nodes_stand_with_what_is_expected_there(head: CannedHead) -> None:
    """Predicted of what there is, measured, errors; a node without GPUs has no cells for them."""
    first, second = cells(run_command("gnodes", "--predictions", head=head.path).stdout)

    assert (first["Node"], first["Jobs"]) == ("n1", "3")
    assert (first["CPUs pred"], first["CPUs"]) == ("2.50/8", "3.25")
    assert (first["Mem pred"], first["Memory"]) == ("6gb/64gb", "7gb")
    assert (first["GPUs pred"], first["GPUs"]) == ("1/2", "0.50")
    assert (first["CPU err"], first["Time err"]) == ("10%/40%", "5%/125%")
    assert (second["CPUs pred"], second["CPUs"], second["GPUs pred"]) == ("0/4", "-", "-")
    assert (second["CPU err"], second["Time err"]) == ("-", "-")


def test_all_columns_of_nodes_fit_a_terminal_of_100_characters(head: CannedHead) -> None:
    """What they leave out is in --json."""
    large = UseRow(cpu_cores=128, memory_bytes=1023 * GB, gpus=16, gpu_memory_bytes=GB)
    busy = UseRow(cpu_cores=100.25, memory_bytes=950 * GB, gpus=15.25, gpu_memory_bytes=GB)
    row = structs.replace(BUSY, name="node-0123", jobs=128, has=large, predicted=busy)
    row = structs.replace(row, measured=busy, errors=SpreadsRow(cpu=FAR, wall=FAR))
    head.answers["GET /v1/nodes/predictions"] = NodePredictions(
        server="head", now_s=1000.0, learns=True, nodes=(row,)
    )

    ran = run_at_terminal("gnodes", "--predictions", "--color", "never", typed="", head=head.path)
    document = json.loads(run_command("gnodes", "--predictions", "--json", head=head.path).stdout)

    titles, line = (each.rstrip() for each in ran.stdout.splitlines()[:2])
    assert titles.split() == [word for column in NODES for word in column.title.split()]
    assert max(len(titles), len(line)) <= 100
    assert line.split()[-2:] == ["35%/250%"] * 2
    assert document["nodes"][0]["unpredicted"] == 1
    assert document["nodes"][0]["errors"]["memory"] is None
    assert document["nodes"][0]["measured"]["gpu_memory_bytes"] == GB
    assert document["nodes"][0]["heartbeat_s"] == 900.0


def test_named_nodes_only(head: CannedHead) -> None:
    """An unknown one does not hide the others."""
    ran = run_command("gnodes", "--predictions", "--json", "n2", "nope", head=head.path)

    assert [row["name"] for row in json.loads(ran.stdout)["nodes"]] == ["n2"]
    assert ran.status == 68


@pytest.mark.parametrize("more", [["drain", "n1", "-m", "x"], ["-l"], ["-a"], ["-m", "x"], ["-o"]])
def test_nothing_else_goes_with_predictions_of_nodes(head: CannedHead, more: list[str]) -> None:
    """The head is not asked."""
    ran = run_command("gnodes", "--predictions", *more, head=head.path)

    assert ran.status == 2
    assert "--predictions" in ran.stderr
    assert head.asked == []


@pytest.mark.parametrize("name", ["ghist", "gnodes"])
def test_a_head_that_does_not_learn_is_told_of(head: CannedHead, name: str) -> None:
    """Instead of an empty table without a word."""
    head.answers["GET /v1/history/predictions"] = structs.replace(
        PAST, rows=(), total_runs=0, errors=SpreadsRow(), learns=False, more=False
    )
    head.answers["GET /v1/nodes/predictions"] = NodePredictions(
        server="head", now_s=1000.0, learns=False, nodes=()
    )

    ran = run_command(name, "--predictions", head=head.path)

    assert ran.status == 0
    assert "does not learn" in ran.stderr


def test_plain_commands_do_not_load_predictions() -> None:
    """They are on the fast path."""
    code = (
        "import sys, gsched.cli.commands.ghist, gsched.cli.commands.gnodes; "
        "sys.exit('gsched.protocol.predictions' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_error_that_is_beyond_measure_is_not_told_in_digits(head: CannedHead) -> None:
    """Of a declared GPU next to nothing is used: the median was 1638400%."""
    far = SpreadsRow(gpu_memory=SpreadRow(runs=3, median=16384.0, p90=20000.0))
    head.answers["GET /v1/history/predictions"] = structs.replace(
        PAST, rows=(FAR_OFF,), errors=far, more=False, total_runs=1
    )
    ran = run_command("ghist", "--predictions", head=head.path)

    assert "GPU memory >1000%/>1000%" in ran.stderr
    assert "1638400%" not in ran.stdout + ran.stderr
    assert ">+1000%" in ran.stdout
    assert "+999%" in ran.stdout

"""ghist: filters, table, totals."""

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from msgspec import structs

from gsched.model.states import ShareClass
from gsched.protocol.api import ErrorBody
from gsched.protocol.job_rows import HistoryReply, JobList, JobRow, OutcomeRow, ShareRow
from tests.support.canned_head import CannedHead, canned_head
from tests.support.commands import run_command


def job(number: int, outcome: OutcomeRow | None, *, gpus: int = 0, percent: int = 0) -> JobRow:
    """Return a job that ran for an hour."""
    return JobRow(
        id=number,
        name="train",
        user="alice",
        queue="batch",
        state="done" if outcome else "running",
        letter="C",
        submitted_s=100.0,
        cpus=2,
        places=1,
        gpus=gpus,
        gpu_share=ShareRow(percent=percent, memory_bytes=1, share_class=ShareClass.LOW)
        if percent
        else None,
        started_s=1000.0,
        ended_s=4600.0 + number if outcome else None,
        cpu_s=1800.0,
        nodes=("n1", "n2"),
        outcome=outcome,
    )


OK = OutcomeRow(kind="exited", exit_status=0, shell_status=0, exit_code=0)
EXIT_3 = OutcomeRow(kind="exited", exit_status=3, shell_status=3, exit_code=3, rank=1, node="n2")
KILLED = OutcomeRow(kind="signalled", exit_status=265, shell_status=137, signal=9)
LATE = OutcomeRow(kind="walltime", exit_status=-11, shell_status=143, signal=15)
LOST = OutcomeRow(kind="node_lost", exit_status=-4, shell_status=143)


@pytest.fixture
def head(tmp_path: Path) -> Iterator[CannedHead]:
    """Return a head with five past jobs."""
    rows = [
        job(9, OK, percent=40),
        job(8, EXIT_3, gpus=2),
        job(7, KILLED),
        job(6, LATE),
        job(5, LOST),
    ]
    with canned_head(tmp_path / "s") as head:
        head.answers["GET /v1/history"] = HistoryReply(
            server="head",
            now_s=9000.0,
            jobs=tuple(rows),
            total_jobs=70,
            total_cpu_s=7200.0,
            total_wall_s=18000.0,
            total_gpu_s=9000.0,
            total_failed=4,
            more=True,
        )
        head.answers["GET /v1/jobs"] = JobList(
            server="head",
            now_s=9000.0,
            jobs=(job(5, LOST, percent=40), job(8, EXIT_3, gpus=2), job(10, None)),
            errors={"99": ErrorBody(code="unknown_job", message="Unknown Job Id 99.head")},
        )
        yield head


def query(head: CannedHead) -> dict[str, list[str]]:
    """Return the query of the last request."""
    return parse_qs(urlsplit(head.asked[-1][1]).query)


def test_each_way_to_end_has_its_words(head: CannedHead) -> None:
    """In the last column; the first failing rank and its node stand with it."""
    ran = run_command("ghist", head=head.path)

    lines = [line.split("\t") for line in ran.stdout.splitlines()]
    assert [line[0] for line in lines] == ["Job ID", *(f"{n}.head" for n in (9, 8, 7, 6, 5))]
    assert [line[-1] for line in lines[1:]] == [
        "ok",
        "exit 3, rank 1 on n2",
        "signal KILL",
        "walltime",
        "node lost",
    ]
    assert lines[1][9:11] == ["01:00:09", "00:30:00"]
    assert [line[5] for line in lines] == ["GPUs", "40%", "2", "0", "0", "0"]


def test_preempted_jobs_have_a_column(head: CannedHead) -> None:
    """Only where there are some."""
    assert "Preempted" not in run_command("ghist", head=head.path).stdout
    reply = head.answers["GET /v1/history"]
    assert isinstance(reply, HistoryReply)
    first = structs.replace(reply.jobs[0], preemptions=2, preempted_gpu_s=900.0)
    head.answers["GET /v1/history"] = structs.replace(reply, jobs=(first, *reply.jobs[1:]))
    ran = run_command("ghist", head=head.path)

    lines = [line.split("\t") for line in ran.stdout.splitlines()]
    assert [line[-1] for line in lines[:3]] == ["Preempted", "2, 0.25 GPU-hours lost", "-"]


def test_totals_count_also_what_is_not_shown(head: CannedHead) -> None:
    """On stderr in a pipe: the table stays a table."""
    ran = run_command("ghist", head=head.path)

    assert ran.stderr == (
        "ghist: 70 jobs (showing the newest 5: see --limit), 4 failed, 2.00 CPU hours used, "
        "2.50 GPU hours\n"
    )


def test_filters_go_to_the_head(head: CannedHead) -> None:
    """Moments as seconds since the epoch."""
    run_command(
        "ghist",
        *("--user", "alice", "--since", "@1000", "--until", "@2000", "--queue", "batch"),
        *("--name", "tr*", "--failed", "--limit", "0"),
        head=head.path,
    )
    assert query(head) == {
        "user": ["alice"],
        "since": ["1000"],
        "until": ["2000"],
        "queue": ["batch"],
        "name": ["tr*"],
        "outcome": ["failed"],
        "limit": ["1000000000"],
    }
    run_command("ghist", "--outcome", "oom", head=head.path)
    assert query(head) == {"outcome": ["oom"], "limit": ["50"]}


def test_jobs_by_id_with_their_own_totals(head: CannedHead) -> None:
    """Newest first; one that runs counts as no failure; an unknown one is told."""
    ran = run_command("ghist", "5", "8", "10", "99", head=head.path)

    lines = [line.split("\t") for line in ran.stdout.splitlines()]
    assert [line[0] for line in lines[1:]] == ["10.head", "8.head", "5.head"]
    assert lines[1][-1] == "running"
    assert "3 jobs, 2 failed, 1.50 CPU hours used, 2.40 GPU hours" in ran.stderr
    assert "ghist: Unknown Job Id 99.head\n" in ran.stderr
    assert ran.status == 153


def test_json_holds_rows_and_totals(head: CannedHead) -> None:
    """One document."""
    document = json.loads(run_command("ghist", "--json", head=head.path).stdout)

    assert document["schema"] == 1
    assert document["total_jobs"] == 70
    assert document["jobs"][1]["outcome"]["rank"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--since", "whenever"], "--since: invalid time 'whenever'"),
        (["--failed", "--outcome", "oom"], "mutually exclusive"),
        (["--outcome", "bad"], "oom"),
        (["--failed", "17"], "job ids and --failed"),
        (["--limit", "-1"], "-1"),
    ],
)
def test_nonsense_is_refused(head: CannedHead, arguments: list[str], message: str) -> None:
    """The head is not asked."""
    ran = run_command("ghist", *arguments, head=head.path)

    assert ran.status == 2
    assert message in ran.stderr
    assert head.asked == []

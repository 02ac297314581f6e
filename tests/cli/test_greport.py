"""greport: figures of past jobs in groups, and reports of periods, of a real head and monitor."""

import csv
import io
import json
import time

import pytest

from gsched.cli.commands.greport import period_of
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import run_command
from tests.support.desk import PLENTY_S
from tests.support.in_process import run_here
from tests.support.slurm_commands import slurm

pytestmark = pytest.mark.timeout(240)


def test_reports_of_a_real_head(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the jobs that have just ended, too."""
    cluster.has_monitor = True
    cluster.start_head()
    cluster.start_node("n1", cpus=8)
    for code in (0, 0, 0, 0, 7):
        words = ("gsub", "-A", "physics", "--", "sh", "-c", f"exit {code}")
        assert run_command(*words, head=cluster.socket, cwd=cluster.jobs).status == 0
    wait_until(lambda: len(cluster.head.history(limit=100).jobs) == 5, PLENTY_S, what="five ends")

    document = json.loads(
        run_here("greport", "--by", "account", "--json", head=cluster.socket).stdout
    )
    physics, total = document["rows"]
    assert (physics["group"], physics["jobs"], physics["failed"]) == ("physics", 5, 1)
    assert physics["causes"] == {"exit code": 1}
    assert total["jobs"] == 5
    ran = run_here("greport", "--by", "account", "--csv", head=cluster.socket)
    lines = list(csv.DictReader(io.StringIO(ran.stdout)))
    assert [(line["group"], line["jobs"]) for line in lines] == [("physics", "5"), ("total", "5")]
    assert lines[0]["failed_jobs_by_cause"] == "1 exit code"
    table = run_here("greport", "-u", "nobody-here", head=cluster.socket).stdout
    assert table.splitlines()[-1].split("\t")[:2] == ["total", "0"]
    chosen = run_here("greport", "--template", "{group} {jobs}", head=cluster.socket).stdout
    assert chosen.splitlines()[-1] == "total 5"
    text = run_here("greport", "daily", "--of", "today", head=cluster.socket).stdout
    assert text.startswith("Daily report of test: ")
    assert "5 jobs ended: 4 succeeded, 1 failed." in text
    assert "user program" in text
    assert "Left out: no job had GPUs, " in text
    page = run_here("greport", "daily", "--of", "today", "--html", head=cluster.socket).stdout
    assert page.startswith("<!DOCTYPE html>")
    assert "<polyline" in page
    assert "<script" not in page
    workload = run_here("greport", "--swf", head=cluster.socket).stdout.splitlines()
    assert len([line for line in workload if not line.startswith(";")]) == 5
    report = json.loads(
        run_here("greport", "daily", "--of", "today", "--json", head=cluster.socket).stdout
    )
    assert report["total"]["jobs"] == 5
    assert report["offered"]["cpus"] == 8
    monkeypatch.setenv("GSCHED_HEAD", str(cluster.socket))
    sreport = ("sreport", "-n", "-P", "-t", "seconds", "cluster", "util")
    cells = slurm(*sreport, "start=today", "end=tomorrow").stdout.split("|")
    assert cells[0] == "test"
    assert int(cells[6]) > 0


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--by", "usr"), "unknown group 'usr'"),
        (("--since", "soon"), "--since: invalid time 'soon'"),
        (("--since", "today", "--until", "yesterday"), "is empty"),
        (("--csv", "--json"), "mutually exclusive"),
        (("hourly",), "unknown report 'hourly'"),
        (("weekly", "--by", "user"), "weekly and --by are mutually exclusive"),
        (("--of", "today"), "--of is of a report"),
        (("--swf", "--by", "user"), "--by and --swf are mutually exclusive"),
        (("daily", "--of", "2999-01-01"), "is in the future"),
    ],
)
def test_what_greport_refuses(words: tuple[str, ...], text: str) -> None:
    ran = run_here("greport", *words, head="/nowhere")

    assert ran.status == 2
    assert text in ran.stderr


def test_without_a_head_it_says_so() -> None:
    assert run_here("greport", head="/nowhere/head.sock").status == 69


def test_a_monitor_that_is_not_there_is_named(cluster: Cluster) -> None:
    cluster.start_head()
    ran = run_here("greport", head=cluster.socket)

    assert ran.status == 69
    assert "the monitor does not answer at" in ran.stderr
    assert "does [web] of its configuration say enabled = true?" in ran.stderr


def local(text: str) -> float:
    return time.mktime(time.strptime(text, "%Y-%m-%d %H:%M"))


@pytest.mark.parametrize(
    ("form", "of_date", "begin", "end"),
    [
        ("daily", "", "2026-11-26 00:00", "2026-11-27 00:00"),
        ("weekly", "", "2026-11-16 00:00", "2026-11-23 00:00"),
        ("monthly", "", "2026-10-01 00:00", "2026-11-01 00:00"),
        ("daily", "2026-11-20", "2026-11-20 00:00", "2026-11-21 00:00"),
        ("weekly", "2026-11-22", "2026-11-16 00:00", "2026-11-23 00:00"),
        ("weekly", "2026-10-25", "2026-10-19 00:00", "2026-10-26 00:00"),
        ("monthly", "2025-12", "2025-12-01 00:00", "2026-01-01 00:00"),
    ],
)
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/Sao_Paulo"])
def test_the_periods_of_reports(
    form: str, of_date: str, begin: str, end: str, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Berlin the 25th of October has 25 hours."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        found = period_of(form, of_date, local("2026-11-27 01:30"))
        assert found == (local(begin), local(end))
    finally:
        monkeypatch.undo()
        time.tzset()

"""greport: figures of past jobs in groups, in pages of a real head."""

import csv
import io
import json

import pytest

from gsched.cli.commands.greport import past_jobs
from gsched.cli.show.usage import GROUPS, usage_of
from gsched.protocol import api
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import run_command
from tests.support.desk import PLENTY_S
from tests.support.fake_api import NOW_S, make_row
from tests.support.in_process import run_here

pytestmark = pytest.mark.timeout(240)


def past(number: int, *, exit_code: int = 0, kind: str = "exited", **changes: object) -> api.JobRow:
    outcome = {
        "kind": kind,
        "exit_status": exit_code,
        "shell_status": exit_code,
        "exit_code": exit_code,
    }
    fields: dict[str, object] = {
        "state": "done", "letter": "C", "outcome": outcome, "submitted_s": NOW_S - 7300,
        "started_s": NOW_S - 7200, "ended_s": NOW_S, "wall_s": 7200.0, "cpus": 4, "cpu_s": 14400.0,
        "gpus": 2, "nodes": ("n1",),
    }  # fmt: skip
    return make_row(number, **(fields | changes))


def test_hours_waits_and_causes_are_summed_by_group() -> None:
    rows = [
        past(1),
        past(2, exit_code=3, submitted_s=NOW_S - 7500),
        past(3, user="bob", kind="walltime", gpus=0),
        past(4, user="bob", kind="cancelled", started_s=None, wall_s=0.0, cpu_s=0.0),
        past(5, gpus=1, gpu_share={"percent": 50, "memory_bytes": 1, "share_class": "low"}),
        past(6, array={"indices": "0-1", "elements": 2}),
    ]

    alice, bob, total = usage_of(rows, "user")

    assert (alice.group, alice.jobs, alice.succeeded, alice.failed) == ("alice", 3, 2, 1)
    assert (alice.cpu_hours, alice.cpu_hours_used, alice.cpu_efficiency) == (24.0, 12.0, 0.5)
    assert alice.gpu_hours == 2 * 2 * 2 + 0.5 * 2
    assert alice.wait_mean_s == pytest.approx((100 + 300 + 100) / 3, abs=0.1)
    assert alice.causes == {"exit code": 1}
    assert (bob.jobs, bob.failed, bob.cancelled, bob.gpu_hours) == (2, 1, 1, 0)
    assert bob.causes == {"walltime": 1}
    assert (total.group, total.jobs, total.cpu_hours) == ("total", 5, 32.0)


@pytest.mark.parametrize("by", list(GROUPS))
def test_each_group_has_all_jobs_once(by: str) -> None:
    rows = [past(n, user=f"u{n % 3}", queue=f"q{n % 2}", name=f"j{n}") for n in range(1, 10)]

    *groups, total = usage_of(rows, by)

    assert sum(each.jobs for each in groups) == total.jobs == 9


def test_a_period_without_jobs_is_a_total_of_nothing() -> None:
    (total,) = usage_of([], "user")

    assert (total.jobs, total.cpu_efficiency, total.wait_mean_s) == (0, None, None)


def test_reports_of_a_real_head(cluster: Cluster) -> None:
    """In pages of two jobs each job is counted once."""
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
    assert lines[0]["causes"] == "exit code=1"
    now_s = cluster.head.status().now_s
    paged, damaged = past_jobs(cluster.head, now_s - 3600, now_s + 60, {}, page=2)
    assert (sorted(row.id for row in paged), damaged) == ([1, 2, 3, 4, 5], 0)
    table = run_here("greport", "-u", "nobody-here", head=cluster.socket).stdout
    assert table.splitlines()[-1].split("\t")[:2] == ["total", "0"]
    chosen = run_here("greport", "--template", "{group} {jobs}", head=cluster.socket).stdout
    assert chosen.splitlines()[-1] == "total 5"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--by", "usr"), "unknown group 'usr'"),
        (("--since", "soon"), "--since: invalid time 'soon'"),
        (("--since", "today", "--until", "yesterday"), "is empty"),
        (("--csv", "--json"), "mutually exclusive"),
    ],
)
def test_what_greport_refuses(words: tuple[str, ...], text: str) -> None:
    ran = run_here("greport", *words, head="/nowhere")

    assert ran.status == 2
    assert text in ran.stderr


def test_without_a_head_it_says_so() -> None:
    assert run_here("greport", head="/nowhere/head.sock").status == 69

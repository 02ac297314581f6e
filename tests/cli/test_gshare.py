"""gshare: usage and fair shares, on a running head."""

import getpass
import json

import pytest

from tests.support.cluster import Cluster, wait_until
from tests.support.commands import Ran
from tests.support.in_process import run_here

pytestmark = pytest.mark.timeout(120)
ME = getpass.getuser()
NO_OUTPUT = ("-o", "/dev/null", "-e", "/dev/null")


def run(cluster: Cluster, *words: str) -> Ran:
    return run_here(*words, head=cluster.socket)


def usage_of(cluster: Cluster, user: str) -> float:
    rows = json.loads(run(cluster, "gshare", "--json").stdout)["rows"]
    return float(sum(row["usage"] for row in rows if row["user"] == user))


def test_usage_and_shares_of_projects_and_users_are_shown(cluster: Cluster) -> None:
    """The one who has run something comes after the one who has not, also after a restart."""
    cluster.queues = (
        '[[queue]]\nname = "batch"\n[[project]]\nname = "lab"\n'
        f'[[project]]\nname = "ai"\nparent = "lab"\nusers = {{ "{ME}" = 3, "nobody" = 1 }}\n'
    )
    cluster.start_head()
    cluster.start_node("n1", cpus=2)
    assert run(cluster, "gsub", *NO_OUTPUT, "-l", "ncpus=2", "--", "sleep", "1").status == 0
    assert run(cluster, "gwait", "1").status == 0
    wait_until(lambda: usage_of(cluster, ME) > 0)
    used = usage_of(cluster, ME)
    cluster.kill_head()
    cluster.start_head()

    rows = json.loads(run(cluster, "gshare", "--json").stdout)["rows"]
    assert [(row["project"], row["user"], row["depth"]) for row in rows] == [
        ("root", "", 0),
        ("lab", "", 1),
        ("ai", "", 2),
        *sorted((("ai", ME, 2), ("ai", "nobody", 2))),
    ]
    by_user = {row["user"]: row for row in rows if row["user"]}
    assert by_user[ME]["usage"] == pytest.approx(used, rel=1e-3)
    assert by_user[ME]["cpu_s"] == rows[0]["cpu_s"] == pytest.approx(used, rel=1e-3)
    assert (by_user[ME]["fair_share"], by_user["nobody"]["fair_share"]) == (0.5, 1.0)
    assert by_user["nobody"].get("level_fs") is None
    lines = run(cluster, "gshare", "-t").stdout.splitlines()
    assert lines[0].split("\t")[:3] == ["Project", "User", "Shares"]
    assert [line.split("\t")[0] for line in lines[1:4]] == ["root", "  lab", "    ai"]
    one = run(cluster, "gshare", "-A", "ai", "-u", ME).stdout.splitlines()
    assert len(one) == 2
    assert one[1].split("\t")[-1] == "0.500000"
    refused = run(cluster, "gshare", "-u", "nosuch")
    assert refused.status == 2
    assert "nothing is known of user 'nosuch'" in refused.stderr


def test_without_projects_users_are_on_one_level(cluster: Cluster) -> None:
    cluster.start_head()
    cluster.start_node("n1", cpus=1)
    assert "jobs are not ordered by fair shares" in run(cluster, "gshare").stderr
    run(cluster, "gsub", *NO_OUTPUT, "--", "true")
    run(cluster, "gwait", "1")

    rows = json.loads(run(cluster, "gshare", "--json").stdout)["rows"]
    assert [(row["project"], row["user"]) for row in rows] == [("root", ""), ("root", ME)]
    assert rows[1]["fair_share"] == 1.0

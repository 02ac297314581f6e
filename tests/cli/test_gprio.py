"""gprio: the terms of priorities, on a running head with projects."""

import getpass
import json

import pytest

from tests.support.cluster import Cluster
from tests.support.commands import Ran
from tests.support.in_process import run_here

pytestmark = pytest.mark.timeout(120)


def run(cluster: Cluster, *words: str) -> Ran:
    return run_here(*words, head=cluster.socket)


def test_terms_are_shown_and_projects_are_checked(cluster: Cluster) -> None:
    """The project with its share, the terms of each job in order, their sum in gstat -f."""
    me = getpass.getuser()
    cluster.queues = (
        f'[[queue]]\nname = "batch"\n[[project]]\nname = "ai"\nusers = {{ "{me}" = 3 }}\n'
        '[[project]]\nname = "bio"\nusers = ["nobody"]\n[[qos]]\nname = "fast"\npriority = 7\n'
    )
    cluster.start_head()
    for words in (["-N", "plain", "-l", "ncpus=1"], ["-N", "fast", "--qos", "fast", "-A", "ai"]):
        assert run(cluster, "gsub", *words, "--", "true").status == 0
    refused = run(cluster, "gsub", "-A", "bio", "--", "true")

    assert f"{me} is not in project bio\n      hint: projects of {me}: ai" in refused.stderr
    shown = json.loads(run(cluster, "gprio", "--json").stdout)["jobs"]
    assert [(each["name"], each["account"]) for each in shown] == [("fast", "ai"), ("plain", "ai")]
    assert [each["terms"]["qos"] for each in shown] == [7, 0]
    lines = run(cluster, "gprio").stdout.splitlines()
    assert ["1007.00" in line for line in lines] == [False, True, False]
    assert "1000.00" in lines[2]
    assert "1007.00 = fair_share 1000.00 + qos 7.00" in run(cluster, "gstat", "-f", "2").stdout


def test_without_terms_it_says_so(cluster: Cluster) -> None:
    """On standard error, as there is nothing to show."""
    cluster.start_head()
    assert "no waiting jobs" in run(cluster, "gprio").stderr
    run(cluster, "gsub", "--", "true")
    assert "[priority] is not in force on this cluster" in run(cluster, "gprio").stderr

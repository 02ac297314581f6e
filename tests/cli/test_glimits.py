"""glimits: limits, what is used of them, and by whom."""

import getpass
import json

import pytest

from tests.support.cluster import Cluster, wait_until
from tests.support.commands import run_command
from tests.support.in_process import run_here

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def site(cluster: Cluster) -> Cluster:
    me = getpass.getuser()
    cluster.queues = (
        "[limits]\neach_user = { max_running = 1, max_gpu_hours_per_month = 100 }\n"
        '[[queue]]\nname = "batch"\ntotal = { max_cpus = 8, max_memory_bytes = "64gb" }\n'
        f'user.{me} = {{ max_gpus_of = {{ h100 = 4 }}, max_walltime_s = "2h" }}\n'
        "each_project = { max_gpus = 5 }\n"
        '[[queue]]\nname = "night"\n'
        f'[[project]]\nname = "ai"\nusers = ["{me}", "other"]\ntotal = {{ max_gpus = 6 }}\n'
        '[[project]]\nname = "bio"\nusers = ["other"]\ntotal = { max_gpus = 1 }\n'
    )
    cluster.start_head()
    cluster.start_node("a", cpus=16, gpus=4, gpu_type="h100")
    for _ in range(2):
        words = ("-A", "ai", "-l", "ncpus=2,gpus=2,walltime=1:00:00", "--", "sleep", "600")
        assert run_command("gsub", *words, head=cluster.socket, cwd=cluster.jobs).status == 0
    wait_until(lambda: cluster.head.status().jobs.get("running"), what="a job to run")
    return cluster


def test_limits_are_shown_with_use_rest_and_users(site: Cluster) -> None:
    """Of the first of two jobs, and why the other one waits is the same limit in words."""
    me = getpass.getuser()
    printed = run_here("glimits", head=site.socket).stdout
    lines = [line.split() for line in printed.splitlines()]
    for line in (
        f"each user running jobs 1 1 0 {me} 1",
        f"each user GPU-hours per month 100 2 98 {me} 2",
        f"queue batch CPUs 8 2 6 {me} 2",
        f"user {me} in queue batch h100 GPUs 4 2 2 {me} 2",
        f"project ai GPUs 6 2 4 {me} 2",
        f"user {me} in queue batch walltime 02:00:00 - - -",
        "project bio GPUs 1 0 1 -",
        f"each project in queue batch (ai) GPUs 5 2 3 {me} 2",
    ):
        assert line.split() in lines, printed
    why = run_here("gstat", "--why", "2", head=site.socket).stdout
    assert f"{me} has 1 of 1 running jobs, the limit of each user: job 1" in " ".join(why.split())


def test_rows_are_those_that_jobs_are_subject_to(site: Cluster) -> None:
    """Of a user, a project, a queue and a QOS, as JSON."""

    def rows(*words: str) -> set[tuple[str, str]]:
        reply = json.loads(run_here("glimits", "--json", *words, head=site.socket).stdout)
        return {(row["limit_of"], row["key"]) for row in reply["rows"]}

    assert ("project bio", "max_gpus") not in rows("-u", getpass.getuser())
    assert {("project bio", "max_gpus"), ("each user", "max_running")} <= rows("-u", "other")
    of_stranger = rows("-u", "stranger")  # who is in no project
    assert ("each user", "max_running") in of_stranger
    assert not any(getpass.getuser() in limit_of for limit_of, _ in of_stranger)
    assert ("queue batch", "max_cpus") in rows("-A", "ai", "-q", "batch")
    assert ("project bio", "max_gpus") not in rows("-A", "ai")
    assert ("queue batch", "max_cpus") not in rows("-q", "night")
    used_up = json.loads(run_here("glimits", "--json", head=site.socket).stdout)["rows"]
    (row,) = (row for row in used_up if row["left"] == 0 and row["key"] == "max_running")
    assert row["holders"] == [{"user": getpass.getuser(), "amount": 1.0}]


def test_a_cluster_without_limits_shows_none(cluster: Cluster) -> None:
    cluster.start_head()
    ran = run_here("glimits", head=cluster.socket)
    assert (ran.status, ran.stdout) == (0, "")
    assert "there are no such limits" in ran.stderr
    assert run_here("glimits", "-x", head=cluster.socket).status == 2


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("-A", "vison"), 156, "unknown project 'vison'"),
        (("--qos", "urgnt"), 156, "unknown QOS 'urgnt'"),
        (("-q", "gpuu"), 172, "unknown queue 'gpuu'"),
    ],
)
def test_a_misspelt_name_is_refused(
    site: Cluster, words: tuple[str, ...], status: int, message: str
) -> None:
    ran = run_here("glimits", *words, head=site.socket)

    assert (ran.status, ran.stdout) == (status, "")
    assert message in ran.stderr

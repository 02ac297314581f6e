"""The health of the head: what it cannot do is told with the reason, and over when it can again.

A load balancer or Kubernetes asks within 30 s, the default of `wait_until`.
"""

import os
import signal
from threading import Thread

import pytest

from tests.support.cluster import Cluster, wait_until
from tests.support.commands import run_command
from tests.support.desk import PLENTY_S, Desk
from tests.support.disks import fill, free, small_disk
from tests.support.monitor import Response, UnixConnection, get, is_ready, send

pytestmark = pytest.mark.timeout(240)


def health(cluster: Cluster, path: str = "/readyz") -> Response:
    """Return what the head says, without its monitor."""
    return send(UnixConnection(cluster.socket), "GET", path)


def says(cluster: Cluster, words: str) -> None:
    """Wait until the head is not ready for this reason, and check that it lives."""
    wait_until(lambda: words in health(cluster).text, what=f"{words!r} of /readyz")
    assert health(cluster).status == 503
    assert health(cluster, "/livez").status == 200


def is_well(cluster: Cluster) -> bool:
    return health(cluster).status == 200


def submit(cluster: Cluster) -> None:
    ran = run_command("gsub", "--", "true", head=cluster.socket, cwd=cluster.jobs)
    assert ran.status == 0, ran.stderr


def test_a_planner_that_hangs_makes_the_head_not_ready(cluster: Cluster) -> None:
    desk = Desk(cluster)
    desk.ends(desk.train())
    assert is_well(cluster)
    planner = desk.planner()
    os.kill(planner, signal.SIGSTOP)
    training = desk.train()

    says(cluster, "the plan of training jobs has not finished")

    os.kill(planner, signal.SIGCONT)
    desk.ends(training)
    wait_until(lambda: is_well(cluster), PLENTY_S, what="the head to be ready again")


def test_a_path_names_the_methods_that_it_has(cluster: Cluster) -> None:
    """`/v1/jobs/actions` is not the job `actions`, which could be read."""
    cluster.start_head()
    found = {}
    for path in ("/v1/jobs/actions", "/v1/jobs", "/v1/jobs/1", "/v1/status"):
        response = send(UnixConnection(cluster.socket), "OPTIONS", path)
        found[path] = (response.status, response.headers["allow"])

    assert found == {
        "/v1/jobs/actions": (405, "POST"),
        "/v1/jobs": (405, "GET,HEAD,POST"),
        "/v1/jobs/1": (405, "GET,HEAD"),
        "/v1/status": (405, "GET,HEAD"),
    }


def test_a_commit_that_waits_for_its_disk_makes_the_head_not_ready(cluster: Cluster) -> None:
    cluster.start_head({"GSCHED_FAIL": "head.mark.before_write:1:sleep=40"})
    submission = Thread(target=submit, args=(cluster,))
    submission.start()

    says(cluster, "a commit to the database has not finished")

    submission.join()
    wait_until(lambda: is_well(cluster), PLENTY_S, what="the head to be ready again")


def test_a_head_that_is_busy_for_long_is_noticed_by_its_monitor(cluster: Cluster) -> None:
    """Its event loop answers nobody, so that only the monitor can tell."""
    cluster.has_monitor = True
    cluster.web_settings = {"sample_period_s": 1}
    cluster.start_head({"GSCHED_FAIL": "head.cycle.before:1:sleep=30"})
    wait_until(lambda: is_ready(cluster), what="the monitor to be ready")
    cluster.start_node("a", wait=False)

    wait_until(lambda: get(cluster, "/readyz").status == 503, what="the head to be missed")
    response = get(cluster, "/readyz")
    assert "its event loop is blocked" in response.text
    assert get(cluster, "/livez").status == 200
    wait_until(lambda: is_ready(cluster), PLENTY_S, what="the head to be ready again")


def test_a_full_store_makes_the_head_not_ready(cluster: Cluster) -> None:
    with small_disk(cluster.state_dir, "16m") as disk:
        try:
            cluster.start_head()
            cluster.start_node("a")
            submit(cluster)
            fill(disk)
            run_command("gsub", "--", "true", head=cluster.socket, cwd=cluster.jobs)
            says(cluster, "the head's disk is full")

            free(disk)
            wait_until(lambda: is_well(cluster), PLENTY_S, what="the head to be ready again")
            submit(cluster)
        finally:
            cluster.stop()

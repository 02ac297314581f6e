"""qmgr changes queues and scheduling of a running head, durably."""

import pytest

from gsched.protocol.queues import QueueChange
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import Ran, run_command
from tests.support.desk import PLENTY_S
from tests.support.in_process import run_here

pytestmark = pytest.mark.timeout(240)


class Desk:
    """A head with one node, and operators' commands."""

    def __init__(self, cluster: Cluster) -> None:
        cluster.start_head()
        cluster.start_node("n1", cpus=2)
        self.cluster = cluster

    def qmgr(self, command: str) -> str:
        ran = run_here("qmgr", "-c", command, head=self.cluster.socket)
        assert (ran.status, ran.stderr) == (0, ""), (command, ran)
        return ran.stdout

    def gsub(self, *arguments: str) -> Ran:
        words = ("gsub", *arguments, "--", "true")
        return run_command(*words, head=self.cluster.socket, cwd=self.cluster.jobs)

    def submit(self, *arguments: str) -> int:
        ran = self.gsub(*arguments)
        assert ran.status == 0, ran.stderr
        return int(ran.stdout.partition(".")[0])

    def why(self, job: int) -> str:
        return self.cluster.head.job(job).row.reason

    def ends(self, job: int) -> None:
        wait_until(lambda: self.cluster.head.job(job).row.state == "done", PLENTY_S, what="an end")


@pytest.fixture
def desk(cluster: Cluster) -> Desk:
    return Desk(cluster)


def test_what_qmgr_changes_counts_at_once_and_after_a_restart(desk: Desk) -> None:
    desk.qmgr("set server scheduling = False")
    job = desk.submit()
    assert desk.why(job) == "an operator has stopped scheduling: no job is started"
    assert "server_state = Idle" in desk.qmgr("list server")
    desk.qmgr("create queue night")
    assert "queue 'night' takes no jobs now" in desk.gsub("-q", "night").stderr
    desk.qmgr("set queue night enabled = True")
    desk.qmgr("set queue night resources_max.walltime = 00:10:00")
    assert "over the limit of queue night" in desk.gsub("-q", "night", "-l", "walltime=3600").stderr
    other = desk.submit("-q", "night", "-l", "walltime=60")

    desk.cluster.stop_head()
    desk.cluster.start_head()

    assert desk.why(other) == "queue night is stopped"
    printed = desk.qmgr("print server")
    assert "set queue night resources_max.walltime = 00:10:00" in printed
    assert "set queue night started = False" in printed
    assert "set server scheduling = False" in printed
    desk.qmgr("set server scheduling = True")
    desk.ends(job)
    assert desk.cluster.head.job(other).row.state == "queued"
    refused = run_here("qmgr", "-c", "delete queue night", head=desk.cluster.socket)
    assert "queue night has 1 unfinished jobs" in refused.stderr
    desk.qmgr("set queue night started = True")
    desk.ends(other)
    desk.qmgr("delete queue night")
    assert "unknown queue 'night'" in desk.gsub("-q", "night").stderr


def test_what_print_server_prints_can_be_read_again(desk: Desk) -> None:
    """The queue that is configured is told on stderr only."""
    desk.qmgr("create queue night")
    desk.qmgr("set queue night enabled = True")
    printed = desk.qmgr("print server")
    desk.qmgr("delete queue night")

    again = "; ".join(printed.splitlines())
    ran = run_here("qmgr", "-c", again, head=desk.cluster.socket)

    assert ran.status == 0, ran.stderr
    assert "queue batch exists already" in ran.stderr
    assert desk.qmgr("print server") == printed


def test_who_may_not_and_what_may_not(desk: Desk) -> None:
    for command, words in (
        ("delete queue batch", "queue batch is configured"),
        ("delete queue none", "Unknown queue"),
        ("create queue a/b", "is not possible"),
    ):
        ran = run_here("qmgr", "-c", command, head=desk.cluster.socket)
        assert ran.status != 0
        assert words in ran.stderr, ran.stderr


def test_a_change_counts_when_its_command_ends(desk: Desk) -> None:
    """However busy the head is: its next answer has the change."""
    head = desk.cluster.head
    for _ in range(60):
        head.change_queues([QueueChange(verb="create", queue="night")])
        assert "night" in head.status().queues
        head.change_queues([QueueChange(verb="delete", queue="night")])
        assert "night" not in head.status().queues

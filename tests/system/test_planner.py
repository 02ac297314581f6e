"""A planner beside a real head that is slow, hangs, dies or fails: everything else goes on."""

import os
import select
import signal
from functools import partial

import pytest

from tests.support.cluster import Cluster, wait_until
from tests.support.desk import PLENTY_S, Desk

pytestmark = pytest.mark.timeout(240)


def test_no_planner_is_started_before_there_is_a_training(cluster: Cluster) -> None:
    """Most sites have none."""
    desk = Desk(cluster)

    desk.ends(desk.submit())

    assert desk.worker("planner") == 0
    desk.ends(desk.train())
    assert desk.worker("planner")


def test_jobs_come_and_go_while_a_policy_takes_its_time(cluster: Cluster) -> None:
    """It takes 20 s for a plan; meanwhile five jobs end one after the other."""
    desk = Desk(cluster, "slow 20")
    training = desk.train()
    desk.planner()

    done = [desk.ends(desk.submit()) for _ in range(5)]
    waiting = desk.row(training)

    assert waiting.state == "queued", "the plan was not there yet"
    assert all(row.outcome is not None and row.outcome.exit_status == 0 for row in done)
    row = desk.ends(training)
    assert row.outcome is not None
    assert row.outcome.exit_status == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_planner_that_is_killed_is_started_again(cluster: Cluster, number: int) -> None:
    """It costs a round, is in the log, and training jobs run on."""
    desk = Desk(cluster)
    desk.ends(desk.train())
    before = desk.planner()
    os.kill(before, number)
    wait_until(lambda: desk.worker("planner") != before, PLENTY_S, what="its end")

    row = desk.ends(desk.train())

    assert row.outcome is not None
    assert row.outcome.exit_status == 0
    assert desk.planner() != before
    desk.log_says(f"planner was killed by signal {int(number)}")
    assert cluster.head.status().planner == ""


def test_a_planner_that_hangs_is_told_and_others_go_on(cluster: Cluster) -> None:
    """The doctor says so as long as it lasts, then the next one plans."""
    desk = Desk(cluster, limit_s=3.0)
    desk.ends(desk.train())
    os.kill(desk.planner(), signal.SIGSTOP)
    training = desk.train()

    desk.ends(desk.submit())
    desk.log_says("planner has not answered within 3 s; it is started again")

    row = desk.ends(training)
    assert row.outcome is not None
    assert row.outcome.exit_status == 0


@pytest.mark.parametrize("policy", ["hangs", "dies", "raises"])
def test_a_policy_that_always_fails_stops_no_other_job(cluster: Cluster, policy: str) -> None:
    """After some rounds even jobs with GPUs start; the training waits, and the doctor says why."""
    desk = Desk(cluster, policy, limit_s=2.0)
    training = desk.train()
    ran = desk.run("gsub", "-l", "nodes=1:ppn=1:gpus=1", "--", "true")
    with_gpu = int(ran.stdout.partition(".")[0])

    desk.ends(desk.submit())
    desk.ends(with_gpu)

    assert desk.row(training).state == "queued"
    doctor = desk.run("gsched", "doctor")
    words = {
        "hangs": "has not answered within 2 s",
        "dies": "has ended with exit status 3",
        "raises": "the scheduling policy failed",
    }
    assert words[policy] in doctor.stdout
    if policy == "raises":
        desk.log_says("ZeroDivisionError: nobody is there to share with")


def test_nothing_of_the_planner_is_left_when_the_head_ends(cluster: Cluster) -> None:
    """Stopped or killed, in the middle of a plan that never ends."""
    desk = Desk(cluster, "hangs")
    for end in (cluster.stop_head, cluster.kill_head):
        desk.train()
        opened = os.pidfd_open(desk.planner())
        end()
        wait_until(partial(_is_over, opened), PLENTY_S, what="the planner's end")
        os.close(opened)
        cluster.start_head({"ODD_POLICY": "hangs"})


def _is_over(opened: int) -> bool:
    return bool(select.select([opened], [], [], 0)[0])

"""Forecasts beside a real head whose policy is slow, hangs, dies or fails: queries go on."""

import os
import signal
import threading
from pathlib import Path

import pytest

from gsched.protocol.job_rows import JobStory, StartRow
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import Ran, run_command
from tests.support.desk import PLENTY_S, SIZE, Desk

pytestmark = pytest.mark.timeout(240)

GPU = "nodes=1:ppn=1:gpus=1,walltime=600"
DEADLINE = ("--training", "size.toml", "--deadline", "1h", "-l", GPU)


class Queue:
    """A node that is partly taken for an hour, a training job, and two jobs that need all of it.

    Only a forecast says when the last of them starts; one CPU is left for a short job beside.
    """

    def __init__(
        self, cluster: Cluster, policy: str = "", *, limit_s: float = 60.0, trains_s: str = "1"
    ) -> None:
        self.desk = Desk(cluster, policy, limit_s=limit_s)
        first = self.submit("-l", "nodes=1:ppn=1,walltime=3600", "--", "sleep", "3600")
        wait_until(lambda: self.desk.row(first).state == "running", PLENTY_S, what="a start")
        self.submit(*DEADLINE, "--", "sleep", trains_s)
        self.submit("-l", "nodes=1:ppn=4,walltime=60", "--", "true")
        self.last = 0
        self.grow()

    def grow(self) -> None:
        """Submit one more job that needs the whole node: the last one from now on."""
        self.last = self.submit("-l", "nodes=1:ppn=4,walltime=120", "--", "true")

    def submit(self, *arguments: str) -> int:
        ran = self.desk.run("gsub", *arguments)
        assert ran.status == 0, ran.stderr
        return int(ran.stdout.partition(".")[0])

    def others_go_on(self) -> None:
        """Have a short job run to its end."""
        row = self.desk.ends(self.submit("-l", "walltime=60", "--", "true"))
        assert row.outcome is not None
        assert row.outcome.exit_status == 0

    def why(self) -> str:
        """Return what ``gstat --why`` says of the last job."""
        ran = self.desk.run("gstat", "--why", str(self.last))
        assert ran.status == 0, ran.stderr
        return ran.stdout

    def story(self) -> JobStory:
        return self.desk.cluster.head.job(self.last)

    def start_is_told(self) -> None:
        """Wait until it is known when the last job starts: not before the first has ended."""
        start = wait_until(self.known_start, PLENTY_S, what="a start")
        assert start is not None
        assert start.planned_s is not None
        assert start.planned_s > self.story().now_s + 1800
        assert start.early_s is not None
        assert start.expected_s is not None
        assert start.late_s is not None
        assert start.early_s < start.expected_s < start.late_s <= start.planned_s

    def known_start(self) -> StartRow | None:
        start = self.story().row.start
        return start if start is not None and start.expected_s is not None else None

    def forecaster(self) -> int:
        """Return the id of the process that computes forecasts; 0: there is none."""
        return self.desk.worker("forecaster")


def test_queries_and_jobs_go_on_while_a_forecast_is_being_computed(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The policy does not answer before the test lets it: until then nobody waits for it."""
    gate = tmp_path / "gate"
    queue = Queue(cluster, f"waits {gate}", limit_s=3600.0)

    texts = [queue.why() for _ in range(3)]
    full = queue.desk.run("gstat", "-f", str(queue.last))
    queue.others_go_on()
    assert queue.forecaster()
    gate.touch()

    assert all("expected start: not known yet" in text for text in texts), texts
    assert "predicted_start_unknown = not known yet" in full.stdout
    queue.start_is_told()


def test_a_forecast_that_takes_longer_than_a_query_waits_is_shown_later(cluster: Cluster) -> None:
    """A plan takes a second, and a forecast some plans; what was computed meanwhile is kept."""
    queue = Queue(cluster, "slow 1", trains_s="600")

    first = queue.why()

    assert "expected start: not known yet" in first
    queue.start_is_told()
    assert cluster.head.status().forecaster == ""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_forecaster_that_is_killed_is_started_again(cluster: Cluster, number: int) -> None:
    """It costs one forecast, and no plan."""
    queue = Queue(cluster)
    queue.start_is_told()
    before, planner = queue.forecaster(), queue.desk.planner()
    os.kill(before, number)

    wait_until(lambda: queue.forecaster() != before, PLENTY_S, what="its end")
    queue.why()
    words = f"was killed by signal {int(number)} ("
    wait_until(lambda: words in cluster.head.status().forecaster, PLENTY_S, what="the news of it")
    doctor = queue.desk.run("gsched", "doctor").stdout

    assert f"the last forecast failed: the forecaster {words}" in doctor
    queue.grow()
    queue.start_is_told()
    assert queue.forecaster() not in (0, before)
    assert queue.desk.planner() == planner
    assert cluster.head.status().forecaster == ""


def test_a_forecaster_that_hangs_is_started_again(cluster: Cluster) -> None:
    """Stopped with SIGSTOP: a query does not wait for it, and the next process answers."""
    queue = Queue(cluster, limit_s=10.0)
    queue.start_is_told()
    os.kill(queue.forecaster(), signal.SIGSTOP)

    earlier = queue.why()
    queue.grow()
    said = queue.why()
    queue.others_go_on()

    assert "not known" not in earlier, "the last forecast is shown"
    assert "expected start: not known yet" in said
    queue.desk.log_says("forecaster has not answered within 10 s; it is started again")
    queue.start_is_told()


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("dies", "not known: the forecaster has ended with exit status 3"),
        ("raises", "not known: the policy failed"),
    ],
)
def test_a_policy_that_fails_costs_forecasts_only(
    cluster: Cluster, policy: str, words: str
) -> None:
    """Whoever asks reads why there is none."""
    queue = Queue(cluster, policy)

    wait_until(lambda: words in queue.why(), PLENTY_S, what=words)

    queue.others_go_on()
    if policy == "raises":
        queue.desk.log_says("ZeroDivisionError: nobody is there to share with")


def test_a_deadline_that_cannot_be_judged_in_time_is_not_guaranteed(cluster: Cluster) -> None:
    """The user asked for a guarantee; there is none, and nothing was queued."""
    desk = Desk(cluster, "hangs", limit_s=3.0)

    refused = desk.run("gsub", *DEADLINE, "--reject-if-late", "--", "true")
    tried = desk.run("gsub", *DEADLINE, "--dry-run", "--", "true")

    assert refused.status != 0
    assert "no forecast came within 3 s; nothing was queued" in refused.stderr
    assert cluster.head.jobs().jobs == ()
    assert "no forecast came within 3 s" in tried.stdout + tried.stderr


def test_jobs_submitted_at_once_are_judged_one_by_one(cluster: Cluster) -> None:
    """Four users' training jobs that each need the whole node until the deadline: one is taken."""
    desk = Desk(cluster)
    options = ("--training", "size.toml", "--deadline", "20s", "-l", "nodes=1:ppn=1:gpus=2")
    (cluster.jobs / "size.toml").write_text(
        "[training]\niterations = 120\nrates = { 1 = 5, 2 = 10 }\n"
    )
    desk.run("gsub", *options, "--dry-run", "--", "true")  # starts the forecaster
    ran: list[Ran] = []

    def submit() -> None:
        ran.append(desk.run("gsub", *options, "--reject-if-late", "--", "sleep", "12"))

    threads = [threading.Thread(target=submit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(each.status == 0 for each in ran) == [False, False, False, True], ran
    assert len(cluster.head.jobs().jobs) == 1


def test_a_head_that_stops_does_not_wait_for_a_forecast(cluster: Cluster) -> None:
    """Nothing of the forecaster is left."""
    queue = Queue(cluster, "hangs", limit_s=3600.0)
    assert "not known yet" in queue.why()
    opened = os.pidfd_open(queue.forecaster())

    cluster.stop_head()

    wait_until(lambda: _is_over(opened), PLENTY_S, what="the forecaster's end")
    os.close(opened)


def _is_over(opened: int) -> bool:
    try:
        signal.pidfd_send_signal(opened, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_dry_run_under_a_policy_for_adaptive_jobs_tells_of_others_too(cluster: Cluster) -> None:
    """These are planned as jobs of the queue, on the fewest GPUs that they request."""
    cluster.queues = '[training]\npolicy = "goodput"\n'
    cluster.start_head()
    cluster.start_node("n1", cpus=4, gpus=2)
    (cluster.jobs / "size.toml").write_text(SIZE)
    for words in (DEADLINE, ("--gpus", "1..2", "--elastic")):
        ran = run_command(
            "gsub", "--dry-run", *words, "--", "true", head=cluster.socket, cwd=cluster.jobs
        )
        assert (ran.status, ran.stderr) == (0, ""), words
        assert "expected start: any moment" in ran.stdout
    assert (
        "expected to be met"
        in run_command(
            "gsub", "--dry-run", *DEADLINE, "--", "true", head=cluster.socket, cwd=cluster.jobs
        ).stdout
    )

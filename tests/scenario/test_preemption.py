"""Running jobs give way to waiting ones: which ones, how, when, and what is known of it."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest

from gsched.config.preemption import PreemptionConfig
from gsched.config.shares import PriorityConfig, ProjectConfig, QosConfig
from gsched.config.tables import QueueConfig
from gsched.protocol import actions as a
from gschedd.core.cycle.run import snapshot
from gschedd.core.forecast.question import question_of
from gschedd.core.forecast.start import answer_to
from gschedd.core.requests import commands as c
from gschedd.core.state import facts as f
from gschedd.core.state.settings import Caller
from gschedd.core.views.jobs import JobViews
from gschedd.plan.forecast import Forecast, StartInterval
from gschedd.policies.kit.order import KEPT
from tests.support.saving import Program
from tests.support.world import ALICE, BEGIN_S, BOB, World, node, settings

CAROL = Caller(user="carol", uid=1003, gid=100)
LONG = Program(runs_s=1e6)
SAVES = Program(runs_s=1e6, saves_s=1.0)
QOS = {
    "high": QosConfig(name="high", preempts=("low",)),
    "low": QosConfig(name="low"),
    "kept": QosConfig(name="kept", preempt_mode="off"),
}
SHARES = {"alice": 1, "bob": 1, "carol": 1}
#: Arguments of `World.submit`.
Keys = dict[str, Any]
ONE_GPU = "nodes=1:ppn=1:gpus=1"


def world(
    *,
    by: tuple[str, ...] = ("qos",),
    nodes: int = 1,
    gpus: int = 4,
    shares: Mapping[str, int] = SHARES,
    **keys: object,
) -> World:
    """Return a cluster with pre-emption."""
    rules = {"min_run_s": 60.0, "again_s": 1800.0, **keys}
    config = settings(
        queues={
            "batch": QueueConfig(name="batch"),
            "middle": QueueConfig(name="middle", priority=5),
            "fast": QueueConfig(name="fast", priority=9),
        },
        qos=QOS,
        projects={"all": ProjectConfig(name="all", users=dict(shares))},
        priority=PriorityConfig(qos=1.0, recompute_s=10.0),
        preemption=PreemptionConfig(by=by, **rules),  # type: ignore[arg-type] # keys of the table
    )
    return World(*(node(f"n{at}", cpus=16, gpus=gpus) for at in range(1, nodes + 1)), config=config)


def ways(here: World, *jobs: int) -> list[str]:
    """Return how jobs were preempted, in order."""
    facts = [fact for job in jobs for fact in here.told(f.JobPreempted, job)]
    return [fact.way for fact in facts if isinstance(fact, f.JobPreempted)]


def test_a_job_of_a_higher_qos_starts_and_the_job_with_the_least_lost_work_gives_way() -> None:
    """The later of two jobs gives way; it is requeued, and runs again after that."""
    here = world(gpus=2)
    first = here.submit(ONE_GPU, program=LONG, qos="low")
    here.run_until(100)
    second = here.submit(ONE_GPU, program=LONG, qos="low")
    here.run_until(200)
    high = here.submit(ONE_GPU, runs_s=50, by=BOB, qos="high")

    here.run_until(210)
    assert (here.started_s(high), here.state(second)) == (200.0, "queued")
    assert (here.state(first), ways(here, first, second)) == ("running", ["requeue"])
    (fact,) = here.told(f.JobPreempted, second)
    assert isinstance(fact, f.JobPreempted)
    assert fact.why == f"for job {high} of bob: QOS high preempts low"
    assert (fact.gpus, fact.job_for) == (1.0, high)
    assert fact.lost_s == pytest.approx(100, abs=2)
    assert here.job(second).preempted_gpu_s == pytest.approx(100, abs=2)

    here.run_until(300)
    assert (here.state(first), here.state(second)) == ("running", "running")


def test_nothing_is_preempted_before_its_minimum_run_and_the_reason_says_when() -> None:
    """The job starts when the minimum run is over, as was predicted."""
    here = world(gpus=1)
    low = here.submit(ONE_GPU, program=LONG, qos="low")
    here.run_until(10)
    high = here.submit(ONE_GPU, runs_s=50, by=BOB, qos="high")

    here.run_until(20)
    assert here.state(high) == "queued"
    assert f"; job {low} gives way at" in here.why(high)
    predicted_s = here.wait_of(high).predicted_start_s
    here.run_until(200)
    started_s = here.started_s(high)
    assert started_s == pytest.approx(60, abs=3)
    assert predicted_s == pytest.approx(here.job(low).submitted_s + 60, abs=3)


def test_the_estimated_start_of_a_job_that_preempts_is_that_of_the_preemption() -> None:
    """The queue played forward knows only that the running job ends after an hour."""
    here = world(gpus=1)
    low = here.submit(f"{ONE_GPU},walltime=3600", program=LONG, qos="low")
    here.run_until(10)
    high = here.submit(ONE_GPU, runs_s=50, by=BOB, qos="high")
    here.run_until(20)
    played = StartInterval(early_s=BEGIN_S + 3000, expected_s=BEGIN_S + 3600, scenarios=9)

    def expected_s() -> tuple[float | None, float | None]:
        views = JobViews(here.head, now_s=here.now_s)
        row = views.row_with_start(here.job(high), Forecast(interval=played))
        assert row.start is not None
        return row.predicted_start_s, row.start.expected_s

    assert expected_s()[0] == pytest.approx(BEGIN_S + 60, abs=3)
    assert expected_s()[1] is None
    here.delete(low)
    here.run_until(30)
    assert here.started_s(high) is not None


def test_a_job_is_preempted_once_in_half_an_hour() -> None:
    """It runs undisturbed after that, however long another one waits."""
    here = world(gpus=1)
    low = here.submit(ONE_GPU, program=LONG, qos="low")
    here.run_until(100)
    here.submit(ONE_GPU, runs_s=50, by=BOB, qos="high")
    here.run_until(200)
    assert here.state(low) == "running"
    again = here.submit(ONE_GPU, runs_s=50, by=BOB, qos="high")

    here.run_until(1890)
    assert here.state(again) == "queued"
    here.run_until(1950)
    assert here.started_s(again) == pytest.approx(1900, abs=3)
    assert ways(here, low) == ["requeue", "requeue"]


@pytest.mark.parametrize(
    ("mode", "changes", "expected"),
    [
        ("requeue", {"movable": True, "places_max": 4}, ["shrink"]),
        ("requeue", {"movable": True}, ["checkpoint"]),
        ("requeue", {}, ["requeue"]),
        ("checkpoint", {}, []),
        ("requeue", {"rerunnable": False}, []),
        ("cancel", {"rerunnable": False}, ["cancel"]),
        ("off", {"movable": True}, []),
    ],
)
def test_a_job_gives_way_as_it_can_and_may(
    mode: str, changes: dict[str, object], expected: list[str]
) -> None:
    """Shrinking comes first, and nothing beyond the mode."""
    here = world(gpus=4, mode=mode)
    elastic = "places_max" in changes
    gpus = 1 if elastic else 4
    low = here.submit(f"select=1:ncpus=1:ngpus={gpus}", program=SAVES, qos="low", **changes)  # type: ignore[arg-type] # passed on
    here.run_until(10)
    if elastic:
        here.do(c.ActOnJob(caller=ALICE, job=low, action=a.MigrateJob(gpus=4)))
    here.run_until(100)
    high = here.submit(ONE_GPU, program=LONG, by=BOB, qos="high")
    here.run_until(200)

    assert ways(here, low) == expected
    assert (here.started_s(high) is not None) == bool(expected)
    assert here.state(low) == ("running" if elastic or not expected else here.state(low))


def test_a_job_migrates_where_that_makes_room() -> None:
    """Each of two nodes has a free GPU, and a job needs two of one node."""
    here = world(nodes=2, gpus=2)
    first = here.submit(ONE_GPU, program=LONG, qos="low")
    moves = here.submit(ONE_GPU, program=SAVES, qos="low", movable=True)
    here.submit(ONE_GPU, program=LONG, qos="kept")
    last = here.submit(ONE_GPU, program=LONG, qos="low")
    here.run_until(100)
    for job in (first, last):
        here.delete(job)
    here.run_until(110)
    both = here.submit("select=1:ncpus=1:ngpus=2", program=LONG, by=BOB, qos="high")
    here.run_until(200)

    assert here.started_s(both) is not None
    assert (ways(here, moves), here.state(moves)) == (["migrate"], "running")


def test_a_job_that_does_not_save_its_state_in_time_is_requeued() -> None:
    """The waiting job starts nevertheless, after the checkpoint's time limit."""
    here = world(gpus=1)
    silent = Program(runs_s=1e6, saves_s=None)
    low = here.submit(ONE_GPU, program=silent, qos="low", movable=True)
    here.run_until(100)
    high = here.submit(ONE_GPU, program=LONG, by=BOB, qos="high")
    here.run_until(110)
    assert here.why(high) == f"starts when job {low} has given way"

    here.run_until(600)
    assert here.started_s(high) == pytest.approx(400, abs=5)
    assert here.job(low).requeues == 1
    assert (ways(here, low), here.job(low).preemptions) == (["checkpoint", "requeue"], 1)
    assert here.job(low).preempted_gpu_s == pytest.approx(400, abs=5)


def test_a_job_that_keeps_running_is_not_preempted_again_before_again_s() -> None:
    """It neither saves its state nor may be rerun, and the same job waits for it all along."""
    here = world(gpus=1, again_s=600.0)
    silent = Program(runs_s=1e6, saves_s=None)
    low = here.submit(ONE_GPU, program=silent, qos="low", movable=True, rerunnable=False)
    here.run_until(100)
    here.submit(ONE_GPU, program=LONG, by=BOB, qos="high")
    here.run_until(3000)

    asked_s = [fact.at_s for fact in here.told(f.MigrationRequested, low)]
    assert len(asked_s) >= 2
    assert all(after - before >= 600 for before, after in pairwise(asked_s))
    assert here.job(low).preempted_gpu_s == 0


def test_what_is_vacated_is_kept_for_the_waiting_job_through_a_restart() -> None:
    """A third job that fits does not get it, and the head does not preempt another one."""
    here = world(gpus=2)
    low = here.submit("select=1:ncpus=1:ngpus=2", program=SAVES, qos="low", movable=True)
    here.run_until(100)
    high = here.submit("select=1:ncpus=1:ngpus=2", program=LONG, by=BOB, qos="high")
    assert here.job(high).claim is not None
    here.restart_head()
    small = here.submit(ONE_GPU, program=LONG, by=BOB, qos="high")
    here.run_until(200)

    assert here.started_s(high) is not None
    assert here.started_s(small) is None
    assert ways(here, low) == ["checkpoint"]


@pytest.mark.parametrize("away", ["head", "node"])
def test_a_claim_outlasts_a_head_or_gnode_that_is_away(away: str) -> None:
    """The job that gave way is first in the queue, but does not get its GPU back."""
    here = world(gpus=1)
    low = here.submit(ONE_GPU, program=LONG, qos="low")
    here.run_until(100)
    high = here.submit(ONE_GPU, runs_s=50, by=BOB, qos="high")
    assert here.job(high).claim is not None
    if away == "head":
        here.restart_head()
    else:
        here.disconnect("n1")
        here.run_until(110)
        here.connect("n1")

    here.run_until(130)
    assert (here.state(high), here.state(low)) == ("running", "queued")
    assert not here.told(f.ClaimEnded, high)
    here.run_until(300)
    assert (here.state(low), ways(here, low)) == ("running", ["requeue"])


def test_two_jobs_do_not_start_on_what_was_left_for_one_of_them() -> None:
    """More is left than the first one needs, and less than both; another job has not left yet."""
    here = world(gpus=0)
    stays = Program(runs_s=1e6, ignores_term=True)
    quick = here.submit("ncpus=10", program=stays, qos="low", grace_s=5.0)
    slow = here.submit("ncpus=6", program=stays, qos="low", grace_s=30.0)
    here.run_until(100)
    first = here.submit("ncpus=7", program=LONG, by=BOB, qos="high")
    second = here.submit("ncpus=6", program=LONG, by=BOB, qos="high")
    here.run_until(300)

    assert ways(here, quick, slow) == ["requeue", "requeue"]
    assert here.started_s(first) == pytest.approx(105, abs=3)
    assert here.started_s(second) == pytest.approx(130, abs=3)


def test_a_claim_ends_with_the_waiting_job() -> None:
    """What was vacated is anybody's then."""
    here = world(gpus=1)
    low = here.submit(ONE_GPU, program=SAVES, qos="low", movable=True)
    here.run_until(100)
    high = here.submit(ONE_GPU, program=LONG, by=BOB, qos="high")
    here.delete(high, by=BOB)
    here.run_until(200)

    assert not here.head.state.claims
    assert here.state(low) == "running"


def test_queues_preempt_by_priority() -> None:
    """Only with ``queue`` in the list."""
    for by, expected in ((("queue",), ["requeue"]), (("qos",), [])):
        here = world(by=by, gpus=1)
        low = here.submit(ONE_GPU, program=LONG)
        here.run_until(100)
        here.submit(ONE_GPU, program=LONG, by=BOB, queue="fast")
        here.run_until(200)
        assert ways(here, low) == expected


HIGH_IN_BATCH: Keys = {"qos": "high"}
LOW_IN_FAST: Keys = {"qos": "low", "queue": "fast"}


@pytest.mark.parametrize(
    "rivals",
    [
        pytest.param((LOW_IN_FAST, HIGH_IN_BATCH), id="two"),
        pytest.param((LOW_IN_FAST, {"queue": "middle"}, HIGH_IN_BATCH), id="three"),
    ],
)
def test_jobs_that_rules_rank_in_a_circle_do_not_preempt_each_other_for_ever(
    rivals: tuple[Keys, ...],
) -> None:
    """Each has higher rank than the one before it by one rule, and the first than the last."""
    here = world(by=("qos", "queue"), gpus=1, min_run_s=0.0, again_s=0.0)
    jobs = []
    for at, keys in enumerate(rivals):
        here.run_until(20 * at)
        jobs.append(here.submit(ONE_GPU, runs_s=100, **keys))

    here.run_until(400)
    assert not here.head.state.jobs
    assert len(ways(here, *jobs)) < len(jobs)


def test_of_rules_that_contradict_each_other_the_first_counts() -> None:
    """However many jobs come that have precedence by the second rule."""
    for by, expected in ((("qos", "queue"), []), (("queue", "qos"), ["requeue"])):
        here = world(by=by, gpus=1, min_run_s=0.0, again_s=0.0)
        running = here.submit(ONE_GPU, program=LONG, **HIGH_IN_BATCH)
        here.run_until(100)
        here.submit(ONE_GPU, program=LONG, **LOW_IN_FAST)
        here.run_until(200)
        assert ways(here, running) == expected


def test_a_node_that_jobs_may_leave_as_a_whole_is_not_taken_in_part() -> None:
    """The job on the other node has lost a little more, and gives way nevertheless."""
    here = world(nodes=2, gpus=4)
    here.submit("nodes=1:ppn=1:gpus=3", program=LONG, qos="kept")
    beside = here.submit(ONE_GPU, program=LONG, qos="low")
    here.run_until(50)
    whole = [here.submit(ONE_GPU, program=LONG, qos="low") for _ in range(4)]
    here.run_until(200)
    assert here.machine_of(beside) not in {here.machine_of(job) for job in whole}
    small = here.submit(ONE_GPU, program=LONG, by=BOB, qos="high")
    here.run_until(300)

    assert ways(here, beside, *whole) == ["requeue"]
    assert ways(here, beside) == ["requeue"]
    assert here.started_s(small) == pytest.approx(200, abs=3)


@pytest.mark.parametrize(("walltime", "expected"), [("walltime=150", 1), ("walltime=20000", 0)])
def test_no_job_takes_what_the_reservation_of_a_job_ahead_of_it_needs(
    walltime: str, expected: int
) -> None:
    """The first job waits for one that stays; the second may have a GPU there until then."""
    here = world(gpus=4)
    here.submit("nodes=1:ppn=1:gpus=2,walltime=400", runs_s=400, qos="kept")
    lows = [here.submit(f"{ONE_GPU},walltime=9000", program=LONG, qos="low") for _ in range(2)]
    here.run_until(100)
    first = here.submit("nodes=1:ppn=1:gpus=4,walltime=1000", program=LONG, by=BOB, qos="high")
    here.submit(f"{ONE_GPU},{walltime}", runs_s=100, by=BOB, qos="high")
    here.run_until(300)

    assert len(ways(here, *lows)) == expected
    here.run_until(500)
    assert here.started_s(first) == pytest.approx(400, abs=3)


@pytest.mark.parametrize("later_s", [0.0, 5.0])
def test_a_reservation_stands_when_a_job_ahead_preempts_others(later_s: float) -> None:
    """An urgent job takes a GPU elsewhere; a long one behind the large one must not follow it."""
    here = world(nodes=2, gpus=4)
    leaves = here.submit("nodes=1:ppn=1:gpus=2,walltime=400", runs_s=400, qos="kept")
    here.run_until(1)
    here.submit("nodes=1:ppn=1:gpus=3,walltime=90000", program=LONG, qos="kept")
    here.submit(f"{ONE_GPU},walltime=50", runs_s=50, qos="kept")
    here.run_until(2)
    lows = [here.submit(f"{ONE_GPU},walltime=390", program=LONG, qos="low") for _ in range(2)]
    here.run_until(60)
    lows.append(here.submit(f"{ONE_GPU},walltime=300", program=LONG, qos="low"))
    here.run_until(150)
    large = here.submit("nodes=1:ppn=1:gpus=4,walltime=1000", program=LONG, by=BOB, qos="high")
    here.run_until(160)
    assert here.wait_of(large).reserved_on == here.machine_of(leaves)

    urgent = here.submit(
        f"{ONE_GPU},walltime=90000", program=LONG, by=BOB, qos="high", queue="fast"
    )
    here.run_until(160 + later_s)
    behind = here.submit(f"{ONE_GPU},walltime=90000", program=LONG, by=BOB, qos="high")
    here.run_until(300)
    assert (here.state(urgent), here.state(behind)) == ("running", "queued")
    assert ways(here, *lows) == ["requeue"]
    here.run_until(500)
    assert here.started_s(large) == pytest.approx(400, abs=3)


@pytest.mark.parametrize(
    ("min_run_s", "high_s", "low_s"),
    [pytest.param(60.0, 60, 110, id="soon"), pytest.param(7200.0, None, 1820, id="limited")],
)
def test_a_job_does_not_start_where_it_would_give_way_to_a_waiting_job(
    min_run_s: float, high_s: float | None, low_s: float
) -> None:
    """It could backfill, and would then be protected; half an hour later it may."""
    here = world(gpus=2, min_run_s=min_run_s)
    here.submit(ONE_GPU, program=LONG, qos="low")
    here.submit(ONE_GPU, runs_s=40, qos="low")
    next_low = here.submit(f"{ONE_GPU},walltime=100000", program=LONG, qos="low")
    here.run_until(20)
    high = here.submit("nodes=1:ppn=1:gpus=2", runs_s=50, by=BOB, qos="high")

    here.run_until(50)
    assert here.why(next_low) == str(KEPT)
    here.run_until(1900)
    assert here.started_s(high) == (None if high_s is None else pytest.approx(high_s, abs=3))
    assert here.started_s(next_low) == pytest.approx(low_s, abs=15)


def test_predicted_starts_know_what_is_kept_for_other_jobs() -> None:
    """A GPU is free, and kept for half an hour from a job, but not from one that is protected."""
    here = world(gpus=2, min_run_s=7200.0)
    here.submit(ONE_GPU, program=LONG, qos="low")
    here.submit(ONE_GPU, runs_s=40, qos="low")
    low = here.submit(f"{ONE_GPU},walltime=100000", program=LONG, qos="low")
    here.run_until(20)
    here.submit("nodes=1:ppn=1:gpus=2", runs_s=50, by=BOB, qos="high")
    here.run_until(50)

    def predicted_s(job: int) -> float | None:
        seen = snapshot(here.head.state, here.settings, here.now_s)
        asked = question_of(here.job(job), state=here.head.state, settings=here.settings, seen=seen)
        start_s = answer_to(asked, here.policy).starts[job].start_s
        return None if start_s is None else start_s - BEGIN_S

    assert here.why(low) == str(KEPT)
    assert predicted_s(low) == pytest.approx(1820, abs=15)
    here.run_until(1900)
    assert here.started_s(low) == pytest.approx(1820, abs=15)


def test_a_job_that_would_not_give_way_starts_on_what_is_kept_for_another_one() -> None:
    """A job of the first one's QOS and one that is protected backfill as ever."""
    here = world(gpus=2)
    here.submit(ONE_GPU, program=LONG, qos="low")
    here.submit(ONE_GPU, runs_s=40, qos="low")
    here.run_until(20)
    here.submit("nodes=1:ppn=1:gpus=2", runs_s=50, by=BOB, qos="high")
    here.run_until(30)
    kept = here.submit(f"{ONE_GPU},walltime=10", runs_s=5, qos="kept")
    here.run_until(45)
    assert here.started_s(kept) == pytest.approx(40, abs=3)


def test_a_job_that_gave_way_by_qos_waits_behind_those_of_its_user() -> None:
    """Else it starts first, and its GPU is nobody's for half an hour."""
    here = world(gpus=1)
    first = here.submit(ONE_GPU, program=LONG, qos="low")
    second = here.submit(ONE_GPU, program=LONG, qos="low")
    here.run_until(100)
    here.submit(ONE_GPU, runs_s=50, by=BOB, qos="high")
    here.run_until(300)
    assert (here.state(first), here.state(second)) == ("queued", "running")
    here.submit(ONE_GPU, runs_s=50, by=BOB, qos="high")
    here.run_until(400)
    assert ways(here, first, second) == ["requeue", "requeue"]


def test_nobody_gives_way_if_the_waiting_job_would_not_start() -> None:
    """Two GPUs of one node are needed, and one of them belongs to a job that stays."""
    here = world(nodes=1, gpus=2)
    low = here.submit(ONE_GPU, program=LONG, qos="low")
    here.submit(ONE_GPU, program=LONG, qos="kept")
    here.run_until(100)
    here.submit("select=1:ncpus=1:ngpus=2", program=LONG, by=BOB, qos="high")
    here.run_until(3000)

    assert ways(here, low) == []


def test_without_rules_nothing_is_preempted() -> None:
    """It is off unless a site configures it."""
    here = world(by=())
    low = here.submit("select=1:ncpus=1:ngpus=4", program=LONG, qos="low")
    here.run_until(100)
    here.submit(ONE_GPU, program=LONG, by=BOB, qos="high")
    here.run_until(3000)

    assert ways(here, low) == []
    assert here.head.preemptions.next_due_s(here.head.state) is None

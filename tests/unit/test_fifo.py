"""FIFO with EASY backfill: the single decisions; whole stories are in tests/scenario."""

from gsched.model.resources import Chunk, Request, Share
from gschedd.plan.snapshot import Group, JobClass, Plan, RunningJob, Snapshot
from gschedd.plan.space import FreeNode, take
from gschedd.policies.kit.order import UNLIMITED_S
from gschedd.policies.queue.fifo import plan
from tests.support.spaces import space

NOW_S = 1000.0


def job_class(cpus: int, walltime_s: float | None = None, *, nodes: int = 1) -> JobClass:
    request = Request(chunks=(Chunk(count=nodes, cpus=cpus),))
    return JobClass(queue="batch", request=request, walltime_s=walltime_s)


def decide(
    nodes: list[FreeNode],
    waiting: list[tuple[JobClass, list[int]]],
    *running: tuple[str, int, float | None],
) -> Plan:
    """Return the plan for waiting (job_class, jobs) beside running (node, CPUs, end)."""
    spaces = {each.name: each for each in nodes}
    jobs = []
    for number, (node, cpus, end_s) in enumerate(running):
        share = Share(node=node, cpus=cpus)
        spaces[node] = take(spaces[node], share)
        jobs.append(
            RunningJob(job=900 + number, allocation=(share,), started_s=number, end_s=end_s)
        )
    groups = [Group(job_class=each, order=[(0, job) for job in ids]) for each, ids in waiting]
    return plan(Snapshot(now_s=NOW_S, nodes=spaces, groups=groups, running=jobs))


def test_a_job_that_ends_exactly_when_the_blocked_one_starts_may_pass() -> None:
    """At the shadow time, not after it."""
    waiting = [(job_class(4, 10), [1]), (job_class(1, 50), [2]), (job_class(1, 50.5), [3])]

    made = decide([space("n1", cpus=4)], waiting, ("n1", 2, NOW_S + 50))

    assert [(start.job, start.why) for start in made.starts] == [(2, "ends before job 1 can start")]
    blocked, late = made.waits
    assert (blocked.first, blocked.reserved, blocked.predicted_start_s) == (1, True, NOW_S + 50)
    assert (late.first, late.reserved, late.predicted_start_s) == (3, False, None)


def test_a_reservation_waits_for_as_many_ends_as_it_needs() -> None:
    """The second end, not the last one."""
    running = (("n1", 2, NOW_S + 30), ("n1", 1, NOW_S + 10), ("n1", 1, NOW_S + 90))

    made = decide([space("n1", cpus=4)], [(job_class(3, 10), [1])], *running)

    assert made.waits[0].predicted_start_s == NOW_S + 30


def test_a_job_that_is_over_its_time_ends_any_moment() -> None:
    """The prediction is never in the past."""
    made = decide([space("n1", cpus=1)], [(job_class(1, 10), [1])], ("n1", 1, NOW_S - 99))

    assert made.waits[0].predicted_start_s == NOW_S


def test_jobs_without_walltime_are_expected_last_and_predict_nothing() -> None:
    """A limited job that ends late still ends before an unlimited one."""
    running = (("n1", 2, None), ("n1", 2, NOW_S + 5000))

    some = decide([space("n1", cpus=4)], [(job_class(2, 10), [1])], *running)
    all_of_it = decide([space("n1", cpus=4)], [(job_class(4, 10), [1])], *running)

    assert some.waits[0].predicted_start_s == NOW_S + 5000
    assert all_of_it.waits[0].predicted_start_s is None


def test_behind_an_unlimited_job_only_what_does_not_delay_may_pass() -> None:
    """A job with a walltime may, one without only beside the reservation."""
    nodes = [space("n1", cpus=4)]
    waiting = [(job_class(4), [1]), (job_class(1), [2]), (job_class(1, 60), [3])]

    made = decide(nodes, waiting, ("n1", 3, None))

    assert [start.job for start in made.starts] == [3]
    assert UNLIMITED_S > 60


def test_a_job_that_can_not_run_now_blocks_nobody() -> None:
    """Its node is down: nothing is reserved, all that is free is spare."""
    nodes = [space("n1", cpus=8, open=False), space("n2", cpus=2)]

    made = decide(nodes, [(job_class(8, 10), [1]), (job_class(2), [2])])

    assert [start.job for start in made.starts] == [2]
    assert made.starts[0].why == "does not delay job 1"
    assert made.waits[0].predicted_start_s is None


def test_what_is_spare_is_given_away_once() -> None:
    """Four CPUs are free now, but only one beside the reservation, and two jobs without end."""
    waiting = [(job_class(5, 10), [1]), (job_class(1), [2, 3])]

    made = decide([space("n1", cpus=6)], waiting, ("n1", 2, NOW_S + 50))

    assert [start.job for start in made.starts] == [2]
    assert made.waits[1].first == 3
    assert str(made.waits[1].reason).startswith("cannot backfill: would delay job 1's reservation")


def test_the_starts_of_this_very_plan_count_as_running() -> None:
    """The reservation stands behind a job that starts in the same moment."""
    waiting = [
        (job_class(3, 70), [1]),
        (job_class(4, 10), [2]),
        (job_class(1, 70), [3]),
        (job_class(1, 71), [4]),
    ]

    made = decide([space("n1", cpus=4)], waiting)

    assert [start.job for start in made.starts] == [1, 3]
    assert made.waits[0].predicted_start_s == NOW_S + 70
    assert made.starts[0].why == "next in order"


def test_only_the_first_blocked_job_gets_a_reservation() -> None:
    """The second may wait longer than it would have to: that is EASY."""
    made = decide(
        [space("n1", cpus=4)],
        [(job_class(4, 10), [1]), (job_class(3, 10), [2])],
        ("n1", 2, NOW_S + 50),
    )

    assert [wait.reserved for wait in made.waits] == [True, False]

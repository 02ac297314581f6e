"""Why a job waits and how it ended, in words."""

from gsched.config.tables import QueueConfig
from gsched.model.states import HoldKind, JobState
from gschedd.core.state import facts as f
from gschedd.core.views.ahead import jobs_ahead
from gschedd.core.views.jobs import JobViews
from gschedd.core.views.reasons import Reasons, describe
from tests.support.world import ADMIN, ALICE, World, node, settings


def test_every_waiting_job_says_why() -> None:
    """Held, without nodes, of a queue that is gone, before the next cycle."""
    world = World(
        config=settings(queues={"batch": QueueConfig(name="batch"), "old": QueueConfig(name="old")})
    )
    held = world.submit(holds=("user",))
    queued = world.submit()
    orphan = world.submit(queue="old")
    world.hold(held, by=ADMIN, kind=HoldKind.OPERATOR)

    assert world.why(held) == (
        f"held by operator and user; release it with grls -h ou {held} as an operator"
    )
    assert world.why(queued) == "no node has registered yet"
    world.head.settings = settings()
    assert world.why(orphan) == "queue old is no longer configured; galter -q moves the job"


def test_a_line_of_a_list_has_the_reason_in_a_few_words() -> None:
    """Of each state in which jobs wait, and of a running job whose node does not answer."""
    world = World(node("n1", cpus=2))
    first = world.submit("nodes=1:ppn=2,walltime=3600")
    waits = [world.submit("nodes=1:ppn=2") for _ in range(2)]
    held = world.submit(holds=("user",))
    after = world.submit(depends=(f"afterok:{first}",))
    late = world.submit(start_after_s=world.now_s + 3600)

    def short(job: int) -> str:
        return JobViews(world.head, now_s=world.now_s).row(world.job(job)).short_reason

    assert [short(job) for job in (*waits, held, after)] == [
        *("2 CPUs short", f"behind job {waits[0]}", "held by user", f"waits for job {first}"),
    ]
    assert short(late).startswith("starts ")
    assert short(first) == ""
    world.disconnect("n1")
    world.run_for(600)
    assert short(first) == "n1 unreachable"


def test_a_job_that_no_cycle_has_seen_says_that() -> None:
    """Between its submission and the next cycle."""
    world = World(node("n1"))
    job = world.submit()
    state = world.head.state
    reasons = Reasons(state, world.settings, {})
    assert reasons.of(state.jobs[job]) == "", "it does not wait"

    second = world.submit("nodes=1:ppn=4")
    reason = reasons.of(state.jobs[second])

    assert reason == "waiting for the next scheduling cycle"


def test_jobs_ahead_are_those_of_the_queue_that_go_first() -> None:
    """By priority, then by number; other queues do not count."""
    world = World(
        config=settings(
            queues={
                "batch": QueueConfig(name="batch"),
                "other": QueueConfig(name="other", priority=9),
            }
        )
    )
    low = world.submit(priority=-1)
    first = world.submit("nodes=1:ppn=2")
    second = world.submit()
    world.submit(queue="other")
    jobs = world.head.state.jobs

    ahead = [jobs_ahead(jobs[job], world.head.state) for job in (first, second, low)]

    assert [each.jobs for each in ahead] == [0, 1, 2]
    assert [each.cpus for each in ahead] == [0, 2, 3]
    assert [each.id for each in ahead[2].first] == [first, second]
    assert {each.user for each in ahead[2].first} == {ALICE.user}
    assert jobs[low].state is JobState.QUEUED


def test_an_end_beyond_any_calendar_is_told() -> None:
    """A training's numbers may be wrong by any factor."""
    fact = f.DeadlineJudged(at_s=1.0, job=1, meets=False, end_s=1e24, gpus=1)

    assert describe(fact) == "expected to miss its deadline on 1 GPU, done by after the year 2200"

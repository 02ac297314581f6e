"""Jobs that wait for other jobs: each type, what can never come about, and restarts of the head."""

import pytest

from gsched.errors import BadDependencyError, BadStateError
from gsched.model.states import OutcomeKind
from gsched.protocol import actions as a
from gschedd.core.requests import commands as c
from gschedd.core.requests.followers import MOST_AT_ONCE
from gschedd.core.state import facts as f
from tests.support.world import ADMIN, ALICE, BOB, Program, World, node, settings, submission

FOLLOWS = (f.JobAltered, f.JobEnded)
FAILS = Program(runs_s=30, exit_code=3)


def depend(
    world: World,
    *texts: str,
    runs_s: float = 10.0,
    program: Program | None = None,
    name: str = "job",
    holds: tuple[str, ...] = (),
) -> int:
    return world.submit(program=program, runs_s=runs_s, depends=texts, name=name, holds=holds)


def refused(world: World, *texts: str, caller: object = ALICE, past: object = None) -> str:
    """Return why a job with these dependencies is refused."""
    asked = submission(depends=texts, resources=("nodes=1",))
    command = c.Submit(caller=ALICE, submitted=asked, digests=("", ""), past=past or {})  # type: ignore[arg-type]  # of a test
    error = world.refusal(command)
    assert isinstance(error, BadDependencyError), error
    return str(error)


@pytest.mark.parametrize(
    ("text", "program", "starts_s"),
    [
        ("afterok:1", Program(runs_s=30), 30),
        ("afterany:1", Program(runs_s=30), 30),
        ("afterany:1", FAILS, 30),
        ("afternotok:1", FAILS, 30),
        ("after:1", Program(runs_s=30), 0),
        ("afterokarray:1[]", Program(runs_s=30), 30),
        ("AfterOK:1.{server}", Program(runs_s=30), 30),
    ],
)
def test_a_job_starts_when_what_it_depends_on_has_come_about(
    text: str, program: Program, starts_s: float
) -> None:
    world = World(node("n1", cpus=4))
    world.submit(program=program)
    job = depend(world, text.format(server=world.settings.server))

    world.run_until(starts_s - 1)
    if starts_s:
        assert world.state(job) == "held"
        assert world.why(job).startswith("waits for its dependencies: after")
    world.run_until(100)

    assert world.started_s(job) == starts_s


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(("kind", "left"), [("afterany", "queued"), ("afterok", "")])
def test_many_dependants_follow_in_bounded_steps(*, kind: str, left: str, restarts: bool) -> None:
    """Each step of the head takes some; a head that starts meanwhile takes the others."""
    world = World(node("n1", cpus=1))
    world.submit(runs_s=1000)  # keeps the node busy
    first = world.submit(runs_s=30)
    jobs = [depend(world, f"{kind}:{first}") for _ in range(2 * MOST_AT_ONCE + 50)]
    world.run_until(1)
    before = len(world.facts)

    world.delete(first)
    told = {fact.job for fact in world.facts[before:] if isinstance(fact, FOLLOWS)} - {first}
    assert len(told) == MOST_AT_ONCE
    if restarts:
        world.restart_head()
    world.run_until(5)

    state = world.head.state
    states = {state.jobs[job].state.value for job in jobs if job in state.jobs}
    assert states == ({left} if left else set())
    assert not state.volatile.coming.events
    assert not state.dependants


def test_a_job_waits_for_all_jobs_that_it_names() -> None:
    """Torque's list and Slurm's: in one type, in several, in several texts."""
    world = World(node("n1", cpus=8))
    for runs_s in (10, 20, 30, 40):
        world.submit(runs_s=runs_s)
    job = depend(world, "afterok:1:2,afterany:3", "afterok:4")

    world.run_until(25)
    assert world.why(job) == "waits for its dependencies: afterany:3,afterok:4"
    world.run_until(100)

    assert world.started_s(job) == 40


def test_a_job_starts_so_many_minutes_after_another_has_started() -> None:
    """Slurm's after:JOB+MINUTES; both in the future and of a job that runs already."""
    world = World(node("n1", cpus=1), node("n2", cpus=2))
    world.submit("nodes=n1", runs_s=1000)
    second = world.submit("nodes=n1", runs_s=1000)  # starts at 1000 s
    begun = depend(world, "after:1+5")
    later = depend(world, f"after:1+2:{second}+1,afterany:1")

    world.run_until(250)
    assert world.state(begun) == "waiting"
    assert world.why(later).startswith(f"waits for its dependencies: after:{second}+1,afterany:1")
    world.run_until(3000)

    assert world.started_s(begun) == 300
    assert world.started_s(later) == 1060


def test_of_a_job_that_has_ended_the_delay_counts_from_now() -> None:
    world = World(node("n1", cpus=2))
    world.submit(runs_s=10)
    world.run_until(100)
    job = depend(world, "after:1+1")
    world.run_until(1000)

    assert world.started_s(job) == 160


@pytest.mark.parametrize(
    ("text", "program"), [("afterok:1", FAILS), ("afternotok:1", Program(runs_s=30))]
)
def test_what_can_never_come_about_cancels_the_job_and_says_why(
    text: str, program: Program
) -> None:
    """So does it cancel those that depend on that job."""
    world = World(node("n1", cpus=4))
    world.submit(program=program)
    job = depend(world, text)
    after_it = depend(world, f"afterok:{job}")
    whatever = depend(world, f"afterany:{job}")

    world.run_until(100)

    outcome = world.job(job).outcome
    assert outcome is not None
    assert outcome.kind is OutcomeKind.CANCELLED
    assert f"its dependency {text} can never be satisfied: job 1." in outcome.message
    assert world.job(job).started_s is None
    assert world.state(after_it) == "done"
    assert world.started_s(whatever) == 30


def test_a_site_may_keep_such_jobs_on_hold() -> None:
    """The reason says it; other dependencies, or none, free the job."""
    world = World(node("n1", cpus=4), config=settings(unsatisfiable="hold"))
    world.submit(program=FAILS)
    job = depend(world, "afterok:1")
    world.run_until(50)

    assert world.state(job) == "held"
    assert "can never be satisfied: job 1." in world.why(job)
    world.alter(job, depends=())
    world.run_until(60)

    assert world.started_s(job) == 50


def test_a_deleted_job_is_one_that_failed() -> None:
    """For afterok; afternotok is satisfied, and after, too."""
    world = World(node("n1", cpus=1))
    world.submit(runs_s=1000)
    waits = world.submit()
    ok, not_ok, started = (
        depend(world, f"{kind}:2") for kind in ("afterok", "afternotok", "after")
    )

    world.delete(waits)
    world.delete(1)
    world.run_until(200)

    assert world.job(ok).started_s is None
    assert world.started_s(not_ok) is not None
    assert world.started_s(started) is not None


def test_on_waits_for_as_many_jobs_as_say_that_they_come_before() -> None:
    """Torque's on and before*: the later jobs are named by none, they name the first."""
    world = World(node("n1", cpus=4))
    last = depend(world, "on:2")
    world.run_until(10)
    assert world.why(last) == "waits for its dependencies: on:2"

    depend(world, f"beforeok:{last}", runs_s=20)
    assert world.why(last) == "waits for its dependencies: on:1,afterok:2"
    world.run_until(50)
    assert world.why(last) == "waits for its dependencies: on:1"
    depend(world, f"beforeany:{last}", program=FAILS)
    world.run_until(100)

    assert world.started_s(last) == 80


def test_before_needs_a_job_of_ones_own_that_waits_for_it() -> None:
    world = World(node("n1", cpus=1))
    world.submit(runs_s=1000)
    held = world.submit(holds=("user",))

    assert "before: job 1 does not wait for another job" in refused(world, "before:1")
    assert "does not wait" in refused(world, f"beforeok:{held}")
    assert "Unknown Job Id 99" in refused(world, "before:99")
    waits = depend(world, "on:1")
    asked = submission(depends=(f"before:{waits}",), resources=("nodes=1",))
    error = world.refusal(c.Submit(caller=BOB, submitted=asked, digests=("", "")))
    assert f"job {waits} belongs to alice" in str(error)


def test_a_singleton_waits_for_all_earlier_jobs_of_its_name_and_user() -> None:
    world = World(node("n1", cpus=8))
    world.submit(name="nightly", runs_s=10)
    world.submit(name="other", runs_s=500)
    second = depend(world, "singleton", name="nightly", runs_s=20)
    third = depend(world, "singleton", name="nightly", runs_s=20)
    alone = depend(world, "singleton", name="alone")
    later = world.submit(name="nightly", runs_s=5)

    world.run_until(200)

    assert world.started_s(second) == 10
    assert world.started_s(third) == 30
    assert world.started_s(alone) == 0
    assert world.started_s(later) == 0


def test_what_has_come_about_is_known_after_a_restart_of_the_head() -> None:
    """Also of jobs that are done by then, of which the head remembers nothing."""
    world = World(node("n1", cpus=8))
    world.submit(runs_s=10)
    world.submit(runs_s=100)
    job = depend(world, "afterok:1:2")
    world.run_until(50)

    world.restart_head()
    assert world.head.state.volatile.ended == {}
    assert world.why(job) == "waits for its dependencies: afterok:2"
    world.run_until(200)

    assert world.started_s(job) == 100


def test_jobs_that_are_done_count_as_the_database_knows_them() -> None:
    """What can never come about any more is refused at once."""
    world = World(node("n1", cpus=8))
    past = {901: True, 902: False}

    def submit(text: str) -> int:
        asked = submission(depends=(text,), resources=("nodes=1",))
        step = world.do(c.Submit(caller=ALICE, submitted=asked, digests=("", ""), past=past))
        return step.job

    assert world.state(submit("afterok:901,afterany:902,afternotok:902")) == "running"
    assert "can never be satisfied: job 902 failed" in refused(world, "afterok:902", past=past)
    assert "job 901 succeeded" in refused(world, "afternotok:901", past=past)
    assert "Unknown Job Id 903" in refused(world, "afterok:903", past=past)


def test_a_job_that_has_just_ended_is_remembered() -> None:
    """Between the answer of the database and the submission it may have ended."""
    world = World(node("n1", cpus=8))
    world.submit(runs_s=10)
    world.submit(program=FAILS)
    world.run_until(50)

    job = depend(world, "afterok:1")

    assert world.state(job) == "running"
    assert "job 2 failed" in refused(world, "afterok:2")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("afterfoo:1", "unknown dependency type 'afterfoo'"),
        ("afterok", "afterok: no job id"),
        ("afterok:1?afterok:2", "alternatives with ? are not supported"),
        ("synccount:3", "synccount is not supported"),
        ("syncwith:1", "syncwith is not supported"),
        ("on:0", "the number of jobs is missing"),
        ("on:many", "the number of jobs is missing"),
        ("singleton:1", "singleton has no job ids"),
        ("afterok:1+5", "only after has a delay"),
        ("after:1+x", "invalid number of minutes"),
        ("afterok:" + ":".join(map(str, range(1, 1500))), "more than 1000 jobs"),
        ("afterok:" + "1" * 40_000, "more than 32768 characters"),
    ],
)
def test_a_dependency_that_cannot_be_read_is_refused(text: str, words: str) -> None:
    world = World(node("n1"))
    world.submit(runs_s=100)

    assert words in refused(world, text)


def test_dependencies_can_be_changed_while_a_job_waits_but_not_into_a_circle() -> None:
    world = World(node("n1", cpus=8))
    world.submit(runs_s=1000)
    first = depend(world, "afterok:1")
    second = depend(world, f"afterok:{first}")

    error = world.refusal(
        c.ActOnJob(
            caller=ALICE,
            job=first,
            action=a.AlterJob(alteration=a.Alteration(depends=(f"afterany:{second}",))),
        )
    )
    assert f"job {first} would wait for itself" in str(error)
    world.alter(second, depends=("after:1",))
    world.run_until(10)
    assert world.started_s(second) == 0
    plain = world.submit(holds=("user",))
    world.alter(plain, depends=("afterok:1",))
    world.release(plain)
    assert world.why(plain) == "waits for its dependencies: afterok:1"


def test_only_the_dependencies_themselves_release_such_a_job() -> None:
    """Neither its owner nor an operator does; a hold of theirs stays beside it."""
    world = World(node("n1", cpus=8))
    world.submit(runs_s=50)
    job = depend(world, "afterok:1", holds=("user",))
    assert "waits for its dependencies: afterok:1" in world.why(job)
    assert "grls -h u " in world.why(job)
    world.release(job)
    for caller in (ALICE, ADMIN):
        command = c.ActOnJob(caller=caller, job=job, action=a.ReleaseJob(holds=("user",)))
        error = world.refusal(command)
        assert isinstance(error, BadStateError)
        assert "waits for its dependencies: afterok:1" in str(error)
        assert error.hint == f"remove them with galter -W depend= {job}"

    world.run_until(100)

    assert world.started_s(job) == 50


def test_a_rerun_counts_as_no_end() -> None:
    world = World(node("n1", cpus=8))
    world.submit(runs_s=50)
    job = depend(world, "afterok:1")
    world.run_until(20)
    world.rerun(1)
    world.run_until(200)

    ended = [fact for fact in world.told(f.JobEnded, 1) if isinstance(fact, f.JobEnded)]
    assert len(ended) == 1
    assert world.job(job).started_s == world.job(1).ended_s

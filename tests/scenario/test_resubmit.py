"""What has failed is submitted again: the statement is kept, limits are checked anew."""

import pytest
from msgspec import structs

from gsched.config.notify import NotifyConfig
from gsched.config.tables import QueueConfig
from gsched.errors import (
    BadStateError,
    GschedError,
    InvalidRequestError,
    NotPermittedError,
    RequestTooLargeError,
    TryAgainError,
    UnknownQueueError,
)
from gsched.model.arrays import Span, Spans, compressed, read_spans
from gsched.model.ids import element_number
from gsched.model.limits import MAX_ARRAY_SPANS, MAX_USER_ARGUMENT_BYTES
from gsched.model.states import HoldKind
from gschedd.core.requests import commands as c
from gschedd.core.state import facts as f
from gschedd.core.state.settings import Caller
from gschedd.core.state.step import Step
from gschedd.core.views.jobs import JobViews
from tests.support.site import changed
from tests.support.world import ADMIN, ALICE, BEGIN_S, BOB, Program, World, node, settings


def some_failed(world: World, *, indices: str, failed: tuple[int, ...], **stated: object) -> int:
    """Run an array of which some elements fail; return its number."""
    array = world.submit(array=indices, **stated)  # type: ignore[arg-type]  # of a test
    for index in failed:
        world.programs[element_number(array, index)] = Program(exit_code=3)
    world.run_until(world.now_s - BEGIN_S + 100)
    assert world.state(array) == "done"
    return array


def again(
    world: World, job: int, spans: str = "", *, by: Caller = ALICE, key: str = ""
) -> c.Resubmit:
    """Return the command that submits a job again, or elements of an array."""
    elements: Spans = read_spans(spans) if spans else ()
    return c.Resubmit(caller=by, original=world.job(job), elements=elements, key=key)


def done(world: World, command: c.Resubmit) -> Step:
    """Submit a job again that succeeds this time."""
    world.programs.setdefault(world.head.state.next_job, Program())
    return world.do(command)


def refused(world: World, command: c.Resubmit) -> GschedError:
    """Return why that is refused."""
    return world.refusal(command)


def test_only_the_elements_that_are_named_run_again_with_their_indices() -> None:
    """As a new array of the same statement, that knows of which it is the rerun."""
    world = World(node("n1", cpus=64))
    array = some_failed(
        world, indices="0-9%4", failed=(3, 7, 8), name="many", account="physics", priority=5
    )
    before = len(world.facts)

    new = done(world, again(world, array, "3,7-8")).job
    world.run_until(300)

    spec = world.job(new).spec
    assert new == array + 1
    assert spec.array is not None
    assert str(spec.array) == "3,7-8%4"
    assert spec.rerun_of == array
    kept = structs.replace(world.job(array).spec, array=spec.array, rerun_of=array)
    assert spec == kept
    begun = [fact.job for fact in world.facts[before:] if isinstance(fact, f.AttemptAssigned)]
    assert sorted(begun) == [element_number(new, index) for index in (3, 7, 8)]
    outcome = world.job(new).outcome
    assert outcome is not None
    assert outcome.message == "3 of 3 elements succeeded"
    world.check_history()


def test_a_rerun_tells_of_what_it_is_one() -> None:
    """Array, element and ordinary job, in gstat -f."""
    world = World(node("n1", cpus=64))
    array = some_failed(world, indices="0-9", failed=(3, 7))
    job = world.submit(program=Program(exit_code=1))
    world.run_until(200)
    new = done(world, again(world, array, "3,7")).job
    single = done(world, again(world, job)).job

    views = JobViews(world.head, now_s=world.now_s)

    def told(number: int) -> str:
        found = world.job(number)
        return views.story(found, attempts=(), events=(), now_s=world.now_s).rerun_of

    ids = (new, element_number(new, 3), single, job)
    assert [told(number) for number in ids] == [f"{array}[]", f"{array}[3]", f"{job}", ""]


def test_what_was_for_the_first_time_only_is_left_out() -> None:
    """Holds, dependencies, and the time before which it did not start."""
    world = World(node("n1", cpus=64))
    first = world.submit(holds=("user",))
    array = world.submit(
        program=Program(exit_code=1), array="0-3%1", holds=("user",), start_after_s=BEGIN_S + 50
    )
    world.release(array)
    world.run_until(55)
    world.alter(array, depends=(f"afterok:{first}",))  # the elements after the first wait for it
    world.run_until(200)
    before = world.job(array).spec
    assert (before.holds, len(before.depends), before.start_after_s) == (
        (HoldKind.USER,),
        1,
        BEGIN_S + 50,
    )

    new = done(world, again(world, array, "0")).job

    spec = world.job(new).spec
    assert (spec.holds, spec.depends, spec.start_after_s) == ((), (), 0.0)
    assert world.state(element_number(new, 0)) == "running"


def test_the_walltime_is_the_stated_one() -> None:
    """What an extension added while the job ran belonged to that run."""
    queue = QueueConfig(name="batch", walltime_extension="1:00:00", walltime_extensions_per_user=1)
    world = World(node("n1", cpus=64), config=settings(queues={"batch": queue}))
    job = world.submit("walltime=60", program=Program(runs_s=100, exit_code=1))
    world.run_until(10)
    world.alter(job, resources=("walltime=+300",))
    assert world.job(job).spec.extended_s == 300
    world.run_until(200)

    new = done(world, again(world, job)).job

    assert (world.job(new).spec.walltime_s, world.job(new).spec.extended_s) == (60, 0)


def test_only_its_owner_or_an_operator_submits_it_again() -> None:
    """The new job is its owner's, whoever asks; what holds for users holds for the owner."""
    world = World(node("n1", cpus=64), config=settings(min_uid=ADMIN.uid + 1))
    array = some_failed(world, indices="0-3", failed=(1,))

    refusal = refused(world, again(world, array, "1", by=BOB))
    assert isinstance(refusal, NotPermittedError)
    assert "belongs to alice" in refusal.message
    other_alice = structs.replace(ALICE, user="eve")  # her uid now is that of another one
    assert isinstance(refused(world, again(world, array, "1", by=other_alice)), NotPermittedError)

    new = done(world, again(world, array, "1", by=ADMIN)).job
    assert world.job(new).spec.owner == world.job(array).spec.owner


def test_a_key_gives_the_same_job() -> None:
    """Also after a restart of the head, and in the name space of the owner."""
    world = World(node("n1", cpus=64))
    array = some_failed(world, indices="0-3", failed=(1, 2))
    new = done(world, again(world, array, "1-2", key="k")).job

    assert world.do(again(world, array, "1-2", key="k")) == Step(job=new)
    assert world.do(again(world, array, "1-2", key="k", by=ADMIN)) == Step(job=new)
    world.restart_head()
    assert world.do(again(world, array, "1-2", key="k")) == Step(job=new)


def test_elements_of_an_unfinished_rerun_are_refused() -> None:
    """A second one at once would write the same files; others, and later ones, are taken."""
    world = World(node("n1", cpus=64))
    array = some_failed(world, indices="0-9", failed=(1, 2, 3))
    new = done(world, again(world, array, "1-2")).job

    refusal = refused(world, again(world, array, "2-3"))
    assert isinstance(refusal, BadStateError)
    assert refusal.message == (
        f"job {new}[], a rerun of job {array}[], has not finished and has 1 of these elements: 2"
    )
    assert f"grerun --failed '{new}[]'" in refusal.hint
    done(world, again(world, array, "3"))
    world.run_until(300)
    done(world, again(world, array, "2-3"))


def test_a_job_has_one_unfinished_rerun() -> None:
    """Also after a restart of the head; its key still gives it."""
    world = World(node("n1", cpus=64))
    job = world.submit(program=Program(exit_code=1))
    world.run_until(100)
    new = done(world, again(world, job, key="k")).job

    for _ in range(2):
        refusal = refused(world, again(world, job))
        assert isinstance(refusal, BadStateError)
        assert refusal.message == f"job {new}, a rerun of job {job}, has not finished"
        assert world.do(again(world, job, key="k")) == Step(job=new)
        world.restart_head()
    world.run_until(300)
    assert world.state(new) == "done"
    assert not world.head.state.reruns
    done(world, again(world, job))


LIMITS: tuple[tuple[dict[str, object], type[GschedError], str], ...] = (
    ({"max_queued_per_user": 0}, TryAgainError, "0 unfinished jobs, the limit"),
    ({"min_uid": 5000}, NotPermittedError, "system account"),
    ({"only_uid": 7}, NotPermittedError, "runs jobs of uid 7 only"),
    ({"queues": {"other": QueueConfig(name="other")}}, UnknownQueueError, "unknown queue 'batch'"),
    (
        {"queues": {"batch": QueueConfig(name="batch", enabled=False)}},
        UnknownQueueError,
        "takes no jobs now",
    ),
    (
        {"queues": {"batch": QueueConfig(name="batch", max_walltime_s=10)}},
        InvalidRequestError,
        "over the limit of queue batch",
    ),
    ({"max_array_elements": 2}, InvalidRequestError, "3 elements of job 1[] have failed"),
)


@pytest.mark.parametrize(("changes", "kind", "words"), LIMITS)
def test_limits_are_those_of_now(
    changes: dict[str, object], kind: type[GschedError], words: str
) -> None:
    world = World(node("n1", cpus=64))
    array = some_failed(world, indices="0-9", failed=(1, 2, 3), resources="walltime=60")
    world.head.settings = changed(world.settings, **changes)

    refusal = refused(world, again(world, array, "1-3"))

    assert isinstance(refusal, kind)
    assert words in refusal.message


def test_arguments_count_for_the_owner() -> None:
    """The head keeps those of all unfinished jobs in memory."""
    world = World(node("n1", cpus=64))
    job = world.submit(program=Program(exit_code=1))
    world.run_until(100)
    world.head.state.argument_bytes_by_user[ALICE.uid] = MAX_USER_ARGUMENT_BYTES

    assert isinstance(refused(world, again(world, job, by=ADMIN)), TryAgainError)


def test_what_no_node_can_hold_any_more_is_refused() -> None:
    world = World(node("n1", cpus=64))
    array = some_failed(world, indices="0-9", failed=(1,), resources="nodes=1:ppn=32")
    world.replace_hardware("n1", structs.replace(world.machines["n1"].has, cpus=8))

    assert isinstance(refused(world, again(world, array, "1")), RequestTooLargeError)


def test_more_ranges_than_an_array_can_have_are_refused_with_those_that_fit() -> None:
    """Each index by itself: the hint is a command that is taken."""
    world = World(node("n1", cpus=64))
    array = some_failed(world, indices="0-3", failed=(1,))
    singles = [index * index for index in range(1020)]  # no step is twice the same
    spans = tuple(Span(index, index) for index in singles)

    refusal = refused(world, structs.replace(again(world, array), elements=spans))

    assert isinstance(refusal, InvalidRequestError)
    last = singles[MAX_ARRAY_SPANS - 1]
    assert refusal.hint.endswith(f"grerun --failed '{array}[0-{last}]'")
    assert len(compressed(singles)) <= MAX_ARRAY_SPANS  # the head tries these first


def test_the_priority_is_capped() -> None:
    """For the owner; an operator may give it."""
    world = World(node("n1", cpus=64), config=settings(max_user_priority=0))
    array = world.submit(array="0-3", program=Program(exit_code=1))
    world.alter(array, by=ADMIN, priority=100)
    world.run_until(100)

    step = done(world, again(world, array, "1"))
    other = done(world, again(world, array, "2", by=ADMIN))

    assert world.job(step.job).spec.priority == 0
    assert step.warnings == (
        "priority 100 is above the limit for users, 0: the job has priority 0",
    )
    assert (world.job(other.job).spec.priority, other.warnings) == (100, ())


@pytest.mark.parametrize(
    ("after_s", "words"),
    [(150.0, "has passed"), (250.0, "cannot be met even if all nodes were idle"), (9e4, "")],
)
def test_a_deadline_that_cannot_be_met_any_more_is_dropped(after_s: float, words: str) -> None:
    """With a warning; another one stays."""
    world = World(node("n1", cpus=64))
    deadline_s = BEGIN_S + after_s
    job = world.submit("walltime=100", program=Program(exit_code=1), deadline_s=deadline_s)
    world.run_until(200)

    step = done(world, again(world, job))

    assert world.job(step.job).spec.deadline_s == (0.0 if words else deadline_s)
    if not words:
        assert step.warnings == ()
        return
    [warning] = step.warnings
    assert words in warning
    assert warning.endswith("the new job has no deadline")


def test_an_urgency_counts_from_now() -> None:
    world = World(node("n1", cpus=64))
    job = world.submit("walltime=100", program=Program(exit_code=1), urgency="normal")
    first_s = world.job(job).spec.deadline_s
    world.run_until(500)

    new = done(world, again(world, job)).job

    assert world.job(new).spec.deadline_s == first_s + 500


def test_a_url_that_is_not_allowed_any_more_is_not_called() -> None:
    allowed = NotifyConfig(allow_urls=("https://hooks.example",))
    world = World(node("n1", cpus=64), config=settings(notify=allowed))
    url = "https://hooks.example/me"
    job = world.submit(program=Program(exit_code=1), notify_url=url)
    world.run_until(100)
    world.head.settings = changed(world.settings, notify=NotifyConfig())

    step = done(world, again(world, job))

    assert world.job(job).spec.notify_url == url
    assert world.job(step.job).spec.notify_url == ""
    [warning] = step.warnings
    assert warning.endswith("it is ignored")


def test_nothing_is_submitted_again_in_safe_mode() -> None:
    world = World(node("n1", cpus=64))
    array = some_failed(world, indices="0-3", failed=(1,))
    world.head.safe_mode = "safe mode"

    assert isinstance(refused(world, again(world, array, "1")), TryAgainError)


def test_a_rerun_of_an_array_may_be_held_and_run_again_itself() -> None:
    """It is an array as any other one."""
    world = World(node("n1", cpus=64))
    array = some_failed(world, indices="0-9", failed=(1, 2, 3))
    world.programs[element_number(array + 1, 2)] = Program(exit_code=1)
    second = done(world, again(world, array, "1-3")).job
    world.hold(second, kind=HoldKind.USER)
    world.release(second)
    world.run_until(300)

    third = done(world, again(world, second, "2")).job
    world.run_until(400)

    assert world.job(third).spec.rerun_of == second
    outcome = world.job(third).outcome
    assert outcome is not None
    assert outcome.succeeded

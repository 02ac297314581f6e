"""Arrays: submission, the making of elements, actions on all or some of them, the end, restarts."""

import pytest
from msgspec import structs

from gsched.errors import (
    BadDependencyError,
    BadStateError,
    GschedError,
    InvalidRequestError,
    NotPermittedError,
    UnknownJobError,
)
from gsched.model.arrays import Spans, count, read_spans
from gsched.model.ids import element_number, index_of
from gsched.model.job import Outcome
from gsched.model.states import HoldKind, OutcomeKind
from gsched.protocol import actions as a
from gschedd.core.requests import commands as c
from gschedd.core.state import facts as f
from gschedd.core.state.elements import WAITING_MOST, window_of
from gschedd.core.state.records import Elements
from gschedd.core.state.settings import Caller
from gschedd.core.state.step import Step
from gschedd.core.views.jobs import JobViews
from tests.support.invariants import content, replayed
from tests.support.world import ADMIN, ALICE, BOB, Program, World, node, settings


def on(world: World, array: int, spans: str, asked: a.AnyJobAction, by: Caller = ALICE) -> Step:
    """Do something to some elements of an array."""
    command = c.ActOnJob(caller=by, job=array, action=asked, elements=read_spans(spans))
    return world.do(command)


def refused(
    world: World, array: int, spans: str, asked: a.AnyJobAction, by: Caller = ALICE
) -> GschedError:
    """Return why that is refused."""
    elements: Spans = read_spans(spans) if spans else ()
    return world.refusal(c.ActOnJob(caller=by, job=array, action=asked, elements=elements))


def elements(world: World, array: int) -> Elements:
    found = world.job(array).elements
    assert found is not None
    return found


def outcome(world: World, job: int) -> Outcome:
    found = world.job(job).outcome
    assert found is not None, f"job {job} is {world.state(job)}"
    return found


def live(world: World, array: int) -> list[int]:
    """Return the indices of the elements that are unfinished jobs."""
    return sorted(index_of(number) for number in world.head.state.arrays[array].made)


# --- a whole life ---


def test_each_element_runs_once_and_the_array_ends_with_the_last() -> None:
    """The array itself never starts; its numbers are computed, so the next job's is the next."""
    world = World(node("n1", cpus=4))
    array = world.submit(array="0-9", runs_s=10)
    after = world.submit(runs_s=1)

    world.run_until(100)

    assert after == array + 1
    assert outcome(world, array) == Outcome(
        kind=OutcomeKind.EXITED, exit_code=0, message="10 of 10 elements succeeded"
    )
    for index in range(10):
        done = world.job(element_number(array, index))
        assert done.attempts == 1
        assert outcome(world, done.id).succeeded
    started = [fact.job for fact in world.facts if isinstance(fact, f.AttemptAssigned)]
    assert len(started) == 11
    assert array not in started
    assert world.job(array).ended_s == max(
        world.job(element_number(array, index)).ended_s or 0.0 for index in range(10)
    )
    assert not world.head.state.arrays
    world.check_history()


def test_elements_start_in_the_place_of_their_array() -> None:
    """Their numbers are large, but a job that was submitted later starts after them."""
    world = World(node("n1", cpus=1))
    array = world.submit(array="5,3", runs_s=10)
    later = world.submit(runs_s=10)

    world.run_until(100)

    begun = [fact.job for fact in world.facts if isinstance(fact, f.AttemptAssigned)]
    assert begun == [element_number(array, 3), element_number(array, 5), later]


def test_an_array_ends_as_the_worst_of_its_elements() -> None:
    """With how many of them ended in which way."""
    world = World(node("n1", cpus=8))
    array = world.submit(array="0-3", runs_s=10)
    world.programs[array] = Program(runs_s=10, exit_code=3)
    world.delete(element_number(array, 2))

    world.run_until(100)

    end = outcome(world, array)
    assert (end.kind, end.exit_code, end.shell_status) == (OutcomeKind.EXITED, 3, 3)
    assert end.message == "0 of 4 elements succeeded, 3 failed, 1 cancelled"


@pytest.mark.parametrize("at_once", [1, 3])
def test_no_more_elements_than_the_limit_are_unfinished(at_once: int) -> None:
    """Although there is room; and each of them runs."""
    world = World(node("n1", cpus=64))
    array = world.submit(array=f"0-9%{at_once}", runs_s=10)
    assert live(world, array) == list(range(at_once))

    world.run_until(15)
    assert live(world, array) == list(range(at_once, 2 * at_once))

    world.run_until(1000)
    assert outcome(world, array).succeeded


def test_no_remedy_is_given_where_the_limit_of_the_array_is_the_cause() -> None:
    """A walltime or a smaller request would start no element earlier."""
    world = World(node("n1", cpus=2))
    limited = world.submit(array="0-9%2", runs_s=1000)
    world.run_for(5)

    story = JobViews(world.head, now_s=world.now_s).story(
        world.job(limited), attempts=(), events=(), now_s=world.now_s
    )

    assert "2 elements at once is the array's limit" in story.cause
    assert story.remedy == ""


def test_of_a_large_array_few_elements_are_jobs() -> None:
    """So memory, database and a cycle know nothing of its size; the others follow."""
    world = World(node("n1", cpus=2))
    array = world.submit(array="0-99999", runs_s=10)

    assert len(live(world, array)) <= 2 + WAITING_MOST
    assert len(world.head.state.jobs) < 2 + 2 + WAITING_MOST
    world.run_until(3000)
    assert elements(world, array).succeeded == 600
    assert len(live(world, array)) <= 2 + WAITING_MOST
    assert world.head.state.next_job == array + 1


@pytest.mark.parametrize(("arrays", "window"), [(1, 256), (32, 256), (64, 128), (10**6, 1)])
def test_many_arrays_of_a_user_share_what_may_wait(arrays: int, window: int) -> None:
    """But each has an element that waits, so none is forgotten."""
    assert window_of(arrays) == window


# --- bad input ---


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("9-0", "reversed"),
        ("0-9%0", "at least 1"),
        ("0-9,3", "index 3 twice"),
        ("0-1048576", "beyond"),
        ("0-20", "21 elements, and 20 are the limit"),
        (",", "empty"),
    ],
)
def test_an_impossible_array_is_refused(text: str, words: str) -> None:
    """Nothing of it is kept."""
    world = World(node("n1"), config=settings(max_array_elements=20))
    with pytest.raises(InvalidRequestError, match=words):
        world.submit(array=text)
    assert not world.head.state.jobs


def test_lines_and_indices_agree() -> None:
    """An element without a line would run with that of nobody."""
    world = World(node("n1"))
    with pytest.raises(InvalidRequestError, match="element 3 of the array has no line"):
        world.submit(array="0-3", lines="a\nb\nc\n")
    with pytest.raises(InvalidRequestError, match="without an array"):
        world.submit(lines="a\n")
    with pytest.raises(InvalidRequestError, match="NUL"):
        world.submit(array="0", lines="a\0\n")
    assert world.submit(array="0-2", lines="a\nb\nc") == 1


# --- deleting ---


def test_a_large_array_is_deleted_by_one_command() -> None:
    """What is no job yet is dropped, what waits ends, what runs is stopped; then the array ends."""
    world = World(node("n1", cpus=2))
    array = world.submit(array="0-99999", runs_s=1000)
    world.run_until(5)

    step = world.delete(array)

    assert len(step.facts) < 2 * WAITING_MOST
    assert count(elements(world, array).cancelled) > 99_000
    world.run_until(100)
    end = outcome(world, array)
    assert end.kind is OutcomeKind.CANCELLED
    assert end.message == "0 of 100000 elements succeeded, 100000 cancelled"
    assert not world.head.state.jobs
    world.check_history()


def test_a_deleted_array_that_has_not_started_ends_at_once() -> None:
    """Also while it is held, or waits for its time."""
    world = World(node("n1"))
    held = world.submit(array="0-99999", holds=("user",))
    later = world.submit(array="0-99999", start_after_s=world.now_s + 1000)

    for array in (held, later):
        step = world.delete(array)
        assert [type(fact) for fact in step.facts] == [f.ElementsDropped, f.JobEnded]
        assert outcome(world, array).kind is OutcomeKind.CANCELLED


def test_elements_are_deleted_by_index_and_range() -> None:
    """Jobs or not; the others run."""
    world = World(node("n1", cpus=1))
    array = world.submit(array="0-9%2", runs_s=10)

    world.delete(element_number(array, 1))  # is a job
    world.delete(element_number(array, 7))  # is none
    on(world, array, "3-5,9", a.DeleteJob())

    world.run_until(1000)
    ran = {fact.job for fact in world.facts if isinstance(fact, f.AttemptAssigned)}
    assert ran == {element_number(array, index) for index in (0, 2, 6, 8)}
    assert outcome(world, array).message == "4 of 10 elements succeeded, 6 cancelled"
    assert outcome(world, array).kind is OutcomeKind.CANCELLED


def test_what_is_over_or_unknown_is_refused_with_the_reason() -> None:
    """By index and by range; a range with one unfinished element is done."""
    world = World(node("n1", cpus=1))
    array = world.submit(array="0-9%1", runs_s=10)
    world.run_until(15)

    for spans in ("0", "42", "10-99", "0-0"):
        error = refused(world, array, spans, a.DeleteJob())
        wanted = BadStateError if spans.startswith("0") else UnknownJobError
        assert isinstance(error, wanted), (spans, error)
    gone = world.refusal(
        c.ActOnJob(caller=ALICE, job=element_number(array, 42), action=a.DeleteJob())
    )
    assert "Unknown Job Id 1[42].head" in gone.message
    on(world, array, "0-1", a.DeleteJob())
    assert world.job(array).elements is not None
    other = world.refusal(c.ActOnJob(caller=ALICE, job=element_number(99, 0), action=a.DeleteJob()))
    assert "Unknown Job Id 99[0].head" in other.message


def test_nobody_touches_the_elements_of_others() -> None:
    """T21: Whether they are jobs or not; an operator may."""
    world = World(node("n1", cpus=1))
    array = world.submit(array="0-9%1", runs_s=10)
    before = content(world.head.state)
    for spans in ("", "0", "5", "0-9"):
        for asked in (a.DeleteJob(), a.HoldJob(), a.ReleaseJob()):
            assert isinstance(refused(world, array, spans, asked, by=BOB), NotPermittedError)
    for index in (0, 5):
        command = c.ActOnJob(caller=BOB, job=element_number(array, index), action=a.DeleteJob())
        assert isinstance(world.refusal(command), NotPermittedError)
    assert content(world.head.state) == before
    on(world, array, "5", a.DeleteJob(), by=ADMIN)


def test_single_deletions_do_not_fill_the_record() -> None:
    """Each may split a range; beyond the limit ranges are to be named."""
    world = World(node("n1", cpus=1))
    text = ",".join(f"{begin}-{begin + 8}" for begin in range(0, 10_000, 10))
    array = world.submit(array=f"{text}%1", runs_s=10)
    error = refused(world, array, "54", a.DeleteJob())
    assert "1001 ranges" in error.message
    assert "1001 ranges" in refused(world, array, "54", a.HoldJob()).message
    on(world, array, "50-58", a.DeleteJob())
    on(world, array, "64", a.DeleteJob())


# --- holding and releasing ---


def test_a_held_array_makes_no_elements_and_its_waiting_ones_wait() -> None:
    """What runs goes on; released, all goes on."""
    world = World(node("n1", cpus=1))
    array = world.submit(array="0-4", runs_s=10)

    world.hold(array)
    world.run_until(100)

    assert world.state(array) == "held"
    assert elements(world, array).succeeded == 1
    assert {world.state(element_number(array, index)) for index in range(1, 5)} == {"held"}
    world.release(array)
    world.run_until(1000)
    assert outcome(world, array).succeeded


def test_an_array_that_is_submitted_held_begins_when_it_is_released() -> None:
    """Its elements are not held: the array is."""
    world = World(node("n1", cpus=8))
    array = world.submit(array="0-3", holds=("user",), runs_s=10)
    world.run_until(50)
    assert not live(world, array)
    world.release(array)
    world.run_until(100)
    assert outcome(world, array).succeeded


def test_an_array_starts_after_its_time() -> None:
    """As any job."""
    world = World(node("n1", cpus=8))
    array = world.submit(array="0-3", start_after_s=world.now_s + 60, runs_s=10)
    world.run_until(59)
    assert not live(world, array)
    world.run_until(61)
    assert len(live(world, array)) == 4


def test_elements_are_held_and_released_by_index() -> None:
    """One that is no job yet does not become one, and takes no place of the limit."""
    world = World(node("n1", cpus=8))
    array = world.submit(array="0-5%2", runs_s=10)

    on(world, array, "3-4", a.HoldJob())
    assert "user hold" in refused(world, array, "5", a.HoldJob(holds=("operator",)), ADMIN).message
    world.run_until(100)

    assert elements(world, array).succeeded == 4
    assert not live(world, array)
    assert world.head.state.arrays[array].job.state == "queued"
    world.release(element_number(array, 3))
    world.run_until(150)
    assert elements(world, array).succeeded == 5
    error = refused(world, array, "0-3", a.ReleaseJob())
    assert isinstance(error, BadStateError)
    world.release(array)
    world.run_until(200)
    assert outcome(world, array).succeeded


def test_releasing_what_nobody_holds_is_refused() -> None:
    """As for any job."""
    world = World(node("n1", cpus=1))
    array = world.submit(array="0-5%2", runs_s=10)
    assert "not held" in refused(world, array, "", a.ReleaseJob()).message
    assert "none of these" in refused(world, array, "0-5", a.ReleaseJob()).message
    world.hold(array, by=ADMIN, kind=HoldKind.OPERATOR)
    assert "is held by: operator" in refused(world, array, "", a.ReleaseJob()).message


# --- altering, signals, reruns ---


def test_altering_an_array_changes_what_waits_and_what_is_to_come() -> None:
    """Not what runs."""
    world = World(node("n1", cpus=1))
    array = world.submit("nodes=1,walltime=100", array="0-4%3", runs_s=10)

    world.alter(array, resources=("walltime=50",), comment="less")

    told = [
        world.head.state.jobs[element_number(array, index)].spec.walltime_s for index in range(3)
    ]
    assert told == [100, 50, 50]
    world.run_until(1000)
    assert world.job(element_number(array, 4)).spec.walltime_s == 50
    assert world.job(element_number(array, 4)).spec.array is None


def test_an_element_that_is_altered_becomes_a_job_for_it() -> None:
    """If the limit has room for it; else it is told what to do."""
    world = World(node("n1", cpus=1))
    array = world.submit("nodes=1,walltime=100", array="0-999", runs_s=10)
    alteration = a.Alteration(resources=("walltime=50",))

    error = refused(world, array, "500-999", a.AlterJob(alteration=alteration))
    assert "cannot become jobs now" in error.message
    world.run_until(150 * 10)
    world.alter(element_number(array, 900), resources=("walltime=50",))
    assert world.job(element_number(array, 900)).spec.walltime_s == 50
    world.run_until(20_000)
    assert outcome(world, array).succeeded
    assert world.job(element_number(array, 900)).attempts == 1


def test_a_signal_and_a_rerun_go_to_the_elements_that_run() -> None:
    """And are refused where none does."""
    world = World(node("n1", cpus=2))
    array = world.submit(array="0-4", runs_s=100)
    world.run_until(5)
    step = world.do(c.ActOnJob(caller=ALICE, job=array, action=a.SignalJob(signal=10)))
    assert [fact.job for fact in step.facts if isinstance(fact, f.JobSignalled)] == [
        element_number(array, 0),
        element_number(array, 1),
    ]
    on(world, array, "0-4", a.RerunJob())
    world.run_until(1000)
    assert outcome(world, array).succeeded
    assert world.job(element_number(array, 0)).attempts == 2
    held = world.submit(array="0-4", holds=("user",))
    assert "no element" in refused(world, held, "", a.SignalJob(signal=10)).message


# --- dependencies ---


@pytest.mark.parametrize(
    ("text", "starts_s"),
    [
        ("after:1", 0),
        ("after:1[]", 0),
        ("after:1[3]", 30),
        ("afterok:1[0]", 10),
        ("afterok:1[3]", 40),
        ("afterok:1[]", 40),
        ("afterokarray:1[][4]", 40),
        ("afterany:1[2]:1[3]", 40),
    ],
)
def test_jobs_depend_on_arrays_and_on_elements(text: str, starts_s: float) -> None:
    """Also on an element that is no job yet."""
    world = World(node("n1", cpus=2))
    array = world.submit(array="0-3%1", runs_s=10)
    job = world.submit(depends=(text,), runs_s=1)
    world.run_until(100)
    assert outcome(world, array).succeeded
    assert world.started_s(job) == starts_s


def test_what_depends_on_a_deleted_element_never_starts() -> None:
    """Whether it is deleted before or after that is stated; afternotok starts."""
    world = World(node("n1", cpus=2))
    array = world.submit(array="0-3%1", runs_s=10)
    job = world.submit(depends=("afterok:1[2]",))
    other = world.submit(depends=("afternotok:1[2]",), runs_s=1)
    world.delete(element_number(array, 2))
    world.run_until(5)
    assert outcome(world, job).kind is OutcomeKind.CANCELLED
    assert outcome(world, other).succeeded
    with pytest.raises(BadDependencyError, match=r"afterok:1\[2\] can never be satisfied"):
        world.submit(depends=("afterok:1[2]",))
    with pytest.raises(BadDependencyError, match=r"Unknown Job Id 1\[9\]"):
        world.submit(depends=("afterok:1[9]",))


def test_an_array_depends_on_a_job() -> None:
    """None of its elements is made before."""
    world = World(node("n1", cpus=2))
    first = world.submit(runs_s=20)
    array = world.submit(array="0-3", depends=(f"afterok:{first}",), runs_s=10)
    world.run_until(19)
    assert not live(world, array)
    world.run_until(100)
    assert outcome(world, array).succeeded


# --- restarts, histories ---


def test_a_head_that_restarts_knows_its_arrays() -> None:
    """Each element is made once, and the facts alone give the same state."""
    world = World(node("n1", cpus=2))
    array = world.submit(array="0-19%5", runs_s=10)
    on(world, array, "15", a.HoldJob())
    on(world, array, "16-17", a.DeleteJob())
    world.run_until(25)
    before = content(world.head.state)
    assert content(replayed(world.facts, world.head.state)) == before

    world.restart_head()
    world.run_until(30)
    world.release(element_number(array, 15))
    world.run_until(1000)

    assert outcome(world, array).message == "18 of 20 elements succeeded, 2 cancelled"
    world.check_history()


def test_an_element_that_a_node_knew_is_not_made_again() -> None:
    """The database is an old copy: the element was not a job yet there."""
    world = World(node("n1", cpus=1))
    array = world.submit(array="0-9", holds=("user",))
    spec = structs.replace(world.job(array).spec, array=None, holds=())
    recovered = f.JobSubmitted(
        at_s=world.now_s,
        job=element_number(array, 4),
        spec=spec,
        state=world.job(array).state.QUEUED,
        recovered=True,
    )
    step = world.head._advance([recovered], "recovery")  # as an adoption does
    world._take(step)  # as an adoption does
    assert world.head.state.next_job == array + 1
    world.release(array)
    world.run_until(1000)
    assert outcome(world, array).message.startswith("10 of 10")


# --- what one sees ---


def test_an_array_is_one_line_that_tells_of_its_elements() -> None:
    """With the reason of the first one that waits."""
    world = World(node("n1", cpus=2))
    array = world.submit(array="0-9%4", runs_s=10)
    world.run_until(15)
    row = JobViews(world.head, now_s=world.now_s).row(world.job(array))
    assert (row.letter, row.state) == ("R", "running")
    assert row.array is not None
    assert (row.array.waiting, row.array.running, row.array.succeeded) == (6, 2, 2)
    assert (row.array.indices, row.array.left) == ("0-9", "6-9")
    assert row.array.elements == 10
    assert world.why(array).startswith("1[4]: ")


def test_the_deadline_of_an_array_is_met_when_all_of_its_elements_have_succeeded_by_then() -> None:
    def met(world: World, array: int) -> bool | None:
        row = JobViews(world.head, now_s=world.now_s).row(world.job(array))
        assert row.deadline_s == world.job(array).spec.deadline_s > 0
        return row.meets_deadline

    world = World(node("n1", cpus=2))
    array = world.submit(array="0-3", runs_s=10, deadline_after_s=100.0)
    late = world.submit(array="0-3", runs_s=100, deadline_after_s=150.0)
    world.run_until(15)
    assert met(world, array) is None
    world.run_until(60)
    done = world.head.state.jobs.get(array)
    assert done is None, "it has ended"
    world.run_until(200)
    assert met(world, late) is False


def test_an_array_tells_why_nothing_more_starts() -> None:
    """Its own limit, or what its first waiting element waits for."""
    world = World(node("n1", cpus=2))
    limited = world.submit(array="0-9%1", runs_s=10)
    assert "1 element at once is the array's limit" in world.why(limited)
    full = world.submit("nodes=1:ppn=2", array="0-9", runs_s=10)
    assert world.why(full).startswith("2[0]: ")

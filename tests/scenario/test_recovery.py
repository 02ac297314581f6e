"""A head on an old copy of its database takes back what its nodes know, and nothing else."""

import errno
from typing import Any

import pytest
from msgspec import structs

from gsched.errors import TryAgainError
from gsched.model.job import ExitRecord, LaunchFailure, Owner
from gsched.model.origin import Origin
from gsched.model.resources import Load, Share, Usage
from gsched.model.states import (
    HoldKind,
    JobState,
    LaunchStage,
    OutcomeKind,
    PartState,
    StopReason,
    Subject,
)
from gsched.protocol import actions as a
from gsched.protocol import node as n
from gschedd.core.apply.jobs import apply
from gschedd.core.head import Head
from gschedd.core.recovery.adopt import CaseKind, Hold, Survey, cases_of
from gschedd.core.requests import commands as c
from gschedd.core.state import facts as f
from gschedd.core.state.records import Job
from gschedd.core.state.state import State
from tests.support.orders import orders
from tests.support.world import ADMIN, ALICE, BEGIN_S, Program, World, node

TOKEN = "aa"


def world_of(*machines: str, gpus: tuple[str, ...] = ()) -> World:
    """Return a head whose attempts carry a token, and its machines."""
    world = World(*(node(name, gpu_types=gpus) for name in machines))
    world.head.state.epoch_id = TOKEN
    return world


def old_copy(world: World, facts: int) -> Head:
    """Return a head on the database as it was after so many facts, in safe mode."""
    state = State()
    for fact in world.facts[:facts]:
        apply(state, fact)
    state.unstored.finished.clear()
    state.epoch_id = "bb"
    head = Head(state=state, settings=world.settings, policy=world.policy)
    head.safe_mode = "safe mode (an old copy)"
    return head


def known(job: Job, at: str, *, end: ExitRecord | None = None) -> n.KnownAttempt:
    """Return what a node knows of a job's attempt."""
    attempt = job.attempt
    assert attempt is not None
    return n.KnownAttempt(
        job=job.id,
        attempt=attempt.number,
        state=PartState.RUNNING if end is None else PartState.ENDED,
        started_s=attempt.assigned_s,
        exit=end,
        origin=Origin(
            token=attempt.token,
            spec=job.spec,
            submitted_s=job.submitted_s,
            assigned_s=attempt.assigned_s,
            allocation=attempt.allocation,
            active=tuple(
                name for name, part in attempt.parts.items() if part.state is not PartState.PASSIVE
            ),
        ),
    )


def ended(job: Job, code: int = 0, **how: object) -> ExitRecord:
    """Return the record of a job's attempt."""
    assert job.attempt is not None
    record = ExitRecord(
        job=job.id,
        attempt=job.attempt.number,
        kind=OutcomeKind.EXITED,
        exit_code=code,
        ended_s=BEGIN_S + 5,
    )
    return structs.replace(record, **how)


def survey_of(head: Head, told: dict[str, list[n.KnownAttempt]], first: int) -> Survey:
    survey = Survey(first)
    for name, attempts in told.items():
        survey.begin(name)
        survey.take(name, n.KnownAttempts(attempts=tuple(attempts), done=True))
    return survey


def accept(head: Head, survey: Survey, hold: Hold = Hold.ONCE_ONLY) -> None:
    head.safe_mode = ""
    head.adopt(survey, BEGIN_S + 100, hold=hold)


def kinds(head: Head, survey: Survey) -> dict[int, CaseKind]:
    return {case.job: case.kind for case in cases_of(head.state, survey)}


def test_in_safe_mode_nobody_changes_anything() -> None:
    """An answer could be lost again; operators may still look after nodes."""
    world = world_of("n1")
    job = world.submit(runs_s=1000)
    world.head.safe_mode = "safe mode (an old copy)"

    for command in (
        c.ActOnJob(caller=ALICE, job=job, action=a.DeleteJob()),
        c.ActOnJob(caller=ADMIN, job=job, action=a.HoldJob(holds=(HoldKind.OPERATOR,))),
        c.ActOnJob(caller=ADMIN, job=job, action=a.RerunJob()),
    ):
        assert isinstance(world.refusal(command), TryAgainError)
    world.do(c.ActOnNode(caller=ADMIN, node="n1", action=a.DrainNode(reason="for the time being")))

    assert world.head.state.nodes["n1"].drained


def test_a_queued_job_that_runs_by_now_is_not_started_again() -> None:
    """The attempt is taken over with its place; its end is the job's."""
    world = world_of("n1", gpus=("a", "a"))
    world.submit("nodes=1:gpus=2", runs_s=50)
    second = world.submit("nodes=1:gpus=1", runs_s=1000)
    before = len(world.facts)
    world.run_until(60)
    job = world.job(second)
    head = old_copy(world, before)
    survey = survey_of(head, {"n1": [known(job, "n1")]}, head.state.next_job)
    assert kinds(head, survey) == {1: CaseKind.LOST, second: CaseKind.STARTED}

    accept(head, survey)

    taken = head.state.jobs[second]
    assert taken.state is JobState.RUNNING
    assert taken.attempt is not None
    assert (taken.attempt.number, taken.attempt.token) == (1, TOKEN)
    assert taken.attempt.allocation == job.attempt.allocation if job.attempt else ()
    assert not taken.recovered
    record = ended(job, code=3)
    end = n.Exited(record=record, usage=Usage(), load=Load(), token=TOKEN)
    head.reported("n1", end, BEGIN_S + 200)
    done = head.state.unstored.finished[second]
    assert done.outcome is not None
    assert done.outcome.exit_code == 3


@pytest.mark.parametrize("rerunnable", [True, False])
def test_a_queued_job_that_has_ended_since_has_its_outcome(*, rerunnable: bool) -> None:
    """Although its end was acknowledged to the head whose database is lost."""
    world = World(node("n1"), connect=False)
    world.head.state.epoch_id = TOKEN
    number = world.submit(rerunnable=rerunnable, runs_s=1000)
    before = len(world.facts)
    world.connect("n1")
    job = world.job(number)
    head = old_copy(world, before)
    survey = survey_of(head, {"n1": [known(job, "n1", end=ended(job, 4))]}, 2)

    accept(head, survey)

    done = head.state.unstored.finished[number]
    assert done.outcome is not None
    assert (done.outcome.kind, done.outcome.exit_code) == (OutcomeKind.EXITED, 4)
    assert number not in head.state.jobs


def test_a_job_that_was_to_run_again_is_queued_again() -> None:
    """Its last attempt was stopped for that; whoever restores must not take it for cancelled."""
    world = World(node("n1"), connect=False)
    world.head.state.epoch_id = TOKEN
    number = world.submit(runs_s=1000)
    before = len(world.facts)
    world.connect("n1")
    job = world.job(number)
    head = old_copy(world, before)
    record = ended(job, kind=OutcomeKind.SIGNALLED, exit_code=None, signal=15)
    record = structs.replace(record, stop_reason=StopReason.RERUN)
    accept(head, survey_of(head, {"n1": [known(job, "n1", end=record)]}, 2))

    assert head.state.jobs[number].state is JobState.QUEUED
    assert head.state.jobs[number].attempts == 1


def test_an_unknown_job_is_adopted_and_never_started_again() -> None:
    """It keeps number, owner and place; its script is lost with the database."""
    world = world_of("n1", gpus=("a", "a"))
    before = len(world.facts)
    number = world.submit("nodes=1:gpus=1", runs_s=1000)
    job = world.job(number)
    head = old_copy(world, before)
    survey = survey_of(head, {"n1": [known(job, "n1")]}, head.state.next_job)
    assert kinds(head, survey) == {number: CaseKind.ADOPTED}

    accept(head, survey)

    taken = head.state.jobs[number]
    assert (taken.state, taken.recovered) == (JobState.RUNNING, True)
    assert taken.spec.owner == job.spec.owner
    assert len(head.state.spaces["n1"].gpus) == 1
    assert head.state.next_job > number
    assert (
        head.command(c.ActOnJob(caller=ALICE, job=number, action=a.RerunJob()), BEGIN_S + 101).error
        is not None
    )
    lost = ended(job, kind=OutcomeKind.NODE_LOST, exit_code=None)
    head.reported("n1", n.Exited(record=lost, usage=Usage(), load=Load()), BEGIN_S + 102)
    done = head.state.unstored.finished[number]
    assert done.outcome is not None
    assert done.outcome.kind is OutcomeKind.NODE_LOST


def attempt_of(told: n.KnownAttempt, number: int, **record: object) -> n.KnownAttempt:
    """Return the same as another attempt, whose record has changes."""
    assert told.exit is not None
    end = structs.replace(told.exit, attempt=number, **record)
    return structs.replace(told, attempt=number, exit=end)


SUPERVISOR_LOST: dict[str, Any] = {"kind": OutcomeKind.SUPERVISOR_LOST, "exit_code": None}


def adopted(head: Head, survey: Survey) -> list[tuple[str, int]]:
    """Let an operator accept; return the facts of attempts."""
    head.safe_mode = ""
    step = head.adopt(survey, BEGIN_S + 100)
    return [
        (type(fact).__name__, fact.attempt)
        for fact in step.facts
        if isinstance(fact, f.AttemptFact)
    ]


@pytest.mark.parametrize("queued_in_copy", [True, False])
def test_every_attempt_that_the_database_lacks_is_taken_back(*, queued_in_copy: bool) -> None:
    """The newest one decides what becomes of the job; the others are its history and its usage."""
    world = World(node("n1"), connect=False)
    world.head.state.epoch_id = TOKEN
    nothing = len(world.facts)
    number = world.submit(runs_s=1000)
    before = len(world.facts) if queued_in_copy else nothing
    world.connect("n1")
    job = world.job(number)
    head = old_copy(world, before)
    newest = known(job, "n1", end=ended(job))
    told = [
        attempt_of(newest, 3),
        attempt_of(newest, 1, **SUPERVISOR_LOST),
        attempt_of(newest, 2, kind=OutcomeKind.NODE_LOST, exit_code=None),
    ]

    facts = adopted(head, survey_of(head, {"n1": told}, 1))

    each = ["AttemptRecovered", "PartEnded", "AttemptEnded"]
    assert facts == [(name, attempt) for attempt in (1, 2, 3) for name in each]
    done = head.state.unstored.finished[number]
    assert done.outcome is not None
    assert (done.outcome.kind, done.outcome.exit_code) == (OutcomeKind.EXITED, 0)
    assert done.attempts == 3
    assert number not in head.state.jobs


@pytest.mark.parametrize("knows_its_end", [True, False])
def test_an_attempt_that_runs_by_the_database_has_an_end_when_a_newer_one_is_taken_back(
    *, knows_its_end: bool
) -> None:
    world = world_of("n1", gpus=("a",))
    number = world.submit("nodes=1:gpus=1", runs_s=1000)
    job = world.job(number)
    head = old_copy(world, len(world.facts))
    first = known(job, "n1", end=ended(job, **SUPERVISOR_LOST))
    second = structs.replace(known(job, "n1"), attempt=2)
    told = [first, second] if knows_its_end else [second]

    facts = adopted(head, survey_of(head, {"n1": told}, 1))

    assert facts == [("PartEnded", 1), ("AttemptEnded", 1), ("AttemptRecovered", 2)]
    taken = head.state.jobs[number]
    assert taken.attempt is not None
    assert (taken.state, taken.attempt.number) == (JobState.RUNNING, 2)
    assert head.state.spaces["n1"].gpus == ()


def test_an_earlier_attempt_that_did_not_end_everywhere_is_not_taken_back() -> None:
    """Nobody can say what became of it."""
    world = world_of("n1", "n2")
    before = len(world.facts)
    number = world.torchrun("nodes=2", program=Program(runs_s=1000))
    job = world.job(number)
    head = old_copy(world, before)
    told = {name: [attempt_of(known(job, name, end=ended(job)), 2)] for name in ("n1", "n2")}
    told["n1"].append(attempt_of(told["n1"][0], 1, **SUPERVISOR_LOST))

    facts = adopted(head, survey_of(head, told, head.state.next_job))

    assert {attempt for _, attempt in facts} == {2}
    assert head.state.unstored.finished[number].outcome is not None


def test_what_is_done_in_the_database_is_not_adopted_again() -> None:
    """Neither what the backup knows to be done, nor what was taken back before."""
    world = world_of("n1")
    first = world.submit(runs_s=5)
    second = world.submit(runs_s=1000)
    copies = [known(world.job(number), "n1") for number in (first, second)]
    world.run_until(10)
    head = old_copy(world, len(world.facts))
    survey = survey_of(head, {"n1": copies}, second)
    head.state.jobs[second].attempts = 1

    assert first not in kinds(head, survey)
    head.state.jobs.pop(second)
    survey.finished.update(survey.doubtful(head.state))
    assert kinds(head, survey) == {}


@pytest.mark.parametrize("wrong", ["owner", "time", "place", "record", "histories"])
def test_what_cannot_be_true_is_not_taken_back(wrong: str) -> None:
    """Another job's end becomes nobody's outcome (I5), and a node speaks only for itself."""
    world = World(node("n1"), node("n2"), connect=False)
    world.head.state.epoch_id = TOKEN
    number = world.submit(runs_s=1000)
    before = len(world.facts)
    world.connect("n1")
    told = known(world.job(number), "n1", end=ended(world.job(number), 4))
    origin, record = told.origin, told.exit
    assert origin is not None
    assert record is not None
    by: dict[str, list[n.KnownAttempt]] = {"n1": [told]}
    match wrong:
        case "owner":
            owner = Owner(user="bob", uid=4711, gid=100)
            spec = structs.replace(origin.spec, owner=owner)
            by["n1"] = [structs.replace(told, origin=structs.replace(origin, spec=spec))]
        case "time":
            other = structs.replace(origin, submitted_s=origin.submitted_s + 1)
            by["n1"] = [structs.replace(told, origin=other)]
        case "place":
            by = {"n2": [told]}
        case "record":
            by["n1"] = [structs.replace(told, exit=structs.replace(record, job=77))]
        case _:
            spread = structs.replace(
                origin, allocation=(*origin.allocation, Share(node="n2", cpus=1))
            )
            other = structs.replace(spread, token="zz")
            by = {
                "n1": [structs.replace(told, origin=spread)],
                "n2": [structs.replace(told, origin=other)],
            }
    head = old_copy(world, before)
    survey = survey_of(head, by, head.state.next_job)

    accept(head, survey)

    assert set(kinds(old_copy(world, before), survey).values()) <= {CaseKind.CONFLICT}
    assert head.state.jobs[number].state is JobState.QUEUED
    assert head.state.unstored.finished == {}


@pytest.mark.parametrize(
    "allocation",
    [
        (Share(node="n1", cpus=1, gpu_indices=(0, 0)),),
        (Share(node="n1", cpus=1, gpu_indices=(0,)), Share(node="n1", cpus=1, gpu_indices=(0,))),
        (Share(node="n1", cpus=1, gpu_indices=(-1,)),),
        (Share(node="n1", cpus=1, gpu_indices=(2**63,)),),
        (Share(node="n1", cpus=-1),),
        (Share(node="n1", cpus=1, memory_bytes=2**60),),
        (Share(node="n1", cpus=1, generic=(("fpga", -1),)),),
    ],
)
def test_an_allocation_that_no_head_gives_is_a_conflict(allocation: tuple[Share, ...]) -> None:
    """The database refuses a second owner of a GPU, and a refused commit ends the head."""
    world = world_of("n1", gpus=("a",))
    before = len(world.facts)
    number = world.submit("nodes=1:gpus=1", runs_s=1000)
    told = known(world.job(number), "n1")
    assert told.origin is not None
    told = structs.replace(told, origin=structs.replace(told.origin, allocation=allocation))
    head = old_copy(world, before)
    survey = survey_of(head, {"n1": [told]}, head.state.next_job)

    assert kinds(head, survey) == {number: CaseKind.CONFLICT}
    accept(head, survey)
    assert number not in head.state.jobs


@pytest.mark.parametrize("active", [(), ("n2",)])
def test_an_attempt_that_runs_nowhere_in_its_allocation_is_a_conflict(
    active: tuple[str, ...],
) -> None:
    """It would have no part that can end, so its GPUs would be owned for ever."""
    world = world_of("n1")
    before = len(world.facts)
    number = world.submit(runs_s=1000)
    told = known(world.job(number), "n1")
    assert told.origin is not None
    told = structs.replace(told, origin=structs.replace(told.origin, active=active))
    head = old_copy(world, before)
    survey = survey_of(head, {"n1": [told]}, head.state.next_job)

    assert kinds(head, survey) == {number: CaseKind.CONFLICT}


@pytest.mark.parametrize(("job", "attempt"), [(2**53, 1), (1, 2**53), (-1, 1), (1, 0)])
def test_a_number_that_no_job_has_hides_no_attempt_and_is_not_adopted(
    job: int, attempt: int
) -> None:
    """A larger attempt number on one node must not displace what another node knows."""
    world = world_of("n1", "n2")
    before = len(world.facts)
    number = world.submit(runs_s=1000)
    told = known(world.job(number), "n1")
    wrong = structs.replace(told, job=job, attempt=attempt)
    head = old_copy(world, before)
    survey = survey_of(head, {"n1": [told], "n2": [wrong]}, head.state.next_job)

    assert kinds(head, survey) == {number: CaseKind.ADOPTED}


@pytest.mark.parametrize(
    ("hold", "held"), [(Hold.NOTHING, []), (Hold.ONCE_ONLY, [2]), (Hold.ALL, [1, 2])]
)
def test_jobs_of_which_nobody_knows_are_held_where_they_may_have_run(
    hold: Hold, held: list[int]
) -> None:
    """Those that must never run twice always; all of them where nodes are missing."""
    world = World(node("n1"), connect=False)
    world.submit()
    world.submit(rerunnable=False)
    head = old_copy(world, len(world.facts))

    accept(head, survey_of(head, {}, head.state.next_job), hold)

    found = [job.id for job in head.state.jobs.values() if job.state is JobState.HELD]
    assert found == held
    assert all(HoldKind.OPERATOR in head.state.jobs[job].holds for job in found)


def test_an_exit_of_another_history_is_no_outcome_of_the_job_with_its_number() -> None:
    """Nor does a registration with it end the job, or acknowledge it away."""
    world = world_of("n1")
    number = world.submit(runs_s=1000)
    record = ended(world.job(number), 9)
    end = n.Exited(record=record, usage=Usage(), load=Load(), token="zz")

    step = world.head.reported("n1", end, world.now_s)

    assert step.facts == ()
    assert world.state(number) == "running"
    assert world.head.oddities["exit_again"] == 1
    started = n.Started(job=number, attempt=1, pid=5, started_s=1.0, token="zz")
    (fence,) = orders(world.head.reported("n1", started, world.now_s))
    assert getattr(fence, "token", "") == "zz"
    assert getattr(fence, "reason", None) is StopReason.FENCED


@pytest.mark.parametrize("rerunnable", [True, False])
@pytest.mark.parametrize("in_backup", [True, False])
def test_a_finished_job_is_adopted_before_the_job_that_has_its_gpu_now(
    *, rerunnable: bool, in_backup: bool
) -> None:
    """A running job with a lower number does not keep another job from its outcome."""
    world = world_of("n1", gpus=("a",))
    first = world.submit("nodes=1:gpus=1", runs_s=10)
    before = len(world.facts)
    second = world.submit("nodes=1:gpus=1", runs_s=1000)
    world.hold(second)
    third = world.submit("nodes=1:gpus=1", rerunnable=rerunnable, runs_s=10)
    if in_backup:
        before = len(world.facts)
    told = [known(world.job(first), "n1", end=ended(world.job(first)))]
    world.run_until(15)
    told.append(known(world.job(third), "n1", end=ended(world.job(third), 3)))
    world.run_until(30)
    world.release(second)
    told.append(known(world.job(second), "n1"))
    head = old_copy(world, before)

    accept(head, survey_of(head, {"n1": told}, head.state.next_job))

    done = head.state.unstored.finished[third]
    assert done.outcome is not None
    assert done.outcome.exit_code == 3
    assert head.state.jobs[second].state is JobState.RUNNING


def test_a_finished_job_is_adopted_after_the_move_that_freed_its_gpu() -> None:
    """The database has job 1 still on the GPU that job 2 got when job 1 ran anew elsewhere."""
    world = world_of("n1", "n2", gpus=("a",))
    first = world.submit("nodes=1:gpus=1", runs_s=1000)
    waits = world.submit("nodes=1:gpus=1", runs_s=1000)
    second = world.submit("nodes=1:gpus=1", runs_s=10)
    head = old_copy(world, len(world.facts))
    moved, queued = known(world.job(first), "n1"), world.job(second)
    here, there = moved.origin, known(world.job(waits), "n2").origin
    assert here is not None
    assert there is not None
    moved = structs.replace(
        moved,
        attempt=2,
        origin=structs.replace(here, allocation=there.allocation, active=there.active),
    )
    finished = n.KnownAttempt(
        job=second,
        attempt=1,
        state=PartState.ENDED,
        exit=ExitRecord(
            job=second, attempt=1, kind=OutcomeKind.EXITED, exit_code=3, ended_s=BEGIN_S + 5
        ),
        origin=structs.replace(here, spec=queued.spec, submitted_s=queued.submitted_s),
    )

    accept(head, survey_of(head, {"n1": [finished], "n2": [moved]}, head.state.next_job))

    done = head.state.unstored.finished[second]
    assert done.outcome is not None
    assert done.outcome.exit_code == 3


def test_a_finished_job_that_cannot_be_adopted_is_held() -> None:
    """By the database its GPU belongs to a job that still runs: nobody may start it again."""
    world = world_of("n1", gpus=("a",))
    first = world.submit("nodes=1:gpus=1", runs_s=1000)
    second = world.submit("nodes=1:gpus=1", runs_s=10)
    head = old_copy(world, len(world.facts))
    runs, queued = known(world.job(first), "n1"), world.job(second)
    assert runs.origin is not None
    record = structs.replace(ended(world.job(first), 3), job=second)
    finished = structs.replace(
        runs,
        job=second,
        state=PartState.ENDED,
        exit=record,
        origin=structs.replace(runs.origin, spec=queued.spec, submitted_s=queued.submitted_s),
    )

    accept(head, survey_of(head, {"n1": [runs, finished]}, head.state.next_job), Hold.NOTHING)

    held = head.state.jobs[second]
    assert held.state is JobState.HELD
    assert "a node knows its attempt 1" in held.hold_reason


def test_the_failed_start_of_a_node_that_is_away_asks_for_no_probe() -> None:
    """A head that was just started takes back the end of an attempt before its node is there."""
    world = World(node("n1"), connect=False)
    world.head.state.epoch_id = TOKEN
    number = world.submit(runs_s=1000)
    world.connect("n1")
    failure = LaunchFailure(stage=LaunchStage.GROUP, subject=Subject.NODE, errno=errno.EROFS)
    record = ended(
        world.job(number), kind=OutcomeKind.LAUNCH_FAILED, exit_code=None, failure=failure
    )
    told = known(world.job(number), "n1", end=record)
    head = old_copy(world, len(world.facts))
    head.state.nodes["n1"].probes = True
    for _ in head.begin(BEGIN_S + 50):
        pass

    accept(head, survey_of(head, {"n1": [told]}, head.state.next_job))

    assert head.state.nodes["n1"].faults == 1
    assert head.state.nodes["n1"].probation.due_s == 0
    assert head.state.jobs[number].state is not JobState.RUNNING

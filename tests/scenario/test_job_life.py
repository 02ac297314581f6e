"""One job's life: holds, times, deletion, rerun, alteration, refusals."""

import pytest

from gsched.errors import (
    BadResourceError,
    BadStateError,
    InvalidRequestError,
    NotPermittedError,
    RequestTooLargeError,
    UnknownJobError,
    UnknownQueueError,
)
from gsched.model.states import HoldKind, OutcomeKind, StopReason
from gsched.protocol import actions as a
from gsched.protocol import node as n
from gsched.protocol.actions import Alteration
from gschedd.core.requests import commands as c
from gschedd.core.state import effects as e
from gschedd.core.state import facts as f
from tests.support.orders import orders
from tests.support.world import ADMIN, ALICE, BEGIN_S, BOB, Program, World, node


def outcome_kind(world: World, job: int) -> OutcomeKind:
    outcome = world.job(job).outcome
    assert outcome is not None, f"job {job} is {world.state(job)}"
    return outcome.kind


def causes(world: World, job: int) -> list[tuple[str, str]]:
    """Return the kinds of a job's facts with their causes."""
    facts = [fact for fact in world.facts if isinstance(fact, f.JobFact) and fact.job == job]
    return [(type(fact).__name__, fact.cause) for fact in facts]


# --- causes ---


def test_a_fact_names_the_input_from_which_it_follows() -> None:
    """What follows from a fact has the cause of the fact."""
    world = World(node("n1"))
    ended = world.submit("nodes=1", runs_s=30)
    world.run_until(100)
    later = world.submit("nodes=1", runs_s=1000, start_after_s=world.now_s + 60)
    world.run_until(200)
    world.delete(later)
    world.run_until(300)

    assert causes(world, ended) == [
        ("JobSubmitted", "submission"),
        ("AttemptAssigned", "cycle"),
        ("PartStarted", "message Started"),
        ("PartEnded", "message Exited"),
        ("AttemptEnded", "message Exited"),
        ("JobEnded", "message Exited"),
    ]
    assert ("JobDue", "timer") in causes(world, later)
    assert ("StopRequested", "request DeleteJob") in causes(world, later)


# --- ends ---


def test_a_job_ends_with_its_exit_code_and_its_usage() -> None:
    """Two CPUs for 30 s: 60 s of CPU time, exit code 3, all resources free again."""
    world = World(node("n1", cpus=2, gpus=1))
    job = world.submit("nodes=1:ppn=2:gpus=1", program=Program(runs_s=30, exit_code=3))

    world.run_until(100)

    done = world.job(job)
    assert done.outcome is not None
    assert (done.outcome.kind, done.outcome.exit_code) == (OutcomeKind.EXITED, 3)
    assert (done.cpu_s, done.wall_s, done.gpu_s) == (60, 30, 30)
    assert (done.started_s, done.ended_s) == (BEGIN_S, BEGIN_S + 30)
    assert world.head.state.spaces["n1"].cpus == 2


def test_a_job_over_its_walltime_ends_as_that() -> None:
    """The node ends it; its status is Torque's -11."""
    world = World(node("n1"))
    job = world.submit("nodes=1,walltime=60", runs_s=1000)

    world.run_until(2000)

    outcome = world.job(job).outcome
    assert outcome is not None
    assert (outcome.kind, outcome.pbs_status) == (OutcomeKind.WALLTIME, -11)
    assert world.job(job).ended_s == BEGIN_S + 60


def test_a_job_killed_for_memory_is_not_tried_again() -> None:
    """Out of memory is the job's own fault."""
    world = World(node("n1"))
    job = world.submit(program=Program(oom=True))

    world.run_until(100)

    assert outcome_kind(world, job) is OutcomeKind.OOM
    assert world.job(job).attempts == 1


# --- holds and times ---


def test_a_held_job_waits_until_it_is_released() -> None:
    """It says by whom it is held; its queue time begins anew."""
    world = World(node("n1"))
    job = world.submit(holds=("user",))

    world.run_until(50)
    assert world.state(job) == "held"
    assert world.why(job).startswith("held by user")
    world.release(job)
    world.run_until(100)

    assert world.started_s(job) == 50


def test_an_operators_hold_is_not_the_users_to_release() -> None:
    """The user hears whose hold it is."""
    world = World(node("n1"))
    job = world.submit(holds=("user",))
    world.hold(job, by=ADMIN, kind=HoldKind.OPERATOR)

    refused = world.refusal(
        c.ActOnJob(caller=BOB, job=job, action=a.ReleaseJob(holds=(HoldKind.USER,)))
    )
    assert isinstance(refused, NotPermittedError)
    world.release(job)
    assert world.state(job) == "held"
    refused = world.refusal(
        c.ActOnJob(caller=ALICE, job=job, action=a.ReleaseJob(holds=(HoldKind.USER,)))
    )
    assert "held by: operator" in str(refused)
    assert refused.hint == "only an operator can release it"
    for kind in (HoldKind.OPERATOR, HoldKind.SYSTEM):
        for action in (a.HoldJob(holds=(kind,)), a.ReleaseJob(holds=(kind,))):
            refused = world.refusal(c.ActOnJob(caller=ALICE, job=job, action=action))
            assert isinstance(refused, NotPermittedError)
    world.release(job, by=ADMIN, kind=HoldKind.OPERATOR)

    assert world.state(job) == "running"


def test_a_running_job_that_is_held_stays_held_when_it_is_queued_again() -> None:
    """The hold does not touch what runs."""
    world = World(node("n1"))
    job = world.submit(runs_s=1000)
    world.run_until(10)
    world.hold(job)
    assert world.state(job) == "running"

    world.rerun(job)
    world.run_until(20)
    assert world.state(job) == "held"
    world.release(job)

    assert world.state(job) == "running"


def test_holding_twice_and_releasing_a_free_job_say_what_is_so() -> None:
    """The first is nothing new, the second is refused."""
    world = World()
    job = world.submit()
    world.hold(job)

    assert world.hold(job).facts == ()
    world.release(job)
    refused = world.refusal(
        c.ActOnJob(caller=ALICE, job=job, action=a.ReleaseJob(holds=(HoldKind.USER,)))
    )

    assert isinstance(refused, BadStateError)
    assert str(refused) == f"job {job} is not held"


def test_a_delayed_job_starts_at_its_time() -> None:
    """Until then it says for what it waits; others are not blocked by it."""
    world = World(node("n1", cpus=1))
    delayed = world.submit(start_after_s=BEGIN_S + 100, priority=100)
    other = world.submit(runs_s=10)

    assert world.state(delayed) == "waiting"
    assert world.why(delayed).startswith("requested start time is 2023-11-14 22:15:00 UTC")
    world.run_until(200)

    assert (world.started_s(other), world.started_s(delayed)) == (0, 100)


def test_a_job_released_before_its_time_goes_on_waiting() -> None:
    """A hold and a time are two things."""
    world = World(node("n1"))
    job = world.submit(start_after_s=BEGIN_S + 100, holds=("user",))

    world.run_until(10)
    world.release(job)
    assert world.state(job) == "waiting"
    world.run_until(150)

    assert world.started_s(job) == 100


def test_a_waiting_job_can_be_held_and_altered_and_deleted() -> None:
    """Each command works in state waiting, too."""
    world = World(node("n1"))
    held = world.submit(start_after_s=BEGIN_S + 100)
    sooner = world.submit(start_after_s=BEGIN_S + 100)
    gone = world.submit(start_after_s=BEGIN_S + 100)

    world.hold(held)
    world.alter(sooner, start_after_s=BEGIN_S + 5)
    world.delete(gone)
    world.run_until(10)

    assert (world.state(held), world.started_s(sooner)) == ("held", 5)
    assert outcome_kind(world, gone) is OutcomeKind.CANCELLED


# --- deletion ---


def test_deleting_a_queued_job_ends_it_at_once() -> None:
    """It never ran, so nothing is stopped."""
    world = World()
    job = world.submit()

    world.delete(job)

    assert outcome_kind(world, job) is OutcomeKind.CANCELLED
    assert world.job(job).outcome.message == "cancelled by alice before it started"  # type: ignore[union-attr] # outcome_kind has looked
    assert isinstance(
        world.refusal(c.ActOnJob(caller=ALICE, job=job, action=a.DeleteJob())), UnknownJobError
    )


def test_deleting_an_assigned_job_that_has_not_started_leaves_no_orphan() -> None:
    """The launch is lost; the stop makes a tombstone; nothing ever runs."""
    world = World(node("n1"))
    world.lost[e.SendLaunch] = 1
    job = world.submit()

    world.delete(job)
    world.run_until(60)

    assert outcome_kind(world, job) is OutcomeKind.CANCELLED
    assert world.machines["n1"].launches == []
    assert world.machines["n1"].ended == {}


def test_a_stop_that_overtakes_its_launch_wins() -> None:
    """Reordered messages: the late launch meets the tombstone (E9)."""
    world = World(node("n1"))
    world.delayed_s[e.SendLaunch] = 20
    job = world.submit(runs_s=1000)

    world.delete(job)
    world.run_until(60)

    assert outcome_kind(world, job) is OutcomeKind.CANCELLED
    assert world.machines["n1"].launches == []


def test_deleting_a_running_job_asks_it_to_end() -> None:
    """TERM is enough for most programs."""
    world = World(node("n1"))
    job = world.submit(runs_s=1000)
    world.run_until(10)

    world.delete(job, message="wrong data")
    assert world.state(job) == "exiting"
    world.run_until(11)

    outcome = world.job(job).outcome
    assert outcome is not None
    assert (outcome.kind, outcome.pbs_status) == (OutcomeKind.CANCELLED, 256 + 15)
    assert outcome.message == "cancelled by alice: wrong data"


def test_a_program_that_ignores_term_is_killed_after_the_grace() -> None:
    """The grace is the job's own, or what gdel says."""
    world = World(node("n1"))
    patient = world.submit(program=Program(runs_s=1000, ignores_term=True), grace_s=40)
    hasty = world.submit(program=Program(runs_s=1000, ignores_term=True), grace_s=40)
    world.run_until(10)

    world.delete(patient)
    world.delete(hasty, grace_s=5)
    world.run_until(1000)

    assert world.job(hasty).ended_s == BEGIN_S + 15
    assert world.job(patient).ended_s == BEGIN_S + 50
    assert world.job(patient).outcome.signal == 9  # type: ignore[union-attr] # it has ended


@pytest.mark.parametrize("grace_s", [-1.0, 86401.0, float("nan")])
def test_a_grace_that_cannot_be_is_refused(grace_s: float) -> None:
    with pytest.raises(
        InvalidRequestError, match=f"a grace of {grace_s:.15g} s is not between 0 s and 24:00"
    ):
        World(node("n1")).submit(grace_s=grace_s)


def test_deleting_twice_is_allowed_and_can_shorten_the_grace() -> None:
    """gdel -W 0 after a gdel does not wait."""
    world = World(node("n1"))
    job = world.submit(program=Program(runs_s=1000, ignores_term=True), grace_s=600)
    world.run_until(10)
    world.delete(job, message="first")

    world.delete(job, grace_s=0, message="second")
    world.run_until(11)

    assert world.job(job).ended_s == BEGIN_S + 10


def test_deleting_a_held_job_ends_it() -> None:
    """gdel works in state held."""
    world = World(node("n1"))
    job = world.submit(holds=("user",))

    world.delete(job, by=ADMIN)

    assert outcome_kind(world, job) is OutcomeKind.CANCELLED


def test_a_delete_wins_over_a_rerun_that_is_under_way() -> None:
    """Stopped to run again, then deleted: it does not run again."""
    world = World(node("n1"))
    job = world.submit(program=Program(runs_s=1000, ignores_term=True), grace_s=30)
    world.run_until(10)
    world.rerun(job)

    world.delete(job)
    world.run_until(500)

    assert outcome_kind(world, job) is OutcomeKind.CANCELLED
    assert world.job(job).attempts == 1


def test_another_user_may_not_touch_the_job_and_an_operator_may() -> None:
    """Every command about a job asks whose it is."""
    world = World(node("n1"))
    job = world.submit(runs_s=1000)
    world.run_until(1)
    commands: list[c.AnyCommand] = [
        c.ActOnJob(caller=BOB, job=job, action=a.DeleteJob()),
        c.ActOnJob(caller=BOB, job=job, action=a.HoldJob(holds=(HoldKind.USER,))),
        c.ActOnJob(caller=BOB, job=job, action=a.ReleaseJob(holds=(HoldKind.USER,))),
        c.ActOnJob(caller=BOB, job=job, action=a.SignalJob(signal=10)),
        c.ActOnJob(caller=BOB, job=job, action=a.RerunJob()),
        c.ActOnJob(caller=BOB, job=job, action=a.AlterJob(alteration=Alteration(name="mine"))),
    ]

    for command in commands:
        assert isinstance(world.refusal(command), NotPermittedError), command
    world.delete(job, by=ADMIN)

    assert world.state(job) == "exiting"


# --- rerun and signals ---


def test_a_rerun_job_starts_anew_with_the_next_attempt() -> None:
    """The first attempt ends as RERUN, its time is charged, no fault is counted."""
    world = World(node("n1"))
    job = world.submit(runs_s=100)
    world.run_until(10)

    world.rerun(job)
    world.run_until(500)

    assert [fact.outcome.kind for fact in world.facts if isinstance(fact, f.AttemptEnded)] == [
        OutcomeKind.RERUN,
        OutcomeKind.EXITED,
    ]
    assert (world.job(job).attempts, world.job(job).wall_s) == (2, 110)
    assert (world.job(job).faults, world.job(job).requeues) == (0, 1)


def test_what_cannot_be_rerun_says_why() -> None:
    """Queued, not rerunnable, being cancelled; an operator may force the second."""
    world = World(node("n1", cpus=2))
    queued = world.submit(holds=("user",))
    fixed = world.submit(runs_s=1000, rerunnable=False)
    deleted = world.submit(program=Program(runs_s=1000, ignores_term=True))
    world.run_until(1)
    world.delete(deleted)

    reasons = [
        str(world.refusal(c.ActOnJob(caller=ALICE, job=job, action=a.RerunJob(force=True))))
        for job in (queued, fixed, deleted)
    ]
    world.rerun(fixed, by=ADMIN, force=True)
    world.run_until(2)

    assert reasons == [
        f"job {queued} is held: only a running job can be rerun",
        f"job {fixed} is not rerunnable (-r n)",
        f"job {deleted} is being cancelled",
    ]
    assert world.job(fixed).attempts == 2


def test_signals_reach_every_part_that_runs() -> None:
    """And only those; what does not run or is no signal is refused."""
    world = World(node("n1", cpus=1), node("n2", cpus=1))
    job = world.torchrun("nodes=2", program=Program(runs_s=100))
    queued = world.submit()
    world.run_until(1)

    world.do(c.ActOnJob(caller=ALICE, job=job, action=a.SignalJob(signal=10)))
    world.run_until(2)

    assert [machine.signals for machine in world.machines.values()] == [[(job, 10)]] * 2
    late = world.refusal(c.ActOnJob(caller=ALICE, job=queued, action=a.SignalJob(signal=10)))
    assert isinstance(late, BadStateError)
    wrong = world.refusal(c.ActOnJob(caller=ALICE, job=job, action=a.SignalJob(signal=65)))
    assert isinstance(wrong, InvalidRequestError)


def test_a_job_that_has_not_started_on_its_nodes_yet_gets_no_signal() -> None:
    """It counts as running by then, and the refusal does not say that it does not run."""
    world = World(node("n1", cpus=1))
    world.delayed_s[n.Started] = 3.0
    job = world.submit(program=Program(runs_s=100))
    world.run_until(1)
    signal = c.ActOnJob(caller=ALICE, job=job, action=a.SignalJob(signal=10))

    early = world.refusal(signal)

    assert isinstance(early, BadStateError)
    assert early.message == (
        f"job {job} has no process now: its attempt has not started yet on its nodes"
    )
    assert early.hint == f"send it again when gstat -f {job} shows that it has"
    world.run_until(5)
    world.do(signal)


# --- alteration ---


def test_a_longer_walltime_reaches_the_running_job() -> None:
    """+60 s while it runs: it ends 60 s later."""
    world = World(node("n1"))
    job = world.submit("nodes=1,walltime=100", runs_s=1000)
    world.run_until(50)

    world.alter(job, resources=("walltime=+1:00",))
    world.run_until(2000)

    assert world.job(job).ended_s == BEGIN_S + 160
    assert outcome_kind(world, job) is OutcomeKind.WALLTIME


def test_a_walltime_altered_while_the_node_was_away_is_told_when_it_is_back() -> None:
    """The message was lost with the connection; the registration brings it anew."""
    world = World(node("n1"))
    job = world.submit("nodes=1,walltime=100", runs_s=1000)
    world.run_until(10)
    world.disconnect("n1")
    world.alter(job, resources=("walltime=300",))
    world.run_until(20)

    world.connect("n1")
    world.run_until(2000)

    assert world.job(job).ended_s == BEGIN_S + 300


def test_a_walltime_that_is_over_already_is_refused() -> None:
    """So is one that shrinks below what it has run."""
    world = World(node("n1"))
    job = world.submit("nodes=1,walltime=100", runs_s=1000)
    world.run_until(50)

    for walltime in ("walltime=50", "walltime=-0:51", "walltime=-1000:00:00"):
        command = c.ActOnJob(
            caller=ALICE, job=job, action=a.AlterJob(alteration=Alteration(resources=(walltime,)))
        )
        assert "lies in the past" in str(world.refusal(command))
    world.alter(job, resources=("walltime=51",))
    world.run_until(60)

    assert world.job(job).ended_s == BEGIN_S + 51


def test_a_waiting_job_can_ask_for_other_resources() -> None:
    """What is not named stays; the job moves to its new group and starts."""
    world = World(node("n1", cpus=4, gpus=1))
    world.submit("nodes=1:ppn=2", runs_s=1000)
    job = world.submit("nodes=1:ppn=4:gpus=1,mem=1gb,walltime=60", runs_s=10)
    assert world.state(job) == "queued"

    world.alter(job, resources=("nodes=1:ppn=2:gpus=1",))
    world.run_until(1)

    assert world.state(job) == "running"
    assert world.job(job).spec.walltime_s == 60


def test_priority_and_queue_change_the_place_in_line() -> None:
    """The altered job overtakes; an unknown queue is refused."""
    world = World(node("n1", cpus=1))
    world.submit(runs_s=10)
    first = world.submit(runs_s=10)
    second = world.submit(runs_s=10)

    world.alter(second, priority=5, name="fast", join="oe", mail_points="n")
    command = c.ActOnJob(
        caller=ALICE, job=first, action=a.AlterJob(alteration=Alteration(queue="nowhere"))
    )
    assert isinstance(world.refusal(command), UnknownQueueError)
    world.run_until(100)

    assert (world.started_s(second), world.started_s(first)) == (10, 20)
    assert world.job(second).spec.name == "fast"


def test_altering_holds_holds_and_releases() -> None:
    """galter -h u, then -h n; releasing what is not held changes nothing."""
    world = World(node("n1"))
    job = world.submit(start_after_s=BEGIN_S + 5)

    world.alter(job, holds=("user",))
    assert world.state(job) == "held"
    world.alter(job, holds=())
    assert world.state(job) == "waiting"

    assert world.alter(job, holds=()).facts == ()


ALTERATIONS = pytest.mark.parametrize(
    ("alteration", "error", "text"),
    [
        (Alteration(), InvalidRequestError, "nothing to alter"),
        (Alteration(name="new"), BadStateError, "name can no longer change"),
        (Alteration(resources=("nodes=2",)), BadStateError, "only walltime can change"),
        (Alteration(resources=("walltime=+10:00",)), BadResourceError, "no walltime"),
        (Alteration(resources=("apples=3",)), BadResourceError, "unknown resource"),
    ],
)


def test_a_job_that_is_ending_can_be_altered_as_a_running_one() -> None:
    """It is stopped to run again, and then says that it cannot be rerun."""
    world = World(node("n1"))
    job = world.submit(program=Program(runs_s=1000, ignores_term=True))
    world.run_until(1)
    world.rerun(job)
    assert world.state(job) == "exiting"

    world.alter(job, rerunnable=False, account="lab")

    assert not world.job(job).spec.rerunnable


@ALTERATIONS
def test_what_a_running_job_cannot_alter(
    alteration: Alteration, error: type[Exception], text: str
) -> None:
    """Each refusal says what can be altered, or what is wrong."""
    world = World(node("n1"), node("n2"))
    job = world.submit(runs_s=100)
    world.run_until(1)

    refused = world.refusal(
        c.ActOnJob(caller=ALICE, job=job, action=a.AlterJob(alteration=alteration))
    )

    assert isinstance(refused, error)
    assert text in str(refused)


def test_a_waiting_job_cannot_ask_for_more_than_there_will_ever_be() -> None:
    """As at submission."""
    world = World(node("n1", cpus=4))
    job = world.submit(holds=("user",))

    alteration = Alteration(resources=("nodes=1:ppn=5",))
    refused = world.refusal(
        c.ActOnJob(caller=ALICE, job=job, action=a.AlterJob(alteration=alteration))
    )

    assert isinstance(refused, RequestTooLargeError)


def test_a_running_exclusive_job_can_change_its_walltime() -> None:
    """Its resources are read back as what they are."""
    world = World(node("n1", cpus=4), node("n2", cpus=4))
    job = world.submit("nodes=2:ppn=2,walltime=100", exclusive=True, runs_s=1000)
    world.run_until(1)

    world.alter(job, resources=("walltime=200",))
    world.run_until(500)

    assert world.job(job).ended_s == BEGIN_S + 200


def test_a_late_report_of_an_earlier_attempt_changes_nothing() -> None:
    """It is stopped on its node, and an exit of it is acknowledged (E10)."""
    world = World(node("n1"))
    job = world.submit(runs_s=1000)
    world.run_until(1)
    world.rerun(job)
    world.run_until(2)
    assert world.job(job).attempts == 2

    late = n.Started(job=job, attempt=1, pid=1, started_s=BEGIN_S)
    step = world.head.reported("n1", late, world.now_s)

    assert step.facts == ()
    (fence,) = orders(step)
    assert isinstance(fence, n.StopAttempt)
    assert (fence.attempt, fence.reason) == (1, StopReason.FENCED)
    assert world.state(job) == "running"

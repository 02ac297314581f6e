"""Step agents: opened where a program of the job wants one, ended with the script."""

import pytest

from gsched.model.job import ExitRecord, LaunchFailure
from gsched.model.resources import Load, Usage
from gsched.model.states import LaunchStage, OutcomeKind, PartState, StopReason, Subject
from gsched.protocol import node as n
from gsched.protocol.job_steps import (
    LoginAnswer,
    LoginRequest,
    StepFailed,
    StepOrder,
    StepRefused,
    StepRequest,
)
from gschedd.core.state import facts as f
from tests.support.orders import orders
from tests.support.world import Program, World, node

SECRET = "0" * 32


def wide(world: World, *, exit_code: int = 0, every_node: bool = False, rerun: bool = True) -> int:
    """Submit a script on three nodes, and let it start."""
    program = Program(runs_s=100, exit_code=exit_code)
    job = world.submit(
        program=program, resources="nodes=3", every_node=every_node, rerunnable=rerun
    )
    world.run_until(10)
    return job


def world_of_three() -> World:
    return World(node("n1"), node("n2"), node("n3"))


def request(world: World, job: int, *nodes: str, of: str = "n1", step: int = 7) -> None:
    attempt = world.job(job).attempts
    said = StepRequest(job=job, attempt=attempt, step=step, nodes=nodes, port=99, secret=SECRET)
    world._take(world.head.reported(of, said, world.now_s))
    world.settle()
    world.run_until(world.elapsed_s + 1)


def parts(world: World, job: int) -> list[PartState]:
    attempt = world.job(job).attempt
    assert attempt is not None
    return [part.state for part in attempt.parts.values()]


def test_a_step_agent_is_opened_where_one_is_requested_and_once() -> None:
    world = world_of_three()
    job = wide(world)
    assert parts(world, job) == [PartState.RUNNING, PartState.PASSIVE, PartState.PASSIVE]

    request(world, job, "n2")
    request(world, job, "n2", step=8)
    world.run_until(20)

    assert parts(world, job) == [PartState.RUNNING, PartState.RUNNING, PartState.PASSIVE]
    assert len(world.told(f.PartOpened, job)) == 1
    asked = [order for order in world.machines["n2"].steps if isinstance(order, StepOrder)]
    assert [(order.node, order.step, order.address, order.port) for order in asked] == [
        ("n1", 7, "10.0.0.1", 99),
        ("n1", 8, "10.0.0.1", 99),
    ]
    assert world.machines["n3"].launches == []


def test_the_outcome_is_the_scripts_and_agents_are_stopped_with_it() -> None:
    world = world_of_three()
    job = wide(world, exit_code=4)
    request(world, job, "n2", "n3")
    world.run_until(300)

    outcome = world.job(job).outcome
    assert outcome is not None
    assert (outcome.kind, outcome.exit_code, outcome.node) == (OutcomeKind.EXITED, 4, "n1")
    (stop,) = world.told(f.StopRequested, job)
    assert isinstance(stop, f.StopRequested)
    assert stop.reason is StopReason.PEER_FAILED
    assert all(not machine.running for machine in world.machines.values())


def test_a_good_script_with_agents_has_succeeded() -> None:
    world = world_of_three()
    job = wide(world)
    request(world, job, "n2")
    world.run_until(300)

    outcome = world.job(job).outcome
    assert outcome is not None
    assert outcome.succeeded


def test_an_agent_that_cannot_start_fails_the_request_and_not_the_job() -> None:
    world = world_of_three()
    job = wide(world)
    world.machines["n2"].launch_fault = "no user"
    world.machines["n2"].fault = LaunchFailure(stage=LaunchStage.ACCOUNT, subject=Subject.USER)
    request(world, job, "n2")
    world.run_until(20)
    assert parts(world, job)[:2] == [PartState.RUNNING, PartState.ENDED]

    request(world, job, "n2", step=9)

    told = world.machines["n1"].steps[-1]
    assert isinstance(told, StepRefused)
    assert (told.node, told.step) == ("n2", 9)
    assert "the step agent on n2 has ended: no user" in told.message
    world.run_until(300)
    outcome = world.job(job).outcome
    assert outcome is not None
    assert outcome.succeeded
    assert world.job(job).attempts == 1


def test_an_agent_that_dies_ends_the_job() -> None:
    world = world_of_three()
    job = wide(world)
    request(world, job, "n2")
    world.run_until(20)

    world.kill("n2", job, 1)
    world.run_until(60)

    outcome = world.job(job).outcome
    assert outcome is not None
    assert (outcome.kind, outcome.signal, outcome.node) == (OutcomeKind.SIGNALLED, 9, "n2")


@pytest.mark.parametrize(
    ("nodes", "runs", "why"),
    [
        (("n9",), "first", "n9 is not a node of the job"),
        (("n1",), "first", "n1 is the first node of the job"),
        (("n2",), "everywhere", "the job's program runs on each of its nodes"),
    ],
)
def test_a_request_that_makes_no_sense_is_answered(
    nodes: tuple[str, ...], runs: str, why: str
) -> None:
    world = world_of_three()
    job = wide(world, every_node=runs == "everywhere")

    request(world, job, *nodes)

    told = world.machines["n1"].steps[-1]
    assert isinstance(told, StepRefused)
    assert why in told.message
    assert world.told(f.PartOpened, job) == []


def test_nodes_that_cannot_are_told_so() -> None:
    """One that is away, and a job that is being cancelled."""
    world = world_of_three()
    job = wide(world)
    world.disconnect("n2")

    request(world, job, "n2")

    (away,) = world.machines["n1"].steps
    assert isinstance(away, StepRefused)
    assert "n2 is not connected" in away.message


def test_requests_of_others_mean_nothing() -> None:
    """Of a node on which the attempt does not run, and of an attempt that is over."""
    world = world_of_three()
    job = wide(world)

    request(world, job, "n3", of="n2")
    said = StepRequest(job=job, attempt=9, step=1, nodes=("n2",), port=99, secret=SECRET)
    world._take(world.head.reported("n1", said, world.now_s))
    failed = StepFailed(job=job, attempt=9, node="n2", origin="n1", step=1, message="no")
    world._take(world.head.reported("n2", failed, world.now_s))

    assert world.told(f.PartOpened, job) == []
    assert world.head.oddities["step_of_no_attempt"] == 3


def test_a_failure_is_passed_on_to_the_node_of_the_program() -> None:
    world = world_of_three()
    job = wide(world)
    failed = StepFailed(job=job, attempt=1, node="n2", origin="n1", step=5, message="no route")

    world._take(world.head.reported("n2", failed, world.now_s))
    world.run_until(world.elapsed_s + 1)

    assert world.machines["n1"].steps == [
        StepRefused(job=job, attempt=1, node="n2", step=5, message="no route")
    ]


def test_a_node_that_has_lost_its_agent_ends_the_job() -> None:
    """Its boot id of the time when the agent was opened counts."""
    world = world_of_three()
    job = wide(world, rerun=False)
    request(world, job, "n2")
    world.run_until(20)

    world.reboot("n2")
    world.run_until(60)

    outcome = world.job(job).outcome
    assert outcome is not None
    assert (outcome.kind, outcome.node) == (OutcomeKind.NODE_LOST, "n2")


def test_a_head_that_restarts_launches_an_agent_that_was_opened() -> None:
    """The launch was lost with the connection: the part is pending, so it is sent again."""
    world = world_of_three()
    job = wide(world)
    world.machines["n2"].connected = False
    request(world, job, "n2")
    assert world.machines["n2"].launches == []

    world.connect("n2")
    world.run_until(20)

    assert world.machines["n2"].launches == [(job, 1)]
    assert parts(world, job)[1] is PartState.RUNNING


def test_a_record_of_an_agent_stopped_as_a_peer_does_not_count() -> None:
    """Nor does its signal become the job's."""
    world = world_of_three()
    job = wide(world)
    request(world, job, "n2")
    world.run_until(20)
    record = ExitRecord(
        job=job, attempt=1, kind=OutcomeKind.EXITED, exit_code=0, ended_s=world.now_s
    )
    world._take(
        world.head.reported("n1", n.Exited(record=record, usage=Usage(), load=Load()), world.now_s)
    )
    world.run_until(60)

    outcome = world.job(job).outcome
    assert outcome is not None
    assert outcome.succeeded


def log_in(world: World, of: str, *, uid: int, address: str = "") -> tuple[int, int]:
    """Let a user log in to a node; return the job and attempt of the answer."""
    said = LoginRequest(login=5, uid=uid, address=address)
    step = world.head.reported(of, said, world.now_s)
    answers = [each for each in orders(step) if isinstance(each, LoginAnswer)]
    world._take(step)
    world.settle()
    world.run_until(world.elapsed_s + 1)
    (answer,) = answers
    assert {effect.node for effect in step.effects} == {of}
    assert answer.login == 5
    return answer.job, answer.attempt


def test_a_login_opens_the_part_of_a_job_that_has_only_reserved_the_node() -> None:
    """Once, for its owner only, and while the job runs."""
    world = world_of_three()
    job = wide(world)
    uid = world.job(job).spec.owner.uid

    assert log_in(world, "n2", uid=uid + 1) == (0, 0)
    assert log_in(world, "n1", uid=uid) == (0, 0), "its script runs there: the node knows it"
    assert parts(world, job) == [PartState.RUNNING, PartState.PASSIVE, PartState.PASSIVE]
    assert log_in(world, "n2", uid=uid) == (job, 1)
    assert log_in(world, "n2", uid=uid) == (job, 1)
    assert parts(world, job) == [PartState.RUNNING, PartState.RUNNING, PartState.PASSIVE]
    assert len(world.told(f.PartOpened, job)) == 1
    world.run_until(300)
    assert log_in(world, "n2", uid=uid) == (0, 0)


def test_a_login_from_the_first_node_of_a_job_opens_a_part_of_that_job() -> None:
    world = world_of_three()
    first, second = wide(world), wide(world)
    uid = world.job(first).spec.owner.uid
    one, other = (world.job(each).attempt for each in (first, second))
    assert one is not None
    assert other is not None
    if other.allocation[0].node == one.allocation[0].node:
        assert log_in(world, "n3", uid=uid, address="10.0.0.1")[0] == second
    assert log_in(world, "n3", uid=uid, address="10.9.9.9")[0] == second

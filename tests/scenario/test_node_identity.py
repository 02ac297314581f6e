"""Which gnode is which node: identities, machines, and what operators say of them."""

from typing import get_args

import pytest

from gsched.errors import BadStateError, NotPermittedError, UnknownNodeError
from gsched.model.job import ExitRecord
from gsched.model.machine import Machine as Marks
from gsched.model.resources import Load, Usage
from gsched.model.states import NodeState, OutcomeKind, PartState
from gsched.protocol import actions as a
from gsched.protocol import node as n
from gschedd.core.nodes.admission import MAX_RIVALS, REMEMBERED_S, refused_words
from gschedd.core.requests import commands as c
from gschedd.core.state.settings import Caller
from tests.support.world import ALICE, World, node

ROOT = Caller(user="root", uid=0, gid=0, operator=True)
ONE, TWO, THREE = "1" * 32, "2" * 32, "3" * 32
WRONG = Usage(wall_s=99.0, cpu_s=99.0, samples=9)
HERE, THERE = Marks(product="here"), Marks(product="there")


def world_of_n1() -> World:
    """Return a world whose n1 has identity ONE on machine HERE."""
    machine = node("n1", cpus=4)
    machine.identity, machine.marks = ONE, HERE
    return World(machine)


def register(
    world: World,
    name: str = "n1",
    *,
    identity: str = ONE,
    marks: Marks = HERE,
    boot_id: str = "another boot",
) -> str:
    """Let a gnode register by hand; return why it is refused, or nothing."""
    said = n.Register(
        boot_id=boot_id,
        incarnation="twin",
        address="10.0.0.9",
        gnode_version="test",
        inventory=world.machines["n1"].has,
        attempts=(),
        load=Load(),
        identity=identity,
        machine=marks,
    )
    step = world.head.registered(name, said, world.now_s)
    assert step.error is None or not step.facts, "a refusal changes nothing"
    return "" if step.error is None else step.error.message


@pytest.mark.parametrize("connected", [True, False])
@pytest.mark.parametrize(
    ("name", "identity", "marks", "words"),
    [
        ("n1", TWO, HERE, "another gnode is known as n1"),
        ("n1", "", HERE, "another gnode is known as n1"),
        ("n1", ONE, THERE, "node n1 is another machine"),
        ("n2", ONE, HERE, "has the identity of node n1"),
        ("n2", ONE, THERE, "has the identity of node n1"),
    ],
)
def test_another_gnode_is_refused_and_proves_nothing(
    *, connected: bool, name: str, identity: str, marks: Marks, words: str
) -> None:
    """Its boot id is another one, and it has no record of the job: the job runs on, once."""
    world = world_of_n1()
    job = world.submit("nodes=1", runs_s=600)
    world.run_until(5)
    if not connected:
        world.disconnect("n1")

    assert words in register(world, name, identity=identity, marks=marks)

    assert world.state(job) == "running"
    assert list(world.head.state.nodes) == ["n1"]
    assert words in refused_words(world.head.state, "n1", world.now_s)
    if not connected:
        world.connect("n1")
    world.run_until(700)
    assert world.state(job) == "done"
    assert world.machines["n1"].launches == [(job, 1)]


def test_the_same_machine_with_another_boot_id_proves_its_jobs_dead() -> None:
    """C12: that is what a boot id is for."""
    world = world_of_n1()
    job = world.submit("nodes=1", runs_s=600)
    world.run_until(5)
    world.reboot("n1")
    world.run_until(10)

    assert world.machines["n1"].launches == [(job, 1), (job, 2)]


def test_a_binding_outlives_the_head() -> None:
    world = world_of_n1()
    world.restart_head()
    world.disconnect("n1")

    assert "another gnode" in register(world, identity=TWO)


def test_a_node_that_registered_before_there_were_identities_is_bound_by_the_next() -> None:
    """After an upgrade of head and nodes."""
    machine = node("n1", cpus=4)
    world = World(machine)
    world.disconnect("n1")
    machine.identity, machine.marks = ONE, HERE
    world.connect("n1")
    world.disconnect("n1")

    assert "another gnode" in register(world, identity=TWO)


def test_what_is_remembered_of_refused_gnodes_is_bounded_and_passes() -> None:
    """Each is told of once; a flood of them makes no rows and no log."""
    world = world_of_n1()
    before = len(world.facts)
    told = 0
    for number in range(50):
        said = n.Register(
            boot_id="b",
            incarnation="i",
            address="10.0.0.9",
            gnode_version="test",
            inventory=world.machines["n1"].has,
            attempts=(),
            load=Load(),
            identity=f"{number % 25:032x}",
        )
        refusal = world.head.refused("n1", said, world.now_s)
        assert refusal is not None
        told += refusal.is_new

    assert told == MAX_RIVALS
    assert len(world.head.state.volatile.rivals["n1"]) == MAX_RIVALS
    assert len(world.facts) == before
    assert world.head.oddities["node_refused"] == 50
    assert refused_words(world.head.state, "n1", world.now_s + REMEMBERED_S + 1) == ""


# --- replace ---


def replace(by: Caller = ROOT, name: str = "n1", identity: str = "") -> c.ActOnNode:
    return c.ActOnNode(caller=by, node=name, action=a.ReplaceNode(identity=identity))


def remove(by: Caller = ROOT, name: str = "n1") -> c.ActOnNode:
    return c.ActOnNode(caller=by, node=name, action=a.RemoveNode())


@pytest.mark.parametrize(
    ("identity", "marks"), [(TWO, HERE), (ONE, THERE)], ids=["a new disk", "another machine"]
)
def test_a_reinstalled_node_takes_its_place_when_an_operator_says_so(
    identity: str, marks: Marks
) -> None:
    """Its job is not started elsewhere before somebody has vouched that it is gone."""
    world = world_of_n1()
    job = world.submit("nodes=1", runs_s=600)
    world.run_until(5)
    world.disconnect("n1")
    register(world, identity=identity, marks=marks)

    with_jobs = world.refusal(replace())
    assert f"node n1 has 1 job: {job}" in with_jobs.message
    assert with_jobs.hint == "if nothing of them runs there any more: gnodes confirm-dead n1"
    assert world.state(job) == "running"

    world.machines["n1"].running.clear()
    world.do(c.ActOnNode(caller=ROOT, node="n1", action=a.ConfirmDead()))
    world.do(replace())
    machine = world.machines["n1"]
    machine.identity, machine.marks = identity, marks
    machine.seen.clear()
    world.connect("n1")
    world.run_for(5)

    assert world.seen_node("n1").state is NodeState.UP
    assert machine.launches == [(job, 1), (job, 2)]
    assert refused_words(world.head.state, "n1", world.now_s) == ""
    if identity != ONE:
        assert "another gnode is known as n1" in register(world, identity=ONE)


def test_replace_needs_to_know_whom() -> None:
    world = world_of_n1()
    assert "is connected" in world.refusal(replace()).message
    world.disconnect("n1")
    nobody = world.refusal(replace())
    assert "no other gnode has called itself n1" in nobody.message

    register(world, identity=TWO)
    register(world, identity=THREE)
    register(world, "n9", identity=ONE)  # wants to be another node: it is not meant

    several = world.refusal(replace())
    assert several.message == (
        "2 gnodes have called themselves n1: 22222222 from 10.0.0.9, 33333333 from 10.0.0.9"
    )
    assert isinstance(world.refusal(replace(identity="4")), BadStateError)
    world.do(replace(identity="33"))
    assert world.head.state.nodes["n1"].identity == THREE


# --- remove ---


def test_a_removed_node_is_forgotten_and_its_name_free() -> None:
    world = World(*(node(name, cpus=4) for name in ("n1", "n2", "n3")))
    for number, machine in enumerate(world.machines.values(), 1):
        machine.identity = f"{number}" * 32
        world.disconnect(machine.name)
        world.connect(machine.name)
    world.submit("nodes=1:ppn=4", runs_s=10)
    world.run_until(20)
    world.disconnect("n2")

    world.do(remove(name="n2"))
    del world.machines["n2"]

    assert sorted(world.head.state.nodes) == ["n1", "n3"]
    assert isinstance(world.refusal(remove(name="n2")), UnknownNodeError)
    jobs = [world.submit("nodes=1:ppn=4", runs_s=10) for _ in range(4)]
    world.run_until(100)
    assert {world.state(job) for job in jobs} == {"done"}
    world.restart_head()
    assert sorted(world.head.state.nodes) == ["n1", "n3"]
    world.machines["n2"] = node("n2", cpus=2)
    world.machines["n2"].identity = "9" * 32
    world.connect("n2")
    assert world.seen_node("n2").inventory.cpus == 2


def test_a_node_with_jobs_or_a_connection_is_not_removed() -> None:
    world = world_of_n1()
    job = world.submit("nodes=1", runs_s=600)
    world.run_until(5)

    connected = world.refusal(remove())
    assert connected.message == "node n1 is connected: it would come back at once"
    assert connected.hint == "stop its gnode first, then: gnodes remove n1"
    world.disconnect("n1")
    assert f"node n1 has 1 job: {job}" in world.refusal(remove()).message

    world.machines["n1"].running.clear()
    world.do(c.ActOnNode(caller=ROOT, node="n1", action=a.ConfirmDead()))
    world.do(remove())
    assert world.head.state.nodes == {}
    assert world.state(job) == "waiting"  # it is tried again after a pause


def test_only_operators_remove_and_replace() -> None:
    world = world_of_n1()
    world.disconnect("n1")
    register(world, identity=TWO)

    for command in (remove(ALICE), replace(ALICE)):
        assert isinstance(world.refusal(command), NotPermittedError)


# --- T9: a node is heard about its own attempts only ---


def test_t9_no_report_of_another_node_changes_a_job() -> None:
    """Every kind of report, and all that a registration claims."""
    world = World(node("n1", cpus=4), node("n2", cpus=4))
    job = world.submit("nodes=n1", runs_s=600)
    world.run_until(5)
    before = len(world.facts)
    machine = world.machines["n1"]
    record = ExitRecord(job=job, attempt=1, kind=OutcomeKind.EXITED, exit_code=0)
    reports: list[n.AttemptMessage] = [
        n.Started(job=job, attempt=1, pid=1, started_s=1.0),
        n.Prepared(job=job, attempt=2),
        n.Exited(record=record, usage=WRONG, load=Load()),
        n.Checkpointed(job=job, attempt=1, step=9, path="/x"),
        n.CheckpointFailed(job=job, attempt=1, request=1, message="no"),
        n.TrainingProgress(job=job, attempt=1, step=9, work_done=9.0, at_s=world.now_s),
    ]

    effects = [
        effect
        for report in reports
        for effect in world.head.reported("n2", report, world.now_s).effects
    ]
    world.head.note_load("n2", Load(), world.now_s, ((job, 1, WRONG),))

    assert len(world.facts) == before
    assert {effect.node for effect in effects} <= {"n2"}
    assert {type(report) for report in reports} == set(get_args(n.AttemptMessage))
    attempt = world.job(job).attempt
    assert attempt is not None
    assert attempt.parts["n1"].usage != WRONG
    world.run_until(700)
    assert machine.launches == [(job, 1)]
    assert world.state(job) == "done"


def test_t9_a_registration_that_claims_anothers_attempts_only_gets_them_stopped() -> None:
    """There, where they are claimed to be; the job on its own node is not touched."""
    world = World(node("n1", cpus=4), node("n2", cpus=4))
    job = world.submit("nodes=n1", runs_s=600)
    world.run_until(5)
    record = ExitRecord(job=job, attempt=1, kind=OutcomeKind.EXITED, exit_code=0)
    for claim in (
        n.AttemptReport(job=job, attempt=1, state=PartState.RUNNING),
        n.AttemptReport(job=job, attempt=1, state=PartState.ENDED, exit=record),
    ):
        said = n.Register(
            boot_id="b",
            incarnation="i",
            address="10.0.0.2",
            gnode_version="test",
            inventory=world.machines["n2"].has,
            attempts=(claim,),
            load=Load(),
        )
        step = world.head.registered("n2", said, world.now_s)
        assert [type(fact).__name__ for fact in step.facts] == ["NodeRegistered"]
        assert {effect.node for effect in step.effects} == {"n2"}

    assert world.state(job) == "running"

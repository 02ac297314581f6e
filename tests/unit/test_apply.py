"""`apply`: the corners that stories do not reach."""

import pytest
from msgspec import structs

from gsched.errors import InvalidTransitionError
from gsched.model.resources import Load
from gsched.model.states import HoldKind, JobState
from gsched.protocol import actions as a
from gschedd.core.apply.jobs import apply
from gschedd.core.attempts.assign import free_port
from gschedd.core.requests import commands as c
from gschedd.core.state import facts as f
from gschedd.core.state import keys
from gschedd.core.state.state import State
from gschedd.plan.snapshot import Plan, Snapshot
from gschedd.policies.queue import fifo
from tests.support.books import spec_of
from tests.support.invariants import content
from tests.support.world import ADMIN, ALICE, BEGIN_S, World, node, settings


def submitted(job: int, key: str = "") -> f.JobSubmitted:
    return f.JobSubmitted(
        at_s=BEGIN_S, job=job, spec=spec_of(client_key=key), state=JobState.QUEUED
    )


def test_a_fact_that_cannot_follow_is_our_own_fault() -> None:
    """Refused loudly; the state is what it was."""
    state = State()
    apply(state, submitted(1))
    before = content(state)

    with pytest.raises(InvalidTransitionError, match="job 1 is queued: JobDue"):
        apply(state, f.JobDue(at_s=BEGIN_S, job=1))

    assert content(state) == before


def test_keys_of_ended_jobs_are_forgotten_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded (I14); keys of jobs that are not done stay."""
    monkeypatch.setattr(keys, "MAX_ENDED_KEYS", 2)
    world = World()
    jobs = [world.submit(key=f"k{number}") for number in range(6)]

    for job in jobs[1:]:
        world.delete(job)

    assert sorted(world.head.state.keys.every().values()) == [jobs[0], jobs[4], jobs[5]]


def test_a_job_of_high_priority_enters_in_the_middle_of_its_group() -> None:
    """And leaves from there when it is held."""
    world = World()
    jobs = [world.submit(priority=priority) for priority in (0, 5, 3)]
    state = world.head.state
    (group,) = state.groups.values()
    assert [job for _, job in state.ordered(group)] == [jobs[1], jobs[2], jobs[0]]

    world.hold(jobs[2])

    assert [job for _, job in state.ordered(group)] == [jobs[1], jobs[0]]


def test_a_node_that_claims_higher_numbers_moves_nothing() -> None:
    """One node's word exhausts no numbers; see `gschedd.http.witnesses` for who is believed."""
    world = World(node("n1"))
    (registered,) = [fact for fact in world.facts if isinstance(fact, f.NodeRegistered)]
    state = world.head.state
    job = world.submit()

    apply(state, structs.replace(registered, highest_job=job))
    apply(state, structs.replace(registered, highest_job=2**60))

    assert state.next_job == job + 1


def test_a_hold_with_a_reason_keeps_it_until_the_last_hold_is_gone() -> None:
    """The system's reason outlives a user's release."""
    state = State()
    apply(state, submitted(1))
    held = f.JobHeld(at_s=BEGIN_S, job=1, holds=(HoldKind.SYSTEM,), by="gsched", reason="broken")
    apply(state, held)
    apply(state, f.JobHeld(at_s=BEGIN_S, job=1, holds=(HoldKind.USER,), by="alice"))
    assert (state.jobs[1].holds, state.jobs[1].hold_reason) == (
        (HoldKind.SYSTEM, HoldKind.USER),
        "broken",
    )

    apply(state, f.JobReleased(at_s=BEGIN_S, job=1, holds=(HoldKind.USER,), by="alice"))
    assert state.jobs[1].hold_reason == "broken"
    apply(state, f.JobReleased(at_s=BEGIN_S + 5, job=1, holds=(HoldKind.SYSTEM,), by="alice"))

    assert (state.jobs[1].hold_reason, state.jobs[1].eligible_s) == ("", BEGIN_S + 5)


def test_a_heartbeat_changes_load_and_nothing_durable() -> None:
    """Of a node that never registered it is not even that."""
    world = World(node("n1"))
    facts = len(world.facts)

    world.head.note_load("n1", Load(load1=3.0), BEGIN_S + 7)
    world.head.note_load("n9", Load(load1=3.0), BEGIN_S + 7)

    assert len(world.facts) == facts
    seen = world.seen_node("n1")
    assert seen.load is not None
    assert (seen.load.load1, seen.heartbeat_s) == (3.0, BEGIN_S + 7)
    assert "n9" not in world.head.state.nodes


def test_a_preview_says_what_would_be_and_changes_nothing() -> None:
    """A refusal, or the first facts."""
    world = World()
    job = world.submit()
    before = content(world.head.state)

    step = world.head.preview(c.ActOnJob(caller=ALICE, job=job, action=a.DeleteJob()), world.now_s)
    refused = world.head.preview(
        c.ActOnJob(caller=ALICE, job=99, action=a.DeleteJob()), world.now_s
    )

    assert [type(fact) for fact in step.facts] == [f.JobEnded]
    assert refused.error is not None
    assert content(world.head.state) == before


def test_nodes_are_for_operators_and_a_drain_needs_a_reason() -> None:
    """Unknown nodes are named with the known ones."""
    world = World(node("n1"))
    cases: list[tuple[c.AnyCommand, str]] = [
        (
            c.ActOnNode(caller=ALICE, node="n1", action=a.DrainNode(reason="x")),
            "only an operator can change nodes",
        ),
        (
            c.ActOnNode(caller=ADMIN, node="n1", action=a.DrainNode(reason="  ")),
            "a drain needs a reason",
        ),
        (c.ActOnNode(caller=ADMIN, node="n9", action=a.ResumeNode()), "unknown node 'n9'"),
    ]
    for command, text in cases:
        assert str(world.refusal(command)) == text

    assert world.do(c.ActOnNode(caller=ADMIN, node="n1", action=a.ResumeNode())).facts == ()


def test_a_policy_that_fails_costs_one_cycle_and_the_jobs_say_something() -> None:
    """Neither the head nor the jobs suffer."""

    def broken(snapshot: Snapshot) -> Plan:
        raise RuntimeError("a bug")

    world = World(node("n1"), policy=broken)
    job = world.submit()

    assert world.state(job) == "queued"
    assert str(world.head.policy_failure) == "a bug"
    assert world.head.oddities["policy_failed"] >= 1
    assert world.why(job)
    world.head.policy = fifo.plan
    second = world.submit()

    assert world.state(job) == world.state(second) == "running"
    assert world.head.policy_failure is None


def test_when_all_ports_are_taken_one_is_shared() -> None:
    """More distributed jobs than ports: they are started, some will find theirs taken."""
    config = settings(master_port_first=20000, master_port_last=20001)
    world = World(config=config)
    job = world.job(world.submit())

    assert free_port(job, config, {20000}) == 20001
    assert free_port(job, config, {20001}) == 20000
    assert free_port(job, config, {20000, 20001}) in {20000, 20001}


def test_a_job_that_is_done_is_named_as_that_until_the_shell_takes_it_away() -> None:
    """Then only the history knows it."""
    world = World()
    job = world.submit()
    delete = c.ActOnJob(caller=ALICE, job=job, action=a.DeleteJob())
    world.head.command(delete, world.now_s)
    assert str(world.refusal(delete)) == f"job {job}.head has already finished"

    world.head.state.unstored.finished.clear()

    assert str(world.refusal(delete)) == f"Unknown Job Id {job}.head"

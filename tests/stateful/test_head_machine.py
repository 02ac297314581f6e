"""The head under everything at once, and after it: `tests.support.head_machine` does the work."""

import random
from collections.abc import Callable

import pytest
from hypothesis import settings as hypothesis_settings

from gsched.model.resources import Chunk, Load, Request, Share
from gsched.model.states import HoldKind, OutcomeKind
from gsched.protocol import actions as a
from gsched.protocol import node as n
from gschedd.core.head import Head
from gschedd.core.requests import commands as c
from gschedd.core.state.state import State
from gschedd.plan.snapshot import Plan, Snapshot, Start, Wait
from tests.support.head_machine import NODES, HeadMachine
from tests.support.world import ADMIN, ALICE, BEGIN_S, BOB, settings, submission

TestHead = pytest.mark.timeout(3600)(HeadMachine.TestCase)  # the profile says how long it takes
TestHead.settings = hypothesis_settings(stateful_step_count=50)


def test_after_the_faults_everything_ends() -> None:
    """Liveness (I11): a bad phase, then a good one; all jobs that can run have run."""
    for seed in range(30):
        chance = random.Random(seed)
        machine = HeadMachine()
        machine.begin([])
        for number in range(12):
            request = chance.choice(["nodes=1", "nodes=2", "nodes=1:gpus=1", "select=3:ncpus=1"])
            machine.submit(
                chance.choice([ALICE, BOB]),
                (request,),
                ("walltime=100",),
                asked_holds=(),
                launch=chance.choice(["command", "torchrun"]),
                key=f"key-{number}",
            )
        machine.plan_random = random.Random(seed)
        for _ in range(60):
            bad_moment(machine, chance)
        machine.plan_random = None
        heal(machine)

        assert not machine.head.state.jobs, f"seed {seed}: {machine.head.state.jobs}"
        assert len(machine.terminal) == 12
        machine.teardown()


def bad_moment(machine: HeadMachine, chance: random.Random) -> None:
    name = chance.choice(sorted(NODES))
    lose = chance.random() < 0.3
    actions: list[Callable[[], object]] = [
        lambda: machine.schedule(lose=lose),
        lambda: machine.schedule(lose=lose),
        lambda: machine.time_passes(chance.choice([1.0, 10.0, 60.0])),
        lambda: machine.register(name),
        lambda: machine.disconnect(name),
        lambda: machine.lose_power(name, back=chance.random() < 0.5),
        machine.restart_head,
        lambda: machine.rerun(ADMIN, chance.randrange(9), force=True, lose=lose),
    ]
    if machine.bag:
        index = chance.randrange(len(machine.bag))
        actions += [
            lambda: machine.deliver(machine.bag[index]),
            lambda: machine.bag.pop(index),
        ]
    chance.choice(actions)()
    if machine.living() and chance.random() < 0.3:
        body, key = chance.choice(machine.living())
        machine.end(body, key, OutcomeKind.EXITED, exit_code=chance.choice([0, 1]))
    machine.all_is_well()
    machine.one_attempt_lives()


def heal(machine: HeadMachine) -> None:
    """Let good times go by until all jobs have ended, or too many times have gone by."""
    for name in machine.bodies:  # what was lost on a connection is said anew on the next one
        machine.disconnect(name)
    for _ in range(100):
        mend(machine)
        machine.take(machine.head.cycle(machine.now_s))
        for body, key in machine.living():
            machine.end(body, key, OutcomeKind.EXITED)
        machine.exits_are_told_again()
        while machine.bag:
            machine.deliver(machine.bag.pop(0))
        machine.time_passes(40.0)
        machine.all_is_well()
        if not machine.head.state.jobs:
            return


def mend(machine: HeadMachine) -> None:
    """Reconnect nodes, and do what gsched asks operators for: look at what it holds and drained."""
    for name, body in machine.bodies.items():
        if not body.connected:
            machine.register(name)
        if machine.head.state.nodes[name].drained:
            machine.take(
                machine.command(c.ActOnNode(caller=ADMIN, node=name, action=a.ResumeNode()))
            )
    for number, job in list(machine.head.state.jobs.items()):
        if HoldKind.SYSTEM in job.holds:
            machine.take(
                machine.command(
                    c.ActOnJob(
                        caller=ADMIN, job=number, action=a.ReleaseJob(holds=(HoldKind.SYSTEM,))
                    )
                )
            )


def test_a_wait_is_told_for_what_a_policy_forgets() -> None:
    """A policy that plans the impossible: the job's reason says why it could not start."""
    class_asked = Request(chunks=(Chunk(),))

    def greedy(snapshot: Snapshot) -> Plan:
        group = snapshot.groups[0]
        share = Share(node="n1", cpus=5)
        return Plan(
            starts=(
                Start(
                    job=group.order[0][1], job_class=group.job_class, allocation=(share,), why="all"
                ),
            )
        )

    head = Head(state=State(), settings=settings(), policy=greedy)
    head.registered(
        "n1",
        n.Register(
            boot_id="b",
            incarnation="i",
            address="",
            gnode_version="",
            inventory=NODES["n1"],
            attempts=(),
            load=Load(),
        ),
        BEGIN_S,
    )
    head.command(c.Submit(caller=ALICE, submitted=submission(), digests=("", "")), BEGIN_S)
    head.cycle(BEGIN_S)

    (wait,) = head.waits.values()
    assert isinstance(wait, Wait)
    assert wait.job_class.request == class_asked
    assert wait.reason == "job 1: 5 CPUs for 1 requested"
    assert head.oddities == {"plan_refused": 1}

"""A deleted user's jobs, and another user who has got the same uid since."""

import pytest

from gsched.errors import NotPermittedError
from gsched.model.states import HoldKind, JobState
from gsched.protocol import actions as a
from gsched.protocol.actions import Alteration
from gschedd.core.requests import commands as c
from gschedd.core.state.settings import Caller
from tests.support.evidence import UNKNOWN_USER
from tests.support.world import ADMIN, ALICE, World, node

MALLORY = Caller(user="mallory", uid=ALICE.uid, gid=ALICE.gid)
NAMELESS = Caller(user=str(ALICE.uid), uid=ALICE.uid, gid=ALICE.gid)


@pytest.mark.parametrize(
    ("caller", "words"),
    [
        (MALLORY, "belongs to alice, who had uid 1001 before you (mallory)"),
        (NAMELESS, "belongs to alice, and the head's machine knows no user with your uid 1001"),
    ],
    ids=["another user", "nobody's uid"],
)
def test_t25_a_uid_alone_gives_nobody_the_jobs_of_its_last_user(caller: Caller, words: str) -> None:
    """Each command that its owner may give, on a running and on a held job."""
    world = World(node("n1"))
    running = world.submit()
    held = world.submit(holds=("user",))
    world.run_for(5)

    for job in (running, held):
        for command in (
            c.ActOnJob(caller=caller, job=job, action=a.DeleteJob()),
            c.ActOnJob(caller=caller, job=job, action=a.HoldJob(holds=(HoldKind.USER,))),
            c.ActOnJob(caller=caller, job=job, action=a.ReleaseJob(holds=(HoldKind.USER,))),
            c.ActOnJob(caller=caller, job=job, action=a.SignalJob(signal=15)),
            c.ActOnJob(caller=caller, job=job, action=a.RerunJob()),
            c.ActOnJob(caller=caller, job=job, action=a.MigrateJob()),
            c.ActOnJob(
                caller=caller, job=job, action=a.AlterJob(alteration=Alteration(name="mine"))
            ),
        ):
            error = world.head.command(command, world.now_s).error

            assert isinstance(error, NotPermittedError), command
            assert words in error.message

    assert world.job(running).state is JobState.RUNNING
    assert world.job(held).state is JobState.HELD
    assert world.release(held, by=ALICE).error is None


def test_d19_jobs_of_a_user_who_is_gone_are_held_with_a_reason() -> None:
    """No node knows the user any more: nothing is run under the number, and no node is blamed."""
    world = World(node("n1"), node("n2"))
    for machine in world.machines.values():
        machine.launch_fault, machine.fault = "node n1 knows no user alice", UNKNOWN_USER
    job = world.submit()

    world.run_for(86400)

    assert world.job(job).state is JobState.HELD
    assert "knows no user alice" in world.job(job).hold_reason
    assert not any(world.seen_node(name).drained for name in world.machines)

    for machine in world.machines.values():
        machine.launch_fault, machine.fault = "", None
    assert world.release(job, by=ADMIN, kind=HoldKind(world.job(job).holds[0])).error is None
    world.run_for(60)
    assert world.job(job).state is not JobState.HELD

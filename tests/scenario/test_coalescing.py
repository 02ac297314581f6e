"""Checkpoints without end: few facts, and the newest is known when it matters."""

from gsched.protocol import node as n
from gschedd.core.state import facts as f
from gschedd.core.training.checkpoints import AT_ONCE, PAUSE_S
from tests.support.world import BEGIN_S, World, node

RUNS_S = 1000.0


def saves(world: World, job: int, step: int) -> None:
    """Let a training say that it has saved its state, of its own accord."""
    said = n.Checkpointed(job=job, attempt=1, step=step, work_done=float(step), path=f"/{step}")
    world.tell(world.machines["n1"], said)
    world.run_until(world.now_s - BEGIN_S)


def written(world: World) -> list[int]:
    return [fact.step for fact in world.facts if isinstance(fact, f.CheckpointTaken)]


def running(world: World) -> int:
    job = world.submit("nodes=1", runs_s=RUNS_S, movable=True)
    world.run_until(1)
    return job


def test_a_thousand_checkpoints_in_a_moment_are_few_facts_and_the_last_is_one() -> None:
    world = World(node("n1"))
    job = running(world)
    for step in range(1, 1001):
        saves(world, job, step)
    at_once = list(range(1, AT_ONCE + 1))
    assert written(world) == at_once

    world.run_until(2 + PAUSE_S)

    assert written(world) == [*at_once, 1000]
    assert world.head.state.jobs[job].saved is not None
    assert world.head.state.jobs[job].work_done == 1000.0


def test_the_newest_checkpoint_is_written_before_its_job_ends() -> None:
    """What a job is charged for, and where it goes on, follows from it."""
    world = World(node("n1"))
    job = running(world)
    for step in range(1, AT_ONCE + 10):
        saves(world, job, step)
    assert len(written(world)) == AT_ONCE

    world.delete(job)
    world.run_until(20)

    saved = world.done[job].saved
    assert saved is not None
    assert saved.step == written(world)[-1] == AT_ONCE + 9
    assert not world.head.state.volatile.unwritten


def test_an_older_checkpoint_does_not_take_the_place_of_a_newer_one() -> None:
    """Reports come late and twice."""
    world = World(node("n1"))
    job = running(world)
    for step in (*range(1, AT_ONCE + 1), 90, 50):
        saves(world, job, step)

    world.run_until(2 + PAUSE_S)

    assert written(world)[AT_ONCE:] == [90]


def test_checkpoints_that_are_far_apart_are_written_at_once() -> None:
    world = World(node("n1"))
    job = running(world)
    for step in range(1, 2 * AT_ONCE):
        saves(world, job, step)
        assert written(world)[-1] == step
        world.run_until(1 + step * (PAUSE_S + 1))

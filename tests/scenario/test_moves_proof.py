"""Nothing starts at the new place before nothing lives at the old one, whatever dies meanwhile."""

import pytest

from gsched.model.resources import Allocation, Share
from gsched.model.states import OutcomeKind
from gsched.protocol import node as n
from gschedd.core.state import facts as f
from tests.support.moves import Story, gpus
from tests.support.world import Program, node


def saved_and_not_stopped(story: Story) -> int:
    """Return a training that has saved its state for a move, and has not heard that it is over."""
    job = story.training()
    story.run_for(5.0)
    story.lost[n.StopAttempt] = 1
    story.move((job, gpus("b", 0, 1)))
    story.run_for(1.0)
    assert story.told(f.CheckpointTaken, job)
    assert story.told(f.StopRequested, job)
    return job


def test_i7_a_source_that_dies_after_the_checkpoint_has_to_be_proven_dead() -> None:
    """That it is silent proves nothing; another boot does, and the checkpoint is what goes on."""
    story = Story()
    job = saved_and_not_stopped(story)
    story.lose_power("a")
    story.run_for(3600.0)
    assert (story.state(job), story.job(job).attempts) == ("migrating", 1)

    story.connect("a")
    story.run_for(1.0)

    attempt = story.job(job).attempt
    assert attempt is not None
    assert (attempt.number, tuple(attempt.parts)) == (2, ("b",))
    saved = story.told(f.CheckpointTaken, job)[0]
    assert attempt.work_begun == saved.work_done > 0  # type: ignore[attr-defined] # of that kind
    story.check_history()


def test_i8_a_target_that_dies_before_the_first_step_costs_an_attempt() -> None:
    """The job is placed again, and goes on from the same checkpoint."""
    story = Story()
    job = story.training()
    story.run_for(5.0)
    story.move((job, gpus("b", 0, 1)))
    story.run_for(2.0)
    second = story.job(job).attempt
    assert second is not None
    assert (second.number, second.resumed) == (2, False)

    story.reboot("b")
    story.run_for(10.0)

    third = story.job(job).attempt
    assert third is not None
    assert third.number == 3
    assert third.work_begun == second.work_begun > 0
    assert story.state(job) == "running"
    story.check_history()


def test_i9_nothing_starts_while_the_source_cannot_say_that_it_has_stopped() -> None:
    """The network to it is cut after the checkpoint: it lives on, and its end is waited for."""
    story = Story()
    job = story.training()
    story.run_for(5.0)
    story.lost[n.StopAttempt] = 1
    story.move((job, gpus("b", 0, 1)))
    story.run_for(1.0)
    story.disconnect("a")
    story.run_for(600.0)
    assert (job, 1) in story.machines["a"].running
    assert not story.machines["b"].launches

    story.connect("a")
    story.run_for(10.0)

    assert story.machines["b"].launches == [(job, 2)]
    assert story.place(job) == gpus("b", 0, 1)
    story.check_history()


def across(*names: str) -> Allocation:
    """Return three GPUs on each node."""
    return tuple(Share(node=name, cpus=3, slots=3, gpu_indices=(0, 1, 2)) for name in names)


def test_i13_all_nodes_of_a_job_have_to_stop_before_it_starts_elsewhere() -> None:
    """One of two has, the other one has not heard of it."""
    story = Story()
    for name in ("c", "d"):
        story.machines[name] = node(name, cpus=8, gpus=4)
        story.connect(name)
    job = story.submit(
        "select=6:ncpus=1:ngpus=1,place=free",
        launch="torchrun",
        movable=True,
        deadline_after_s=1e6,
        program=Program(runs_s=1e5),
    )
    story.run_for(5.0)
    here = [share.node for share in story.place(job)]
    assert len(here) == 2
    there = [name for name in ("a", "b", "c", "d") if name not in here]
    story.move((job, across(*there)))
    story.run_for(0.4)
    story.lost[n.StopAttempt] = 1
    story.run_for(600.0)
    lives = [name for name in here if (job, 1) in story.machines[name].running]
    assert len(lives) == 1
    assert (story.state(job), story.job(job).attempts) == ("migrating", 1)
    assert not any(story.machines[name].launches for name in there)

    story.disconnect(lives[0])
    story.connect(lives[0])
    story.run_for(10.0)

    assert story.place(job) == across(*there)
    assert story.state(job) == "running"
    story.check_history()


@pytest.mark.parametrize("after_s", [0.0, 0.3, 0.5, 0.6, 2.0])
@pytest.mark.parametrize("stubborn", [False, True])
def test_i11_gdel_wins_in_every_state_of_a_move(after_s: float, *, stubborn: bool) -> None:
    """Asked for, saved, being stopped, placed: it ends there, and nothing of it comes back."""
    story = Story()
    job = story.training(program=Program(runs_s=1000.0, ignores_term=stubborn))
    story.run_for(5.0)
    story.move((job, gpus("b", 0, 1)))
    story.run_for(after_s)

    story.delete(job, grace_s=1.0)
    attempts = story.job(job).attempts
    story.run_for(60.0)

    assert story.outcome(job).kind is OutcomeKind.CANCELLED
    assert story.job(job).attempts == attempts
    assert not any(machine.running for machine in story.machines.values())
    assert not story.head.state.targets
    story.check_history()

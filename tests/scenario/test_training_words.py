"""What training jobs say of themselves: in their own units, in any order, and not always true."""

import pytest

from gsched.protocol import node as n
from gschedd.core.state import facts as f
from gschedd.core.state.walltime import walltime_left_s
from gschedd.core.training.profile import TrainingProfiles
from tests.support.moves import Story, gpus
from tests.support.orders import orders
from tests.support.world import Program


def say(story: Story, job: int, message: n.AttemptMessage) -> None:
    """Let the node of rank 0 tell what the present attempt says."""
    story.tell(story.machines[story.machine_of(job)[0]], message)
    story.run_for(0.0)


def checkpoint(job: int, attempt: int, step: int, **changes: object) -> n.Checkpointed:
    """Return that a training has saved its state by itself."""
    return n.Checkpointed(job=job, attempt=attempt, step=step, path=f"/c/{step}", **changes)  # type: ignore[arg-type] # as named


def progress(story: Story, job: int, **changes: object) -> n.TrainingProgress:
    """Return that a training is at its tenth step."""
    said = {"work_done": 0.0, "at_s": story.now_s, **changes}
    return n.TrainingProgress(job=job, attempt=story.job(job).attempts, step=10, **said)  # type: ignore[arg-type] # as named


def limited(story: Story, walltime_s: int) -> int:
    """Submit a training of which nothing is known but its walltime, and which answers nothing."""
    return story.submit(
        f"select=2:ncpus=1:ngpus=1,place=pack,walltime={walltime_s}",
        program=Program(runs_s=5000.0, saves_s=None),
        movable=True,
        deadline_after_s=1e6,
    )


def work_left(story: Story, job: int) -> float:
    """Return what a policy is told is left of a training."""
    return TrainingProfiles(story.head.state, story.settings, story.now_s)[job].work


@pytest.mark.parametrize("from_checkpoint", [False, True])
def test_work_counts_as_its_part_of_the_whole(from_checkpoint: bool) -> None:  # noqa: FBT001 - a case
    """A training counts samples, and its user has said how many seconds it takes."""
    story = Story()
    job = limited(story, 1000)
    story.run_for(5.0)
    part = {"work_done": 2_500.0, "work_total": 10_000.0}

    if from_checkpoint:
        say(story, job, checkpoint(job, 1, 9, **part))
        story.rerun(job)
        story.run_for(5.0)
        assert story.job(job).attempts == 2
    else:
        say(story, job, progress(story, job, **part))

    assert work_left(story, job) == pytest.approx(750.0, abs=10.0)


def test_a_clock_that_stands_at_zero_says_nothing_of_work() -> None:
    """What was done since is reckoned from the start of the attempt at the earliest."""
    story = Story()
    job = limited(story, 1000)
    story.run_for(5.0)

    say(story, job, progress(story, job, at_s=0.0))

    assert work_left(story, job) == pytest.approx(1000.0, abs=10.0)


def test_checkpoints_count_after_a_move_as_before() -> None:
    """Those that it makes by itself, for which nobody asked."""
    story = Story()
    job = story.training()
    story.run_for(5.0)
    story.move((job, gpus("b", 0, 1)))
    story.run_for(5.0)

    say(story, job, checkpoint(job, 2, 50, work_done=50.0))
    say(story, job, checkpoint(job, 2, 60, work_done=60.0))

    saved = story.job(job).saved
    assert saved is not None
    assert (saved.step, story.job(job).work_done) == (60, 60.0)


def test_a_checkpoint_that_is_told_again_is_no_new_one() -> None:
    """A node tells the last one at every welcome: it was not saved then."""
    story = Story()
    job = story.training()
    story.run_for(5.0)
    say(story, job, checkpoint(job, 1, 9))
    story.run_for(50.0)

    say(story, job, checkpoint(job, 1, 9))

    assert len(story.told(f.CheckpointTaken, job)) == 1


def test_one_that_has_begun_anew_can_be_moved() -> None:
    """Its steps are fewer than those of its checkpoint of old, which it could not read."""
    story = Story()
    job = story.training()
    story.run_for(5.0)
    say(story, job, checkpoint(job, 1, 1000))

    story.move((job, gpus("b", 0, 1)))  # it says that it is at its first step
    story.run_for(5.0)

    assert story.place(job) == gpus("b", 0, 1)


def test_one_that_waits_for_a_move_that_is_off_goes_on_whatever_it_says() -> None:
    """Also with a step that is behind one that was said before."""
    story = Story()
    job = story.training(program=Program(runs_s=1000.0, saves_s=None))
    story.run_for(5.0)
    say(story, job, checkpoint(job, 1, 1000))
    story.move((job, gpus("b", 0, 1)))
    story.run_for(story.settings.config.moves.checkpoint_timeout_s + 1.0)

    late = checkpoint(job, 1, 9, request=1, waits=True)
    step = story.head.reported("a", late, story.now_s)

    assert [type(effect) for effect in orders(step)] == [n.GoOn]


def test_nobody_gets_more_walltime_by_what_it_says() -> None:
    """Saving and reading a checkpoint do not count, but take no longer than they can have."""
    story = Story()
    job = limited(story, 100)
    story.run_for(40.0)
    story.move((job, gpus("b", 0, 1)))
    story.run_for(2.0)
    say(story, job, checkpoint(job, 1, 9, request=1, wall_s=1e9, waits=True))
    story.run_for(5.0)
    assert story.place(job) == gpus("b", 0, 1)
    say(story, job, progress(story, job, restored_step=9, restore_s=1e9))

    left_s = walltime_left_s(story.job(job))

    assert left_s is not None
    assert left_s == pytest.approx(60.0, abs=10.0)

"""The walltime of a training that moves: one for all its attempts (fault I12)."""

import pytest

from gsched.model.resources import Share
from gsched.model.states import OutcomeKind
from gsched.protocol import node as n
from gschedd.core.state.walltime import walltime_left_s
from tests.support.moves import Story, gpus
from tests.support.orders import orders
from tests.support.world import Program


def limited(story: Story, count: int = 2, **program: object) -> int:
    """Submit a training with a walltime of 100 s that would run much longer."""
    what = Program(**{"runs_s": 1000.0, "saves_s": 5.0, **program})  # type: ignore[arg-type] # passed on
    resources = f"select={count}:ncpus=1:ngpus=1,place=pack,walltime=100"
    return story.submit(resources, program=what, movable=True, deadline_after_s=1e6)


def left_s(story: Story, job: int) -> float:
    """Return what is left of a job's walltime, seconds."""
    left = walltime_left_s(story.job(job))
    assert left is not None
    return left


def test_i12_the_new_attempt_gets_what_is_left() -> None:
    """Not all of it again: the whole training ends by it, also after two moves."""
    story = Story()
    job = limited(story)
    story.run_for(60.0)
    story.move((job, gpus("b", 0, 1)))
    story.run_for(10.0)
    assert left_s(story, job) == pytest.approx(40.0, abs=5.5)

    story.run_for(20.0)
    story.move((job, gpus("a", 0, 1)))
    story.run_for(10.0)
    assert story.place(job) == gpus("a", 0, 1)
    story.run_for(25.0)

    assert story.outcome(job).kind is OutcomeKind.WALLTIME
    assert 95.0 <= story.job(job).wall_s <= 115.0


def test_i12_the_time_in_which_it_saves_its_state_does_not_count() -> None:
    """Nor that in which it waits for its new place, or reads its checkpoint there."""
    story = Story()
    job = limited(story, saves_s=50.0)
    story.run_for(30.0)
    story.move((job, gpus("b", 0, 1)))
    story.run_for(49.0)
    saved = n.Checkpointed(
        job=job, attempt=1, request=1, step=1, work_done=1.0, wall_s=45.0, waits=True
    )
    story.tell(story.machines["a"], saved)
    story.run_for(5.0)

    assert story.place(job) == gpus("b", 0, 1)
    before_s = left_s(story, job)
    assert before_s == pytest.approx(100.0 - 30.0 - 4.0, abs=6.0)
    said = n.TrainingProgress(
        job=job, attempt=2, step=2, work_done=2.0, at_s=story.now_s, restored_step=1, restore_s=3.0
    )
    step = story.head.reported("b", said, story.now_s)
    assert left_s(story, job) == pytest.approx(before_s + 3.0)
    assert [order.walltime_s for order in orders(step)] == [left_s(story, job)]  # type: ignore[union-attr] # a Retime


def test_i12_the_walltime_may_end_while_it_saves_its_state() -> None:
    """Then that is its end: the move is off and its new place free."""
    story = Story()
    job = limited(story, saves_s=50.0)
    story.run_for(80.0)
    story.move((job, gpus("b", 0, 1)))
    story.run_for(40.0)

    assert story.outcome(job).kind is OutcomeKind.WALLTIME
    assert len(story.head.state.spaces["b"].gpus) == 4


def test_a_longer_walltime_counts_from_the_first_attempt() -> None:
    """Altered while it runs at its second place."""
    story = Story()
    job = limited(story)
    story.run_for(60.0)
    story.move((job, gpus("b", 0, 1)))
    story.run_for(10.0)
    before_s = left_s(story, job)

    story.alter(job, resources=("walltime=150",))

    assert left_s(story, job) == pytest.approx(before_s + 50.0)
    story.run_for(60.0)
    assert story.state(job) == "running"
    story.run_for(50.0)
    assert story.outcome(job).kind is OutcomeKind.WALLTIME


def test_a_rerun_begins_its_walltime_anew() -> None:
    """As every job's does."""
    story = Story()
    job = limited(story)
    story.run_for(60.0)
    story.rerun(job)
    story.run_for(5.0)

    assert left_s(story, job) == 100.0


def test_what_a_dead_node_took_does_not_count() -> None:
    """Only what its last checkpoint has kept."""
    story = Story()
    job = limited(story)
    story.run_for(40.0)
    saved = n.Checkpointed(job=job, attempt=1, step=9, work_done=1.0)
    story.tell(story.machines["a"], saved)
    story.run_for(30.0)
    story.reboot("a")
    story.run_for(10.0)

    assert story.state(job) == "running"
    assert left_s(story, job) == pytest.approx(60.0)


def test_i12_nor_does_the_time_from_its_signal_to_its_end() -> None:
    """Of a job that knows only a signal nothing else is known."""
    story = Story()
    what = Program(runs_s=1000.0, saves_s=50.0)
    job = story.submit(
        "select=1:ncpus=1:ngpus=2,walltime=100",
        program=what,
        checkpoint_signal=10,
        grace_s=60.0,
        deadline_after_s=1e6,
    )
    story.run_for(30.0)
    share = Share(node="b", cpus=1, gpu_indices=(0, 1))
    story.move((job, (share,)))
    story.run_for(55.0)

    assert story.machine_of(job) == ("b",)
    assert left_s(story, job) == pytest.approx(70.0, abs=1.0)

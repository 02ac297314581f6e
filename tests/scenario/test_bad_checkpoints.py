"""Training jobs that cannot resume from their checkpoints: retried, then held, never lost (I10)."""

import pytest

from gsched.model.states import HoldKind, OutcomeKind
from gsched.protocol import node as n
from gschedd.core.attempts.requeue import MAX_LOAD_DELAY_S, MAX_LOADS
from gschedd.core.state import facts as f
from tests.support.moves import Story, gpus
from tests.support.world import Program

DIRECTORY = "/home/alice/gsched-checkpoints/1"


def moved_to(story: Story, program: Program, **changes: object) -> int:
    """Move a training whose next attempts do as a program says; return it while it is moved."""
    job = story.training(2, 0, **changes)
    story.run_for(5.0)
    story.move((job, gpus("b", 0, 1)))
    story.programs[job] = program
    return job


def requeues(story: Story, job: int) -> list[f.JobRequeued]:
    """Return how often a job went to its queue, with reasons and delays."""
    return [fact for fact in story.told(f.JobRequeued, job) if isinstance(fact, f.JobRequeued)]


@pytest.mark.parametrize("changes", [{}, {"requeue_on": "node-failure", "requeue_limit": 2}])
def test_i10_one_whose_starts_crash_is_tried_some_times_and_then_held(
    changes: dict[str, object],
) -> None:
    """Whatever it says of node failures; by a hold that its user can take off himself."""
    story = Story()
    job = moved_to(story, Program(runs_s=2.0, exit_code=1), **changes)

    story.run_for(1000.0)

    assert story.state(job) == "held"
    assert story.job(job).attempts == 1 + MAX_LOADS
    told = requeues(story, job)
    delays_s = [fact.not_before_s - fact.at_s for fact in told[:-1]]
    assert delays_s == [2.0, 4.0, 8.0, *[MAX_LOAD_DELAY_S] * (MAX_LOADS - 4)]
    assert told[-1].holds == (HoldKind.USER,)
    assert story.why(job) == (
        f"held by user: CKPT_BAD: it cannot go on from its checkpoints ({MAX_LOADS} starts in "
        "a row did not come to a step, last: failed with exit code 1 on a): see its output; mend "
        f"what is wrong in {DIRECTORY}, or move it away to begin anew; release it with grls -h u 1"
    )


def test_i10_one_that_says_so_is_held_at_once_and_goes_on_when_it_is_mended() -> None:
    """Exit code 78 says that another try would meet the same."""
    story = Story()
    job = moved_to(story, Program(runs_s=2.0, exit_code=78))
    story.run_for(10.0)
    assert story.state(job) == "held"
    assert story.job(job).attempts == 2
    assert "CKPT_BAD" in story.why(job)

    story.programs[job] = Program(runs_s=20.0)
    story.release(job)
    story.run_for(1.0)
    attempt = story.job(job).attempt
    assert attempt is not None
    assert attempt.work_begun > 0
    story.run_for(30.0)

    assert story.outcome(job).succeeded


def test_i10_one_that_cannot_be_started_where_it_was_moved_to_is_not_lost() -> None:
    """Its directory is not there, say: at a place that it has not chosen."""
    story = Story()
    job = moved_to(story, Program(user_error=True))
    story.run_for(2.0)
    (told,) = requeues(story, job)
    assert told.reason == (
        "it failed before its first step from the checkpoint: could not be started on b: "
        "no such directory"
    )
    story.programs[job] = Program(runs_s=20.0)
    story.run_for(60.0)

    assert story.outcome(job).succeeded


def first_step(story: Story, job: int) -> None:
    """Let the present attempt say that it has done its first step."""
    said = n.TrainingProgress(
        job=job,
        attempt=story.job(job).attempts,
        step=2,
        work_done=9.0,
        at_s=story.now_s,
        restored_step=1,
        restore_s=0.2,
    )
    story.tell(story.machines[story.machine_of(job)[0]], said)
    story.run_for(0.0)


def test_i10_what_fails_after_its_first_step_or_without_a_checkpoint_has_failed() -> None:
    """That is its own doing: nobody starts it again, also after a restart of the head."""
    story = Story()
    fresh = story.training(program=Program(runs_s=2.0, exit_code=78))
    story.run_for(5.0)
    job = moved_to(story, Program(runs_s=30.0, exit_code=78))
    story.run_for(5.0)
    first_step(story, job)
    story.restart_head()
    story.run_for(60.0)

    for each in (fresh, job):
        ended = story.outcome(each)
        assert (ended.kind, ended.exit_code) == (OutcomeKind.EXITED, 78)


def test_one_that_tells_no_steps_is_not_taken_for_one_that_never_did_any() -> None:
    """As of those that are only simulated: how it ends is its own doing."""
    story = Story()
    job = story.training()
    story.run_for(5.0)
    story.lost[n.Checkpointed] = 1
    story.move((job, gpus("b", 0, 1)))
    story.run_for(1.0)
    said = n.Checkpointed(job=job, attempt=1, request=1, work_done=5.0, waits=True)
    story.programs[job] = Program(runs_s=30.0, exit_code=7)
    story.tell(story.machines["a"], said)
    story.run_for(60.0)

    assert (story.outcome(job).exit_code, story.job(job).attempts) == (7, 2)


def test_i10_a_delete_wins_over_another_try() -> None:
    """While it waits for the next one, and while it is held."""
    for program in (Program(runs_s=2.0, exit_code=1), Program(runs_s=2.0, exit_code=78)):
        story = Story()
        job = moved_to(story, program)
        story.run_for(4.0)
        assert story.state(job) in {"waiting", "held"}
        story.delete(job)

        assert story.outcome(job).kind is OutcomeKind.CANCELLED


def test_a_restart_that_goes_on_from_a_checkpoint_says_so_once() -> None:
    """After a node's death, too; what reading the checkpoint took is no part of its walltime."""
    story = Story()
    job = story.training()
    story.run_for(5.0)
    saved = n.Checkpointed(job=job, attempt=1, step=9, work_done=90.0, path="/c/9")
    story.tell(story.machines["a"], saved)
    story.run_for(1.0)
    story.reboot("a")
    story.run_for(10.0)
    first_step(story, job)
    first_step(story, job)

    (resumed,) = story.told(f.TrainingResumed, job)
    assert (resumed.attempt, resumed.step, resumed.restore_s) == (2, 1, 0.2)  # type: ignore[attr-defined] # of that kind

"""``--requeue-on node-failure``: training jobs that start anew after a node or a rank has died."""

from gsched.model.states import OutcomeKind
from gsched.protocol import node as n
from gschedd.core.state import facts as f
from tests.support.moves import Story
from tests.support.world import Program


def stubborn(story: Story, limit: int = 3, program: Program | None = None) -> int:
    """Submit a training that asks to be started anew, and would not be by itself."""
    changes: dict[str, object] = {} if program is None else {"program": program}
    changes |= {"rerunnable": False, "requeue_on": "node-failure", "requeue_limit": limit}
    return story.training(2, 0, **changes)


def kill_rank(story: Story, job: int, signal: int = 9) -> None:
    """Let the job's processes be killed by somebody else."""
    attempt = story.job(job).attempt
    assert attempt is not None
    for name in attempt.parts:
        story.kill(name, job, attempt.number, signal)


def test_it_goes_on_elsewhere_from_its_newest_checkpoint() -> None:
    """What was done until then is kept, and what was done since is not."""
    story = Story()
    job = stubborn(story)
    story.run_for(5.0)
    saved = n.Checkpointed(job=job, attempt=1, step=9, work_done=90.0, path="/c/9")
    story.tell(story.machines["a"], saved)
    story.run_for(5.0)

    story.lose_power("a")
    assert story.state(job) == "running"  # nobody knows yet that nothing of it lives
    story.reboot("a")
    story.disconnect("a")
    story.run_for(10.0)

    attempt = story.job(job).attempt
    assert attempt is not None
    assert tuple(attempt.parts) == ("b",)
    assert attempt.work_begun == 90.0
    saved_now = story.job(job).saved
    assert saved_now is not None
    assert saved_now.path == "/c/9"


def test_a_killed_rank_is_a_failure_and_an_exit_code_is_the_jobs_own() -> None:
    """Only jobs that ask for it are started anew after a signal."""
    story = Story()
    job, plain = stubborn(story), story.training(1)
    fails = stubborn(story, program=Program(runs_s=20.0, exit_code=1))
    story.run_for(10.0)
    kill_rank(story, job)
    kill_rank(story, plain)
    story.run_for(30.0)

    assert story.state(job) == "running"
    assert story.job(job).attempts == 2
    assert story.outcome(plain).kind is OutcomeKind.SIGNALLED
    assert story.outcome(fails).exit_code == 1


def test_it_is_not_started_anew_for_ever() -> None:
    """After so many tries in a row its outcome is its own; each waits longer than the last."""
    story = Story()
    job = stubborn(story, limit=3)
    for _ in range(4):
        story.run_for(60.0)
        kill_rank(story, job)
        story.run_for(0.1)

    ended = story.outcome(job)
    assert (ended.kind, ended.signal) == (OutcomeKind.SIGNALLED, 9)
    assert "failed after 3 restarts" in ended.message
    delays_s = [
        fact.not_before_s - fact.at_s  # type: ignore[attr-defined] # of that kind
        for fact in story.told(f.JobRequeued, job)
    ]
    assert delays_s == [2.0, 4.0, 8.0]


def test_who_has_saved_its_state_in_between_is_counted_anew() -> None:
    """It makes its way, however often its nodes die."""
    story = Story()
    job = stubborn(story, limit=1)
    for number in range(1, 6):
        story.run_for(60.0)
        saved = n.Checkpointed(job=job, attempt=number, step=number, work_done=float(number))
        story.tell(story.machines[story.machine_of(job)[0]], saved)
        story.run_for(0.0)
        kill_rank(story, job)
    story.run_for(60.0)

    assert story.state(job) == "running"
    assert story.job(job).attempts == 6
    assert story.job(job).faults == 1


def test_a_rank_that_complains_of_a_dead_peer_has_not_failed_by_itself() -> None:
    """It ends with a code of its own, before anybody knows that the other node is gone."""
    story = Story()
    what = Program(runs_s=1000.0, runs_on_s={"a": 10.0}, exit_codes={"a": 1})
    job = story.submit(
        "select=2:ncpus=1:ngpus=3,place=scatter",
        program=what,
        launch="torchrun",
        movable=True,
        requeue_on="node-failure",
    )
    story.run_for(8.0)
    story.lose_power("b")
    story.run_for(10.0)
    assert story.state(job) == "exiting"
    story.reboot("b")
    story.run_for(5.0)

    assert story.job(job).attempts == 2


def test_a_delete_wins_over_a_restart() -> None:
    """Also when the node dies while it is being cancelled."""
    story = Story()
    job = stubborn(story, program=Program(runs_s=1000.0, ignores_term=True))
    story.run_for(5.0)
    story.delete(job)
    story.reboot("a")
    story.run_for(5.0)

    assert story.outcome(job).kind is OutcomeKind.CANCELLED

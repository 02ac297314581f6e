"""Running training jobs go on elsewhere: what a policy proposes, and whatever comes in between."""

from gsched.model.states import OutcomeKind, StopReason
from gsched.protocol import actions as a
from gsched.protocol import node as n
from gschedd.core.requests import commands as c
from gschedd.core.state import facts as f
from gschedd.core.training.profile import TrainingProfiles
from tests.support.moves import Story, gpus
from tests.support.orders import orders
from tests.support.world import ADMIN, ALICE, Program


def test_a_job_goes_on_on_another_node() -> None:
    """It is stopped, its old place is free again, and its next attempt runs at the new one."""
    story = Story()
    job = story.training()
    story.run_for(5.0)
    assert story.place(job) == gpus("a", 0, 1)

    story.move((job, gpus("b", 2, 3)))

    assert story.state(job) == "migrating"
    assert not story.told(f.StopRequested, job)
    story.run_for(0.6)
    stopped = story.told(f.StopRequested, job)
    assert [fact.reason for fact in stopped] == [StopReason.MOVE]  # type: ignore[attr-defined] # of that kind
    story.run_for(5.0)
    assert story.state(job) == "running"
    assert story.place(job) == gpus("b", 2, 3)
    assert story.job(job).attempts == 2
    assert story.job(job).moves == 1
    assert len(story.head.state.spaces["a"].gpus) == 4


def test_two_jobs_change_places() -> None:
    """Each waits for the other one to leave; neither waits for ever."""
    story = Story()
    first, second = story.training(4), story.training(4)
    story.run_for(5.0)

    story.move((first, gpus("b", 0, 1, 2, 3)), (second, gpus("a", 0, 1, 2, 3)))
    story.run_for(10.0)

    assert story.place(first) == gpus("b", 0, 1, 2, 3)
    assert story.place(second) == gpus("a", 0, 1, 2, 3)


def test_a_job_grows_over_what_it_has() -> None:
    """Its own GPUs are among those that it goes to."""
    story = Story()
    job = story.training(1, most=4)
    story.run_for(5.0)

    story.move((job, gpus("a", 0, 1, 2, 3)))
    story.run_for(5.0)

    assert story.place(job) == gpus("a", 0, 1, 2, 3)
    assert story.head.state.spaces["a"].cpus == 4


def test_what_a_moving_job_goes_to_is_for_nobody_else() -> None:
    """A job that comes while it is on its way waits, or takes what is left beside it."""
    story = Story()
    job = story.training(2, program=Program(runs_s=1000.0, ignores_term=True))
    story.run_for(5.0)
    story.move((job, gpus("b", 0, 1)))

    whole = story.training(4)
    half = story.training(2)
    story.run_for(1.0)

    assert story.state(job) == "migrating"
    assert story.state(whole) == "queued"
    assert story.state(half) in {"running", "queued"}
    story.run_for(60.0)
    assert story.place(job) == gpus("b", 0, 1)
    assert story.place(whole) == gpus("a", 0, 1, 2, 3)


def test_moves_are_made_all_or_none() -> None:
    """One that would not fit keeps the others from leaving their places, and is counted."""
    story = Story()
    first, second, third = story.training(4), story.training(2), story.training(2)
    story.run_for(5.0)

    story.move((first, gpus("b", 0, 1, 2, 3)), (second, gpus("a", 0, 1)))

    assert {story.state(job) for job in (first, second, third)} == {"running"}
    assert story.head.oddities["moves_refused"] == 1


def test_what_cannot_be_moved_is_not() -> None:
    """Neither a job that does not say so, nor one that is being stopped."""
    story = Story()
    rigid = story.submit("select=1:ncpus=1:ngpus=1", runs_s=1000.0)
    going = story.training(1, program=Program(runs_s=1000.0, ignores_term=True))
    story.run_for(5.0)
    story.delete(going)

    for job in (rigid, going):
        before = story.head.oddities["moves_refused"]
        story.move((job, gpus("b", 0)))
        assert story.head.oddities["moves_refused"] == before + 1
    assert story.state(rigid) == "running"


def test_a_delete_wins() -> None:
    """While the old attempt ends, and while the new place is not free yet."""
    story = Story()
    job = story.training()
    story.run_for(5.0)
    story.move((job, gpus("b", 0, 1)))
    story.delete(job)
    story.run_for(5.0)
    assert story.outcome(job).kind is OutcomeKind.CANCELLED

    first = story.training(4)
    second = story.training(4, program=Program(runs_s=1000.0, ignores_term=True))
    story.run_for(5.0)
    story.move((first, gpus("b", 0, 1, 2, 3)), (second, gpus("a", 0, 1, 2, 3)))
    story.run_for(2.0)
    assert story.state(first) == "migrating"
    assert story.place(first) == ()

    story.delete(first)

    assert story.outcome(first).message == "cancelled by alice while it migrated"
    story.run_for(60.0)
    assert story.place(second) == gpus("a", 0, 1, 2, 3)
    assert len(story.head.state.spaces["b"].gpus) == 4


def test_a_job_that_ends_meanwhile_is_done() -> None:
    """The order to stop comes too late: it has done its work, and its new place is free."""
    story = Story()
    job = story.training(runs_s=20.0)
    story.run_for(5.0)
    story.machines["a"].connected = False  # the order does not reach it
    story.move((job, gpus("b", 0, 1)))
    story.run_for(30.0)
    story.connect("a")
    story.run_for(5.0)

    assert story.outcome(job).succeeded
    assert len(story.head.state.spaces["b"].gpus) == 4


def test_a_held_job_goes_to_its_queue_instead() -> None:
    """Its new place is given up when it has left the old one."""
    story = Story()
    job = story.training()
    story.run_for(5.0)
    story.move((job, gpus("b", 0, 1)))
    story.hold(job)
    story.run_for(5.0)

    assert story.state(job) == "held"
    assert len(story.head.state.spaces["b"].gpus) == 4
    story.release(job)
    story.run_for(1.0)
    assert story.state(job) == "running"


def test_a_new_place_that_is_gone_is_not_waited_for() -> None:
    """The node dies before the job is there, or is drained: it goes to its queue and on from it."""
    for story, lose in ((Story(), True), (Story(), False)):
        first = story.training(4)
        second = story.training(4, program=Program(runs_s=1000.0, ignores_term=True))
        story.run_for(5.0)
        story.move((first, gpus("b", 0, 1, 2, 3)), (second, gpus("a", 0, 1, 2, 3)))
        story.run_for(2.0)
        assert story.place(first) == ()

        if lose:
            story.disconnect("b")
        else:
            story.do(c.ActOnNode(caller=ADMIN, node="b", action=a.DrainNode(reason="smoke")))

        assert story.state(first) == "queued"
        story.run_for(1.0)
        assert story.state(second) == "migrating"


def test_a_head_that_is_started_anew_goes_on_with_the_moves() -> None:
    """Whether the old attempt still runs, or has ended already."""
    story = Story()
    first = story.training(4)
    second = story.training(4, program=Program(runs_s=1000.0, ignores_term=True))
    story.run_for(5.0)
    story.move((first, gpus("b", 0, 1, 2, 3)), (second, gpus("a", 0, 1, 2, 3)))
    story.restart_head()
    story.run_for(2.0)
    assert story.place(first) == ()
    story.restart_head()
    story.run_for(60.0)

    assert story.place(first) == gpus("b", 0, 1, 2, 3)
    assert story.place(second) == gpus("a", 0, 1, 2, 3)
    story.check_history()


def test_rerun_calls_a_move_off() -> None:
    """It is queued again, and starts wherever there is room."""
    story = Story()
    job = story.training()
    story.run_for(5.0)
    story.move((job, gpus("b", 0, 1)))

    story.do(c.ActOnJob(caller=ALICE, job=job, action=a.RerunJob()))
    story.run_for(5.0)

    assert story.state(job) == "running"
    assert story.place(job) == gpus("a", 0, 1)
    assert not story.head.state.targets


def test_a_job_that_cannot_save_its_state_stays_where_it_is() -> None:
    """Its new place is given up, and it is told to go on."""
    story = Story()
    job = story.training(program=Program(runs_s=1000.0, save_fault="no room on the disk"))
    story.run_for(5.0)
    story.move((job, gpus("b", 0, 1)))
    story.run_for(5.0)

    assert story.state(job) == "running"
    assert story.job(job).attempts == 1
    assert len(story.head.state.spaces["b"].gpus) == 4
    assert story.machines["a"].going_on == [1]
    abandoned = story.told(f.MigrationAbandoned, job)
    assert [fact.reason for fact in abandoned] == ["no room on the disk"]  # type: ignore[attr-defined] # of that kind


def test_i1_a_job_that_never_answers_stays_where_it_is() -> None:
    """After the time that a checkpoint may take; until then it has both places."""
    story = Story()
    job = story.training(program=Program(runs_s=1000.0, saves_s=None))
    story.run_for(5.0)
    story.move((job, gpus("b", 0, 1)))
    story.run_for(story.settings.config.moves.checkpoint_timeout_s - 1.0)
    assert story.state(job) == "migrating"

    story.run_for(2.0)

    assert story.state(job) == "running"
    assert story.place(job) == gpus("a", 0, 1)
    assert not story.head.state.targets


def test_one_that_stays_keeps_another_one_from_its_place() -> None:
    """What was to go there stays, too, or waits in its queue, and is not lost."""
    for saves_s in (0.2, 5.0):
        _one_stays(saves_s)


def _one_stays(saves_s: float) -> None:
    story = Story()
    refuses = Program(runs_s=1000.0, save_fault="not now", saves_s=saves_s)
    stays, goes = story.training(4, program=refuses), story.training(4)
    story.run_for(5.0)

    story.move((stays, gpus("b", 0, 1, 2, 3)), (goes, gpus("a", 0, 1, 2, 3)))
    story.run_for(10.0)

    assert story.place(stays) == gpus("a", 0, 1, 2, 3)
    assert story.place(goes) == gpus("b", 0, 1, 2, 3)
    assert {story.job(job).attempts for job in (stays, goes)} <= {1, 2}


def test_checkpoints_told_again_or_too_late_do_nothing() -> None:
    """Of the same move, and of one that is off."""
    story = Story()
    job = story.training()
    story.run_for(5.0)
    story.doubled[n.Checkpointed] = 1
    story.move((job, gpus("b", 0, 1)))
    story.run_for(5.0)
    assert len(story.told(f.CheckpointTaken, job)) == 1
    assert story.job(job).attempts == 2

    story.lost[n.Checkpointed] = 1
    story.move((job, gpus("a", 0, 1)))
    story.run_for(story.settings.config.moves.checkpoint_timeout_s + 1.0)
    assert story.state(job) == "running"
    late = n.Checkpointed(job=job, attempt=2, request=2, step=9, work_done=9.0, waits=True)
    step = story.head.reported("b", late, story.now_s)
    assert [type(effect) for effect in orders(step)] == [n.GoOn]
    assert story.state(job) == "running"


def test_the_first_step_at_the_new_place_ends_the_move() -> None:
    """And the history says what each phase took."""
    story = Story()
    job = story.training()
    story.run_for(5.0)
    story.move((job, gpus("b", 0, 1)))
    story.run_for(5.0)
    said = n.TrainingProgress(
        job=job, attempt=2, step=2, work_done=6.0, at_s=story.now_s, restored_step=1, restore_s=0.2
    )

    story.head.reported("b", said, story.now_s)
    story.head.reported("b", said, story.now_s)

    migration = story.job(job).migration
    assert migration is not None
    assert (
        0
        < migration.requested_s
        < migration.saved_s
        <= migration.left_s
        <= migration.placed_s
        < migration.resumed_s
    )
    assert migration.restore_s == 0.2


def test_one_that_starts_is_not_to_be_moved_yet() -> None:
    """It would have nothing to go on from; policies see that before they plan all moves at once."""
    story = Story()
    story.delayed_s[n.Started] = 2.0
    job = story.submit(
        "select=1:ncpus=1:ngpus=1,walltime=5000", movable=True, deadline_after_s=1e6, runs_s=1000.0
    )
    seen = TrainingProfiles(story.head.state, story.settings, story.now_s)
    assert (seen[job].movable, seen[job].movable_later) == (False, True)
    story.run_for(5.0)

    seen = TrainingProfiles(story.head.state, story.settings, story.now_s)
    assert (seen[job].movable, seen[job].movable_later) == (True, False)

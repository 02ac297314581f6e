"""Jobs that only know a signal: they save their state at it and end, and go on elsewhere."""

import pytest

from gsched.model.resources import Share
from gsched.model.states import OutcomeKind, StopReason
from gsched.protocol import actions as a
from gsched.protocol import node as n
from gschedd.core.requests import commands as c
from gschedd.core.state import facts as f
from gschedd.core.training.backoff import ASK_AGAIN_S, is_left_alone
from gschedd.core.views.details import move_row
from gschedd.core.views.reasons import describe
from tests.support.moves import Story, gpus
from tests.support.world import ALICE, Program

USR1 = 10


def place(node: str) -> Share:
    """Return one place of three GPUs."""
    return Share(node=node, cpus=1, gpu_indices=(1, 2, 3))


def deaf(story: Story, count: int = 2, **program: object) -> int:
    """Submit a job that is asked by USR1 and has two minutes to end."""
    what = Program(**{"runs_s": 1000.0, "saves_s": 20.0, **program})  # type: ignore[arg-type] # passed on
    return story.training(count, program=what, checkpoint_signal=USR1, grace_s=120.0)


def test_it_is_sent_its_signal_ends_and_goes_on_elsewhere() -> None:
    """Whatever its exit code: the signal's default, or what its handler says."""
    for code in (0, 3):
        story = Story()
        job = deaf(story, exit_code=code)
        story.run_for(5.0)

        story.move((job, gpus("b", 0, 1)))
        story.run_for(10.0)
        assert story.state(job) == "migrating"
        assert story.machines["a"].signals == [(job, USR1)]
        story.run_for(15.0)

        assert story.state(job) == "running"
        assert story.place(job) == gpus("b", 0, 1)
        assert not story.told(f.StopRequested, job)
        assert not story.told(f.CheckpointTaken, job)
        assert len(story.told(f.TrainingResumed, job)) == 1
        story.run_for(1000.0)
        ended = story.outcome(job)
        assert (ended.kind, ended.exit_code) == (OutcomeKind.EXITED, code)
        story.check_history()


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ({"killed_by": USR1}, "killed by signal 10 (USR1) on a"),
        ({"killed_by": 11}, "killed by signal 11 (SEGV) on a"),
        ({"exit_code": 138}, "failed with exit code 138 on a (signal 10 (USR1))"),
    ],
)
def test_one_that_is_killed_at_its_signal_restarts_and_has_not_moved(
    program: dict[str, int], words: str
) -> None:
    """By the signal that should only have asked, by another one, or below a shell that says so."""
    story = Story()
    job = deaf(story, 2, **program)
    story.run_for(5.0)
    story.move((job, gpus("b", 0, 1)))
    story.run_for(22.0)

    lost = f"{words} after its checkpoint signal: its work since its own last checkpoint is lost"
    (ended,) = story.told(f.AttemptEnded, job)
    assert isinstance(ended, f.AttemptEnded)
    assert ended.outcome.kind is OutcomeKind.RERUN
    assert describe(ended).endswith(lost)
    (resumed,) = story.told(f.TrainingResumed, job)
    assert isinstance(resumed, f.TrainingResumed)
    assert describe(resumed) == "attempt 2 restarted from the job's own last checkpoint, if any"
    now = story.job(job)
    assert (story.state(job), story.place(job)) == ("running", gpus("b", 0, 1))
    assert (now.moves, now.moves_lost, now.moves_requested) == (0, 1, 1)
    assert now.spent_s == 0.0  # it gets its walltime for all of its work
    row = move_row(now)
    assert row is not None
    assert (row.phase, row.lost) == ("done", lost)
    story.check_history()


def test_one_that_lost_its_work_is_left_alone_for_a_while() -> None:
    """A policy or a drain would have it killed again."""
    story = Story()
    job = deaf(story, killed_by=USR1)
    story.run_for(5.0)
    story.move((job, gpus("b", 0, 1)))
    story.run_for(25.0)
    assert story.job(job).moves_lost == 1

    assert is_left_alone(story.head.state, job, story.now_s)
    assert not is_left_alone(story.head.state, job, story.now_s + ASK_AGAIN_S)
    story.move((job, gpus("a", 0, 1)))  # it is asked all the same, by whom it belongs to
    story.programs[job].killed_by = None
    story.run_for(25.0)
    now = story.job(job)
    assert (now.moves, now.moves_lost) == (1, 1)
    assert not is_left_alone(story.head.state, job, story.now_s)


def test_a_new_checkpoint_counts_however_it_ended() -> None:
    """A job of gsched.elastic may know a signal, too, and end by it when it has saved."""
    story = Story()
    job = deaf(story, killed_by=USR1)
    story.run_for(5.0)
    story.move((job, gpus("b", 0, 1)))
    story.run_for(10.0)
    story.tell(
        story.machines["a"],
        n.Checkpointed(job=job, attempt=1, request=0, step=7, work_done=7.0, waits=False),
    )
    story.run_for(15.0)

    now = story.job(job)
    assert (story.place(job), now.moves, now.moves_lost) == (gpus("b", 0, 1), 1, 0)
    (ended,) = story.told(f.AttemptEnded, job)
    assert ended.outcome.kind is OutcomeKind.MOVED  # type: ignore[attr-defined] # of that kind


def test_one_that_ended_before_the_signal_came_is_done() -> None:
    """Its node is away when it is asked, and tells later that it had ended by itself."""
    for code in (0, 5):
        story = Story()
        job = deaf(story, runs_s=20.0, exit_code=code)
        story.run_for(5.0)
        story.machines["a"].connected = False  # the order does not reach it
        story.move((job, gpus("b", 0, 1)))
        story.run_for(30.0)
        story.connect("a")
        story.run_for(5.0)

        assert story.outcome(job).exit_code == code
        assert story.job(job).attempts == 1
        assert len(story.head.state.spaces["b"].gpus) == 4


def test_one_that_does_not_end_within_the_grace_stays_where_it_is() -> None:
    """And if it ends long after that, it has ended for itself."""
    story = Story()
    job = deaf(story, saves_s=None, runs_s=400.0)
    story.run_for(5.0)
    story.move((job, gpus("b", 0, 1)))
    story.run_for(119.0)
    assert story.state(job) == "migrating"

    story.run_for(2.0)

    assert story.state(job) == "running"
    assert not story.head.state.targets
    (abandoned,) = story.told(f.MigrationAbandoned, job)
    assert abandoned.reason == "it did not exit within 120 s of signal 10 (USR1)"  # type: ignore[attr-defined] # of that kind
    story.run_for(300.0)
    assert story.outcome(job).succeeded
    assert story.job(job).attempts == 1


def wide(story: Story, deaf_on: tuple[str, ...]) -> int:
    """Submit a job with ranks on both nodes; on some no process handles its signal."""
    return story.submit(
        "select=2:ncpus=1:ngpus=3,place=scatter",
        program=Program(runs_s=1000.0, saves_s=20.0, deaf_on=deaf_on),
        launch="torchrun",
        checkpoint_signal=USR1,
        grace_s=60.0,
        deadline_after_s=1e6,
    )


def test_one_that_does_not_handle_its_signal_stays_at_once_and_is_left_alone() -> None:
    """For longer each time: it will not handle it next time either."""
    story = Story()
    job = deaf(story, deaf_on=("a",), runs_s=1e6)
    story.run_for(5.0)
    state = story.head.state
    for pause_s in (ASK_AGAIN_S, 2 * ASK_AGAIN_S, 4 * ASK_AGAIN_S):
        story.move((job, gpus("b", 0, 1)))
        story.run_for(1.0)

        assert story.state(job) == "running"
        assert not state.targets
        assert not state.volatile.unhandled
        abandoned = story.told(f.MigrationAbandoned, job)[-1]
        assert abandoned.reason == "no process of the job handles signal 10"  # type: ignore[attr-defined] # of that kind
        assert is_left_alone(state, job, abandoned.at_s + pause_s - 1.0)
        assert not is_left_alone(state, job, abandoned.at_s + pause_s)
        story.run_for(pause_s)
    assert story.machines["a"].signals == []
    story.do(c.ActOnJob(caller=ALICE, job=job, action=a.DeleteJob()))
    story.run_for(30.0)
    assert not state.volatile.refusals


def test_one_part_that_handles_the_signal_is_enough_and_the_others_are_stopped() -> None:
    """When the one has left, at once; what they did is in the state that it has saved."""
    story = Story()
    job = wide(story, ("b",))
    story.run_for(5.0)
    story.move((job, (place("b"), place("a"))))
    story.run_for(10.0)
    assert story.state(job) == "migrating"
    assert (story.machines["a"].signals, story.machines["b"].signals) == ([(job, USR1)], [])

    story.run_for(15.0)

    (stop,) = story.told(f.StopRequested, job)
    assert stop.reason is StopReason.MOVE  # type: ignore[attr-defined] # of that kind
    assert story.machine_of(job) == ("b", "a")
    now = story.job(job)
    assert (now.attempts, now.moves, now.moves_lost) == (2, 1, 0)
    story.check_history()


def test_a_part_that_tells_too_late_that_it_handles_no_signal_is_stopped_then() -> None:
    """The other one has left by then, and its state is saved."""
    story = Story()
    job = wide(story, ("b",))
    story.run_for(5.0)
    story.delayed_s[n.CheckpointFailed] = 30.0
    story.move((job, (place("b"), place("a"))))
    story.run_for(29.0)
    assert story.state(job) == "migrating"

    story.run_for(5.0)

    assert not story.told(f.MigrationAbandoned, job)
    now = story.job(job)
    assert (now.attempts, now.moves, now.moves_lost) == (2, 1, 0)
    assert story.machine_of(job) == ("b", "a")


def test_parts_of_which_none_handles_the_signal_stay() -> None:
    """At once, also if one of them has to be asked again."""
    story = Story()
    job = wide(story, ("a", "b"))
    story.run_for(5.0)
    story.lost[n.CheckpointFailed] = 1
    story.move((job, (place("b"), place("a"))))
    story.run_for(4.0)
    assert story.state(job) == "migrating"
    story.disconnect("a")
    story.connect("a")

    story.run_for(1.0)

    assert story.state(job) == "running"
    assert len(story.told(f.MigrationAbandoned, job)) == 1
    assert story.job(job).attempts == 1


def test_one_that_left_although_its_move_was_given_up_goes_on_from_its_queue() -> None:
    """The signal came late, since its node was away; nobody may take its end for its success."""
    story = Story()
    job = deaf(story, saves_s=60.0)
    story.run_for(5.0)
    story.delayed_s[n.TakeCheckpoint] = 100.0
    story.move((job, gpus("b", 0, 1)))
    story.run_for(125.0)
    assert len(story.told(f.MigrationAbandoned, job)) == 1
    assert story.state(job) == "running"

    story.run_for(50.0)

    assert story.job(job).attempts == 2
    assert story.state(job) == "running"
    assert len(story.told(f.JobRequeued, job)) == 1


def test_parts_on_two_nodes_end_one_after_the_other() -> None:
    """The first to end, with whatever code, is no failed peer; the last frees the place."""
    story = Story()
    what = Program(runs_s=1000.0, saves_s=20.0, exit_codes={"a": 1}, runs_on_s={"b": 1000.0})
    job = story.submit(
        "select=2:ncpus=1:ngpus=3,place=scatter",
        program=what,
        launch="torchrun",
        checkpoint_signal=USR1,
        grace_s=120.0,
        deadline_after_s=1e6,
    )
    story.run_for(5.0)
    assert story.machine_of(job) == ("a", "b")

    story.move((job, (place("b"), place("a"))))
    story.run_for(10.0)
    assert story.machines["a"].signals == story.machines["b"].signals == [(job, USR1)]
    story.run_for(30.0)

    assert not story.told(f.StopRequested, job)
    assert story.machine_of(job) == ("b", "a")
    assert story.job(job).attempts == 2


def test_a_part_that_stays_is_stopped_when_others_have_left() -> None:
    """It cannot go on without them."""
    story = Story()
    what = Program(runs_s=1000.0, saves_s=20.0)
    job = story.submit(
        "select=2:ncpus=1:ngpus=3,place=scatter",
        program=what,
        launch="torchrun",
        checkpoint_signal=USR1,
        grace_s=60.0,
        deadline_after_s=1e6,
    )
    story.run_for(5.0)
    story.lost[n.TakeCheckpoint] = 1  # one of the two nodes does not hear of it
    story.move((job, (place("b"), place("a"))))
    story.run_for(59.0)
    assert story.state(job) == "migrating"
    assert not story.told(f.StopRequested, job)

    story.run_for(10.0)

    (stop,) = story.told(f.StopRequested, job)
    assert stop.reason is StopReason.MOVE  # type: ignore[attr-defined] # of that kind
    assert story.machine_of(job) == ("b", "a")
    row = move_row(story.job(job))
    assert row is not None
    assert row.lost.startswith("killed by signal 15 (TERM) on a as it did not exit within 60 s")


def test_the_signal_is_sent_again_after_a_disconnection_and_heard_once() -> None:
    """To a node that may not have heard it."""
    story = Story()
    job = deaf(story)
    story.run_for(5.0)
    story.move((job, gpus("b", 0, 1)))
    story.run_for(1.0)
    story.disconnect("a")
    story.connect("a")
    story.run_for(1.0)
    assert story.machines["a"].signals == [(job, USR1)]
    story.restart_head()
    story.run_for(30.0)

    assert story.machines["a"].signals == [(job, USR1)]
    assert story.place(job) == gpus("b", 0, 1)


def test_a_delete_wins_over_a_signal() -> None:
    """Before it ends by its signal, and while its new place is not free."""
    story = Story()
    job = deaf(story)
    story.run_for(5.0)
    story.move((job, gpus("b", 0, 1)))
    story.delete(job)
    story.run_for(30.0)

    assert story.outcome(job).kind is OutcomeKind.CANCELLED
    assert len(story.head.state.spaces["b"].gpus) == 4


def test_a_rerun_wins_over_a_signal() -> None:
    """It is queued again, not moved."""
    story = Story()
    job = deaf(story)
    story.run_for(5.0)
    story.move((job, gpus("b", 0, 1)))
    story.do(c.ActOnJob(caller=ALICE, job=job, action=a.RerunJob()))
    story.run_for(30.0)

    assert story.place(job) == gpus("a", 0, 1)
    assert story.job(job).attempts == 2


def test_a_node_that_dies_meanwhile_is_a_lost_node() -> None:
    """Nothing says that the state was saved; it begins anew where there is room."""
    story = Story()
    job = deaf(story)
    story.run_for(5.0)
    story.move((job, gpus("b", 0, 1)))
    story.run_for(1.0)
    story.reboot("a")
    story.run_for(30.0)

    assert story.state(job) == "running"
    (requeued,) = story.told(f.JobRequeued, job)
    assert requeued.faults == 1  # type: ignore[attr-defined] # of that kind

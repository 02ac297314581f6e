"""Moves that hang together: what befalls one of them befalls the others once, and only once."""

import pytest

from gsched.model.states import OutcomeKind
from gsched.protocol import actions as a
from gsched.protocol import node as n
from gschedd.core.requests import commands as c
from gschedd.core.state import facts as f
from tests.support.moves import Story, gpus
from tests.support.world import ALICE, Machine, Program, node

DEAF = Program(runs_s=1000.0, saves_s=None)


def say_first_step(story: Story, job: int, machine: Machine) -> None:
    """Let the present attempt of a training say that it goes on."""
    story.tell(
        machine,
        n.TrainingProgress(
            job=job,
            attempt=story.job(job).attempts,
            step=2,
            work_done=8.0,
            work_total=1000.0,
            at_s=story.now_s,
            restored_step=1,
            restore_s=0.1,
        ),
    )
    story.run_for(0.1)


def test_two_that_want_each_others_places_and_do_not_answer_both_stay() -> None:
    """Giving one up gives the other one up, too, whose time is over at the same moment."""
    story = Story()
    first, second = story.training(4, program=DEAF), story.training(4, program=DEAF)
    story.run_for(5.0)
    story.move((first, gpus("b", 0, 1, 2, 3)), (second, gpus("a", 0, 1, 2, 3)))

    story.run_for(story.settings.config.moves.checkpoint_timeout_s + 1.0)

    assert (story.state(first), story.state(second)) == ("running", "running")
    assert story.place(first) == gpus("a", 0, 1, 2, 3)
    for job in (first, second):
        assert len(story.told(f.MigrationAbandoned, job)) == 1


def test_a_ring_of_places_is_given_up_once() -> None:
    """Each of three stays where another one was to go."""
    story = Story()
    jobs = [story.training(2, program=DEAF) for _ in range(3)]
    story.run_for(5.0)
    places = [story.place(job) for job in jobs]
    story.move(*zip(jobs, [*places[1:], places[0]], strict=True))

    story.run_for(story.settings.config.moves.checkpoint_timeout_s + 1.0)

    assert [story.place(job) for job in jobs] == places
    assert [len(story.told(f.MigrationAbandoned, job)) for job in jobs] == [1, 1, 1]


def test_one_whose_new_nodes_are_gone_all_at_once_is_queued_once() -> None:
    """A head that starts anew has no node at first: both nodes of the new place are gone."""
    story = Story()
    job = story.training(1, most=4)
    other = story.training(2, program=Program(runs_s=1000.0, ignores_term=True))
    story.run_for(5.0)
    to = (*gpus("a", 0, 1), *gpus("b", 0, 1))
    story.move((other, ()), (job, to))
    story.run_for(1.0)
    assert story.state(job) == "migrating"
    assert story.job(job).attempt is None

    story.restart_head()
    story.run_for(60.0)

    assert len(story.told(f.JobRequeued, job)) == 1
    assert story.state(job) == "running"


def test_what_a_job_that_stays_has_is_not_guaranteed_to_others() -> None:
    """Its own share counts as its own again, beside what is kept for one that comes."""
    story = Story()
    stays, blocker = story.training(1, program=DEAF), story.training(3)
    comes = story.training(1, program=Program(runs_s=1000.0, saves_s=299.9))
    story.run_for(5.0)
    story.delete(blocker)
    story.run_for(1.0)
    story.move((stays, ()))
    story.run_for(1.0)
    story.move((comes, gpus("a", 1)))

    story.run_for(story.settings.config.moves.checkpoint_timeout_s - 0.5)

    assert (story.state(stays), story.state(comes)) == ("running", "migrating")
    assert story.head.state.spaces["a"].cpus == 8 - 1 - 1
    story.run_for(60.0)
    assert story.place(comes) == gpus("a", 1)


@pytest.mark.parametrize("stop", [a.DeleteJob(), a.RerunJob()])
def test_one_that_is_stopped_as_soon_as_it_has_moved(
    stop: a.DeleteJob | a.RerunJob,
) -> None:
    """Its first step there is said while it ends already."""
    story = Story()
    job = story.training(program=Program(runs_s=1000.0, ignores_term=True))
    story.run_for(5.0)
    story.move((job, gpus("b", 2, 3)))
    story.run_for(40.0)
    assert story.place(job) == gpus("b", 2, 3)
    story.do(c.ActOnJob(caller=ALICE, job=job, action=stop))

    say_first_step(story, job, story.machines["b"])

    assert story.state(job) == "exiting"
    story.run_for(60.0)
    if isinstance(stop, a.DeleteJob):
        assert story.outcome(job).kind is OutcomeKind.CANCELLED
    else:
        assert story.state(job) == "running"


def test_one_goes_where_another_one_is_being_deleted() -> None:
    """Who was to change places with it will be gone: there is no need to go to the queue."""
    story = Story()
    first = story.training(4)
    second = story.training(4, program=Program(runs_s=1000.0, saves_s=2.0, ignores_term=True))
    story.run_for(5.0)
    story.move((first, gpus("b", 0, 1, 2, 3)), (second, gpus("a", 0, 1, 2, 3)))
    story.run_for(1.5)
    assert story.job(first).attempt is None

    story.delete(second)
    story.run_for(60.0)

    assert story.place(first) == gpus("b", 0, 1, 2, 3)
    assert not story.told(f.JobRequeued, first)


def test_one_whose_new_place_nobody_leaves_finds_another_by_its_queue() -> None:
    """Who is to make room there cannot be killed: its wait has an end, and the other's has not."""
    story = Story()
    first = story.training(2)
    second = story.training(4, program=Program(runs_s=1e5, saves_s=3.0))
    story.run_for(5.0)
    story.move((first, gpus("b", 0, 1)), (second, gpus("a", 0, 1, 2, 3)))
    story.run_for(2.0)
    assert story.place(first) == ()
    story.lost[n.StopAttempt] = 1
    limit_s = story.settings.config.moves.checkpoint_timeout_s
    story.run_for(limit_s - 2.0)
    assert story.state(first) == "migrating"

    story.run_for(2.0)

    assert story.state(first) == "queued"
    (requeued,) = story.told(f.JobRequeued, first)
    assert requeued.reason == f"the target of its migration was not free within {limit_s:g} s"  # type: ignore[attr-defined] # of that kind
    assert story.state(second) == "migrating"
    story.machines["c"] = node("c", cpus=8, gpus=4)
    story.connect("c")
    story.run_for(1.0)
    assert story.machine_of(first) == ("c",)
    story.kill("b", second, 1)
    story.run_for(5.0)
    assert story.place(second) == gpus("a", 0, 1, 2, 3)
    story.check_history()

"""On how many ranks training jobs can run, as they say, and moves that would give others (I14)."""

import pytest

from gsched.errors import InvalidRequestError
from gsched.model.training import Training
from gsched.protocol import actions as a
from gsched.protocol import node as n
from gschedd.core.requests import commands as c
from gschedd.core.state import facts as f
from gschedd.core.training.profile import TrainingProfiles
from tests.support.moves import Story, gpus
from tests.support.orders import orders
from tests.support.world import ADMIN, ALICE, Program

SIZES = (1, 2, 4)


def say(story: Story, job: int, sizes: tuple[int, ...] = SIZES, *, ranks: int = 4) -> None:
    """Let a training say how far it is, and on how many ranks it can run."""
    said = n.TrainingProgress(
        job=job,
        attempt=story.job(job).attempts,
        step=2,
        work_done=9.0,
        at_s=story.now_s,
        gpus=ranks,
        world_sizes=sizes,
    )
    story.tell(story.machines[story.machine_of(job)[0]], said)
    story.run_for(0.0)


def on_four(story: Story, **changes: object) -> int:
    """Return a training that can have one to four GPUs, and has four."""
    size = Training(iterations=1e6, rates=tuple((count, 1.0 * count) for count in range(1, 5)))
    job = story.training(1, most=4, training=size, **{"launch": "torchrun", **changes})
    story.run_for(5.0)
    story.move((job, gpus("b", 0, 1, 2, 3)))
    story.run_for(5.0)
    assert story.place(job) == gpus("b", 0, 1, 2, 3)
    return job


@pytest.mark.parametrize("launch", ["torchrun", "command"])
def test_i14_a_number_that_the_script_cannot_take_is_refused_and_it_goes_on(launch: str) -> None:
    """Of a script that starts its ranks itself it is told from what it has."""
    story = Story()
    job = on_four(story, launch=launch)
    say(story, job)

    refused = story.refusal(
        c.ActOnJob(caller=ALICE, job=job, action=a.MigrateJob(nodes=(), gpus=3))
    )

    assert isinstance(refused, InvalidRequestError)
    assert refused.message == (
        f"job {job} cannot go on on 3 ranks: its script says that it can on 1, 2 or 4"
    )
    assert (story.state(job), story.job(job).attempts) == ("running", 2)
    story.do(c.ActOnJob(caller=ALICE, job=job, action=a.MigrateJob(nodes=(), gpus=2)))
    story.run_for(5.0)
    assert len(story.place(job)[0].gpu_indices) == 2


def test_i14_what_the_head_does_not_know_the_training_refuses_itself() -> None:
    """It is told on how many ranks it is to go on, says that it cannot, and stays."""
    story = Story()
    job = on_four(story)
    words = "it cannot run on 3 ranks"
    story.programs[job] = Program(runs_s=1000.0, save_fault=words)
    step = story.do(c.ActOnJob(caller=ALICE, job=job, action=a.MigrateJob(nodes=(), gpus=3)))
    (order,) = [effect for effect in orders(step) if isinstance(effect, n.TakeCheckpoint)]
    assert order.world_size == 3
    story.run_for(5.0)

    assert (story.state(job), story.job(job).attempts) == ("running", 2)
    assert [fact.reason for fact in story.told(f.MigrationAbandoned, job)] == [words]  # type: ignore[attr-defined] # of that kind


def test_i14_policies_and_drains_choose_only_what_it_can_take() -> None:
    """Also while it waits in its queue after a restart: its newest checkpoint tells."""
    story = Story()
    job = on_four(story)
    say(story, job)
    assert TrainingProfiles(story.head.state, story.settings, story.now_s)[job].gpus == SIZES
    story.training(1, program=Program(runs_s=1e5))
    story.run_for(1.0)
    saved = n.Checkpointed(job=job, attempt=2, step=9, work_done=90.0, world_sizes=SIZES)
    story.tell(story.machines["b"], saved)
    story.run_for(1.0)

    story.do(c.ActOnNode(caller=ADMIN, node="b", action=a.DrainNode(reason="dust", migrate=True)))
    story.run_for(10.0)

    (share,) = story.place(job)  # three GPUs are free there
    assert (share.node, len(share.gpu_indices)) == ("a", 2)
    story.restart_head()
    assert not story.head.state.reached
    assert TrainingProfiles(story.head.state, story.settings, story.now_s)[job].gpus == SIZES


def test_a_training_that_says_nothing_can_take_any_number() -> None:
    """And so can one whose numbers are as many as it may tell: there may be larger ones."""
    story = Story()
    job = on_four(story)
    say(story, job, ())
    assert TrainingProfiles(story.head.state, story.settings, story.now_s)[job].gpus == (1, 2, 3, 4)
    say(story, job, tuple(range(1000, 1256)))
    assert TrainingProfiles(story.head.state, story.settings, story.now_s)[job].gpus == (1, 2, 3, 4)
    say(story, job, (1, 2))
    assert TrainingProfiles(story.head.state, story.settings, story.now_s)[job].gpus == (1, 2)

"""Profiling runs: on the fewest GPUs until steps were measured, then what the policy wants."""

import pytest

from gsched.config.policies import DeadlineConfig
from gsched.errors import InvalidRequestError
from gsched.model.training import Profiling, Training
from gsched.protocol import node as n
from gschedd.core.cycle.run import snapshot
from gschedd.core.state import facts as f
from gschedd.core.state.state import State
from gschedd.core.training import move_costs as movecosts
from gschedd.plan.compose import Composed
from gschedd.policies.queue import fifo
from gschedd.policies.training import deadline
from tests.support.site import changed
from tests.support.world import World, node

BATCH, TOTAL = 10.0, 5_000.0
#: So long the policy leaves a training alone that has just started, and a little more.
SETTLED_S = DeadlineConfig().hold_s + 20.0
#: 100 s on one GPU.
SAID = Training(iterations=100.0, rates=((1, 1.0), (4, 4.0)))


class Story(World):
    """A node with four GPUs, under the policy that resizes training jobs."""

    def __init__(self, profiling: Profiling = Profiling.AUTO) -> None:
        super().__init__(node("a", cpus=8, gpus=4), policy=Composed(deadline.plan, fifo.plan))
        self.settings = changed(self.settings, profile=profiling, move_s=5.0)
        self.head.settings = self.settings

    def _fresh_state(self) -> State:
        return State({"batch": 0}, plans_training=True)

    def training(self, **changes: object) -> int:
        """Submit an elastic training on one to four GPUs."""
        known = {"runs_s": 9e3, "deadline_after_s": 400.0, "kind": "net", "places_max": 4}
        asked = "select=1:ncpus=1:ngpus=1,place=free"
        if "walltime" in changes:
            asked += f",walltime={changes.pop('walltime')}"
        changes = known | changes
        return self.submit(asked, movable=True, **changes)  # type: ignore[arg-type] # passed on

    def steps(self, job: int, step: int, **said: float) -> None:
        """Let a training say that its steps take a second."""
        told = n.TrainingProgress(
            job=job,
            attempt=self.job(job).attempts,
            step=step,
            work_done=step * BATCH,
            work_total=TOTAL,
            at_s=self.now_s,
            step_s=1.0,
            **said,  # type: ignore[arg-type] # as named
        )
        self._take(self.head.reported("a", told, self.now_s))
        self.settle()

    def counts(self, job: int) -> tuple[int, ...]:
        """Return the numbers of GPUs that a policy may give a training now."""
        return snapshot(self.head.state, self.settings, self.now_s).profiles[job].gpus

    def gpus(self, job: int) -> int:
        """Return how many GPUs a job has."""
        attempt = self.job(job).attempt
        assert attempt is not None
        return sum(len(share.gpu_indices) for share in attempt.allocation)


def test_a_training_of_which_nothing_is_known_grows_when_its_steps_are() -> None:
    """500 steps of a second are not done in 400 s on one GPU."""
    story = Story()
    job = story.training()
    story.run_for(5.0)
    assert story.gpus(job) == 1

    story.steps(job, 1, gradient_bytes=1e6)
    story.run_for(10.0)
    assert story.gpus(job) == 1
    story.steps(job, 11, gradient_bytes=1e6)
    story.run_for(SETTLED_S)

    assert story.gpus(job) > 1
    assert story.job(job).moves == 1


def test_a_training_is_not_resized_where_moves_were_measured_to_cost_more_than_that_gains() -> None:
    """The same one as above, but moves of its kind took five minutes."""
    story = Story()
    job = story.training()
    story.run_for(5.0)
    cost = f.MigrationMeasured(
        at_s=story.now_s, job=job, attempt=1, cost_s=300.0, kind="k", program="p", owner_uid=1
    )
    movecosts.learn(story.head.state, cost)
    story.steps(job, 1, gradient_bytes=1e6)
    story.run_for(10.0)
    story.steps(job, 11, gradient_bytes=1e6)
    story.run_for(SETTLED_S)

    assert story.gpus(job) == 1
    assert story.job(job).moves == 0


@pytest.mark.parametrize("profile", [False, True])
def test_one_whose_size_was_said_is_profiled_only_if_it_asks(*, profile: bool) -> None:
    story = Story()
    job = story.training(training=SAID, profile=profile, deadline_after_s=60.0)
    story.run_for(5.0)

    assert (story.gpus(job) == 1) is profile
    assert story.counts(job) == ((1,) if profile else (1, 2, 3, 4))
    story.steps(job, 1, gradient_bytes=1e6)
    story.steps(job, 11, gradient_bytes=1e6)
    assert story.counts(job) == (1, 2, 3, 4)


@pytest.mark.parametrize("profiling", list(Profiling))
def test_the_site_says_which_training_jobs_are_profiled(profiling: Profiling) -> None:
    """One with a walltime only is planned, but nothing is known of its steps."""
    story = Story(profiling)
    job = story.training(walltime="0:05:00")

    assert (story.counts(job) == (1,)) is (profiling is Profiling.AUTO)


def test_profile_is_refused_where_it_would_say_nothing() -> None:
    never, story = Story(Profiling.NEVER), Story()

    with pytest.raises(InvalidRequestError, match="makes no profiling runs"):
        never.training(profile=True)
    with pytest.raises(InvalidRequestError, match="with a range of GPUs"):
        story.training(profile=True, places_max=0)

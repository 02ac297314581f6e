"""Step times and moves that training jobs tell: measured once, of use for all of their kind."""

from pathlib import Path

import pytest

from gsched.model.training import Training
from gsched.protocol import node as n
from gschedd.core.cycle.run import snapshot
from gschedd.core.forecast.deadline import foresee
from gschedd.core.state import facts as f
from gschedd.core.state.records import MigrationProgress
from gschedd.core.state.state import State
from gschedd.core.training.move_costs import cost_by_resuming
from gschedd.core.training.step_times import CHANGE, PAUSE_S
from gschedd.models.startup import StartupKey
from gschedd.models.steptimes import MeasuredSpeed
from gschedd.plan.compose import Composed
from gschedd.plan.load import Kind, NodeLoad, Prediction, Predictor
from gschedd.plan.training import Layout, TrainingProfile
from gschedd.policies.queue import fifo
from gschedd.policies.training import drs
from gschedd.store.rows import Batch
from tests.support.books import Books, batch_of
from tests.support.moves import Story as Moving
from tests.support.moves import gpus
from tests.support.world import BEGIN_S, World, node

BATCH, TOTAL = 10.0, 5_000.0
ONE_GPU = Layout(counts=(1,))


class Silent(Predictor):
    """A predictor of nothing: what is known here comes from steps."""

    def predict(self, kind: Kind, node: NodeLoad, now_s: float) -> Prediction:
        raise AssertionError(f"steps of {kind.key} were measured: nobody needs to ask")


SILENT = Silent()


class Story(World):
    """A node with four GPUs, under DRS."""

    def __init__(self) -> None:
        super().__init__(node("a", cpus=8, gpus=4), policy=Composed(drs.plan, fifo.plan))

    def _fresh_state(self) -> State:
        return State({"batch": 0}, plans_training=True)

    def training(self, least: int = 1, **changes: object) -> int:
        """Submit an elastic training with a deadline of which nothing else is said."""
        changes = {"runs_s": 9e3, "deadline_after_s": 1e4, "kind": "net", "places_max": 4} | changes
        asked = f"select={least}:ncpus=1:ngpus=1,place=free"
        return self.submit(asked, movable=True, **changes)  # type: ignore[arg-type] # passed on

    def steps(self, job: int, step: int, step_s: float, **said: float) -> None:
        """Let a training say how far it is."""
        told = n.TrainingProgress(
            job=job,
            attempt=self.job(job).attempts,
            step=step,
            work_done=step * BATCH,
            work_total=TOTAL,
            at_s=self.now_s,
            step_s=step_s,
            **said,  # type: ignore[arg-type] # as named
        )
        self._take(self.head.reported("a", told, self.now_s))

    def profiles(self) -> dict[int, TrainingProfile]:
        """Return what policies see of training jobs now."""
        return dict(snapshot(self.head.state, self.settings, self.now_s, SILENT).profiles)

    def measured(self, job: int) -> list[float]:
        """Return the step times that are known of a job, seconds."""
        found = self.told(f.StepsMeasured, job)
        return [fact.steps.step_s for fact in found if isinstance(fact, f.StepsMeasured)]


def test_a_training_of_which_nothing_was_said_is_planned_by_its_own_steps() -> None:
    """From its second word on; before that its size is not known."""
    story = Story()
    job = story.training()
    story.run_for(5.0)
    story.steps(job, 1, 2.0)
    assert job not in story.profiles()
    assert story.measured(job) == []

    story.run_for(10.0)
    story.steps(job, 11, 1.0)

    profile = story.profiles()[job]
    assert story.measured(job) == [1.0]
    assert profile.speed.rate(ONE_GPU) == pytest.approx(BATCH)
    assert profile.work == pytest.approx(TOTAL - 11 * BATCH)
    assert profile.gpus == (1, 2, 3, 4)


def test_too_few_steps_are_no_measurement() -> None:
    story = Story()
    job = story.training()
    story.run_for(5.0)
    story.steps(job, 1, 1.0)
    story.steps(job, 5, 1.0)

    assert story.measured(job) == []


def test_one_slow_step_is_a_measurement() -> None:
    """There are training jobs that never do five in the ten seconds between two words."""
    story = Story()
    job = story.training()
    story.run_for(5.0)
    story.steps(job, 1, 40.0)
    story.steps(job, 2, 35.0)

    assert story.measured(job) == [35.0]


def test_a_step_that_changes_is_told_again_but_seldom() -> None:
    """Each is a row of the database: a jitter is none, and one in a minute is enough."""
    story = Story()
    job = story.training()
    story.run_for(5.0)
    for number, step_s in enumerate((1.0, 1.0, 1.0 + CHANGE / 2, 2.0), start=1):
        story.steps(job, 10 * number, step_s)
    assert story.measured(job) == [1.0]

    story.run_for(PAUSE_S)
    story.steps(job, 50, 1.0 + CHANGE / 2)
    story.steps(job, 60, 2.0)

    assert story.measured(job) == [1.0, 2.0]


def test_the_next_training_of_the_kind_is_planned_from_the_start() -> None:
    """With the communication that was measured on two GPUs, on any number of them."""
    story = Story()
    first, second = story.training(places_max=0), story.training(2, places_max=0)
    story.run_for(5.0)
    for job, step_s, lost_s in ((first, 1.0, 0.0), (second, 0.6, 0.2)):
        story.steps(job, 1, step_s, gradient_bytes=1e9)
        story.steps(job, 11, step_s, gradient_bytes=1e9, communication_s=lost_s)

    third = story.training()

    profile = story.profiles()[third]
    assert isinstance(profile.speed, MeasuredSpeed)
    assert profile.work == TOTAL
    assert profile.speed.rate(ONE_GPU) == pytest.approx(BATCH)
    assert profile.speed.rate(Layout(counts=(2,))) == pytest.approx(BATCH / 0.6)
    # it lost 0.1 s for 1 GB, so 1.5 GB take 0.15 s
    assert profile.speed.rate(Layout(counts=(4,))) == pytest.approx(BATCH / (0.25 + 0.15))
    outlook = foresee(
        story.job(third).spec,
        state=story.head.state,
        settings=story.settings,
        policy=story.policy,
        now_s=story.now_s,
        predictor=SILENT,
    )
    assert outlook.end_s is not None


def test_what_its_user_said_holds_until_its_own_steps_are_known() -> None:
    """The kind may have had other arguments; its own steps are the truth."""
    story = Story()
    first = story.training()
    story.run_for(5.0)
    story.steps(first, 1, 1.0)
    story.steps(first, 11, 1.0)
    said = Training(iterations=100.0, rates=((1, 1.0), (4, 2.0)))
    second = story.training(training=said)
    assert story.profiles()[second].speed.rate(ONE_GPU) == 1.0

    story.run_for(5.0)
    story.steps(second, 1, 0.5)
    story.steps(second, 11, 0.5)

    profile = story.profiles()[second]
    assert profile.total_work == pytest.approx(TOTAL)
    assert isinstance(profile.speed, MeasuredSpeed)


def test_a_new_measurement_lets_the_policy_look_again() -> None:
    story = Story()
    job = story.training()
    story.run_for(5.0)
    story.steps(job, 1, 1.0)
    cycles = story.head.cycles

    story.steps(job, 11, 1.0)
    story.settle()

    assert story.head.cycles == cycles + 1


def test_what_a_move_costs_is_expected_of_the_next_one() -> None:
    """Before the first, it is what the site says."""
    story = Moving()
    job = story.training(kind="net")
    story.run_for(5.0)
    profiles = snapshot(story.head.state, story.settings, story.now_s).profiles
    # its size is not said: a stated one is needed to see a profile
    assert job not in profiles
    said = Training(iterations=1e6, rates=((1, 1.0), (4, 2.0)))
    waiting = story.training(4, kind="net", training=said)
    before = snapshot(story.head.state, story.settings, story.now_s).profiles[waiting]
    assert before.move_s == story.settings.config.training.move_s

    story.run_for(5.0)
    story.move((job, gpus("a", 2, 3)))
    story.run_for(20.0)
    requested_s = story.told(f.MigrationRequested, job)[0].at_s
    told = n.TrainingProgress(job=job, attempt=2, step=31, work_done=31.0, at_s=story.now_s)
    story._take(story.head.reported("a", told, story.now_s))
    story._take(story.head.reported("a", told, story.now_s))

    (fact,) = story.told(f.MigrationMeasured, job)
    assert isinstance(fact, f.MigrationMeasured)
    after = snapshot(story.head.state, story.settings, story.now_s).profiles[waiting]
    taken = next(each for each in story.facts if isinstance(each, f.CheckpointTaken))
    assert fact.cost_s == pytest.approx(story.now_s - taken.at_s)
    assert fact.cost_s <= story.now_s - requested_s < story.settings.config.training.move_s
    assert after.move_s == pytest.approx(fact.cost_s)


def test_what_a_move_costs_begins_with_the_checkpoint() -> None:
    """Not when it was requested, as steps go on until all ranks agree on one; nor when it ends."""
    story = Moving()
    job = story.job(story.training(kind="net"))
    job.migration = MigrationProgress(
        requested_s=100.0, saved_s=112.0, save_s=10.0, left_s=112.5, placed_s=112.6
    )

    told = cost_by_resuming(job, 120.0)

    assert told is not None
    assert (told.cost_s, told.save_s) == (18.0, 10.0)
    job.migration = MigrationProgress(
        requested_s=100.0, left_s=112.5, placed_s=112.6
    )  # it knows only its signal
    assert cost_by_resuming(job, 120.0) is None


def test_a_head_that_was_started_anew_knows_steps_and_moves(tmp_path: Path) -> None:
    books = Books(tmp_path)
    books.register(cpus=8, gpus=4)
    job = books.submit("select=1:ncpus=1:ngpus=1", kind="net", movable=True)
    books.schedule()
    said = n.Started(job=job, attempt=1, pid=1, started_s=BEGIN_S)
    books.take(books.head.reported("n1", said, BEGIN_S))
    for step in (1, 11):
        told = n.TrainingProgress(
            job=job,
            attempt=1,
            step=step,
            work_done=step * BATCH,
            work_total=TOTAL,
            at_s=BEGIN_S + step,
            step_s=1.0,
        )
        books.take(books.head.reported("n1", told, BEGIN_S + step))
    before = books.head.state.step_times.size_of_kind("1001:kind:net", {})
    moved = f.MigrationMeasured(
        at_s=BEGIN_S, job=job, attempt=1, cost_s=7.5, kind="k", program="p", owner_uid=1
    )
    books.store.commit(batch_with(books, moved))

    books.reopen()

    state = books.head.state
    assert before is not None
    assert state.step_times.size_of_kind("1001:kind:net", {}) == before
    family = StartupKey(kind="k", program="p", owner_uid=1)
    assert state.move_costs.expected_s(family) == 7.5
    attempt = state.jobs[job].attempt
    assert attempt is not None
    assert attempt.step_s == 1.0


def batch_with(books: Books, fact: f.AnyFact) -> Batch:
    """Return what makes one more fact durable."""
    return batch_of([fact], books.head.state)

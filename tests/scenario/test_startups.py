"""How long training jobs take to start: learned from those before, and in all that is predicted."""

from pathlib import Path

import pytest

from gsched.model.training import Training
from gsched.protocol import job_rows
from gsched.protocol import node as n
from gschedd.core.cycle.run import snapshot
from gschedd.core.forecast.deadline import outlook_of
from gschedd.core.state import facts as f
from gschedd.core.state.records import Job
from gschedd.core.state.state import State
from gschedd.core.views.jobs import JobViews
from gschedd.models.startup import StartupKey
from gschedd.plan.compose import Composed
from gschedd.plan.forecast import Forecast
from gschedd.plan.training import Layout, TrainingProfile
from gschedd.policies.queue import fifo
from gschedd.policies.training import drs
from tests.support.books import Books
from tests.support.world import BEGIN_S, World, node

ONE_GPU = Layout(counts=(1,))
#: 100 s on one GPU, half of it on two.
SIZE = Training(iterations=100.0, rates=((1, 1.0), (2, 2.0)))


class Story(World):
    """A node with four GPUs, under DRS."""

    def __init__(self) -> None:
        super().__init__(node("a", cpus=8, gpus=4), policy=Composed(drs.plan, fifo.plan))

    def _fresh_state(self) -> State:
        return State({"batch": 0}, plans_training=True)

    def training(self, runs_s: float = 120.0, in_s: float = 1000.0, **changes: object) -> int:
        """Submit a training on one GPU that really runs so long, to be done ``in_s`` from now."""
        changes = {"training": SIZE, "kind": "net", **changes}
        asked = "select=1:ncpus=1:ngpus=1"
        return self.submit(asked, runs_s=runs_s, deadline_after_s=in_s, **changes)  # type: ignore[arg-type] # passed on

    def outlook(self, job: int) -> Forecast:
        """Return what is expected of a job that is not done."""
        return outlook_of(
            self.job(job),
            state=self.head.state,
            settings=self.head.settings,
            verdicts=self.head.verdicts,
            now_s=self.now_s,
        )

    def ends_in_s(self, job: int) -> float:
        """Return how long from now a job is expected to take."""
        end_s = self.outlook(job).end_s
        assert end_s is not None
        return end_s - self.now_s

    def profile(self, job: int) -> TrainingProfile:
        """Return what policies see of a training now."""
        return snapshot(self.head.state, self.settings, self.now_s).profiles[job]

    def progress(self, job: int, *, step: int, work_done: float, **said: float) -> None:
        """Let a training of 1000 samples say how far it is."""
        told = n.TrainingProgress(
            job=job,
            attempt=1,
            step=step,
            work_done=work_done,
            work_total=1000.0,
            at_s=self.now_s,
            **said,  # type: ignore[arg-type] # as named
        )
        self._take(self.head.reported("a", told, self.now_s))

    def measured(self, job: int) -> list[f.StartupMeasured]:
        """Return what is known of how a job started."""
        found = self.told(f.StartupMeasured, job)
        return [fact for fact in found if isinstance(fact, f.StartupMeasured)]


def test_the_next_training_of_a_kind_is_predicted_with_its_start() -> None:
    """The first one ends 20 s later than was said, the second one when it was said."""
    story = Story()
    first = story.training()
    said_first_s = story.ends_in_s(first)
    story.run_for(130.0)
    second = story.training()

    assert [fact.startup_s for fact in story.measured(first)] == [pytest.approx(20.0)]
    assert said_first_s == pytest.approx(100.0)
    assert story.ends_in_s(second) == pytest.approx(120.0)
    story.run_for(50.0)
    assert story.ends_in_s(second) == pytest.approx(70.0)


def test_what_gsub_answers_has_the_start_in_it_too() -> None:
    """A deadline that the steps alone would meet is not guaranteed, and not missed silently."""
    story = Story()
    first = story.training()
    spec = story.job(first).spec
    before = story.head.foresee(spec, story.now_s)
    story.run_for(130.0)

    tight = story.training(in_s=110.0)
    outlook = story.outlook(tight)

    assert before.end_s == pytest.approx(BEGIN_S + 100.0)
    assert outlook.meets is False
    assert outlook.end_s == pytest.approx(story.now_s + 120.0)
    assert story.head.foresee(spec, story.now_s).end_s == pytest.approx(story.now_s + 120.0)


def test_a_training_that_takes_longer_than_predicted_is_late_before_its_deadline() -> None:
    """Ten seconds after it should have ended it is expected to take ten more, which is too late."""
    story = Story()
    job = story.training(runs_s=500.0, in_s=115.0)
    assert story.outlook(job).meets is True

    story.run_for(110.0)

    assert story.ends_in_s(job) == pytest.approx(10.0)
    assert story.outlook(job).meets is False


def test_the_story_of_a_job_tells_what_is_known_of_its_start() -> None:
    """What an attempt took, and what is expected of one that waits or runs."""
    story = Story()
    first = story.training()
    story.run_for(130.0)
    second = story.training()
    teller = JobViews(story.head, now_s=story.now_s)

    def told(job: Job) -> job_rows.JobStory:
        attempts = () if job.attempt is None else (job.attempt,)
        return teller.story(job, attempts=attempts, events=(), now_s=story.now_s)

    over, runs = told(story.done[first]), told(story.job(second))
    assert over.startup_s == 0.0
    assert over.attempts[0].startup_s == pytest.approx(20.0)
    assert runs.startup_s == pytest.approx(20.0)
    assert runs.attempts[0].startup_s is None


def test_a_training_tells_its_start_with_its_first_step() -> None:
    """It is told once, and others of the kind have it before that one ends."""
    story = Story()
    first = story.training(runs_s=1000.0)
    story.run_for(32.0)
    story.progress(first, step=2, work_done=4.0, step_s=1.0)
    story.run_for(10.0)
    story.progress(first, step=12, work_done=24.0, step_s=1.0)

    told = story.measured(first)

    assert [fact.by_step for fact in told] == [True]
    assert told[0].startup_s == pytest.approx(30.0)
    assert story.profile(story.training()).startup_s == pytest.approx(30.0)
    assert story.profile(first).startup_s == 0.0


def test_a_training_that_is_slower_than_was_said_is_predicted_at_its_own_pace() -> None:
    """Half as fast as its user said: so it is late, and known to be before that."""
    story = Story()
    job = story.training(runs_s=1000.0, in_s=150.0)
    story.run_for(10.0)
    story.progress(job, step=1, work_done=10.0)
    assert story.outlook(job).meets is True
    story.run_for(20.0)
    story.progress(job, step=11, work_done=110.0)  # a tenth in 20 s: half of what was said

    assert story.ends_in_s(job) == pytest.approx(0.89 * 200.0)
    assert story.outlook(job).meets is False


def test_what_moved_or_failed_tells_nothing_of_a_start() -> None:
    """Its run time is not that of all its work."""
    story = Story()
    killed = story.training(runs_s=500.0)
    story.run_for(200.0)
    story.delete(killed)
    story.run_for(10.0)

    assert story.measured(killed) == []
    assert story.profile(story.training()).startup_s == 0.0


def test_a_size_that_was_told_from_whole_runs_has_the_start_in_it() -> None:
    """What its walltime says is not made longer by what others took to start."""
    story = Story()
    story.training()
    story.run_for(130.0)

    job = story.submit("select=1:ncpus=1:ngpus=1,walltime=300", deadline_after_s=1000.0, kind="net")

    assert story.profile(job).run_time_s(ONE_GPU) == 300.0


def test_a_head_that_was_started_anew_knows_what_it_had_learned(tmp_path: Path) -> None:
    """Also of those that run, which say nothing of their start again."""
    books = Books(tmp_path)
    books.register(cpus=8, gpus=4)
    done = books.submit("select=1:ncpus=1:ngpus=1", training=SIZE, kind="net")
    books.schedule()
    said = n.Started(job=done, attempt=1, pid=1, started_s=BEGIN_S)
    books.take(books.head.reported("n1", said, BEGIN_S))
    books.exit(done, wall_s=117.0)
    family = StartupKey(kind="1001:kind:net", program="1001:file:true", owner_uid=1001)
    before_s = books.head.state.startups.expected_s(family)

    runs = books.submit("select=1:ncpus=1:ngpus=1", training=SIZE, kind="other")
    books.schedule()
    began_s = books.now_s
    said = n.Started(job=runs, attempt=1, pid=2, started_s=began_s)
    books.take(books.head.reported("n1", said, began_s))
    told = n.TrainingProgress(job=runs, attempt=1, step=1, work_done=1.0, at_s=began_s + 25.0)
    books.take(books.head.reported("n1", told, began_s + 25.0))

    books.reopen()

    startups, attempt = books.head.state.startups, books.head.state.jobs[runs].attempt
    assert startups.expected_s(family) == before_s == pytest.approx(17.0)
    other = StartupKey(kind="1001:kind:other", program="1001:file:true", owner_uid=1001)
    assert startups.expected_s(other) == pytest.approx(25.0)
    assert attempt is not None
    assert attempt.startup_s == pytest.approx(25.0)

"""Adaptive training jobs: what they report is kept, and batch sizes reach them."""

from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from gsched.errors import InvalidRequestError
from gsched.model.reports import StepSample
from gsched.model.training import Adaptive, Batching, Inference, Scaling, Training
from gsched.protocol import node as n
from gsched.protocol.job_rows import JobStory
from gschedd.core.cycle.run import snapshot
from gschedd.core.state import effects as e
from gschedd.core.state import facts as f
from gschedd.core.state.state import State
from gschedd.core.views.details import SILENT_S
from gschedd.core.views.jobs import JobViews
from gschedd.http.launches import BlobCache, Launches
from gschedd.models.adaptive import PAUSE_S
from gschedd.models.goodput.model import GoodputModel
from gschedd.plan.elastic import at_count
from gschedd.plan.fit import place
from gschedd.plan.snapshot import Move, Plan, Snapshot, Start, Tune
from gschedd.plan.space import Spaces
from gschedd.plan.training import AdaptiveProfile
from tests.support.books import Books
from tests.support.moves import gpus
from tests.support.world import BEGIN_S, World, node

ADAPTIVE = Adaptive(batch=128, batch_max=4096)


class Chooser:
    """A policy that starts what waits on its fewest GPUs, with a batch, and tunes as it is told."""

    def __init__(self) -> None:
        self.batching: Batching | None = Batching(per_gpu=64, accumulation=1)
        self.tunes: tuple[Tune, ...] = ()
        self.moves: tuple[Move, ...] = ()

    def __call__(self, snapshot: Snapshot) -> Plan:
        starts = []
        for group in snapshot.groups:
            request = at_count(group.job_class.request, group.job_class.request.places)
            found = place(request, Spaces(dict(snapshot.nodes)))
            if isinstance(found, tuple):
                starts.append(
                    Start(
                        job=group.order[0][1],
                        job_class=group.job_class,
                        allocation=found,
                        why="test",
                        batching=self.batching,
                    )
                )
        moves, self.moves = self.moves, ()
        return Plan(starts=tuple(starts[:1]), tunes=self.tunes, moves=moves)


class Story(World):
    """A node with four GPUs of one type, under a policy that chooses batch sizes."""

    def __init__(self) -> None:
        self.chooser = Chooser()
        super().__init__(node("a", cpus=8, gpu_types=("t4",) * 4), policy=self.chooser)

    def _fresh_state(self) -> State:
        return State({"batch": 0}, plans_training=True, plans_adaptive=True)

    def training(self, adaptive: Adaptive = ADAPTIVE, **changes: object) -> int:
        """Submit an adaptive training that runs for long."""
        changes = {"runs_s": 9e4, "kind": "net", "places_max": 4, "movable": True} | changes
        asked = "select=1:ncpus=1:ngpus=1,place=free"
        return self.submit(asked, adaptive=adaptive, **changes)  # type: ignore[arg-type] # passed on

    def plan(self) -> None:
        """Let the policy plan anew."""
        self.head.state.dirty.mark_all()
        self.settle()
        self.run_for(1.0)

    def report(self, job: int, step: int, **said: object) -> None:
        """Let a training say how far it is."""
        told = {"batch_per_gpu": 64, "accumulation": 1, "step_s": 0.5, "gradient_s": 0.2} | said
        progress = n.TrainingProgress(
            job=job,
            attempt=self.job(job).attempts,
            step=step,
            at_s=self.now_s,
            **told,  # type: ignore[arg-type] # as named
        )
        self._take(self.head.reported("a", progress, self.now_s))

    def measured(self, job: int) -> list[f.StepsMeasured]:
        """Return what was kept of a job's steps."""
        return [
            each for each in self.told(f.StepsMeasured, job) if isinstance(each, f.StepsMeasured)
        ]

    def profile(self, job: int) -> AdaptiveProfile:
        """Return what policies see of an adaptive training."""
        profiles = snapshot(self.head.state, self.settings, self.now_s).profiles
        found = profiles[job].adaptive
        assert found is not None
        return found


def test_a_training_of_which_nothing_else_is_said_is_seen_with_its_batches() -> None:
    story = Story()
    job = story.training()
    story.run_for(5.0)

    profile = story.profile(job)

    assert (profile.gpus_min, profile.gpus_max, profile.gpus_reached) == (1, 4, 1)
    assert profile.goodput.types() == frozenset()
    assert (profile.restarts, profile.scaling) == (0, Scaling.ADAPTIVE)
    assert profile.age_s == pytest.approx(5.0)


def test_the_batch_of_a_start_is_in_its_launch_and_profiling_is_asked_once_for_a_kind() -> None:
    story = Story()
    first = story.training()
    story.run_for(5.0)
    launches = Launches(state=story.head.state, blobs=BlobCache(lambda _: b""), server="s")
    message = launches.message(e.SendLaunch(node="a", job=first, attempt=1))
    assert message is not None
    assert message.batching == Batching(per_gpu=64, accumulation=1)
    assert message.profile_batches

    story.report(first, 10)
    second = story.training()
    story.run_for(5.0)

    attempt = story.job(second).attempt
    assert attempt is not None
    assert not attempt.profile_batches


def test_reports_are_kept_where_they_are_news() -> None:
    """A batch that is new, another time, or other noise; each is a row of the database."""
    story = Story()
    job = story.training()
    story.run_for(5.0)
    story.report(job, 10)
    story.run_for(PAUSE_S + 1)
    story.report(job, 20, step_s=0.52)
    assert len(story.measured(job)) == 1

    story.report(job, 30, step_s=0.6)
    assert len(story.measured(job)) == 2
    story.report(job, 40, step_s=0.9)
    assert len(story.measured(job)) == 2, "less than a minute later"
    story.report(job, 50, batch_per_gpu=128)
    assert len(story.measured(job)) == 3
    story.run_for(PAUSE_S + 1)
    story.report(job, 60, step_s=0.6, gradient_sqr=1.0, gradient_var=4.0)
    assert len(story.measured(job)) == 4
    story.run_for(PAUSE_S + 1)
    story.report(job, 70, step_s=0.6, gradient_sqr=1.0, gradient_var=4.5)

    kept = story.measured(job)
    assert len(kept) == 4
    assert kept[0].steps.counts == (1,)
    assert (kept[0].steps.gpu_type, kept[0].steps.samples) == ("t4", 128)


def test_a_profile_on_one_gpu_is_kept_sample_by_sample() -> None:
    story = Story()
    job = story.training()
    story.run_for(5.0)
    samples = tuple(
        StepSample(batch_per_gpu=batch, step_s=0.1 + batch / 500, gradient_s=0.08 + batch / 500)
        for batch in (16, 32, 64, 128)
    )
    story.report(job, 1, step_s=0.0, profile=samples, batch_per_gpu_max=128)

    kept = [fact.steps for fact in story.measured(job)]
    assert [steps.batch_per_gpu for steps in kept] == [16, 32, 64, 128]
    assert {steps.batch_per_gpu_max for steps in kept} == {128}
    assert story.profile(job).goodput.types() == {"t4"}


def test_steps_of_a_model_that_is_split_over_gpus_are_those_of_its_replicas() -> None:
    """A replica takes two GPUs: a profile is of one replica, a step of four GPUs of two."""
    story = Story()
    job = story.training(structs.replace(ADAPTIVE, replica_gpus=(("t4", 2),)))
    story.run_for(5.0)
    sample = StepSample(batch_per_gpu=32, step_s=0.1, gradient_s=0.1)
    story.report(job, 1, step_s=0.0, profile=(sample,))

    (kept,) = story.measured(job)
    assert (kept.steps.counts, kept.steps.samples) == ((2,), 32)
    goodput = story.profile(job).goodput
    assert goodput.types() == {"t4"}
    one, two, four = goodput.best("t4", np.array([1, 1, 1]), np.array([1, 2, 4])).goodput
    assert one == 0
    assert 0 < two < four


def test_the_noise_of_now_counts_before_it_is_kept() -> None:
    story = Story()
    job = story.training()
    story.run_for(5.0)
    story.report(job, 10, gradient_sqr=1.0, gradient_var=50.0)
    story.report(job, 20, gradient_sqr=1.0, gradient_var=60.0)

    goodput = story.profile(job).goodput
    other = Story()
    same = other.training()
    other.run_for(5.0)
    other.report(same, 10, gradient_sqr=1.0, gradient_var=50.0)

    assert goodput != other.profile(same).goodput
    other.report(same, 20, gradient_sqr=1.0, gradient_var=60.0)
    assert goodput == other.profile(same).goodput


def test_what_is_left_is_known_from_reports_and_then_of_its_kind() -> None:
    story = Story()
    job = story.training()
    story.run_for(5.0)
    assert story.profile(job).left is None
    story.report(job, 10, work_done=1_000.0, work_total=5_000.0)
    other = story.training()
    story.run_for(5.0)

    assert story.profile(job).left == 4_000.0
    assert story.profile(other).left == 5_000.0


def test_some_of_the_workload_is_enough_and_states_what_is_left() -> None:
    """Parameters, batch on each GPU and step time are measured by the job itself."""
    story = Story()
    job = story.training(training=Training(samples=2048, epochs=4))
    story.training(training=Training(parameters=1e8))
    story.run_for(5.0)

    assert story.profile(job).left == 8192
    story.report(job, 10, work_done=1_000.0, work_total=5_000.0)
    assert story.profile(job).left == 4_000.0, "the job knows better"


def story_of(story: Story, job: int) -> JobStory:
    """Return what gstat -f is told of a job."""
    views = JobViews(story.head, now_s=story.now_s)
    return views.story(story.job(job), attempts=(), events=(), now_s=story.now_s)


def test_a_script_that_never_reports_keeps_its_gpus_and_its_user_is_told_what_to_do() -> None:
    story = Story()
    job = story.training()
    story.run_for(60.0)
    assert story_of(story, job).advice == ""
    story.run_for(SILENT_S)

    found = story_of(story, job).advice
    assert found.startswith("the script has not reported a step in the 00:03:00 since its start")
    assert "so the job keeps its 1 GPU: use gsched.elastic with elastic.Adaptive()" in found


def test_a_script_that_is_elastic_but_not_adaptive_is_told_apart() -> None:
    story = Story()
    job = story.training()
    story.run_for(SILENT_S + 60.0)
    story.report(job, 10, batch_per_gpu=0)

    assert "pass adaptive=elastic.Adaptive() to elastic.start()" in story_of(story, job).advice
    story.report(job, 20, batch_per_gpu=0, batch=128)
    assert story_of(story, job).advice == "", "its first report has no batch of steps yet"


def test_the_batch_of_the_script_counts_and_the_difference_is_told() -> None:
    """Submitted with 128 to 4,096, and tuned for 64 in the script, which allows 1,000 at most."""
    story = Story()
    job = story.training()
    story.run_for(5.0)
    story.report(job, 10, batch=64, batch_max=1000)

    goodput = story.profile(job).goodput
    assert isinstance(goodput, GoodputModel)
    assert (goodput.limits.batch, goodput.limits.batch_max) == (64, 1000)
    assert story_of(story, job).advice == (
        "the script is tuned for a batch of 64, not 128: 64 is used; submit it with --batch 64"
    )
    story.report(job, 20, batch=128, batch_max=1000)
    assert "allows batches up to 1000, not 4096: raise batch_max" in story_of(story, job).advice
    story.report(job, 30, batch=128)
    assert story_of(story, job).advice == ""
    goodput = story.profile(job).goodput
    assert isinstance(goodput, GoodputModel)
    assert (goodput.limits.batch, goodput.limits.batch_max) == (128, 4096)


def test_a_strong_scaling_job_keeps_the_batch_of_its_script() -> None:
    story = Story()
    job = story.training(Adaptive(batch=128, batch_max=128, scaling=Scaling.STRONG))
    story.run_for(5.0)
    story.report(job, 10, batch=256)

    goodput = story.profile(job).goodput
    assert isinstance(goodput, GoodputModel)
    assert (goodput.limits.batch, goodput.limits.batch_max) == (256, 256)


def test_what_fits_into_memory_is_remembered_by_job_and_kind() -> None:
    """Found by a profile; a later job of the kind is not given more on a GPU of that type."""
    story = Story()
    first = story.training()
    story.run_for(5.0)
    sample = StepSample(batch_per_gpu=32, step_s=0.1, gradient_s=0.1)
    story.report(first, 1, step_s=0.0, profile=(sample,), batch_per_gpu_max=48)
    second = story.training()
    story.run_for(5.0)

    for job in (first, second):
        goodput = story.profile(job).goodput
        assert isinstance(goodput, GoodputModel)
        assert goodput.on("t4").per_gpu_max == 48
        assert max(goodput.best("t4", [1, 1], [1, 4]).batch_per_gpu) <= 48


def test_a_batch_reaches_a_training_where_it_runs_once() -> None:
    story = Story()
    job = story.training()
    story.run_for(5.0)
    story.chooser.tunes = (Tune(job=job, batching=Batching(per_gpu=256)),)
    story.plan()
    story.plan()

    assert story.machines["a"].tunes == [(job, Batching(per_gpu=256))]
    attempt = story.job(job).attempt
    assert attempt is not None
    assert attempt.batching == Batching(per_gpu=256)
    (fact,) = story.told(f.BatchingChosen, job)
    assert isinstance(fact, f.BatchingChosen)


def test_a_migration_brings_its_batch() -> None:
    story = Story()
    job = story.training()
    story.run_for(5.0)
    wider = gpus("a", 2, 3)
    move = Move(job=job, allocation=wider, why="test", batching=Batching(per_gpu=32))
    story.chooser.moves = (move,)
    story.plan()
    story.run_for(60.0)

    after = story.job(job).attempt
    assert after is not None
    assert after.number == 2
    assert after.batching == Batching(per_gpu=32)
    assert story.profile(job).gpus_reached == 2


@pytest.mark.parametrize(
    ("adaptive", "changes", "words"),
    [
        (Adaptive(batch=0, batch_max=8), {}, "a batch of 0 samples"),
        (Adaptive(batch=64, batch_max=8), {}, "the largest batch, 8, is smaller than the batch"),
        (structs.replace(ADAPTIVE, replica_gpus=(("t4", 0),)), {}, "a replica of the model has no"),
        (
            Adaptive(batch=8, batch_max=8, scaling=Scaling.STRONG, inference=Inference()),
            {},
            "an inference job has no gradients to share",
        ),
        (ADAPTIVE, {"movable": False}, "must be elastic"),
        (ADAPTIVE, {"places_max": 0}, "requests a range of GPUs"),
        (
            structs.replace(ADAPTIVE, gpu_types=("a100", "h100")),
            {},
            "no node has GPUs of type a100 or h100",
        ),
    ],
)
def test_what_contradicts_itself_is_refused(
    adaptive: Adaptive, changes: dict[str, object], words: str
) -> None:
    story = Story()
    with pytest.raises(InvalidRequestError, match=words):
        story.training(adaptive, **changes)
    assert not story.head.state.jobs


def test_a_head_that_was_started_anew_knows_what_was_measured(tmp_path: Path) -> None:
    books = Books(tmp_path)
    books.head.state.plans_adaptive = books.head.state.plans_training = True
    books.register(cpus=8, gpus=4)
    job = books.submit(
        "select=1:ncpus=1:ngpus=1", kind="net", movable=True, places_max=4, adaptive=ADAPTIVE
    )
    books.schedule()
    books.take(
        books.head.reported("n1", n.Started(job=job, attempt=1, pid=1, started_s=BEGIN_S), BEGIN_S)
    )
    told = n.TrainingProgress(
        job=job, attempt=1, step=10, at_s=BEGIN_S, step_s=0.5, gradient_s=0.2, batch_per_gpu=32,
        gradient_sqr=1.0, gradient_var=30.0,
    )  # fmt: skip
    books.take(books.head.reported("n1", told, BEGIN_S))
    before = books.head.state.goodputs.model(job, "1001:kind:net", ADAPTIVE)
    assert before.types()

    books.reopen()

    assert books.head.state.goodputs.model(job, "1001:kind:net", ADAPTIVE) == before

"""Adaptive training jobs under sia, on the head's own core: they start small, grow, change type."""

import math

import pytest
from msgspec import structs

from baselines.registry import ALL
from gsched.config.policies import SiaConfig, TrainingConfig
from gsched.config.tables import Config
from gsched.model.reports import StepSample
from gsched.model.training import Adaptive, Inference, Scaling
from gsched.protocol import actions as a
from gsched.protocol import node as n
from gschedd.core.requests import commands as c
from gschedd.core.state import facts as f
from gschedd.core.state.state import State
from gschedd.plan.training import gpus_by_node
from tests.support.world import ADMIN, Program, World, node, settings

ROUND_S = 60.0
#: Seconds of a sample on a GPU; each step takes as long as 64 more.
SAMPLE_S = {"t4": 0.004, "a100": 0.001}


class Story(World):
    """Two nodes of unequal GPUs; training jobs report after each round what they measure."""

    policy_name = "sia"

    def __init__(self, max_moves: int = 4, **chosen: object) -> None:
        machines = (
            node("a", cpus=8, gpu_types=("a100",) * 4),
            node("t", cpus=8, gpu_types=("t4",) * 4),
        )
        training = TrainingConfig(sia=structs.replace(SiaConfig(), **chosen))
        config = settings(at_once=max_moves)
        plan = ALL.choose(self.policy_name, Config(training=training)).plan
        super().__init__(*machines, policy=plan, config=config)

    def _fresh_state(self) -> State:
        return State({"batch": 0}, plans_training=True, plans_adaptive=True)

    def training(
        self,
        kind: str = "net",
        most: int = 8,
        *,
        adaptive: Adaptive | None = None,
        **changes: object,
    ) -> int:
        changes = {"runs_s": 9e4, "movable": True, "kind": kind, "places_max": most} | changes
        adaptive = adaptive or Adaptive(batch=64, batch_max=4096)
        if most == 1:
            adaptive = Adaptive(batch=64, batch_max=64, scaling=Scaling.RIGID)
            changes["places_max"] = 0
        asked = "select=1:ncpus=1:ngpus=1,place=free"
        return self.submit(asked, adaptive=adaptive, **changes)  # type: ignore[arg-type] # passed on

    def rounds(self, count: int, *, silent: bool = False) -> None:
        """Let rounds pass; training jobs report in the middle of each."""
        for _ in range(count):
            next_s = (math.floor(self.now_s / ROUND_S) + 1) * ROUND_S
            self.run_for(next_s - self.now_s - ROUND_S / 2)
            if not silent:
                self.report()
            self.run_for(ROUND_S / 2 + 1)

    def report(self) -> None:
        """Let each training that runs say how long its steps take: in proportion to its GPUs."""
        for number, job in list(self.head.state.running.items()):
            attempt = job.attempt
            if attempt is None or attempt.batching is None or job.spec.adaptive is None:
                continue
            name = attempt.allocation[0].node
            gradient_s = SAMPLE_S["a100" if name == "a" else "t4"] * (64 + attempt.batching.per_gpu)
            step_s = gradient_s * (attempt.batching.accumulation + 1)
            told = n.TrainingProgress(
                job=number,
                attempt=attempt.number,
                step=1 + int(self.now_s),
                at_s=self.now_s,
                step_s=step_s,
                gradient_s=gradient_s,
                batch_per_gpu=attempt.batching.per_gpu,
                accumulation=attempt.batching.accumulation,
                gradient_sqr=1.0,
                gradient_var=100.0,
            )
            self._take(self.head.reported(name, told, self.now_s))
        self.settle()

    def assigned(self, number: int) -> list[f.AttemptAssigned]:
        told = self.told(f.AttemptAssigned, number)
        return [fact for fact in told if isinstance(fact, f.AttemptAssigned)]

    def gpus(self, number: int) -> dict[str, int]:
        attempt = self.job(number).attempt
        return gpus_by_node(attempt.allocation) if attempt is not None else {}


def test_a_training_grows_to_twice_its_gpus_at_each_round() -> None:
    """One GPU, two, four of a100; then eight would lie on unequal GPUs, and that is all."""
    story = Story()
    job = story.training()
    story.run_for(1.0)
    seen = [story.gpus(job)]
    for _ in range(4):
        story.rounds(1)
        story.run_for(20.0)
        seen.append(story.gpus(job))

    assert [sum(each.values()) for each in seen] == [1, 2, 4, 4, 4]
    attempt = story.job(job).attempt
    assert attempt is not None
    assert attempt.batching is not None
    assert attempt.batching.per_gpu * 4 > 64, "the batch has grown with the GPUs"


def test_each_type_is_profiled_once_for_a_kind_and_a_new_job_goes_where_it_is_best() -> None:
    """The first job tries the other type as soon as that may pay; the second has nothing to try."""
    story = Story(p=-1.0)
    story.do(c.ActOnNode(caller=ADMIN, node="a", action=a.DrainNode(reason="dust")))
    first = story.training(most=1)
    story.run_for(1.0)
    assert story.gpus(first) == {"t": 1}
    story.do(c.ActOnNode(caller=ADMIN, node="a", action=a.ResumeNode()))
    story.rounds(8)

    assert story.gpus(first) == {"a": 1}
    second = story.training(most=1)
    story.rounds(2)

    assert [fact.profile_batches for fact in story.assigned(first)] == [True, True]
    assert story.gpus(second) == {"a": 1}
    assert [fact.profile_batches for fact in story.assigned(second)] == [False]


def test_a_type_that_was_slower_for_other_kinds_is_not_tried() -> None:
    """What one kind has shown is enough for the next one to stay on the faster type."""
    story = Story(p=-1.0)
    for number in range(2):
        story.do(c.ActOnNode(caller=ADMIN, node="at"[number], action=a.DrainNode(reason="dust")))
        job = story.training(most=1)
        story.rounds(1)
        story.delete(job)
        story.do(c.ActOnNode(caller=ADMIN, node="at"[number], action=a.ResumeNode()))
    other = story.training("other", most=1)
    story.rounds(8)

    types = [fact.allocation[0].node for fact in story.assigned(other)]
    assert types[-1] == "a"
    assert len(types) == len(set(types)), "no type is tried again"


def test_a_training_that_says_nothing_stays_on_its_minimum() -> None:
    story = Story()
    job = story.training()
    story.rounds(5, silent=True)

    assert sum(story.gpus(job).values()) == 1
    assert story.job(job).attempts == 1


def test_a_job_that_is_not_preemptible_starts_at_its_size_and_keeps_it() -> None:
    """The first of its kind on its minimum, as nothing is known; the next one on more GPUs."""
    story = Story()
    stays = Adaptive(batch=64, batch_max=4096, preemptible=False)
    first = story.training(adaptive=stays)
    story.run_for(1.0)
    story.report()
    second = story.training(adaptive=stays)
    story.run_for(1.0)
    before = [story.gpus(job) for job in (first, second)]
    other = story.training("other")
    story.rounds(5)

    assert [sum(each.values()) for each in before] == [1, 4]
    assert [story.gpus(job) for job in (first, second)] == before
    assert [story.job(job).attempts for job in (first, second)] == [1, 1]
    assert sum(story.gpus(other).values()) >= 1


def inferring(story: Story, inference: Inference) -> int:
    """Return a job that answers requests, and has measured its batches on one a100."""
    story.do(c.ActOnNode(caller=ADMIN, node="t", action=a.DrainNode(reason="dust")))
    asked = Adaptive(batch=8, batch_max=512, inference=inference)
    job = story.training(adaptive=asked)
    story.run_for(1.0)
    samples = tuple(
        StepSample(batch_per_gpu=batch, step_s=passed_s, gradient_s=passed_s)
        for batch in (8, 64, 512)
        for passed_s in (SAMPLE_S["a100"] * (64 + batch),)
    )
    told = n.TrainingProgress(job=job, attempt=1, step=1, at_s=story.now_s, profile=samples)
    story._take(story.head.reported("a", told, story.now_s))
    story.do(c.ActOnNode(caller=ADMIN, node="t", action=a.ResumeNode()))
    return job


def batch_of(story: Story, job: int) -> int:
    attempt = story.job(job).attempt
    assert attempt is not None
    assert attempt.batching is not None
    return attempt.batching.per_gpu


def test_batch_inference_grows_with_its_largest_batch() -> None:
    story = Story()
    job = inferring(story, Inference())
    story.rounds(6)

    assert sum(story.gpus(job).values()) == 4
    assert batch_of(story, job) == 512


def test_inference_with_a_latency_has_batches_that_keep_it() -> None:
    """A batch of m takes 1 ms times (64 + m) on a100: 136 are done in 200 ms."""
    story = Story()
    job = inferring(story, Inference(latency_s=0.2))
    story.rounds(6)

    assert story.gpus(job) == {"a": 4}
    assert batch_of(story, job) == pytest.approx(136, abs=2)


def test_inference_gets_no_more_gpus_than_its_requests_need() -> None:
    """136 in 200 ms are 680 a second on one GPU, and 600 arrive."""
    story = Story()
    job = inferring(story, Inference(latency_s=0.2, requests_per_s=600.0))
    story.rounds(6)

    assert story.gpus(job) == {"a": 1}


def test_between_rounds_only_new_training_jobs_start() -> None:
    story = Story()
    first = story.training()
    story.rounds(1)
    story.run_for(20.0)
    story.report()
    attempts = story.job(first).attempts
    second = story.training()
    story.run_for(1.0)

    assert sum(story.gpus(second).values()) == 1
    assert story.job(first).attempts == attempts


def test_training_jobs_that_come_make_room_for_each_other() -> None:
    """Eight jobs on eight GPUs: none waits, although the first had four of them."""
    story = Story(lambda_n=5.0)
    jobs = [story.training()]
    story.rounds(4)
    assert sum(story.gpus(jobs[0]).values()) == 4
    jobs += [story.training(f"net{number}") for number in range(7)]
    story.rounds(6)

    assert [sum(story.gpus(job).values()) for job in jobs] == [1] * 8


def test_moves_of_a_round_that_have_to_wait_are_made_before_the_next_round() -> None:
    """Four jobs are to have two GPUs each; one migrates at a time, and all within the round."""
    story = Story(max_moves=1)
    slow = Program(runs_s=9e4, saves_s=5.0)
    jobs = [story.training(f"net{number}", program=slow) for number in range(4)]
    story.run_for(1.0)
    story.report()
    story.rounds(1)
    most = 0
    for _ in range(50):
        most = max(most, len(story.head.state.targets))
        story.run_for(1.0)

    assert most == 1
    assert [sum(story.gpus(job).values()) for job in jobs] == [2] * 4
    assert not story.head.state.volatile.moves_left
    attempts = [story.job(job).attempts for job in jobs]
    story.run_for(5.0)
    assert [story.job(job).attempts for job in jobs] == attempts, "between rounds nothing moves"


def test_a_training_that_waits_is_told_why() -> None:
    """With the published settings no training shrinks from two GPUs to one for it."""
    story = Story()
    jobs = [story.training()]
    story.rounds(4)
    jobs += [story.training(f"net{number}") for number in range(7)]
    story.rounds(6)
    waiting = [job for job in jobs if not story.gpus(job)]

    assert sum(sum(story.gpus(job).values()) for job in jobs) == 8
    assert waiting
    assert {story.why(job) for job in waiting} == {"other jobs gain more goodput from the GPUs"}


def test_other_training_jobs_are_planned_by_their_queue() -> None:
    """One with a deadline and no adaptive batch starts on the fewest GPUs that it requests."""
    story = Story()
    plain = story.submit(
        "select=2:ncpus=1:ngpus=1,place=free",
        movable=True,
        places_max=4,
        deadline_after_s=1e6,
        runs_s=1e3,
    )
    other = story.training()
    story.run_for(5.0)

    assert sum(story.gpus(plain).values()) == 2
    assert sum(story.gpus(other).values()) == 1


def test_a_round_leaves_a_drained_node_alone() -> None:
    """The training there keeps its GPUs, and no other is started there."""
    story = Story()
    first = story.training()
    story.run_for(5.0)
    (home,) = story.gpus(first)
    story.do(c.ActOnNode(caller=ADMIN, node=home, action=a.DrainNode(reason="dust")))
    second = story.training("other")
    story.rounds(2)

    assert home not in story.gpus(second)


def test_what_was_decided_is_in_the_history_of_the_job() -> None:
    story = Story()
    job = story.training()
    story.run_for(1.0)
    (assigned,) = story.told(f.AttemptAssigned, job)

    assert isinstance(assigned, f.AttemptAssigned)
    assert assigned.why.startswith("on 1 GPU of type ")


class GoodputStory(Story):
    """The same under the policy ``goodput``."""

    policy_name = "goodput"


def test_under_goodput_a_training_of_a_known_kind_starts_on_several_gpus() -> None:
    """The first of its kind starts on its minimum, and the second one under sia, too."""
    started: dict[str, list[int]] = {}
    for made in (Story, GoodputStory):
        story = made()
        jobs = [story.training()]
        story.run_for(1.0)
        started[made.policy_name] = [sum(story.gpus(jobs[0]).values())]
        story.rounds(3)
        story.run_for(20.0)
        jobs.append(story.training())
        story.run_for(1.0)
        started[made.policy_name].append(sum(story.gpus(jobs[1]).values()))

    assert started == {"sia": [1, 1], "goodput": [1, 4]}

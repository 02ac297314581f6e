"""Every job that waits is told when it starts, with an interval, or why nobody can say so."""

import math
import random

import pytest

from baselines.registry import ALL
from gsched.config.tables import QueueConfig
from gsched.model.ids import element_number
from gsched.model.states import HoldKind
from gsched.model.training import Adaptive, Training
from gschedd.core.cycle.run import snapshot
from gschedd.core.forecast.pinned import Pinned
from gschedd.core.forecast.question import at_once, questions_of
from gschedd.core.forecast.runtimes import RunTime, refuted, share_of
from gschedd.core.forecast.start import answer_to
from gschedd.core.state.elements import waiting_job
from gschedd.core.state.state import State
from gschedd.core.views.ahead import jobs_ahead
from gschedd.models.robust import RobustModel
from gschedd.plan.forecast import Forecast, RunTimeEvidence
from gschedd.plan.snapshot import Plan, Snapshot
from gschedd.policies.queue import balance, fifo
from scripts.reproduce.prediction_cases import dealt_s, exact
from tests.scenario.test_sharing_gpus import sharing_node
from tests.support.world import ADMIN, BEGIN_S, Program, World, node, settings


def start_of(world: World, number: int) -> Forecast:
    """Return the forecast for a job that waits; moments are since the world began."""
    head = world.head
    job = waiting_job(head.state, number)
    assert job is not None, "it does not wait"
    seen = snapshot(head.state, head.settings, world.now_s, head.model)
    question, meant, unknown = at_once(
        questions_of([job], state=head.state, settings=head.settings, seen=seen)
    )
    if question is None:
        return Forecast(start_unknown=unknown[number])
    return answer_to(question, world.policy).starts[meant[number]]


def spread_of(world: World, number: int) -> tuple[float, float, float]:
    """Return the early, expected and late start, seconds since the world began."""
    spread = start_of(world, number).interval
    assert spread is not None
    assert spread.expected_s is not None
    assert spread.late_s is not None
    return (spread.early_s - BEGIN_S, spread.expected_s - BEGIN_S, spread.late_s - BEGIN_S)


def why(world: World, number: int) -> str:
    """Return why the start of a job is unknown; it is."""
    start = start_of(world, number)
    assert start.start_s is None
    assert start.interval is None
    return start.start_unknown


def test_each_job_has_each_share_once_and_jobs_differ() -> None:
    shares = {job: [share_of(job, n, 20) for n in range(20)] for job in range(1, 9)}

    assert all(sorted(each) == [(n + 0.5) / 20 for n in range(20)] for each in shares.values())
    assert len({tuple(each) for each in shares.values()}) == 8


def test_quantiles_of_a_run_time_are_those_of_what_was_learned_and_of_what_is_left() -> None:
    known = Pinned(median_s=100.0, sigma=0.5, limit_s=1000.0)
    unknown = RunTime(limit_s=1000.0)

    assert known.at(0.5) == pytest.approx(100.0)
    assert known.at(0.999999) == 1000.0, "its walltime ends it"
    assert known.at(0.5, age_s=100.0) == pytest.approx(140.1, abs=0.1), "of those that run longer"
    assert unknown.pinned(0.25).median_s == pytest.approx(250.0, rel=0.2)
    assert unknown.pinned(0.75).median_s == pytest.approx(750.0, rel=0.1)
    assert RunTime().is_unknown


def test_jobs_that_run_refute_what_would_have_ended_them() -> None:
    """Of a walltime of 1000 s, 800 s have passed: no element is taken to need less."""
    unknown = RunTime(kind="k", limit_s=1000.0)

    chances = refuted([(unknown, 800.0)] * 3)["k"]

    assert unknown.pinned(0.1, chances).median_s > 500
    assert unknown.pinned(0.1).median_s < 110


def test_a_straggler_does_not_refute_what_is_learned() -> None:
    learned = RunTime(
        kind="k",
        median_s=100.0,
        sigma=0.1,
        located=0.1,
        weight=0.98,
        runs=30,
        own=True,
        limit_s=10_000.0,
    )

    chances = refuted([(learned, 1500.0), (learned, 10.0)])["k"]

    assert learned.pinned(0.5, chances).median_s == pytest.approx(100, rel=0.3)


def test_many_jobs_that_run_refute_no_more_than_one_of_them() -> None:
    """All 256 are about to end: that is what was learned, and nothing else."""
    past = tuple((90.0 + number, 1.0) for number in range(20))
    learned = RunTime(kind="k", median_s=100.0, runs=20, own=True, past=past, limit_s=10_000.0)

    chances = refuted([(learned, 80.0 + number % 16) for number in range(256)])["k"]

    assert learned.pinned(0.5, chances).median_s == pytest.approx(100, rel=0.15)


def test_runs_that_failed_at_once_tell_hardly_how_long_the_next_one_takes() -> None:
    """A script with a mistake ended after two seconds, of two hours; then it is mended."""
    world = World(node("n1", cpus=1))
    world.head.model = RobustModel()
    for _ in range(2):
        mistaken = Program(runs_s=2, exit_code=1)
        world.submit("walltime=2:00:00", kind="script", program=mistaken)
        world.run_for(10)
    begun_s = world.elapsed_s
    world.submit("walltime=2:00:00", kind="script", runs_s=5000)
    job = world.submit("walltime=10")
    world.run_for(1)

    _, expected_s, late_s = (at_s - begun_s for at_s in spread_of(world, job))

    assert expected_s > 600
    assert late_s > 5000


@pytest.mark.parametrize("long_s", [100.0, 1000.0])
def test_behind_a_long_array_the_mean_of_its_runs_decides(long_s: float) -> None:
    """Every fourth element may take ten times as long as the others do."""
    world = World(node("n1", cpus=8))
    world.head.model = RobustModel()
    chance = random.Random(7)
    runs_s = [
        (100.0 if chance.random() < 0.75 else long_s) * math.exp(chance.gauss(0, 0.1))
        for _ in range(20_000)
    ]
    array = world.submit("walltime=2:00:00", array="0-19999")
    for index in range(300):
        world.programs[element_number(array, index)] = Program(runs_s=runs_s[index])
    job = world.submit("walltime=10", name="last")
    while world.head.state.jobs[array].elements.succeeded < 60:  # type: ignore[union-attr]  # an array
        world.run_for(20)

    early_s, expected_s, late_s = spread_of(world, job)

    assert expected_s == pytest.approx(dealt_s(runs_s, 8), rel=0.3)
    assert 0.97 * early_s < dealt_s(runs_s, 8) < 1.03 * late_s


def test_few_runs_that_are_alike_by_chance_leave_weight_to_the_walltime() -> None:
    """Three elements of a thousand took ten seconds, of ten minutes; after six it is learned."""
    world = World(node("n1", cpus=1))
    world.head.model = RobustModel()
    world.submit("walltime=600", array="0-999", runs_s=10)
    job = world.submit("walltime=10", name="last")

    world.run_for(35)
    _, expected_s, late_s = spread_of(world, job)
    assert expected_s == pytest.approx(10_000, rel=0.3)
    assert late_s > 30_000
    world.run_for(30)
    assert spread_of(world, job)[2] < 20_000


def test_one_short_job_does_not_predict_another_one() -> None:
    """A first job of a second, then two of two hours that nobody has seen before."""
    world = World(node("n1", cpus=2))
    world.head.model = RobustModel()
    world.submit("", runs_s=1, kind="true")
    world.run_for(10)
    begun_s = world.elapsed_s
    world.submit("ncpus=2,walltime=2:00:00", runs_s=600, kind="longjob")
    world.submit("ncpus=2,walltime=2:00:00", runs_s=601, kind="longjob")
    job = world.submit("walltime=10", name="last")
    world.run_for(5)

    early_s, expected_s, late_s = (at_s - begun_s for at_s in spread_of(world, job))
    spread = start_of(world, job).interval

    assert spread is not None
    assert (spread.known.counted, spread.known.learned) == (2, 0)
    assert expected_s > 1800
    assert late_s - early_s > 3600


def test_behind_a_large_array_all_elements_count_at_a_bounded_cost() -> None:
    """100,000 elements of 100 s, four at a time; one cycle has made 256 of them jobs."""
    world = World(node("n1", cpus=4))
    array = world.submit("walltime=100", array="0-99999", runs_s=100)
    job = world.submit("walltime=10", name="last")
    asked: list[float] = []

    def counting(snapshot: Snapshot) -> Plan:
        asked.append(snapshot.now_s)
        return fifo.plan(snapshot)

    world.policy = counting
    start = start_of(world, job)

    assert start.start_s == pytest.approx(BEGIN_S + 100 * 100_000 / 4, rel=1e-3)
    assert start.interval is not None
    assert start.interval.known.counted == 100_000
    assert start.interval.late_s is not None
    assert start.interval.late_s - start.interval.early_s > 100 * 100_000 / 4 / 2, "all are alike"
    assert len(asked) < 1000
    assert jobs_ahead(world.job(job), world.head.state).jobs == 100_000 - 4
    assert array in world.head.state.arrays


def test_elements_are_dealt_to_places_as_the_head_deals_them() -> None:
    """What the measured coverage behind an array is compared with is what the head does."""
    world = World(node("n1", cpus=3))
    runs_s = [10.0 + number * 7 % 31 for number in range(300)]
    array = world.submit("walltime=100", array="0-299")
    for index, run_s in enumerate(runs_s):
        world.programs[element_number(array, index)] = Program(runs_s=run_s)
    job = world.submit("walltime=10", name="last")
    world.run_until(5000)

    assert world.started_s(job) == pytest.approx(dealt_s(runs_s, 3))


def test_where_all_jobs_run_for_their_walltimes_the_planned_start_is_the_start() -> None:
    """Twenty jobs on two nodes, many of which backfill; no two end at the same moment."""
    cases = [outcome.case for seed in range(25) if (outcome := exact(f"known {seed}", ()))]

    assert len(cases) > 20
    assert [case for case in cases if case is None or not case.is_covered] == []


def test_without_learned_run_times_a_start_lies_anywhere_within_the_walltime() -> None:
    """One job of at most 1000 s is ahead: one in ten ends within 100 s, one in twelve runs on."""
    world = World(node("n1", cpus=1))
    world.submit("walltime=1000", runs_s=1000)
    job = world.submit("walltime=10")

    early_s, expected_s, late_s = spread_of(world, job)
    assert 40 < early_s < 120
    assert expected_s == pytest.approx(450, rel=0.15)
    assert 880 < late_s <= 1000
    start = start_of(world, job)
    assert start.start_s == BEGIN_S + 1000
    assert start.interval is not None
    assert start.interval.scenarios == 20
    assert start.interval.known == RunTimeEvidence(counted=1)


def test_with_learned_run_times_it_is_narrow() -> None:
    """Jobs of the kind took 95 to 105 s of 5000 that they request."""
    world = World(node("n1", cpus=1))
    world.head.model = RobustModel()
    for number in range(20):
        world.submit("walltime=5000", kind="known", runs_s=95 + number % 11)
        world.run_for(200)
    begun_s = world.elapsed_s
    world.submit("walltime=5000", kind="known", runs_s=100)
    job = world.submit("walltime=10")

    early_s, expected_s, late_s = (at_s - begun_s for at_s in spread_of(world, job))

    assert 80 < early_s < expected_s < late_s < 125
    assert expected_s == pytest.approx(100, abs=5)


def test_what_is_behind_a_job_without_any_limit_says_which_job() -> None:
    world = World(node("n1", cpus=1))
    endless = world.submit(runs_s=10)
    job = world.submit("walltime=10")

    assert why(world, job) == (
        f"job {endless} has no walltime and no learned run time, so nobody knows when resources "
        "become free"
    )


def test_a_job_that_no_node_can_hold_any_more_says_so() -> None:
    """The large node has gone."""
    world = World(node("n1", cpus=1), node("n2", cpus=8))
    world.submit("ncpus=8,walltime=10", runs_s=10)
    job = world.submit("ncpus=8,walltime=10")
    world.lose_power("n2")
    world.run_for(1)

    assert "the nodes that accept jobs now do not hold it" in why(world, job)


def test_a_job_with_a_start_time_waits_for_that_and_for_the_queue() -> None:
    world = World(node("n1", cpus=1))
    world.submit("walltime=1000", runs_s=1000)
    soon = world.submit("walltime=10", start_after_s=BEGIN_S + 300)
    late = world.submit("walltime=10", start_after_s=BEGIN_S + 5000)

    assert spread_of(world, soon) == pytest.approx((300, 450, 900), rel=0.15)
    assert spread_of(world, late) == (5000, 5000, 5000)


def test_jobs_that_come_later_and_are_ahead_then_count() -> None:
    """A job of higher priority starts at 50 s and runs for 1000 s."""
    world = World(node("n1", cpus=1))
    world.submit("walltime=100", runs_s=100)
    world.submit("walltime=1000", priority=5, start_after_s=BEGIN_S + 50)
    job = world.submit("walltime=10")

    early_s, _, late_s = spread_of(world, job)

    assert early_s < 200, "where the first one ends within 50 s"
    assert late_s > 400, "where it has not"
    assert start_of(world, job).start_s == BEGIN_S + 1100


def test_a_job_with_dependencies_starts_after_them() -> None:
    """After a job that waits itself, and after one that waits for that one."""
    world = World(node("n1", cpus=4))
    world.submit("ncpus=4,walltime=100", runs_s=100)
    first = world.submit("ncpus=1,walltime=200")
    second = world.submit("ncpus=1,walltime=400", depends=(f"afterok:{first}",))
    third = world.submit("ncpus=1,walltime=10", depends=(f"afterany:{second}",))
    begun = world.submit("ncpus=1,walltime=10", depends=(f"after:{first}",))

    starts_s = [start_of(world, job).start_s for job in (first, second, third, begun)]

    assert starts_s == [BEGIN_S + 100, BEGIN_S + 300, BEGIN_S + 700, BEGIN_S + 100]
    assert spread_of(world, second)[1] == pytest.approx(130, abs=30)


def test_why_the_start_of_a_job_with_dependencies_is_unknown() -> None:
    world = World(node("n1", cpus=1))
    first = world.submit("walltime=100", runs_s=100)
    held = world.submit("walltime=100", holds=("user",))
    failed = world.submit(depends=(f"afternotok:{first}",))
    behind = world.submit(depends=(f"afterok:{held}",))
    counting = world.submit(depends=("on:2",))

    assert why(world, failed) == f"it starts only if job {first} fails"
    assert why(world, behind) == f"it waits for job {held}, which is held by user"
    assert why(world, counting) == "it waits for 2 more jobs to name it with -W depend=before"
    assert why(world, held) == (
        "the job is held by user; its start can be predicted once it is released"
    )


def test_a_stopped_queue_and_an_operators_hold_are_reasons() -> None:
    queues = {"batch": QueueConfig(name="batch"), "shut": QueueConfig(name="shut", started=False)}
    world = World(node("n1", cpus=1), config=settings(queues=queues))
    world.submit("walltime=10")
    shut = world.submit("walltime=10", queue="shut")
    job = world.submit("walltime=10")
    world.hold(job, by=ADMIN, kind=HoldKind.OPERATOR)

    assert why(world, shut) == "queue shut is stopped"
    assert why(world, job).startswith("the job is held by operator")


def test_elements_of_an_array_start_one_after_the_other() -> None:
    """One at once: the fourth element is no job yet, and starts after three of 100 s."""
    world = World(node("n1", cpus=4))
    array = world.submit("walltime=100", array="0-5%1", runs_s=100)
    fourth = element_number(array, 3)
    after = world.submit("walltime=10", depends=(f"afterany:{array}",))

    assert fourth not in world.head.state.jobs
    assert start_of(world, fourth).start_s == BEGIN_S + 300
    assert start_of(world, array).start_s == BEGIN_S + 100, "that of the next element"
    assert start_of(world, after).start_s == BEGIN_S + 600
    early_s, expected_s, late_s = spread_of(world, fourth)
    assert 10 < early_s < expected_s < late_s < 300
    assert expected_s == pytest.approx(140, abs=40)
    assert late_s - early_s > 200, "what one element takes the others take as well"


def test_an_array_on_hold_says_so() -> None:
    world = World(node("n1", cpus=1))
    array = world.submit("walltime=100", array="0-5", holds=("user",))

    for number in (array, element_number(array, 2)):
        assert "held by user" in why(world, number)


def test_a_job_that_asks_for_a_part_of_a_gpu_is_predicted() -> None:
    world = World(sharing_node("n1"), policy=balance.plan)
    world.submit("gpu_share=60%:4gb,walltime=100", runs_s=100)
    job = world.submit("gpu_share=60%:4gb,walltime=100")

    assert start_of(world, job).start_s == BEGIN_S + 100
    early_s, expected_s, late_s = spread_of(world, job)
    assert early_s < 12 < expected_s < 60 < 85 < late_s


def test_many_jobs_are_predicted_together_as_one_by_one() -> None:
    """What is behind a job is not played when it alone is asked about."""
    world = World(node("n1", cpus=1))
    jobs = [world.submit("walltime=100", runs_s=100) for _ in range(6)][1:]
    held = world.submit(holds=("user",))
    head = world.head
    seen = snapshot(head.state, head.settings, world.now_s, head.model)
    asked = [head.state.jobs[job] for job in (*jobs, held)]

    question, meant, unknown = at_once(
        questions_of(asked, state=head.state, settings=head.settings, seen=seen)
    )

    assert question is not None
    assert list(unknown) == [held]
    starts = answer_to(question, world.policy).starts
    for job in jobs:
        alone, together = start_of(world, job), starts[meant[job]]
        assert alone.start_s == together.start_s
        assert alone.interval is not None
        assert together.interval is not None
        assert alone.interval.expected_s == pytest.approx(together.interval.expected_s, abs=30)


def test_a_question_is_about_its_first_moment_whatever_happens_between_its_pieces() -> None:
    """Jobs end, start and come while it is worked out; one of those that ran has no run time."""
    world = World(node("n1", cpus=2))
    jobs = [world.submit(f"walltime={100 + n}", runs_s=100 + n) for n in range(5)]
    head = world.head
    first = start_of(world, jobs[4])
    seen = snapshot(head.state, head.settings, world.now_s, head.model)
    steps = questions_of(
        [head.state.jobs[jobs[4]]], state=head.state, settings=head.settings, seen=seen
    )
    next(steps)
    world.run_for(101)  # the first two have ended, two others run
    world.submit("walltime=1", priority=100)

    question, meant, unknown = at_once(steps)

    assert question is not None
    assert not unknown
    assert [each.job for each in question.seen.running] == jobs[:2]
    assert [job for group in question.seen.groups for _, job in group.order] == jobs[2:]
    answer = answer_to(question, world.policy).starts[meant[jobs[4]]]
    assert answer.start_s == first.start_s


def test_a_queue_too_long_to_be_played_tells_before_which_moment_nothing_happens() -> None:
    """600 jobs, two at a time: half of the questions are spent on the first 100 ends."""
    world = World(node("n1", cpus=2))
    jobs = [world.submit(f"ncpus=1,walltime={10 + n % 7}") for n in range(600)]

    start = start_of(world, jobs[-1])

    assert start.start_s is None
    assert start.not_before_s is not None
    assert start.not_before_s > BEGIN_S + 500
    assert "too long to be played" in start.start_unknown


@pytest.mark.parametrize("name", ["fifo", "balance"])
def test_forecasts_do_not_change_what_they_are_about(name: str) -> None:
    """Asked twice, the same is told, and the state is as it was."""
    world = World(node("n1", cpus=2), policy=ALL.choose(name).plan)
    jobs = [world.submit("ncpus=1,walltime=50", runs_s=30) for _ in range(8)]

    first = [start_of(world, job) for job in jobs[2:]]
    second = [start_of(world, job) for job in jobs[2:]]
    world.run_until(1000)

    assert first == second
    assert all(world.state(job) == "done" for job in jobs)


class TrainingJobs(World):
    """Two nodes with two GPUs each, under a policy that plans training jobs."""

    def __init__(self, name: str) -> None:
        self.chosen = ALL.choose(name)
        machines = [node(each, cpus=8, gpu_types=("a100",) * 2) for each in "ab"]
        super().__init__(*machines, policy=self.chosen.plan)

    def _fresh_state(self) -> State:
        chosen = self.chosen
        return State({"batch": 0}, plans_training=True, plans_adaptive=chosen.plans_adaptive)

    def training(self, **changes: object) -> int:
        """Submit a training job of 100 s on two GPUs."""
        said = Training(iterations=1000.0, rates=((1, 5.0), (2, 10.0)))
        given = {"training": said, "movable": True, "runs_s": 100.0} | changes
        return self.submit("select=1:ncpus=1:ngpus=2,place=free", **given)  # type: ignore[arg-type]  # passed on


@pytest.mark.parametrize("name", ["drs", "deadline", "elasticflow", "sia", "goodput"])
def test_training_jobs_are_predicted_under_every_policy(name: str) -> None:
    """Two of 100 s run; the others start when these have ended, give or take a round."""
    world = TrainingJobs(name)
    jobs = [world.training() for _ in range(4)]
    world.run_for(1)

    waiting = [job for job in jobs if world.state(job) == "queued"]
    starts = {job: start_of(world, job) for job in waiting}

    assert waiting
    for job, start in starts.items():
        assert start.start_s is not None, (job, start.start_unknown)
        assert 0 <= start.start_s - BEGIN_S <= 300, (job, start)


@pytest.mark.parametrize("name", ["sia", "goodput"])
def test_an_adaptive_job_of_unknown_length_is_named(name: str) -> None:
    """It never said how much work it has: who waits for it is told that, or starts beside it."""
    world = TrainingJobs(name)
    for _ in range(6):
        world.training(adaptive=Adaptive(batch=64, batch_max=4096), training=None, places_max=2)
    world.run_for(1)
    waiting = [job for job in world.head.state.jobs if world.state(job) == "queued"]

    for job in waiting:
        start = start_of(world, job)
        assert start.start_s is not None or start.start_unknown

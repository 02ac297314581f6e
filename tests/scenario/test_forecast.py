"""When will my job start? Predicted by asking the policy again, and true if nothing new comes."""

import pytest
from msgspec import structs

from gsched.model.training import Training
from gschedd.core.cycle.run import snapshot
from gschedd.core.forecast.deadline import foresee
from gschedd.core.forecast.start import (
    MAX_AHEAD,
    MAX_ROUNDS,
    MIN_ROUNDS,
    AskStart,
    ForecastAnswer,
    answer_to,
)
from gschedd.core.state.state import State
from gschedd.models.robust import RobustModel
from gschedd.plan.compose import Composed
from gschedd.plan.forecast import Forecast
from gschedd.plan.snapshot import Plan, Snapshot
from gschedd.policies.queue import fifo
from gschedd.policies.training import drs
from tests.support.world import BEGIN_S, World, node, settings


def forecast_s(world: World, job: int) -> float | None:
    """Return the predicted start, seconds since the world began."""
    state = world.head.state
    question = AskStart(
        seen=snapshot(state, world.settings, world.now_s, world.head.model),
        job=job,
        key=state.order_key(state.jobs[job]),
    )
    start_s = answer_to(question, world.policy).starts[job].start_s
    return None if start_s is None else start_s - BEGIN_S


def test_a_forecast_comes_true_when_jobs_run_to_their_walltime() -> None:
    """Seven jobs of three sizes on two nodes: each starts exactly when it was predicted."""
    world = World(node("n1", cpus=4), node("n2", cpus=4))
    sizes = [(4, 30), (3, 50), (4, 20), (1, 40), (2, 10), (4, 60), (1, 5)]
    jobs = [
        world.submit(f"ncpus={cpus},walltime={limit_s}", runs_s=limit_s) for cpus, limit_s in sizes
    ]
    waiting = [job for job in jobs if world.state(job) == "queued"]
    predicted = {job: forecast_s(world, job) for job in waiting}

    world.run_until(1000)

    assert len(waiting) >= 2
    assert predicted == {job: world.started_s(job) for job in waiting}


def test_what_the_site_assumes_counts_for_waiting_jobs_without_walltime() -> None:
    """One of them may pass within that time, and it is what those behind them wait for."""
    world = World(node("n1", cpus=4), config=settings(default_walltime_s=50.0))
    world.submit("ncpus=3,walltime=60", runs_s=60)
    large = world.submit("ncpus=4,walltime=100", runs_s=100)
    unlimited = world.submit("ncpus=1", runs_s=5)
    last = world.submit("ncpus=4", runs_s=5)

    assert world.started_s(unlimited) == 0, "expected to end before the large one can start"
    assert [forecast_s(world, job) for job in (large, last)] == [60, 160]


def test_without_such_an_assumption_they_are_expected_to_run_for_ever() -> None:
    """So they may not pass, and nobody is told when they end."""
    world = World(node("n1", cpus=4))
    world.submit("ncpus=3,walltime=60", runs_s=60)
    world.submit("ncpus=4,walltime=100", runs_s=100)
    unlimited = world.submit("ncpus=1", runs_s=5)

    assert world.started_s(unlimited) is None


def test_a_forecast_counts_predicted_run_times_of_what_runs_and_of_what_waits() -> None:
    """Three jobs of a known kind in a row: predicted from their kind, not from their walltimes."""
    world = World(node("n1", cpus=1))
    world.head.model = model = RobustModel()
    for _ in range(5):
        world.submit("walltime=5000", kind="short", runs_s=10)
        world.run_for(20)
    begun_s = world.elapsed_s
    jobs = [world.submit("walltime=5000", kind="short", runs_s=10) for _ in range(3)]
    state = world.head.state
    spec = state.jobs[jobs[0]].spec

    def expected_s(predictor: RobustModel | None) -> float:
        start_s = foresee(
            spec,
            state=state,
            settings=world.settings,
            policy=world.policy,
            now_s=world.now_s,
            predictor=predictor,
        ).start_s
        assert start_s is not None
        return start_s - BEGIN_S - begun_s

    high_s = expected_s(model) / 3
    assert 10 < high_s < 40
    assert forecast_s(world, jobs[1]) == pytest.approx(begun_s + high_s)
    assert expected_s(None) == pytest.approx(high_s + 2 * 5000)


def test_a_forecast_is_given_up_where_there_is_no_time_to_ask_again() -> None:
    """It says so, rather than that nothing can be said."""
    world = World(node("n1", cpus=1))
    world.submit("walltime=10", runs_s=10)
    last = [world.submit("walltime=10") for _ in range(4)][-1]
    state = world.head.state
    seen = snapshot(state, world.settings, world.now_s)
    question = AskStart(seen=seen.detach(), job=last, key=state.order_key(state.jobs[last]))
    asked: list[float] = []

    def counted(snapshot: Snapshot) -> Plan:
        asked.append(snapshot.now_s)
        return fifo.plan(snapshot)

    in_time = answer_to(question, counted)
    often = len(asked)
    late = answer_to(question, counted, lambda: len(asked) < often + 2)

    assert in_time == ForecastAnswer(starts={last: Forecast(start_s=BEGIN_S + 40)})
    assert late == ForecastAnswer(too_long=True)
    assert len(asked) == often + 2


def test_nothing_is_predicted_behind_a_job_without_a_limit() -> None:
    """Nobody knows when a job without walltime ends, so nobody is told a time."""
    world = World(node("n1", cpus=1))
    world.submit(runs_s=10)
    second = world.submit("walltime=10")

    assert forecast_s(world, second) is None


def test_nothing_is_predicted_far_down_the_queue() -> None:
    """Beyond the bound the answer would cost more than it is worth."""
    world = World(node("n1", cpus=1))
    jobs = [world.submit("walltime=10") for _ in range(MAX_AHEAD + 3)]

    assert forecast_s(world, jobs[-1]) is None


def test_a_submission_is_predicted_before_it_is_made() -> None:
    """What gsub --dry-run says comes true, and asking changes nothing."""
    world = World(node("n1", cpus=4))
    world.submit("ncpus=4,walltime=30", runs_s=30)
    world.submit("ncpus=4,walltime=50", runs_s=50)
    world.submit("ncpus=2,walltime=10", name="probe")
    spec = world.head.state.jobs[3].spec
    head = world.head

    def predicted_s(**changes: object) -> float | None:
        start_s = head.foresee(structs.replace(spec, **changes), world.now_s).start_s
        return None if start_s is None else start_s - BEGIN_S

    waiting = sorted(head.state.jobs)
    expected_s, first_s = predicted_s(), predicted_s(priority=10)
    late_s = predicted_s(start_after_s=world.now_s + 1)
    assert sorted(head.state.jobs) == waiting
    fourth = world.submit("ncpus=2,walltime=10", runs_s=10)
    world.run_until(1000)

    assert expected_s == world.started_s(fourth) == 80
    assert first_s == 30
    assert late_s == 80, "it starts later than a second from now anyway"


def counted(world: World) -> list[int]:
    """Let a world's policy note how many classes it is asked about each time, and return that."""
    asked: list[int] = []
    policy = world.policy

    def noting(snapshot: Snapshot) -> Plan:
        asked.append(len(list(snapshot.groups)))
        return policy(snapshot)

    world.policy = noting
    return asked


def test_a_long_queue_is_predicted_in_a_bounded_number_of_questions() -> None:
    """Of 600 jobs one after the other the last one's start is told, later rather than earlier."""
    world = World(node("n1", cpus=2))
    jobs = [world.submit(f"ncpus=1,walltime={10 + n % 7}", runs_s=10 + n % 7) for n in range(600)]
    asked = counted(world)

    near_s, far_s = forecast_s(world, jobs[20]), forecast_s(world, jobs[-1])
    spent = len(asked)
    world.run_until(20_000)

    assert near_s == world.started_s(jobs[20])
    assert far_s is None, "two ends at a time are not enough for it"
    assert spent <= 2 * MAX_ROUNDS


def test_where_much_runs_some_ends_are_passed_over() -> None:
    """All 300 that run end before it starts: it is told by when, with fewer questions than ends."""
    world = World(node("n1", cpus=300))
    for number in range(300):
        world.submit(f"ncpus=1,walltime={100 + number}", runs_s=100 + number)
    job = world.submit("ncpus=300,walltime=10", runs_s=10)
    asked = counted(world)

    predicted_s = forecast_s(world, job)

    assert predicted_s == 399
    assert len(asked) <= MAX_ROUNDS


def test_a_job_among_many_training_jobs_has_no_predicted_start() -> None:
    """Each question would plan all of them: a forecast could take minutes."""
    world = TrainingJobs()
    for _ in range(260):
        world.training()
    other = world.submit("ncpus=1,walltime=10")
    asked = counted(world)

    assert forecast_s(world, other) is None
    assert asked == []


def test_a_job_among_few_training_jobs_has_a_predicted_start() -> None:
    """So few that they can be planned often enough."""
    world = TrainingJobs()
    for _ in range(5):
        world.training()
    world.submit("ncpus=8,walltime=50", runs_s=50)
    other = world.submit("ncpus=8,walltime=10", runs_s=10)
    asked = counted(world)

    assert forecast_s(world, other) is not None
    assert MIN_ROUNDS > len(asked) >= 1


class TrainingJobs(World):
    """A node with four GPUs, under DRS and FIFO."""

    def __init__(self) -> None:
        super().__init__(node("a", cpus=12, gpus=4), policy=Composed(drs.plan, fifo.plan))

    def _fresh_state(self) -> State:
        return State({"batch": 0}, plans_training=True)

    def training(self) -> int:
        """Submit a training of 100 s on one GPU."""
        size = Training(iterations=100.0, rates=((1, 1.0),))
        asked = "select=1:ncpus=1:ngpus=1,walltime=200"
        return self.submit(asked, runs_s=100.0, deadline_after_s=1e6, training=size)

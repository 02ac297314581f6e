"""Training jobs in the simulator: as fast as what they get, over all their moves."""

import pytest
from msgspec import structs

from gsched.model.training import Training
from gschedd.plan.elastic import allocate, free_gpus
from gschedd.plan.forecast import Forecast
from gschedd.plan.snapshot import Move, Plan, Policy, Snapshot, Start
from gschedd.plan.space import Spaces
from gschedd.plan.training import gpus_by_node
from gschedd.policies.training import drs
from gschedd.sim.cluster import read_cluster
from gschedd.sim.recorder import JobResult
from gschedd.sim.simulation import BEGIN_S, Options, Simulation
from gschedd.sim.workload import TraceJob

RATES = ((1, 1.0), (2, 1.8), (4, 3.0), (8, 4.0))
MOVE_S = 10.0


def smallest(snapshot: Snapshot) -> Plan:
    """Start every training on as few GPUs as it may have."""
    free = Spaces(snapshot.nodes)
    starts: list[Start] = []
    for group in sorted(snapshot.groups, key=lambda group: group.order[0]):
        profile = snapshot.profiles[group.order[0][1]]
        found = allocate(group.job_class.request, free, profile.gpus[0])
        if found is not None:
            free.take(found)
            starts.append(
                Start(job=profile.job, job_class=group.job_class, allocation=found, why="fits")
            )
    return Plan(starts=tuple(starts))


def growing(snapshot: Snapshot) -> Plan:
    """Start as `smallest`; if nothing starts, give one that runs all that is free."""
    plan = smallest(snapshot)
    if plan.starts:
        return plan
    free = Spaces(snapshot.nodes)
    moves: list[Move] = []
    for running in sorted(snapshot.running, key=lambda each: each.job):
        profile = snapshot.profiles[running.job]
        assert profile.request is not None
        if running.leaving:
            continue
        free.give(running.allocation)
        count = min(sum(free_gpus(profile.request, free).values()), profile.gpus[-1])
        found = allocate(profile.request, free, count)
        if found is not None and count > sum(gpus_by_node(running.allocation).values()):
            moves.append(Move(job=profile.job, allocation=found, why="more is free"))
            free.take(found)
        else:
            free.take(running.allocation)
    verdicts = tuple(Forecast(job=move.job, meets=True) for move in moves)
    return Plan(moves=tuple(moves), verdicts=verdicts)


def run(
    policy: Policy, jobs: list[TraceJob], cluster: str = "2xcpus=16,gpus=4"
) -> tuple[dict[int, JobResult], Simulation]:
    """Run training jobs to their end."""
    results: dict[int, JobResult] = {}

    def keep(result: JobResult) -> None:
        results[result.job] = result

    options = Options(plans_training=True, move_s=MOVE_S)
    simulation = Simulation(read_cluster(cluster), jobs, policy, options=options, on_result=keep)
    assert not simulation.run()
    return results, simulation


def training(submit_s: float, **changes: object) -> TraceJob:
    """Return a training of 1000 iterations on 1 to 8 GPUs."""
    job = TraceJob(
        submit_s=submit_s,
        duration_s=0.0,
        gpus=1,
        gpus_max=8,
        deadline_s=900.0,
        training=Training(iterations=1000.0, rates=RATES),
    )
    return structs.replace(job, **changes)


def test_a_training_runs_as_long_as_its_gpus_need() -> None:
    """On one GPU at one iteration a second; on a rigid number at that number's rate."""
    results, _ = run(smallest, [training(0.0), training(0.0, gpus=4, gpus_max=0)])

    assert results[1].run_s == pytest.approx(1000.0)
    assert results[2].run_s == pytest.approx(1000 / 3.0)
    assert (results[1].deadline_met, results[2].deadline_met) == (0, 1)


def test_a_moved_training_loses_the_time_of_the_move_and_no_work() -> None:
    """Alone at first on one GPU, on eight from the moment that another one ends beside it."""
    results, simulation = run(growing, [training(0.0), training(0.0, gpus=2, gpus_max=0)])

    second_s = 1000 / 1.8
    first_s = second_s + MOVE_S + (1000 - second_s) / 4.0
    assert results[2].run_s == pytest.approx(second_s)
    assert results[1].run_s == pytest.approx(first_s)
    assert results[1].attempts == 2
    assert simulation.summary("growing").migrations == 1
    assert not simulation.head.oddities


def test_many_moves_at_once_lose_nothing() -> None:
    """Every training ends, once, and the cluster is empty then."""
    jobs = [training(100.0 * number) for number in range(12)]
    results, simulation = run(growing, jobs)

    summary = simulation.summary("growing")
    assert summary.outcomes == {"exited": 12}
    assert summary.migrations > 3
    assert summary.unfinished == 0
    state = simulation.head.state
    assert not state.targets
    assert not state.targets_on
    assert all(len(space.gpus) == 4 and space.cpus == 16 for space in state.spaces.values())
    assert all(result.run_s <= 1000.0 + 1e-6 for result in results.values())


def test_a_suspended_training_goes_on_from_its_checkpoint() -> None:
    """It goes back to its queue for another one's sake, and loses no work."""

    def by_turns(snapshot: Snapshot) -> Plan:
        if len(snapshot.groups) == 1 and snapshot.groups[0].order[0][1] != 1:
            running = list(snapshot.running)
            if running and not running[0].leaving:
                return Plan(moves=(Move(job=running[0].job, allocation=(), why="gives way"),))
        for group in sorted(snapshot.groups, key=lambda group: -group.order[0][1]):
            found = allocate(group.job_class.request, Spaces(snapshot.nodes), 1)
            if found is not None:
                job = group.order[0][1]
                start = Start(job=job, job_class=group.job_class, allocation=found, why="its turn")
                return Plan(starts=(start,))
        return Plan()

    jobs = [training(0.0, gpus_max=0), training(400.0, gpus_max=0)]
    results, simulation = run(by_turns, jobs, "cpus=4,gpus=1")

    assert results[2].end_s == pytest.approx(1400.0)
    assert results[1].end_s == pytest.approx(1400.0 + MOVE_S + 600.0)
    assert simulation.summary("turns").requeues == 1


def test_a_policy_is_asked_again_when_it_wants_to_be() -> None:
    """Nothing happens while it lets a training wait; asking for the past costs a second each."""
    asked_s: list[float] = []

    def in_time(snapshot: Snapshot) -> Plan:
        asked_s.append(snapshot.now_s - BEGIN_S)
        if snapshot.now_s < BEGIN_S + 500:
            return Plan(again_s=BEGIN_S + 500 if len(asked_s) > 1 else BEGIN_S - 5)
        return smallest(snapshot)

    results, _ = run(in_time, [training(0.0)])

    assert asked_s[:3] == [0.0, 1.0, 500.0]
    assert results[1].start_s == 500.0
    assert results[1].end_s == pytest.approx(1500.0)


def test_the_error_of_predicted_ends_shrinks_when_starts_are_known() -> None:
    """Training jobs of one kind, one after the other, that take a minute until their first steps.

    What is said of the first is a minute too early, of the next ones it is right; a training that
    starts at once is not taken to need any time for it.
    """
    said: dict[int, float] = {}

    def noting(snapshot: Snapshot) -> Plan:
        plan = drs.plan(snapshot)
        for verdict in plan.verdicts:
            if verdict.end_s is not None:
                said.setdefault(verdict.job, verdict.end_s)
        return plan

    slow = [training(2000.0 * number, startup_s=60.0, kind="slow") for number in range(4)]
    quick = [training(8000.0 + 2000.0 * number, user="bob", kind="quick") for number in range(3)]
    results, _ = run(noting, [*slow, *quick])

    errors_s = [BEGIN_S + result.end_s - said[job] for job, result in sorted(results.items())]
    assert errors_s[:4] == pytest.approx([60.0, 0.0, 0.0, 0.0], abs=1e-3)
    assert errors_s[4:] == pytest.approx([-60.0, 0.0, 0.0], abs=1e-3)

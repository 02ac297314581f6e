"""Training jobs planned beside the head: at once it is the same; slowly, other jobs go on."""

import random
from dataclasses import dataclass

import pytest
from msgspec import structs

from baselines.registry import ALL, TRAININGS
from gsched.config.policies import TrainingConfig
from gsched.config.tables import Config
from gsched.model.training import Training
from gschedd.core.head import Head
from gschedd.core.state import facts as f
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State
from gschedd.models.robust import RobustModel
from gschedd.plan.compose import Composed
from gschedd.plan.elastic import allocate
from gschedd.plan.forecast import Forecast
from gschedd.plan.snapshot import Plan, Policy, Snapshot, Start, Wait
from gschedd.plan.space import Spaces
from gschedd.policies.queue import fifo
from gschedd.sim.cluster import read_cluster
from gschedd.sim.recorder import JobResult
from gschedd.sim.simulation import Options, Simulation
from gschedd.sim.workload import TraceJob
from tests.fault_world.moves import MovingWorld

CLUSTER = "2xcpus=16,gpus=4+1xcpus=8,gpus=2+2xcpus=8"
RATES = ((1, 1.0), (2, 1.8), (3, 2.4), (4, 3.0))


def mixed(seed: int, count: int = 60) -> list[TraceJob]:
    """Return training jobs, most with deadlines, and jobs with and without GPUs."""
    chance = random.Random(seed)
    jobs = []
    submit_s = 0.0
    for _ in range(count):
        submit_s += chance.choice((0.0, 5.0, 30.0, 60.0))
        kind = chance.choice(("training", "training", "gpu", "cpu", "cpu"))
        walltime_s = chance.choice((None, 100.0, 1000.0))
        duration_s = min(chance.uniform(10, 600), walltime_s or 600)
        common = TraceJob(
            submit_s=submit_s, kind=kind, walltime_s=walltime_s, duration_s=duration_s
        )
        if kind == "training":
            jobs.append(
                structs.replace(
                    common,
                    cpus=chance.randint(1, 4),
                    gpus=1,
                    gpus_max=chance.choice((0, 4)),
                    training=Training(iterations=chance.uniform(20, 300), rates=RATES),
                    deadline_s=chance.choice((None, 300.0, 900.0, 3000.0)),
                    startup_s=5.0,
                )
            )
        else:
            jobs.append(
                structs.replace(
                    common,
                    cpus=chance.randint(1, 6),
                    gpus=chance.randint(1, 2) if kind == "gpu" else 0,
                )
            )
    return jobs


def results(
    name: str, seed: int, planning_s: float | None, share: float = 0.0
) -> tuple[list[JobResult], Simulation]:
    """Return what became of each job, and the simulation."""
    chosen = ALL.choose(name, Config(training=TrainingConfig(share_for_others=share)))
    found: list[JobResult] = []
    simulation = Simulation(
        read_cluster(CLUSTER),
        mixed(seed),
        chosen.plan,
        options=Options(
            make_model=chosen.make_model,
            heartbeats=chosen.reads_loads,
            plans_training=True,
            move_s=10.0,
            planning_s=planning_s,
        ),
        on_result=found.append,
    )
    simulation.run()
    return sorted(found, key=lambda each: each.job), simulation


@pytest.mark.parametrize("name", sorted(set(TRAININGS) - ALL.adaptive))
@pytest.mark.parametrize(("share", "seed"), [(0.0, 1), (0.5, 2)])
def test_a_planner_that_answers_at_once_decides_what_the_head_would(
    name: str, share: float, seed: int
) -> None:
    """Every job starts and ends when and where it would have."""
    here, _ = results(name, seed, None, share)
    there, simulation = results(name, seed, 0.0, share)

    assert here
    assert there == here
    assert simulation.head.rounds is not None
    assert simulation.head.rounds.number > 20


@dataclass
class Patient:
    """Starts a training a minute after it came; all are in time while as many GPUs are free.

    Attributes:
        late: how often it has said that one would not be.
    """

    late: int = 0

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Return starts, and that the first of the others are in time."""
        free = Spaces(snapshot.nodes)
        starts, waits, verdicts = [], [], []
        for group in sorted(snapshot.groups, key=lambda group: group.order[0]):
            profile = snapshot.profiles[group.job_class.training]
            found = allocate(group.job_class.request, free, profile.gpus[0])
            if found is not None:
                free.take(found)
            self.late += found is None
            verdicts.append(Forecast(job=profile.job, meets=found is not None, why="no room"))
            if found is not None and snapshot.now_s >= profile.arrived_s + 60:
                starts.append(
                    Start(job=profile.job, job_class=group.job_class, allocation=found, why="now")
                )
            else:
                waits.append(Wait(job_class=group.job_class, first=profile.job, reason="patience"))
        return Plan(
            starts=tuple(starts),
            waits=tuple(waits),
            verdicts=tuple(verdicts),
            again_s=snapshot.now_s + 10 if waits else None,
        )


def test_starts_that_would_make_a_training_late_are_found_out_elsewhere_too() -> None:
    """Many other jobs want GPUs that training jobs will need."""
    jobs = [structs.replace(job, submit_s=job.submit_s / 3) for job in mixed(4, 120)]
    runs = []
    for planning_s in (None, 0.0):
        policy = Composed(profiles := Patient(), fifo.plan)
        found: list[JobResult] = []
        simulation = Simulation(
            read_cluster(CLUSTER),
            jobs,
            policy,
            options=Options(plans_training=True, planning_s=planning_s),
            on_result=found.append,
        )
        simulation.run()
        assert profiles.late > 20
        runs.append(sorted(found, key=lambda each: each.job))

    assert runs[0] == runs[1]


@pytest.mark.parametrize("name", ["deadline", "drs", "elasticflow", "themis"])
def test_what_others_start_meanwhile_takes_nothing_that_a_plan_counts_on(name: str) -> None:
    """Training jobs need all CPUs of the nodes with all their GPUs, and others want them, too."""
    chance = random.Random(name)
    jobs = [
        structs.replace(
            job, cpus=4 if job.training is not None else job.cpus, submit_s=job.submit_s / 4
        )
        for seed in (1, 2)
        for job in mixed(seed)
        if job.training is not None or not job.gpus
    ]
    jobs += [
        TraceJob(submit_s=float(at), duration_s=chance.uniform(5, 50), cpus=chance.randint(1, 4))
        for at in range(0, 900, 3)
    ]
    found: list[JobResult] = []
    chosen = ALL.choose(name)
    simulation = Simulation(
        read_cluster("3xcpus=16,gpus=4"),
        sorted(jobs, key=lambda job: job.submit_s),
        chosen.plan,
        options=Options(plans_training=True, move_s=10.0, planning_s=15.0),
        on_result=found.append,
    )

    simulation.run()

    assert len(found) == len(jobs)
    assert simulation.head.rounds is not None
    assert simulation.head.rounds.lost == 0
    assert not simulation.head.oddities


TRAINS = Training(iterations=50, rates=RATES)
#: When a round begins, and when its answer comes, seconds.
ASKED_S, ANSWERED_S = 100.0, 100.5


def starts_of(jobs: list[TraceJob]) -> dict[str, float]:
    """Return when each job started on a node of two GPUs, one round lasting half a second."""
    found: list[JobResult] = []
    simulation = Simulation(
        read_cluster("1xcpus=16,gpus=2"),
        sorted(jobs, key=lambda job: job.submit_s),
        ALL.choose("deadline").plan,
        options=Options(plans_training=True, planning_s=ANSWERED_S - ASKED_S),
        on_result=found.append,
    )
    simulation.run()
    assert len(found) == len(jobs)
    return {each.name: each.start_s for each in found if each.start_s is not None}


def test_a_gpu_freed_while_training_jobs_are_planned_goes_to_the_one_that_waits() -> None:
    """The plan does not know of it, so the next one decides, and not another job."""
    ends = TraceJob(submit_s=0.0, duration_s=100.25, name="ends", gpus=1)
    starts_s = starts_of(
        [
            ends,
            structs.replace(ends, name="stays", duration_s=1000.0),
            TraceJob(submit_s=10.0, duration_s=50.0, name="trains", gpus=1, training=TRAINS),
            TraceJob(submit_s=20.0, duration_s=50.0, name="other", gpus=1),
            TraceJob(submit_s=ASKED_S, duration_s=1.0, name="round"),
        ]
    )

    assert starts_s["trains"] == pytest.approx(2 * ANSWERED_S - ASKED_S)
    assert starts_s["other"] > starts_s["trains"] + 40


@pytest.mark.parametrize("ahead", [True, False])
def test_a_free_gpu_goes_to_the_first_of_those_that_come_while_training_jobs_are_planned(
    *, ahead: bool
) -> None:
    """The round does not know the training job that comes."""
    starts_s = starts_of(
        [
            TraceJob(submit_s=0.0, duration_s=1000.0, name="stays", gpus=1),
            TraceJob(submit_s=10.0, duration_s=50.0, name="wide", gpus=2, training=TRAINS),
            TraceJob(submit_s=ASKED_S, duration_s=1.0, name="round"),
            TraceJob(submit_s=100.2, duration_s=50.0, name="trains", gpus=1, training=TRAINS),
            TraceJob(submit_s=100.1 if ahead else 100.3, duration_s=50.0, name="other", gpus=1),
        ]
    )

    first, second = ("other", "trains") if ahead else ("trains", "other")
    assert starts_s[first] == pytest.approx(2 * ANSWERED_S - ASKED_S)
    assert starts_s[second] > starts_s[first] + 40


def test_jobs_without_gpus_do_not_wait_for_a_slow_planner() -> None:
    """On the nodes that have no GPUs they start as soon as without training jobs."""
    jobs = [job for job in mixed(3) if job.training is not None]
    jobs += [TraceJob(submit_s=float(at), duration_s=7.0, cpus=8) for at in range(0, 600, 10)]
    jobs.sort(key=lambda job: job.submit_s)
    found: list[JobResult] = []
    chosen = ALL.choose("deadline")
    simulation = Simulation(
        read_cluster(CLUSTER),
        jobs,
        chosen.plan,
        options=Options(plans_training=True, planning_s=100.0),
        on_result=found.append,
    )

    simulation.run()

    waited = [each.wait_s for each in found if each.cpus == 8]
    assert len(waited) == 60
    assert max(waited) <= 1.0


class Moody:
    """How long a planner takes: often no time, sometimes long, sometimes it dies."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def __call__(self) -> float | None:
        """Return seconds, or None for a failure."""
        return self._chance.choice((0.0, 0.01, 0.04, 0.2, 3.0, 30.0, None))


@pytest.mark.parametrize("name", ["deadline", "drs", "elasticflow"])
@pytest.mark.parametrize("seed", range(4))
def test_guarantees_hold_with_a_moody_planner_while_everything_fails(name: str, seed: int) -> None:
    """Late plans meet a state that has changed: nothing is lost, doubled or overbooked."""
    apart = ALL.choose(name).plan
    assert isinstance(apart, Composed)

    def make(state: State, settings: Settings, policy: Policy) -> Head:
        return Head(
            state=state,
            settings=settings,
            policy=policy,
            model=RobustModel(),
            apart=apart,
        )

    world = MovingWorld(seed, policy=name, make_head=make, plan_s=Moody(seed))
    world.run()

    assert any(isinstance(fact, f.DeadlineJudged) for fact in world.history.facts)
    assert world.oddities["policy_failed"] + world.oddities["planner_failed"] > 0

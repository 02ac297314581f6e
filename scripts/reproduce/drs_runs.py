"""One run of the DRS experiment: a list of training jobs under one policy, in the real head."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from baselines import edf, fifowhole, themis
from baselines.registry import DRS_STILL, TRAININGS
from gschedd.plan.snapshot import Policy
from gschedd.policies.training import deadline, drs, elasticflow
from gschedd.sim.recorder import JobResult, OverTime
from gschedd.sim.simulation import Options, Simulation
from scripts.reproduce.drs_workload import HOUR_S, Scenario, cluster, draw

#: The paper's DRS with and without migration, ours, the paper's baselines, and the two policies
#: that resize running training jobs: ElasticFlow's, and the default of a head.
POLICIES: Final[Mapping[str, Policy]] = MappingProxyType(
    {
        "drs": TRAININGS["drs-paper"],
        "norm": DRS_STILL,
        "drs-ours": drs.plan,
        "edf": edf.plan,
        "fifo": fifowhole.plan,
        "themis": themis.plan,
        "elasticflow": elasticflow.plan,
        "deadline": deadline.plan,
    }
)

#: A deadline that is missed by less is met: simulated times are floating-point numbers. Seconds.
ROUNDING_S: Final = 1e-3


class Outcome(Struct, frozen=True, kw_only=True):
    """What a run came to.

    Attributes:
        rate: R of the paper: training jobs that met their deadline over all.
        waiting_s, completion_s: from submission to start and to end, means.
        utilisation: of the GPUs while training jobs arrive, mean; 0 to 1.
        busy: of the GPUs until the last end, mean.
        migrations: moves of running training jobs.
        over_time: utilisation in each hour of reception.
    """

    jobs: int
    rate: float
    waiting_s: float
    completion_s: float
    utilisation: float
    busy: float
    migrations: int
    over_time: tuple[float, ...]


def simulate(policy: str, scenario: Scenario, seed: int, move_s: float = 0.0) -> Outcome:
    """Run one list of training jobs under a policy.

    Raises:
        RuntimeError: not all of them ended, or the head had to refuse a plan.
    """
    jobs = draw(scenario, seed)
    results: list[JobResult] = []
    simulation = Simulation(
        cluster(scenario),
        jobs,
        POLICIES[policy],
        options=Options(plans_training=True, move_s=move_s),
        on_result=results.append,
    )
    simulation.run()
    found = simulation.summary(policy)
    if found.unfinished or found.refused or found.oddities or len(results) != len(jobs):
        raise RuntimeError(
            f"{policy}, seed {seed}: {found.unfinished} unfinished of {len(jobs)}, "
            f"refused {found.refused}, oddities {found.oddities}, "
            f"last failure {simulation.head.policy_failure!r}"
        )
    allowed_s = {job.name: job.deadline_s or 0.0 for job in jobs}
    met = sum(each.wait_s + each.run_s <= allowed_s[each.name] + ROUNDING_S for each in results)
    begin_s = min(job.submit_s for job in jobs)
    window_s = scenario.reception_h * HOUR_S - begin_s
    hours = _hourly(found.over_time, window_s)
    return Outcome(
        jobs=len(jobs),
        rate=met / len(jobs),
        waiting_s=found.waiting_s.mean,
        completion_s=found.completion_s.mean,
        utilisation=sum(hours) / len(hours),
        busy=found.gpu.utilisation,
        migrations=found.migrations,
        over_time=hours,
    )


def _hourly(over: OverTime, window_s: float) -> tuple[float, ...]:
    """Return the mean use of GPUs in each hour from the first submission until a time.

    A bin of the series that lies across the end of an hour counts for the hour that it begins in.
    """
    hours: list[list[float]] = [[] for _ in range(max(1, int(window_s // HOUR_S)))]
    for number, value in enumerate(over.gpu):
        hour = int(number * over.step_s // HOUR_S)
        if hour < len(hours):
            hours[hour].append(value)
    return tuple(sum(values) / len(values) if values else 0.0 for values in hours)

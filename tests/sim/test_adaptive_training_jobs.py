"""Adaptive training jobs in the simulator: as fast as their truth, and reported to the head."""

from collections.abc import Sequence

import pytest
from msgspec import structs

from baselines.registry import POLICIES
from gsched.model.training import Adaptive, Batching, Training
from gschedd.core.state import facts as f
from gschedd.models.goodput.records import ThroughputParameters
from gschedd.plan.elastic import allocate
from gschedd.plan.snapshot import Move, Plan, Policy, Snapshot, Tune
from gschedd.plan.space import Spaces
from gschedd.sim.cluster import read_cluster
from gschedd.sim.ground_truth import ModelledTraining
from gschedd.sim.recorder import JobResult
from gschedd.sim.simulation import Options, Simulation
from gschedd.sim.training_jobs import PROFILE_S
from gschedd.sim.workload import TraceJob
from tests.sim.test_training_jobs import growing, smallest

#: 2 s a step of 10 samples on one GPU; 1 s with five samples each, and 0.5 s to synchronise.
MODEL = ThroughputParameters(compute_per_sample_s=0.2, node_sync_s=0.5, network_sync_s=3.0)
#: Its gradients are so noisy that a sample of a large batch counts as much as one of a small one.
TRUTH = ModelledTraining(
    work=10_000.0, batch=10, models={"": MODEL}, noise_scales=((1.0, 1e15),), restart_s=40.0
)
FIVE, TEN = Batching(per_gpu=5), Batching(per_gpu=10)
RATES = ((1, 5.0), (2, 20 / 3), (4, 8.0))


def job(submit_s: float = 0.0, **changes: object) -> TraceJob:
    """Return a training of 10,000 samples with a fixed batch, on 1 to 4 GPUs."""
    made = TraceJob(
        submit_s=submit_s,
        duration_s=0.0,
        gpus=1,
        gpus_max=4,
        training=Training(iterations=10_000.0, rates=RATES),
        behaviour=TRUTH,
    )
    return structs.replace(made, **changes)


def run(
    policy: Policy,
    jobs: Sequence[TraceJob],
    cluster: str = "1xcpus=16,gpus=4",
    *,
    plans_adaptive: bool = False,
) -> tuple[dict[int, JobResult], list[f.AnyFact], Simulation]:
    """Run training jobs to their end; return their results and all facts."""
    results: dict[int, JobResult] = {}
    facts: list[f.AnyFact] = []
    simulation = Simulation(
        read_cluster(cluster),
        jobs,
        policy,
        options=Options(
            plans_training=policy is not POLICIES["fifo"], plans_adaptive=plans_adaptive
        ),
        on_result=lambda result: results.update({result.job: result}),
    )
    simulation.recorder.on_facts = facts.extend
    assert not simulation.run()
    return results, facts, simulation


def test_it_takes_its_start_and_its_steps() -> None:
    """1,000 steps of 2 s after 40 s, on one GPU."""
    results, _, _ = run(smallest, [job()])

    assert results[1].run_s == pytest.approx(40 + 2000)
    assert results[1].outcome == "exited"


def test_a_move_costs_one_more_start_and_no_work() -> None:
    """On one GPU until another one ends beside it, then on three, with four samples each."""
    jobs = [job(), job(gpus=2, gpus_max=0)]
    results, _, simulation = run(growing, jobs, cluster="1xcpus=16,gpus=3")
    second_s = 40 + 1000 * 1.5
    left = 10_000 - (second_s - 40) * 5

    assert results[2].run_s == pytest.approx(second_s)
    assert results[1].run_s == pytest.approx(second_s + 40 + left / (12 / 1.3))
    assert simulation.summary("growing").migrations == 1
    assert not simulation.head.oddities


def test_parts_on_several_nodes_begin_and_end_together() -> None:
    """Four nodes with one GPU each: a step waits for the network, and all end at once."""
    results, facts, _ = run(smallest, [job(gpus=4, gpus_max=0)], cluster="4xcpus=4,gpus=1")
    ended = [fact for fact in facts if isinstance(fact, f.PartEnded)]

    assert results[1].run_s == pytest.approx(40 + 10_000 / (12 / (0.6 + 3.0)))
    assert len(ended) == 4
    assert len({fact.at_s for fact in ended}) == 1


def test_the_head_hears_of_its_steps_and_its_start() -> None:
    """Reports become facts: what a step takes, how long the start took."""
    _, facts, _ = run(smallest, [job()])
    measured = [fact for fact in facts if isinstance(fact, f.StepsMeasured)]
    started = [fact for fact in facts if isinstance(fact, f.StartupMeasured)]

    assert measured
    assert measured[0].steps.step_s == pytest.approx(2.0)
    assert measured[0].steps.samples == pytest.approx(10.0, rel=0.1)
    assert [fact.startup_s for fact in started] == [pytest.approx(40.0, abs=0.1)]


def test_a_job_of_a_queue_may_behave_like_one() -> None:
    """Planned as any other job, it runs as fast as its truth says."""
    words = "select=4:ncpus=1:ngpus=1,place=free"
    queued = job(gpus=4, gpus_max=0, training=None, resources=words)
    results, _, _ = run(POLICIES["fifo"], [queued])

    assert results[1].run_s == pytest.approx(40 + 10_000 / (12 / (0.6 + 0.5)))


def adaptive() -> TraceJob:
    """Return a job whose batch and GPUs a policy may choose."""
    return job(training=None, adaptive=Adaptive(batch=10, batch_max=80))


def tuning(snapshot: Snapshot) -> Plan:
    """Start every job with five samples on each of its GPUs; after 1,000 s it has ten."""
    plan = smallest(snapshot)
    starts = tuple(structs.replace(start, batching=FIVE) for start in plan.starts)
    late = [each for each in snapshot.running if snapshot.now_s >= each.started_s + 1000]
    again_s = [each.started_s + 1000 for each in snapshot.running if each not in late]
    return structs.replace(
        plan,
        starts=starts,
        tunes=tuple(Tune(job=each.job, batching=TEN) for each in late),
        again_s=min(again_s, default=None) or (snapshot.now_s + 1000 if starts else None),
    )


def test_an_adaptive_job_runs_with_the_batch_that_it_is_told() -> None:
    """Five samples in 1 s from its start on, ten in 2 s later, after its profile."""
    results, facts, simulation = run(tuning, [adaptive()], plans_adaptive=True)
    assigned = next(fact for fact in facts if isinstance(fact, f.AttemptAssigned))
    tuned = [fact for fact in facts if isinstance(fact, f.BatchingChosen)]
    measured = [fact.steps for fact in facts if isinstance(fact, f.StepsMeasured)]

    assert (assigned.batching, assigned.profile_batches) == (FIVE, True)
    assert [fact.batching for fact in tuned] == [TEN]
    assert results[1].run_s == pytest.approx(40 + PROFILE_S + 2000)
    assert {steps.batch_per_gpu for steps in measured} >= {1, 2, 4, 5, 8, 10}
    assert not simulation.head.oddities


def test_a_profile_is_told_once_for_each_type() -> None:
    """Moved to another type of GPU it profiles there, moved back it does not."""
    cluster = "1xcpus=4,gpus=1,gpu_type=a+1xcpus=4,gpus=1,gpu_type=b"
    results, facts, _ = run(roaming, [adaptive()], cluster=cluster, plans_adaptive=True)
    assigned = [fact for fact in facts if isinstance(fact, f.AttemptAssigned)]

    assert [fact.profile_batches for fact in assigned] == [True, True, False]
    assert results[1].run_s == pytest.approx(2000 + 3 * 40 + 2 * PROFILE_S)


def roaming(snapshot: Snapshot) -> Plan:
    """Start every job; move it to the node that is free after 500 s, twice."""
    plan = smallest(snapshot)
    if plan.starts:
        return structs.replace(plan, again_s=snapshot.now_s + 500)
    moves: list[Move] = []
    for running in snapshot.running:
        profile = snapshot.profiles[running.job]
        adaptive_ = profile.adaptive
        assert adaptive_ is not None
        if adaptive_.restarts == 2 or snapshot.now_s < running.started_s + 500:
            continue
        assert profile.request is not None
        found = allocate(profile.request, Spaces(snapshot.nodes), 1)
        assert found is not None
        moves.append(Move(job=running.job, allocation=found, why="roams"))
    later = [each.started_s + 500 for each in snapshot.running]
    again_s = snapshot.now_s + 500 if moves else min(later, default=None)
    return Plan(moves=tuple(moves), again_s=again_s)

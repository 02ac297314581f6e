"""Adaptive training jobs: what their reports teach about goodput, and what a policy knows of it."""

from collections.abc import Iterable, Iterator

from msgspec import structs

from gsched.model.reports import made_of
from gsched.model.resources import Allocation
from gsched.model.states import AttemptState, JobState
from gsched.model.training import Adaptive, Scaling
from gsched.protocol import node as n
from gschedd.core.state import facts as f
from gschedd.core.state.records import Job, Reached
from gschedd.core.state.state import State
from gschedd.models.goodput.inference import goodput_of
from gschedd.models.goodput.records import GradientNoise
from gschedd.models.kinds import kind_of
from gschedd.models.steptimes import TYPES_JOINT, Steps
from gschedd.plan.layouts import held_gpus
from gschedd.plan.snapshot import Tune
from gschedd.plan.training import AdaptiveProfile, gpu_count, gpus_by_node


def gpu_types(state: State, allocation: Allocation) -> str:
    """Return the type of the GPUs of an allocation; of several the types joined by ``+``."""
    held = held_gpus(allocation, state.gpus_of).values()
    return TYPES_JOINT.join(sorted({gpu.type for gpus in held for gpu in gpus}))


def is_unmeasured(state: State, job: Job, allocation: Allocation) -> bool:
    """Return whether an adaptive training is to measure its steps at several batch sizes first.

    That is where a policy chooses its batch, and nothing is known of it on these GPUs.
    """
    if job.spec.adaptive is None or not state.plans_adaptive:
        return False
    known = state.goodputs.types(job.id, kind_of(job.spec).key)
    return gpu_types(state, allocation) not in known


def steps_by_batch(
    state: State, job: Job, report: n.TrainingProgress, now_s: float
) -> Iterator[f.AnyFact]:
    """Yield what an adaptive training has measured, where that is news."""
    attempt = job.attempt
    if job.spec.adaptive is None or attempt is None or attempt.number != report.attempt:
        return
    by_node = gpus_by_node(attempt.allocation)
    if not by_node:
        return
    gpu_type, kind = gpu_types(state, attempt.allocation), kind_of(job.spec).key
    replica = dict(job.spec.adaptive.replica_gpus).get(gpu_type, 1)
    for sample in report.profile:
        if sample.step_s > 0 and sample.batch_per_gpu > 0:
            alone = Steps(
                counts=(replica,),
                gpu_type=gpu_type,
                samples=sample.batch_per_gpu,
                step_s=sample.step_s,
                batch_per_gpu=sample.batch_per_gpu,
                gradient_s=sample.gradient_s,
                batch_per_gpu_max=report.batch_per_gpu_max,
                profiled=True,
            )
            if state.goodputs.is_news(job.id, alone, now_s):
                yield _measured(job, kind, alone, now_s)
    if report.step_s <= 0 or report.batch_per_gpu <= 0:
        return
    counts = tuple(sorted(by_node.values(), reverse=True))
    steps = made_of(
        Steps,
        report,
        counts=counts,
        gpu_type=gpu_type,
        samples=sum(counts) // replica * report.batch_per_gpu * (report.accumulation + 1),
        communication_s=report.communication_s if sum(counts) > 1 else 0.0,
    )
    if state.goodputs.is_news(job.id, steps, now_s):
        yield _measured(job, kind, steps, now_s)


def _measured(job: Job, kind: str, steps: Steps, now_s: float) -> f.StepsMeasured:
    return f.StepsMeasured(at_s=now_s, job=job.id, attempt=job.attempts, kind=kind, steps=steps)


def learn(state: State, fact: f.StepsMeasured) -> None:
    """Take a measurement into account; also of a job that is over, when a head starts."""
    if fact.steps.batch_per_gpu:
        state.goodputs.learn(fact.kind, fact.job, fact.steps, fact.at_s)


def _left(state: State, job: Job) -> float | None:
    """Return how many samples a training has left; None: that is not known.

    Its own reports count, then what its user stated, then what the last of its kind reported.
    """
    reached = state.reached.get(job.id)
    done, total = job.work_done, job.work_total
    if reached is not None and reached.work_total > 0:
        done, total = max(done, reached.work_done), reached.work_total
    stated = job.spec.training
    if not total and stated is not None:
        total = stated.samples * stated.epochs
    total = total or state.goodputs.work_total(kind_of(job.spec).key)
    return max(0.0, total - done) if total > 0 else None


def tuned(state: State, tunes: Iterable[Tune], now_s: float) -> Iterator[f.BatchingChosen]:
    """Yield the batch sizes that are new to running adaptive training jobs."""
    for tune in tunes:
        job = state.running.get(tune.job)
        attempt = job.attempt if job is not None else None
        if job is None or attempt is None or job.spec.adaptive is None:
            continue
        if job.state is not JobState.RUNNING or attempt.state is not AttemptState.RUNNING:
            continue
        if attempt.batching != tune.batching:
            yield f.BatchingChosen(
                at_s=now_s, job=job.id, attempt=attempt.number, batching=tune.batching
            )


def _as_in_script(adaptive: Adaptive, reached: Reached | None) -> Adaptive:
    """Return what holds of batches: what the script says, as soon as it has, else its user."""
    if reached is None or not reached.batch:
        return adaptive
    most = min(adaptive.batch_max, reached.batch_max or adaptive.batch_max)
    if adaptive.scaling is not Scaling.ADAPTIVE:
        most = 0
    return structs.replace(adaptive, batch=reached.batch, batch_max=max(reached.batch, most))


def adaptive_profile(
    state: State, job: Job, *, counts: tuple[int, ...], restart_s: float, now_s: float
) -> AdaptiveProfile | None:
    """Return what a policy may know of an adaptive training; None: it is none, or nobody asks.

    Args:
        counts: numbers of GPUs that it may be given, ascending.
        restart_s: expected time without progress of a restart, seconds.
    """
    adaptive = job.spec.adaptive
    if adaptive is None or not state.plans_adaptive:
        return None
    reached, attempt = state.reached.get(job.id), job.attempt
    noise = None
    if reached is not None and reached.gradient_sqr + reached.gradient_var > 0:
        noise = GradientNoise(square_norm=reached.gradient_sqr, variance=reached.gradient_var)
    most = state.goodputs.gpus_reached(job.id)
    if attempt is not None:
        most = max(most, gpu_count(attempt.allocation))
    return AdaptiveProfile(
        goodput=goodput_of(
            state.goodputs.model(
                job.id, kind_of(job.spec).key, _as_in_script(adaptive, reached), noise
            ),
            adaptive.inference,
        ),
        scaling=adaptive.scaling,
        age_s=max(0.0, now_s - job.submitted_s),
        restarts=max(0, job.attempts - 1),
        restart_s=restart_s,
        gpus_min=counts[0],
        gpus_max=counts[0] if adaptive.scaling is Scaling.RIGID else counts[-1],
        left=_left(state, job),
        gpus_reached=most,
        gpu_types=frozenset(adaptive.gpu_types),
        replica_gpus=dict(adaptive.replica_gpus),
        preemptible=adaptive.preemptible,
    )

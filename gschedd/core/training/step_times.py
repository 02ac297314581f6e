"""Step times that training jobs tell: when they are a measurement, and what follows from them."""

from typing import Final

from gsched.model.job import JobSpec
from gsched.protocol import node as n
from gschedd.core.state import facts as f
from gschedd.core.state.records import Job
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State
from gschedd.core.training import goodput
from gschedd.models.kinds import kind_of
from gschedd.models.steptimes import Steps
from gschedd.plan.training import Size, gpus_by_node

#: Fewer steps than this, in less time than that, are no measurement: after the very first step,
#: before which nothing is told, a few more may be slow. Seconds.
LEAST_STEPS: Final = 5
LEAST_S: Final = 5.0
#: A further measurement of an attempt is one only if it differs by more than this part, and comes
#: so long after the one before, seconds: each is a row of the database.
CHANGE: Final = 0.1
PAUSE_S: Final = 60.0


def mean_steps(
    state: State, job: Job, report: n.TrainingProgress, now_s: float
) -> f.StepsMeasured | None:
    """Return what a training's steps take where it runs, if it has just been measured.

    What it tells is the mean of its steps since it was heard last.
    """
    attempt, before = job.attempt, state.reached.get(job.id)
    if attempt is None or before is None or before.attempt != report.attempt or report.step_s <= 0:
        return None
    if report.batch_per_gpu and job.spec.adaptive is not None:
        return None  # see `told_by_batches`
    steps = report.step - before.step
    if steps < 1 or (steps < LEAST_STEPS and steps * report.step_s < LEAST_S):
        return None
    samples = (report.work_done - before.work_done) / steps
    by_node = gpus_by_node(attempt.allocation)
    if samples <= 0 or not by_node or not _is_news(job, report.step_s, now_s):
        return None
    return f.StepsMeasured(
        at_s=now_s,
        job=job.id,
        attempt=report.attempt,
        kind=kind_of(job.spec).key,
        steps=Steps(
            counts=tuple(sorted(by_node.values(), reverse=True)),
            gpu_type=goodput.gpu_types(state, attempt.allocation),
            samples=samples,
            step_s=report.step_s,
            communication_s=report.communication_s if sum(by_node.values()) > 1 else 0.0,
            gradient_bytes=report.gradient_bytes,
            work_total=report.work_total,
        ),
    )


def _is_news(job: Job, step_s: float, now_s: float) -> bool:
    attempt = job.current_attempt
    known_s = attempt.step_s
    if not known_s:
        return True
    return abs(step_s - known_s) > CHANGE * known_s and now_s >= attempt.step_known_s + PAUSE_S


def learn(state: State, fact: f.StepsMeasured) -> None:
    """Take a measurement into account; also of a job that is over, when a head starts."""
    state.step_times.learn(fact.kind, fact.job, fact.steps)
    goodput.learn(state, fact)


def own_size(job: Job, state: State, settings: Settings) -> Size | None:
    """Return the size of a job by what its own steps were measured to take; None: none were."""
    if not state.step_times.knows(job.id):
        return None
    kind = kind_of(job.spec).key
    return state.step_times.size_of_job(job.id, kind, settings.fabric.devices)


def size_of_kind(spec: JobSpec, state: State, settings: Settings) -> Size | None:
    """Return the size of a job by what steps of its kind were measured to take; None: none were."""
    if not state.step_times:
        return None
    return state.step_times.size_of_kind(kind_of(spec).key, settings.fabric.devices)

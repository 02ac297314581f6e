"""Start-up times of training jobs, until the first step: measured, and expected.

One that says how far it is tells it with its first step. Of any other it follows from its run time
when all its work is done, and from how long its steps take by what its user said.
"""

from gsched.model.job import JobSpec
from gsched.protocol import node as n
from gschedd.core.state import facts as f
from gschedd.core.state.records import Job
from gschedd.core.state.state import State
from gschedd.models.kinds import kind_of
from gschedd.models.startup import StartupKey, at_least, startup_from_end_s
from gschedd.plan.training import Size


def expected_startup_s(spec: JobSpec, size: Size, state: State) -> float:
    """Return how long a training is expected to take until its first step, seconds.

    0 where nothing is known, and where its size was told from whole runs.
    """
    if size.with_start or not state.startups:
        return 0.0
    return state.startups.expected_s(_family(spec))


def startup_by_step(job: Job, report: n.TrainingProgress, now_s: float) -> f.StartupMeasured | None:
    """Return how long the present attempt took until its first step, if it was not known."""
    attempt = job.attempt
    if attempt is None or attempt.started_s is None or attempt.startup_s is not None:
        return None
    steps_s = max(0, report.step - max(0, report.restored_step)) * report.step_s
    startup_s = max(0.0, min(report.at_s, now_s) - attempt.started_s - steps_s)
    return _measured(job, startup_s, now_s, by_step=True)


def startup_by_end(state: State, fact: f.AttemptEnded) -> f.StartupMeasured | None:
    """Return how long an attempt that is over took until its first step, if that can be told.

    Only one that did all the work of the training is long enough to be told from.
    """
    job = state.jobs[fact.job]
    attempt = job.attempt
    if attempt is None or attempt.started_s is None or not attempt.steps_s:
        return None
    if attempt.startup_s is not None or not fact.outcome.succeeded:
        return None
    startup_s = startup_from_end_s(fact.ended_s - attempt.started_s, attempt.steps_s)
    return None if startup_s is None else _measured(job, startup_s, fact.at_s, by_step=False)


def _measured(job: Job, startup_s: float, at_s: float, *, by_step: bool) -> f.StartupMeasured:
    family = _family(job.spec)
    return f.StartupMeasured(
        at_s=at_s,
        job=job.id,
        attempt=job.attempts,
        startup_s=at_least(startup_s),
        by_step=by_step,
        kind=family.kind,
        program=family.program,
        owner_uid=family.owner_uid,
    )


def learn(state: State, fact: f.StartupMeasured) -> None:
    """Take a start into account; also of a job that is over, when a head starts."""
    family = StartupKey(kind=fact.kind, program=fact.program, owner_uid=fact.owner_uid)
    state.startups.learn(family, fact.startup_s)


def _family(spec: JobSpec) -> StartupKey:
    return StartupKey.of(kind_of(spec))

"""Predicted ends of training jobs, and their deadlines: of those there are, and of a new one.

What is said of a job that is there is what the policy said in the last cycle, or follows from how
fast it runs. A job that is not there yet is shown to the policy once, as if it had come just now:
nothing is changed by it.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Final, TypeVar

from msgspec import Struct, structs

from gsched.errors import InvalidRequestError
from gsched.model.job import JobSpec
from gsched.model.states import AttemptState, HoldKind, JobState
from gschedd.core.cycle.run import limit_room, snapshot
from gschedd.core.forecast.question import (
    Steps,
    UnpredictableError,
    at_once,
    newcomers_question,
)
from gschedd.core.forecast.start import NEW_JOB, AskAll, ForecastAnswer, ForecastQuestion, answer_to
from gschedd.core.state import facts as f
from gschedd.core.state.records import Job
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State
from gschedd.core.training.best_case import shortest_run
from gschedd.core.training.profile import known_size, profile_of
from gschedd.core.training.startups import expected_startup_s
from gschedd.core.training.step_times import own_size
from gschedd.models.kinds import kind_of
from gschedd.models.sizes import size_of
from gschedd.plan.forecast import Forecast
from gschedd.plan.layouts import has_alike_gpus, layout_of
from gschedd.plan.limited_training import least_counted
from gschedd.plan.load import Predictor
from gschedd.plan.moments import moment
from gschedd.plan.snapshot import Group, JobClass, Plan, Policy, Snapshot
from gschedd.plan.training import Size, TrainingProfile, gpu_count

_EXPECTED: Final = frozenset({JobState.QUEUED, JobState.RUNNING, JobState.MIGRATING})

V = TypeVar("V")

RUN_TIME_UNKNOWN: Final = "its run time is unknown"

#: Where the policy raised.
FAILED: Final = Forecast(why="the policy failed, so its end cannot be predicted")


def outlook_of(
    job: Job,
    *,
    state: State,
    settings: Settings,
    verdicts: Mapping[int, Forecast],
    now_s: float,
    start_s: float | None = None,
) -> Forecast:
    """Return what is expected of a training that is not done.

    Args:
        verdicts: of the last cycle.
        start_s: by when it starts, if it waits and that is known.
    """
    verdict = verdicts.get(job.id)
    profile = _profile(job, state, settings, now_s)
    attempt = job.attempt
    gpus = gpu_count(attempt.allocation) if attempt is not None else 0
    if verdict is not None:
        meets, end_s, why = _meets_by(verdict, now_s), verdict.end_s, verdict.why
    else:
        meets, end_s, why = job.meets, job.expected_end_s, ""
    if profile is not None and (goes_on(job) or (end_s is None and meets is not False)):
        end_s = _end_by_rate(job, profile, state, settings, start_s=start_s, now_s=now_s)
    if end_s is not None:
        end_s = max(end_s, now_s)
    deadline_s = job.spec.deadline_s
    if deadline_s and now_s > deadline_s:
        why = "its deadline has passed"
    meets = _meets(deadline_s, end_s, now_s, planned=meets)
    if meets and job.state is JobState.QUEUED and verdict is None:
        limit = _limit_words(job, state, now_s)
        meets, why = (None, limit) if limit else (meets, why)
    return Forecast(
        start_s=start_s,
        end_s=end_s,
        meets=meets,
        gpus=gpus or (verdict.gpus if verdict is not None else 0),
        why=why,
    )


def _meets_by(verdict: Forecast, now_s: float) -> bool | None:
    """Return whether a policy plans to meet a deadline; None: not known yet."""
    until_s = verdict.unsure_until_s
    return None if until_s is not None and now_s <= until_s else verdict.meets


def goes_on(job: Job) -> bool:
    """Return whether a job runs and is to run on where it is: then it is seen how fast it does."""
    attempt = job.attempt
    return (
        job.state is JobState.RUNNING
        and attempt is not None
        and attempt.state is AttemptState.RUNNING
    )


def _profile(job: Job, state: State, settings: Settings, now_s: float) -> TrainingProfile | None:
    """Return what is left of a job, also of one without GPUs, which no deadline policy plans."""
    if job.state not in _EXPECTED:
        return None
    size = own_size(job, state, settings) or size_of(job.spec)
    if size is None:
        return None
    return profile_of(job, size, settings=settings, state=state, now_s=now_s)


def _meets(
    deadline_s: float, end_s: float | None, now_s: float, *, planned: bool | None = None
) -> bool | None:
    """Return whether a deadline will be met: as planned, unless time has overtaken it."""
    if not deadline_s:
        return None
    if now_s > deadline_s or (end_s is not None and end_s > deadline_s):
        return False
    if planned is None:
        return None if end_s is None else True
    return planned


def _end_by_rate(
    job: Job,
    profile: TrainingProfile,
    state: State,
    settings: Settings,
    *,
    start_s: float | None,
    now_s: float,
) -> float | None:
    """Return when it is done if it goes on as it runs, or runs on the best place from its start."""
    attempt = job.attempt
    if attempt is not None:
        layout = layout_of(attempt.allocation, state.gpus_of, settings.fabric)
        run_s = profile.run_time_s(layout)
        begin_s = now_s if attempt.started_s is not None else max(now_s, attempt.assigned_s)
        return begin_s + run_s if math.isfinite(run_s) else None
    if start_s is None:
        return None
    size = Size(speed=profile.speed, work=profile.work)
    first_step_s = start_s + profile.startup_s
    return _end_after(first_step_s, job.spec, size, state=state, settings=settings)


def _end_after(
    first_step_s: float, spec: JobSpec, size: Size, *, state: State, settings: Settings
) -> float | None:
    """Return when a job is done that begins its work then on what it requests at least."""
    least = structs.replace(spec.request, places_max=0)
    run_s = shortest_run(least, size, state=state, settings=settings).run_s
    return first_step_s + run_s if math.isfinite(run_s) else None


class Inquiry(Struct, frozen=True, kw_only=True):
    """What is to be asked about a job that was not submitted, and what is known of it.

    Attributes:
        outlook: what can be said without asking; None: it is to be asked.
        question: for the policy; None: there is nothing to ask, and no start can be said.
        unknown: why the policy cannot be requested its start.
        limit: for which it waits first; empty: for none.
        job, job_class: of one that a policy for training jobs plans; None for all others.
    """

    spec: JobSpec
    size: Size | None
    outlook: Forecast | None = None
    question: ForecastQuestion | None = None
    unknown: str = ""
    limit: str = ""
    job: Job | None = None
    job_class: JobClass | None = None


def inquire(
    spec: JobSpec,
    *,
    state: State,
    settings: Settings,
    now_s: float,
    predictor: Predictor | None = None,
) -> Steps[Inquiry]:
    """Work out what to ask the policy to know what would become of a job, were it submitted now.

    The policy is asked once if it plans training jobs; else it is requested its start, up to so
    many times as `gschedd.core.forecast.start` allows, and its end follows from that.
    """
    size = known_size(
        spec, state, settings, predictor if settings.config.balance.predicted_times else None, now_s
    )
    silent = _silence(spec, state=state, settings=settings, now_s=now_s)
    if silent:
        return Inquiry(spec=spec, size=size, outlook=Forecast(why=silent))
    if is_planned(spec, state) and size is not None:
        job = _newcomer(spec, state, now_s)
        seen = _with_newcomer(job, size, state, settings, predictor)
        return Inquiry(
            spec=spec,
            size=size,
            question=AskAll(seen=seen),
            job=job,
            job_class=state.class_of(job),
        )
    job = Job(
        id=NEW_JOB,
        spec=spec,
        state=JobState.HELD if spec.holds else JobState.QUEUED,
        holds=spec.holds,
        submitted_s=now_s,
        eligible_s=now_s,
    )
    seen = snapshot(state, settings, now_s, predictor)
    try:
        question = yield from newcomers_question(job, state=state, settings=settings, seen=seen)
    except UnpredictableError as error:
        return Inquiry(spec=spec, size=size, unknown=str(error))
    limit = _limit_words(job, state, now_s) if spec.deadline_s else ""
    return Inquiry(spec=spec, size=size, question=question, limit=limit)


def concluded(
    inquiry: Inquiry,
    answer: ForecastAnswer | None,
    *,
    state: State,
    settings: Settings,
    now_s: float,
) -> Forecast:
    """Return what would become of a job.

    Args:
        inquiry: about it.
        answer: to its question; None where there was none.
    """
    if inquiry.outlook is not None:
        return inquiry.outlook
    spec, size = inquiry.spec, inquiry.size
    if inquiry.job is not None and inquiry.job_class is not None:
        assert answer is not None, "there was a question"
        assert answer.plan is not None, "which was for a plan"
        return _of_plan(answer.plan, inquiry.job, inquiry.job_class)
    start_s = interval = None
    unknown = inquiry.unknown
    if answer is not None:
        start = answer.starts.get(NEW_JOB, Forecast())
        start_s, interval, unknown = start.start_s, start.interval, start.start_unknown
    if size is None or not spec.states_training:
        why = RUN_TIME_UNKNOWN
        return Forecast(start_s=start_s, interval=interval, start_unknown=unknown, why=why)
    if start_s is None:
        why = inquiry.limit or "its start time cannot be predicted"
        return Forecast(interval=interval, start_unknown=unknown, why=why)
    first_step_s = start_s + expected_startup_s(spec, size, state)
    end_s = _end_after(first_step_s, spec, size, state=state, settings=settings)
    meets = _meets(spec.deadline_s, end_s, now_s)
    why = ""
    if meets and inquiry.limit:
        meets, why = None, inquiry.limit
    elif meets is False:
        why = f"running jobs and jobs ahead of it in the queue hold it until {moment(start_s)}"
    return Forecast(
        start_s=start_s,
        interval=interval,
        end_s=end_s,
        meets=meets,
        gpus=spec.request.gpus,
        firm=False,
        why=why,
    )


def foresee(
    spec: JobSpec,
    *,
    state: State,
    settings: Settings,
    policy: Policy,
    now_s: float,
    predictor: Predictor | None = None,
) -> Forecast:
    """Return what would become of a job if it were submitted now; the policy is asked here."""
    inquiry = at_once(
        inquire(spec, state=state, settings=settings, now_s=now_s, predictor=predictor)
    )
    try:
        answer = None if inquiry.question is None else answer_to(inquiry.question, policy)
    except Exception:  # noqa: BLE001 # a policy's fault costs an answer, not the head
        return FAILED
    return concluded(inquiry, answer, state=state, settings=settings, now_s=now_s)


def is_planned(spec: JobSpec, state: State) -> bool:
    """Return whether a policy plans a job by its deadline, and not like all others."""
    if state.plans_adaptive and spec.adaptive is None:
        return False
    return state.plans_training and spec.is_training and has_alike_gpus(spec.request)


def _limit_words(job: Job, state: State, now_s: float) -> str:
    """Return the limit for which a job waits, in words; empty: for none.

    Others may take what a limit leaves, so of such a job no deadline is predicted.
    """
    room = limit_room(state, now_s)
    if room is None:
        return ""
    job_class = state.class_of(job)
    limit = room.lack(job_class.party, least_counted(job_class))
    return "" if limit is None else str(limit)


def _silence(spec: JobSpec, *, state: State, settings: Settings, now_s: float) -> str:
    """Return why nothing can be said of a job before it has come, or the empty string."""
    queue = settings.queues.get(spec.queue)
    if queue is None or not queue.started:
        return f"queue {spec.queue} is stopped"
    if not settings.scheduling:
        return "an operator has stopped scheduling"
    if any(kind is not HoldKind.DEPENDENCY for kind in spec.holds):
        return "the job is held"
    if is_planned(spec, state):
        if spec.holds:
            return "the job waits for other jobs, and the load at that time is unknown"
        if spec.start_after_s > now_s:
            return "the job starts later, and the load at that time is unknown"
    return "" if state.nodes else "no node has registered yet"


def _newcomer(spec: JobSpec, state: State, now_s: float) -> Job:
    """Return the job that the next submission would make."""
    return Job(
        id=state.next_job, spec=spec, state=JobState.QUEUED, submitted_s=now_s, eligible_s=now_s
    )


def _with_newcomer(
    job: Job, size: Size, state: State, settings: Settings, predictor: Predictor | None
) -> Snapshot:
    """Return the present with one more training."""
    now_s = job.submitted_s
    seen = snapshot(state, settings, now_s, predictor)
    return structs.replace(
        seen,
        groups=[*seen.groups, Group(job_class=state.class_of(job), order=[state.order_key(job)])],
        profiles=_With(
            seen.profiles,
            job.id,
            profile_of(job, size, settings=settings, state=state, now_s=now_s),
        ),
        kinds=_With(seen.kinds, job.id, kind_of(job.spec)),
    )


def _of_plan(plan: Plan, job: Job, job_class: JobClass) -> Forecast:
    start_s = next((job.submitted_s for start in plan.starts if start.job == job.id), None)
    if start_s is None:
        waits = (wait.predicted_start_s for wait in plan.waits if wait.job_class == job_class)
        start_s = next(waits, None)
    verdict = next((each for each in plan.verdicts if each.job == job.id), None)
    if verdict is None:
        return Forecast(start_s=start_s, why="the policy has not planned it yet")
    meets = _meets_by(verdict, job.submitted_s) if job.spec.deadline_s else None
    return structs.replace(verdict, job=0, start_s=start_s, meets=meets, unsure_until_s=None)


def guarantee_of(job: int, spec: JobSpec, outlook: Forecast, *, now_s: float) -> f.DeadlineJudged:
    """Return that a job which is to be refused if it is late will be in time.

    It is a guarantee where the policy can keep one: the user waits for nothing less. No policy
    keeps that of a job that is planned like all others.

    Raises:
        InvalidRequestError: it will be late, or nothing can be said.
    """
    if outlook.meets:
        return f.DeadlineJudged(
            at_s=now_s,
            job=job,
            meets=True,
            end_s=outlook.end_s,
            gpus=outlook.gpus,
            firm=outlook.firm or outlook.can_guarantee,
        )
    because = f": {outlook.why}" if outlook.why else ""
    hint = f"submit it {_remedy(spec, outlook)}without --reject-if-late"
    if outlook.meets is None:
        raise InvalidRequestError(
            f"cannot predict whether the deadline {moment(spec.deadline_s)} will be met"
            f"{because}; nothing was queued",
            hint=hint,
        )
    end = "" if outlook.end_s is None else f", its expected end is {moment(outlook.end_s)}"
    raise InvalidRequestError(
        f"the job would miss its deadline {moment(spec.deadline_s)}{end}{because}; "
        "nothing was queued",
        hint=hint,
    )


def _remedy(spec: JobSpec, outlook: Forecast) -> str:
    """Return how a job that was refused could be in time, as far as its user can do something."""
    if outlook.why == RUN_TIME_UNKNOWN:
        return "with a --walltime, or "
    if outlook.end_s is None and (outlook.meets is None or outlook.lacks_room):
        return ""
    if spec.training is None or not spec.request.takes_gpus or outlook.lacks_room:
        return "with a later deadline, or "
    return "with a later deadline or more GPUs, or "


class _With(Mapping[int, V]):
    """What is known of all jobs, and of one more."""

    def __init__(self, others: Mapping[int, V], job: int, new: V) -> None:
        self._others = others
        self._job = job
        self._new = new

    def __getitem__(self, job: int) -> V:
        return self._new if job == self._job else self._others[job]

    def __iter__(self) -> Iterator[int]:
        yield from self._others
        yield self._job

    def __len__(self) -> int:
        return len(self._others) + 1

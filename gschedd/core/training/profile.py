"""What the head knows of training jobs when a policy asks: what is left of them, and by when."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final

from msgspec import Struct

from gsched.model.job import JobSpec
from gsched.model.resources import Request
from gsched.model.states import AttemptState, JobState
from gschedd.core.state.learning import Loads
from gschedd.core.state.records import Attempt, Job, Reached
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State
from gschedd.core.training.backoff import is_left_alone
from gschedd.core.training.goodput import adaptive_profile
from gschedd.core.training.move_costs import expected_move_s
from gschedd.core.training.profiling import is_profiled
from gschedd.core.training.startups import expected_startup_s
from gschedd.core.training.step_times import own_size, size_of_kind
from gschedd.core.training.world_size import counts_taken
from gschedd.models.kinds import kind_of
from gschedd.models.runtime import size_of_run
from gschedd.models.sizes import size_by_walltime, stated_size
from gschedd.models.startup import LEAST_S
from gschedd.plan.elastic import is_elastic
from gschedd.plan.layouts import has_alike_gpus, layout_of
from gschedd.plan.load import Predictor
from gschedd.plan.times import predicted_s
from gschedd.plan.training import Size, TrainingProfile, UnknownSpeed

#: Requests whose numbers of GPUs are kept: those of training jobs are few, and asked for in each
#: cycle.
MAX_COUNTED: Final = 4_096
#: Kinds of nodes on which a run time is predicted, the slowest ones.
MAX_KINDS_OF_NODES: Final = 4

_KNOWN = frozenset({JobState.QUEUED, JobState.RUNNING})


class TrainingProfiles(Mapping[int, TrainingProfile]):
    """Training jobs that wait to start or run, by job, as they are at one moment.

    Each is worked out when it is first asked for, and kept: a snapshot does not change.
    """

    def __init__(
        self,
        state: State,
        settings: Settings,
        now_s: float,
        predictor: Predictor | None = None,
    ) -> None:
        self._state = state
        self._settings = settings
        self._now_s = now_s
        self._predictions = predictor if settings.config.balance.predicted_times else None
        self._profiles: dict[int, TrainingProfile] = {}

    def __getitem__(self, number: int) -> TrainingProfile:
        profile = self._profiles.get(number)
        if profile is None:
            job = self._state.training_jobs[number]
            size = self._size(job)
            if job.state not in _KNOWN or size is None:
                raise KeyError(number)
            profile = self._profiles[number] = profile_of(
                job, size, settings=self._settings, state=self._state, now_s=self._now_s
            )
        return profile

    def __iter__(self) -> Iterator[int]:
        return (
            number
            for number, job in self._state.training_jobs.items()
            if job.state in _KNOWN and self._size(job) is not None
        )

    def _size(self, job: Job) -> Size | None:
        if not has_alike_gpus(job.spec.request):
            return None
        sizes = self._state.caches.sizes
        if job.id not in sizes:
            sizes[job.id] = stated_size(job.spec)
        return (
            own_size(job, self._state, self._settings)
            or sizes[job.id]
            or learned_size(job.spec, self._state, self._settings, self._predictions, self._now_s)
            or self._unknown_size(job)
        )

    def _unknown_size(self, job: Job) -> Size | None:
        """Return the size of an adaptive training where a policy plans it by its goodput alone."""
        is_planned = self._state.plans_adaptive and job.spec.adaptive is not None
        return Size(speed=UnknownSpeed(), work=1.0) if is_planned else None

    def __len__(self) -> int:
        return sum(1 for _ in self)


def known_size(
    spec: JobSpec, state: State, settings: Settings, predictor: Predictor | None, now_s: float
) -> Size | None:
    """Return how much work a training is: as stated, as its kind was before, or its walltime.

    None where nothing is known of it.
    """
    return stated_size(spec) or learned_size(spec, state, settings, predictor, now_s)


def learned_size(
    spec: JobSpec, state: State, settings: Settings, predictor: Predictor | None, now_s: float
) -> Size | None:
    """Return the size of a training of which its user says nothing but a walltime, if that.

    What steps of its kind were measured to take counts first. Then what its kind took before, where
    it always has the same number of GPUs and enough runs are known: the run time on the slowest
    kind of node here that nine in ten did not exceed.
    """
    measured = size_of_kind(spec, state, settings) if predictor is not None else None
    if measured is not None:
        return measured
    if predictor is not None and not is_elastic(spec.request):
        kind, loads = kind_of(spec), Loads(state)
        nodes = {load.rates: load for load in loads.values() if load.rates.gpus}
        slowest = sorted(nodes.values(), key=lambda load: load.rates.gpu_rate)[:MAX_KINDS_OF_NODES]
        wall_s = predicted_s(predictor.run_time(kind, load, now_s) for load in slowest)
        if wall_s is not None and wall_s > 0:
            return size_of_run(wall_s, spec.request.gpus)
    return size_by_walltime(spec.walltime_s, spec.request)


def profile_of(
    job: Job, size: Size, *, settings: Settings, state: State, now_s: float
) -> TrainingProfile:
    """Return what is known of a training now."""
    attempt = job.attempt
    whole_startup_s = expected_startup_s(job.spec, size, state)
    move_s = expected_move_s(job, state, settings, whole_startup_s)
    if attempt is None or attempt.started_s is None:
        left = size.work - done_of(size, job.work_done, job.work_total)
        rest = Rest(work=left, total_work=size.work, startup_s=whole_startup_s)
    else:
        rate = size.speed.rate(layout_of(attempt.allocation, state.gpus_of, settings.fabric))
        rest = rest_of_running(
            job,
            size,
            rate,
            reached=state.reached.get(job.id),
            before=Before(startup_s=whole_startup_s, move_s=move_s),
            now_s=now_s,
        )
    counts = _gpus(job, state, settings)
    movable = _is_movable(job, state, now_s)
    return TrainingProfile(
        job=job.id,
        arrived_s=job.submitted_s,
        deadline_s=job.spec.deadline_s or None,
        work=max(0.0, rest.work),
        total_work=rest.total_work,
        speed=size.speed,
        gpus=counts,
        startup_s=rest.startup_s,
        whole_startup_s=whole_startup_s,
        movable=movable,
        movable_later=job.spec.movable and not movable and job.state is not JobState.EXITING,
        move_s=move_s,
        guaranteed=job.guaranteed,
        request=job.spec.request if has_alike_gpus(job.spec.request) else None,
        adaptive=adaptive_profile(
            state, job, counts=counts, restart_s=move_s or whole_startup_s, now_s=now_s
        ),
    )


def _gpus(job: Job, state: State, settings: Settings) -> tuple[int, ...]:
    """Return the numbers of GPUs that a training may be given now, ascending."""
    counts = counts_taken(state, job, gpu_counts(job.spec.request, state.total_gpus()))
    if state.plans_adaptive and job.spec.adaptive is not None:
        return counts  # its policy starts it on the fewest, and lets it grow
    return counts[:1] if is_profiled(job, state, settings) else counts


def _is_movable(job: Job, state: State, now_s: float) -> bool:
    """Return whether policies may move a training, once it runs; not one that could not be."""
    if not job.spec.movable or is_left_alone(state, job.id, now_s):
        return False
    return job.attempt is None or job.attempt.state is AttemptState.RUNNING


@lru_cache(MAX_COUNTED)
def gpu_counts(request: Request, total: int) -> tuple[int, ...]:
    """Return the numbers of GPUs that a request may be given here, ascending; never none.

    Args:
        request: it may allow a hundred thousand.
        total: GPUs of all nodes; of more nothing need be planned.
    """
    if not is_elastic(request):
        return (request.gpus,)
    each = request.chunks[0].gpus
    most = min(request.places_max, total // each) if each else request.places_max
    return tuple(count * each for count in range(request.places, max(request.places, most) + 1))


#: So long a training must have been heard for its real pace to count, seconds. The first steps of
#: one are slower than all others.
OBSERVED_LEAST_S: Final = 5.0


class Rest(Struct, frozen=True, kw_only=True):
    """What is left, as far as is known.

    Attributes:
        work: in the unit of the training's speed; of one that runs faster or slower than its speed
            tells, so much more or less that its run time comes out right where it runs.
        total_work: what there was at the beginning, likewise.
        startup_s: until its first step, seconds.
    """

    work: float
    total_work: float
    startup_s: float = 0.0


class Before(Struct, frozen=True, kw_only=True):
    """What is expected before the first step of an attempt.

    Attributes:
        startup_s: of a start, seconds; 0: nothing is.
        move_s: of a move, until the first step after it, seconds.
    """

    startup_s: float
    move_s: float


def rest_of_running(
    job: Job,
    size: Size,
    rate: float,
    *,
    reached: Reached | None,
    before: Before,
    now_s: float,
) -> Rest:
    """Return what is left of a training whose attempt has started.

    Args:
        job: it.
        size: of all of it.
        rate: work a second where it runs, by its speed.
        reached: how far it has said to be, if it has.
        before: what is expected before its steps.
        now_s: seconds since the epoch.
    """
    attempt = job.current_attempt
    assert attempt.started_s is not None, "it has started"
    if reached is not None and reached.attempt == attempt.number:
        # its node's clock may be wrong, but it cannot have been there before its attempt
        since_s = max(reached.at_s, attempt.started_s)
        slower = _slower(size, rate, reached)
        left = (size.work - done_of(size, reached.work_done, reached.work_total)) * slower
        return Rest(work=left - rate * max(0.0, now_s - since_s), total_work=size.work * slower)
    begins_s = attempt.started_s + _begins_after_s(attempt, before)
    left = size.work - done_of(size, attempt.work_begun, job.work_total)
    return Rest(
        work=left - rate * max(0.0, now_s - begins_s),
        total_work=size.work,
        startup_s=_rest_of_start_s(
            now_s - begins_s,
            left / rate if rate > 0 else float("inf"),
            is_known=before.startup_s > 0,
        ),
    )


def _begins_after_s(attempt: Attempt, before: Before) -> float:
    """Return how long after its start an attempt does its first step, as far as is known."""
    if attempt.startup_s is not None:
        return attempt.startup_s
    return max(before.startup_s, before.move_s) if attempt.work_begun > 0 else before.startup_s


def _rest_of_start_s(since_s: float, steps_s: float, *, is_known: bool) -> float:
    """Return what is left of a start, or of what nobody knew of.

    One that should have been done before has taken longer to start than was expected, or its steps
    do: how long it will go on, it is taken to have gone on for, as the longer it has the longer it
    is likely to.

    Args:
        since_s: since it should have done its first step, seconds; below 0: that is to come.
        steps_s: what is to be done after that.
        is_known: something is known of how long it takes to start.
    """
    if since_s < 0:
        return -since_s if is_known else 0.0
    over_s = since_s - steps_s
    return over_s if over_s >= LEAST_S else 0.0


def _slower(size: Size, rate: float, reached: Reached) -> float:
    """Return how many times longer a training's steps take than its speed tells; 1: unknown."""
    observed_s = reached.at_s - reached.since_s
    now, then = (
        done_of(size, work, reached.work_total) for work in (reached.work_done, reached.since_work)
    )
    if observed_s < OBSERVED_LEAST_S or now <= then or rate <= 0:
        return 1.0
    return rate * observed_s / (now - then)


def done_of(size: Size, work_done: float, work_total: float) -> float:
    """Return what is done in the unit of a training's speed.

    A training counts in samples, of which its user may have said nothing: neither a walltime nor
    measured rates do. What both know is how large a part of the whole is done.
    """
    return size.work * min(1.0, work_done / work_total) if work_total > 0 else work_done

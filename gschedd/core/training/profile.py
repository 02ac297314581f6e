"""What the head knows of training jobs when a policy asks: what is left of them, and by when."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final

from gsched.model.job import JobSpec
from gsched.model.resources import Request
from gsched.model.states import AttemptState, JobState
from gschedd.core.state.learning import Loads
from gschedd.core.state.records import Job
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State
from gschedd.core.training.backoff import is_left_alone
from gschedd.core.training.goodput import adaptive_profile
from gschedd.core.training.move_costs import expected_move_s
from gschedd.core.training.profiling import is_profiled
from gschedd.core.training.remaining import Before, Rest, done_of, rest_of_running
from gschedd.core.training.startups import expected_startup_s
from gschedd.core.training.step_times import own_size, size_of_kind
from gschedd.core.training.world_size import counts_taken
from gschedd.models.kinds import kind_of
from gschedd.models.runtime import size_of_run
from gschedd.models.sizes import size_by_walltime, stated_size
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
        wall_s = predicted_s(predictor.predict(kind, load, now_s) for load in slowest)
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

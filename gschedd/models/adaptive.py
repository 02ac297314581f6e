"""The goodput of adaptive training jobs: of each job, and of each kind; bounded."""

from collections import deque
from typing import Final

from msgspec import structs

from gsched.model.training import Adaptive
from gschedd.models.goodput.learner import GoodputLearner, learner_of
from gschedd.models.goodput.model import GoodputModel, times_as_fast
from gschedd.models.goodput.records import GradientNoise, Observation, TypeModel
from gschedd.models.history import LruMap
from gschedd.models.steptimes import TYPES_JOINT, Steps
from gschedd.models.type_speeds import TypeSpeeds

#: Jobs and kinds that are remembered, and configurations and measurements of each.
MAX_KNOWN: Final = 10_000
MAX_SEEN: Final = 256
#: Statements of users about one kind for which a model is kept: nearly always there is one.
MAX_STATED: Final = 4
#: A further measurement is news only if it differs by more than this part from what is known, and
#: comes so long after the one before, seconds: each is a row of the database.
CHANGE: Final = 0.1
PAUSE_S: Final = 60.0
#: The same for the gradient noise scale, which is noisy by its nature.
NOISE_CHANGE: Final = 0.3


class _Seen:
    """What a step took on one configuration, and when that was known last; seconds."""

    __slots__ = ("at_s", "step_s")

    def __init__(self) -> None:
        self.step_s = 0.0
        self.at_s = float("-inf")


class _GoodputHistory:
    """What is known of one job or kind.

    Attributes:
        latest: the latest measurements, and how many there were in all.
        noise: the latest of its gradients; None: unknown.
        seen: what was measured last, by GPU type, counts and batch.
        types: GPU types on which it was measured.
        gpus: the most GPUs on which it was measured.
        work_total: of the latest one that said so; 0: none did.
    """

    __slots__ = ("_learners", "count", "gpus", "latest", "noise", "seen", "types", "work_total")

    def __init__(self) -> None:
        self.latest: deque[Steps] = deque(maxlen=MAX_SEEN)
        self.count = 0
        self.noise: GradientNoise | None = None
        self.seen: LruMap[_Seen] = LruMap(_Seen, MAX_SEEN)
        self.types: frozenset[str] = frozenset()
        self.gpus = 0
        self.work_total = 0.0
        self._learners: dict[Adaptive, tuple[int, int, GoodputLearner]] = {}

    def learn(self, steps: Steps, at_s: float) -> None:
        """Take a measurement into account."""
        self.latest.append(steps)
        self.count += 1
        if _has_noise(steps):
            self.noise = GradientNoise(square_norm=steps.gradient_sqr, variance=steps.gradient_var)
        self.types |= {steps.gpu_type}
        self.gpus = max(self.gpus, steps.gpus)
        self.work_total = steps.work_total or self.work_total
        seen = self.seen.touch(_configuration(steps))
        seen.step_s, seen.at_s = steps.step_s, at_s

    def learner(
        self, adaptive: Adaptive, others: "_GoodputHistory | None" = None
    ) -> GoodputLearner:
        """Return what learns a job of which its user says this, with all that was told.

        Args:
            others: of its kind, which counts on types on which the job was not measured itself.
        """
        known, of_others, learner = self._learners.get(adaptive) or (0, 0, learner_of(adaptive))
        for steps in _newest(self, known):
            _teach(learner, steps)
        if others is not None:
            for steps in _newest(others, of_others):
                if steps.gpu_type not in self.types:
                    _teach(learner, steps)
            of_others = others.count
        if adaptive not in self._learners and len(self._learners) >= MAX_STATED:
            self._learners.clear()
        self._learners[adaptive] = (self.count, of_others, learner)
        return learner


def _newest(course: _GoodputHistory, known: int) -> list[Steps]:
    """Return what was told since so many measurements, as far as it is remembered."""
    new = min(course.count - known, len(course.latest))
    return list(course.latest)[len(course.latest) - new :]


def _teach(learner: GoodputLearner, steps: Steps) -> None:
    learner.add(_observation(steps))
    learner.profile(steps.gpu_type, (), steps.batch_per_gpu_max)


class GoodputKnowledge:
    """Step times and gradient noise of adaptive training jobs, by job and by kind."""

    def __init__(self) -> None:
        self._courses: LruMap[_GoodputHistory] = LruMap(_GoodputHistory, MAX_KNOWN)
        self._speeds = TypeSpeeds()

    def learn(self, kind: str, job: int, steps: Steps, at_s: float) -> None:
        """Take a measurement into account; those on GPUs of several types are left out."""
        if TYPES_JOINT in steps.gpu_type:
            return
        for key in (_job_key(job), _kind_key(kind)):
            self._courses.touch(key).learn(steps, at_s)
        if steps.counts == (1,):
            passes = steps.accumulation + 1
            self._speeds.learn(
                kind,
                steps.gpu_type,
                steps.batch_per_gpu,
                steps.step_s / passes,
                profiled=steps.profiled,
            )

    def is_news(self, job: int, steps: Steps, now_s: float) -> bool:
        """Return whether a measurement of a job is worth keeping."""
        course = self._courses.get(_job_key(job))
        seen = None if course is None else course.seen.get(_configuration(steps))
        if course is None or seen is None:
            return True
        if now_s < seen.at_s + PAUSE_S:
            return False
        is_other_time = abs(steps.step_s - seen.step_s) > CHANGE * seen.step_s
        return is_other_time or _is_other_noise(course.noise, steps)

    def types(self, job: int, kind: str) -> frozenset[str]:
        """Return the GPU types on which a job, or another one of its kind, was measured."""
        found = (self._courses.get(_job_key(job)), self._courses.get(_kind_key(kind)))
        return frozenset().union(*(course.types for course in found if course is not None))

    def gpus_reached(self, job: int) -> int:
        """Return the most GPUs on which a job was measured; 0: it was not."""
        course = self._courses.get(_job_key(job))
        return 0 if course is None else course.gpus

    def work_total(self, kind: str) -> float:
        """Return how much work the latest job of a kind was; 0: none has said so."""
        course = self._courses.get(_kind_key(kind))
        return 0.0 if course is None else course.work_total

    def model(
        self, job: int, kind: str, adaptive: Adaptive, noise: GradientNoise | None = None
    ) -> GoodputModel:
        """Return the goodput of a job, from its own measurements and else from those of its kind.

        Args:
            adaptive: what its user says.
            noise: of its gradients now; None: the latest that was measured.
        """
        own, others = self._courses.get(_job_key(job)), self._courses.get(_kind_key(kind))
        known = own or others
        if own is not None:
            learner = own.learner(adaptive, others)
        else:
            learner = learner_of(adaptive) if known is None else known.learner(adaptive)
        for course in (own, others):
            if noise is None and course is not None:
                noise = course.noise
        if noise is not None:
            learner.measure_noise(noise.square_norm, noise.variance)
        return self._with_guesses(learner.model())

    def _with_guesses(self, known: GoodputModel) -> GoodputModel:
        """Return a model with guesses of types that it does not know, from the slowest it knows."""
        guesses: list[TypeModel] = []
        slowest_first = sorted(known.models, key=known.slowness, reverse=True)
        for gpu_type in sorted(self._speeds.types - known.types()):
            for model in slowest_first:
                ratio = self._speeds.ratio(gpu_type, model.gpu_type)
                if ratio is not None:
                    guesses.append(times_as_fast(model, gpu_type, ratio))
                    break
        return structs.replace(known, guesses=tuple(guesses)) if guesses else known


def _observation(steps: Steps) -> Observation:
    return Observation(
        gpu_type=steps.gpu_type,
        nodes=len(steps.counts),
        gpus=steps.gpus,
        batch_per_gpu=steps.batch_per_gpu,
        accumulation=steps.accumulation,
        gradient_s=steps.gradient_s,
        step_s=steps.step_s,
        profiled=steps.profiled,
    )


def _has_noise(steps: Steps) -> bool:
    return steps.gradient_sqr + steps.gradient_var > 0


def _is_other_noise(known: GradientNoise | None, steps: Steps) -> bool:
    if not _has_noise(steps):
        return False
    if known is None:
        return True
    before = known.variance * steps.gradient_sqr
    return abs(steps.gradient_var * known.square_norm - before) > NOISE_CHANGE * before


def _configuration(steps: Steps) -> str:
    kind = " profiled" if steps.profiled else ""
    return f"{steps.gpu_type} {steps.counts} {steps.batch_per_gpu} {steps.accumulation}{kind}"


def _kind_key(kind: str) -> str:
    return f"k{kind}"


def _job_key(job: int) -> str:
    return f"j{job}"

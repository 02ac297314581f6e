"""Step times of training jobs by layout, from their reports: measured, not stated.

A kind of training that was seen on a layout takes there what it took. On a layout on which it was
not seen, its step is computed as by Fu Maozhong et al. (`gschedd.models.runtime`, equations 2 and
5), with a time of computing and bandwidths that were measured. Unlike there, the samples of a step
stay the same on any number of GPUs, as `gsched.elastic` has it, so that computing is shared out.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Final

from msgspec import Struct

from gschedd.models.history import LruMap
from gschedd.plan.training import Layout, Size

#: Of each layout so many of the latest measurements count, the one in the middle of them.
LATEST: Final = 9
#: Layouts of one kind that are remembered.
MAX_LAYOUTS: Final = 64
#: Kinds and jobs that are remembered.
MAX_KNOWN: Final = 10_000
#: At least this part of a step is computing, however long ranks wait for each other.
COMPUTING_LEAST: Final = 0.1
#: Steps whose samples differ by no more than this part are of one training: the last step of an
#: epoch may have fewer.
SAME_BATCH: Final = 0.05
#: Between the GPU types of a layout that has several.
TYPES_JOINT: Final = "+"


class Steps(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What steps have taken on one layout.

    Attributes:
        counts: GPUs on each of the nodes, the most first.
        gpu_type: of all GPUs, or several types joined by ``+``.
        samples: of one step, on all GPUs together.
        step_s: of one step, seconds.
        communication_s: of it, what gradients travelled, beside computing or not; 0: not known.
        gradient_bytes: that each GPU has to share with the others in a step; 0: not known.
        work_total: samples of the whole training; 0: not known.
        batch_per_gpu, accumulation: how the samples were split; 0: not known.
        gradient_s: of one forward and backward pass without synchronisation; 0: not known.
        gradient_sqr, gradient_var: statistics of the gradient; 0: not known.
        batch_per_gpu_max: the most samples that fitted on a GPU; 0: no limit was found.
        profiled: it is no step of the training, but was timed apart from it.
    """

    counts: tuple[int, ...]
    gpu_type: str
    samples: float
    step_s: float
    communication_s: float = 0.0
    gradient_bytes: float = 0.0
    work_total: float = 0.0
    batch_per_gpu: int = 0
    accumulation: int = 0
    gradient_s: float = 0.0
    gradient_sqr: float = 0.0
    gradient_var: float = 0.0
    batch_per_gpu_max: int = 0
    profiled: bool = False

    @property
    def gpus(self) -> int:
        """Return the number of GPUs."""
        return sum(self.counts)


class MeasuredStep(Struct, frozen=True, kw_only=True, cache_hash=True):
    """How long a step takes on one layout: GPUs on each node, their speed, seconds."""

    counts: tuple[int, ...]
    device: float
    step_s: float


class MeasuredSpeed(Struct, frozen=True, kw_only=True, cache_hash=True, tag="measured"):
    """Speed of a training whose steps were measured; its work is in samples.

    Attributes:
        samples: of a step.
        seen: layouts on which it was measured.
        computing_s: of a step on one GPU on which times are measured, without communication.
        gradient_bytes: to be shared in a step; 0: not known, so that more GPUs than were seen are
            held to be no faster.
        inside_bytes_s, between_bytes_s: bandwidth inside a node and between nodes as this training
            gets it; 0: that of the layout.
    """

    samples: float
    seen: tuple[MeasuredStep, ...]
    computing_s: float
    gradient_bytes: float = 0.0
    inside_bytes_s: float = 0.0
    between_bytes_s: float = 0.0

    def rate(self, layout: Layout) -> float:
        """Return samples a second."""
        for step in self.seen:
            if step.counts == layout.counts and step.device == layout.device:
                return self.samples / step.step_s
        if layout.gpus > 1 and not self.gradient_bytes:
            return self._rate_of_fewer(layout)
        return self.samples / self.step_s(layout)

    def step_s(self, layout: Layout) -> float:
        """Return how long a step takes where it was not seen, seconds (equation 2)."""
        computing_s = self.computing_s / (layout.gpus * layout.device)
        return computing_s + self._communication_s(layout)

    def _communication_s(self, layout: Layout) -> float:
        own = self.inside_bytes_s if len(layout.counts) == 1 else self.between_bytes_s
        return ring_bytes(layout.gpus, self.gradient_bytes) / (own or layout.bandwidth_bytes_s)

    def _rate_of_fewer(self, layout: Layout) -> float:
        """Return a rate that is not too high: of the most GPUs that were seen up to that number.

        Below all that were seen it is in proportion to their number, of which the true one is no
        less: with fewer GPUs each does more, and no more is lost on communication.
        """
        fewer = [step for step in self.seen if sum(step.counts) <= layout.gpus]
        if fewer:
            step = max(fewer, key=lambda step: (sum(step.counts), -step.step_s))
            return self.samples / step.step_s * min(1.0, layout.device / step.device)
        step = min(self.seen, key=lambda step: (sum(step.counts), -step.step_s))
        share = layout.gpus / sum(step.counts) * layout.device / step.device
        return self.samples / step.step_s * min(1.0, share)


def ring_bytes(gpus: int, gradient_bytes: float) -> float:
    """Return what each GPU sends in a ring all-reduce (equation 5); 0 on one GPU."""
    return 2 * (gpus - 1) / gpus * gradient_bytes


def _layouts() -> LruMap[deque[Steps]]:
    return LruMap(lambda: deque(maxlen=LATEST), MAX_LAYOUTS)


class _StepHistory:
    """What is known of one kind, or of one job: steps of one and the same training."""

    __slots__ = ("gradient_bytes", "layouts", "samples", "work_total")

    def __init__(self) -> None:
        self.samples = 0.0
        self.gradient_bytes = 0.0
        self.work_total = 0.0
        self.layouts = _layouts()

    def learn(self, steps: Steps) -> None:
        """Take a measurement into account; one of another model or batch begins anew."""
        if not self.is_of(steps.samples, steps.gradient_bytes):
            self.layouts, self.work_total = _layouts(), 0.0
        self.samples, self.gradient_bytes = steps.samples, steps.gradient_bytes
        self.work_total = steps.work_total or self.work_total
        self.layouts.touch(f"{steps.gpu_type} {steps.counts}").append(steps)

    def is_of(self, samples: float, gradient_bytes: float) -> bool:
        """Return whether that is the training that is known here."""
        is_same_batch = abs(samples - self.samples) <= SAME_BATCH * self.samples
        return is_same_batch and gradient_bytes == self.gradient_bytes

    def typical(self) -> list[Steps]:
        """Return, of each layout, the measurement in the middle."""
        found = []
        for key in self.layouts:
            latest = self.layouts.get(key)
            assert latest, "each has one at least"
            found.append(sorted(latest, key=lambda steps: steps.step_s)[(len(latest) - 1) // 2])
        return found


class StepTimes:
    """What steps took, by kind and by job, and bandwidths by whoever used them; bounded."""

    def __init__(self) -> None:
        self._courses: LruMap[_StepHistory] = LruMap(_StepHistory, MAX_KNOWN)
        self._inside: deque[float] = deque(maxlen=LATEST)
        self._between: deque[float] = deque(maxlen=LATEST)
        self._speeds: dict[str, MeasuredSpeed] = {}
        self._devices: Mapping[str, float] = {}

    def __bool__(self) -> bool:
        """Return whether anything was learned."""
        return len(self._courses) > 0

    def learn(self, kind: str, job: int, steps: Steps) -> None:
        """Take a measurement into account; they come in the order in which they were known."""
        self._speeds = {}
        for key in (_job_key(job), _kind_key(kind)):
            self._courses.touch(key).learn(steps)
        sent_bytes = ring_bytes(steps.gpus, steps.gradient_bytes)
        if sent_bytes > 0 and steps.communication_s > 0:
            seen = self._inside if len(steps.counts) == 1 else self._between
            seen.append(sent_bytes / steps.communication_s)

    def knows(self, job: int) -> bool:
        """Return whether steps of this very job were measured."""
        return self._courses.get(_job_key(job)) is not None

    def size_of_job(self, job: int, kind: str, devices: Mapping[str, float]) -> Size | None:
        """Return the size of a job of which steps were measured; None: none were.

        What others of its kind have told counts, too, where they were the same training.
        """
        own, others = self._courses.get(_job_key(job)), self._courses.get(_kind_key(kind))
        if own is None:
            return None
        if own.work_total <= 0:
            return None
        together = others is not None and others.is_of(own.samples, own.gradient_bytes)
        key = _kind_key(kind) if together else _job_key(job)
        return Size(speed=self._speed(key, devices), work=own.work_total)

    def size_of_kind(self, kind: str, devices: Mapping[str, float]) -> Size | None:
        """Return the size of the next training of a kind; None: nothing was measured."""
        course = self._courses.get(_kind_key(kind))
        if course is None or course.work_total <= 0:
            return None
        return Size(speed=self._speed(_kind_key(kind), devices), work=course.work_total)

    def _speed(self, key: str, devices: Mapping[str, float]) -> MeasuredSpeed:
        """Return the speed of a kind or job; policies ask for all of them in each cycle.

        Args:
            key: of what was measured.
            devices: how fast GPUs are, by type; those that are missing are usual.
        """
        if devices != self._devices:
            self._speeds, self._devices = {}, dict(devices)
        speed = self._speeds.get(key)
        if speed is None:
            course = self._courses.get(key)
            assert course is not None, "it was measured"
            speed = self._speeds[key] = self._measured(course, devices)
        return speed

    def _measured(self, course: _StepHistory, devices: Mapping[str, float]) -> MeasuredSpeed:
        """Return the speed that follows from what was measured of a training."""
        typical = [(steps, _device(steps.gpu_type, devices)) for steps in course.typical()]
        alone = [steps.step_s * device for steps, device in typical if steps.gpus == 1]
        computing_s = median(alone or [_computing_s(steps, device) for steps, device in typical])
        inside: list[float] = []
        between: list[float] = []
        for steps, device in typical:
            lost_s = steps.communication_s
            if alone:  # what it costs beside computing, however much runs at the same time
                lost_s = steps.step_s - computing_s / (steps.gpus * device)
            sent_bytes = ring_bytes(steps.gpus, steps.gradient_bytes)
            if lost_s > 0 and sent_bytes > 0:
                (inside if len(steps.counts) == 1 else between).append(sent_bytes / lost_s)
        return MeasuredSpeed(
            samples=course.samples,
            seen=_slowest(typical),
            computing_s=computing_s,
            gradient_bytes=course.gradient_bytes,
            inside_bytes_s=median(inside or self._inside or (0.0,)),
            between_bytes_s=median(between or self._between or (0.0,)),
        )


def _computing_s(steps: Steps, device: float) -> float:
    """Return what a step takes on one usual GPU, as told by one on several (equation 2)."""
    alone_s = max(steps.step_s - steps.communication_s, COMPUTING_LEAST * steps.step_s)
    return alone_s * steps.gpus * device


def _device(gpu_type: str, devices: Mapping[str, float]) -> float:
    return min(devices.get(name, 1.0) for name in gpu_type.split(TYPES_JOINT))


def _slowest(typical: Iterable[tuple[Steps, float]]) -> tuple[MeasuredStep, ...]:
    """Return each layout once: of GPU types that nobody tells apart, the slower one counts."""
    found: dict[tuple[tuple[int, ...], float], float] = {}
    for steps, device in typical:
        key = (steps.counts, device)
        found[key] = max(found.get(key, 0.0), steps.step_s)
    return tuple(
        MeasuredStep(counts=counts, device=device, step_s=step_s)
        for (counts, device), step_s in sorted(found.items())
    )


def _kind_key(kind: str) -> str:
    return f"k{kind}"


def _job_key(job: int) -> str:
    return f"j{job}"

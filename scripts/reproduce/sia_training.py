"""One training of Sia's job lists, as gsched's simulator runs it: by the traces of its model."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from gsched.model.reports import StepSample
from gsched.model.training import Batching
from gschedd.sim.adaptive import Places, StepTruth, Stretch
from gschedd.sim.ground_truth import fitted
from scripts.reproduce.sia_truth import Application, Device, StepTimes

#: Global batches between the smallest and the largest that an oracle chooses from.
CANDIDATES: Final = 50


class TracedTraining:
    """How a training of a list really behaves; a `gschedd.sim.adaptive.Truth`.

    One with a fixed batch counts its samples as they are; any other counts them at the efficiency
    of the smallest batch.

    Args:
        application: its model.
        batch: its fixed global batch; 0: it is chosen, and without a choice it is the smallest.
        profiled: it measures batches on one GPU.
    """

    def __init__(self, application: Application, batch: int = 0, *, profiled: bool = True) -> None:
        self.application = application
        self.work = samples_of(application, batch) if batch else application.ends[-1]
        self.restart_s = application.restart_s
        self.gradient_bytes = application.gradient_bytes
        self._whole = application.ends[-1]
        self._batch = batch
        self._profiled = profiled
        self._steps: dict[tuple[Places, Batching | None], StepTruth | None] = {}

    def step(self, places: Places, batching: Batching | None) -> StepTruth | None:
        """Return a step on some GPUs; None where it cannot run."""
        key = (places, batching)
        if key not in self._steps:
            self._steps[key] = self._step(places, batching)
        return self._steps[key]

    def _step(self, places: Places, batching: Batching | None) -> StepTruth | None:
        application, gpus = self.application, sum(count for _, count in places)
        laid_out = [
            (application.device(gpu_type), counts)
            for gpu_type, counts in _layouts(application, places).items()
        ]
        most = min((device.largest(counts) for device, counts in laid_out), default=0)
        if not most:
            return None
        if batching is None:
            least = max(device.per_gpu_min for device, _ in laid_out)
            wanted = self._batch or max(application.batch, least * gpus)
            split = split_of(application, wanted, gpus, most)
        else:
            split = fitted(batching, most)
        passes = split.accumulation + 1
        per_gpu, samples = split.per_gpu, gpus * split.per_gpu * passes
        if self._batch:
            samples = min(samples, self._batch)  # some GPUs have a sample less than others
        elif samples > application.batch_max:
            per_gpu = max(1, application.batch_max // (gpus * passes))
            samples = gpus * per_gpu * passes
        found = [device.times(counts, per_gpu) for device, counts in laid_out]
        times = [each for each in found if each is not None]
        if len(times) < len(found):
            return None
        slowest = max(times, key=lambda each: each.step_s)
        return StepTruth(
            batching=Batching(per_gpu=per_gpu, accumulation=split.accumulation),
            fits=batching is None or batching.per_gpu <= most,
            samples=samples,
            step_s=application.slowdown * _whole_step_s(slowest, split.accumulation),
            gradient_s=application.slowdown * slowest.gradient_s,
        )

    def stretch(self, done: float, samples: int) -> Stretch:
        """Return the rest of the epoch that begins after some progress, at a global batch.

        Of a fixed batch, of which all samples count the same, that is the rest of the training.
        """
        application = self.application
        if not self._batch:
            return _stretch(application, application.epoch(done), samples)
        found = application.gradients(samples, application.epoch(done / self.work * self._whole))
        return Stretch(self.work, 1.0, found.sqr, found.var)

    def profile(self, gpu_type: str) -> tuple[StepSample, ...]:
        """Return steps on one GPU at each batch that was measured there."""
        if not self._profiled:
            return ()
        application = self.application
        device = application.device(gpu_type)
        sizes = [size for size in device.sizes((1,)) if size <= application.batch_max]
        found = ((size, device.times((1,), size)) for size in sizes)
        return tuple(
            StepSample(
                batch_per_gpu=size,
                step_s=application.slowdown * times.step_s,
                gradient_s=application.slowdown * times.gradient_s,
            )
            for size, times in found
            if times is not None
        )


def samples_of(application: Application, batch: int) -> float:
    """Return the samples of a whole training at one global batch."""
    samples, begun = 0.0, 0.0
    for epoch, end in enumerate(application.ends):
        samples += (end - begun) / _stretch(application, epoch, batch).efficiency
        begun = end
    return samples


def split_of(application: Application, samples: int, gpus: int, most: int) -> Batching:
    """Return how a global batch is split over GPUs, in as few passes as fit.

    One GPU alone takes two at least above the smallest batch, by which gradient noise is measured.
    """
    share = math.ceil(samples / gpus)
    accumulation = math.ceil(share / most) - 1
    if gpus == 1 and samples > application.batch:
        accumulation = max(1, accumulation)
    return Batching(per_gpu=math.ceil(share / (accumulation + 1)), accumulation=accumulation)


def _layouts(application: Application, places: Places) -> dict[str, tuple[int, ...]]:
    """Return by type of GPU the placement of which the traces tell how fast it is.

    GPUs of several types wait for the slowest of them in each step. None were profiled together,
    nor are all placements of one type known: then as many of one type count, on few nodes, or as
    many of it as were profiled.
    """
    counts = tuple(count for _, count in places)
    types = sorted({gpu_type for gpu_type, _ in places})
    if len(types) == 1 and application.device(types[0]).largest(counts):
        return {types[0]: counts}
    return {each: _closest(application.device(each), sum(counts)) for each in types}


def _closest(device: Device, gpus: int) -> tuple[int, ...]:
    """Return the placement of so many GPUs, or of the most below, of which steps are known."""
    found = (spread(count, device.per_node) for count in range(gpus, 0, -1))
    return next(counts for counts in found if device.largest(counts))


def _whole_step_s(times: StepTimes, accumulation: int) -> float:
    return times.step_s + accumulation * times.gradient_s


@lru_cache(100_000)
def _stretch(application: Application, epoch: int, samples: int) -> Stretch:
    found = application.gradients(samples, epoch)
    gain = application.gain(samples, epoch)
    return Stretch(
        until=application.ends[epoch],
        efficiency=gain * application.batch / samples,
        gradient_sqr=found.sqr,
        gradient_var=found.var,
    )


def spread(gpus: int, per_node: int) -> tuple[int, ...]:
    """Return GPUs by node, on as few nodes as can be."""
    whole, rest = divmod(gpus, per_node)
    return (per_node,) * whole + ((rest,) if rest else ())


@lru_cache(10_000)
def least_run_time_s(application: Application, gpu_type: str, counts: Sequence[int]) -> float:
    """Return the time of all steps on some GPUs with the best batch in each epoch, seconds.

    Infinite where it cannot run there.
    """
    gpus, training = sum(counts), TracedTraining(application)
    most = application.device(gpu_type).largest(counts)
    if not most:
        return math.inf
    places = tuple((gpu_type, count) for count in counts)
    ratio = application.batch_max / application.batch
    sizes = {
        round(application.batch * ratio ** (step / (CANDIDATES - 1))) for step in range(CANDIDATES)
    }
    splits = {split_of(application, size, gpus, most) for size in sizes}
    steps = [step for split in splits if (step := training.step(places, split)) is not None]
    total_s, begun = 0.0, 0.0
    for end in application.ends:
        epoch = application.epoch(begun)
        rates = (
            _stretch(application, epoch, step.samples).efficiency * step.samples / step.step_s
            for step in steps
        )
        best = max(rates, default=0.0)
        if best <= 0:
            return math.inf
        total_s += (end - begun) / best
        begun = end
    return total_s

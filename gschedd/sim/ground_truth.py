"""Adaptive training jobs that behave as a throughput model says: for traces and tests."""

from functools import lru_cache

from msgspec import Struct

from gsched.model.reports import StepSample
from gsched.model.training import Batching
from gschedd.models.goodput.records import ThroughputParameters
from gschedd.sim.adaptive import Places, StepTruth, Stretch

#: Batches per GPU of a profile: these multiples of the smallest.
PROFILED: tuple[int, ...] = (1, 2, 4, 8, 16, 32)


class ModelledTraining(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a training behaves that does exactly what a throughput model says.

    Attributes:
        work: of the whole training, in samples at the efficiency of the tuned batch.
        batch: the tuned batch: global, without a choice (count).
        models: of each type of GPU on which it runs; the type ``""`` stands for all others.
        noise_scales: pairs (part of the work until which it holds, gradient noise scale in
            samples), ascending; the last one holds to the end.
        per_gpu_max: the most samples that fit on a GPU of a type (count); none: any number.
        restart_s: from the start of an attempt to its first step, seconds.
        gradient_bytes: that each GPU shares with the others in a step; 0: it does not say.
    """

    work: float
    batch: int
    models: dict[str, ThroughputParameters]
    noise_scales: tuple[tuple[float, float], ...] = ((1.0, 1000.0),)
    per_gpu_max: dict[str, int] = {}
    restart_s: float = 30.0
    gradient_bytes: float = 0.0

    def step(self, places: Places, batching: Batching | None) -> StepTruth | None:
        """Return a step on some GPUs; None where it cannot run.

        GPUs of several types wait for the slowest of them.
        """
        gpus, types = sum(count for _, count in places), {gpu_type for gpu_type, _ in places}
        if any(self._model(each) is None for each in types):
            return None
        limits = [self.per_gpu_max[each] for each in types if each in self.per_gpu_max]
        wanted = batching or Batching(per_gpu=-(-self.batch // gpus))
        split = fitted(wanted, min(limits, default=wanted.per_gpu))
        times = [self._times(each, len(places), gpus, split) for each in sorted(types)]
        step_s, gradient_s = max(times)
        return StepTruth(
            batching=split,
            fits=split == wanted,
            samples=gpus * split.per_gpu * (split.accumulation + 1),
            step_s=step_s,
            gradient_s=gradient_s,
        )

    def _model(self, gpu_type: str) -> ThroughputParameters | None:
        return self.models.get(gpu_type, self.models.get(""))

    def _times(self, gpu_type: str, nodes: int, gpus: int, split: Batching) -> tuple[float, float]:
        model = self._model(gpu_type)
        assert model is not None, "the caller has looked"
        return step_times_s(model, nodes, gpus, split)

    def stretch(self, done: float, samples: int) -> Stretch:
        """Return the part with one noise scale that begins after some progress."""
        until, noise_scale = self.noise_scales[-1]
        for part, scale in self.noise_scales:
            if done < part * self.work:
                until, noise_scale = part, scale
                break
        is_last = (until, noise_scale) == self.noise_scales[-1]
        return Stretch(
            until=self.work if is_last else until * self.work,
            efficiency=(noise_scale + self.batch) / (noise_scale + samples),
            gradient_sqr=1.0,
            gradient_var=noise_scale / self.batch,
        )

    def profile(self, gpu_type: str) -> tuple[StepSample, ...]:
        """Return steps on one GPU at some batches that fit."""
        if self._model(gpu_type) is None:
            return ()
        least = max(1, self.batch // PROFILED[-1])
        most = self.per_gpu_max.get(gpu_type, self.batch)
        sizes = [least * factor for factor in PROFILED if least * factor <= most]
        found = ((size, self._times(gpu_type, 1, 1, Batching(per_gpu=size))) for size in sizes)
        return tuple(
            StepSample(batch_per_gpu=size, step_s=step_s, gradient_s=gradient_s)
            for size, (step_s, gradient_s) in found
        )


def fitted(batching: Batching, most: int) -> Batching:
    """Return a split with the same samples on each GPU in smaller passes, if these do not fit.

    Args:
        most: samples that fit on a GPU (count).
    """
    if batching.per_gpu <= most:
        return batching
    share = batching.per_gpu * (batching.accumulation + 1)
    passes = -(-share // most)
    return Batching(per_gpu=-(-share // passes), accumulation=passes - 1)


@lru_cache(10_000)
def step_times_s(
    model: ThroughputParameters, nodes: int, gpus: int, split: Batching
) -> tuple[float, float]:
    """Return the times of a step, and of one pass without synchronisation, seconds."""
    from gschedd.models.goodput.evaluation import step_times

    found = step_times(
        model,
        nodes=nodes,
        replicas=gpus,
        per_gpu=split.per_gpu,
        accumulation=split.accumulation,
    )
    return float(found.step_s), float(found.gradient_s)

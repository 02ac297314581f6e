"""Goodput of inference jobs: requests that are answered in time, each as useful as any other.

Replicas do not synchronise, so that throughput is in proportion to their number, and the
statistical efficiency is 1. A batch of m samples takes the time of a step without synchronisation,
T = a + b m.

Source: Jayaram Subramanya et al., SOSP 2023, where both are job kinds with a goodput of their own.
"""

from typing import TYPE_CHECKING

from msgspec import Struct

from gsched.model.training import Inference
from gschedd.models.goodput.model import GoodputModel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gschedd.plan.training import Goodput, Goodputs


class BatchInference(Struct, frozen=True, kw_only=True, cache_hash=True):
    """Inference without a time limit: samples a second; `gschedd.plan.training.Goodput`.

    Attributes:
        model: times of batches, the largest batch of a replica, and GPUs of a replica.
    """

    model: GoodputModel

    def types(self) -> frozenset[str]:
        """Return the GPU types on which something was observed."""
        return self.model.types()

    def best(
        self,
        gpu_type: str,
        nodes: "NDArray[np.int64]",  # noqa: ARG002 # the protocol's
        gpus: "NDArray[np.int64]",
    ) -> "Goodputs":
        """Return the throughput of the largest batch, samples a second; see `Goodput.best`."""
        batch = _largest_batch(self.model, gpu_type)
        return _on_replicas(self.model, gpu_type, gpus, batch, most_per_s=float("inf"))


class LatencyBoundedInference(Struct, frozen=True, kw_only=True, cache_hash=True):
    """Inference of which each batch must be done in time; `gschedd.plan.training.Goodput`.

    Attributes:
        model: as of `BatchInference`.
        latency_s: time that a batch may take, seconds.
        requests_per_s: samples that arrive, on all replicas together; more are not useful.
    """

    model: GoodputModel
    latency_s: float
    requests_per_s: float = float("inf")

    def types(self) -> frozenset[str]:
        """Return the GPU types on which something was observed."""
        return self.model.types()

    def best(
        self,
        gpu_type: str,
        nodes: "NDArray[np.int64]",  # noqa: ARG002 # the protocol's
        gpus: "NDArray[np.int64]",
    ) -> "Goodputs":
        """Return the throughput of the largest batch that is done in time; see `Goodput.best`.

        It is 0 where not even one sample is.
        """
        parameters = self.model.on(gpu_type).parameters
        in_time = (self.latency_s - parameters.compute_s) / parameters.compute_per_sample_s
        batch = min(_largest_batch(self.model, gpu_type), int(max(in_time, 0.0) * (1 + 1e-12)))
        return _on_replicas(self.model, gpu_type, gpus, batch, most_per_s=self.requests_per_s)


def goodput_of(model: GoodputModel, inference: Inference | None) -> "Goodput":
    """Return the goodput of a job with such a model, whether it trains or infers.

    Without measurements nothing is known of latencies: then they bound nothing.
    """
    if inference is None:
        return model
    if not inference.latency_s or not model.types():
        return BatchInference(model=model)
    return LatencyBoundedInference(
        model=model,
        latency_s=inference.latency_s,
        requests_per_s=inference.requests_per_s or float("inf"),
    )


def parts_of(goodput: "Goodput") -> tuple[GoodputModel, Inference | None]:
    """Return what `goodput_of` makes the same goodput of.

    Raises:
        TypeError: it is not one of them.
    """
    match goodput:
        case GoodputModel():
            return goodput, None
        case BatchInference():
            return goodput.model, Inference()
        case LatencyBoundedInference(model=model, latency_s=latency_s):
            limit = goodput.requests_per_s
            requests_per_s = 0.0 if limit == float("inf") else limit
            return model, Inference(latency_s=latency_s, requests_per_s=requests_per_s)
        case _:
            raise TypeError(f"no goodput of a job: {type(goodput).__name__}")


def _largest_batch(model: GoodputModel, gpu_type: str) -> int:
    limits = model.limits
    fitting = model.on(gpu_type).per_gpu_max or limits.per_gpu_max or limits.batch_max
    return min(fitting, max(limits.batch_max, limits.batch))


def _on_replicas(
    model: GoodputModel,
    gpu_type: str,
    gpus: "NDArray[np.int64]",
    batch: int,
    *,
    most_per_s: float,
) -> "Goodputs":
    import numpy as np

    from gschedd.plan.training import Goodputs

    parameters = model.on(gpu_type).parameters
    each = model.gpus_of_replica(gpu_type)
    replicas = np.where(gpus % each == 0, gpus // each, 0)
    if batch < max(model.limits.per_gpu_min, 1):
        replicas = np.zeros_like(replicas)
    batch_s = parameters.compute_s + parameters.compute_per_sample_s * batch
    runs = replicas > 0
    return Goodputs(
        goodput=np.minimum(replicas * (batch / batch_s), most_per_s) * runs,
        batch_per_gpu=np.where(runs, batch, 0),
        accumulation=np.zeros_like(replicas),
    )

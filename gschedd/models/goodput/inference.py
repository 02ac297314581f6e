"""Goodput of inference jobs: requests that are answered in time, each as useful as any other.

Replicas do not synchronise, so that throughput is in proportion to their number, and the
statistical efficiency is 1. A batch of m samples takes the time of a step without synchronisation,
T = a + b m.

Source: Jayaram Subramanya et al., SOSP 2023, where both are job kinds with a goodput of their own.
"""

from typing import TYPE_CHECKING

from msgspec import Struct

from gschedd.models.goodput.model import GoodputModel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gschedd.plan.training import Goodputs


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

"""The goodput model of one job: a value that answers for each GPU type and configuration."""

from typing import TYPE_CHECKING, Final

from msgspec import Struct, structs

from gschedd.models.goodput.records import (
    BatchLimits,
    GradientNoise,
    ThroughputParameters,
    TypeModel,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from gschedd.plan.training import Goodputs

#: A job is assumed to run so many times as fast on a type on which no job was measured as on the
#: fastest type on which it was: so the type is tried.
UNKNOWN: Final = 1.5


class GoodputModel(Struct, frozen=True, kw_only=True, cache_hash=True):
    """Goodput of one job by GPU type and configuration; implements `gschedd.plan.training.Goodput`.

    Equal and hashable where two jobs are alike; it can be pickled and written as JSON.

    On a type of which nothing is known, not even a guess, the job is assumed to run `UNKNOWN` times
    as fast as on the fastest measured type, so that the type is tried; a job of which nothing is
    known at all runs one sample a second on each GPU.

    Attributes:
        limits: of the job; ``per_gpu_max`` holds on types that do not have their own.
        noise: of its gradients.
        models: of the GPU types on which it was measured, sorted.
        guesses: of other types, from the speeds that other jobs have shown there; sorted.
        replica_gpus: GPUs of one replica by type, for hybrid-parallel jobs; 1 where missing.
    """

    limits: BatchLimits
    noise: GradientNoise = GradientNoise()
    models: tuple[TypeModel, ...] = ()
    guesses: tuple[TypeModel, ...] = ()
    replica_gpus: tuple[tuple[str, int], ...] = ()

    def types(self) -> frozenset[str]:
        """Return the GPU types on which something was observed."""
        return frozenset(model.gpu_type for model in self.models)

    def best(self, gpu_type: str, nodes: "ArrayLike", gpus: "ArrayLike") -> "Goodputs":
        """Return the best batch and its goodput for each configuration of a GPU type.

        Args:
            nodes: of each configuration, shape ``(C,)``.
            gpus: of each configuration, on all nodes together, shape ``(C,)``.

        Returns:
            Goodput (samples a second times efficiency), batch per replica and accumulation steps,
            each of shape ``(C,)``; all 0 where the job cannot run.
        """
        from gschedd.models.goodput.evaluation import best_of_model

        return best_of_model(self, gpu_type, nodes, gpus)

    def on(self, gpu_type: str) -> TypeModel:
        """Return the model of a GPU type, assumed where nothing is known of it."""
        for model in (*self.models, *self.guesses):
            if model.gpu_type == gpu_type:
                return model
        if self.models:
            return times_as_fast(min(self.models, key=self.slowness), gpu_type, UNKNOWN)
        return TypeModel(
            gpu_type=gpu_type, parameters=ThroughputParameters(compute_per_sample_s=1.0)
        )

    def gpus_of_replica(self, gpu_type: str) -> int:
        """Return how many GPUs of a type one replica takes."""
        return next((gpus for name, gpus in self.replica_gpus if name == gpu_type), 1)

    def slowness(self, model: TypeModel) -> tuple[float, str]:
        """Return the time of the initial batch on one replica, seconds; ties go by name."""
        own = model.parameters
        return own.compute_s + own.compute_per_sample_s * self.limits.batch, model.gpu_type


def times_as_fast(model: TypeModel, gpu_type: str, ratio: float) -> TypeModel:
    """Return the model of a type that computes so many times as fast as another one.

    It scales like the other one: throughput(N) = ratio * throughput_other(N).
    """
    own = model.parameters
    faster = structs.replace(
        own,
        compute_s=own.compute_s / ratio,
        compute_per_sample_s=own.compute_per_sample_s / ratio,
    )
    scaling = model.scaling or own
    return structs.replace(model, gpu_type=gpu_type, parameters=faster, scaling=scaling)

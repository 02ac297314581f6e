"""Adaptive training jobs: goodputs as tables, profiles, nodes of several GPU types."""

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct, structs

from gsched.model.resources import Request
from gsched.model.training import Scaling
from gschedd.plan.space import FreeNode
from gschedd.plan.training import AdaptiveProfile, Goodputs, TrainingProfile
from tests.support.spaces import space
from tests.support.training_jobs import elastic, profile

if TYPE_CHECKING:
    from numpy.typing import NDArray


class PowerGoodput(Struct, frozen=True, kw_only=True, cache_hash=True):
    """A goodput that is a power of the number of GPUs; less on several nodes.

    Attributes:
        speeds: goodput of one GPU of each type that is known.
        exponent: 1 scales perfectly, 0 gains nothing.
        several_nodes: factor where it runs on several.
        gpus_most: it cannot run on more.
    """

    speeds: tuple[tuple[str, float], ...] = (("", 1.0),)
    exponent: float = 0.8
    several_nodes: float = 0.9
    gpus_most: int = 1 << 30

    def best(
        self, gpu_type: str, nodes: "NDArray[np.int64]", gpus: "NDArray[np.int64]"
    ) -> Goodputs:
        """Return goodputs; the batch of each GPU tells how many there are."""
        speed = dict(self.speeds).get(gpu_type, 0.0)
        goodput = speed * gpus**self.exponent * np.where(nodes > 1, self.several_nodes, 1.0)
        goodput = np.where(gpus <= self.gpus_most, goodput, 0.0)
        return Goodputs(goodput, 1000 + gpus, np.zeros_like(gpus))

    def types(self) -> frozenset[str]:
        """Return the known types."""
        return frozenset(name for name, _ in self.speeds)


def adaptive(
    job: int,
    *,
    goodput: PowerGoodput | None = None,
    least: int = 1,
    most: int = 16,
    reached: int = 0,
    request: Request | None = None,
    **changes: object,
) -> TrainingProfile:
    """Return an adaptive training of an hour that has not been restarted."""
    known = AdaptiveProfile(
        goodput=goodput or PowerGoodput(),
        scaling=Scaling.ADAPTIVE,
        age_s=3600.0,
        restarts=0,
        restart_s=30.0,
        gpus_min=least,
        gpus_max=most,
        gpus_reached=reached,
    )
    made = profile(job, request=request or elastic(least, most), movable=True)
    return structs.replace(made, adaptive=structs.replace(known, **changes))


def typed_nodes(**nodes: tuple[str, int]) -> dict[str, FreeNode]:
    """Return idle nodes, each with so many GPUs of a type."""
    return {
        name: space(name, cpus=64, gpu_types=(gpu_type,) * count)
        for name, (gpu_type, count) in nodes.items()
    }

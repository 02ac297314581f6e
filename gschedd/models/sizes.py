"""How much work a job is, from what its user said of it."""

from msgspec import Struct

from gsched.model.job import JobSpec
from gschedd.models.runtime_table import TableSpeed
from gschedd.plan.training import Layout, Size


class KnownSpeed(Struct, frozen=True, kw_only=True):
    """A job of which only its run time on what it asks for is known: its work is seconds of that.

    Attributes:
        gpus: asked for.
    """

    gpus: int

    def rate(self, layout: Layout) -> float:
        """Return 1 on the number of GPUs that it asks for."""
        return layout.device if layout.gpus == self.gpus or not self.gpus else 0.0


def size_of(spec: JobSpec) -> Size | None:
    """Return the size of a training, or None where nothing is known of it."""
    training = spec.training
    if training is not None and training.rates and training.iterations > 0:
        return Size(speed=TableSpeed.of(training), work=training.iterations)
    if spec.walltime_s is not None:
        return Size(speed=KnownSpeed(gpus=spec.request.gpus), work=spec.walltime_s)
    return None

"""How much work a job is, from what its user said of it."""

from gsched.model.job import JobSpec
from gsched.model.resources import Request
from gschedd.models.runtime import size_of_run, size_of_training
from gschedd.plan.training import Size


def stated_size(spec: JobSpec) -> Size | None:
    """Return the size of a training as its user stated it; None where that was not said."""
    return size_of_training(spec.training) if spec.training is not None else None


def size_of(spec: JobSpec) -> Size | None:
    """Return the size of a training, or None where nothing is known of it.

    What was said of the training comes first; then its walltime, on the GPUs asked for, of which a
    range names the least.
    """
    return stated_size(spec) or size_by_walltime(spec.walltime_s, spec.request)


def size_by_walltime(walltime_s: float | None, request: Request) -> Size | None:
    """Return the size of a training of which only its limit is known; None without one."""
    return None if walltime_s is None else size_of_run(walltime_s, request.gpus)

"""Profiling runs: an elastic training runs on its fewest GPUs until its steps were measured.

There is no run apart from the training's own. It does real steps, and when they are known it is a
training like any other: a policy that resizes training jobs gives it the GPUs that it then should
have.
"""

from gsched.errors import InvalidRequestError
from gsched.model.training import Profiling
from gsched.protocol.submissions import SubmitJob
from gschedd.core.state.records import Job
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State
from gschedd.core.training.step_times import size_of_kind
from gschedd.models.sizes import stated_size
from gschedd.plan.elastic import is_elastic


def check_profile(submitted: SubmitJob, settings: Settings) -> None:
    """Do nothing if a submission may ask for a profiling run.

    Raises:
        InvalidRequestError: the site does without them, or the training could not grow afterwards.
    """
    if settings.config.training.profile is Profiling.NEVER:
        raise InvalidRequestError(
            "this site makes no profiling runs: [training] profile is never",
            hint="leave --profile out",
        )
    if not submitted.movable or not submitted.places_max:
        raise InvalidRequestError(
            "a profiling run is for an elastic training with a range of GPUs: it begins on the "
            "fewest, and may get more when its step time is known",
            hint="submit it with --elastic and a range, as --gpus 1..8",
        )


def is_profiled(job: Job, state: State, settings: Settings) -> bool:
    """Return whether a training may have no more than its fewest GPUs for now."""
    spec = job.spec
    if (
        settings.config.training.profile is Profiling.NEVER
        or not spec.movable
        or not is_elastic(spec.request)
    ):
        return False
    if state.step_times.knows(job.id):
        return False
    if spec.profile:
        return True
    if settings.config.training.profile is not Profiling.AUTO:
        return False
    stated = state.caches.sizes[job.id] if job.id in state.caches.sizes else stated_size(spec)
    return stated is None and size_of_kind(spec, state, settings) is None

"""Schema of the details of many jobs, as `gsched.protocol.api` is of all else."""

from msgspec import Struct

from gsched.protocol.api import ErrorBody
from gsched.protocol.job_rows import JobStory


class JobStories(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``GET /v1/stories``: all that is known of some jobs, and an error for each unknown id.

    Attributes:
        jobs: in the order of the ids, each once.
        errors: by id as it was requested.
    """

    server: str
    now_s: float
    jobs: tuple[JobStory, ...]
    errors: dict[str, ErrorBody] = {}

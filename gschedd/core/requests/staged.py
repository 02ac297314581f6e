"""Files that a job stages through the head: only nodes that can do that may have it."""

from msgspec import structs

from gsched.model.job import JobSpec
from gsched.model.outputs import FILES_FEATURE
from gsched.model.resources import Request
from gsched.protocol.submissions import SubmitJob


def with_staging(request: Request, job: SubmitJob | JobSpec) -> Request:
    """Return a request for nodes that can stage a job's files; as it is for a job without any.

    A gnode of before knows no such files, and would start the job without them.
    """
    if not any(file.passes_head for file in (*job.stage_in, *job.stage_out)):
        return request
    chunks = tuple(
        structs.replace(chunk, features=tuple(dict.fromkeys((*chunk.features, FILES_FEATURE))))
        for chunk in request.chunks
    )
    return structs.replace(request, chunks=chunks)

"""Files that are to be copied for a job, and its code snapshot: what can be refused at once."""

from gsched.errors import InvalidRequestError
from gsched.model.limits import MAX_PATH, MAX_RESOURCE_TEXTS, MAX_WORD
from gsched.protocol.api import SubmitJob


def check_staging(asked: SubmitJob) -> None:
    """Refuse too many files, and names that cannot be.

    Raises:
        InvalidRequestError: there are, or the job has a snapshot and a container.
    """
    if asked.snapshot is not None and asked.container is not None:
        raise InvalidRequestError(
            "a code snapshot cannot be unpacked in a container yet",
            hint="leave out --snapshot or the container",
        )
    for name, files in (("stagein", asked.stage_in), ("stageout", asked.stage_out)):
        if len(files) > MAX_RESOURCE_TEXTS:
            raise InvalidRequestError(
                f"{name}: {len(files)} files; the limit is {MAX_RESOURCE_TEXTS}",
                hint="copy a directory instead",
            )
        for each in files:
            long = len(each.host) > MAX_WORD or max(map(len, (each.local, each.remote))) > MAX_PATH
            text = f"{each.local}{each.host}{each.remote}"
            wrong = not (each.local and each.remote and each.host) or each.host.startswith("-")
            if long or wrong or "\0" in text:
                raise InvalidRequestError(
                    f"{name}: a file with an invalid name", hint="write LOCAL@HOST:REMOTE"
                )

"""Failed elements of an array, or a failed job, submitted again: request and reply of the API."""

from msgspec import Struct


class RerunFailed(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """``POST /v1/jobs/rerun-failed``: submit what has failed again, as a new job.

    Attributes:
        job: as users write it: ``56[]``, ``56[0-10]`` for some elements, ``57``.
        key: the client's own id of this submission (a UUID); a retry with the same key gives the
            same job.
        dry_run: everything is checked and nothing is queued.
    """

    job: str
    key: str = ""
    dry_run: bool = False


class RerunReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was submitted, or would be. Sent only after it is durable.

    Attributes:
        id: of the new job; 0: there is none.
        elements: indices of the new array, ``3,7-9``; empty: it is no array.
        count: how many jobs run again; 0: nothing has failed, and ``nothing`` says so in words.
        unfinished: how many elements had not finished; they are not part of it.
    """

    server: str
    id: int = 0
    elements: str = ""
    count: int = 0
    unfinished: int = 0
    nothing: str = ""
    warnings: tuple[str, ...] = ()

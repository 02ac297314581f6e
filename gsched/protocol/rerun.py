"""Jobs, or what has failed of them, submitted again: requests and replies of the API."""

from msgspec import Struct

from gsched.protocol.submissions import SubmitResult


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


class JobChanges(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a job that is submitted again has anew; what is None stays.

    Attributes:
        resources: all of them, as after ``-l``.
        script: of a job with a script.
        arguments: as in a submission: of the script, or the command.
    """

    name: str | None = None
    queue: str | None = None
    resources: str | None = None
    workdir: str | None = None
    script: str | None = None
    arguments: tuple[str, ...] | None = None


class SubmitAgain(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """``POST /v1/jobs/submit-again``: submit a job of one's own again, in whatever state it is.

    Attributes:
        job: as users write it: ``56[]``, ``56[3]`` for elements, ``57``.
        key: the client's own id of this submission (a UUID); a retry with the same key gives the
            same job.
        changes: what the new job has instead; all else is as in the request of the job.
        without: names in ``left_out`` of an earlier answer that the user agrees to.
        dry_run: everything is checked and nothing is queued.
        forecast: with ``dry_run``: say when it would start.
    """

    job: str
    key: str = ""
    changes: JobChanges = JobChanges()
    without: tuple[str, ...] = ()
    dry_run: bool = False
    forecast: bool = False


class SubmitAgainReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The new job, or what it would be. Sent only after it is durable.

    Attributes:
        result: as of any submission.
        launch: ``script``, ``command`` or ``torchrun``.
        request: what the new job has of that which can be changed.
        kept: what else of the request is not a default, by name, in words.
        left_out: what the new job cannot have any more, by name: why, in words.
    """

    server: str
    result: SubmitResult
    is_array: bool = False
    launch: str = "script"
    request: JobChanges = JobChanges()
    kept: dict[str, str] = {}
    left_out: dict[str, str] = {}

"""Submissions in the head's API: the request and its reply."""

from msgspec import Struct

from gsched.model.job import Stated, SubmitPlace
from gsched.model.numbers import Amount, Count, Number
from gsched.model.training import Training
from gsched.protocol.api import ErrorBody
from gsched.protocol.job_rows import StartRow


class SubmitJob(Stated, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One job as its user states it; the head parses ``resources`` and applies defaults.

    Attributes:
        key: the client's own id of this submission (a UUID); the same key is the same job.
        resources: each as after ``-l``: ``nodes=2:ppn=1:gpus=2,walltime=1:00:00``.
        launch: ``script``, ``command`` or ``torchrun``.
        environment: names and values for the job.
        holds: ``user`` or ``operator``.
        places_max: up to so many places of ``resources`` are taken: GPUs of an elastic training.
        deadline_s: by when it is to be done; 0: there is none.
        deadline_after_s: the same, counted from its submission on the head's clock.
        urgency: ``urgent``, ``normal`` or ``relaxed``, instead of a deadline.
        movable: it can migrate: stop at a checkpoint and resume on other nodes.
        reject_if_late: it is refused, and nothing kept of it, unless its deadline can be met.
        checkpoint_dir: where it keeps its checkpoints, absolute; empty: in its directory.
        checkpoint_interval_s: between those that it makes by itself; None: it chooses.
        checkpoint_signal: it can be moved, and is asked by this signal to save its state and end.
        requeue_on: ``node-failure``: it is restarted after a node or a rank of it has died.
        requeue_limit: so often in a row; None: three times.
        warn_unknown: resources that no node has are ignored with a warning, as PBS clients expect.
        depends: on other jobs, each as after ``-W depend=``: ``afterok:12:13``.
        array: indices of the elements of an array: ``0-99:2%5``; empty: it is none.
        lines: one for each index from 0 on: element 7 gets line 7 as $GSCHED_ARRAY_LINE.
        place: the directory of submission, on whose host the head decides.
    """

    key: str
    name: str
    workdir: str
    resources: tuple[str, ...] = ()
    queue: str = ""
    priority: Number = 0
    start_after_s: Amount = 0.0
    join: str = "n"
    umask: Count = 0o022
    launch: str = "script"
    script: str = ""
    exclusive: bool = False
    grace_s: Amount | None = None
    environment: dict[str, str] = {}  # noqa: RUF012 - of a Struct, which copies it
    holds: tuple[str, ...] = ()
    places_max: Count = 0
    deadline_s: Amount = 0.0
    deadline_after_s: Amount = 0.0
    urgency: str = ""
    training: Training | None = None
    movable: bool = False
    reject_if_late: bool = False
    checkpoint_dir: str = ""
    checkpoint_interval_s: Amount | None = None
    checkpoint_signal: Count = 0
    requeue_on: str = ""
    requeue_limit: Count | None = None
    lease_s: Amount | None = None
    depends: tuple[str, ...] = ()
    warn_unknown: bool = False
    array: str = ""
    lines: str = ""
    place: SubmitPlace | None = None


class SubmitRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/jobs``. With ``dry_run`` everything is checked and nothing is queued."""

    jobs: tuple[SubmitJob, ...]
    dry_run: bool = False


class SubmitResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer for one job: an id, or an error. Sent only after it is durable.

    Attributes:
        predicted_start_s: of a dry run: when it would start.
        start: of a dry run: the same with its uncertainty.
        deadline_s: of a job that has one, as the head understood it.
        planned_gpus: how many GPUs it is planned to begin with; 0: unknown.
        predicted_end_s: when it is expected to be done; None: unknown.
        meets_deadline: whether it is expected to be in time; None: unknown.
        late_reason: why it will be late.
    """

    id: int = 0
    warnings: tuple[str, ...] = ()
    predicted_start_s: float | None = None
    start: StartRow | None = None
    error: ErrorBody | None = None
    deadline_s: float | None = None
    planned_gpus: int = 0
    predicted_end_s: float | None = None
    meets_deadline: bool | None = None
    late_reason: str = ""


class SubmitReply(Struct, frozen=True, kw_only=True):
    """One result for each job of the request, in its order."""

    server: str
    results: tuple[SubmitResult, ...]

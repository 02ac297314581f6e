"""Which events of a job are told to whom. Pure.

An event is told at a mail point: ``b`` begin, ``e`` end, ``a`` abort, ``f`` failure. One end of a
job has several: a job that exceeds its walltime has ended, failed and was aborted; it is told once.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from gsched.config.notify import NotifyConfig
from gsched.model.ids import array_of, format_array_id, format_job_id, index_of
from gsched.model.job import JobSpec, Outcome
from gsched.model.mail import NEVER, POINTS, domain_of
from gsched.model.resources import Usage
from gsched.model.states import OutcomeKind
from gsched.model.wording import outcome_words
from gschedd.core.attempts.idle_gpus import ENDINGS, idle_words
from gschedd.core.state import facts as f
from gschedd.core.state.records import Attempt, Job

BEGIN, END, FAIL, ABORT = "begin", "end", "fail", "abort"
#: A job does not use its GPUs: its owner is warned, or it has given them back.
IDLE, RECLAIM = "idle", "reclaim"
#: A running job has to give way to another one.
PREEMPT = "preempt"
#: What a job tells of with ``--notify`` that states no mail points.
URL_POINTS: Final = "abef"
#: The job did not do it.
_OF_THE_SYSTEM: Final = frozenset(
    {
        OutcomeKind.WALLTIME,
        OutcomeKind.OOM,
        OutcomeKind.LAUNCH_FAILED,
        OutcomeKind.NODE_LOST,
        OutcomeKind.SUPERVISOR_LOST,
    }
)


class Notice(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event of a job, with all that is told of it; times are seconds since the epoch.

    Attributes:
        event: ``begin``, ``end`` (exit code 0), ``fail``, ``abort``, ``idle``, ``reclaim`` or
            ``preempt``.
        seq: number of the event in the head's database: the same in every repetition.
        outcome: how it ended, in words; ``kind`` is the word for programs.
        exit_status: Torque's number.
        by: who ended it, if somebody did.
    """

    event: str
    seq: int
    at_s: float
    job: int
    job_id: str
    name: str
    user: str
    uid: int
    queue: str
    server: str
    account: str = ""
    is_array: bool = False
    array_index: int | None = None
    nodes: tuple[str, ...] = ()
    outcome: str = ""
    kind: str = ""
    exit_status: int | None = None
    by: str = ""
    cpus: int = 0
    gpus: int = 0
    memory_bytes: int = 0
    walltime_s: float | None = None
    used: Usage | None = None
    stdout_path: str = ""
    stderr_path: str = ""
    submitted_s: float = 0.0
    started_s: float | None = None
    ended_s: float | None = None


def endpoint_of(lane: str) -> str:
    """Return where the deliveries of a lane go: what is down for one of its lanes is for all.

    Those of one endpoint follow each other, and its lanes take turns. A host of a user's URLs is an
    endpoint of its own for each user.
    """
    return lane if lane.startswith(USER_URL) else lane.partition(" ")[0]


def user_of(lane: str) -> str:
    """Return the user of a lane, as logs name him."""
    return f"uid {lane.split(' ')[1]}" if " " in lane else "all users"


class Address(Struct, frozen=True, kw_only=True):
    """Where a notice goes: the way, and for mail and URLs of users the recipient or URL.

    Attributes:
        lane: of one user, so that nobody's notices wait for all of somebody else's.
    """

    way: str
    lane: str
    target: str = ""


MAIL, COMMAND, URL, USER_URL = "mail", "command", "url", "user-url"
#: In words, for logs and the doctor.
WAYS: Final[Mapping[str, str]] = MappingProxyType(
    {MAIL: "mail", COMMAND: "the command", URL: "the URL", USER_URL: "URLs of users"}
)


def notice_of(
    fact: f.AnyFact, seq: int, job: Job, attempts: Sequence[Attempt], server: str
) -> Notice | None:
    """Return what is told of a fact; None: nothing is."""
    if isinstance(fact, f.PartStarted):
        return _notice(BEGIN, fact, seq, job, attempts, server)
    if isinstance(fact, f.JobEnded):
        return _notice(event_of(fact.outcome), fact, seq, job, attempts, server)
    if isinstance(fact, f.GpusIdleWarned):
        return _notice(IDLE, fact, seq, job, attempts, server)
    if isinstance(fact, f.GpusIdled) and fact.action:
        return _notice(RECLAIM, fact, seq, job, attempts, server)
    if isinstance(fact, f.JobPreempted):
        return _notice(PREEMPT, fact, seq, job, attempts, server)
    return None


def event_of(outcome: Outcome) -> str:
    """Return the event that an end of a job is."""
    if outcome.succeeded:
        return END
    if outcome.kind in _OF_THE_SYSTEM or outcome.kind is OutcomeKind.CANCELLED:
        return ABORT
    return FAIL


def points_of(notice: Notice) -> frozenset[str]:
    """Return the letters of ``-m`` that ask for a notice.

    Nobody asks to be warned: notices of idle GPUs come with any letter, and without one.
    """
    if notice.event in {IDLE, RECLAIM}:
        return POINTS
    if notice.event == BEGIN:
        return frozenset("b")
    if notice.event == PREEMPT:
        return frozenset("a")
    if notice.event == END:
        return frozenset("e")
    if notice.event == FAIL:
        return frozenset("ef")
    if notice.kind != OutcomeKind.CANCELLED:
        return frozenset("aef")
    # who deletes a job of his own knows it
    return frozenset("e" if notice.by == notice.user else "ae")


def addresses_of(notice: Notice, spec: JobSpec, config: NotifyConfig) -> list[Address]:
    """Return where a notice goes."""
    stated = spec.mail_points or ("a" if spec.mail_to else "")
    points = frozenset(stated or config.default_points)
    if notice.event in {IDLE, RECLAIM} and stated != "p":
        points = POINTS | points - NEVER
    at = points_of(notice)
    wanted = not (points & NEVER) and bool(at & points) and _is_due(notice, points)
    found: list[Address] = []

    def lane_of(way: str) -> str:
        return f"{way} {spec.owner.uid}"

    if wanted and config.sends_mail:
        found.append(Address(way=MAIL, lane=lane_of(MAIL), target=recipients_of(spec, config)))
    hooked = bool(at & set(config.hook_points))
    if hooked and (wanted or (config.hook_jobs == "all" and _is_due(notice, points))):
        found += [Address(way=COMMAND, lane=lane_of(COMMAND))] if config.command else []
        found += [Address(way=URL, lane=lane_of(URL))] if config.url else []
    if spec.notify_url and config.allow_urls:
        url_points = frozenset(stated or URL_POINTS)
        origin = spec.notify_url.split("/", 3)[2].lower()
        if not (url_points & NEVER) and at & url_points and _is_due(notice, url_points):
            lane = f"{USER_URL} {spec.owner.uid} {origin}"
            found.append(Address(way=USER_URL, lane=lane, target=spec.notify_url))
    return found


def _is_due(notice: Notice, points: frozenset[str]) -> bool:
    """Return whether it is of the array as a whole, or with ``j`` of each element."""
    if notice.event in {IDLE, RECLAIM}:
        return True
    if notice.is_array or notice.array_index is not None:
        return (notice.array_index is not None) == ("j" in points)
    return True


def recipients_of(spec: JobSpec, config: NotifyConfig) -> str:
    """Return the recipients of mail, with a domain if the site gives one."""
    names = (spec.mail_to or spec.owner.user).split(",")
    domain = config.mail_domain
    return ",".join(name if domain_of(name) or not domain else f"{name}@{domain}" for name in names)


NotableFact = f.PartStarted | f.JobEnded | f.GpusIdleWarned | f.GpusIdled | f.JobPreempted


def _notice(
    event: str,
    fact: NotableFact,
    seq: int,
    job: Job,
    attempts: Sequence[Attempt],
    server: str,
) -> Notice:
    spec, last = job.spec, attempts[-1] if attempts else None
    outcome = fact.outcome if isinstance(fact, f.JobEnded) else None
    first = next(iter(last.parts.values())) if last is not None and last.parts else None
    is_array = spec.array is not None
    words = ""
    if outcome is not None:
        words = outcome_words(outcome, walltime_s=spec.walltime_s, grace_s=spec.grace_s)
    elif isinstance(fact, f.GpusIdleWarned):
        words = idle_words(fact)
    elif isinstance(fact, f.GpusIdled):
        words = f"its GPUs were idle, so it was {ENDINGS[fact.action]}"
    elif isinstance(fact, f.JobPreempted):
        words = f"it was preempted ({fact.way}): {fact.why}"
    return Notice(
        event=event,
        seq=seq,
        at_s=_at_s(fact),
        job=job.id,
        job_id=(format_array_id if is_array else format_job_id)(job.id, server),
        name=spec.name,
        user=spec.owner.user,
        uid=spec.owner.uid,
        queue=spec.queue,
        server=server,
        account=spec.account,
        is_array=is_array,
        array_index=index_of(job.id) if array_of(job.id) else None,
        nodes=tuple(last.parts) if last is not None else (),
        outcome=words,
        kind=outcome.kind.value if outcome is not None else "",
        exit_status=outcome.pbs_status if outcome is not None else None,
        by=fact.by if isinstance(fact, f.JobEnded) else "",
        cpus=spec.request.cpus,
        gpus=spec.request.gpus,
        memory_bytes=spec.request.memory_bytes,
        walltime_s=spec.walltime_s,
        used=last.usage if last is not None and outcome is not None else None,
        stdout_path=(first.stdout_path if first else "") or spec.stdout_path,
        stderr_path=(first.stderr_path if first else "") or spec.stderr_path,
        submitted_s=job.submitted_s,
        started_s=job.started_s,
        ended_s=fact.ended_s if isinstance(fact, f.JobEnded) else None,
    )


def _at_s(fact: NotableFact) -> float:
    if isinstance(fact, f.PartStarted):
        return fact.started_s
    return fact.ended_s if isinstance(fact, f.JobEnded) else fact.at_s

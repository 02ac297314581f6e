"""What becomes of a job that could not be started: another try, elsewhere first, or a hold."""

import errno
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from gsched.model.states import HoldKind, LaunchStage
from gsched.model.units import format_duration
from gsched.model.wording import counted
from gschedd.core.attempts.blame import Verdict, failed_nodes, verdict_on
from gschedd.core.state import facts as f
from gschedd.core.state.records import Attempt, Job

#: Nodes that a job remembers as those where it failed to start; the newest.
MAX_AVOIDED: Final = 8
#: An account has to be unknown for so long before its jobs are held, seconds: a name service may
#: say "not found" for a moment.
UNKNOWN_S: Final = 120.0
#: The shortest pause of a job that waits for its directory, seconds; it waits once more for as long
#: as it has waited, so that a directory made after a minute is found within the next one.
FIRST_LOOK_S: Final = 5.0
#: The longest of these pauses, seconds.
LONGEST_LOOK_S: Final = 300.0
#: Nodes that are named on which a directory does not exist.
MAX_NAMED: Final = 3
#: For so long a job waits for a directory before it is held, seconds: caches of network file
#: systems take minutes, a file server that is started again takes less than an hour.
MISSING_S: Final = 3600.0
#: What the reason of a hold begins with when no node knows the owner of a job.
USER_GONE: Final = "USER_GONE"
#: The same when no node can read the message that starts it.
LAUNCH_BAD: Final = "LAUNCH_BAD"
#: What the reason of any other hold after failures begins with: the job is held "after ...".
AFTER: Final = "after"


class Patience(Struct, frozen=True, kw_only=True):
    """How often a job is tried again for one verdict, and what then.

    Attributes:
        tries: failures in a row after which it is held.
        first_s: until the next try after the first failure, seconds; twice as long after each.
        longest_s: the longest of these pauses, seconds.
        hold: who has to release it.
        least_s: it is not held before it has failed for so long, seconds.
    """

    tries: int
    first_s: float
    longest_s: float
    hold: HoldKind
    least_s: float = 0.0


#: For each verdict that allows another try. Whoever can mend the cause can release the job.
PATIENCE: Final[Mapping[Verdict, Patience]] = MappingProxyType(
    {
        Verdict.UNREADABLE: Patience(tries=1, first_s=0.0, longest_s=0.0, hold=HoldKind.SYSTEM),
        Verdict.USER: Patience(
            tries=3, first_s=60.0, longest_s=60.0, hold=HoldKind.SYSTEM, least_s=UNKNOWN_S
        ),
        Verdict.OWN_PASSING: Patience(tries=5, first_s=2.0, longest_s=60.0, hold=HoldKind.USER),
        Verdict.NODE: Patience(tries=5, first_s=2.0, longest_s=60.0, hold=HoldKind.SYSTEM),
        Verdict.NOBODY: Patience(tries=5, first_s=2.0, longest_s=60.0, hold=HoldKind.SYSTEM),
        Verdict.PASSING: Patience(tries=30, first_s=2.0, longest_s=600.0, hold=HoldKind.SYSTEM),
    }
)


def after_failed_start(
    job: Job, attempt: Attempt, why: str, *, faults: int, at_s: float
) -> f.JobRequeued | None:
    """Return the next try of a job that failed to start, or its hold; None if that is its end.

    Args:
        why: the outcome of the attempt, in words.
        faults: attempts that failed in a row, this one among them.
    """
    found = verdict_on(attempt)
    if found is Verdict.MISSING:
        return _after_missing(job, attempt, at_s)
    patience = PATIENCE.get(found)
    if patience is None:
        return None
    since_s = 0.0
    if found is Verdict.USER:
        since_s = job.unknown_since_s or at_s
    if faults >= patience.tries and at_s - (since_s or 0.0) >= patience.least_s:
        return f.JobRequeued(
            at_s=at_s,
            job=job.id,
            reason=_hold_words(found, attempt, faults, why),
            faults=faults,
            holds=(patience.hold,),
        )
    return f.JobRequeued(
        at_s=at_s,
        job=job.id,
        reason=why,
        faults=faults,
        not_before_s=at_s + pause_s(patience, faults),
        avoid=_avoided(job, attempt),
        unknown_since_s=since_s,
    )


def _after_missing(job: Job, attempt: Attempt, at_s: float) -> f.JobRequeued:
    """Return when a job is tried again whose directory does not exist, or that it is held.

    It is nobody's fault, so that it does not count among the faults in a row.
    """
    since_s = job.missing_since_s or at_s
    words = _missing_words(attempt)
    waited_s = at_s - since_s
    if waited_s >= MISSING_S:
        return f.JobRequeued(
            at_s=at_s,
            job=job.id,
            reason=f"{AFTER} {format_duration(waited_s)} without a directory: {words}",
            faults=job.faults,
            holds=(HoldKind.USER,),
        )
    return f.JobRequeued(
        at_s=at_s,
        job=job.id,
        reason=words,
        faults=job.faults,
        not_before_s=at_s + min(LONGEST_LOOK_S, max(FIRST_LOOK_S, waited_s)),
        avoid=_avoided(job, attempt),
        missing_since_s=since_s,
    )


def _missing_words(attempt: Attempt) -> str:
    found: dict[str, list[str]] = {}
    for node, part in attempt.parts.items():
        failure = part.record.failure if part.record is not None else None
        if failure is not None and failure.missing:
            found.setdefault(failure.missing, []).append(node)
    directory, nodes = next(iter(found.items()))
    more = f" and {counted(len(nodes) - MAX_NAMED, 'more node')}" if len(nodes) > MAX_NAMED else ""
    return f"directory {directory} does not exist on {', '.join(nodes[:MAX_NAMED])}{more}"


def _avoided(job: Job, attempt: Attempt) -> tuple[str, ...]:
    """Return the nodes on which a job has failed to start, the newest first."""
    return tuple(dict.fromkeys((*failed_nodes(attempt), *job.avoid)))[:MAX_AVOIDED]


def pause_s(patience: Patience, faults: int) -> float:
    """Return how long the next try waits, seconds."""
    # the exponent is bounded, or many tries would overflow
    return float(min(patience.longest_s, patience.first_s * 2.0 ** min(faults - 1, 30)))


def _hold_words(found: Verdict, attempt: Attempt, faults: int, why: str) -> str:
    if found is Verdict.USER and _is_unknown(attempt):
        return f"{USER_GONE}: no node knows its user any more ({faults} attempts, last: {why})"
    if found is Verdict.UNREADABLE:
        return f"{LAUNCH_BAD}: {why}; report it as a fault of gsched, and cancel the job with gdel"
    if found in {Verdict.USER, Verdict.OWN_PASSING}:
        return f"{AFTER} {counted(faults, 'failed start')}; last: {why}"
    return f"{AFTER} {counted(faults, 'failed start')} through no fault of its own; last: {why}"


def _is_unknown(attempt: Attempt) -> bool:
    failures = [part.record.failure for part in attempt.parts.values() if part.record is not None]
    return any(
        failure is not None
        and failure.stage is LaunchStage.ACCOUNT
        and failure.errno == errno.ENOENT
        for failure in failures
    )

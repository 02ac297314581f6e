"""Whose fault a failed start is: the one place that decides, from evidence.

A node reports which step failed, on whose thing, with which error (`LaunchFailure`). A step on the
job's or its user's things never counts against the node, since a user can make each of them fail
at will. A step on the node's own things makes the node *suspected*. Suspicion alone drains nothing:
a node is drained when a probe fails (`gschedd.core.nodes.probation`), or once the starts of
different users have failed there.
"""

import errno
from enum import Enum, auto
from typing import Final

from gsched.model.job import ExitRecord, LaunchFailure
from gsched.model.states import LaunchStage, OutcomeKind, Subject
from gschedd.core.nodes.probation import ask_if_suspected, drained, stay_drained
from gschedd.core.state import facts as f
from gschedd.core.state.records import Attempt
from gschedd.core.state.state import State

#: Errors that pass: of a file system, a network or a machine that is short of something.
PASSING: Final = frozenset(
    {
        errno.EIO,
        errno.ESTALE,
        errno.EAGAIN,
        errno.ENOMEM,
        errno.ENFILE,
        errno.EMFILE,
        errno.ETIMEDOUT,
        errno.ENOTCONN,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ECONNREFUSED,
        errno.EINTR,
    }
)
#: What jobs can use up: the node cannot start others while that lasts, but is not broken.
EXHAUSTED: Final = frozenset(
    {errno.EAGAIN, errno.ENOMEM, errno.ENFILE, errno.EMFILE, errno.ENOSPC, errno.EDQUOT}
)
#: Starts that failed in a row for the node's own reasons, after which it may be drained.
MAX_NODE_FAULTS: Final = 3
#: Different users among them.
LEAST_USERS: Final = 2
#: Failures further apart are not in a row, seconds.
FORGET_FAULTS_S: Final = 3600.0


class Verdict(Enum):
    """Whose fault a failed start is, and so what follows; in order of what wins."""

    JOB = auto()  # it fails; another try would fail, too
    UNREADABLE = auto()  # no node can read its launch: held at once, as each would refuse it
    USER = auto()  # the account: tried elsewhere, then held for an administrator
    OWN_PASSING = auto()  # an error on the job's things that may pass: tried again, then held
    NODE = auto()  # tried elsewhere, and the node is suspected
    MISSING = auto()  # a directory that may be made yet: nobody's, the job waits for it
    PASSING = auto()  # nobody's: tried again, with longer and longer pauses
    NOBODY = auto()  # no evidence, or its port was taken: tried again a few times


def verdict(failure: LaunchFailure | None) -> Verdict:
    """Return whose fault a failed start is; without evidence it is nobody's."""
    if failure is None:
        return Verdict.NOBODY
    if failure.stage is LaunchStage.MESSAGE:
        return Verdict.UNREADABLE
    if failure.stage is LaunchStage.ORDER:
        return Verdict.PASSING
    if failure.missing:
        return Verdict.MISSING
    passes = failure.errno in PASSING
    match failure.subject:
        case Subject.JOB:
            return Verdict.OWN_PASSING if passes else Verdict.JOB
        case Subject.USER:
            return Verdict.PASSING if passes else Verdict.USER
        case Subject.NODE:
            return Verdict.NODE


def verdict_on(attempt: Attempt) -> Verdict:
    """Return the verdict on an attempt that failed to start: the first that applies to a part."""
    found = [
        verdict(part.record.failure)
        for part in attempt.parts.values()
        if part.record is not None and failed_to_start(part.record)
    ]
    return min(found, key=lambda each: each.value, default=Verdict.NOBODY)


def failed_to_start(record: ExitRecord) -> bool:
    """Return whether a part never ran, and nobody had asked for that."""
    return record.kind is OutcomeKind.LAUNCH_FAILED and record.stop_reason is None


def failed_nodes(attempt: Attempt) -> tuple[str, ...]:
    """Return the nodes on which an attempt failed to start, and another may not."""
    return tuple(
        name
        for name, part in attempt.parts.items()
        if part.record is not None
        and failed_to_start(part.record)
        and part.record.failure is not None
    )


def suspect(state: State, fact: f.PartEnded) -> list[f.AnyFact]:
    """Return what the end of a part says of its node.

    An epilog that failed drains it at once, for an operator to look at: what it was to remove may
    still be there, and a probe does not see that. Starts that failed in a row through the node's
    own fault are counted, with their users; enough of different users drain it. One that worked
    clears it.
    """
    node = state.nodes.get(fact.node)
    record = fact.record
    if node is not None and record.epilog and (not node.drained or node.probation.due_s > 0):
        return [stay_drained(node, record.epilog, fact.at_s)]
    if node is None or record.stop_reason is not None or record.port_taken:
        return []
    if record.kind is OutcomeKind.NODE_LOST:
        return []
    if record.kind is not OutcomeKind.LAUNCH_FAILED:
        if not node.faults:
            return []
        return [f.NodeFaulted(at_s=fact.at_s, node=node.name, faults=0, message="")]
    if verdict(record.failure) is not Verdict.NODE:
        return []
    uid = state.jobs[fact.job].spec.owner.uid
    fresh = fact.at_s - node.fault_s > FORGET_FAULTS_S
    faults = 1 if fresh else node.faults + 1
    uids = tuple(sorted({uid, *(() if fresh else node.fault_uids)}))[:MAX_NODE_FAULTS]
    facts: list[f.AnyFact] = [
        f.NodeFaulted(
            at_s=fact.at_s, node=node.name, faults=faults, message=record.message, uids=uids
        )
    ]
    if faults >= MAX_NODE_FAULTS and len(uids) >= LEAST_USERS and not node.drained:
        reason = (
            f"{faults} launches of {len(uids)} users failed in a row, the last: {record.message}"
        )
        lacks = is_exhausted(record.failure)
        return [*facts, drained(node, reason, fact.at_s, exhausted=lacks)]
    return [*facts, *ask_if_suspected(node, fact.at_s)]


def is_exhausted(failure: LaunchFailure | None) -> bool:
    """Return whether a start failed for want of something that jobs use up."""
    return failure is not None and failure.errno in EXHAUSTED

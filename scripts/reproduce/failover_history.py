"""Whether what users and nodes have seen of jobs can have happened one after the other.

A history is linearizable if each operation took effect at one moment between its call and its
answer, so that all answers are those of one job table without any failure. Jobs do not depend on
each other here, so each is a register of its own (locality: Herlihy and Wing, 1990), and the check
of one job is the search of Wing and Gong (1993) with the memory of Lowe (2017): an order is built
from its beginning, of operations that no other one precedes, and what was tried is not tried again.

An operation without an answer may have taken effect at any moment from its call on, or never.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

ABSENT, QUEUED, HELD, RUNNING, STOPPING, DONE = (
    "absent",
    "queued",
    "held",
    "running",
    "stopping",
    "done",
)
REFUSED: Final = "refused"
#: What an operation does to a job: its state before and after, by verb and result. All others are
#: impossible. The result of a read is the state. A hold of a running job counts when it is queued
#: again, which no job is here.
MODEL: Final[Mapping[tuple[str, str], Mapping[str, str]]] = {
    ("submit", QUEUED): {ABSENT: QUEUED},
    ("submit", HELD): {ABSENT: HELD},
    ("hold", "ok"): {QUEUED: HELD, **{each: each for each in (HELD, RUNNING, STOPPING)}},
    ("hold", REFUSED): {each: each for each in (ABSENT, STOPPING, DONE)},
    ("release", "ok"): {HELD: QUEUED, **{each: each for each in (QUEUED, RUNNING, STOPPING)}},
    ("release", REFUSED): {each: each for each in (ABSENT, QUEUED, RUNNING, STOPPING, DONE)},
    ("delete", "ok"): {QUEUED: DONE, HELD: DONE, RUNNING: STOPPING, STOPPING: STOPPING},
    ("delete", REFUSED): {each: each for each in (ABSENT, STOPPING, DONE)},
    ("start", "ok"): {QUEUED: RUNNING},
    ("outcome", "ok"): {RUNNING: DONE, STOPPING: DONE},
    **{("read", each): {each: each} for each in (ABSENT, QUEUED, HELD, DONE)},
    ("read", RUNNING): {RUNNING: RUNNING, STOPPING: STOPPING},
}
#: Results that an operation without an answer may have had.
UNKNOWN: Final = ""


class Operation(Struct, frozen=True, kw_only=True):
    """What somebody has requested, or a node has done, and what came back.

    Attributes:
        result: of `MODEL`; `UNKNOWN`: there was no answer.
        begun_s, ended_s: of call and answer, on one clock; infinite: there was none.
    """

    job: str
    verb: str
    result: str = UNKNOWN
    begun_s: float
    ended_s: float = math.inf


def violations(history: Iterable[Operation]) -> dict[str, list[Operation]]:
    """Return the operations of the jobs whose histories are not linearizable, by job."""
    of_job: dict[str, list[Operation]] = defaultdict(list)
    for each in history:
        of_job[each.job].append(each)
    return {
        job: sorted(operations, key=lambda each: each.begun_s)
        for job, operations in of_job.items()
        if not is_linearizable(operations)
    }


def is_linearizable(operations: Iterable[Operation]) -> bool:
    """Return whether some order of the operations of one job explains all answers."""
    given = sorted(operations, key=lambda each: each.begun_s)
    answered = sum(1 << at for at, each in enumerate(given) if math.isfinite(each.ended_s))
    tried: set[tuple[int, str]] = set()
    open_ends = [(0, ABSENT)]
    while open_ends:
        done, state = open_ends.pop()
        if done & answered == answered:
            return True
        if (done, state) in tried:
            continue
        tried.add((done, state))
        left = [at for at in range(len(given)) if not done >> at & 1]
        first_end_s = min(given[at].ended_s for at in left)
        for at in left:
            if given[at].begun_s > first_end_s:
                break  # and all behind it
            open_ends += [(done | 1 << at, after) for after in _after(given[at], state)]
    return False


def _after(operation: Operation, state: str) -> list[str]:
    """Return in which states a job can be after an operation."""
    if operation.result != UNKNOWN:
        after = MODEL[operation.verb, operation.result].get(state)
        return [] if after is None else [after]
    return [
        changes[state]
        for (verb, _), changes in MODEL.items()
        if verb == operation.verb and state in changes
    ]

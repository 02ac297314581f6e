"""Checkpoints of training jobs: where they are, and which of the unrequested become facts.

A training that saves by itself gets some facts in a while, and the newest checkpoint at its end.

Whatever a job or its node says, the database gets no more rows for it than that. What waits to be
written is not durable, and need not be: the node says it again to a head that was restarted.
"""

import posixpath
from collections.abc import Iterable, Iterator
from typing import Final

from gschedd.core.state import facts as f
from gschedd.core.state.records import Job
from gschedd.core.state.state import State

CHECKPOINTS_NAME: Final = "gsched-checkpoints"  # in the job's working directory
#: So many checkpoints of an attempt become facts at once, whoever asked for them, in WINDOW_S.
AT_ONCE: Final = 10
WINDOW_S: Final = 300.0
#: How long a further one waits, seconds; newer ones take its place.
PAUSE_S: Final = WINDOW_S / AT_ONCE


def checkpoint_dir(job: Job) -> str:
    """Return where a job that can be moved keeps its checkpoints; empty for all others."""
    spec = job.spec
    if not spec.movable:
        return ""
    return spec.checkpoint_dir or posixpath.join(spec.workdir, CHECKPOINTS_NAME, str(job.id))


def is_to_wait(state: State, job: Job, now_s: float) -> bool:
    """Return whether a checkpoint for which nobody has asked is not written yet."""
    if job.id in state.volatile.unwritten:
        return True
    begun_s, count = state.volatile.paces.get(job.id, (now_s, 0))
    return count >= AT_ONCE and now_s < begun_s + WINDOW_S


def note_written(state: State, job: int, now_s: float) -> None:
    """Count a checkpoint that becomes a fact."""
    begun_s, count = state.volatile.paces.get(job, (now_s, 0))
    is_over = now_s >= begun_s + WINDOW_S
    state.volatile.paces[job] = (now_s, 1) if is_over else (begun_s, count + 1)


def keep(state: State, fact: f.CheckpointTaken) -> None:
    """Let a checkpoint wait; it takes the place, and the time, of an older one that waits."""
    due_s, before = state.volatile.unwritten.get(fact.job, (fact.at_s + PAUSE_S, fact))
    if fact.attempt != before.attempt or fact.step >= before.step:
        state.volatile.unwritten[fact.job] = (due_s, fact)


def next_due_s(state: State) -> float | None:
    """Return when the next checkpoint that waits is to be written, seconds since the epoch."""
    for due_s, _ in state.volatile.unwritten.values():  # in the order in which they began to wait
        return due_s
    return None


def due(state: State, now_s: float) -> list[f.AnyFact]:
    """Take and return the checkpoints that have waited long enough."""
    found: list[f.AnyFact] = []
    for due_s, fact in list(state.volatile.unwritten.values()):
        if due_s > now_s:
            break
        found.extend(take(state, fact.job))
    return found


def take(state: State, job: int) -> list[f.AnyFact]:
    """Take and return the checkpoint of a job that waits, if it is still of its present attempt."""
    _, fact = state.volatile.unwritten.pop(job, (0.0, None))
    found = state.jobs.get(job)
    attempt = found.attempt if found is not None else None
    if fact is not None:
        note_written(state, job, fact.at_s)
    if fact is None or attempt is None or attempt.number != fact.attempt:
        return []
    return [fact]


def with_unwritten(state: State, facts: Iterable[f.AnyFact]) -> Iterable[f.AnyFact]:
    """Return facts, and before the end of a part the checkpoint that its job has made last."""
    return _with_unwritten(state, facts) if state.volatile.unwritten else facts


def _with_unwritten(state: State, facts: Iterable[f.AnyFact]) -> Iterator[f.AnyFact]:
    for fact in facts:
        if isinstance(fact, f.PartEnded) and fact.job in state.volatile.unwritten:
            yield from take(state, fact.job)
        yield fact

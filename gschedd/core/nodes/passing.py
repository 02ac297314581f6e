"""What passes the head between hosts of submission and nodes: how far it is, in memory only."""

from typing import Final

from gsched.model.passages import Passage
from gschedd.core.state.records import Job
from gschedd.core.state.state import State

#: For so long after a piece the next one counts as on its way, seconds.
FRESH_S: Final = 15.0
#: For so long after a failure it counts as tried again.
FAILED_S: Final = 120.0
_ERROR_CHARACTERS: Final = 300


def note_passage(state: State, job: int, piece: Passage) -> None:
    """Add a piece, or why it did not pass, to what is known of a job that is not done."""
    if job not in state.jobs:
        return
    known = state.volatile.passages.get(job)
    if known is not None and (known.attempt, known.node, known.returns) == (
        piece.attempt,
        piece.node,
        piece.returns,
    ):
        piece.size_bytes += known.size_bytes
        piece.is_over |= known.is_over  # pieces that were requested before may come later
    piece.error = piece.error[:_ERROR_CHARACTERS]
    state.volatile.passages[job] = piece


def passage_of(job: Job, state: State, now_s: float) -> Passage | None:
    """Return what is on its way for a job now; None: nothing."""
    known = state.volatile.passages.get(job.id)
    if known is None or job.attempt is None or known.attempt != job.attempt.number:
        return None
    if known.is_over and not known.error:
        return None
    return known if now_s - known.at_s < (FAILED_S if known.error else FRESH_S) else None

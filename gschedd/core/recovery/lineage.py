"""Which history a database holds: the starts of heads on it, and how far each of them came.

A node keeps of the head that it obeyed last the epoch, its id and how far that head had come. The
database keeps the same of every start. Where the two do not fit, the database is an old or forked
copy: something was acknowledged or started of which it knows nothing.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct

#: A claim that is further ahead than this is no history of this cluster; see `judge`.
MAX_EPOCHS_AHEAD: Final = 1_000_000
MAX_EVENTS_AHEAD: Final = 10_000_000_000
MAX_JOBS_AHEAD: Final = 100_000_000
#: So many of the newest epochs are kept.
KEPT_EPOCHS: Final = 10_000


class Epoch(Struct, frozen=True, kw_only=True):
    """One start of a head on this database, or the acceptance of a loss, which is like one.

    Attributes:
        number: grows with each; a copy of the database can use the same number again.
        id: random, so that no two starts have the same one; 32 hexadecimal digits.
        prev_seq, prev_job: newest event and next job id that the database held when it began, so
            those to which the epoch before it came.
        first_job: the id of its first job; more than ``prev_job`` after a loss.
        accepted: it began when an operator accepted a loss.
    """

    number: int
    id: str
    prev_seq: int
    prev_job: int
    first_job: int
    accepted: bool = False


class Claim(Struct, frozen=True, kw_only=True):
    """What a node says of the heads that it has obeyed; the fields are those of its mark."""

    epoch: int = 0
    epoch_id: str = ""
    seq: int = 0
    next_job: int = 0
    highest_job: int = 0

    @property
    def needs_job(self) -> int:
        """Return the lowest next job id that gives no id twice as far as this node knows."""
        return max(self.next_job, self.highest_job + 1)


class Verdict(StrEnum):
    """How a claim fits a lineage."""

    KNOWN = "known"  # the database holds all that the node has heard of
    LATE = "late"  # of a history whose loss an operator has accepted
    AHEAD = "ahead"  # the node has heard of something that the database does not hold
    ABSURD = "absurd"  # too far ahead to be true, or no number at all


def judge(lineage: Sequence[Epoch], claim: Claim, *, seq: int, next_job: int) -> Verdict:
    """Return how a node's claim fits the database.

    Args:
        lineage: all epochs of the database that are still kept, oldest first, the present one last.
        claim: of the node.
        seq: of the newest event in the database.
        next_job: the id that the next job gets.
    """
    now = lineage[-1]
    if _is_absurd(claim, now, seq=seq, next_job=next_job):
        return Verdict.ABSURD
    if _is_known(lineage, claim, seq=seq, next_job=next_job):
        return Verdict.KNOWN
    accepted = next((epoch for epoch in reversed(lineage) if epoch.accepted), None)
    if accepted is not None and claim.epoch < accepted.number:
        return Verdict.LATE if claim.needs_job <= accepted.first_job else Verdict.AHEAD
    return Verdict.AHEAD


def _is_absurd(claim: Claim, now: Epoch, *, seq: int, next_job: int) -> bool:
    numbers = (claim.epoch, claim.seq, claim.next_job, claim.highest_job)
    return (
        min(numbers) < 0
        or claim.epoch > now.number + MAX_EPOCHS_AHEAD
        or claim.seq > seq + MAX_EVENTS_AHEAD
        or claim.needs_job > next_job + MAX_JOBS_AHEAD
    )


def _is_known(lineage: Sequence[Epoch], claim: Claim, *, seq: int, next_job: int) -> bool:
    if not claim.epoch_id:  # it has obeyed no head, or one that had no ids yet
        return claim.epoch <= lineage[-1].number and claim.needs_job <= next_job
    for index, epoch in enumerate(lineage):
        if epoch.id != claim.epoch_id:
            continue
        last = index + 1 == len(lineage)
        end_seq = seq if last else lineage[index + 1].prev_seq
        end_job = next_job if last else lineage[index + 1].prev_job
        return claim.epoch == epoch.number and claim.seq <= end_seq and claim.needs_job <= end_job
    oldest = lineage[0]  # what was before it is not kept, if there was anything
    return (
        claim.epoch < oldest.number
        and oldest.number > 1
        and claim.seq <= oldest.prev_seq
        and claim.needs_job <= oldest.prev_job
        and len(lineage) >= KEPT_EPOCHS
    )


def describe(claim: Claim) -> str:
    """Return a claim in words."""
    return (
        f"epoch {claim.epoch} ({claim.epoch_id[:8] or 'without an id'}), event {claim.seq}, "
        f"job {claim.needs_job - 1}"
    )

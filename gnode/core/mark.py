"""What a node keeps of the heads that it has obeyed: it is a witness of how far they had come."""

from msgspec import Struct


class HeadMark(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of ``head.json``.

    Attributes:
        cluster: of the heads; empty: this node has obeyed none.
        epoch: the highest of any head that was obeyed.
        epoch_id: of the head of that epoch; no two starts of a head have the same one.
        seq: of the newest event that was durable there, as it said last.
        next_job: the id that its next job would get, as it said last.
        highest_job: number of any job or array that this node has seen.
    """

    cluster: str = ""
    epoch: int = 0
    epoch_id: str = ""
    seq: int = 0
    next_job: int = 0
    highest_job: int = 0


def objection_to(mark: HeadMark, *, cluster: str, epoch: int, epoch_id: str) -> str | None:
    """Return why a head must not be obeyed, or None."""
    if mark.cluster and cluster != mark.cluster:
        return (
            f"the head is of cluster {cluster}, but this node has obeyed {mark.cluster}: "
            "give it another state_dir to join another cluster"
        )
    if epoch < mark.epoch:
        return (
            f"the head's epoch is {epoch}, but this node has obeyed epoch {mark.epoch}: "
            "the head runs on an old copy of its database"
        )
    if epoch == mark.epoch and mark.epoch_id and epoch_id and epoch_id != mark.epoch_id:
        return (
            f"the head's epoch {epoch} is another one than the epoch {epoch} that this node has "
            "obeyed: one of the two heads runs on a copy of the database"
        )
    return None

"""What is kept for those that will be in time only on what others leave."""

from collections.abc import Collection, Mapping

from msgspec import Struct

from gsched.model.resources import Allocation
from gschedd.plan.snapshot import Snapshot
from gschedd.plan.space import Spaces, kept_back
from gschedd.policies.training.drs.round import Decided


class Room(Struct, frozen=True, kw_only=True):
    """What may be used now, while some are leaving their places.

    Attributes:
        free: what those may use for whom nothing is kept.
        gained: by job, those that will be in time on what is left to them, and where.
    """

    free: Spaces
    gained: Mapping[int, Decided]


def gained_by(then: Mapping[int, Decided], now: Collection[int]) -> dict[int, Decided]:
    """Return who is in time by waiting until others have left; nobody if more are in time without.

    Args:
        then: who is in time on what is free when they have left, by job.
        now: who is in time on what is free now.
    """
    if len(then) < len(now):
        return {}
    return {job: each for job, each in then.items() if job not in now}


def keep_back(
    snapshot: Snapshot, leaving: Collection[Allocation], coming: Collection[Allocation]
) -> Spaces:
    """Return what others may use of the nodes where some leave and some come.

    Args:
        snapshot: what there is.
        leaving: what those have that will be gone.
        coming: what will then be taken, and is not kept already.
    """
    free = Spaces(snapshot.nodes)
    for name in sorted({share.node for each in coming for share in each}):
        goes = [share for each in leaving for share in each if share.node == name]
        comes = [share for each in coming for share in each if share.node == name]
        free.put(kept_back(free[name], goes, comes))
    return free

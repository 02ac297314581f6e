"""Fewest jobs: each job on the node on which the fewest run, however large they are.

A baseline: the order of jobs, the reservation and who may pass it are those of ``fifo``.
"""

from baselines.kit.by_space import BySpace
from gschedd.plan.room import Rank, RankKey
from gschedd.plan.snapshot import Plan, Snapshot
from gschedd.plan.space import FreeNode
from gschedd.policies.kit.chooser import Chooser
from gschedd.policies.kit.order import plan_in_order


def plan(snapshot: Snapshot) -> Plan:
    """Start what fits in order, each job where the fewest jobs are."""
    return plan_in_order(snapshot, _Fewest(snapshot))


class _Fewest(Chooser):
    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(snapshot)
        self._rank = BySpace(snapshot.nodes, _by_owners)

    def rank(self, job: int) -> Rank:  # noqa: ARG002 -- the same for all jobs
        return self._rank


def _by_owners(space: FreeNode) -> RankKey:
    return (space.owners, space.name)

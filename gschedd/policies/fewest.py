"""Fewest jobs: each job on the node on which the fewest run, however large they are.

A baseline: the order of jobs, the reservation and who may pass it are those of ``fifo``.
"""

from gsched.model.resources import Chunk
from gschedd.plan.room import Rank, RankKey
from gschedd.plan.snapshot import Plan, Snapshot
from gschedd.plan.space import NodeSpace
from gschedd.policies.kit.chooser import Chooser
from gschedd.policies.kit.order import plan_in_order


def plan(snapshot: Snapshot) -> Plan:
    """Start what fits in order, each job where the fewest jobs are."""
    return plan_in_order(snapshot, _Fewest(snapshot))


class _Fewest(Chooser):
    def rank(self, job: int) -> Rank:  # noqa: ARG002 -- the same for all jobs
        return _by_owners


def _by_owners(chunk: Chunk, space: NodeSpace) -> RankKey:  # noqa: ARG001 -- whatever it asks
    return (space.owners, space.name)

"""Round robin: job after job on node after node.

Where the round begins follows from the job's number, as a policy remembers nothing: with numbers in
a row that is the next node each time. A node that cannot take the job is passed over.
A baseline: the order of jobs, the reservation and who may pass it are those of ``fifo``.
"""

from baselines.kit.by_space import BySpace
from gschedd.plan.room import Rank, RankKey
from gschedd.plan.snapshot import Plan, Snapshot
from gschedd.plan.space import FreeNode
from gschedd.policies.kit.chooser import Chooser
from gschedd.policies.kit.order import plan_in_order


def plan(snapshot: Snapshot) -> Plan:
    """Start what fits in order, each job from the node on at which its turn begins."""
    return plan_in_order(snapshot, _RoundRobin(snapshot))


class _RoundRobin(Chooser):
    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(snapshot)
        self._nodes = snapshot.nodes

    def rank(self, job: int) -> Rank:
        return BySpace(self._nodes, _by_name, turn=job)


def _by_name(space: FreeNode) -> RankKey:
    return (space.name,)

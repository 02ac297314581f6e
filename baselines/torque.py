"""First fit: the first node in order of names that can take the job, as stock Torque does.

A baseline: the order of jobs, the reservation and who may pass it are those of ``fifo``.
"""

import re

from baselines.kit.by_space import BySpace
from gschedd.plan.room import Rank, RankKey
from gschedd.plan.snapshot import Plan, Snapshot
from gschedd.plan.space import FreeNode
from gschedd.policies.kit.chooser import Chooser
from gschedd.policies.kit.order import plan_in_order


def plan(snapshot: Snapshot) -> Plan:
    """Start what fits in order, each job on the first nodes that can take it."""
    return plan_in_order(snapshot, _FirstFit(snapshot))


class _FirstFit(Chooser):
    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(snapshot)
        self._rank = BySpace(snapshot.nodes, _by_number)

    def rank(self, job: int) -> Rank:  # noqa: ARG002 -- the same for all jobs
        return self._rank


def _by_number(space: FreeNode) -> RankKey:
    """Return a key by which ``n2`` comes before ``n10``; the name itself decides the rest.

    Numbers and words are in pairs, so that a number never meets a word: what a part is not is -1
    or empty, and -2 ends the parts, so that a shorter name comes first.
    """
    key: list[float | str] = []
    for part in re.findall(r"[0-9]+|[^0-9]+", space.name):
        key += (int(part), "") if part.isdecimal() else (-1, part)
    return (*key, -2, "", space.name)

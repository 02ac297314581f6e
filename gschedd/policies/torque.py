"""First fit: the first node in order of names that can take the job, as stock Torque does.

A baseline: the order of jobs, the reservation and who may pass it are those of ``fifo``.
"""

import re

from gsched.model.resources import Chunk
from gschedd.plan.room import Rank, RankKey
from gschedd.plan.snapshot import Plan, Snapshot
from gschedd.plan.space import NodeSpace
from gschedd.policies.kit.chooser import Chooser
from gschedd.policies.kit.order import plan_in_order


def plan(snapshot: Snapshot) -> Plan:
    """Start what fits in order, each job on the first nodes that can take it."""
    return plan_in_order(snapshot, _FirstFit(snapshot))


class _FirstFit(Chooser):
    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(snapshot)
        names = sorted(snapshot.nodes, key=_by_number)
        self._places = {name: place for place, name in enumerate(names)}

    def rank(self, job: int) -> Rank:  # noqa: ARG002 -- the same for all jobs
        return self._rank

    def _rank(self, chunk: Chunk, space: NodeSpace) -> RankKey:  # noqa: ARG002 -- whatever it asks
        return (self._places[space.name],)


def _by_number(name: str) -> tuple[list[tuple[int, str]], str]:
    """Return a key by which ``n2`` comes before ``n10``; the name itself decides the rest."""
    parts = re.findall(r"[0-9]+|[^0-9]+", name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts], name

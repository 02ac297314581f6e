"""FIFO by priority with EASY backfill, on the nodes that fit best.

The order, the reservation and who may pass it are those of `gschedd.policies.kit.order`; how long
jobs are planned to run is decided by `gschedd.plan.times`.
"""

from gschedd.plan.snapshot import Plan, Snapshot
from gschedd.policies.kit.chooser import Chooser
from gschedd.policies.kit.order import plan_in_order


def plan(snapshot: Snapshot) -> Plan:
    """Start what fits in order, reserve for the first that does not, backfill behind it."""
    return plan_in_order(snapshot, Chooser(snapshot))

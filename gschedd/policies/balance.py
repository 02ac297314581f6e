"""Self-learning load balancing: each job goes where the most capacity is left.

This is the balancing paper's algorithm (see `gschedd.policies.kit.capacity`) with three things
added: the first job passed over holds a reservation, so that nothing starves; jobs without GPUs
stay off GPU nodes while others can take them; and those behind the reservation pass it by their
predicted run times, not by the walltimes that their users padded.
"""

from msgspec import Struct

from gschedd.plan.snapshot import Plan, Policy, Snapshot
from gschedd.policies.kit.capacity import MostCapacity, Weights, check_weights
from gschedd.policies.kit.order import plan_in_order


class Settings(Struct, frozen=True, kw_only=True):
    """What a site may choose.

    Attributes:
        weights: of the resources.
        window_s: a job younger than this when its node was last sampled is not in the report yet.
        reserve: the first job passed over holds a reservation.
    """

    weights: Weights = Weights()
    window_s: float = 10.0
    reserve: bool = True


def plan(snapshot: Snapshot) -> Plan:
    """Start what fits in order, each job where the most capacity is left."""
    return _plan(snapshot, Settings())


def balance(settings: Settings) -> Policy:
    """Return the policy with a site's own settings.

    Raises:
        ValueError: a weight is below 0, or nothing counts for a job without GPUs.
    """
    check_weights(settings.weights)
    return lambda snapshot: _plan(snapshot, settings)


def _plan(snapshot: Snapshot, settings: Settings) -> Plan:
    chooser = MostCapacity(
        snapshot,
        weights=settings.weights,
        window_s=settings.window_s,
        spare_gpu_nodes=True,
    )
    return plan_in_order(snapshot, chooser, reserve=settings.reserve)

"""The balancing paper's own algorithm, to compare ``balance`` with.

Improved first come, first served: a job that cannot run now is passed over, and nothing is
reserved for it, so a large job may wait for ever. Each job goes to the node that can take it and
has the most capacity left, whatever hardware else it has. It is meant to be asked with
`gschedd.models.predict.PaperModel`.

Source: Liu Hui et al., "A self-learning load balancing scheduling algorithm for GPU heterogeneous
clusters", Journal of Xi'an Shiyou University, 2015; what it leaves open is said in
`gschedd.policies.kit.capacity`.
"""

from functools import partial

from msgspec import Struct

from gschedd.plan.snapshot import Plan, Policy, Snapshot
from gschedd.policies.kit.capacity import MostCapacity, Weights, check_weights
from gschedd.policies.kit.order import plan_in_order


class Settings(Struct, frozen=True, kw_only=True):
    """What a site may choose.

    Attributes:
        weights: of the resources: k1 to k4.
        window_s: a job younger than this when its node was last sampled is not in the report yet.
    """

    weights: Weights = Weights()
    window_s: float = 10.0


def plan(snapshot: Snapshot) -> Plan:
    """Start what fits in order, each job where the most capacity is left."""
    return _plan(snapshot, Settings())


def paper(settings: Settings) -> Policy:
    """Return the policy with a site's own settings.

    Raises:
        ValueError: a weight is below 0, or nothing counts for a job without GPUs.
    """
    check_weights(settings.weights)
    return partial(_plan, settings=settings)


def _plan(snapshot: Snapshot, settings: Settings) -> Plan:
    chooser = MostCapacity(
        snapshot,
        weights=settings.weights,
        window_s=settings.window_s,
        spare_gpu_nodes=False,
    )
    return plan_in_order(snapshot, chooser, reserve=False)

"""The balancing paper's own algorithm, to compare ``balance`` with.

Improved first come, first served: a job that cannot run now is passed over, and nothing is
reserved for it, so a large job may wait for ever. Each job goes to the node that can take it and
has the most capacity left, whatever hardware else it has. It plans with
`baselines.kit.paper_model`.

Source: Liu Hui et al., "A self-learning load balancing scheduling algorithm for GPU heterogeneous
clusters", Journal of Xi'an Shiyou University, 2015; what it leaves open is said in
`gschedd.policies.kit.capacity`.
"""

from functools import partial

from gsched.config.policies import BalanceConfig
from gschedd.plan.snapshot import Plan, Policy, Snapshot
from gschedd.policies.kit.capacity import MostCapacity
from gschedd.policies.kit.order import plan_in_order


def plan(snapshot: Snapshot) -> Plan:
    """Start what fits in order, each job where the most capacity is left."""
    return _plan(snapshot, BalanceConfig())


def paper(settings: BalanceConfig) -> Policy:
    """Return the policy with a site's own settings; weights and window count."""
    return partial(_plan, settings=settings)


def _plan(snapshot: Snapshot, settings: BalanceConfig) -> Plan:
    chooser = MostCapacity(
        snapshot,
        weights=settings.weights,
        window_s=settings.window_s,
        spare_gpu_nodes=False,
    )
    return plan_in_order(snapshot, chooser, reserve=False)

"""Self-learning load balancing: each job goes where it leaves the nodes used most evenly.

This is the balancing paper's algorithm (see `baselines.paper`) with four things
changed: the nodes' shares in use are compared instead of how much is left of them (see
`gschedd.policies.kit.utilisation`); the first job passed over holds a reservation, so that nothing
starves; jobs without GPUs stay off GPU nodes while others have room for them; and those behind the
reservation pass it by their predicted run times, not by the walltimes that their users padded.
"""

from functools import partial

from gsched.config.policies import BalanceConfig
from gschedd.plan.books import BooksOf
from gschedd.plan.snapshot import Plan, Policy, Snapshot
from gschedd.policies.kit.order import plan_in_order
from gschedd.policies.kit.utilisation import LeastImbalance
from gschedd.policies.kit.utilisation_index import utilisation_of


def plan(snapshot: Snapshot) -> Plan:
    """Start what fits in order, each job where it leaves the nodes used most evenly."""
    return _plan(snapshot, BalanceConfig())


def balance(settings: BalanceConfig) -> Policy:
    """Return the policy with a site's own settings."""
    return partial(_plan, settings=settings)


def books_of(settings: BalanceConfig) -> BooksOf:
    """Return what tells what the policy keeps of each node."""
    return partial(utilisation_of, window_s=settings.window_s)


def _plan(snapshot: Snapshot, settings: BalanceConfig) -> Plan:
    chooser = LeastImbalance(snapshot, weights=settings.weights, window_s=settings.window_s)
    return plan_in_order(snapshot, chooser, reserve=settings.reserve)

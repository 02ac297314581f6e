"""When priorities are computed again: fair shares and ages change with time, the order seldom.

Between two epochs the order of waiting jobs is fixed. An epoch that changes it makes all groups
due, as what was decided about each of them was decided in the old order.
"""

from collections.abc import Iterable, Mapping

from gsched.config.shares import ROOT
from gschedd.core.state.indexing import order_by
from gschedd.core.state.priority import Member, Priorities
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State
from gschedd.shares.tree import ShareAccount, ShareTree, ShareUser


def recompute(state: State, settings: Settings, now_s: float) -> None:
    """Compute priorities, or take them away where nothing orders by them."""
    if not settings.orders_by_terms:
        if state.priorities is not None:
            order_by(state, None)
            state.dirty.mark_all()
        return
    usage = usage_of(state, settings, now_s)
    loose = (user for project, user in usage if project not in settings.projects)
    factors = share_tree(settings, loose).factors(usage)
    inventories = [node.inventory for node in state.nodes.values()]
    before, after = state.priorities, Priorities(settings, factors, inventories, now_s)
    order_by(state, after)
    if before is None or not after.is_same_order(before):
        state.dirty.mark_all()


def begin_epoch(state: State, settings: Settings, now_s: float) -> None:
    """Compute priorities again if that is due."""
    due_s = next_epoch_s(state, settings)
    if due_s is not None and due_s <= now_s:
        recompute(state, settings, now_s)


def next_epoch_s(state: State, settings: Settings) -> float | None:
    """Return when priorities are to be computed again; None: nothing is ordered by them."""
    has_terms = settings.orders_by_terms
    if state.priorities is None or not has_terms:
        return 0.0 if has_terms is not (state.priorities is not None) else None
    return state.priorities.at_s + settings.config.priority.recompute_s


def usage_of(state: State, settings: Settings, now_s: float) -> Mapping[Member, float]:
    """Return the usage of each user in each project, and without one at the root."""
    usage: dict[Member, float] = {}
    for (account, user), used in state.usage.usage(now_s).items():
        member = (account if account in settings.projects else ROOT, user)
        usage[member] = usage.get(member, 0.0) + used
    return usage


def share_tree(settings: Settings, loose: Iterable[str]) -> ShareTree:
    """Return the tree of projects and users; users without a project are below the root.

    Args:
        loose: these users, each with one share.
    """
    projects = settings.projects.values()
    accounts = [ShareAccount(name=ROOT)]
    accounts += [
        ShareAccount(name=each.name, parent=each.parent, shares=float(each.shares))
        for each in projects
    ]
    users = [ShareUser(account=ROOT, user=user) for user in dict.fromkeys(loose)]
    users += [
        ShareUser(account=each.name, user=user, shares=float(shares))
        for each in projects
        for user, shares in each.user_shares.items()
    ]
    return ShareTree(accounts, users)

"""When priorities are computed again: fair shares and ages change with time, the order seldom.

Between two epochs the order of waiting jobs is fixed. An epoch that changes it makes all groups
due, as what was decided about each of them was decided in the old order.
"""

from collections.abc import Iterable, Mapping

from gsched.config.shares import ROOT, SharesConfig
from gsched.model.resources import WHOLE_PERCENT, Allocation
from gschedd.core.state.indexing import order_by
from gschedd.core.state.priority import Member, Priorities, member_of
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
    if state.priorities is None or not settings.orders_by_terms:
        return 0.0 if settings.orders_by_terms is not (state.priorities is not None) else None
    return state.priorities.at_s + settings.config.priority.recompute_s


def usage_of(state: State, settings: Settings, now_s: float) -> Mapping[Member, float]:
    """Return the usage of each user in each project, and without one at the root."""
    usage: dict[Member, float] = {}
    for job in state.running.values():
        attempt = job.current_attempt
        if attempt.started_s is not None:
            member = member_of(job.spec, settings.projects)
            charge = charge_rate(settings.config.shares, attempt.allocation, state)
            usage[member] = usage.get(member, 0.0) + charge * max(0.0, now_s - attempt.started_s)
    return usage


def charge_rate(config: SharesConfig, allocation: Allocation, state: State) -> float:
    """Return what a job is charged for each second that it owns an allocation."""
    cpus = memory_gb = gpus = 0.0
    for share in allocation:
        cpus += share.cpus
        memory_gb += share.memory_bytes / 2**30
        types = {gpu.index: gpu.type for gpu in state.gpus_of(share.node)}
        for held in share.gpus_held:
            weight = config.gpus.get(types.get(held.index, ""), config.gpu)
            gpus += weight * held.percent / WHOLE_PERCENT
    parts = (config.cpu * cpus, config.memory_gb * memory_gb, gpus)
    return sum(parts) if config.combine == "sum" else max(parts)


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

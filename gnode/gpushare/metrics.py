"""Counters and states of the token daemon, for people and for the scheduler: pure."""

from collections.abc import Collection, Mapping

from gnode.gpushare.node_tokens import Admission, NodeTokens
from gnode.gpushare.token_policy import TokenPolicy


def metrics_of(
    tokens: NodeTokens, pids: Mapping[str, Collection[int]], now_s: float
) -> dict[str, object]:
    """Return the state of each GPU and job.

    Args:
        tokens: of the node.
        pids: processes of each job that are connected.
        now_s: the time.
    """
    return {
        "unhooked_symbols": tokens.unhooked_symbols,
        "gpus": {gpu: _gpu(policy) for gpu, policy in tokens.policies.items()},
        "groups": {
            group: {**_group(tokens, one, now_s), "pids": sorted(pids.get(group, ()))}
            for group, one in tokens.admissions.items()
        },
    }


def _gpu(policy: TokenPolicy) -> dict[str, object]:
    counters = policy.counters
    return {
        "holder": policy.holder,
        "draining": policy.draining,
        "grants": counters.grants,
        "revokes": counters.revokes,
        "preemptions": counters.preemptions,
        "overlaps": counters.overlaps,
        "demotions": counters.demotions,
        "opportunistic_slices": counters.opportunistic_slices,
        "loads": counters.loads,
        "drains": counters.drains,
        "drain_s_max": counters.drain_s_max,
        "drain_s_sum": counters.drain_s_sum,
    }


def _group(tokens: NodeTokens, admission: Admission, now_s: float) -> dict[str, object]:
    group = admission.group
    policy = tokens.policies[admission.gpu]
    attached = policy.groups.get(group)
    known = attached or policy.gone.get(group)
    return {
        "gpu": admission.gpu,
        "share_class": str(admission.share_class),
        "memory_bytes": admission.memory_bytes,
        "used_bytes": tokens.memory.used_bytes(group),
        "refused_allocations": tokens.memory.refused.get(group, 0),
        "launches": tokens.launches.get(group, 0),
        "waiting": attached is not None and attached.wants_since_s is not None,
        "usage_s": 0.0 if attached is None else policy.usage_s(group, now_s),
        "held_s": 0.0 if known is None else policy.held_s(group, now_s),
        "window": 0 if attached is None else attached.window,
        "overlaps": 0 if known is None else known.overlaps,
        "overlaps_in_row": 0 if known is None else known.overlaps_in_row,
        "demoted": known is not None and known.demoted,
    }

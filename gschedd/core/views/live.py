"""What running jobs use at the moment, and have used so far, as users see it."""

from typing import NamedTuple

from gsched.model.resources import LiveUse, Share
from gsched.protocol.uses import LiveRow
from gschedd.core.nodes.live import total_of, uses_of
from gschedd.core.state.records import Attempt
from gschedd.core.state.state import State


class Used(NamedTuple):
    """What an attempt has used so far; the peaks of its nodes are added up."""

    cpu_s: float = 0.0
    memory_peak_bytes: int = 0
    memory_mean_bytes: int = 0


def used_so_far(state: State, job: int, attempt: Attempt | None) -> Used:
    """Return what an attempt has used, by the last heartbeats and by what was told since."""
    if attempt is None:
        return Used()
    if attempt.ended_s is not None:
        usage = attempt.usage
        if usage is None:
            return Used()
        return Used(usage.cpu_s, usage.memory_peak_bytes, usage.memory_mean_bytes)
    live = uses_of(state, job, attempt)
    cpu_s, peak_bytes, mean_bytes = 0.0, 0, 0
    for node, part in attempt.parts.items():
        use = live[node][0] if node in live else LiveUse()
        usage = part.usage
        cpu_s += max(use.cpu_s, usage.cpu_s if usage is not None else 0.0)
        peak_bytes += max(use.memory_bytes, usage.memory_peak_bytes if usage is not None else 0)
        mean_bytes += usage.memory_mean_bytes if usage is not None else use.memory_bytes
    return Used(cpu_s, peak_bytes, mean_bytes)


def live_row(state: State, job: int, attempt: Attempt | None) -> LiveRow | None:
    """Return what a job uses at the moment on all its nodes, None where that is not known."""
    total = total_of(uses_of(state, job, attempt).values())
    if total is None or attempt is None:
        return None
    return _row(total.use, total.at_s, *attempt.allocation)


def live_parts(state: State, job: int, attempt: Attempt) -> dict[str, LiveRow]:
    """Return what a job uses at the moment on each of its nodes that has told."""
    return {
        node: _row(use, at_s, attempt.parts[node].share)
        for node, (use, at_s) in uses_of(state, job, attempt).items()
        if node in attempt.parts
    }


def _row(use: LiveUse, at_s: float, *shares: Share) -> LiveRow:
    return LiveRow(
        at_s=at_s,
        cpu_cores=use.cpu_cores,
        memory_bytes=use.memory_bytes,
        gpus=use.gpus,
        gpus_held=sum(len(share.gpu_indices) + len(share.gpu_shares) for share in shares),
        gpu_memory_bytes=use.gpu_memory_bytes,
    )

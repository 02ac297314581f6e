"""Shares of GPUs as users see them."""

from gsched.model.gpu_tokens import TokenUse
from gsched.model.resources import WHOLE_PERCENT, GpuShare
from gsched.protocol.api import SharedGpuRow, ShareRow
from gschedd.core.state.records import Job
from gschedd.core.state.state import State
from gschedd.plan.space import FreeNode


def share_row(share: GpuShare) -> ShareRow:
    """Return what an attempt owns of a GPU."""
    return ShareRow(
        percent=share.percent,
        memory_bytes=share.memory_bytes,
        share_class=share.share_class,
        index=share.index,
    )


def share_of(job: Job) -> ShareRow | None:
    """Return what a job has of a GPU, or asks for until it has an attempt."""
    requested = job.spec.request.gpu_share
    if requested is None:
        return None
    if job.attempt is not None:
        owned = (part for share in job.attempt.allocation for part in share.gpu_shares)
        return next(map(share_row, owned), None)
    return ShareRow(
        percent=requested.percent,
        memory_bytes=requested.memory_bytes,
        share_class=requested.share_class,
    )


def tokens_of(state: State, job: Job) -> dict[int, TokenUse]:
    """Return how the attempts of a job take turns on the GPU that they share, by number."""
    if job.spec.request.gpu_share is None or job.attempt is None:
        return {}
    return {
        each.attempt: each
        for node in job.attempt.parts
        if (sharing := state.volatile.gpu_sharing.get(node)) is not None
        for each in sharing.jobs
        if each.job == job.id
    }


def shared_gpus(state: State, space: FreeNode) -> tuple[SharedGpuRow, ...]:
    """Return what is given of each shared GPU of a node, and to whom."""
    jobs: dict[int, list[int]] = {}
    for number, job in sorted(state.by_node.get(space.name, {}).items()):
        for part in job.current_attempt.parts[space.name].share.gpu_shares:
            jobs.setdefault(part.index, []).append(number)
    return tuple(
        SharedGpuRow(
            index=each.gpu.index,
            percent=WHOLE_PERCENT - each.percent,
            memory_bytes=each.gpu.memory_bytes - each.memory_bytes,
            gpu_memory_bytes=each.gpu.memory_bytes,
            jobs=tuple(jobs.get(each.gpu.index, ())),
        )
        for each in space.shared
    )

"""Parts of what is shown of a job: its present use, migrations, GPU shares, and advice."""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from msgspec import structs

from gsched.model.gpu_idle import IdleGpuRow
from gsched.model.gpu_tokens import TokenUse
from gsched.model.reports import Checkpoint, Progress, made_of
from gsched.model.resources import WHOLE_PERCENT, GpuShare, LiveUse, Share
from gsched.model.states import JobState
from gsched.model.units import format_duration, format_gpus
from gsched.protocol.job_rows import MoveRow, ShareRow
from gsched.protocol.node_rows import SharedGpuRow
from gsched.protocol.uses import LiveRow
from gschedd.core.nodes.live import total_of, uses_of
from gschedd.core.state.records import Attempt, Job, MigrationProgress, Reached
from gschedd.core.state.state import State
from gschedd.plan.space import FreeNode
from gschedd.plan.training import gpu_count


class Used(NamedTuple):
    """What an attempt has used so far; the peaks of its nodes are added up."""

    cpu_s: float = 0.0
    memory_peak_bytes: int = 0
    memory_mean_bytes: int = 0


NOTHING_USED: Final = Used()


def used_so_far(state: State, job: int, attempt: Attempt) -> tuple[Used, LiveRow | None]:
    """Return what an attempt has used, and what it uses at the moment; None: not known.

    The first is by the last heartbeats, and by what was told since.
    """
    uses = uses_of(state, job, attempt)
    live = _live_row(uses, attempt) if uses else None
    if attempt.ended_s is not None:
        usage = attempt.usage
        if usage is None:
            return NOTHING_USED, live
        return Used(usage.cpu_s, usage.memory_peak_bytes, usage.memory_mean_bytes), live
    cpu_s, peak_bytes, mean_bytes = 0.0, 0, 0
    for node, part in attempt.parts.items():
        usage = part.usage
        if node in uses:
            use = uses[node][0]
            cpu_s += use.cpu_s if usage is None else max(use.cpu_s, usage.cpu_s)
            peak_bytes += (
                use.memory_bytes
                if usage is None
                else max(use.memory_bytes, usage.memory_peak_bytes)
            )
            mean_bytes += use.memory_bytes if usage is None else usage.memory_mean_bytes
        elif usage is not None:
            cpu_s += usage.cpu_s
            peak_bytes += usage.memory_peak_bytes
            mean_bytes += usage.memory_mean_bytes
    return Used(cpu_s, peak_bytes, mean_bytes), live


def _live_row(uses: Mapping[str, tuple[LiveUse, float]], attempt: Attempt) -> LiveRow | None:
    """Return what an attempt uses at the moment on all its nodes."""
    if len(uses) == len(attempt.parts) == 1:
        [(node, (use, at_s))] = uses.items()
        return _row(use, at_s, attempt.parts[node].share) if node in attempt.parts else None
    total = total_of(uses.values())
    if total is None:
        return None
    row = _row(total.use, total.at_s, *attempt.allocation)
    idle = [each for each in _live_parts(uses, attempt).values() if each.gpus_idle]
    if not idle:
        return row
    return structs.replace(
        row,
        gpus_idle=sum(each.gpus_idle for each in idle),
        idle_since_s=min(each.idle_since_s for each in idle),
    )


def idle_gpus(state: State, node: str) -> Iterator[IdleGpuRow]:
    """Yield the GPUs of a node that jobs hold and do not use, by job."""
    for number, job in sorted(state.by_node.get(node, {}).items()):
        use, reported_s = uses_of(state, number, job.attempt).get(node, (LiveUse(), 0.0))
        for gpu in use.gpus_idle or ():
            since_s = reported_s - gpu.idle_s
            yield IdleGpuRow(index=gpu.index, job=number, since_s=since_s, held=gpu.held)


def live_parts(state: State, job: int, attempt: Attempt) -> dict[str, LiveRow]:
    """Return what a job uses at the moment on each of its nodes that has told."""
    return _live_parts(uses_of(state, job, attempt), attempt)


def _live_parts(uses: Mapping[str, tuple[LiveUse, float]], attempt: Attempt) -> dict[str, LiveRow]:
    return {
        node: _row(use, at_s, attempt.parts[node].share)
        for node, (use, at_s) in uses.items()
        if node in attempt.parts
    }


def _row(use: LiveUse, at_s: float, *shares: Share) -> LiveRow:
    idle = use.gpus_idle or ()
    return LiveRow(
        at_s=at_s,
        cpu_cores=use.cpu_cores,
        memory_bytes=use.memory_bytes,
        gpus=use.gpus,
        gpus_held=sum(len(share.gpu_indices) + len(share.gpu_shares) for share in shares),
        gpu_memory_bytes=use.gpu_memory_bytes,
        gpus_idle=len(idle),
        idle_since_s=min((at_s - gpu.idle_s for gpu in idle), default=0.0),
    )


def move_row(job: Job) -> MoveRow | None:
    """Return the move under way, or the last one; None if there was none, or it came to nothing."""
    migration = job.migration
    if migration is None:
        return None
    move = job.move
    return MoveRow(
        phase=_phase(migration),
        requested_s=migration.requested_s,
        to=tuple(share.node for share in move.allocation) if move is not None else (),
        gpus=sum(len(share.gpu_indices) for share in move.allocation) if move is not None else 0,
        why=move.why if move is not None else "",
        by=move.by if move is not None else "",
        prepared_s=migration.prepared_s or None,
        start=_start(migration),
        saved_s=migration.saved_s or None,
        left_s=migration.left_s or None,
        placed_s=migration.placed_s or None,
        resumed_s=migration.resumed_s or None,
        save_s=migration.save_s,
        restore_s=migration.restore_s,
        size_bytes=migration.size_bytes,
        cost_s=migration.cost_s,
        lost=migration.lost,
    )


def _start(migration: MigrationProgress) -> str:
    """Return how the next attempt starts, or has started, where that is known."""
    if migration.cold:
        return f"cold: {migration.cold}"
    return "warm" if migration.warm or migration.prepared_s else ""


def _phase(migration: MigrationProgress) -> str:
    """Return the last phase of a move that is over."""
    phases = (
        ("done", migration.resumed_s),
        ("placed", migration.placed_s),
        ("stopped", migration.left_s),
        ("checkpointed", migration.saved_s),
        ("prepared", migration.prepared_s),
    )
    return next((name for name, at_s in phases if at_s), "requested")


def checkpoint_row(job: Job) -> Checkpoint | None:
    """Return a training's newest checkpoint that is known."""
    return None if job.saved is None else made_of(Checkpoint, job.saved)


def progress_row(reached: Reached | None) -> Progress | None:
    """Return how far a training is, as it says."""
    return None if reached is None else made_of(Progress, reached)


def share_row(share: GpuShare) -> ShareRow:
    """Return what an attempt owns of a GPU."""
    return made_of(ShareRow, share)


def share_of(job: Job) -> ShareRow | None:
    """Return what a job has of a GPU, or asks for until it has an attempt."""
    requested = job.spec.request.gpu_share
    if requested is None:
        return None
    if job.attempt is not None:
        owned = (part for share in job.attempt.allocation for part in share.gpu_shares)
        return next(map(share_row, owned), None)
    return made_of(ShareRow, requested)


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


#: A training that has not reported within this time from its start is most likely not adaptive.
SILENT_S: Final = 120.0


def advice(job: Job, state: State, now_s: float) -> str:
    """Return what keeps an adaptive training from adapting, and what to do; else nothing."""
    adaptive, attempt = job.spec.adaptive, job.attempt
    if adaptive is None or attempt is None or job.state is not JobState.RUNNING:
        return ""
    if not state.plans_adaptive or attempt.started_s is None:
        return ""
    reached = state.reached.get(job.id)
    if reached is not None and reached.attempt != attempt.number:
        reached = None
    runs_s = now_s - attempt.started_s
    if runs_s > SILENT_S and (reached is None or not reached.batch_per_gpu):
        stays = f"so the job keeps its {format_gpus(gpu_count(attempt.allocation))}"
        if reached is None:
            return (
                f"the script has not reported a step in the {format_duration(runs_s)} since its "
                f"start, {stays}: use gsched.elastic with elastic.Adaptive() in the script, or "
                "submit it without --adaptive"
            )
        if not reached.batch:
            return (
                f"the script reports steps without batch sizes, {stays}: pass "
                "adaptive=elastic.Adaptive() to elastic.start() and loop over training.steps()"
            )
    return _of_batches(job, reached) if reached is not None else ""


def _of_batches(job: Job, reached: Reached) -> str:
    """Return how the batches of a script differ from those of its submission."""
    adaptive = job.spec.adaptive
    assert adaptive is not None, "the caller has looked"
    if reached.batch and reached.batch != adaptive.batch:
        return (
            f"the script is tuned for a batch of {reached.batch}, not {adaptive.batch}: "
            f"{reached.batch} is used; submit it with --batch {reached.batch}"
        )
    if 0 < reached.batch_max < adaptive.batch_max:
        return (
            f"the script allows batches up to {reached.batch_max}, not {adaptive.batch_max}: raise "
            "batch_max in elastic.Adaptive() for larger ones"
        )
    return ""

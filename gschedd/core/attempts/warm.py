"""Warm starts: the next attempt's processes start while the present one trains, and wait.

What they wait for is the launch of that very attempt, which comes when the present one is proven
dead. Its number is used for nothing else: an attempt that is not launched as it was prepared gets
another one. So nothing that was prepared anywhere can ever run beside it (ADR 17).
"""

from collections.abc import Iterable, Iterator

from gsched.model.resources import Allocation, Share
from gsched.model.states import LaunchKind, NodeState, StopReason
from gsched.protocol import node as n
from gschedd.core.state import effects as e
from gschedd.core.state import facts as f
from gschedd.core.state.records import Job
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State


def next_attempt(job: Job) -> int:
    """Return the number of a job's next attempt: the prepared one's if it goes on as prepared."""
    if job.move is not None and job.move.prepare:
        return job.move.prepare
    return max(job.attempts, job.prepared) + 1


def preparation(
    state: State,
    settings: Settings,
    job: Job,
    allocation: Allocation,
    others: Iterable[Share] = (),
) -> tuple[int, str]:
    """Return the number with which a migrating job's next attempt is prepared, and else why not.

    Args:
        state: before the migration is requested.
        settings: whether and how attempts are prepared.
        job: that migrates.
        allocation: where it goes; empty: to its queue.
        others: what others start on by the same plan, or are prepared for.

    Returns:
        The number, 0 for a cold start; and the reason for a cold start in words, empty if nobody
        needs one.
    """
    if not settings.config.moves.warm or not allocation or job.spec.checkpoint_signal:
        return 0, ""
    if job.spec.launch is not LaunchKind.TORCHRUN:
        return 0, "it is not started by --torchrun"
    reached = state.reached.get(job.id)
    if reached is None:
        return 0, "it has not reported a step yet"
    if not reached.ready:
        return 0, "its script does not call elastic.ready()"
    for share in allocation:
        node = state.nodes.get(share.node)
        if node is None or node.state is not NodeState.UP:
            return 0, f"node {share.node} cannot prepare attempts"
        free_bytes = state.spaces[share.node].memory_bytes
        free_bytes -= sum(other.memory_bytes for other in others if other.node == share.node)
        if share.memory_bytes > free_bytes:
            return 0, f"{share.node} has no memory free beside what runs there"
    return max(job.attempts, job.prepared) + 1, ""


def is_preparing(job: Job) -> bool:
    """Return whether a job trains on until its next attempt is prepared."""
    return (
        job.move is not None
        and job.move.prepare > 0
        and not job.move.ready_s
        and job.attempt is not None
        and job.attempt.stop is None
    )


def overdue_s(job: Job, settings: Settings) -> float:
    """Return when a job does not wait any longer for its next attempt to be prepared."""
    return job.target.requested_s + settings.config.moves.prepare_timeout_s


def given_up(job: Job, reason: str, at_s: float) -> f.MigrationPrepared:
    """Return that a migrating job's next attempt starts cold after all."""
    return f.MigrationPrepared(at_s=at_s, job=job.id, ready=False, reason=reason)


def lost_with_node(state: State, node: str, at_s: float) -> list[f.AnyFact]:
    """Return that what was prepared on a node went with the connection to it."""
    return [
        given_up(job, f"the connection to {node} was lost", at_s)
        for job in state.targets_on.get(node, {}).values()
        if job.move is not None and job.move.prepare
    ]


def is_waited_for(state: State, node: str, job: int, attempt: int) -> Job | None:
    """Return the migrating job whose next attempt is being prepared on a node; None: it is not."""
    found = state.jobs.get(job)
    if found is None or found.move is None or found.move.prepare != attempt or not attempt:
        return None
    if all(share.node != node for share in found.move.allocation):
        return None
    return found


def target_ready(
    state: State, node: str, report: n.Prepared, now_s: float
) -> f.MigrationPrepared | str | None:
    """Return that an attempt is prepared on all of its nodes; None: not on all; else an oddity."""
    job = is_waited_for(state, node, report.job, report.attempt)
    if job is None or job.move is None or job.move.ready_s:
        return "prepared_for_no_move"
    there = state.volatile.prepared.get(job.id)
    if there is None or there.attempt != report.attempt:
        return "prepared_for_no_move"
    there.missing.discard(node)
    if there.missing:
        return None
    return f.MigrationPrepared(at_s=now_s, job=job.id, ready=True)


def discarded(state: State) -> Iterator[e.Send]:
    """Yield the stops of what was prepared for moves that are over; nothing else may launch it.

    Should one get lost, its node has lost the connection, and ends what is prepared by itself.
    """
    for number, there in list(state.volatile.prepared.items()):
        job = state.jobs.get(number)
        if job is not None and job.move is not None and job.move.prepare == there.attempt:
            continue
        del state.volatile.prepared[number]
        if job is not None and job.attempt is not None and job.attempt.number == there.attempt:
            continue  # it is launched
        order = n.StopAttempt(
            job=number,
            attempt=there.attempt,
            reason=StopReason.FENCED,
            grace_s=0.0,
            token=state.epoch_id,
        )
        for node in there.nodes:
            yield e.Send(node=node, message=order)

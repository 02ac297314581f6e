"""What nodes report, turned into facts and effects; no node is believed beyond its own parts.

A report about an attempt that the head has given up makes the head tell the node to stop it; an
exit that is recorded already is acknowledged again. That makes duplicates, reordering and
reconnection harmless.
"""

from collections.abc import Iterator

from gsched.model.ids import short_job_id, submitted_number
from gsched.model.job import ExitRecord
from gsched.model.reports import made_of
from gsched.model.resources import Inventory, Usage, percent_held
from gsched.model.states import NodeState, PartState, StopReason
from gsched.protocol import node as n
from gschedd.core.apply.jobs import note_damaged
from gschedd.core.apply.training import note_progress
from gschedd.core.attempts.blame import is_exhausted
from gschedd.core.attempts.leaving import (
    has_begun_to_leave,
    has_unhandled_signal,
    note_unhandled_signal,
    stop_to_move,
)
from gschedd.core.attempts.react import ask_checkpoint, checkpointing_nodes, retime, stop
from gschedd.core.attempts.warm import given_up, is_preparing, is_waited_for, target_ready
from gschedd.core.nodes.live import MAX_PROBLEM
from gschedd.core.nodes.probation import answered
from gschedd.core.state import effects as e
from gschedd.core.state import facts as f
from gschedd.core.state.lost import lost_part
from gschedd.core.state.records import Attempt, Job, Node, Part, Reached
from gschedd.core.state.state import State
from gschedd.core.training import checkpoints as coalescing
from gschedd.core.training.goodput import steps_by_batch
from gschedd.core.training.move_costs import cost_by_resuming
from gschedd.core.training.startups import startup_by_step
from gschedd.core.training.step_times import mean_steps

#: TERM to KILL for an attempt that should not be there at all, seconds.
FENCED_GRACE_S = 5.0


#: What follows from a report: facts to commit, effects that need none, and names of oddities, which
#: are counted. All of it is read before any of it is applied.
Consequences = Iterator[f.AnyFact | e.AnyEffect | str]


def _part(
    state: State, node: str, job: int, attempt: int, token: str = ""
) -> tuple[Job, Part] | None:
    """Return the job and its part if this very attempt is the present one on this very node."""
    found = state.jobs.get(job)
    if found is None or found.attempt is None or found.attempt.number != attempt:
        return None
    if not is_same(found.attempt, token):
        return None
    part = found.attempt.parts.get(node)
    return None if part is None else (found, part)


def is_same(attempt: Attempt, token: str) -> bool:
    """Return whether a token is this attempt's, and not of the same number in a lost history."""
    return not token or not attempt.token or token == attempt.token


def registration(node: str, message: n.Register, now_s: float) -> f.NodeRegistered:
    """Return that a node is here (again)."""
    return made_of(
        f.NodeRegistered,
        message,
        at_s=now_s,
        node=node,
        version=message.gnode_version,
        problem=message.problem[:MAX_PROBLEM],
    )


def on_register(state: State, node: str, message: n.Register, now_s: float) -> Consequences:
    """A node is here (again): compare all it has with all it should have."""
    yield registration(node, message, now_s)
    reported: dict[tuple[int, int], n.AttemptReport] = {}
    for each in message.attempts:
        end = each.exit
        if end is not None and (end.job, end.attempt) != (each.job, each.attempt):
            yield "exit_of_another_attempt"
        else:
            reported[each.job, each.attempt] = each
    for job in state.by_node.get(node, {}).values():
        report = reported.get((job.id, job.current_attempt.number))
        if report is not None and is_same(job.current_attempt, report.token):
            del reported[job.id, job.current_attempt.number]
        elif report is not None:
            yield "attempt_of_another_history"
            report = None
        yield from _compare(job, node, report, boot_id=message.boot_id, now_s=now_s)
    for report in reported.values():
        if report.job in state.damaged:
            yield "attempt_of_damaged_job"
            note_damaged(state, report.job, node, report.attempt)
        else:
            yield from _unowned(state, node, report)
    yield from _keep_clear(state, node, message, now_s)


def _keep_clear(state: State, node: str, message: n.Register, now_s: float) -> Iterator[f.AnyFact]:
    """Yield that a node takes no work while it is not known what is owned there, or by whom."""
    known = state.nodes.get(node)
    if known is not None and known.drained:
        return
    changed = "" if known is None else gpus_changed(state, known, message.inventory)
    job = state.damaged_on(node)
    if job:
        reason = (
            f"job {short_job_id(job)} runs here, or owns GPUs, and its record in the head's "
            "database is "
            f"damaged; give it up with gdel {short_job_id(job)}, then resume the node"
        )
        yield f.NodeDrained(at_s=now_s, node=node, reason=reason, by="gsched")
    elif node in state.damaged_nodes:
        reason = (
            "its record in the head's database was damaged, so it is not known whether it was "
            "drained; check it, then resume it"
        )
        yield f.NodeDrained(at_s=now_s, node=node, reason=reason, by="gsched")
    elif changed:
        yield f.NodeDrained(at_s=now_s, node=node, reason=changed, by="gsched")


def on_problem(state: State, node: str, problem: str, now_s: float) -> Consequences:
    """A node has said whether it takes new jobs."""
    known = state.nodes.get(node)
    problem = problem[:MAX_PROBLEM]
    if known is not None and known.state is NodeState.UP and known.problem != problem:
        yield f.NodeProblemChanged(at_s=now_s, node=node, problem=problem)


def _compare(
    job: Job,
    node: str,
    report: n.AttemptReport | None,
    *,
    boot_id: str,
    now_s: float,
) -> Consequences:
    attempt = job.current_attempt
    part = attempt.parts[node]
    if part.state not in {PartState.PENDING, PartState.RUNNING}:
        if report is not None and report.exit is not None:
            yield _ack(node, job.id, attempt.number, attempt.token)
        return
    if report is not None and report.exit is not None:
        usage = report.usage or usage_of(report.exit)
        yield _part_ended(node, report.exit, usage, now_s)
    elif attempt.boot_ids.get(node, boot_id) != boot_id:
        message = f"{node} rebooted while the job ran there"
        yield lost_part(job, node, now_s=now_s, message=message)
    elif report is None and part.state is PartState.RUNNING:
        message = f"{node} no longer has a record of the job"
        yield lost_part(job, node, now_s=now_s, message=message)
    elif _has_orders(job, node):
        yield from _orders(job, node)
    elif report is None:
        yield e.SendLaunch(node=node, job=job.id, attempt=attempt.number)
    elif report.state is PartState.RUNNING:
        if part.state is PartState.PENDING:
            yield _part_started(node, report, now_s)
        yield retime(node, job)  # it may have been altered meanwhile


def _has_orders(job: Job, node: str) -> bool:
    """Return whether a part is to be stopped, or to save its state, and may not know it."""
    attempt = job.current_attempt
    if attempt.stop is not None:
        return True
    return (
        job.move is not None and not is_preparing(job) and node in checkpointing_nodes(job, attempt)
    )


def _orders(job: Job, node: str) -> Iterator[e.AnyEffect]:
    attempt = job.current_attempt
    if attempt.stop is not None:
        yield stop(node, job.id, attempt)
    else:
        yield from (order for order in ask_checkpoint(job, attempt) if order.node == node)


def _part_started(node: str, report: n.AttemptReport, now_s: float) -> f.PartStarted:
    return f.PartStarted(
        at_s=now_s,
        job=report.job,
        attempt=report.attempt,
        node=node,
        pid=report.pid,
        started_s=report.started_s,
    )


def _part_ended(node: str, record: ExitRecord, usage: Usage, now_s: float) -> f.PartEnded:
    return f.PartEnded(
        at_s=now_s, job=record.job, attempt=record.attempt, node=node, record=record, usage=usage
    )


def usage_of(record: ExitRecord) -> Usage:
    """Return what an exit record alone says about use."""
    return Usage(
        wall_s=record.wall_s,
        cpu_s=record.cpu_s,
        cpu_peak_cores=record.cpu_s / record.wall_s if record.wall_s > 0 else 0.0,
        memory_peak_bytes=record.memory_peak_bytes,
    )


def _unowned(state: State, node: str, report: n.AttemptReport) -> Consequences:
    """Handle an attempt that this head did not give to this node, or has given up."""
    if submitted_number(report.job) >= state.next_job:
        # A head restored from an old copy: what this job was is not known here, so nothing of it
        # is acknowledged away.
        yield "attempt_of_unknown_job"
    elif report.exit is not None:
        yield _ack(node, report.job, report.attempt, report.token)
    else:
        yield "attempt_given_up"
        yield _fence(node, report.job, report.attempt, report.token)


def _ack(node: str, job: int, attempt: int, token: str) -> e.Send:
    return e.Send(node=node, message=n.ExitAck(job=job, attempt=attempt, token=token))


def _fence(node: str, job: int, attempt: int, token: str) -> e.Send:
    order = n.StopAttempt(
        job=job,
        attempt=attempt,
        reason=StopReason.FENCED,
        grace_s=FENCED_GRACE_S,
        token=token,
    )
    return e.Send(node=node, message=order)


def on_started(state: State, node: str, report: n.Started, now_s: float) -> Consequences:
    """A part runs."""
    found = _part(state, node, report.job, report.attempt, report.token)
    if submitted_number(report.job) >= state.next_job:
        yield "attempt_of_unknown_job"
    elif report.job in state.damaged:
        yield "attempt_of_damaged_job"
    elif found is None:
        yield "started_unowned"
        yield _fence(node, report.job, report.attempt, report.token)
    elif found[1].state is PartState.PENDING:
        yield made_of(f.PartStarted, report, at_s=now_s, node=node)


def on_prepared(state: State, node: str, report: n.Prepared, now_s: float) -> Consequences:
    """The processes of a migrating job's next attempt wait on a node."""
    found = target_ready(state, node, report, now_s)
    if isinstance(found, str) or found is not None:
        yield found


def on_exited(state: State, node: str, report: n.Exited, now_s: float) -> Consequences:
    """A part has ended. Repeated by the node until it is acknowledged."""
    record = report.record
    found = _part(state, node, record.job, record.attempt, report.token)
    if found is not None and found[1].state in {PartState.PENDING, PartState.RUNNING}:
        yield _part_ended(node, record, report.usage, now_s)
    elif submitted_number(record.job) >= state.next_job:
        yield "exit_of_unknown_job"
    elif record.job in state.damaged:
        yield "exit_of_damaged_job"  # the node keeps it: it may be needed
    else:
        moving = is_waited_for(state, node, record.job, record.attempt)
        if moving is not None:
            yield given_up(moving, f"on {node}: {record.message}", now_s)
        else:
            yield "exit_again"
        yield _ack(node, record.job, record.attempt, report.token)


def on_checkpointed(state: State, node: str, report: n.Checkpointed, now_s: float) -> Consequences:
    """A training has published a checkpoint. Repeated by the node until the move goes on."""
    found = _part(state, node, report.job, report.attempt)
    if found is None or found[1].state not in {PartState.PENDING, PartState.RUNNING}:
        yield "checkpoint_of_no_attempt"
        return
    job = found[0]
    is_answer = job.move is not None and report.request == job.move.request
    if report.waits and not is_answer:  # that move is off
        go_on = n.GoOn(job=job.id, attempt=report.attempt, request=report.request)
        yield e.Send(node=node, message=go_on)
    if is_answer and job.migration is not None and job.migration.saved_s > 0:
        return  # it is known already
    if not is_answer and not _is_newer(report, job):
        yield "checkpoint_of_the_past"
        return
    save_s = report.wall_s
    if is_answer and job.move is not None:  # no more than it can be: it does not count as walltime
        save_s = min(save_s, max(0.0, now_s - job.move.requested_s))
    fact = made_of(
        f.CheckpointTaken,
        report,
        at_s=now_s,
        wall_s=save_s,
        world_sizes=_new_sizes(report, job),
    )
    if not is_answer and not fact.world_sizes and coalescing.is_to_wait(state, job, now_s):
        coalescing.keep(state, fact)
        return
    state.volatile.unwritten.pop(job.id, None)  # this one is newer
    coalescing.note_written(state, job.id, now_s)
    yield fact


def _new_sizes(report: n.Checkpointed, job: Job) -> tuple[int, ...]:
    """Return on how many ranks a training can go on, if that is not known already."""
    known = job.saved.world_sizes if job.saved is not None else ()
    return report.world_sizes if report.world_sizes != known else ()


def _is_newer(report: n.Checkpointed, job: Job) -> bool:
    """Return whether a checkpoint for which nobody asked is another one than the newest known."""
    known = job.saved
    if known is None or report.step > known.step:
        return True
    return report.step == known.step and report.path != known.path


def on_checkpoint_failed(
    state: State, node: str, report: n.CheckpointFailed, now_s: float
) -> Consequences:
    """A training could not save its state: the migration is off.

    Of a job that is asked by its signal each node speaks for its own part. One part that handles
    the signal is enough, as one rank may save the state of all.
    """
    found = _part(state, node, report.job, report.attempt)
    job = found[0] if found is not None else None
    if job is None or job.move is None or job.move.request != report.request or is_saved(job):
        yield "failed_checkpoint_of_no_move"
        return
    if job.spec.checkpoint_signal:
        note_unhandled_signal(state, job, node)
        if not has_unhandled_signal(state, job):
            return
        if has_begun_to_leave(job):  # the others have left already
            yield stop_to_move(job, now_s)
            return
    yield f.MigrationAbandoned(
        at_s=now_s, job=job.id, attempt=report.attempt, reason=report.message
    )


def is_saved(job: Job) -> bool:
    """Return whether a moving job has its checkpoint, or is on its way without one."""
    attempt = job.attempt
    return attempt is None or attempt.stop is not None


def on_progress(state: State, node: str, report: n.TrainingProgress, now_s: float) -> Consequences:
    """A training says how far it is; its first step from a checkpoint ends a move or a restart."""
    found = _part(state, node, report.job, report.attempt)
    if found is None:
        yield "progress_of_no_attempt"
        return
    job = found[0]
    measured = (
        mean_steps(state, job, report, now_s),  # looks at what it said before
        startup_by_step(job, report, now_s),
        cost_by_resuming(job, now_s),
        *steps_by_batch(state, job, report, now_s),
    )
    note_progress(state, job.id, _reached(report, now_s))
    yield from (fact for fact in measured if fact is not None)
    attempt = job.attempt
    if attempt is not None and _goes_on(job, attempt):
        yield f.TrainingResumed(
            at_s=now_s,
            job=job.id,
            attempt=report.attempt,
            step=max(report.restored_step, 0),
            # no more than it can be: it does not count as walltime
            restore_s=min(report.restore_s, max(0.0, now_s - attempt.assigned_s)),
        )


def _goes_on(job: Job, attempt: Attempt) -> bool:
    """Return whether an attempt that goes on from a checkpoint has just done its first step."""
    migration = job.migration
    moved = migration is not None and migration.placed_s > 0 and not migration.resumed_s
    return not attempt.resumed and (moved or attempt.work_begun > 0)


def _reached(report: n.TrainingProgress, now_s: float) -> Reached:
    at_s = min(report.at_s, now_s)
    return made_of(Reached, report, at_s=at_s, since_s=at_s, since_work=report.work_done)


def on_probed(state: State, node: str, report: n.Probed, now_s: float) -> Consequences:
    """A node has found out whether it can start jobs."""
    known = state.nodes.get(node)
    if known is None or report.request != known.probation.request or not known.probation.due_s:
        yield "probe_not_asked_for"
        return
    lacks = is_exhausted(report.failure)
    yield from answered(known, report, now_s, exhausted=lacks)


def on_disconnected(state: State, node: str, reason: str, now_s: float) -> Consequences:
    """The connection to a node is gone. Its attempts go on as far as anybody knows."""
    if node in state.nodes and state.nodes[node].state is NodeState.UP:
        yield f.NodeDisconnected(at_s=now_s, node=node, reason=reason)


def gpus_changed(state: State, node: Node, now: Inventory) -> str:
    """Return why the node must not take work before somebody has looked; empty: no reason.

    GPUs are assigned by their index, so none may be lost, or have another number. Only GPUs with a
    UUID from a driver are compared; what a configuration declares is as its administrator says.

    Args:
        node: as it was until now.
        now: what it has now.
    """
    before = {gpu.uuid: gpu.index for gpu in node.inventory.gpus if gpu.uuid}
    present = {gpu.uuid: gpu.index for gpu in now.gpus if gpu.uuid}
    lost = [gpu for gpu in node.inventory.gpus if gpu.uuid and gpu.uuid not in present]
    if lost:
        named = ", ".join(" ".join(filter(None, (str(gpu.index), gpu.type))) for gpu in lost)
        some = f"GPU {named} is" if len(lost) == 1 else f"GPUs {named} are"
        return (
            f"{some} missing: {lost[0].uuid} was there at the last registration; "
            "check the GPUs, then resume the node"
        )
    moved = [uuid for uuid, index in before.items() if present[uuid] != index]
    if moved and _gpus_are_owned(state, node):
        return (
            "the driver numbers the GPUs in another order than when the running jobs got theirs; "
            "resume the node when these jobs have ended"
        )
    return ""


def _gpus_are_owned(state: State, node: Node) -> bool:
    jobs = state.by_node.get(node.name, {}).values()
    return any(
        percent_held([share])
        for job in jobs
        if job.attempt is not None
        for share in job.attempt.allocation
        if share.node == node.name
    )

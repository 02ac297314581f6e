"""What the head orders: launch, stop, signal, retime, acknowledge, read output."""

from msgspec import structs

from gnode.core.admission import other_history, refusal_of
from gnode.core.binding import bind
from gnode.core.contained import plan_container
from gnode.core.effects import (
    AcceptTask,
    AdmitSharing,
    AskLaunch,
    Bury,
    DeliverOutput,
    EndSharing,
    ReadFile,
    RecallEnded,
    RemoveContainer,
    RemoveFiles,
    RemoveSpool,
    RunEpilog,
    SendToHead,
    Warn,
    WriteExit,
)
from gnode.core.inputs import Admitted, LaunchOrder, Recalled, ShareAbused
from gnode.core.supervisors import give
from gnode.core.table import NodeAttempt, Table
from gnode.core.task import AcceptedTask, AttemptKey, RetimeCommand, SignalCommand, StopCommand
from gnode.core.transitions import Happening, Phase
from gsched.model.job import ExitRecord
from gsched.model.origin import Origin
from gsched.model.resources import Usage
from gsched.model.states import OutcomeKind, StopReason
from gsched.protocol.node import (
    ExitAck,
    Exited,
    Launch,
    OutputRead,
    ReadOutput,
    Retime,
    Signal,
    StopAttempt,
    UnknownAttempt,
)

#: Ends of a prepared attempt that others than its node have asked for.
_BY_OTHERS = frozenset(
    {
        StopReason.DELETE,
        StopReason.RERUN,
        StopReason.MOVE,
        StopReason.NODE_STOP,
        StopReason.PEER_FAILED,
    }
)
OBEY_MARGIN_S = 30.0  # what a supervisor may take beyond the grace before gnode kills it
SHUTDOWN_MARGIN_S = 90.0  # likewise at a shutdown: a job gets a signal before TERM


def launch(table: Table, order: LaunchOrder, now_s: float, wall_s: float) -> None:
    """Start an attempt, once: a repeated order is answered with the present state."""
    launch = order.launch
    key = AttemptKey(launch.job, launch.attempt)
    known = table.attempts.get(key)
    if known is not None and known.is_of(launch.token):
        answer_state(table, known)
        return
    if known is None and launch.attempt <= table.latest.get(launch.job, 0):
        table.out.append(RecallEnded(launch=launch))
        return
    refusal = refusal_of(table, order)
    if refusal is not None:
        record = refusal.record(key, wall_s)
        if known is not None:
            _tell_unstarted(table, launch, record)
        else:
            _end_unstarted(table, key, record, launch.origin)
        return
    lease_from_s = table.leases.fresh_s(launch.lease_s, now_s) if launch.lease_s else 0.0
    if lease_from_s is None:
        table.out.extend(table.leases.hold(order, now_s))
        return
    assert order.account is not None
    cpus = table.choose_cpus(launch)
    task = bind(launch, order.account, table.site, lease_from_s=lease_from_s, cpus=cpus)
    fence_older(table, key, now_s, wall_s)
    attempt = attempt_of(task)
    attempt.deferred = key.job in table.live_of_job
    table.add(attempt)
    if task.gpu_shares:
        attempt.admitting = True
        container = plan_container(task, launch, order.account, table.site)
        table.out.append(AdmitSharing(task=task, container=container))
        return
    table.out.append(AcceptTask(task=task))
    ask_launch(table, attempt)


def admitted(table: Table, event: Admitted) -> None:
    """Accept an attempt that shares a GPU, unless it was stopped while it was being admitted."""
    task = event.task
    attempt = table.attempts.get(task.key)
    if attempt is None or not attempt.admitting:
        table.out.append(EndSharing(key=task.key, shares=task.gpu_shares))
        return
    attempt.admitting = False
    table.out.append(AcceptTask(task=task))
    ask_launch(table, attempt)


def recalled(table: Table, event: Recalled, wall_s: float) -> None:
    """Answer a launch of an attempt that is over, or that a later one has replaced.

    It is never started (again): the head hears how it ended, or that nobody knows any more.
    """
    launch, found = event.launch, event.found
    key = AttemptKey(launch.job, launch.attempt)
    if key in table.attempts:
        return  # of a launch that was repeated meanwhile
    if found is None or found.exit is None:
        record = ExitRecord(
            job=key.job,
            attempt=key.attempt,
            kind=OutcomeKind.NODE_LOST,
            message=f"{table.site.node} has had this attempt or a later one of the job, and does "
            "not know any more how it ended",
            ended_s=wall_s,
        )
        _tell_unstarted(table, launch, record)
    elif launch.token and found.token and launch.token != found.token:
        _tell_unstarted(table, launch, other_history(key).record(key, wall_s))
    else:
        attempt = NodeAttempt(
            key=key,
            phase=Phase.ENDED,
            record=found.exit,
            usage=found.usage,
            origin=found.origin or launch.origin,
            has_spool=False,
            buried=True,
        )
        table.add(attempt)
        table.tell_exit(attempt)


def fence_older(table: Table, key: AttemptKey, now_s: float, wall_s: float) -> None:
    """Stop what still lives of earlier attempts of a job that the head has restarted."""
    for older in tuple(table.live_of_job.get(key.job, ())):
        if older >= key:
            continue
        attempt = table.attempts[older]
        stop_attempt(table, attempt, StopCommand(reason=StopReason.FENCED, grace_s=0.0), now_s)
        if attempt.unasked:
            end_deferred(table, attempt, wall_s)


def attempt_of(task: AcceptedTask) -> NodeAttempt:
    """Return a fresh table entry for a task."""
    return NodeAttempt(
        key=task.key,
        task=task,
        renewed_s=task.lease_from_s,
        origin=task.origin,
        prepared=task.gate,
    )


def ask_launch(table: Table, attempt: NodeAttempt) -> None:
    """Ask the launcher for an accepted attempt, if there is one and nothing is in the way."""
    if table.launcher_up and not attempt.launch_requested and not attempt.unasked:
        attempt.launch_requested = True
        confined = attempt.task is not None and attempt.task.is_confined
        table.out.append(AskLaunch(key=attempt.key, confined=confined))


def answer_state(table: Table, attempt: NodeAttempt) -> None:
    """Tell the head where an attempt is; before its start there is nothing to tell."""
    if attempt.record is not None:
        table.tell_exit(attempt)
    elif attempt.info is not None and not attempt.prepared:
        table.tell(attempt.started())


def _tell_unstarted(table: Table, launch: Launch, record: ExitRecord) -> None:
    """Report a launch that is refused because its number is taken: the table has another one."""
    if table.welcomed:
        exited = Exited(record=record, usage=Usage(), load=table.load, token=launch.token)
        table.out.append(SendToHead(message=exited))


def _end_unstarted(
    table: Table, key: AttemptKey, record: ExitRecord, origin: Origin | None = None
) -> None:
    """Take up an attempt that ended before it began: nothing of it is on disk."""
    attempt = NodeAttempt(
        key=key, phase=Phase.ENDED, record=record, origin=origin, has_spool=False, buried=True
    )
    table.add(attempt)
    table.tell_exit(attempt)


# --- orders about an attempt ---


def stop(table: Table, order: StopAttempt, now_s: float, wall_s: float) -> None:
    """Stop an attempt; an unknown one gets a tombstone, so that a late launch is refused."""
    key = AttemptKey(order.job, order.attempt)
    attempt = table.attempts.get(key)
    if attempt is not None and not attempt.is_of(order.token):
        table.drop("stop of an attempt of another history", key)
    elif attempt is not None:
        command = StopCommand(reason=order.reason, grace_s=order.grace_s)
        stop_attempt(table, attempt, command, now_s)
        if attempt.unasked:
            end_deferred(table, attempt, wall_s)
    elif order.attempt <= table.latest.get(order.job, 0):
        table.drop("stop of an attempt that is over or replaced", key)
    else:
        record = ExitRecord(
            job=order.job,
            attempt=order.attempt,
            kind=OutcomeKind.CANCELLED,
            stop_reason=order.reason,
            message="stopped before it was launched here",
            ended_s=wall_s,
        )
        _end_unstarted(table, key, record)


def end_deferred(table: Table, attempt: NodeAttempt, wall_s: float) -> None:
    """End an accepted attempt that the launcher was never asked for."""
    is_lost = attempt.stop_reason is StopReason.SHUTDOWN
    record = ExitRecord(
        job=attempt.key.job,
        attempt=attempt.key.attempt,
        kind=OutcomeKind.NODE_LOST if is_lost else OutcomeKind.CANCELLED,
        stop_reason=None if is_lost else attempt.stop_reason,
        message="stopped before it was launched here",
        ended_s=wall_s,
    )
    attempt.deferred = attempt.admitting = False
    table.out.append(WriteExit(record=record))  # its task is on disk, and must not be started
    end_by_record(table, attempt, record)


def stop_attempt(table: Table, attempt: NodeAttempt, command: StopCommand, now_s: float) -> None:
    """Have an attempt stopped; one that has ended is answered with its state."""
    if attempt.record is not None:
        answer_state(table, attempt)
        return
    if attempt.is_over:
        return
    attempt.stop_reason = command.reason
    margin_s = SHUTDOWN_MARGIN_S if command.reason is StopReason.SHUTDOWN else OBEY_MARGIN_S
    attempt.kill_at_s = now_s + command.grace_s + margin_s
    table.stopping[attempt.key] = attempt
    give(table, attempt, command)


def stop_all(table: Table, reason: StopReason, now_s: float, wall_s: float) -> None:
    """Stop every live attempt because the node's administrator wants it."""
    table.ending = reason
    for attempt in table.live():
        grace_s = attempt.task.grace_s if attempt.task is not None else 0.0
        command = StopCommand(reason=attempt.stop_reason or reason, grace_s=grace_s)
        stop_attempt(table, attempt, command, now_s)
        if attempt.unasked:
            end_deferred(table, attempt, wall_s)


def command(table: Table, order: Signal | Retime) -> None:
    """Pass a signal or a new limit on to the supervisor."""
    key = AttemptKey(order.job, order.attempt)
    attempt = table.attempts.get(key)
    if attempt is None:
        unknown = UnknownAttempt(job=order.job, attempt=order.attempt)
        table.out.append(SendToHead(message=unknown))
    elif not attempt.live:
        answer_state(table, attempt)
    elif isinstance(order, Signal):
        give(table, attempt, SignalCommand(signal=order.signal))
    else:
        give(table, attempt, RetimeCommand(walltime_s=order.walltime_s))


def acknowledge(table: Table, order: ExitAck, now_s: float) -> None:
    """Note that the head has an outcome; the spool goes after a delay."""
    key = AttemptKey(order.job, order.attempt)
    attempt = table.attempts.get(key)
    if attempt is None:
        table.drop("acknowledgement of an unknown attempt", key)
        return
    if not attempt.is_of(order.token):
        table.drop("acknowledgement of an attempt of another history", key)
        return
    first = attempt.phase is Phase.ENDED
    if not table.move(attempt, Happening.ACKED) or not first:
        return
    if attempt.buried:  # its record stays in the log of ended attempts
        remove(table, key)
    else:
        table.removals.append((now_s + table.site.remove_delay_s, key))


def remove(table: Table, key: AttemptKey) -> None:
    """Forget an acknowledged attempt and remove its records."""
    attempt = table.attempts[key]
    table.forget(key)
    if not attempt.buried:
        table.out.append(Bury(known=attempt.known()))
    if attempt.has_spool:
        table.out.append(RemoveSpool(key=key))


def read_output(table: Table, order: ReadOutput) -> None:
    """Have a job's output read as its owner, or say why it cannot be."""
    attempt = table.attempts.get(AttemptKey(order.job, order.attempt))
    if attempt is None or not attempt.has_spool:
        error = f"node {table.site.node} keeps nothing of this attempt any more"
        table.out.append(SendToHead(message=OutputRead(request=order.request, error=error)))
        return
    task = attempt.task
    if task is None:  # the paths that its supervisor noted are the user's choice, and nobody may
        # read them but the user
        error = (
            f"node {table.site.node} does not know whose attempt {attempt.key.name} is "
            "(its task record cannot be read), so it does not read the output"
        )
        table.out.append(SendToHead(message=OutputRead(request=order.request, error=error)))
        return
    table.out.append(
        ReadFile(
            request=order.request,
            path=attempt.output_path(error=order.stream in {"stderr", "err", "e"}),
            user=task.user,
            uid=task.uid,
            gid=task.gid,
            switch_user=task.switch_user,
            offset=order.offset,
            max_bytes=order.max_bytes,
            append=order.append,
            cgroup=task.cgroup if attempt.live and attempt.ended is None else None,
        )
    )


def note_abuse(table: Table, event: ShareAbused) -> None:
    """Remember why an attempt is about to end, and say it in the log."""
    attempt = table.attempts.get(event.key)
    if attempt is not None and attempt.live and not attempt.abuse:
        attempt.abuse = event.why
        table.out.append(Warn(text=event.why))


# --- ends ---


def _clear_up(table: Table, attempt: NodeAttempt, task: AcceptedTask) -> None:
    """Have removed what a task that has ended leaves, and keep only what is used of it later."""
    if task.removal is not None and attempt.info is not None:
        table.out.append(RemoveContainer(key=attempt.key))
    if task.user_dir:
        table.out.append(RemoveFiles(user_dir=task.user_dir))
    attempt.task = task.without_program()


def end_by_record(table: Table, attempt: NodeAttempt, record: ExitRecord) -> None:
    """Take over an exit record, report it, and start what waited for this end.

    An epilog is a gate before all that, and so is output that returns to the host of submission:
    until they have ended the attempt owns what it was given.

    The job's files go at once, whether the head hears of the end or not: they may fill the disk.
    """
    if attempt.awaits_epilog:
        _run_epilog(table, attempt, record)
        return
    if attempt.awaits_delivery:
        _deliver(table, attempt, record)
        return
    if not table.move(attempt, Happening.RECORDED):
        return
    if attempt.epilog:
        record = structs.replace(record, epilog=attempt.epilog)
    if attempt.prepared:
        # a head on a restored database must not take it for the job's newest attempt
        record, attempt.buried = _never_launched(record), True
    if attempt.abuse and not record.message:
        record = structs.replace(record, message=attempt.abuse)
    if attempt.delivery:
        both = "; ".join(filter(None, (record.undelivered, attempt.delivery)))
        record = structs.replace(record, undelivered=both)
    attempt.record = record
    attempt.waiting.clear()
    table.tell_exit(attempt)
    if attempt.task is not None:
        _clear_up(table, attempt, attempt.task)
    _start_next(table, attempt.key.job)


def _run_epilog(table: Table, attempt: NodeAttempt, record: ExitRecord) -> None:
    if table.move(attempt, Happening.EPILOG_DUE):
        table.stopping.pop(attempt.key, None)
        attempt.ended = record
        table.out.append(RunEpilog(key=attempt.key))


def _deliver(table: Table, attempt: NodeAttempt, record: ExitRecord) -> None:
    assert attempt.task is not None, "it says where the output is"
    assert attempt.task.away is not None, "likewise"
    if attempt.phase is not Phase.DELIVERY and table.move(attempt, Happening.DELIVERY_DUE):
        table.stopping.pop(attempt.key, None)
        attempt.ended = record
        away = attempt.task.away
        table.out.append(DeliverOutput(key=attempt.key, outbox=away.outbox, host=away.host))


def _start_next(table: Table, job: int) -> None:
    for key in table.live_of_job.get(job, ()):
        # In order of their numbers: the first is the oldest, and only it may run.
        oldest = table.attempts[key]
        if oldest.deferred:
            oldest.deferred = False
            ask_launch(table, oldest)
        elif oldest.launch is not None:
            table.launches.append(oldest.key)
        break


def _never_launched(record: ExitRecord) -> ExitRecord:
    """Return the record of a prepared attempt that has ended behind its gate: it has not run.

    Why its node ended it is no reason of the attempt's, so another one may be tried.
    """
    if record.kind is OutcomeKind.LAUNCH_FAILED and record.failure is None:
        return record
    is_by_others = record.stop_reason in _BY_OTHERS
    return ExitRecord(
        job=record.job,
        attempt=record.attempt,
        kind=OutcomeKind.LAUNCH_FAILED,
        stop_reason=record.stop_reason if is_by_others else None,
        message=f"its prepared processes ended before the launch: {record.message or record.kind}",
        ended_s=record.ended_s,
        cpu_s=record.cpu_s,
    )

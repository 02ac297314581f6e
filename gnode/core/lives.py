"""What becomes of attempts on this machine: launcher, supervisors, and the spool at a restart."""

from gnode.core import preparing, training_jobs
from gnode.core.effects import (
    AwaitStart,
    DeliverOutput,
    KillLeftover,
    LookAtSpool,
    SetAside,
    Warn,
    WriteExit,
)
from gnode.core.inputs import (
    Admitted,
    EpilogEnded,
    Launched,
    LauncherDown,
    LauncherUp,
    LaunchFailed,
    LeftoverGone,
    OutputReturned,
    SpoolEntry,
    SupervisorAnswered,
    SupervisorEnded,
    SupervisorSeen,
)
from gnode.core.orders import (
    OBEY_MARGIN_S,
    admitted,
    ask_launch,
    attempt_of,
    end_by_record,
    fence_older,
)
from gnode.core.supervisors import hand_over
from gnode.core.table import NodeAttempt, Table
from gnode.core.task import AttemptKey
from gnode.core.transitions import Happening, Phase
from gnode.task import SupervisorInfo
from gsched.model.job import AT_END, ExitRecord, LaunchFailure
from gsched.model.states import OutcomeKind

SupervisorEvent = (
    LauncherUp
    | LauncherDown
    | Launched
    | LaunchFailed
    | Admitted
    | SupervisorSeen
    | SupervisorEnded
    | SupervisorAnswered
    | LeftoverGone
    | EpilogEnded
    | OutputReturned
)


def supervisor_event(table: Table, event: SupervisorEvent, wall_s: float) -> None:
    """Take in what the launcher or a supervisor did."""
    match event:
        case Launched():
            launched(table, event)
        case SupervisorEnded():
            supervisor_ended(table, event)
        case SupervisorSeen():
            supervisor_seen(table, event)
        case SupervisorAnswered():
            training_jobs.answered(table, event)
        case Admitted():
            admitted(table, event)
        case LaunchFailed():
            launch_failed(table, event, wall_s)
        case LeftoverGone() | EpilogEnded() | OutputReturned():
            cleared_up(table, event, wall_s)
        case LauncherUp():
            launcher_up(table)
        case LauncherDown():
            table.launcher_up = False


# --- the launcher ---


def launcher_up(table: Table) -> None:
    """Ask for what was accepted, and look at all that may have ended without our being told."""
    table.launcher_up = True
    doubtful: list[AttemptKey] = []
    for attempt in table.live():
        if attempt.phase is Phase.ACCEPTED and not attempt.launch_requested:
            ask_launch(table, attempt)
        else:
            doubtful.append(attempt.key)
    if doubtful:
        table.out.append(LookAtSpool(keys=tuple(doubtful)))


def launched(table: Table, event: Launched) -> None:
    """Note the supervisor and wait for the job's start."""
    attempt = table.attempts.get(event.key)
    if attempt is None:
        table.drop("a supervisor of an unknown attempt", event.key)
        return
    if attempt.phase is not Phase.ACCEPTED:
        return  # asked twice, after a doubt
    table.move(attempt, Happening.LAUNCHED)
    attempt.pid, attempt.start_ticks = event.pid, event.start_ticks
    table.out.append(AwaitStart(key=event.key))
    hand_over(table, attempt)


def launch_failed(table: Table, event: LaunchFailed, wall_s: float) -> None:
    """Record that the attempt never ran; it is not its user's fault."""
    attempt = table.attempts.get(event.key)
    if attempt is None or attempt.phase is not Phase.ACCEPTED:
        table.drop("a failed launch that is none", event.key)
        return
    attempt.admitting = False
    kind = OutcomeKind.LAUNCH_FAILED
    _end_by_own_record(table, attempt, kind, event.message, wall_s, failure=event.failure)


# --- supervisors ---


def supervisor_seen(table: Table, event: SupervisorSeen) -> None:
    """Report the start."""
    attempt = table.attempts.get(event.key)
    if attempt is not None and attempt.info is None and attempt.live:
        _see(table, attempt, event.info)


def _see(table: Table, attempt: NodeAttempt, info: SupervisorInfo) -> None:
    if table.move(attempt, Happening.SEEN):
        attempt.info = info
        attempt.pid, attempt.start_ticks = info.pid, info.start_ticks
        if not attempt.prepared:
            table.tell(attempt.started())
        _follow_output(table, attempt, info)
        hand_over(table, attempt)


def _follow_output(table: Table, attempt: NodeAttempt, info: SupervisorInfo) -> None:
    """Have output return while its attempt runs, where the user has not stated otherwise."""
    away = attempt.task.away if attempt.task is not None and info.away else None
    if away is not None and AT_END not in away.kept and not {"o", "e"} <= set(away.kept):
        table.out.append(
            DeliverOutput(key=attempt.key, outbox=away.outbox, host=away.host, runs=True)
        )


def supervisor_ended(table: Table, event: SupervisorEnded) -> None:
    """Take the record; without one kill what is left, since nobody else does."""
    attempt = table.attempts.get(event.key)
    if attempt is None or not attempt.live or attempt.phase is Phase.LOST:
        return  # its end was found in the spool already
    if attempt.info is None and event.info is not None:
        _see(table, attempt, event.info)
    if event.record is not None:
        end_by_record(table, attempt, event.record)
    else:
        _lose(table, attempt)


def _lose(table: Table, attempt: NodeAttempt) -> None:
    if not table.move(attempt, Happening.LOST):
        return
    table.out.append(Warn(text=f"attempt {attempt.key.name}: its supervisor died; killing the job"))
    kill_leftover(table, attempt)


def kill_leftover(table: Table, attempt: NodeAttempt) -> None:
    """Have everything of an attempt killed, and its supervisor unless that has left it.

    A supervisor serves one attempt after the other: of one that is lost, the supervisor may be
    another attempt's by now.
    """
    gone = attempt.phase is Phase.LOST
    table.out.append(
        KillLeftover(
            key=attempt.key,
            cgroup=attempt.task.cgroup if attempt.task is not None else None,
            user_dir=attempt.task.user_dir if attempt.task is not None else "",
            supervisor_pid=0 if gone else attempt.pid,
            supervisor_start_ticks=0 if gone else attempt.start_ticks,
        )
    )


def cleared_up(
    table: Table, event: LeftoverGone | EpilogEnded | OutputReturned, wall_s: float
) -> None:
    """Record the end of an attempt now that its processes are gone, or its resources free."""
    attempt = table.attempts.get(event.key)
    if isinstance(event, EpilogEnded):
        if attempt is not None and attempt.phase is Phase.EPILOG:
            _epilog_ended(table, attempt, event.fault)
        return
    if isinstance(event, OutputReturned):
        if attempt is not None and attempt.phase is Phase.DELIVERY:
            _returned(table, attempt, event.fault)
        return
    if attempt is None or attempt.phase is not Phase.LOST:
        return  # the backstop killed a supervisor: its end is reported on its own
    message = "its supervisor was killed; whatever was left of the job has been killed"
    _end_by_own_record(table, attempt, OutcomeKind.SUPERVISOR_LOST, message, wall_s)


def _epilog_ended(table: Table, attempt: NodeAttempt, fault: str) -> None:
    assert attempt.ended is not None, "the phase says so"
    attempt.epilog = fault
    if fault:
        table.out.append(Warn(text=f"attempt {attempt.key.name}: {fault}"))
    end_by_record(table, attempt, attempt.ended)


def _returned(table: Table, attempt: NodeAttempt, fault: str) -> None:
    assert attempt.ended is not None, "the phase says so"
    attempt.delivery = fault
    end_by_record(table, attempt, attempt.ended)


def _end_by_own_record(  # what the record says
    table: Table,
    attempt: NodeAttempt,
    kind: OutcomeKind,
    message: str,
    wall_s: float,
    *,
    failure: LaunchFailure | None = None,
) -> None:
    started_s = attempt.info.started_s if attempt.info else 0.0
    record = ExitRecord(
        job=attempt.key.job,
        attempt=attempt.key.attempt,
        kind=kind,
        stop_reason=attempt.stop_reason,
        failure=failure,
        message=message,
        started_s=started_s,
        ended_s=wall_s,
        wall_s=max(0.0, wall_s - started_s) if started_s else 0.0,
    )
    table.out.append(WriteExit(record=record))
    end_by_record(table, attempt, record)


def kill_disobedient(table: Table, now_s: float) -> None:
    """Kill attempts whose supervisor let the time of a stop pass: it hangs, or is stopped."""
    for attempt in list(table.stopping.values()):
        if attempt.kill_at_s is None or attempt.kill_at_s > now_s:
            continue
        if attempt.phase is Phase.ACCEPTED:
            # Nothing runs, as far as we know; the stop goes out with the launcher's answer.
            attempt.kill_at_s = now_s + OBEY_MARGIN_S
        else:
            attempt.kill_at_s = None
            del table.stopping[attempt.key]
            table.out.append(Warn(text=f"attempt {attempt.key.name}: does not stop; killing it"))
            kill_leftover(table, attempt)


def kill_expired(table: Table, attempt: NodeAttempt) -> None:
    """Kill an attempt that has outlived its lease: its supervisor hangs, or is stopped."""
    if attempt.phase is Phase.ACCEPTED or attempt.is_over:
        return  # nothing runs; a supervisor that comes for it starts nothing
    name = attempt.key.name
    table.out.append(Warn(text=f"attempt {name}: outlives its lease; killing it"))
    kill_leftover(table, attempt)


# --- the spool ---


def _take_up(table: Table, found: SpoolEntry, now_s: float, wall_s: float) -> NodeAttempt:
    """Return a new entry for what lies in the spool of an attempt."""
    task = found.launched or found.task
    attempt = attempt_of(task) if task else NodeAttempt(key=found.key)
    attempt.prepared = attempt.prepared and found.launched is None
    attempt.warm = found.launched is not None
    attempt.renewed_s = max(attempt.renewed_s, found.renewed_s or 0.0)
    attempt.shell_bytes = found.journal_bytes
    if found.record is None and not attempt.prepared:
        fence_older(table, found.key, now_s, wall_s)
        attempt.deferred = found.key.job in table.live_of_job
    table.add(attempt)
    return attempt


def spool_found(table: Table, found: SpoolEntry, now_s: float, wall_s: float) -> None:
    """Take up one attempt from the spool, at a restart or when a launcher's answer is missing."""
    attempt = table.attempts.get(found.key)
    is_new = attempt is None
    if attempt is None:
        if found.task is None and found.record is None:
            table.out.append(SetAside(key=found.key))
            return
        attempt = _take_up(table, found, now_s, wall_s)
    if not attempt.live or attempt.phase is Phase.LOST:
        return  # settled while we looked
    if attempt.info is None and found.info is not None:
        _see(table, attempt, found.info)
    if found.record is not None:
        attempt.epilog = found.epilog
        end_by_record(table, attempt, found.record)
        return
    if found.task is not None and found.task.gate and is_new:
        preparing.found(table, attempt, found, now_s)
    if found.doubt:
        return  # it may be over: gnode looks again until its record can be read, or is not there
    if found.task is not None and found.task.boot_id != table.site.boot_id:
        message = "the machine was restarted while the job was there"
        _end_by_own_record(table, attempt, OutcomeKind.NODE_LOST, message, wall_s)
    elif attempt.info is None:
        # No job was started, as far as anyone can see. Asking (again) is safe: a launcher gives
        # an attempt one supervisor, and a supervisor claims its attempt before it forks the job.
        attempt.launch_requested = False
        ask_launch(table, attempt)
    # Otherwise it runs, or the launcher is clearing up after it: either way it tells us the end.

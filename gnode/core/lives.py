"""What becomes of attempts on this machine: launcher, supervisors, and the spool at a restart."""

from gnode.core.effects import (
    CommandSupervisor,
    KillLeftover,
    LookAtSpool,
    SetAside,
    Warn,
    WatchSupervisor,
    WriteExit,
)
from gnode.core.inputs import (
    Found,
    Launched,
    LauncherDown,
    LauncherUp,
    LaunchFailed,
    LeftoverGone,
    SupervisorEnded,
    SupervisorSeen,
)
from gnode.core.orders import ask_launch, attempt_of, end_by_record, fence_older
from gnode.core.table import Attempt, Table
from gnode.core.task import AttemptKey, SupervisorInfo
from gnode.core.transitions import Happening, Phase
from gsched.model.job import ExitRecord
from gsched.model.states import OutcomeKind

SupervisorEvent = (
    LauncherUp
    | LauncherDown
    | Launched
    | LaunchFailed
    | SupervisorSeen
    | SupervisorEnded
    | LeftoverGone
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
        case LaunchFailed():
            launch_failed(table, event, wall_s)
        case LeftoverGone():
            leftover_gone(table, event, wall_s)
        case LauncherUp():
            launcher_up(table)
        case LauncherDown():
            table.launcher_up = False


# --- the launcher ---


def launcher_up(table: Table) -> None:
    """Ask for what was accepted and not asked for; look again at what an older one was asked."""
    table.launcher_up = True
    doubtful: list[AttemptKey] = []
    for attempt in table.attempts.values():
        if attempt.phase is not Phase.ACCEPTED:
            continue
        if attempt.asked:
            doubtful.append(attempt.key)
        else:
            ask_launch(table, attempt)
    if doubtful:
        table.out.append(LookAtSpool(keys=tuple(doubtful)))


def launched(table: Table, event: Launched) -> None:
    """Watch the new supervisor."""
    attempt = table.attempts.get(event.key)
    if attempt is None:
        table.drop("a supervisor of an unknown attempt", event.key)
        return
    if attempt.phase is not Phase.ACCEPTED:
        return  # asked twice, after a doubt; it is watched already
    table.move(attempt, Happening.LAUNCHED)
    attempt.pid, attempt.start_ticks = event.pid, event.start_ticks
    table.out.append(WatchSupervisor(key=event.key, pid=event.pid, start_ticks=event.start_ticks))


def launch_failed(table: Table, event: LaunchFailed, wall_s: float) -> None:
    """Record that the attempt never ran; it is not its user's fault."""
    attempt = table.attempts.get(event.key)
    if attempt is None or attempt.phase is not Phase.ACCEPTED:
        table.drop("a failed launch that is none", event.key)
        return
    _end_by_own_record(table, attempt, OutcomeKind.LAUNCH_FAILED, event.message, wall_s)


# --- supervisors ---


def supervisor_seen(table: Table, event: SupervisorSeen) -> None:
    """Report the start, and hand over the commands that had to wait for it."""
    attempt = table.attempts.get(event.key)
    if attempt is None or attempt.info is not None or not attempt.live:
        return  # seen at its end already
    if table.move(attempt, Happening.SEEN):
        _see(table, attempt, event.info)
        _hand_over(table, attempt)


def _hand_over(table: Table, attempt: Attempt) -> None:
    for command in attempt.waiting:
        table.out.append(CommandSupervisor(key=attempt.key, command=command))
    attempt.waiting.clear()


def _see(table: Table, attempt: Attempt, info: SupervisorInfo) -> None:
    attempt.info = info
    attempt.pid, attempt.start_ticks = info.pid, info.start_ticks
    table.tell(attempt.started())


def supervisor_ended(table: Table, event: SupervisorEnded) -> None:
    """Take its record; without one kill what is left, since nobody else does."""
    attempt = table.attempts.get(event.key)
    if attempt is None or attempt.phase not in {Phase.STARTING, Phase.RUNNING}:
        return  # its end was learned another way
    if event.record is None and event.info is not None and event.info.pid != attempt.pid:
        # A launch that was asked twice: the one that ended found the attempt claimed.
        if attempt.info is None:
            table.move(attempt, Happening.SEEN)
            _resume_watch(table, attempt, event.info)
        return
    if attempt.info is None and event.info is not None:
        _see(table, attempt, event.info)
    if event.record is not None:
        end_by_record(table, attempt, event.record)
    else:
        _lose(table, attempt)


def _lose(table: Table, attempt: Attempt) -> None:
    if not table.move(attempt, Happening.LOST):
        return
    table.out.append(Warn(text=f"attempt {attempt.key.name}: its supervisor died; killing the job"))
    kill_leftover(table, attempt)


def kill_leftover(table: Table, attempt: Attempt) -> None:
    """Have everything of an attempt killed, its supervisor too if it still lives."""
    table.out.append(
        KillLeftover(
            key=attempt.key,
            cgroup=attempt.cgroup,
            user_dir=attempt.user_dir,
            supervisor_pid=attempt.pid,
            supervisor_start_ticks=attempt.start_ticks,
        )
    )


def leftover_gone(table: Table, event: LeftoverGone, wall_s: float) -> None:
    """Record the loss now that nothing is left."""
    attempt = table.attempts.get(event.key)
    if attempt is None or attempt.phase is not Phase.LOST:
        return  # the backstop killed a supervisor: its end is reported on its own
    message = "its supervisor was killed; whatever was left of the job has been killed"
    _end_by_own_record(table, attempt, OutcomeKind.SUPERVISOR_LOST, message, wall_s)


def _end_by_own_record(
    table: Table, attempt: Attempt, kind: OutcomeKind, message: str, wall_s: float
) -> None:
    started_s = attempt.info.started_s if attempt.info else 0.0
    record = ExitRecord(
        job=attempt.key.job,
        attempt=attempt.key.attempt,
        kind=kind,
        stop_reason=attempt.stop_reason,
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
        if attempt.kill_at_s is not None and attempt.kill_at_s <= now_s and not attempt.deferred:
            attempt.kill_at_s = None
            del table.stopping[attempt.key]
            table.out.append(Warn(text=f"attempt {attempt.key.name}: does not stop; killing it"))
            kill_leftover(table, attempt)


# --- the spool ---


def spool_found(table: Table, found: Found, now_s: float, wall_s: float) -> None:
    """Take up one attempt from the spool, at a restart or when a launcher's answer is missing."""
    attempt = table.attempts.get(found.key)
    if attempt is None:
        if found.task is None and found.record is None:
            table.out.append(SetAside(key=found.key))
            return
        attempt = attempt_of(found.task) if found.task else Attempt(key=found.key)
        if found.record is None:
            fence_older(table, found.key, now_s, wall_s)
            attempt.deferred = found.key.job in table.live_of_job
        table.add(attempt)
    elif attempt.phase is not Phase.ACCEPTED:
        return  # settled while we looked
    if found.record is not None:
        _take_record(table, attempt, found)
    elif found.task is not None and found.task.boot_id != table.site.boot_id:
        message = "the machine was restarted while the job was there"
        attempt.info = found.info
        _end_by_own_record(table, attempt, OutcomeKind.NODE_LOST, message, wall_s)
    elif found.info is not None:
        _resume(table, attempt, found.info, alive=found.alive)
    elif found.populated:
        _lose(table, attempt)  # processes without a supervisor that could end well
    else:
        # Never forked as far as anyone can see. Asking again is safe: a launcher starts an
        # attempt once, and a supervisor claims its attempt before it forks the job.
        attempt.asked = False
        ask_launch(table, attempt)


def _take_record(table: Table, attempt: Attempt, found: Found) -> None:
    assert found.record is not None
    if found.info is not None:
        _see(table, attempt, found.info)
    end_by_record(table, attempt, found.record)


def _resume(table: Table, attempt: Attempt, info: SupervisorInfo, *, alive: bool) -> None:
    table.move(attempt, Happening.SEEN)
    if alive:
        _resume_watch(table, attempt, info)
    else:
        _see(table, attempt, info)
        _lose(table, attempt)


def _resume_watch(table: Table, attempt: Attempt, info: SupervisorInfo) -> None:
    _see(table, attempt, info)
    table.out.append(WatchSupervisor(key=attempt.key, pid=info.pid, start_ticks=info.start_ticks))
    _hand_over(table, attempt)

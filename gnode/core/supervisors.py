"""Commands for supervisors, and the gates that they open."""

from dataclasses import replace
from typing import Final

from gnode.core.effects import AttendSharing, AwaitAnswer, CommandSupervisor, KeepLaunched
from gnode.core.table import NodeAttempt, Table
from gnode.core.task import AcceptedTask, Command, LaunchCommand, SignalCommand, StopCommand
from gnode.core.transitions import Phase

#: For so long a job launches on its shared GPU beside others, seconds: after a signal, and at most
#: while it saves its state before it ends or moves.
HANDLING_S: Final = 2.0
SAVING_S: Final = 120.0


def give(table: Table, attempt: NodeAttempt, command: Command) -> None:
    """Hand a command to the supervisor, or keep it until there is one to be woken."""
    if attempt.phase is Phase.ACCEPTED:
        attempt.waiting.append(command)
    elif attempt.phase in {Phase.STARTING, Phase.RUNNING}:
        table.out.append(
            CommandSupervisor(
                key=attempt.key,
                command=command,
                pid=attempt.pid,
                start_ticks=attempt.start_ticks,
            )
        )
        attend(table, attempt, _handling_s(command))
        if isinstance(command, SignalCommand) and command.request:
            table.out.append(
                AwaitAnswer(key=attempt.key, request=command.request, signal=command.signal)
            )


def _handling_s(command: Command) -> float:
    """Return for how long a job handles what it is sent, seconds."""
    match command:
        case StopCommand(grace_s=grace_s):
            return min(grace_s, SAVING_S)
        case SignalCommand(request=request):
            return SAVING_S if request else HANDLING_S
        case _:
            return 0.0


def attend(table: Table, attempt: NodeAttempt, seconds: float) -> None:
    """Let a job that shares a GPU handle what it is sent: its launches wait for no other job."""
    if attempt.gpu_shares and seconds > 0:
        shares = attempt.gpu_shares
        table.out.append(AttendSharing(key=attempt.key, shares=shares, seconds=seconds))


def hand_over(table: Table, attempt: NodeAttempt) -> None:
    """Give a supervisor the commands that had to wait for it."""
    waiting, attempt.waiting = attempt.waiting, []
    for each in waiting:
        give(table, attempt, each)


def open_gate(
    table: Table, attempt: NodeAttempt, task: AcceptedTask, now_s: float, wall_s: float
) -> None:
    """Launch a prepared attempt: it owns from now on what its task says."""
    attempt.prepared, attempt.launch, attempt.warm = False, None, True
    attempt.task, attempt.origin = task, task.origin
    attempt.renewed_s = task.lease_from_s
    table.own(attempt)
    table.out.append(KeepLaunched(task=task))
    give(table, attempt, LaunchCommand(at_s=now_s, walltime_s=task.walltime_s))
    if attempt.info is not None:
        attempt.info = replace(attempt.info, started_s=wall_s)
        table.tell(attempt.started())

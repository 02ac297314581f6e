"""What passes between the head and elastic training jobs: orders down, checkpoints and progress up.

What a training has said is remembered and said again at the next welcome, so that a lost connection
loses nothing; the head drops what it knows already.
"""

from gnode.core.effects import SendToHead, TellJob
from gnode.core.inputs import SupervisorAnswered
from gnode.core.preparing import note_ready
from gnode.core.supervisors import SAVING_S, attend, give
from gnode.core.table import NodeAttempt, Table
from gnode.core.task import AttemptKey, SignalCommand
from gsched.model.signals import describe_signal
from gsched.protocol.node import (
    Checkpointed,
    CheckpointFailed,
    GoOn,
    Prepared,
    TakeCheckpoint,
    TrainingProgress,
    TuneTraining,
    UnknownAttempt,
)


def order(table: Table, command: TakeCheckpoint | GoOn | TuneTraining) -> None:
    """Pass an order on; one that was answered already is answered again."""
    key = AttemptKey(command.job, command.attempt)
    attempt = table.attempts.get(key)
    if attempt is None:
        unknown = UnknownAttempt(job=command.job, attempt=command.attempt)
        table.out.append(SendToHead(message=unknown))
    elif not attempt.live:
        return  # its end is on the way, and says more
    elif isinstance(command, TakeCheckpoint) and command.signal:
        word = SignalCommand(signal=command.signal, request=command.request)
        give(table, attempt, word)  # a supervisor obeys each request once
    elif (
        isinstance(command, TakeCheckpoint)
        and attempt.saved is not None
        and attempt.saved.request == command.request
    ):
        table.out.append(SendToHead(message=attempt.saved))
    else:
        if isinstance(command, TakeCheckpoint):
            attend(table, attempt, SAVING_S)
        table.out.append(TellJob(key=key, message=command))


def report(
    table: Table, message: Prepared | Checkpointed | CheckpointFailed | TrainingProgress
) -> None:
    """Remember what a training has said, and tell the head."""
    if isinstance(message, Prepared):
        note_ready(table, message)
        return
    key = AttemptKey(message.job, message.attempt)
    attempt = table.attempts.get(key)
    if attempt is None or not attempt.live:
        table.drop("a word of a training that is over", key)
        return
    match message:
        case Checkpointed():
            attempt.saved = message
        case TrainingProgress():
            attempt.reached = message
        case CheckpointFailed():
            pass
    if table.welcomed:
        table.out.append(SendToHead(message=message))


def answered(table: Table, event: SupervisorAnswered) -> None:
    """Tell the head that no process of a job handles its signal: it cannot save its state.

    One whose signal was sent answers by its end.
    """
    if event.sent or event.key not in table.attempts:
        return
    message = (
        f"no process of the job handles signal {describe_signal(event.signal)}, so that no "
        "checkpoint can be made: have the program install a handler that saves its state and "
        "exits, or submit the job without --checkpoint-signal"
    )
    key = event.key
    failed = CheckpointFailed(
        job=key.job, attempt=key.attempt, request=event.request, message=message
    )
    report(table, failed)


def repeat(table: Table, attempt: NodeAttempt) -> None:
    """Tell a head that has just welcomed this node what a training has said."""
    for message in (attempt.saved, attempt.reached):
        if message is not None and attempt.live:
            table.out.append(SendToHead(message=message))

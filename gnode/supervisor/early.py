"""The signals by which a job learns that its walltime ends, or that its machine shuts down."""

from gnode.supervisor import proc, spool
from gnode.task import NOTICE_MOST_S, Task


def before_s(task: Task) -> float | None:
    """Return how many seconds before the end of the walltime the signal is due, None: never."""
    signal_spec = task.early_signal
    return None if signal_spec is None else signal_spec.before_s


def send(task: Task, job_pid: int, members: set[int]) -> None:
    """Send the signal to the job's own process, or to the others that have a handler for it.

    Args:
        task: of the attempt.
        job_pid: the job's own process, such as the shell of its script; 0: unknown.
        members: all processes of the job.
    """
    signal_spec = task.early_signal
    if signal_spec is None:
        return
    number = signal_spec.signal
    if signal_spec.script_only:
        proc.send(members & {job_pid}, number)
        return
    handlers = proc.handlers_of(members - {job_pid}, number)
    if not handlers:
        spool.log(f"no process of the job handles signal {number}: it is not sent")
    proc.send(handlers, number)


def notice_s(task: Task) -> float:
    """Return how long before TERM the job gets a signal when its machine shuts down; 0: none."""
    before_end_s = task.grace_s if task.checkpoint_signal else before_s(task) or 0.0
    return min(before_end_s, NOTICE_MOST_S)


def notify(task: Task, job_pid: int, members: set[int]) -> bool:
    """Let a job save its state before its machine shuts down; return whether a process does.

    By its checkpoint signal, otherwise by the signal before the end of its walltime.
    """
    signal_spec, number = task.early_signal, task.checkpoint_signal
    if number or signal_spec is None:
        takers = proc.handlers_of(members, number)
    else:
        number = signal_spec.signal
        own = {job_pid}
        takers = (
            members & own if signal_spec.script_only else proc.handlers_of(members - own, number)
        )
    proc.send(takers, number)
    return bool(takers)

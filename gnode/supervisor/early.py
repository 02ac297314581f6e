"""The signal that a job has asked for some time before its walltime ends."""

from gnode.supervisor import proc, spool
from gnode.task import Task


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

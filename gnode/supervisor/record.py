"""The exit record: what became of an attempt here, from what was seen of it."""

import json
import os
import resource
import signal
import stat
import time
from typing import TypeVar

from gnode.supervisor import cgroup, gate, kernel
from gnode.supervisor.asking import Asking
from gnode.supervisor.ending import Ending
from gnode.supervisor.errors import LaunchError, printable
from gnode.task import Task

_REPORT_BYTES_MAX = 65536
_MESSAGE_CHARACTERS_MAX = 2000

Number = TypeVar("Number", int, float)


class Seen:
    """What was seen of one attempt's processes so far.

    Attributes:
        status: wait status of the job's own process, None while unknown.
        cpu_s: CPU time of all processes that were reaped.
        memory_peak_bytes: the largest resident size among them.
    """

    __slots__ = ("cpu_s", "memory_peak_bytes", "started_boottime_s", "started_s", "status")

    def __init__(self, *, started_s: float, started_boottime_s: float) -> None:
        self.started_s = started_s
        self.started_boottime_s = started_boottime_s
        self.status: int | None = None
        self.cpu_s = 0.0
        self.memory_peak_bytes = 0

    def add(self, usage: resource.struct_rusage) -> None:
        """Add what a reaped process, and what it has reaped itself, used."""
        self.cpu_s += usage.ru_utime + usage.ru_stime
        self.memory_peak_bytes = max(self.memory_peak_bytes, usage.ru_maxrss * 1024)


def used(task: Task, seen: Seen) -> dict[str, object]:
    """Return when an attempt ends, and what it has used until now, for its record."""
    return {
        "ended_s": time.time(),
        "wall_s": round(kernel.boottime_s() - seen.started_boottime_s, 6),
        "cpu_s": round(max(seen.cpu_s, cgroup.cpu_s(task)), 6),
        "memory_peak_bytes": max(seen.memory_peak_bytes, cgroup.memory_peak_bytes(task)),
    }


def never_ran(task: Task, error: LaunchError, seen: Seen | None = None) -> dict[str, object]:
    """Return the record of an attempt whose program was never started.

    One whose process the kernel killed for its memory limit on the way there has its own outcome.

    Args:
        task: of the attempt.
        error: why its program was not started.
        seen: of its processes, if it has begun with its stage-in.
    """
    now_s = time.time()
    record: dict[str, object] = {
        "job": task.job,
        "attempt": task.attempt,
        "kind": "launch_failed",
        "failure": error.evidence(),
        "message": printable(error.message),
        "started_s": now_s,
        "ended_s": now_s,
    }
    if seen is not None:
        record |= {"started_s": seen.started_s} | used(task, seen)
    if task.memory_cgroup is not None and cgroup.out_of_memory_kills(task):
        del record["failure"]
        record["signal"] = signal.SIGKILL
        _merge_out_of_memory(task, record, stopped=False)
    return record


def ended(task: Task, seen: Seen, ending: Ending, asking: Asking) -> dict[str, object]:
    """Return the record of an attempt of which nothing is left."""
    record: dict[str, object] = {
        "job": task.job,
        "attempt": task.attempt,
        "started_s": seen.started_s,
    } | used(task, seen)
    if ending.reason is not None:
        record["stop_reason"] = ending.reason
    if ending.signalled:
        record["requested"] = ending.signalled
        record["requested_s"] = seen.started_s + ending.signalled_s - seen.started_boottime_s
    if asking.refused:
        record["unhandled"] = asking.refused
    record.update(_outcome(seen.status))
    merge_loss(task, ending, record)
    if seen.status not in (None, 0):
        _merge_out_of_memory(task, record, stopped=ending.reason is not None)
        _merge_report(task, seen, ending, record)
    return gate.never_launched(record) if gate.is_shut(task, ending) else record


def merge_loss(task: Task, ending: Ending, record: dict[str, object]) -> None:
    """Say so if the node was lost to the job: it is not its own end, however it took the signal.

    The lease was over, or the machine shuts down, which is as if its power had failed.
    """
    match ending.reason:
        case "lease":
            message = (
                f"the node could not reach the head for {task.lease_s:g} s: the job's lease has "
                "expired"
            )
        case "shutdown":
            message = "the node was shut down"
            record.pop("stop_reason", None)
        case _:
            return
    for name in ("exit_code", "failure", "signal"):
        record.pop(name, None)
    record["kind"] = "node_lost"
    record["message"] = message


def _outcome(status: int | None) -> dict[str, object]:
    if status is None:
        message = "the supervisor was killed, and with it went the job's exit code"
        return {"kind": "supervisor_lost", "message": message}
    if os.WIFSIGNALED(status):
        return {"kind": "signalled", "signal": os.WTERMSIG(status)}
    return {"kind": "exited", "exit_code": os.WEXITSTATUS(status)}


def _merge_out_of_memory(task: Task, record: dict[str, object], *, stopped: bool) -> None:
    """Say so if the kernel killed for memory; a job that we stopped ended for our reason."""
    memory = task.memory_cgroup
    if memory is None or stopped or not cgroup.out_of_memory_kills(task):
        return
    record["kind"] = "oom"
    record["message"] = (
        f"killed for using more than its {memory.limit_bytes / 2**20:.0f} MiB of memory: "
        "ask for more with -l mem="
    )


def _merge_report(task: Task, seen: Seen, ending: Ending, record: dict[str, object]) -> None:
    """Let the torchrun agent's report name the rank that failed first, and how.

    A failure after we began to stop the job is our doing and says nothing.
    """
    if task.failure_report is None:
        return
    report = _read_report(task.failure_report, task.uid)
    failed_s = _number(report.get("failed_s"), 0.0, 1e12)
    if failed_s is None:
        return
    if ending.stopped_s is not None:
        stopped_wall_s = seen.started_s + ending.stopped_s - seen.started_boottime_s
        if failed_s >= stopped_wall_s:
            return
    record["failed_s"] = failed_s
    if report.get("port_taken") is True:
        record["port_taken"] = True
    rank = _number(report.get("rank"), 0, 1 << 31)
    if rank is not None:
        record["rank"] = rank
    message = report.get("message")
    if isinstance(message, str) and "message" not in record:
        record["message"] = printable(message)[:_MESSAGE_CHARACTERS_MAX]
    _merge_cause(report, record)
    if "port_taken" in record:
        record.pop("exit_code", None)
        record["kind"] = "launch_failed"


def _merge_cause(report: dict[str, object], record: dict[str, object]) -> None:
    number = _number(report.get("signal"), 1, signal.NSIG - 1)
    code = _number(report.get("exit_code"), 1, 255)
    if record["kind"] == "oom" or (number is None and code is None):
        return
    record.pop("signal", None)
    record.pop("exit_code", None)
    if number is not None:
        record["kind"], record["signal"] = "signalled", number
    else:
        record["kind"], record["exit_code"] = "exited", code


def _number(value: object, low: Number, high: Number) -> Number | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int) and isinstance(low, float):
        value = float(value) if low <= value <= high else None  # float() of a huge one raises
    fits = isinstance(value, type(low))
    return value if fits and low <= value <= high else None  # type: ignore[operator, return-value]  # fits says so


def _read_report(path: str, uid: int) -> dict[str, object]:
    """Return the agent's report, empty if there is none or it is none.

    The owner's processes wrote it, so it may be anything: a link to a file that only we may read,
    a pipe, or nonsense.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        fd = os.open(path, flags)
    except OSError:  # not there, or a link
        return {}
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != uid or status.st_nlink != 1:
            return {}
        content = os.read(fd, _REPORT_BYTES_MAX)
    finally:
        os.close(fd)
    try:
        report = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return report if isinstance(report, dict) else {}


def unreadable(name: str, error: Exception) -> dict[str, object]:
    """Return the record of attempt ``name`` whose task cannot be read, so that nothing ran."""
    job, attempt = name.split(".")
    return {
        "job": int(job),
        "attempt": int(attempt),
        "kind": "launch_failed",
        "failure": {"stage": "spool", "subject": "node", "errno": 0},
        "message": f"gnode's description of the job cannot be read: {type(error).__name__} {error}",
    }


def add_faults(result: dict[str, object], epilog: str, stage_out: str) -> str:
    """Add to an exit record what has gone wrong after the program; return all of it, in words."""
    if epilog:
        message = result.get("message")
        result["message"] = f"{message}; {epilog}" if message else epilog
    if stage_out:
        result["undelivered"] = stage_out
    return "; ".join(filter(None, (epilog, stage_out)))

"""The gate of a task that was started before its attempt was launched.

The job's process reads its end of a pipe as standard input, and does nothing that two attempts of a
job must not do both until a line comes from there: what is otherwise in the attempt's environment.
This process holds the only other end. If it dies, the job's process reads the end of the pipe, and
exits; nobody else can open the gate.

Where their CPUs are others' until then, the processes have a lower priority, if they can get the
usual one back: by nice among the processes of a session, by the session's autogroup among sessions
(sched(7)).
"""

import contextlib
import json
import os
from collections.abc import Iterable, Mapping

from gnode.supervisor import spool
from gnode.supervisor.ending import Ending
from gnode.task import Task

LOWER_NICE = 10  # a tenth of the CPU time of others (sched(7)); with 19 it could take for ever
_CAP_SYS_NICE = 1 << 23
#: Ends of a task that is not launched which others than the node have asked for.
_BY_OTHERS = frozenset({"delete", "rerun", "move", "node_stop", "peer_failed"})


class TaskGate:
    """One task's gate; see the module.

    Attributes:
        reader: the descriptor that the job's process gets as standard input; closed on exec.
    """

    __slots__ = ("_is_low", "_writer", "reader")

    def __init__(self, *, yields: bool) -> None:
        self.reader, self._writer = os.pipe()
        self._is_low = yields and may_raise_priority()

    def close_reader(self) -> None:
        """Close the job's end here: it has its own."""
        os.close(self.reader)

    def close(self) -> None:
        """Close the gate for good, if it is not open."""
        if self._writer >= 0:
            os.close(self._writer)
            self._writer = -1

    def open(self, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        """Let the job's process go on with the environment ``after`` instead of ``before``."""
        words = {
            "environment": {n: value for n, value in after.items() if before.get(n) != value},
            "removed": [name for name in before if name not in after],
        }
        content = json.dumps(words).encode() + b"\n"
        with contextlib.suppress(BrokenPipeError):  # it has just died: its end says so
            while content:
                content = content[os.write(self._writer, content) :]
        self.close()

    def raise_priority(self, job_pid: int, pids: Iterable[int], nice: int) -> None:
        """Give the job's processes the priority that they would have had without a gate."""
        if not self._is_low:
            return
        with contextlib.suppress(OSError), open(f"/proc/{job_pid}/autogroup", "w") as file:
            file.write("0")
        for pid in pids:
            with contextlib.suppress(OSError):
                for thread in os.listdir(f"/proc/{pid}/task"):
                    os.setpriority(os.PRIO_PROCESS, int(thread), nice)


def lower_priority() -> None:
    """Give this process, which is about to become a gated job's, and its session a lower one."""
    if not may_raise_priority():
        return
    with contextlib.suppress(OSError), open("/proc/self/autogroup", "w") as file:
        file.write(str(LOWER_NICE))
    os.setpriority(os.PRIO_PROCESS, 0, LOWER_NICE)


def may_raise_priority() -> bool:
    """Return whether this process may give others a higher priority (CAP_SYS_NICE)."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            line = next(each for each in file if each.startswith("CapEff:"))
    except (OSError, StopIteration):
        return False
    return bool(int(line.split()[1], 16) & _CAP_SYS_NICE)


def launched_task(directory: str) -> Task | None:
    """Return the task as it was launched; None: it was not, or that cannot be read."""
    try:
        return spool.read_launched(directory)
    except (OSError, ValueError):
        return None


def is_shut(task: Task, ending: Ending) -> bool:
    """Return whether a task has a gate that was never opened."""
    return task.gate and ending.launched_s is None


def never_launched(record: dict[str, object]) -> dict[str, object]:
    """Return the record of a task whose gate was never opened: its attempt has not run.

    Its node ends such tasks for its own reasons; they are no reasons of the attempt's.
    """
    what = record.get("message") or _ending_words(record)
    kept: dict[str, object] = {
        name: record[name]
        for name in ("job", "attempt", "started_s", "ended_s", "cpu_s", "memory_peak_bytes")
        if name in record
    }
    if record.get("stop_reason") in _BY_OTHERS:
        kept["stop_reason"] = record["stop_reason"]
    kept["kind"] = "launch_failed"
    kept["message"] = f"its prepared processes ended before the launch: {what}"
    return kept


def _ending_words(record: Mapping[str, object]) -> str:
    if record.get("stop_reason"):
        return "they were stopped"
    if "exit_code" in record:
        return f"exit code {record['exit_code']}"
    return f"signal {record['signal']}" if "signal" in record else "it is not known how"

"""torchrun that says which rank failed first, when and how.

Runs in the *user's* Python, with the user's torch, as a script of its own:

    python torchrun_agent.py --report FILE -- TORCHRUN-ARGUMENTS SCRIPT ARGUMENTS

It does what ``torchrun`` does. If ranks fail, it also writes FILE (JSON: rank, local_rank,
exit_code, signal, failed_s, message) and exits with the first one's exit code, 128 + n for a
signal. torch itself notes failures to the second and only when it looks; here the moment is that
of the process's death, since a rank on another node fails for it some milliseconds later and the
two have to be told apart.

It may import nothing of gsched, and runs on older Pythons than the daemons.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

_USAGE = "usage: torchrun_agent.py --report FILE -- TORCHRUN-ARGUMENTS SCRIPT ARGUMENTS"
_NO_TORCH = 127  # what a shell says of a program that is not there


class _Deaths:
    """When each child died: seconds since the epoch by pid, noted as SIGCHLD comes in."""

    def __init__(self) -> None:
        self.failed_s: dict[int, float] = {}
        signal.signal(signal.SIGCHLD, self._note)

    def _note(self, _number: int, _frame: object) -> None:
        now_s = time.time()
        for pid in _children():
            if pid in self.failed_s:
                continue
            try:  # WNOWAIT: torch has to find the child's status, too
                found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                continue
            if found is not None and found.si_status != 0:
                self.failed_s[pid] = now_s


def _children() -> list[int]:
    found: list[int] = []
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/children", encoding="ascii") as file:
                found.extend(int(pid) for pid in file.read().split())
        except OSError:  # the thread has ended, or the kernel does not list children
            continue
    return found


def _write_report(path: str, rank: int, failure: object, failed_s: float) -> int:
    """Write what is known of the first failure; return the exit code that stands for it."""
    exit_code = int(getattr(failure, "exitcode", 1))
    report = {
        "rank": rank,
        "local_rank": getattr(failure, "local_rank", None),
        "exit_code": exit_code if exit_code > 0 else None,
        "signal": -exit_code if exit_code < 0 else None,
        "failed_s": failed_s,
        "message": f"rank {rank}: {_message(failure)}",
    }
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(report, file)
    os.replace(temporary, path)
    return exit_code if exit_code >= 0 else 128 - exit_code


def _message(failure: object) -> str:
    exit_code = int(getattr(failure, "exitcode", 1))
    if exit_code < 0:
        return f"killed by signal {-exit_code}"
    said = getattr(failure, "message", "")
    text = str(said.get("message", said) if isinstance(said, dict) else said)
    # Without an error file torch only tells how to get one; the exit code says more.
    return f"exited with code {exit_code}" if "see: https://" in text or not text else text


def _launch(report: str, arguments: list[str]) -> int:
    """Run torchrun; return its exit code."""
    try:
        from torch.distributed import run as torchrun
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "torch":
            raise  # torch is there, and lacks something itself
        sys.stderr.write(
            f"gsched: --torchrun: {sys.executable} on {os.uname().nodename} has no torch: activate "
            "an environment that has it before gsub, or name its Python with --python\n"
        )
        return _NO_TORCH
    try:
        from torch.distributed.elastic.multiprocessing.api import SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

        run, parse = torchrun.run, torchrun.parse_args
    except (ImportError, AttributeError):  # another torch: better no report than no training
        sys.stderr.write("gsched: this torch tells no failing ranks\n")
        torchrun.main(arguments)
        return 0
    deaths = _Deaths()
    try:
        run(parse(arguments))
    except ChildFailedError as error:
        sys.stderr.write(f"{error}\n")
        noticed_s = time.time()
        failed_s = {
            rank: deaths.failed_s.get(getattr(failure, "pid", 0), noticed_s)
            for rank, failure in error.failures.items()
        }
        first = min(failed_s, key=failed_s.__getitem__)
        return _write_report(report, first, error.failures[first], failed_s[first])
    except SignalException as error:
        return 128 + int(error.sigval)
    return 0


def main() -> None:
    """Take the arguments apart and launch."""
    # Python has put this script's folder first; its neighbours are not for the user's imports.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    if len(sys.argv) < 5 or sys.argv[1] != "--report" or sys.argv[3] != "--":
        sys.exit(_USAGE)
    sys.exit(_launch(sys.argv[2], sys.argv[4:]))


if __name__ == "__main__":
    main()

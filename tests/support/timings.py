"""Keeps what each test takes, in time and in CPU time, and why it failed: in pytest's cache.

``scripts/test_times.py`` prints it.
"""

import atexit
import contextlib
import os
from pathlib import Path

import pytest

from tests.support.processes import attempts

DURATIONS = "gsched/durations"
FAILURES = "gsched/failures"
CPU = "cpu_s"
END_S = 2.0  # of servers of forks, behind their workers

_ACCOUNTS = Path("/sys/fs/cgroup/cpuacct")  # control groups of version 1; root makes groups there

_of_forks_s = [0.0]  # CPU time of processes that were another one's children
_account: list[Path] = []  # the group of this process and of all that it starts


def open_account() -> None:
    """Count from now on all that this process starts, also daemons and their jobs, if possible."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        own = next(line.rpartition(":")[2] for line in lines if ":cpuacct:" in line)
        group = _ACCOUNTS / own.strip("/") / f"gsched-tests-{os.getpid()}"
        group.mkdir()
        (group / "cgroup.procs").write_text("0")
        _account.append(group)
        atexit.register(_close_account)  # after servers of forks, which are registered later


def account() -> str:
    """Return the file by which a process counts here; empty: there is no account."""
    return str(_account[0] / "cgroup.procs") if _account else ""


def _close_account() -> None:
    """Leave the group, and remove it with those of workers, once what runs in them has ended."""
    group = _account.pop()
    with contextlib.suppress(OSError):
        (group.parent / "cgroup.procs").write_text("0")
    for _ in attempts(END_S):
        for directory, _, _ in os.walk(group, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(directory)
        if not group.exists():
            return


def add_cpu_s(seconds: float) -> None:
    """Count a process that was another one's child."""
    _of_forks_s[0] += seconds


def cpu_s() -> float:
    """Return the CPU time of this process and of all that it has started.

    Without an account of its own it is that of the processes for which a parent has waited.
    """
    for group in _account:
        return int((group / "cpuacct.usage").read_text()) / 1e9
    return sum(os.times()[:4]) + _of_forks_s[0]


def plain_name(nodeid: str) -> str:
    """Return a test's name without the group that pytest-xdist adds."""
    name, at, _ = nodeid.rpartition("@")
    return name if at and nodeid.rfind("@") > nodeid.rfind("]") else nodeid


class Timings:
    """A plugin of pytest; with workers, of the process that has started them."""

    def __init__(self, cache: pytest.Cache) -> None:
        self._cache = cache
        self._tests: dict[str, list[float]] = {}
        self._failures: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a phase of a test."""
        name = plain_name(report.nodeid)
        times = self._tests.setdefault(name, [0.0, 0.0])
        times[0] += report.duration
        times[1] += sum(float(str(each)) for key, each in report.user_properties if key == CPU)
        if report.failed:
            self._failures[name] = _error(report.longreprtext)

    def pytest_sessionfinish(self) -> None:
        """Keep them, beside what is known of other files."""
        files = {name.partition("::")[0] for name in self._tests}
        known: dict[str, list[float]] = self._cache.get(DURATIONS, {})
        kept = {name: each for name, each in known.items() if name.partition("::")[0] not in files}
        rounded = {name: [round(each, 3) for each in times] for name, times in self._tests.items()}
        self._cache.set(DURATIONS, kept | rounded)
        self._cache.set(FAILURES, self._failures)


def _error(text: str) -> str:
    """Return the line of a failure that says most."""
    lines = text.splitlines() or [""]
    errors = [line.removeprefix("E").strip() for line in lines if line.startswith("E ")]
    return (errors or lines[-1:])[0][:200]

"""Keeps what each test takes, in time and in CPU time, and why it failed: in pytest's cache.

``scripts/test_times.py`` prints it.
"""

import os

import pytest

DURATIONS = "gsched/durations"
FAILURES = "gsched/failures"
CPU = "cpu_s"

_of_forks_s = [0.0]  # CPU time of processes that were another one's children


def add_cpu_s(seconds: float) -> None:
    """Count a process that was another one's child."""
    _of_forks_s[0] += seconds


def cpu_s() -> float:
    """Return the CPU time of this process and of all that it has started and that has ended."""
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

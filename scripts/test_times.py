"""Prints what the tests took when they ran last: by folder, by file, and the longest.

``python scripts/test_times.py [COUNT] [PART-OF-A-NAME]`` lists COUNT files and tests (default 30)
of those whose name holds the part; ``--record`` instead of it writes tests/seconds.json, after a
run of all. CPU time is that of a test's own processes and of their children that have ended; jobs
and supervisors are in it only where a test waits for them.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SECONDS = ROOT / "tests/seconds.json"
CACHE = ROOT / ".pytest_cache/v/gsched/durations"

Times = dict[str, list[float]]  # by name: seconds, seconds of CPU time


def table(tests: Times, name_of: Callable[[str], str], count: int | None = None) -> Iterable[str]:
    """Yield lines, the longest first."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for test, (seconds, cpu_s) in tests.items():
        for index, each in enumerate((1, seconds, cpu_s)):
            sums[name_of(test)][index] += each
    for name, (number, seconds, cpu_s) in sorted(sums.items(), key=lambda item: -item[1][1])[
        :count
    ]:
        yield f"{number:6.0f} {seconds:9.1f} {cpu_s:9.1f}  {name}"


def record(tests: Times) -> None:
    """Write what each file takes, for the order in which workers get the tests."""
    sums: dict[str, float] = defaultdict(float)
    for test, (seconds, _) in tests.items():
        sums[test.partition("::")[0].removeprefix("tests/")] += seconds
    long = {name: round(seconds, 1) for name, seconds in sorted(sums.items()) if seconds >= 1}
    SECONDS.write_text(json.dumps(long, indent=0) + "\n", encoding="utf-8")


def main() -> None:
    """Print the tables."""
    arguments = sys.argv[1:]
    count = int(arguments.pop(0)) if arguments and arguments[0].isdigit() else 30
    part = arguments[0] if arguments else ""
    if not CACHE.exists():
        sys.exit("no test has run here yet: scripts/test")
    tests: Times = {
        name: each for name, each in json.loads(CACHE.read_text()).items() if part in name
    }
    if part == "--record":
        record(json.loads(CACHE.read_text()))
        return
    print(f"{'tests':>6} {'seconds':>9} {'CPU s':>9}")
    print("\n".join(table(tests, lambda _: "all")))
    print("\n".join(table(tests, lambda name: "/".join(name.split("/")[:2]))))
    print(f"\nthe {count} longest files")
    print("\n".join(table(tests, lambda name: name.partition("::")[0], count)))
    print(f"\nthe {count} longest tests")
    print("\n".join(table(tests, lambda name: name, count)))


if __name__ == "__main__":
    main()

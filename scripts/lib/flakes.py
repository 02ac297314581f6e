"""Tests that fail and pass when they are repeated: ``tests/flakes.txt``.

``flakes.py lines TEST...`` prints a line to add for each test that has failed just now.
``flakes.py check TEST...`` fails if one of them was flaky twice before: it must be fixed now.
"""

import datetime as dt
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FAILURES = Path(".pytest_cache/v/gsched/failures")
TIMES_MAX = 3


def noted(root: Path = ROOT) -> list[str]:
    """Return the test of each line of the file."""
    lines = (root / "tests/flakes.txt").read_text(encoding="utf-8").splitlines()
    return [line.split(" ", 2)[2].partition("\t")[0] for line in lines if line[:1] not in {"", "#"}]


def lines(tests: Sequence[str], root: Path = ROOT) -> list[str]:
    """Return a line for each test: date, commit, test, and after a tab what failed."""
    path = root / FAILURES
    failures: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    command = ("git", "-C", str(root), "rev-parse", "--short=10", "HEAD")
    commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    today = dt.datetime.now(dt.UTC).date()
    return [f"{today} {commit} {test}\t{failures.get(test, '')}" for test in tests]


def too_often(tests: Sequence[str], root: Path = ROOT) -> list[str]:
    """Return the tests that have now been flaky as often as none may."""
    before = noted(root)
    return [test for test in tests if before.count(test) + 1 >= TIMES_MAX]


def main() -> int:
    """Do what the arguments tell; return the exit code."""
    action, *tests = sys.argv[1:]
    if action == "lines":
        print("\n".join(lines(tests)))
        return 0
    found = too_often(tests)
    for test in found:
        print(f"{test} is flaky for the third time: fix it, and remove it from tests/flakes.txt")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

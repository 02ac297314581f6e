"""What is kept of test runs: durations, failures, flaky tests; and the table of CONTRIBUTING."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import test_times
from scripts.lib import flakes
from tests.support.timings import plain_name

ROOT = Path(__file__).resolve().parents[2]
LINE = re.compile(r"\d{4}-\d\d-\d\d [0-9a-f]{10} (?P<file>tests/[\w/]+\.py)::(?P<test>\w+)")
ROW = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a repository with one commit, a test that has just failed, and no flaky tests."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/flakes.txt").write_text("# date commit test error\n")
    (tmp_path / flakes.FAILURES).parent.mkdir(parents=True)
    (tmp_path / flakes.FAILURES).write_text(json.dumps({"tests/a.py::test_b[x-y z]": "assert 1"}))
    git = ("git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c")
    subprocess.run([*git[:3], "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "m"], check=True)
    return tmp_path


def test_a_flaky_test_is_refused_the_third_time(tree: Path) -> None:
    """Its line says when, at which commit and why; one of another parameter is another test."""
    test, other = "tests/a.py::test_b[x-y z]", "tests/a.py::test_c"
    path = tree / "tests/flakes.txt"
    for times in range(3):
        assert flakes.too_often([test, other], tree) == ([test] if times == 2 else [])
        (line,) = flakes.lines([test], tree)
        assert LINE.match(line)
        assert line.endswith(f"{test}\tassert 1")
        path.write_text(path.read_text() + line + "\n")


def test_each_flaky_test_exists() -> None:
    """A line for a test that is gone says nothing."""
    lines = (ROOT / "tests/flakes.txt").read_text().splitlines()
    for line in lines:
        if line.startswith("#"):
            continue
        found = LINE.match(line)
        assert found, line
        assert f"def {found['test']}(" in (ROOT / found["file"]).read_text(), line


@pytest.mark.parametrize(
    ("nodeid", "name"),
    [
        ("tests/a.py::test_b@group", "tests/a.py::test_b"),
        ("tests/a.py::test_b[x@y]@group", "tests/a.py::test_b[x@y]"),
        ("tests/a.py::test_b[x@y]", "tests/a.py::test_b[x@y]"),
    ],
)
def test_a_name_is_kept_without_its_group(nodeid: str, name: str) -> None:
    assert plain_name(nodeid) == name


def test_times_are_summed_by_file() -> None:
    tests = {"tests/a.py::b": [1.0, 0.5], "tests/a.py::c": [2.0, 0.5], "tests/d.py::e": [9.0, 0.1]}
    table = [line.split() for line in test_times.table(tests, lambda name: name.split("::")[0])]
    assert table == [["1", "9.0", "0.1", "tests/d.py"], ["2", "3.0", "1.0", "tests/a.py"]]


def test_each_folder_of_tests_is_described() -> None:
    """In the table of CONTRIBUTING, in the order in which a change is tested."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    described = ROW.findall(text.partition("## Tests")[2].partition("\n## ")[0])
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    assert set(described) == folders


def test_failed_tests_are_named_as_pytest_takes_them(tmp_path: Path) -> None:
    names = ("tests/a.py::test_b[x@y]", "tests/a.py::test_b[x@y]@a", "tests/c.py::test_d@c")
    cache = tmp_path / ".pytest_cache/v/cache/lastfailed"
    cache.parent.mkdir(parents=True)
    cache.write_text(json.dumps(dict.fromkeys(names, True)))
    ran = subprocess.run(
        [sys.executable, ROOT / "scripts/lib/last_failed.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        check=True,
        encoding="utf-8",
    )
    assert ran.stdout.splitlines() == [plain_name(name) for name in names]

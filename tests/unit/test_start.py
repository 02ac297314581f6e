"""Garbage is collected once a daemon has imported its modules, and not before."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = (
    "gschedd/main.py",
    "gschedd/monitor/worker.py",
    "gschedd/notify/worker.py",
    "gschedd/planner/worker.py",
    "gnode/main.py",
)
LOOK = """
import gsched.start, gc
print(gc.isenabled(), gc.get_freeze_count())
gsched.start.imported()
print(gc.isenabled(), gc.get_freeze_count() > 1000)
"""


def test_nothing_is_collected_until_all_is_imported() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", LOOK], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert ran.stdout.splitlines() == ["False 0", "True True"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_daemon_does_so_before_its_other_imports(program: str) -> None:
    tree = ast.parse((ROOT / program).read_text())
    imports = [each for each in tree.body if isinstance(each, ast.Import | ast.ImportFrom)]
    (main,) = [
        each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == "main"
    ]

    assert ast.unparse(imports[0]) == "import gsched.start"
    assert "gsched.start.imported()" in [ast.unparse(each) for each in main.body]


def test_the_token_daemon_imports_nothing_of_runtimes() -> None:
    """They look at GPUs and processes, and their libraries take half of its start."""
    look = "import gnode.gpushare.tokend, sys; print(*sys.modules, sep='\\n')"
    ran = subprocess.run(
        [sys.executable, "-c", look], cwd=ROOT, capture_output=True, text=True, check=True
    )

    found = set(ran.stdout.split())
    assert "gnode.gpushare.wire" in found
    assert not found & {"gnode.gpushare.runtimes", "gnode.hw.nvml", "psutil", "pynvml"}

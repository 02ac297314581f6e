"""Each program starts in an interpreter of its own, and finds there what it imports late.

Other tests start programs by forks (`tests.support.forks`), which find all modules in memory.
"""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.commands import command_environment
from tests.support.forks import WORKERS

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
NAMES = {name: target.partition(":")[0] for name, target in SCRIPTS.items()}
NAMES |= {name: name for name in WORKERS}
#: Imports a program, and then one after the other what its modules import in functions.
PROGRAM = """\
import ast, importlib, re, sys

def late(name):
    path = getattr(sys.modules[name], "__file__", None)
    text = open(path).read() if path else ""
    if not re.search("^ +from ", text, re.MULTILINE):
        return  # all that it imports is there
    tree = ast.parse(text)
    typed = {
        id(each) for node in ast.walk(tree) if isinstance(node, ast.If)
        and ast.unparse(node.test) == "TYPE_CHECKING" for each in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and id(node) not in typed:
            yield node.module, [alias.name for alias in node.names]

importlib.import_module(sys.argv[1])
seen = set()
while waiting := {n for n in sys.modules if n.partition(".")[0] in OURS} - seen:
    for name in sorted(waiting):
        seen.add(name)
        for module, names in late(name):
            if module.partition(".")[0] in OURS:
                imported = importlib.import_module(module)
                for each in names:
                    if not hasattr(imported, each):
                        importlib.import_module(f"{module}.{each}")
print(len(seen))
""".replace("OURS", repr(("gsched", "gschedd", "gnode")))


@pytest.mark.parametrize("name", NAMES)
def test_a_program_finds_what_it_imports_late(name: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, NAMES[name]],
        env=command_environment(),
        capture_output=True,
        text=True,
        check=False,
    )

    assert (ran.returncode, ran.stderr) == (0, "")
    assert int(ran.stdout) > 10

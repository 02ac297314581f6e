"""The launcher is forked for each attempt: what it has imported makes each fork dearer."""

import json
import os
import subprocess
import sys

from tests.support.records import a_task

#: What standard modules import without need, and what is not the launcher's.
LARGE = {
    *("ast", "asyncio", "dataclasses", "dis", "inspect", "logging", "msgspec", "subprocess"),
    *("tempfile", "threading", "tokenize", "traceback", "gnode.core", "gnode.daemon"),
}
MODULES_MAX = 140  # 130 when this was written
MODULES = "import json, sys, gnode.supervisor.launcher; print(json.dumps(list(sys.modules)))"
#: As a supervisor reads its task: in gnode and in these tests the records are dataclasses.
READ = """
import json, sys
from gnode.task import Task, decode
stated = json.load(sys.stdin)
print(json.dumps(vars(decode(Task, json.dumps(stated | {"added": 1}).encode())), default=vars))
for name in ("files", "argv", "grace_s"):
    wrong = {key: each for key, each in stated.items() if key != name}
    try:
        decode(Task, json.dumps(wrong).encode())
    except ValueError:
        print(name)
"""


def python(program: str, given: bytes = b"") -> list[str]:
    """Return what a program of the standard library and the tree's modules prints."""
    ran = subprocess.run(
        [sys.executable, "-c", program],
        input=given,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        capture_output=True,
        timeout=60,
        check=True,
    )
    return ran.stdout.decode().splitlines()


def test_the_launcher_has_imported_little() -> None:
    (line,) = python(MODULES)
    modules = set(json.loads(line))

    assert not modules & LARGE
    assert len(modules) <= MODULES_MAX


def test_a_supervisor_without_dataclasses_reads_the_task_that_gnode_reads() -> None:
    task = a_task(early_signal={"signal": 10}, files=[{"name": "a", "mode": 1, "content": "x"}])
    written = json.dumps(vars(task), default=vars)
    least = {name: each for name, each in json.loads(written).items() if name != "lease_s"}

    read, *refused = python(READ, json.dumps(least).encode())

    assert json.loads(read) == json.loads(written)
    assert refused == ["files", "argv", "grace_s"]

"""What torchrun's agent does at moments when little of Python can be used."""

import os
import pathlib
import subprocess
import sys

AGENT = pathlib.Path(__file__).parents[2] / "gnode" / "supervisor" / "torchrun_agent.py"

#: A signal in the middle of an import finds the module that is imported half made.
WHILE_A_CODEC_IS_IMPORTED = """
import runpy, subprocess, sys, time, types
agent = runpy.run_path(sys.argv[1])
sys.modules["encodings.ascii"] = types.ModuleType("encodings.ascii")
deaths = agent["_Deaths"]()
child = subprocess.Popen(["false"])
while not deaths.failed_s:
    time.sleep(0.01)
print(list(deaths.failed_s) == [child.pid], child.wait())
"""


def test_a_death_is_noted_whatever_is_being_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WHILE_A_CODEC_IS_IMPORTED, str(AGENT)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60.0,
        env={**os.environ, "PYTHONUTF8": "1"},
    )

    assert done.stderr == ""
    assert done.stdout == "True 1\n"

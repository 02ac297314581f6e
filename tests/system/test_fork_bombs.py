"""Jobs whose processes fork faster than anybody can list them are ended all the same.

The bombs are bounded in number and end by themselves after a while, whatever becomes of the test.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gsched.model.states import StopReason
from gsched.protocol.node import StopAttempt
from tests.support.gnode_world import GnodeWorld
from tests.support.processes import attempts

#: Processes that live for an instant each: every one forks its successor, in a session of its
#: own and with TERM ignored, and exits.
HOPPERS = """
import os, signal, sys, time
until_s = time.monotonic() + 30
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for number in range(20):
    if os.fork() == 0:
        while time.monotonic() < until_s:
            if os.fork():
                os._exit(0)
            os.setsid()
            time.sleep(0.002)
        os._exit(0)
open(sys.argv[1], "w").close()
time.sleep(30)
"""

#: Hundreds of processes that wait.
CROWD = """
import os, sys, time
until_s = time.monotonic() + 30
for _ in range(8):
    os.fork()
if os.getpid() == os.getpgrp():
    open(sys.argv[1], "w").close()
while time.monotonic() < until_s:
    time.sleep(0.5)
"""


@pytest.fixture
def world(tmp_path: Path, process_marker: str) -> Iterator[GnodeWorld]:
    made = GnodeWorld(tmp_path, process_marker)
    yield made
    made.stop()


def marked(text: str) -> list[int]:
    """Return the processes with a word on their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text.encode() in path.read_bytes() and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("cgroup", ["auto", "none"])
@pytest.mark.parametrize("bomb", [HOPPERS, CROWD], ids=["hoppers", "crowd"])
def test_d5_a_fork_bomb_is_ended_by_a_stop_and_leaves_nothing(
    world: GnodeWorld, bomb: str, cgroup: str
) -> None:
    world.settings["cgroup"] = cgroup
    program, sign = world.work / "bomb.py", world.work / "lit"
    program.write_text(bomb)
    world.start()
    world.launch(1, f"exec {sys.executable} -I -S {program} {sign}")
    for _ in attempts():
        if sign.exists():
            break
    assert marked(str(program))

    world.head.send(StopAttempt(job=1, attempt=1, reason=StopReason.DELETE, grace_s=0.5))
    record = world.head.wait_for_exit(1).record

    assert record.stop_reason is StopReason.DELETE
    assert marked(str(program)) == []
    world.launch(2, "exit 5")
    assert world.head.wait_for_exit(2).record.exit_code == 5

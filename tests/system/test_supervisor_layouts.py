"""An upgrade while jobs run: attempts whose files an older gnode or supervisor has made."""

import json
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from gnode.supervisor import kernel, proc, spool
from tests.support import records
from tests.support.launching import Launcher, process_is_there, wait_until

BASH = "/bin/bash"
GATED = "trap '' TERM; echo up; while ! test -e {gate}; do sleep 0.05; done; exit 42"


@pytest.fixture
def launcher(tmp_path: pathlib.Path) -> Iterator[Launcher]:
    made = Launcher(tmp_path / "state", layout=1)
    yield made
    made.close()


def test_an_attempt_of_the_older_layout_runs_and_obeys(launcher: Launcher) -> None:
    assert launcher.run(launcher.task(1, [BASH, "-c", "exit 3"]))["exit_code"] == 3
    launcher.launch(launcher.task(2, ["sleep", "1000"]))
    launcher.started(2)

    launcher.order(2, {"do": "stop", "reason": "delete", "grace_s": 5})

    assert launcher.exit(2)["stop_reason"] == "delete"
    assert (launcher.directory(2) / "commands").stat().st_size > 0


def test_a_killed_supervisor_of_the_older_layout_is_replaced(
    launcher: Launcher, tmp_path: pathlib.Path
) -> None:
    """The launcher takes its job over, and reads the orders where gnode writes them."""
    gate = tmp_path / "gate"
    pid = launcher.launch(launcher.task(1, [BASH, "-c", GATED.format(gate=gate)]))
    launcher.wait_for_output(1, "up")
    launcher.started(1)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: "taking over" in launcher.log(), "the launcher to notice")

    launcher.order(1, {"do": "stop", "reason": "delete", "grace_s": 0.1})

    record = launcher.exit(1)
    assert (record["kind"], record["signal"]) == ("signalled", signal.SIGKILL)
    assert record["stop_reason"] == "delete"


@pytest.fixture
def stranger(tmp_path: pathlib.Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A job's process that an older supervisor, dead by now, has started."""
    environment = {"PATH": os.defpath, "PBS_NODEFILE": f"{tmp_path}/state/user/1.1/nodefile"}
    with subprocess.Popen(["sleep", "1000"], env=environment, start_new_session=True) as process:
        yield process
        process.kill()


def test_a_job_that_an_older_supervisor_has_left_behind_is_looked_after(
    launcher: Launcher, tmp_path: pathlib.Path, stranger: "subprocess.Popen[bytes]"
) -> None:
    launcher.process.kill()
    launcher.process.wait()
    launcher.channel.close()
    launcher.accept(launcher.task(1, ["sleep", "1000"]))
    started = {
        "pid": 2**22 - 1,
        "start_ticks": 1,
        "job_pid": stranger.pid,
        "job_start_ticks": proc.start_ticks(stranger.pid),
        "started_s": time.time(),
        "started_boottime_s": kernel.boottime_s(),
        "stdout_path": "/dev/null",
        "stderr_path": "/dev/null",
    }
    (launcher.directory(1) / spool.OLD_SUPERVISOR).write_text(json.dumps(started))

    launcher.start()
    if kernel.tells_exit_status():
        assert records.ended(launcher.directory(1)) is None
        assert process_is_there(stranger.pid)
        launcher.order(1, {"do": "stop", "reason": "delete", "grace_s": 1})
    stranger.wait(20)
    record = launcher.exit(1)

    if kernel.tells_exit_status():
        assert (record["kind"], record["stop_reason"]) == ("signalled", "delete")
    else:
        assert record["kind"] == "supervisor_lost"

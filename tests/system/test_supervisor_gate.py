"""Tasks that are started before their attempts are launched, through a real launcher."""

import json
import os
import pathlib
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gnode.supervisor.gate import may_raise_priority
from tests.support.launching import Launcher, process_is_there, wait_until

BASH = "/bin/bash"
#: Says that it waits, then what it hears, then its niceness.
WAITER = 'echo waits; IFS= read -r line || exit 9; echo "$line"; ps -o ni= -p $$; exec sleep 30'
FENCED = {"do": "stop", "reason": "fenced", "grace_s": 0}


@pytest.fixture
def launcher(tmp_path: pathlib.Path) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path / "state", is_real=True)
    yield launcher
    launcher.close()


def gated(launcher: Launcher, script: str = WAITER, **changes: Any) -> dict[str, Any]:
    """Return a prepared task that runs a script."""
    env = {"PATH": os.environ["PATH"], "GSCHED_GATE": "stdin", "SAME": "1", "OTHER": "before"}
    settings = {"gate": True, "walltime_s": 60.0, "env": env, **changes}
    return launcher.task(1, [BASH, "-c", script], **settings)


def waiting(launcher: Launcher, **changes: Any) -> dict[str, Any]:
    """Start a prepared task; return it when it waits."""
    task = gated(launcher, **changes)
    launcher.launch(task)
    launcher.wait_for_output(1, "waits\n")
    return task


def launch(launcher: Launcher, task: dict[str, Any], **changes: Any) -> None:
    """Launch a task that waits, as gnode does."""
    env = {"PATH": task["env"]["PATH"], "SAME": "1", "OTHER": "after", "MASTER_PORT": "20001"}
    launcher.launch_prepared({**task, "env": env, "walltime_s": None, **changes})


def test_it_hears_nothing_before_its_launch_and_then_what_has_changed(launcher: Launcher) -> None:
    task = waiting(launcher)
    time.sleep(0.3)
    assert launcher.output(1) == "waits\n"

    before_s = time.time()
    launch(launcher, task)
    words = json.loads(launcher.wait_for_output(1, "}\n").splitlines()[1])

    assert words["environment"] == {"OTHER": "after", "MASTER_PORT": "20001"}
    assert words["removed"] == ["GSCHED_GATE"]
    after_s = time.time()
    launcher.order(1, {"do": "stop", "reason": "delete", "grace_s": 0})
    record = launcher.exit(1)
    assert (record["kind"], record["stop_reason"]) == ("signalled", "delete")
    assert before_s - 0.1 <= record["started_s"] <= after_s + 0.1, "of the launch"
    assert record["wall_s"] <= time.time() - before_s + 0.1


def test_its_walltime_counts_from_the_launch(launcher: Launcher) -> None:
    task = waiting(launcher, walltime_s=100.0)
    time.sleep(1.0)

    launch(launcher, task, walltime_s=1.5)
    record = launcher.exit(1)

    assert record["stop_reason"] == "walltime"
    assert 1.4 <= record["wall_s"] < 10.0


def test_the_signal_before_its_walltime_ends_is_sent_after_the_launch_only(
    launcher: Launcher,
) -> None:
    early = {"signal": signal.SIGUSR1, "before_s": 60.0, "script_only": True}
    task = waiting(launcher, walltime_s=60.0, early_signal=early)
    time.sleep(0.5)
    assert process_is_there(launcher.started(1)["job_pid"])

    launch(launcher, task, walltime_s=60.0)
    record = launcher.exit(1)

    assert (record["kind"], record["signal"]) == ("signalled", signal.SIGUSR1)


def test_a_second_order_to_launch_it_changes_nothing(launcher: Launcher) -> None:
    task = waiting(launcher)
    launch(launcher, task)
    launcher.wait_for_output(1, "}\n")

    launch(launcher, task, walltime_s=0.1)
    time.sleep(0.5)

    assert process_is_there(launcher.started(1)["job_pid"])


@pytest.mark.parametrize(
    ("order", "reason"),
    [(FENCED, None), ({"do": "stop", "reason": "delete", "grace_s": 0}, "delete")],
)
def test_one_that_is_stopped_has_not_run(
    launcher: Launcher, order: dict[str, Any], reason: str | None
) -> None:
    waiting(launcher)

    launcher.order(1, order)
    record = launcher.exit(1)

    assert record["kind"] == "launch_failed"
    assert record.get("stop_reason") == reason
    assert "before the launch" in record["message"]


def test_one_that_ends_by_itself_has_not_run(launcher: Launcher) -> None:
    record = launcher.run(gated(launcher, "exit 3"))

    assert record["kind"] == "launch_failed"
    assert record["message"] == "its prepared processes ended before the launch: exit code 3"
    assert "exit_code" not in record


def test_it_does_not_wait_for_ever(launcher: Launcher) -> None:
    record = launcher.run(gated(launcher, walltime_s=0.5))

    assert record["kind"] == "launch_failed"
    assert "stop_reason" not in record


def test_it_dies_with_its_supervisor_and_no_launch_opens_its_gate(launcher: Launcher) -> None:
    task = waiting(launcher)
    started = launcher.started(1)

    os.kill(started["pid"], signal.SIGKILL)
    launch(launcher, task)
    record = launcher.exit(1)

    assert record["kind"] in {"launch_failed", "exited"}
    assert "}" not in launcher.output(1)
    assert not process_is_there(started["job_pid"])


def test_a_launched_one_outlives_its_supervisor(launcher: Launcher) -> None:
    task = waiting(launcher)
    launch(launcher, task)
    launcher.wait_for_output(1, "}\n")
    started = launcher.started(1)

    os.kill(started["pid"], signal.SIGKILL)
    time.sleep(0.5)
    assert process_is_there(started["job_pid"])
    launcher.order(1, {"do": "stop", "reason": "delete", "grace_s": 0})
    record = launcher.exit(1)

    assert (record["kind"], record["stop_reason"]) == ("signalled", "delete")


@pytest.mark.skipif(not may_raise_priority(), reason="needs CAP_SYS_NICE")
def test_it_yields_until_it_is_launched(launcher: Launcher) -> None:
    task = waiting(launcher, yields=True)
    pid = launcher.started(1)["job_pid"]
    assert os.getpriority(os.PRIO_PROCESS, pid) == 10

    launch(launcher, task)
    launcher.wait_for_output(1, "}\n")

    wait_until(lambda: os.getpriority(os.PRIO_PROCESS, pid) == 0, "the usual priority")
    autogroup = pathlib.Path(f"/proc/{pid}/autogroup")
    if autogroup.exists():
        assert autogroup.read_text().split()[-1] == "0"


def test_its_processes_get_the_cpus_of_the_attempt_when_it_is_launched(launcher: Launcher) -> None:
    script = (
        "sleep 40 & echo waits; IFS= read -r line || exit 9\n"
        "for pid in $$ $!; do grep Cpus_allowed_list /proc/$pid/status; done; echo done; wait"
    )
    cpu = min(os.sched_getaffinity(0))
    task = gated(launcher, script)
    launcher.launch(task)
    launcher.wait_for_output(1, "waits\n")

    launch(launcher, task, cpus=[cpu])
    lines = launcher.wait_for_output(1, "done\n").splitlines()

    assert [line.split()[1] for line in lines[1:3]] == [str(cpu)] * 2

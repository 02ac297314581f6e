"""Supervisors and launchers that are killed: no outcome is invented, no process is left."""

import errno
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from gnode.supervisor import kernel
from tests.support import records
from tests.support.launching import Launcher, Way, process_is_there, wait_until

BASH = "/bin/bash"


@pytest.fixture
def start(tmp_path: pathlib.Path, way: Way) -> Iterator[Callable[..., Launcher]]:
    """Return a function that starts a launcher with failpoints armed."""
    launchers: list[Launcher] = []

    def started(failpoints: str = "", *, old_kernel: bool = False) -> Launcher:
        environment = {"GSCHED_FAIL": failpoints} if failpoints else {}
        if old_kernel:
            environment["GSCHED_TEST_OLD_KERNEL"] = "1"
        state = tmp_path / f"state{len(launchers)}"
        launchers.append(Launcher(state, environment, **vars(way)))
        return launchers[-1]

    yield started
    for launcher in launchers:
        launcher.close()


@pytest.fixture(params=[0, 1], ids=["spawned", "forked"])
def nice(request: pytest.FixtureRequest) -> int:
    """A job that needs another niceness is forked, any other one is spawned."""
    return int(request.param)


def gated(gate: pathlib.Path, then: str) -> list[str]:
    """Return a job that says "up" and goes on once the gate file exists."""
    return [BASH, "-c", f"echo up; while [ ! -e {gate} ]; do sleep 0.02; done; {then}"]


def launch_greeter(launcher: Launcher, directory: pathlib.Path) -> int:
    """Launch job 1, which says hello to USR2 until the gate file exists; return its supervisor."""
    argv = gated(directory / "gate", "exit 0")
    argv[2] = f"trap 'echo hello' USR2; {argv[2]}"
    pid = launcher.launch(launcher.task(1, argv))
    launcher.wait_for_output(1, "up")
    return pid


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def test_c7_the_exit_code_survives_the_supervisor(
    start: Callable[..., Launcher], tmp_path: pathlib.Path, nice: int
) -> None:
    launcher = start()
    pid = launcher.launch(launcher.task(1, gated(tmp_path / "gate", "exit 42"), nice=nice))
    launcher.wait_for_output(1, "up")
    launcher.started(1)

    kill(pid)
    wait_until(lambda: "taking over" in launcher.log(), "the launcher to notice")
    assert records.ended(launcher.directory(1)) is None
    assert process_is_there(launcher.started(1)["job_pid"])
    (tmp_path / "gate").touch()
    record = launcher.exit(1)

    assert (record["kind"], record["exit_code"]) == ("exited", 42)


def test_c7_walltime_is_enforced_without_a_supervisor(start: Callable[..., Launcher]) -> None:
    launcher = start()
    stubborn = "trap '' TERM; echo up; while :; do sleep 0.1; done"
    pid = launcher.launch(launcher.task(1, [BASH, "-c", stubborn], walltime_s=1.5, grace_s=0.3))
    launcher.wait_for_output(1, "up")

    kill(pid)
    record = launcher.exit(1)

    assert (record["stop_reason"], record["signal"]) == ("walltime", signal.SIGKILL)


def test_c7_orders_are_obeyed_without_a_supervisor(
    start: Callable[..., Launcher], tmp_path: pathlib.Path
) -> None:
    launcher = start()
    pid = launch_greeter(launcher, tmp_path)
    kill(pid)
    wait_until(lambda: "taking over" in launcher.log(), "the launcher to notice")

    launcher.order(1, {"do": "signal", "signal": int(signal.SIGUSR2)})
    launcher.wait_for_output(1, "hello")
    launcher.order(1, {"do": "stop", "reason": "delete", "grace_s": 5})
    record = launcher.exit(1)

    assert (record["stop_reason"], record["signal"]) == ("delete", signal.SIGTERM)


def test_c7_a_signal_that_the_supervisor_did_not_live_to_send_is_sent(
    start: Callable[..., Launcher], tmp_path: pathlib.Path
) -> None:
    launcher = start()
    pid = launch_greeter(launcher, tmp_path)

    os.kill(pid, signal.SIGSTOP)
    launcher.order(1, {"do": "signal", "signal": int(signal.SIGUSR2)})
    kill(pid)
    launcher.wait_for_output(1, "hello")
    (tmp_path / "gate").touch()

    assert launcher.exit(1)["exit_code"] == 0
    assert launcher.output(1) == "up\nhello\n"


def test_c7_a_signal_that_was_delivered_is_not_sent_again(
    start: Callable[..., Launcher], tmp_path: pathlib.Path
) -> None:
    launcher = start()
    pid = launch_greeter(launcher, tmp_path)
    launcher.order(1, {"do": "signal", "signal": int(signal.SIGUSR2)})
    launcher.wait_for_output(1, "hello")

    kill(pid)
    wait_until(lambda: "taking over" in launcher.log(), "the launcher to notice")
    launcher.order(1, {"do": "retime", "walltime_s": 5000})
    (tmp_path / "gate").touch()

    assert launcher.exit(1)["exit_code"] == 0
    assert launcher.output(1) == "up\nhello\n"


def test_c7_leftovers_go_without_a_supervisor(
    start: Callable[..., Launcher], tmp_path: pathlib.Path
) -> None:
    """A daemon with neither the job's session nor its environment is found as an orphan."""
    launcher = start()
    daemon = "import os,time; os.setsid(); open({!r},'w').write(str(os.getpid())); time.sleep(999)"
    argv = gated(tmp_path / "gate", "exit 8")
    pid_file = tmp_path / "pid"
    code = daemon.format(str(pid_file))
    argv[2] = f'(env -i {sys.executable} -I -S -c "{code}" &); {argv[2]}'
    pid = launcher.launch(launcher.task(1, argv))
    launcher.wait_for_output(1, "up")
    launcher.started(1)  # before that the daemon, which leads a session, may be taken for the job
    leftover = int(wait_until(lambda: pid_file.exists() and pid_file.read_text(), "the daemon"))

    kill(pid)
    (tmp_path / "gate").touch()
    record = launcher.exit(1)

    assert record["exit_code"] == 8
    assert not process_is_there(leftover)


def test_c7_two_lost_supervisors_keep_their_jobs_apart(
    start: Callable[..., Launcher], tmp_path: pathlib.Path
) -> None:
    launcher = start()
    pids = []
    for job in (1, 2):
        gate = tmp_path / f"gate{job}"
        argv = gated(gate, f"exit 1{job}")
        pids.append(launcher.launch(launcher.task(job, argv)))
        launcher.wait_for_output(job, "up")
        launcher.started(job)

    for pid in pids:
        kill(pid)
    (tmp_path / "gate1").touch()
    first = launcher.exit(1)
    still_there = process_is_there(launcher.started(2)["job_pid"])
    (tmp_path / "gate2").touch()
    second = launcher.exit(2)

    assert (first["exit_code"], second["exit_code"]) == (11, 12)
    assert still_there


@pytest.mark.parametrize("point", ["before_record", "half_record"])
def test_c9_and_c10_an_outcome_that_died_with_the_supervisor_is_lost_not_success(
    start: Callable[..., Launcher], point: str, nice: int
) -> None:
    launcher = start(f"supervisor.exit.{point}:kill")

    launcher.launch(launcher.task(1, ["true"], nice=nice))
    record = launcher.exit(1)

    assert record["kind"] == "supervisor_lost"
    assert "exit_code" not in record


def test_a_record_that_was_written_counts_though_its_supervisor_died(
    start: Callable[..., Launcher],
) -> None:
    launcher = start("supervisor.exit.after_record:kill")

    launcher.launch(launcher.task(1, [BASH, "-c", "exit 3"]))

    assert launcher.exit(1)["exit_code"] == 3


def test_c7_a_job_that_runs_before_it_is_recorded_keeps_its_exit_code(
    start: Callable[..., Launcher], tmp_path: pathlib.Path
) -> None:
    launcher = start("supervisor.start.after_fork:kill")
    argv = gated(tmp_path / "gate", "exit 17")
    argv[2] = f"trap 'echo found' USR2; {argv[2]}"
    launcher.launch(launcher.task(1, argv))
    launcher.wait_for_output(1, "up")
    wait_until(lambda: "taking over" in launcher.log(), "the launcher to notice")
    launcher.order(1, {"do": "signal", "signal": int(signal.SIGUSR2)})
    launcher.wait_for_output(1, "found")

    (tmp_path / "gate").touch()
    record = launcher.exit(1)

    assert (record["kind"], record["exit_code"]) == ("exited", 17)
    assert record["started_s"] > 0


@pytest.mark.parametrize(
    ("point", "forked"), [("before_fork", False), ("before_fork", True), ("after_fork", True)]
)
def test_a_supervisor_that_dies_while_starting_fails_the_launch_and_leaves_nothing(
    start: Callable[..., Launcher], point: str, *, forked: bool
) -> None:
    """A process that Python has forked waits for its supervisor's word; any other one runs."""
    launcher = start(f"supervisor.start.{point}:kill")
    task = launcher.task(1, ["sleep", "997"])
    if forked:  # a job of Slurm is Python's, and told its pid
        task["env"]["SLURM_JOB_ID"] = "1"

    launcher.launch(task)
    record = launcher.exit(1)

    assert record["kind"] == "launch_failed"
    assert record["failure"]["errno"] == errno.EINTR
    assert "while it was starting" in record["message"]
    assert subprocess.run(["pgrep", "-fx", "sleep 997"], check=False).returncode == 1


def test_supervisors_outlive_the_launcher_and_the_next_one_reports_them(
    start: Callable[..., Launcher], tmp_path: pathlib.Path
) -> None:
    launcher = start()
    pid = launcher.launch(launcher.task(1, gated(tmp_path / "gate", "exit 21")))
    launcher.wait_for_output(1, "up")

    launcher.process.kill()
    launcher.process.wait()
    launcher.channel.close()
    launcher.start()
    launcher.ask({"launch": "1.1"})
    again = launcher.hear("launched", "1.1")
    (tmp_path / "gate").touch()
    ended = launcher.hear("ended", "1.1")

    assert again["pid"] == pid == ended["pid"]
    assert launcher.exit_record(1)["exit_code"] == 21
    assert launcher.output(1) == "up\n"


def test_an_attempt_that_ends_while_no_launcher_runs_is_recorded(
    start: Callable[..., Launcher], tmp_path: pathlib.Path
) -> None:
    launcher = start()
    pid = launcher.launch(launcher.task(1, gated(tmp_path / "gate", "exit 22")))
    launcher.wait_for_output(1, "up")
    launcher.process.kill()
    launcher.process.wait()
    launcher.channel.close()

    (tmp_path / "gate").touch()
    wait_until(lambda: records.ended(launcher.directory(1)), "the record")
    wait_until(lambda: not process_is_there(pid), "the supervisor to leave")
    launcher.start()

    assert launcher.exit_record(1)["exit_code"] == 22


tells_exit_status = pytest.mark.skipif(
    not kernel.tells_exit_status(),
    reason="this kernel (older than 6.15) tells no exit status of others' children",
)


def replace(launcher: Launcher) -> None:
    """Kill the launcher and start another one, which has heard of nothing."""
    kill(launcher.process.pid)
    launcher.process.wait()
    launcher.channel.close()
    launcher.start()
    launcher.ask({"launch": "1.1"})
    launcher.hear("launched", "1.1")  # so it has looked into the spool


@tells_exit_status
@pytest.mark.parametrize("end", ["exit 42", "kill -9 $$"])
@pytest.mark.parametrize("replaced", [1, 2])
def test_the_exit_code_survives_the_supervisor_also_after_its_launcher_was_replaced(
    start: Callable[..., Launcher], tmp_path: pathlib.Path, nice: int, end: str, replaced: int
) -> None:
    launcher = start()
    pid = launcher.launch(launcher.task(1, gated(tmp_path / "gate", end), nice=nice))
    launcher.wait_for_output(1, "up")
    job_pid = launcher.started(1)["job_pid"]
    for _ in range(replaced):
        replace(launcher)

    kill(pid)
    wait_until(lambda: not process_is_there(pid), "the supervisor to die")
    launcher.order(1, {"do": "retime", "walltime_s": 5000})
    assert process_is_there(job_pid)
    (tmp_path / "gate").touch()
    record = launcher.exit(1)

    expected = ("signalled", 9) if "kill" in end else ("exited", 42)
    assert (record["kind"], record.get("signal", record.get("exit_code"))) == expected


@tells_exit_status
@pytest.mark.parametrize("order", ["launcher first", "supervisor first"])
def test_c8_launcher_and_supervisor_killed_the_job_runs_on_and_keeps_its_exit_code(
    start: Callable[..., Launcher], tmp_path: pathlib.Path, nice: int, order: str
) -> None:
    launcher = start()
    pid = launcher.launch(launcher.task(1, gated(tmp_path / "gate", "exit 43"), nice=nice))
    launcher.wait_for_output(1, "up")
    job_pid = launcher.started(1)["job_pid"]

    for victim in (launcher.process.pid, pid)[:: 1 if order == "launcher first" else -1]:
        kill(victim)
    launcher.process.wait()
    launcher.channel.close()
    launcher.start()
    launcher.ask({"launch": "1.1"})
    launcher.hear("launched", "1.1")  # so it has looked into the spool
    assert process_is_there(job_pid)
    (tmp_path / "gate").touch()
    record = launcher.exit(1)

    assert (record["kind"], record["exit_code"]) == ("exited", 43)


@tells_exit_status
def test_c8_limits_and_orders_hold_without_launcher_and_supervisor(
    start: Callable[..., Launcher],
) -> None:
    launcher = start()
    stubborn = "trap '' TERM; echo up; while :; do sleep 0.1; done"
    pid = launcher.launch(launcher.task(1, [BASH, "-c", stubborn], walltime_s=3, grace_s=0.3))
    launcher.wait_for_output(1, "up")
    launcher.started(1)
    kill(launcher.process.pid)
    kill(pid)
    launcher.process.wait()
    launcher.channel.close()

    launcher.start()
    record = launcher.exit(1)

    assert (record["stop_reason"], record["signal"]) == ("walltime", signal.SIGKILL)


@pytest.mark.parametrize("marked", ["session", "environment"])
def test_c8_on_an_old_kernel_the_job_is_killed_and_its_outcome_lost(
    start: Callable[..., Launcher], tmp_path: pathlib.Path, marked: str
) -> None:
    launcher = start(old_kernel=True)
    argv = gated(tmp_path / "gate", "exit 0")
    task = launcher.task(1, argv, leftover_grace_s=60, grace_s=60)
    if marked == "environment":
        # A daemon: neither the job's session nor a descendant of its process.
        argv[2] = f"setsid -f sh -c ': {tmp_path}/gate; sleep 994 & wait'; {argv[2]}"
    else:
        del task["env"]["PBS_NODEFILE"]
    pid = launcher.launch(task)
    launcher.wait_for_output(1, "up")
    launcher.started(1)  # names the session; before that only the environment tells
    found = [
        int(path.parent.name)
        for path in pathlib.Path("/proc").glob("[0-9]*/cmdline")
        if path.exists() and str(tmp_path / "gate").encode() in path.read_bytes()
    ]
    assert found

    kill(launcher.process.pid)
    kill(pid)
    launcher.process.wait()
    launcher.channel.close()
    launcher.start()
    launcher.hear("ended", "1.1")
    record = launcher.exit_record(1)

    assert record["kind"] == "supervisor_lost"
    assert [pid for pid in found if process_is_there(pid)] == []


def test_idle_supervisors_leave_with_the_launcher(start: Callable[..., Launcher]) -> None:
    launcher = start()
    pid = launcher.launch(launcher.task(1, ["true"]))
    launcher.exit(1)
    assert process_is_there(pid)

    kill(launcher.process.pid)

    wait_until(lambda: not process_is_there(pid), "the idle supervisor to leave")
    launcher.process.wait()
    launcher.channel.close()
    launcher.start()


def test_a_killed_idle_supervisor_is_replaced(start: Callable[..., Launcher]) -> None:
    launcher = start()
    pid = launcher.launch(launcher.task(1, ["true"]))
    launcher.exit(1)

    os.kill(pid, signal.SIGSTOP)  # so that it dies with an attempt that it has not looked at
    launcher.launch(launcher.task(2, [BASH, "-c", "exit 2"]))
    kill(pid)

    assert launcher.exit(2)["exit_code"] == 2
    assert launcher.started(2)["pid"] != pid


def test_an_unreadable_task_ends_with_a_message(start: Callable[..., Launcher]) -> None:
    launcher = start()
    launcher.directory(7).mkdir()
    (launcher.directory(7) / "task.json").write_text('{"job": 7, ')

    launcher.ask({"launch": "7.1"})
    record = launcher.exit(7)

    assert (record["job"], record["attempt"], record["kind"]) == (7, 1, "launch_failed")
    assert "cannot be read" in record["message"]
    assert launcher.run(launcher.task(8, ["true"]))["exit_code"] == 0


def test_a_supervisor_that_dies_during_stage_in_fails_the_launch_and_leaves_nothing(
    start: Callable[..., Launcher], tmp_path: pathlib.Path
) -> None:
    """What copies is killed at once: nobody waits for it, and the program must not follow."""
    launcher = start()
    script = f"setsid sleep 993 & echo $$ $! > {tmp_path}/pids; sleep 992"
    task = launcher.task(
        1,
        ["touch", f"{tmp_path}/ran"],
        stage_in=[[BASH, "-c", script]],
        stage_timeout_s=600.0,
    )
    pid = launcher.launch(task)
    there = tmp_path / "pids"
    wait_until(lambda: there.exists() and len(there.read_text().split()) == 2, "the stage-in")
    started = launcher.started(1)

    kill(pid)
    record = launcher.exit(1)

    assert (record["kind"], record["failure"]["errno"]) == ("launch_failed", errno.EINTR)
    assert record["wall_s"] > 0
    copying = [int(each) for each in there.read_text().split()]
    assert not any(process_is_there(each) for each in [started["job_pid"], *copying])
    assert not (tmp_path / "ran").exists()


def test_a_stop_ends_stage_out_with_all_that_it_has_started(
    start: Callable[..., Launcher], tmp_path: pathlib.Path
) -> None:
    launcher = start()
    script = f"setsid sleep 991 & echo $$ $! > {tmp_path}/pids; sleep 990"
    task = launcher.task(
        1, ["true"], stage_out=[[BASH, "-c", script, "from", "to"]], stage_timeout_s=600.0
    )
    launcher.launch(task)
    there = tmp_path / "pids"
    wait_until(lambda: there.exists() and len(there.read_text().split()) == 2, "the stage-out")

    launcher.order(1, {"do": "stop", "reason": "delete", "grace_s": 0.1})
    record = launcher.exit(1)

    assert (record["kind"], record["exit_code"]) == ("exited", 0), "the job had ended before"
    assert "stage-out failed: it was stopped" in record["undelivered"]
    assert "stage-out failed: it was stopped" in launcher.output(1, "e")
    assert not any(process_is_there(int(each)) for each in there.read_text().split())

"""How real jobs are ended: limits, orders, leftovers."""

import os
import pathlib
import signal
import sys
from collections.abc import Iterator

import pytest

from tests.support import records
from tests.support.launching import Launcher, Way, process_is_there, wait_until

BASH = "/bin/bash"

#: Ignores TERM and says so; $$ is the process that gsched started.
STUBBORN = "trap '' TERM; echo pid $$; while :; do sleep 0.1; done"

#: A daemon as Unix textbooks make them: forked twice, its own session, no open files, no marks.
DAEMON = f"""
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, getattr(signal, sys.argv[1]))
        with open(sys.argv[2] + ".tmp", "w") as file:
            file.write(str(os.getpid()))
        os.rename(sys.argv[2] + ".tmp", sys.argv[2])
        os.execve({sys.executable!r}, ["x", "-ISc", "import time; time.sleep(1000)"], {{}})
    os._exit(0)
os.wait()
while not os.path.exists(sys.argv[2]):
    time.sleep(0.01)
exec(sys.argv[3])
"""


@pytest.fixture
def launcher(tmp_path: pathlib.Path, way: Way) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path / "state", **vars(way))
    yield launcher
    launcher.close()


@pytest.fixture(params=[0, 1], ids=["spawned", "forked"])
def nice(request: pytest.FixtureRequest) -> int:
    """A job that needs another niceness is forked, any other one is spawned."""
    return int(request.param)


def daemonizing(pid_file: pathlib.Path, disposition: str, then: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", DAEMON, disposition, str(pid_file), then]


def test_walltime_ends_the_job_and_says_so(launcher: Launcher, nice: int) -> None:
    record = launcher.run(launcher.task(1, ["sleep", "1000"], walltime_s=0.4, nice=nice))

    assert (record["stop_reason"], record["kind"]) == ("walltime", "signalled")
    assert record["signal"] == signal.SIGTERM
    assert record["wall_s"] >= 0.4


def test_d4_a_job_that_traps_term_is_killed_after_the_grace(launcher: Launcher, nice: int) -> None:
    record = launcher.run(
        launcher.task(1, [BASH, "-c", STUBBORN], walltime_s=0.3, grace_s=0.5, nice=nice)
    )

    assert (record["kind"], record["signal"]) == ("signalled", signal.SIGKILL)
    assert record["stop_reason"] == "walltime"
    assert record["wall_s"] >= 0.8


def test_a_job_that_ends_within_its_grace_keeps_its_exit_code(launcher: Launcher) -> None:
    clean_up = "trap 'echo saved; exit 9' TERM; echo up; while :; do sleep 0.05; done"
    launcher.launch(launcher.task(1, [BASH, "-c", clean_up], grace_s=60))
    launcher.wait_for_output(1, "up")

    launcher.order(1, {"do": "stop", "reason": "delete", "grace_s": 60})
    record = launcher.exit(1)

    assert (record["kind"], record["exit_code"]) == ("exited", 9)
    assert record["stop_reason"] == "delete"
    assert "saved" in launcher.output(1)


def test_d3_a_daemonised_grandchild_is_killed_after_the_job_exits(
    launcher: Launcher, nice: int, tmp_path: pathlib.Path
) -> None:
    argv = daemonizing(tmp_path / "pid", "SIG_IGN", "os._exit(4)")

    record = launcher.run(launcher.task(1, argv, nice=nice))

    daemon = int((tmp_path / "pid").read_text())
    assert record["exit_code"] == 4
    assert "stop_reason" not in record
    assert not process_is_there(daemon)
    assert record["wall_s"] >= 0.3  # it ignored TERM, so it had the whole grace for leftovers


def test_d3_a_leftover_that_obeys_term_does_not_wait_for_the_grace(
    launcher: Launcher, tmp_path: pathlib.Path
) -> None:
    argv = daemonizing(tmp_path / "pid", "SIG_DFL", "os._exit(0)")

    record = launcher.run(launcher.task(1, argv, leftover_grace_s=500, grace_s=500))

    assert record["kind"] == "exited"
    assert not process_is_there(int((tmp_path / "pid").read_text()))


def test_d7_walltime_reaches_a_daemonised_grandchild(
    launcher: Launcher, tmp_path: pathlib.Path
) -> None:
    argv = daemonizing(tmp_path / "pid", "SIG_IGN", "time.sleep(1000)")

    record = launcher.run(launcher.task(1, argv, walltime_s=1.0, grace_s=0.3))

    assert record["stop_reason"] == "walltime"
    assert not process_is_there(int((tmp_path / "pid").read_text()))


def test_leftovers_of_a_stopped_job_keep_the_whole_grace(launcher: Launcher) -> None:
    """The shell dies of TERM at once; its child is still saving."""
    save = "trap 'sleep 1; echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    argv = [BASH, "-c", f"{BASH} -c {save!r} & wait; wait"]
    launcher.launch(launcher.task(1, argv, leftover_grace_s=0.01, grace_s=60))
    launcher.wait_for_output(1, "up")

    launcher.order(1, {"do": "stop", "reason": "rerun", "grace_s": 60})
    record = launcher.exit(1)

    assert "saved" in launcher.output(1)
    assert record["stop_reason"] == "rerun"


def test_d16_a_stopped_job_is_asked_and_can_answer(launcher: Launcher, nice: int) -> None:
    clean_up = "trap 'echo saved; exit 9' TERM; echo up; kill -STOP $$; sleep 1000"
    launcher.launch(launcher.task(1, [BASH, "-c", clean_up], grace_s=60, nice=nice))
    launcher.wait_for_output(1, "up")
    job_pid = launcher.started(1)["job_pid"]
    stat = pathlib.Path(f"/proc/{job_pid}/stat")
    wait_until(lambda: ") T " in stat.read_text(), "the job to be stopped")

    launcher.order(1, {"do": "stop", "reason": "delete", "grace_s": 60})

    assert launcher.exit(1)["exit_code"] == 9


def test_d16_a_stopped_job_that_ignores_term_is_killed(launcher: Launcher) -> None:
    record = launcher.run(
        launcher.task(
            1,
            [BASH, "-c", "trap '' TERM; while :; do kill -STOP $$; done"],
            walltime_s=0.3,
            grace_s=0.2,
        )
    )

    assert (record["signal"], record["stop_reason"]) == (signal.SIGKILL, "walltime")


def test_a_fork_storm_is_killed_to_the_last_process(launcher: Launcher) -> None:
    storm = "trap '' TERM; while :; do (trap '' TERM; exec sleep 1000) & sleep 0.02; done"
    launcher.launch(launcher.task(1, [BASH, "-c", f"{storm} & {storm}"]))
    job_pid = launcher.started(1)["job_pid"]
    children = pathlib.Path(f"/proc/{job_pid}/task/{job_pid}/children")
    wait_until(lambda: len(children.read_text().split()) > 5, "some children")
    seen = children.read_text().split()

    launcher.order(1, {"do": "stop", "reason": "delete", "grace_s": 0})
    launcher.exit(1)

    assert [pid for pid in seen if process_is_there(int(pid))] == []


def test_a_second_stop_shortens_the_grace_but_keeps_the_first_reason(launcher: Launcher) -> None:
    launcher.launch(launcher.task(1, [BASH, "-c", STUBBORN]))
    launcher.wait_for_output(1, "pid")

    launcher.order(1, {"do": "stop", "reason": "delete", "grace_s": 5000})
    launcher.order(1, {"do": "stop", "reason": "node_stop", "grace_s": 0.1})
    record = launcher.exit(1)

    assert (record["signal"], record["stop_reason"]) == (signal.SIGKILL, "delete")


def test_a_stop_written_before_the_start_means_that_nothing_runs(launcher: Launcher) -> None:
    launcher.accept(launcher.task(1, [BASH, "-c", "echo ran"]))
    order = '{"do": "stop", "reason": "delete", "grace_s": 5}\n'
    records.add_order(launcher.directory(1), order)

    launcher.ask({"launch": "1.1"})
    record = launcher.exit(1)

    assert (record["kind"], record["stop_reason"]) == ("launch_failed", "delete")
    assert "stopped before it started" in record["message"]
    assert list(launcher.out.iterdir()) == []


def test_retime_prolongs_and_shortens(launcher: Launcher) -> None:
    launcher.launch(launcher.task(1, ["sleep", "1000"], walltime_s=1.0))
    launcher.launch(launcher.task(2, ["sleep", "1.6"], walltime_s=1.0))
    launcher.launch(launcher.task(3, ["sleep", "1000"], walltime_s=5000))
    for job in (1, 2, 3):
        launcher.started(job)

    launcher.order(2, {"do": "retime", "walltime_s": None})
    launcher.order(3, {"do": "retime", "walltime_s": 0.5})

    assert launcher.exit(1)["stop_reason"] == "walltime"
    assert launcher.exit(3)["stop_reason"] == "walltime"
    second = launcher.exit(2)
    assert (second["exit_code"], second.get("stop_reason")) == (0, None)


def test_a_signal_reaches_every_process_of_the_job(launcher: Launcher) -> None:
    child = "trap 'echo child; exit' USR2; echo up; while :; do sleep 0.05; done"
    parent = f"trap 'echo parent' USR2; {BASH} -c {child!r} & wait; wait; exit 6"
    launcher.launch(launcher.task(1, [BASH, "-c", parent]))
    launcher.wait_for_output(1, "up")

    launcher.order(1, {"do": "signal", "signal": int(signal.SIGUSR2)})
    record = launcher.exit(1)

    assert {"child", "parent"} <= set(launcher.output(1).split())
    assert record["exit_code"] == 6
    assert "stop_reason" not in record


def test_orders_that_make_no_sense_are_logged_and_left_out(launcher: Launcher) -> None:
    launcher.launch(launcher.task(1, [BASH, "-c", "echo up; sleep 1000"]))
    launcher.wait_for_output(1, "up")
    nonsense = '{"do": "dance"}\n{"do": \n{"do": "signal", "signal": 4000}\n'
    records.add_order(launcher.directory(1), nonsense)

    launcher.order(1, {"do": "stop", "reason": "fenced", "grace_s": 1})
    record = launcher.exit(1)

    assert record["stop_reason"] == "fenced"
    assert launcher.log().count("not an order") == 3


def test_term_to_the_supervisor_ends_the_job_with_a_true_record(launcher: Launcher) -> None:
    """A machine that goes down sends TERM to everything."""
    pid = launcher.launch(launcher.task(1, ["sleep", "1000"]))
    launcher.started(1)

    os.kill(pid, signal.SIGTERM)
    record = launcher.exit(1)

    assert (record["kind"], record["message"]) == ("node_lost", "the node was shut down")
    assert "stop_reason" not in record


@pytest.mark.parametrize(
    ("options", "trapped"),
    [
        ({"checkpoint_signal": signal.SIGUSR1}, "USR1"),
        ({"early_signal": {"signal": signal.SIGUSR1, "before_s": 30, "script_only": True}}, "USR1"),
        ({"checkpoint_signal": signal.SIGUSR1}, "TERM"),
    ],
)
def test_a_shutdown_gives_a_job_its_own_signal_where_it_handles_it_else_term(
    launcher: Launcher, options: dict[str, object], trapped: str
) -> None:
    save = f"trap 'echo saved; exit 0' {trapped}; echo up; while :; do sleep 0.05; done"
    launcher.launch(launcher.task(1, [BASH, "-c", save], grace_s=30, **options))
    launcher.wait_for_output(1, "up")

    launcher.order(1, {"do": "stop", "reason": "shutdown", "grace_s": 30})
    record = launcher.exit(1)

    assert "saved" in launcher.output(1)
    assert record["kind"] == "node_lost"
    assert "exit_code" not in record

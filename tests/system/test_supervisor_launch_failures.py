"""Jobs that cannot start: whose fault it is, and what the message tells to do."""

import os
import pathlib
import resource
import signal
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.launching import Launcher, Way

BASH = "/bin/bash"


@pytest.fixture
def launcher(tmp_path: pathlib.Path, way: Way) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path / "state", **vars(way))
    yield launcher
    launcher.close()


@pytest.fixture(params=[0, 1], ids=["spawned", "forked"])
def nice(request: pytest.FixtureRequest) -> int:
    """A job that needs another niceness is forked, any other one is spawned."""
    return int(request.param)


def failure(launcher: Launcher, **changes: Any) -> str:
    """Run a job that must fail to launch by the user's fault; return the message."""
    argv = changes.pop("argv", [BASH, "-c", "echo ran"])
    task = launcher.task(1, argv, **changes)
    record = launcher.run(task)

    assert (record["kind"], record["failure"]["subject"]) == ("launch_failed", "job"), record
    assert "exit_code" not in record
    assert "Traceback" not in launcher.log()
    return str(record["message"])


@pytest.mark.parametrize("what", ["cwd", "stdout_path", "stderr_path"])
def test_a_start_waits_for_a_directory_that_is_made_meanwhile(
    launcher: Launcher, nice: int, tmp_path: pathlib.Path, what: str
) -> None:
    late = tmp_path / "late"
    path = str(late) if what == "cwd" else f"{late}/y.o1"
    task = launcher.task(1, [BASH, "-c", "echo ran"], nice=nice, directory_wait_s=30.0)
    launcher.launch(task | {what: path})
    time.sleep(0.3)
    late.mkdir()

    assert launcher.exit(1)["exit_code"] == 0


def test_a_start_that_waits_for_a_directory_can_be_stopped(launcher: Launcher, nice: int) -> None:
    task = launcher.task(1, ["true"], cwd="/no/such/place", nice=nice, directory_wait_s=600.0)
    pid = launcher.launch(task)
    time.sleep(0.3)
    launcher.order(1, {"do": "stop", "reason": "delete", "grace_s": 5})
    os.kill(pid, signal.SIGUSR1)  # as gnode does

    record = launcher.exit(1)

    assert (record["kind"], record["stop_reason"]) == ("launch_failed", "delete")
    assert record["failure"] == {"stage": "order", "subject": "job", "errno": 0}


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"cwd": "/no/such/place"}, "/no/such/place"),
        ({"stdout_path": "/no/such/place/y.o1"}, "/no/such/place"),
        ({"stdout_path": "/no/such/place/"}, "/no/such/place"),
        ({"stdout_path": "/etc/passwd/x"}, None),
        ({"argv": ["/no/such/program"]}, None),
    ],
)
def test_the_evidence_names_the_directory_that_does_not_exist(
    launcher: Launcher, nice: int, changes: dict[str, Any], missing: str | None
) -> None:
    record = launcher.run(launcher.task(1, ["true"], nice=nice) | changes)

    assert record["failure"].get("missing") == missing


def test_the_evidence_names_the_directory_that_a_link_leads_to(
    launcher: Launcher, nice: int, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "link").symlink_to("/no/such/place/file")

    record = launcher.run(launcher.task(1, ["true"], nice=nice, stdout_path=f"{tmp_path}/link"))

    assert record["failure"]["missing"] == "/no/such/place"


def test_c16_missing_working_directory(launcher: Launcher, nice: int) -> None:
    message = failure(launcher, cwd="/no/such/place", nice=nice)

    assert "working directory /no/such/place: No such file" in message
    assert "create it" in message


def test_missing_output_directory(launcher: Launcher, nice: int) -> None:
    message = failure(launcher, stdout_path="/no/such/place/y.o12", nice=nice)

    assert message == (
        "cannot write /no/such/place/y.o12: there is no directory /no/such/place on this node: "
        "create the directory or choose -o"
    )


def test_missing_output_directory_with_a_slash(launcher: Launcher, nice: int) -> None:
    message = failure(launcher, stdout_path="/no/such/place/", nice=nice)

    assert message.startswith("cannot write /no/such/place/job.o1: there is no directory")


def test_missing_error_directory_leaves_no_descriptor_behind(launcher: Launcher) -> None:
    pids = set()
    for job in range(1, 30):
        task = launcher.task(job, ["true"], stderr_path="/no/such/place/y.e12")
        pids.add(launcher.launch(task))
        assert "/no/such/place/y.e12" in launcher.exit(job)["message"]

    assert [len(os.listdir(f"/proc/{pid}/fd")) for pid in pids] == [4]


def test_output_that_is_a_full_path_through_a_file(launcher: Launcher, nice: int) -> None:
    message = failure(launcher, stdout_path="/etc/passwd/x", nice=nice)

    assert message.startswith("cannot write /etc/passwd/x: ")


def test_t26_a_pipe_that_nobody_reads_does_not_hang(
    launcher: Launcher, nice: int, tmp_path: pathlib.Path
) -> None:
    os.mkfifo(tmp_path / "pipe")

    message = failure(launcher, stdout_path=str(tmp_path / "pipe"), nice=nice)

    assert message == f"cannot write {tmp_path}/pipe: it is a pipe that nobody reads: choose -o"


def test_t26_a_pipe_with_a_reader_is_refused_too(
    launcher: Launcher, nice: int, tmp_path: pathlib.Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)

    message = failure(launcher, stdout_path=str(tmp_path / "pipe"), nice=nice)

    os.close(reader)
    assert "neither a file nor a character device" in message


def test_t26_a_socket_is_refused(launcher: Launcher, nice: int, tmp_path: pathlib.Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))

        message = failure(launcher, stdout_path=str(tmp_path / "socket"), nice=nice)

    assert message.startswith(f"cannot write {tmp_path}/socket: ")


def test_output_follows_the_owner_s_own_link(launcher: Launcher, tmp_path: pathlib.Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")

    launcher.run(launcher.task(1, ["echo", "x"], stdout_path=str(tmp_path / "link")))

    assert (tmp_path / "target").read_text() == "x\n"


def test_c16_program_that_does_not_exist(launcher: Launcher, nice: int) -> None:
    assert "cannot run /no/such: No such file" in failure(launcher, argv=["/no/such"], nice=nice)


def test_c16_program_that_is_not_on_the_path(launcher: Launcher, nice: int) -> None:
    message = failure(launcher, argv=["no-such-program"], nice=nice)

    assert message.startswith("cannot run no-such-program: No such file or directory")


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [
        ("echo hi\n", 0o700, "it is no program"),
        ("#!/no/such/shell -x\n", 0o700, "line 1 names /no/such/shell, which does not exist"),
        ("#!/bin/bash\r\necho\r\n", 0o700, "Windows line end"),
        ("#!/bin/bash\n", 0o600, "chmod +x"),
    ],
)
def test_c16_file_that_is_no_program(
    launcher: Launcher, nice: int, tmp_path: pathlib.Path, content: str, mode: int, words: str
) -> None:
    script = tmp_path / "script"
    script.write_bytes(content.encode())
    script.chmod(mode)

    message = failure(launcher, argv=[str(script)], nice=nice)

    assert message.startswith(f"cannot run {script}: ")
    assert words in message


def test_too_large_an_environment(launcher: Launcher, nice: int) -> None:
    message = failure(launcher, env={"BIG": "x" * 4_000_000}, nice=nice)

    assert "arguments or environment are too large" in message


def test_c15_a_failing_fork_is_not_the_user_s_fault(launcher: Launcher) -> None:
    """Each supervisor may hold so few descriptors that it cannot prepare a job."""
    launcher.launch(launcher.task(1, ["sleep", "1000"]))
    launcher.started(1)
    resource.prlimit(launcher.process.pid, resource.RLIMIT_NOFILE, (6, 64))

    launcher.accept(launcher.task(2, ["true"]))
    launcher.ask({"launch": "2.1"})
    failed = launcher.hear("failed", "2.1")
    resource.prlimit(launcher.process.pid, resource.RLIMIT_NOFILE, (64, 64))

    assert "Too many open files" in failed["message"]
    launcher.ask({"launch": "2.1"})
    assert launcher.exit(2)["exit_code"] == 0


def test_a_job_of_somebody_else_is_refused_without_root(launcher: Launcher) -> None:
    record = launcher.run(launcher.task(1, ["true"], uid=os.getuid() + 4000))

    assert (record["kind"], record["failure"]["subject"]) == ("launch_failed", "user")
    assert f"belongs to uid {os.getuid() + 4000}" in record["message"]

"""Commands wait for a head that is restarted, and say so."""

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gsched.errors import HeadUnreachableError
from gsched.head_address import HeadAddress
from gsched.transport import Transport
from tests.support.commands import command_environment, run_command
from tests.support.fake_api import FakeApi, serve


def test_a_submission_waits_for_the_head_and_is_made_once(tmp_path: Path) -> None:
    fake = FakeApi(tmp_path)
    with started_gsub(tmp_path) as gsub:
        assert gsub.stderr is not None
        assert gsub.stderr.readline() == "gsub: the head does not answer; waiting up to 60 s\n"
        with serve(fake.application(), tmp_path / "s"):
            _, rest = gsub.communicate(timeout=60)

    assert (gsub.returncode, rest) == (0, "")
    assert len(fake.submitted) == 1


@pytest.mark.parametrize("has_head", [False, True])
def test_an_interrupted_submission_says_whether_the_job_may_be_there(
    tmp_path: Path, *, has_head: bool
) -> None:
    """The head has not been reached, or has the request and has not answered yet."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.settimeout(60)
    with listener, started_gsub(tmp_path) as gsub:
        if has_head:
            listener.listen()
            connection, _ = listener.accept()
            with connection:
                assert connection.recv(4)
                gsub.send_signal(signal.SIGINT)
                _, said = gsub.communicate(timeout=60)
            words = "interrupted before the head answered: the job may be submitted; see gstat"
        else:
            assert gsub.stderr is not None
            assert "waiting up to" in gsub.stderr.readline()
            gsub.send_signal(signal.SIGINT)
            _, said = gsub.communicate(timeout=60)
            words = "interrupted: no job was submitted"

    assert gsub.returncode == 130
    assert said == f"gsub: {words}\n"


@pytest.mark.parametrize(("error", "shown"), [("KeyboardInterrupt", False), ("ValueError", True)])
def test_an_interrupt_while_a_command_loads_shows_no_traceback(error: str, *, shown: bool) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", f"import gsched.cli; raise {error}"],
        env=command_environment(),
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )

    assert ran.returncode != 0
    assert ("Traceback" in ran.stderr) == shown


def started_gsub(directory: Path) -> "subprocess.Popen[str]":
    code = "from gsched.cli.commands.gsub import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, "--", "true"],
        env=command_environment(directory / "s", GSCHED_PATIENCE_S="60"),
        cwd=directory,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("name", ["gdel", "ghold", "gstat"])
def test_without_patience_a_command_gives_up_at_once(tmp_path: Path, name: str) -> None:
    ran = run_command(name, "1", head=tmp_path / "s", env={"GSCHED_PATIENCE_S": "0"})

    assert ran.status == 69
    assert ran.stderr.startswith(f"{name}: no head answers at {tmp_path}/s")
    assert "waiting" not in ran.stderr


def test_a_head_that_never_was_is_not_waited_for(tmp_path: Path) -> None:
    path = str(tmp_path / "nowhere" / "s")
    transport = Transport(HeadAddress(path, source="test", path=path), patience_s=1e9)

    with pytest.raises(HeadUnreachableError, match="no head answers"):
        transport.exchange("POST", "/v1/jobs")


@pytest.mark.parametrize("text", ["soon", "-1", "inf", "nan"])
def test_a_patience_that_is_no_number_is_refused(tmp_path: Path, text: str) -> None:
    ran = run_command("gdel", "1", head=tmp_path / "s", env={"GSCHED_PATIENCE_S": text})

    assert ran.status == 2
    assert f"$GSCHED_PATIENCE_S: invalid number of seconds '{text}'" in ran.stderr

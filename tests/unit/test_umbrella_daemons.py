"""A pid file proves nothing: who is running is looked at."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gsched.cli.local import daemons
from gsched.cli.local.daemons import Daemon, log_tail, read_pid, running_process, start, stop
from gsched.errors import CannotWriteError

SLEEPER = """
import signal
signal.signal(signal.SIGTERM, {on_term})
print("x", flush=True)
signal.pause()
"""


def daemon(directory: Path, module: str = "gschedd.main") -> Daemon:
    """Return a daemon whose files lie in ``directory``."""
    return Daemon(
        label="head",
        module=module,
        config=directory / "gsched.toml",
        pid_file=directory / "pid",
        log=directory / "log",
    )


@pytest.fixture
def sleepers() -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Return a list; what is put into it is killed at the end."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def sleeper(
    started: list["subprocess.Popen[bytes]"], *words: str, on_term: str = "signal.SIG_DFL"
) -> int:
    """Start a process that sleeps and has ``words`` on its command line; return its pid."""
    process = subprocess.Popen(
        [sys.executable, "-c", SLEEPER.format(on_term=on_term), *words], stdout=subprocess.PIPE
    )
    started.append(process)
    assert process.stdout is not None
    assert process.stdout.readline() == b"x\n"
    return process.pid


def test_a_daemon_is_recognised_by_program_and_configuration(
    tmp_path: Path, sleepers: list["subprocess.Popen[bytes]"]
) -> None:
    """Installed or as a module; with its own configuration only."""
    wanted = daemon(tmp_path)
    for words in (
        ("gschedd.main", "--config", str(wanted.config)),
        ("/usr/bin/gschedd", f"--config={wanted.config}"),
    ):
        pid = sleeper(sleepers, *words)
        wanted.pid_file.write_text(f"{pid}\n")
        process = running_process(wanted)
        assert process is not None
        assert process.pid == pid


def test_a_recycled_pid_is_not_the_daemon(
    tmp_path: Path, sleepers: list["subprocess.Popen[bytes]"]
) -> None:
    """Another program, or the daemon of another cluster."""
    wanted = daemon(tmp_path)
    for words in (
        ("vi", str(wanted.config)),
        ("gschedd.main", "--config", "/elsewhere/gsched.toml"),
        ("gnode.main", "--config", str(wanted.config)),
    ):
        wanted.pid_file.write_text(str(sleeper(sleepers, *words)))
        assert running_process(wanted) is None


def test_no_process_no_file_and_nonsense_mean_down(tmp_path: Path) -> None:
    """Each is what a crash can leave."""
    wanted = daemon(tmp_path)
    assert running_process(wanted) is None
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for content in (str(ended.pid), "", "x", "-1", "0", "1", "\xff"):
        wanted.pid_file.write_bytes(content.encode("latin-1"))
        assert running_process(wanted) is None
    wanted.pid_file.write_text("4711 rest\n")
    assert read_pid(wanted.pid_file) == 4711


def test_a_zombie_is_down(tmp_path: Path) -> None:
    """Where nobody reaps orphans, a killed daemon stays in the process table."""
    wanted = daemon(tmp_path)
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    try:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        wanted.pid_file.write_text(str(process.pid))
        assert psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE
        assert running_process(wanted) is None
        assert stop(psutil.Process(process.pid)) == "stopped"
    finally:
        process.wait()


def test_a_daemon_that_does_not_listen_is_killed(
    sleepers: list["subprocess.Popen[bytes]"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """TERM first, KILL after the wait; the report says which it was."""
    monkeypatch.setattr(daemons, "TERM_WAIT_S", 0.2)
    polite = psutil.Process(sleeper(sleepers))
    deaf = psutil.Process(sleeper(sleepers, on_term="signal.SIG_IGN"))

    assert stop(polite) == "stopped"
    assert stop(deaf) == "killed"


def test_a_started_daemon_is_detached_and_logs(tmp_path: Path) -> None:
    """Own session, nothing on stdin, both outputs appended to its log."""
    wanted = daemon(tmp_path, module="json.tool")  # any module that fails on --config
    wanted.log.write_text("earlier\n")
    started = start(wanted)
    started.process.wait()

    assert started.exit_status == 2
    lines = log_tail(wanted.log, lines=100)
    assert lines[0] == "earlier"
    assert len(lines) > 1
    assert log_tail(tmp_path / "none") == ()


def test_a_log_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """Not a traceback."""
    wanted = daemon(tmp_path / "missing")
    with pytest.raises(CannotWriteError, match="missing/log: cannot be written"):
        start(wanted)

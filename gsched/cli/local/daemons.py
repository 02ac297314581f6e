"""Start, recognise and stop the daemons of a throw-away cluster."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

import gsched
from gsched.clock import SystemClock
from gsched.config.environment import environment, full_environment
from gsched.errors import CannotWriteError, TryAgainError

LOG_LINES_SHOWN = 15
LOG_BYTES_READ = 64 * 1024
TERM_WAIT_S = 15.0  # a daemon closes its database in this time or is killed
KILL_WAIT_S = 5.0
STEP_S = 0.05  # between two looks at a process or the head


@dataclass(frozen=True, kw_only=True)
class Daemon:
    """One daemon of a cluster.

    Attributes:
        label: how people are told about it: ``head`` or ``node n1``.
        module: what is run, ``gschedd.main`` or ``gnode.main``.
        config, pid_file, log: its files.
    """

    label: str
    module: str
    config: Path
    pid_file: Path
    log: Path

    @property
    def program(self) -> str:
        """Return the name of the installed command, ``gschedd`` or ``gnode``."""
        return self.module.partition(".")[0]


@dataclass(frozen=True, kw_only=True)
class StartedDaemon:
    """A daemon that this process has started and may watch die.

    Attributes:
        log_offset: where its own lines begin in its log, bytes.
    """

    daemon: Daemon
    log_offset: int
    process: "subprocess.Popen[bytes]"

    @property
    def exit_status(self) -> int | None:
        """Return its exit status (minus the signal that killed it), None while it runs."""
        return self.process.poll()


def running_process(daemon: Daemon) -> psutil.Process | None:
    """Return the daemon's process, or None if it is down.

    The number in the pid file proves nothing: after a crash it may belong to another program. So
    the process must run our program with our configuration.
    """
    pid = read_pid(daemon.pid_file)
    if pid is None:
        return None
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE or not _is_daemon(process, daemon):
            return None
    except psutil.NoSuchProcess:
        return None
    except psutil.AccessDenied:
        return None  # another user's process: not ours
    return process


def read_pid(path: Path) -> int | None:
    """Return the number that a pid file holds, or None if there is none in it."""
    try:
        word = path.read_text(encoding="ascii").split()[:1]
    except (OSError, UnicodeDecodeError):
        return None
    return int(word[0]) if word and word[0].isdigit() and int(word[0]) > 1 else None


def _is_daemon(process: psutil.Process, daemon: Daemon) -> bool:
    words = process.cmdline()
    runs_it = any(word == daemon.module or Path(word).name == daemon.program for word in words)
    if not runs_it:
        return False
    candidates = {word.removeprefix("--config=") for word in words}
    if str(daemon.config) in candidates:
        return True
    base = Path(process.cwd())  # of another user's process this is denied
    return any(os.path.abspath(base / word) == str(daemon.config) for word in candidates)


def start(daemon: Daemon) -> StartedDaemon:
    """Start a daemon in a session of its own, its output appended to its log.

    Raises:
        CannotWriteError: the log cannot be opened.
        TryAgainError: the system has no room for another process.
    """
    try:
        log = os.open(daemon.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
    except OSError as error:
        raise CannotWriteError(
            f"{daemon.log}: cannot be written: {error.strerror}",
            hint="check the directory's owner and mode",
        ) from error
    log_offset = os.fstat(log).st_size
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", daemon.module, "--config", str(daemon.config)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=daemon.config.parent,
            env=_daemon_environment(),
            start_new_session=True,
        )
    except OSError as error:
        raise TryAgainError(f"{daemon.label}: cannot be started: {error.strerror}") from error
    finally:
        os.close(log)
    return StartedDaemon(daemon=daemon, log_offset=log_offset, process=process)


def _daemon_environment() -> dict[str, str]:
    """Return our environment, with this very gsched first on the daemon's module path."""
    source = str(Path(gsched.__file__).resolve().parent.parent)
    known = environment("PYTHONPATH")
    path = source if not known else f"{source}{os.pathsep}{known}"
    return {**full_environment(), "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def stop(process: psutil.Process) -> str:
    """End a process: TERM, then KILL if it does not go. Return how it went, in words.

    psutil binds a process to its start time, so a recycled number is never hit.
    """
    try:
        process.terminate()
        if is_gone(process, TERM_WAIT_S):
            return "stopped"
        process.kill()
        return "killed" if is_gone(process, KILL_WAIT_S) else "does not die"
    except psutil.NoSuchProcess:
        return "stopped"


def launcher_process(state_dir: Path) -> psutil.Process | None:
    """Return the process from which a gnode starts its supervisors, None if there is none.

    It is known by ``launcher.json``: its number and, in clock ticks since boot, its start.
    """
    try:
        record = json.loads((state_dir / "launcher.json").read_bytes())
        pid, start_ticks = int(record["pid"]), int(record["start_ticks"])
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        process = psutil.Process(pid)
    except (OSError, ValueError, KeyError, TypeError, psutil.NoSuchProcess):
        return None
    # The name, in parentheses, may hold blanks; of what follows it, the start is the 20th.
    return process if int(stat.rpartition(")")[2].split()[19]) == start_ticks else None


def is_gone(process: psutil.Process, timeout_s: float) -> bool:
    """Return whether the process ended within the time.

    A zombie has ended: where nobody reaps orphans (many containers) it stays for ever.
    """
    deadline_s = SystemClock().monotonic_s() + timeout_s
    while SystemClock().monotonic_s() < deadline_s:
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                return True
            process.wait(STEP_S)
        except psutil.TimeoutExpired:
            continue
        except psutil.NoSuchProcess:
            return True
        return True
    return False


def pause(seconds: float = STEP_S) -> None:
    """Wait between two looks at something that tells us nothing when it changes."""
    threading.Event().wait(seconds)


def log_tail(path: Path, *, lines: int = LOG_LINES_SHOWN, first_byte: int = 0) -> Sequence[str]:
    """Return the last lines of a log from ``first_byte`` on, none if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(first_byte, file.tell() - LOG_BYTES_READ))
            return file.read().decode("utf-8", "replace").splitlines()[-lines:]
    except OSError:
        return ()

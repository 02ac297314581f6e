"""Run a command as users do: in a pipe, or at a terminal with answers typed in."""

import os
import pty
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.forks import run

ROOT = Path(__file__).resolve().parents[2]
NOWHERE = Path(__file__).with_name("nowhere.toml")
TIMEOUT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What a command said and returned."""

    status: int
    stdout: str
    stderr: str


def command_environment(head: Path | str = "", **more: str) -> dict[str, str]:
    """Return the environment of a command that talks to ``head``.

    The machine's own installation is nobody's business here: its configuration is not read.
    """
    own = {"PYTHONPATH": str(ROOT), "GSCHED_CONFIG": str(NOWHERE), "GSCHED_PATIENCE_S": "1"}
    environment = {**os.environ, **own, **more}
    environment.pop("GSCHED_HEAD", None)
    if head:
        environment["GSCHED_HEAD"] = str(head)
    return environment


def run_command(
    name: str,
    *arguments: str,
    head: Path | str = "",
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    typed: str = "",
) -> Ran:
    """Run ``gsched.cli.NAME`` in a pipe; it reads ``typed`` from another one."""
    done = run(
        [sys.executable, "-m", f"gsched.cli.commands.{name}", *arguments],
        env={**command_environment(head), **(env or {})},
        cwd=cwd,
        timeout=TIMEOUT_S,
        typed=typed,
    )
    return Ran(status=done.returncode, stdout=done.stdout, stderr=done.stderr)


def run_at_terminal(
    name: str, *arguments: str, typed: str, head: Path | str = "", width: int = 100
) -> Ran:
    """Run ``gsched.cli.NAME`` with a terminal as stdin, stdout and stderr, all shown in stdout.

    Args:
        width: of the terminal, in characters.
    """
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", f"gsched.cli.commands.{name}", *arguments],
            env=command_environment(head, TERM="xterm", COLUMNS=str(width)),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        os.write(ours, typed.encode())
        shown = b""
        while True:
            try:
                data = os.read(ours, 65536)
            except OSError:  # EIO: the other side is closed
                break
            if not data:
                break
            shown += data
        status = process.wait(TIMEOUT_S)
    finally:
        os.close(ours)
    return Ran(status=status, stdout=shown.decode().replace("\r\n", "\n"), stderr="")

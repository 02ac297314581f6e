"""Real shells at a terminal of their own, typed at as a person does."""

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

import pytest

from tests.support.commands import ROOT
from tests.support.processes import attempts

TIMEOUT_S = 40.0
TAB, ALL_MATCHES, LINE_START = "\t", "\x1b*", "\x01"  # ALL_MATCHES: bash's insert-completions
_ESCAPES = re.compile(rb"\x1b(\[[0-9;?]*[a-zA-Z]|\][^\a]*\a|[=>()][A-Z0-9]?)")
_STARTS: Final = MappingProxyType(
    {
        "bash": ["bash", "--norc", "--noprofile", "-i"],
        "zsh": ["zsh", "-f", "-i"],
        "fish": ["fish", "--no-config", "-i"],
    }
)
_LOADS: Final = MappingProxyType(
    {
        "bash": "source <(gsched completion bash)",
        "zsh": "bindkey -e; source <(gsched completion zsh)",
        "fish": "gsched completion fish | source",
    }
)


def make_commands(directory: Path, *names: str) -> Path:
    """Write scripts that run this checkout's commands into a new folder; return that."""
    directory.mkdir()
    for name in names:
        module = "gschedd.sim.cli" if name == "gsim" else f"gsched.cli.commands.{name}"
        path = directory / name
        path.write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
        path.chmod(0o755)
    return directory


class Shell:
    """A shell at a terminal, with gsched's completion loaded.

    Attributes:
        seen: all that stood on the terminal so far, without escape sequences.
    """

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._raw = b""

    @property
    def seen(self) -> str:
        return _ESCAPES.sub(b"", self._raw).decode(errors="replace").replace("\r", "")

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def read_until(self, pattern: str) -> re.Match[str]:
        """Return the first match of ``pattern`` in what is on the terminal."""
        for _ in attempts(TIMEOUT_S):
            found = re.search(pattern, self.seen)
            if found:
                return found
            if select.select([self._terminal], [], [], 0.05)[0]:
                self._raw += os.read(self._terminal, 65536)
        raise AssertionError(f"no {pattern!r} on the terminal:\n{self.seen}")

    def line_after(self, typed: str) -> str:
        """Return what the command line is after keys were typed; it is printed, never run."""
        self._raw = b""
        self.type(typed)
        # As output it has no quotation marks: what is typed is not mistaken for it.
        self.type(f'{LINE_START}echo "LI""NE=" \x05 "=EN""D"\r')
        return self.read_until(r"LINE= (.*?) =END").group(1).strip()


@contextmanager
def shell_with_completion(name: str, directory: Path, *, head: str = "") -> Iterator[Shell]:
    """Start a shell, load the completion as the manual says, and hand it over.

    Skips the test where there is no such shell.
    """
    if shutil.which(name) is None:
        pytest.skip(f"there is no {name} here")
    names = ("gsub", "gstat", "gdel", "gmgr", "gnodes", "gsched", "gsim")
    commands = make_commands(directory / "bin", *names)
    environment = {
        "PATH": f"{commands}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HOME": str(directory),
        "TERM": "xterm",
        "LC_ALL": "C.UTF-8",
        "GSCHED_HEAD": head or str(directory / "no.sock"),
        "PS1": "> ",
        **{key: value for key, value in os.environ.items() if key.startswith("GSCHED_TEST")},
    }
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        ["setsid", "--ctty", *_STARTS[name]],  # a terminal of its own, for Ctrl-C and job control
        env=environment,
        cwd=directory,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shell = Shell(ours)
    try:
        shell.type(f'{_LOADS[name]}; echo "LOA""DED"\r')
        shell.read_until("LOADED")
        yield shell
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(TIMEOUT_S)
        os.close(ours)

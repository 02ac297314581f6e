"""Run a command in this process: a hundredth of the time of a new interpreter.

For tables of options, against `tests.support.fake_api`. What depends on a terminal, on signals or
on the end of the process is tested with `tests.support.commands`.
"""

import contextlib
import importlib
import io
from pathlib import Path

import click

from gsched.cli.dialect import GSCHED, Dialect, speak
from gsched.cli.pbs.personality import PbsDialect
from gsched.cli.pbs.shim import COMMANDS, command_of
from gsched.cli.running import status_of
from tests.support.commands import Ran


def run_here(name: str, *arguments: str, head: Path | str, personality: str = "torque") -> Ran:
    """Run a g-command, or a q-command with a personality, and return what it said."""
    if name in COMMANDS:
        dialect: Dialect = PbsDialect(personality)
        command = command_of(name)
    else:
        dialect = GSCHED
        command = getattr(importlib.import_module(f"gsched.cli.commands.{name}"), name)
    assert isinstance(command, click.Command)
    out, err = io.StringIO(), io.StringIO()
    speak(dialect)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = status_of(command, ["--head", str(head), *arguments])
    finally:
        speak(GSCHED)
    return Ran(status=status, stdout=out.getvalue(), stderr=err.getvalue())

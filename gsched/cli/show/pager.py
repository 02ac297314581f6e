"""Long texts on a terminal go through the user's pager."""

import shlex
import subprocess
import sys

from gsched.cli.show.render import terminal_lines
from gsched.config.environment import environment, full_environment

_DEFAULT = "less -FRX"


def pager_command() -> list[str]:
    """Return ``$GSCHED_PAGER``, else ``$PAGER``, else less; empty where none is wanted."""
    for name in ("GSCHED_PAGER", "PAGER"):
        if name in full_environment():
            return shlex.split(environment(name))
    return shlex.split(_DEFAULT)


def page(text: str, *, wanted: bool) -> None:
    """Print a text, through the pager if stdout is a terminal with fewer lines than it has."""
    if wanted and sys.stdout.isatty() and text.count("\n") >= terminal_lines():
        command = pager_command()
        if command and command != ["cat"] and _shown_by(command, text):
            return
    sys.stdout.write(text)


def _shown_by(command: list[str], text: str) -> bool:
    """Return whether the pager was there to show it; leaving it early is no error."""
    sys.stdout.flush()
    try:
        subprocess.run(command, input=text.encode(errors="backslashreplace"), check=False)
    except OSError:
        return False
    return True

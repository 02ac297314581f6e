"""Long texts on a terminal go through the user's pager."""

import contextlib
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterable

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
        if command and command != ["cat"] and _shown_by(command, [text]):
            return
    sys.stdout.write(text)


def page_long(pieces: Iterable[str], *, wanted: bool) -> None:
    """Print a text that is longer than the terminal piece by piece, as `page` does."""
    remaining = iter(pieces)
    command = pager_command() if wanted else []
    if command and command != ["cat"] and _shown_by(command, remaining):
        return
    for piece in remaining:
        sys.stdout.write(piece)
        sys.stdout.flush()


def _shown_by(command: list[str], pieces: Iterable[str]) -> bool:
    """Return whether the pager was there to show them; leaving it early is no error.

    Ctrl-C ends the text, as it does for the pager. The pager keeps the terminal until it is left.
    """
    sys.stdout.flush()
    try:
        pager = subprocess.Popen(command, stdin=subprocess.PIPE)
    except OSError:
        return False
    assert pager.stdin is not None
    try:
        for piece in pieces:
            pager.stdin.write(piece.encode(errors="backslashreplace"))
            pager.stdin.flush()
    except (BrokenPipeError, KeyboardInterrupt):
        pass
    finally:
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        with contextlib.suppress(BrokenPipeError):
            pager.stdin.close()  # writes what is left
        pager.wait()
        signal.signal(signal.SIGINT, handler)
    return True

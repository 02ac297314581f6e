"""The user's own terminal: raw while a session has it, and always as it was afterwards."""

import contextlib
import os
import sys
import termios
import tty

from gsched.errors import UsageError
from gsched.terminal import TerminalSize

Modes = list[int | list[bytes | int]]
STDIN, STDOUT = 0, 1
_USUAL = TerminalSize(24, 80)


def require_terminal(what: str, *, hint: str = "") -> None:
    """Refuse to begin where there is no terminal to sit at.

    Args:
        what: needs it.
        hint: what works without.

    Raises:
        UsageError: standard input or output is none.
    """
    for fd, name in ((STDIN, "input"), (STDOUT, "output")):
        if not os.isatty(fd):
            raise UsageError(
                f"{what} needs a terminal, and standard {name} is none",
                hint=f"run it in a terminal; with ssh, use ssh -t{hint and f'; {hint}'}",
            )


class Console:
    """Standard input and output of this process.

    Attributes:
        is_terminal: they are a terminal; else output is copied as it is, and nothing is typed.
    """

    def __init__(self) -> None:
        self.is_terminal = os.isatty(STDIN) and os.isatty(STDOUT)
        self._modes: Modes | None = None

    def window(self) -> TerminalSize:
        """Return the terminal's size; 0 by 0 where there is none."""
        if not self.is_terminal:
            return TerminalSize(0, 0)
        try:
            size = os.get_terminal_size(STDIN)
        except OSError:
            return _USUAL
        return TerminalSize(size.lines, size.columns) if size.lines and size.columns else _USUAL

    def make_raw(self) -> None:
        """Let every key come through as it is; twice is as once."""
        if self.is_terminal and self._modes is None:
            with contextlib.suppress(termios.error):
                self._modes = termios.tcgetattr(STDIN)
                tty.setraw(STDIN, termios.TCSADRAIN)

    def restore(self) -> None:
        """Make the terminal as it was; twice is as once."""
        modes, self._modes = self._modes, None
        if modes is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(STDIN, termios.TCSADRAIN, modes)

    def note(self, text: str, *, command: str) -> None:
        """Print a line on stderr; a line feed alone does not begin a line of a raw terminal."""
        end = "\r\n" if self._modes is not None else "\n"
        begin = "\r\n" if self._modes is not None else ""
        sys.stderr.write(f"{begin}{command}: {text}{end}")
        sys.stderr.flush()


def write_all(data: bytes) -> None:
    """Write to stdout, however long that takes."""
    while data:
        data = data[os.write(STDOUT, data) :]


def read_keys(most: int = 4096) -> bytes:
    """Return what was typed; empty: the terminal is gone."""
    try:
        return os.read(STDIN, most)
    except OSError:
        return b""


def refuse_json(command: str, *, as_json: bool) -> None:
    """Refuse ``--json``, which all commands have, where stdout is a terminal's.

    Raises:
        UsageError: it was given.
    """
    if as_json:
        raise UsageError(f"--json: {command} has no document to print", hint="see gstat --json")

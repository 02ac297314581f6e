"""What jobs and other users wrote, on a terminal: sequences that could act on it are shown as text.

An escape sequence can set the terminal's title, move the cursor over what stands there, or make it
answer as if the user had typed. Colours, tabs, and the carriage returns and backspaces of progress
bars stay. In a pipe or a file everything stays as it is.
"""

import io
import re
from typing import IO, Final

from gsched.model.patterns import pattern

_ACTIVE: Final = pattern(rb"\x1b\[[0-9;:]*m|[\x00-\x07\x0b\x0c\x0e-\x1f\x7f]|\xc2[\x80-\x9f]")
#: The beginning of a sequence whose rest may be in the next piece.
_BEGUN: Final = pattern(rb"(?:\x1b(?:\[[0-9;:]{0,32})?|\xc2)\Z")


def escaped(data: bytes) -> bytes:
    """Return a text without control sequences other than colours; which are shown."""
    return _ACTIVE.sub(_shown, data)


def _shown(found: re.Match[bytes]) -> bytes:
    sequence = found[0]
    if sequence.startswith(b"\x1b["):
        return sequence
    return b"\\x%02x" % sequence[-1]


class TerminalOut(io.RawIOBase):
    """Writes to a terminal what comes in pieces, escaped; ``close`` leaves the terminal open."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        self._held = b""

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: object) -> int:
        """Write a piece."""
        piece = bytes(memoryview(data))  # type: ignore[arg-type] # any buffer
        data = self._held + piece
        begun = _BEGUN.search(data)
        self._held = begun[0] if begun else b""
        self._out.write(escaped(data[: len(data) - len(self._held)]))
        return len(piece)

    def flush(self) -> None:
        """Flush what is complete."""
        if not self.closed:
            self._out.flush()

    def close(self) -> None:
        """Write the rest."""
        if not self.closed:
            self._out.write(escaped(self._held))
            self._out.flush()
        super().close()


def to_stdout(out: IO[str], *, raw: bool = False) -> IO[bytes]:
    """Return where to write bytes of a job; escaped if ``out`` is a terminal, unless ``raw``."""
    if raw or not out.isatty():
        return out.buffer  # type: ignore[attr-defined,no-any-return] # of a text stream
    return TerminalOut(out.buffer)  # type: ignore[attr-defined,return-value] # as above

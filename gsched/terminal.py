"""Terminal sessions: the frames on their way, what was shown last, and escapes at the keyboard.

A session connects a user's terminal with a program's terminal on a node:

    client - head - gnode - terminal keeper, which holds the program's terminal

Each message is one frame on each part of the way: a byte for its kind, and a content of at most
`MAX_CONTENT_BYTES`. Standard library only: the supervisor uses it too.
"""

import enum
import struct
from typing import Final, NamedTuple

MAX_CONTENT_BYTES: Final = 64 * 1024
MAX_FRAME_BYTES: Final = MAX_CONTENT_BYTES + 1
HISTORY_BYTES: Final = 256 * 1024  # of output, for who attaches later: some thousand lines

_SIZE: Final = struct.Struct(">HH")
_NUMBER: Final = struct.Struct(">Q")
_STATUS: Final = struct.Struct(">i")
_ANY: Final = (1 << 64) - 1  # an offset that means: all that is kept


class FrameError(ValueError):
    """A frame that no peer of this version sends."""


class FrameKind(enum.Enum):
    """What a frame is.

    To the program: `ATTACH` once at first, then `DATA`, `WINDOW` and `HANG_UP`. To the user:
    `OFFSET` once at first, then `DATA`, `NOTE`, `TAKEN` and `END`.
    """

    ATTACH = b"a"
    DATA = b"d"
    WINDOW = b"w"
    HANG_UP = b"h"
    OFFSET = b"o"
    NOTE = b"n"
    TAKEN = b"t"
    END = b"x"


class TerminalSize(NamedTuple):
    """Size of a terminal in characters; 0 by 0: the user has none."""

    rows: int
    columns: int


def frame(kind: FrameKind, content: bytes = b"") -> bytes:
    """Return one frame."""
    assert len(content) <= MAX_CONTENT_BYTES, len(content)
    return kind.value + content


def split(message: bytes | bytearray | memoryview) -> tuple[FrameKind, bytes]:
    """Return the kind and the content of a frame.

    Raises:
        FrameError: it is empty, too long, or of an unknown kind.
    """
    if not 1 <= len(message) <= MAX_FRAME_BYTES:
        raise FrameError(f"a frame of {len(message)} bytes")
    try:
        kind = FrameKind(bytes(message[:1]))
    except ValueError:
        raise FrameError(f"a frame of an unknown kind, {bytes(message[:1])!r}") from None
    return kind, bytes(message[1:])


def window_frame(window: TerminalSize) -> bytes:
    """Return the frame that says how large the user's terminal is."""
    return frame(FrameKind.WINDOW, _SIZE.pack(*window))


def window_of(content: bytes) -> TerminalSize:
    """Return what a `Kind.WINDOW` frame says.

    Raises:
        FrameError: it says nothing of the kind.
    """
    if len(content) != _SIZE.size:
        raise FrameError(f"a window size of {len(content)} bytes")
    return TerminalSize(*_SIZE.unpack(content))


def attach_frame(window: TerminalSize, *, offset: int | None = None) -> bytes:
    """Return the first frame to a terminal keeper.

    Args:
        window: size of the user's terminal.
        offset: how many bytes of output the user has seen; None: show all that is kept.
    """
    number = _ANY if offset is None else min(offset, _ANY - 1)
    return frame(FrameKind.ATTACH, _SIZE.pack(*window) + _NUMBER.pack(number))


def attach_of(content: bytes) -> tuple[TerminalSize, int | None]:
    """Return what a `Kind.ATTACH` frame says: see `attach_frame`.

    Raises:
        FrameError: it says nothing of the kind.
    """
    if len(content) != _SIZE.size + _NUMBER.size:
        raise FrameError(f"a request to attach of {len(content)} bytes")
    (number,) = _NUMBER.unpack(content[_SIZE.size :])
    return TerminalSize(*_SIZE.unpack(content[: _SIZE.size])), None if number == _ANY else number


def offset_frame(offset: int) -> bytes:
    """Return the frame that says how many bytes of output came before the next `Kind.DATA`."""
    return frame(FrameKind.OFFSET, _NUMBER.pack(offset))


def offset_of(content: bytes) -> int:
    """Return what a `Kind.OFFSET` frame says.

    Raises:
        FrameError: it says nothing of the kind.
    """
    if len(content) != _NUMBER.size:
        raise FrameError(f"an offset of {len(content)} bytes")
    return int(_NUMBER.unpack(content)[0])


def end_frame(status: int) -> bytes:
    """Return the last frame: the program has ended, with this exit code or minus its signal."""
    return frame(FrameKind.END, _STATUS.pack(status))


def end_of(content: bytes) -> int:
    """Return what a `Kind.END` frame says.

    Raises:
        FrameError: it says nothing of the kind.
    """
    if len(content) != _STATUS.size:
        raise FrameError(f"an exit status of {len(content)} bytes")
    return int(_STATUS.unpack(content)[0])


class History:
    """The newest output of a program, bounded; its bytes are counted from the first one on."""

    __slots__ = ("_kept", "_most", "end")

    def __init__(self, most: int = HISTORY_BYTES) -> None:
        self._most = most
        self._kept = bytearray()
        self.end = 0

    @property
    def begin(self) -> int:
        """Return the offset of the oldest byte that is kept."""
        return self.end - len(self._kept)

    def add(self, data: bytes) -> None:
        """Add output; the oldest beyond the bound is forgotten."""
        self._kept += data[-self._most :]
        self.end += len(data)
        if len(self._kept) > self._most:
            del self._kept[: len(self._kept) - self._most]

    def since(self, offset: int | None) -> tuple[int, bytes]:
        """Return the kept output from ``offset`` on, and the offset where it begins.

        Where older output is forgotten, it begins with a whole line, so that no character and no
        control sequence is cut in the middle.

        Args:
            offset: how much was seen; None, or more than there ever was: nothing.
        """
        if offset is not None and self.begin <= offset <= self.end:
            return offset, bytes(self._kept[offset - self.begin :])
        kept = bytes(self._kept)
        cut = kept.find(b"\n") + 1 if self.begin else 0
        return self.begin + cut, kept[cut:]


class Escape(enum.Enum):
    """What a user asks of the client itself, by a tilde at the beginning of a line."""

    ABORT = b"."
    DETACH = b"d"
    HELP = b"?"


_TILDE: Final = b"~"
_LINE_ENDS: Final = b"\r\n"


class Keyboard:
    """Tells what is typed for the program from what is typed for the client.

    A tilde at the beginning of a line is held back until the next key: one of `Escape` is for the
    client, a second tilde sends one, and any other key sends both.
    """

    __slots__ = ("_escapes", "_held", "_line_begins")

    def __init__(self, escapes: frozenset[Escape] = frozenset(Escape)) -> None:
        self._escapes = {each.value: each for each in escapes}
        self._line_begins = True
        self._held = False

    def typed(self, data: bytes) -> list[bytes | Escape]:
        """Return what is for the program, in pieces, and what is for the client, in order."""
        found: list[bytes | Escape] = []
        plain = bytearray()
        for value in data:
            key = bytes((value,))
            if self._held:
                self._held = False
                escape = self._escapes.get(key)
                if escape is not None:
                    if plain:
                        found.append(bytes(plain))
                        plain.clear()
                    found.append(escape)
                    self._line_begins = True
                    continue
                plain += _TILDE
                if key == _TILDE:
                    self._line_begins = False
                    continue
            elif key == _TILDE and self._line_begins:
                self._held = True
                continue
            plain += key
            self._line_begins = key in _LINE_ENDS
        if plain:
            found.append(bytes(plain))
        return found


class Allowance:
    """How fast a session may be passed on: bytes/s on average, and a burst at once."""

    __slots__ = ("_burst_s", "_rate", "_until_s")

    def __init__(self, rate_bytes_per_s: float, burst_bytes: int = MAX_CONTENT_BYTES) -> None:
        self._rate = rate_bytes_per_s
        self._burst_s = burst_bytes / rate_bytes_per_s
        self._until_s = 0.0

    def spend(self, count: int, now_s: float) -> float:
        """Return how long to wait after ``count`` bytes, seconds."""
        self._until_s = max(self._until_s, now_s - self._burst_s) + count / self._rate
        return max(0.0, self._until_s - now_s)

"""gnode's side of a terminal keeper: one connection, and what came over it."""

import os
import pathlib
import select
import socket
import time
from typing import ClassVar

from gnode.supervisor import terminal
from gsched import terminal as t
from gsched.terminal import FrameKind, TerminalSize
from tests.support.processes import PATIENCE_S


class Attached:
    """A connection to a keeper that has attached; a test closes all of them at its end."""

    opened: ClassVar[list["Attached"]] = []

    def __init__(
        self,
        directory: pathlib.Path,
        session: str = "",
        *,
        window: TerminalSize = TerminalSize(24, 80),  # noqa: B008 - a tuple, which nothing changes
        offset: int | None = None,
    ) -> None:
        self.opened.append(self)
        self.seen = b""
        self.begin = -1
        self.notes: list[str] = []
        self.status: int | None = None
        self.taken = False
        self.is_closed = False
        self.channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        place = os.open(directory, os.O_PATH)
        name = terminal.socket_name(session)
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                self.channel.connect(f"/proc/self/fd/{place}/{name}")
            except (FileNotFoundError, ConnectionRefusedError):
                assert time.monotonic() < deadline_s, f"no {name} in {directory}"
                time.sleep(0.01)
            else:
                break
        os.close(place)
        self.channel.send(t.attach_frame(window, offset=offset))

    def type(self, text: str) -> None:
        """Type text."""
        self.channel.send(t.frame(FrameKind.DATA, text.encode()))

    def resize(self, rows: int, columns: int) -> None:
        """Say that the window has another size."""
        self.channel.send(t.window_frame(TerminalSize(rows, columns)))

    def until(self, text: str) -> str:
        """Read until the text was shown, and return all that was."""
        self._read(lambda: text.encode() in self.seen, f"{text!r}")
        return self.seen.decode()

    def ended(self) -> int:
        """Read until the program has ended, and return its status."""
        self._read(lambda: self.status is not None, "the end")
        assert self.status is not None
        return self.status

    def closed(self) -> None:
        """Read until the keeper closes the connection."""
        self._read(lambda: self.is_closed, "the keeper to close")

    def close(self) -> None:
        """Close the connection."""
        self.channel.close()

    def _read(self, done, what: str) -> None:  # type: ignore[no-untyped-def] # a predicate
        deadline_s = time.monotonic() + PATIENCE_S
        while not done():
            left_s = deadline_s - time.monotonic()
            ready, _, _ = select.select([self.channel], [], [], max(0.0, left_s))
            assert ready, f"waited for {what}, saw {self.seen!r}, notes {self.notes}"
            message = self.channel.recv(t.MAX_FRAME_BYTES)
            if not message:
                self.is_closed = True
                assert done(), f"closed before {what}, saw {self.seen!r}, notes {self.notes}"
                return
            self._take(*t.split(message))

    def _take(self, kind: FrameKind, content: bytes) -> None:
        match kind:
            case FrameKind.DATA:
                self.seen += content
            case FrameKind.OFFSET:
                self.begin = t.offset_of(content)
            case FrameKind.NOTE:
                self.notes.append(content.decode())
            case FrameKind.TAKEN:
                self.taken = True
            case FrameKind.END:
                self.status = t.end_of(content)
            case _:
                raise AssertionError(kind)

"""A stand-in for gnode's socket: takes one training's lines, and says what the test wants."""

import contextlib
import json
import os
import socket
import threading
import uuid
from typing import Any

from tests.support.cluster import wait_until
from tests.support.processes import PATIENCE_S

Line = dict[str, Any]


class Listener:
    """Listens on an abstract Unix socket; what training jobs say is in ``heard``, in order."""

    def __init__(self) -> None:
        self.name = f"@gsched-test-{os.getpid()}-{uuid.uuid4().hex}"
        self.heard: list[Line] = []
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind("\0" + self.name[1:])
        self._socket.listen(4)
        self._channel: socket.socket | None = None
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                channel, _ = self._socket.accept()
            except OSError:
                return
            self._channel = channel
            with channel, channel.makefile("rb") as lines:
                try:
                    for line in lines:
                        self.heard.append(json.loads(line))
                except OSError:
                    continue

    def say(self, **message: Line) -> None:
        """Send one line to the training that is connected."""
        assert self._channel is not None, "no training is connected"
        self._channel.sendall(json.dumps(message).encode() + b"\n")

    def drop(self) -> None:
        """Close the connection, as a gnode that dies does."""
        assert self._channel is not None
        self._channel.shutdown(socket.SHUT_RDWR)

    def all(self, kind: str) -> list[Line]:
        """Return the bodies of all messages of a kind, so far."""
        return [message[kind] for message in self.heard if kind in message]

    def wait_for(self, kind: str, *, count: int = 1, timeout_s: float = 180.0) -> Line:
        """Return the body of the ``count``-th message of a kind, as soon as it is there."""
        wait_until(lambda: len(self.all(kind)) >= count, timeout_s, what=f"{count} x {kind}")
        body: Line = self.all(kind)[count - 1]
        return body

    def close(self) -> None:
        """Stop listening."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        if self._channel is not None:
            with contextlib.suppress(OSError):
                self._channel.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE_S)

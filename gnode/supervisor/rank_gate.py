"""The gate of ranks that were started before their attempt was launched.

A part of `torchrun_agent`, which loads this file only where it is needed: in the user's Python,
which may be an older one, without anything of gsched.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import threading
from collections.abc import Mapping

_ANSWER_S = 2.0  # for the node daemon to hear that all ranks wait


class RankGate:
    """Where ranks wait that were started before their attempt was launched.

    Standard input says that it is launched, in a line with what is otherwise in the environment;
    its end says that it never will be. Each rank has a pipe from which it gets such a line in
    turn, and another one, of all, into which it writes a byte when it waits. A thread listens to
    all of that, and wakes the main one with SIGCHLD.

    Attributes:
        words: the line; None while there is none.
        is_shut: standard input has ended.
    """

    def __init__(self, count: int) -> None:
        self.words: dict[str, object] | None = None
        self.is_shut = False
        self._missing = count
        self._pipes: dict[int, int] = {}
        self._ready, self.ready_writer = os.pipe()
        os.set_inheritable(self.ready_writer, True)  # noqa: FBT003 - the function's own signature
        self._main = threading.get_ident()
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def new_pipe(self, local_rank: int) -> int:
        """Return the descriptor from which a rank will read; close it when that has its own."""
        reader, self._pipes[local_rank] = os.pipe()
        os.set_inheritable(reader, True)  # noqa: FBT003 - as above
        return reader

    def listen(self) -> None:
        """Begin to listen, when all ranks have been started."""
        os.close(self.ready_writer)
        self._thread.start()

    def open(self, local_rank: int, words: Mapping[str, object]) -> None:
        """Let a rank go on."""
        writer = self._pipes.pop(local_rank)
        with contextlib.suppress(BrokenPipeError):  # it has just died: its end will be seen
            os.write(writer, json.dumps(words).encode() + b"\n")
        os.close(writer)

    def _listen(self) -> None:
        text, watched = b"", [0, self._ready]
        while not text.endswith(b"\n"):
            for fd in select.select(watched, [], [])[0]:
                more = os.read(fd, 1 << 16)
                if fd == self._ready:
                    self._count(len(more))
                    if not more:  # no rank is left
                        watched.remove(fd)
                elif more:
                    text += more
                else:
                    text = b"\n"
        try:
            self.words = dict(json.loads(text))
        except ValueError:
            self.is_shut = True
        signal.pthread_kill(self._main, signal.SIGCHLD)

    def _count(self, came: int) -> None:
        self._missing -= came
        if came and self._missing == 0:
            with contextlib.suppress(OSError, ValueError):  # then the head's patience ends
                _say_ready()


def _say_ready() -> None:
    """Tell the node daemon that all ranks wait at their gates."""
    ready = {
        "version": 1,
        "job": int(os.environ["GSCHED_JOB_NUMBER"]),
        "attempt": int(os.environ["GSCHED_ATTEMPT"]),
    }
    directory, name = os.path.split(os.environ["GSCHED_ELASTIC_SOCKET"])
    place = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
            channel.settimeout(_ANSWER_S)
            channel.connect(f"/proc/self/fd/{place}/{name}")  # an address has 107 bytes at most
            channel.sendall(json.dumps({"ready": ready}).encode() + b"\n")
            channel.recv(1)  # it closes when it has heard
    finally:
        os.close(place)

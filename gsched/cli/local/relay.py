"""``gsched relay``: what commands elsewhere run here through ssh to reach the head."""

import os
import socket
import sys
import threading

from gsched.cli.common import head_option
from gsched.cli.local.options import subcommand
from gsched.errors import UsageError
from gsched.head_address import find_head
from gsched.ssh import GREETING
from gsched.transport import Transport
from gsched.version import VERSION

_PIECE_BYTES = 64 * 1024


@subcommand("relay")
@head_option
def relay(*, head_address: str, as_json: bool) -> int:
    """Connect standard input and output with the head, for one connection of a command elsewhere.

    Commands with GSCHED_HEAD=ssh://HOST run it on HOST; there is no need to run it by hand.
    """
    del as_json
    if sys.stdin.isatty():
        raise UsageError(
            "gsched relay is run by commands on other hosts",
            hint="there, set GSCHED_HEAD=ssh://" + socket.gethostname(),
        )
    with Transport(find_head(head_address)).connection() as head:
        sys.stderr.write(f"{GREETING}{VERSION}\n")
        sys.stderr.flush()
        threading.Thread(target=_up, args=(head,), daemon=True).start()
        while piece := _received(head):
            _write(piece)
    return 0


def _up(head: socket.socket) -> None:
    """Copy what comes in, until its end, which ends the connection."""
    try:
        while piece := os.read(0, _PIECE_BYTES):
            head.sendall(piece)
        head.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # the head has closed


def _received(head: socket.socket) -> bytes:
    try:
        return head.recv(_PIECE_BYTES)
    except OSError:
        return b""


def _write(piece: bytes) -> None:
    view = memoryview(piece)
    while view:
        view = view[os.write(1, view) :]

"""Where processes connect to the token daemon: its sockets, and who may come in how often."""

import contextlib
import os
import resource
import selectors
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

from gnode.gpushare import wire
from gnode.gpushare.budgets import READ_AGAIN, STRANGERS_AT_ONCE, STRANGERS_PER_S, Budget
from gnode.gpushare.clients import CLIENTS_MAX, SILENT_MAX
from gnode.gpushare.wire import Message, MessageKind
from gsched.unix_address import address_of

DESCRIPTORS_WANTED: Final = 16384
DESCRIPTORS_KEPT: Final = 128  # for gnode, files, and gates of jobs


class JobsListener:
    """The socket for jobs, to which every user of the node can connect.

    Each connection spends a budget that strangers have together; one that proves to be of a job
    gives back what it has spent. Without budget the others wait in the kernel.

    Args:
        listener: the socket.
        selector: in which it is waited for.
        accept: is called when somebody has connected.
        now_s: the time.
    """

    def __init__(
        self,
        listener: socket.socket,
        selector: selectors.BaseSelector,
        accept: Callable[[], None],
        now_s: float,
    ) -> None:
        self.socket = listener
        self._selector = selector
        self._accept = accept
        self._strangers = Budget(now_s, STRANGERS_AT_ONCE, STRANGERS_PER_S, STRANGERS_AT_ONCE)
        self._is_open = False
        self._open()

    def _open(self) -> None:
        self._selector.register(self.socket, selectors.EVENT_READ, self._accept)
        self._is_open = True

    def may_accept(self, now_s: float) -> bool:
        """Spend a connection; False: none is left, and nobody is accepted for a while."""
        if self._strangers.take(now_s):
            return True
        self._selector.unregister(self.socket)
        self._is_open = False
        return False

    def proved(self) -> None:
        """A connection is of a job."""
        self._strangers.left = min(STRANGERS_AT_ONCE, self._strangers.left + 1)

    def next_s(self) -> float | None:
        """Return when connections are accepted again; None: they are."""
        return None if self._is_open else self._strangers.next_s()

    def look(self, now_s: float) -> None:
        """Accept connections again if it is time."""
        if self._is_open:
            return
        self._strangers.fill(now_s)
        if self._strangers.left >= READ_AGAIN:
            self._open()

    def close(self) -> None:
        """Listen no longer."""
        self.socket.close()


def turn_away(channel: socket.socket) -> None:
    """Have a client try again later."""
    with contextlib.suppress(OSError):
        channel.send(wire.pack(Message(kind=MessageKind.BUSY)))
    channel.close()


def places() -> int:
    """Return for how many connections of jobs there are descriptors, two for each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return min(CLIENTS_MAX, max(0, wanted - SILENT_MAX - DESCRIPTORS_KEPT) // 2)


def listen(path: Path, mode: Literal[0o666, 0o600]) -> socket.socket:
    """Return a listening socket in place of that of an earlier daemon."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.settimeout(0.0)
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    with address_of(new) as address:
        listener.bind(address)
    new.chmod(mode)
    listener.listen(128)
    os.replace(new, path)
    return listener

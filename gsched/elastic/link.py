"""The connection of rank 0 to gnode: a thread that comes back for ever and disturbs nothing."""

import contextlib
import os
import select
import socket
import struct
import sys
import threading
import time
import zlib

from gsched.elastic.conversation import LINE_BYTES_MAX, Conversation, ProtocolError
from gsched.unix_address import address_of

_RETRY_MIN_S = 0.1
_RETRY_MAX_S = 5.0
_SEND_TIMEOUT_S = 5.0
_STEADY_S = 10.0  # a connection that held so long was a good one: the next try comes at once


class NodeLink:
    """Carries a `Conversation` over a Unix socket.

    Args:
        address: of the socket; a leading ``@`` means an abstract name.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._closing = threading.Event()
        self._wake_reader, self._wake_writer = socket.socketpair()
        for end in (self._wake_reader, self._wake_writer):
            end.settimeout(0)
        self._thread: threading.Thread | None = None
        self._has_complained = False

    def start(self, conversation: Conversation) -> None:
        """Connect, and stay connected, in the background."""
        self._thread = threading.Thread(
            target=self._run, args=(conversation,), name="gsched-elastic", daemon=True
        )
        self._thread.start()

    def wake(self) -> None:
        """Let the thread look what there is to send."""
        with contextlib.suppress(OSError):  # full: it will look anyway; closed: it will not
            self._wake_writer.send(b"!")

    def close(self, timeout_s: float = 2.0) -> None:
        """Send what waits, then disconnect; return after ``timeout_s`` whatever happens."""
        self._closing.set()
        self.wake()
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                return  # it still uses them
        self._wake_reader.close()
        self._wake_writer.close()

    def _run(self, conversation: Conversation) -> None:
        delay_s = _RETRY_MIN_S
        while not self._closing.is_set():
            began_s = time.monotonic()
            try:
                with self._connect() as channel:
                    self._talk(channel, conversation)
            except (OSError, ProtocolError) as error:
                self._complain(error)
            if time.monotonic() - began_s > _STEADY_S:
                delay_s = _RETRY_MIN_S
            self._closing.wait(delay_s * _spread(os.getpid()))
            delay_s = min(delay_s * 2, _RETRY_MAX_S)

    def _connect(self) -> socket.socket:
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            channel.settimeout(_SEND_TIMEOUT_S)
            _connect_to(channel, self._address)
            check_peer(channel)
        except BaseException:
            channel.close()
            raise
        return channel

    def _talk(self, channel: socket.socket, conversation: Conversation) -> None:
        """Exchange lines until the other side closes, or we do."""
        channel.sendall(conversation.greeting())
        received = b""
        while True:
            for key, line in conversation.to_send():
                channel.sendall(line)
                conversation.sent(key, line)
            if self._closing.is_set():
                return
            readable, _, _ = select.select([channel, self._wake_reader], [], [])
            if self._wake_reader in readable:
                with contextlib.suppress(BlockingIOError):
                    self._wake_reader.recv(4096)
            if channel in readable:
                data = channel.recv(1 << 16)
                if not data:
                    return
                *lines, received = (received + data).split(b"\n")
                if max(map(len, (received, *lines))) > LINE_BYTES_MAX:
                    raise ProtocolError(f"a line of more than {LINE_BYTES_MAX} bytes")
                for line in lines:
                    conversation.hear(line)

    def _complain(self, error: Exception) -> None:
        """Say once that it does not work; it is tried again all the same."""
        if not self._has_complained and not self._closing.is_set():
            self._has_complained = True
            sys.stderr.write(
                f"gsched.elastic: no connection to the node daemon at {self._address} ({error}); "
                "it is tried again in the background, and the training goes on\n"
            )


def _connect_to(channel: socket.socket, address: str) -> None:
    """Connect to an abstract name, which begins with ``@``, or to a path."""
    if address.startswith("@"):
        channel.connect("\0" + address[1:])
        return
    with address_of(address) as fitting:
        channel.connect(fitting)


def check_peer(channel: socket.socket) -> None:
    """Do nothing if the other side is root or this process's own user.

    Raises:
        ProtocolError: it is somebody else, who could end or delay the training.
    """
    size = struct.calcsize("3i")
    credentials = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    _, uid, _ = struct.unpack("3i", credentials)
    if uid not in (0, os.getuid()):
        raise ProtocolError(f"the listener belongs to user {uid}, who is neither root nor you")


def _spread(pid: int) -> float:
    """Return 0.5 to 1.5, other for other processes, so that they do not come back all at once."""
    return 0.5 + (zlib.crc32(str(pid).encode()) % 1000) / 1000

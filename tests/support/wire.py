"""Between a node and the head, or in place of one: raw TCP, and TLS with any certificate."""

import contextlib
import select
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Literal, Self

from gsched.pki.files import CertificateFiles

UPGRADE = (
    b"GET /v1/node HTTP/1.1\r\nHost: head\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
)
Side = Literal["node", "head"]
STEP_S = 0.05
#: Gets who sent some bytes and how many from that side came before; returns what is passed on.
Change = Callable[[Side, int, bytes], bytes]


class Wire:
    """Listens on a port of loopback and connects each caller to the head, byte by byte.

    Attributes:
        change: what is done with the bytes; may be changed at any time.
        stalled: sides whose bytes stay in the kernel, as if the link did not carry them.
        seen: all bytes so far.
        connections: how many there were.
    """

    def __init__(self, head_port: int, change: Change | None = None) -> None:
        self.change: Change = change or (lambda _, __, part: part)
        self.stalled: frozenset[Side] = frozenset()
        self.seen = b""
        self.connections = 0
        self._head_port = head_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._opening = threading.Lock()  # what is counted is among the open: `cut` ends it
        self._is_over = False

    def cut(self) -> None:
        """End all connections that are open; others may come."""
        with self._opening:
            was_open, self._open = self._open, []
        for each in was_open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="wire", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        for each in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while not self._is_over:
                caller, _ = self._listener.accept()
                head = socket.create_connection(("127.0.0.1", self._head_port))
                with self._opening:
                    self._open += [caller, head]
                    self.connections += 1
                threading.Thread(target=self._pump, args=(caller, head), daemon=True).start()

    def _pump(self, caller: socket.socket, head: socket.socket) -> None:
        counts: dict[Side, int] = {"node": 0, "head": 0}
        with contextlib.suppress(OSError, ValueError), caller, head:
            while not self._is_over:
                sides = (("node", caller), ("head", head))
                heard = [each for side, each in sides if side not in self.stalled]
                ready, _, _ = select.select(heard, [], [], STEP_S if self.stalled else 1.0)
                for each in ready:
                    side: Side = "node" if each is caller else "head"
                    part = each.recv(65536)
                    if not part:
                        return
                    self.seen += part
                    changed = self.change(side, counts[side], part)
                    counts[side] += len(part)
                    (head if each is caller else caller).sendall(changed)


def hello_over_tls(port: int, files: CertificateFiles | None, hello: bytes) -> bytes:
    """Open the node channel as a host with a certificate would; return the head's first frame.

    Raises:
        OSError: the head has ended the connection.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if files is not None:
        context.load_cert_chain(files.certificate, files.key)
    with (
        socket.create_connection(("127.0.0.1", port), 20.0) as plain,
        context.wrap_socket(plain) as secured,
        secured.makefile("rb") as stream,
    ):
        secured.sendall(UPGRADE)
        while stream.readline().strip():
            pass
        mask = bytes(4)  # which changes nothing
        secured.sendall(
            b"\x81" + bytes([0x80 | 126]) + len(hello).to_bytes(2, "big") + mask + hello
        )
        _, length = stream.read(2) or (0, 0)
        return stream.read(int.from_bytes(stream.read(2), "big") if length == 126 else length)

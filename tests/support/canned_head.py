"""A head that gives the answers a test puts into it, and keeps what it was asked.

For what a real head cannot be brought to say at will (safe mode, a node that died, another
version). What the real one says is tested with `tests.support.cluster`.
"""

import http.server
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from gsched.protocol import api, node_rows

T = TypeVar("T", bound=msgspec.Struct)


class CannedHead:
    """Answers by method and path (without query).

    Attributes:
        answers: what is said to ``GET /v1/status``; an `api.ErrorReply` goes out as 400.
        asked: every request: method, path with query, body.
    """

    def __init__(self, socket_path: Path) -> None:
        self.path = socket_path
        self.answers: dict[str, msgspec.Struct] = {"GET /v1/health": api.Health(ok=True)}
        self.asked: list[tuple[str, str, bytes]] = []

    def bodies(self, kind: type[T]) -> list[T]:
        """Return the bodies of all POST requests, as ``kind``."""
        return [
            msgspec.json.decode(body, type=kind)
            for method, _, body in self.asked
            if method == "POST"
        ]


@contextmanager
def canned_head(socket_path: Path) -> Iterator[CannedHead]:
    """Serve a `CannedHead` at ``socket_path``."""
    head = CannedHead(socket_path)

    class Handler(http.server.BaseHTTPRequestHandler):
        def address_string(self) -> str:
            return "unix"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
            pass

        def do_GET(self) -> None:
            self._answer("GET", b"")

        def do_POST(self) -> None:
            self._answer("POST", self.rfile.read(int(self.headers["Content-Length"])))

        def _answer(self, method: str, body: bytes) -> None:
            head.asked.append((method, self.path, body))
            answer = head.answers.get(f"{method} {self.path.partition('?')[0]}")
            if answer is None:
                answer = api.ErrorReply(error=api.ErrorBody(code="internal", message="no answer"))
            data = msgspec.json.encode(answer)
            self.send_response(400 if isinstance(answer, api.ErrorReply) else 200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with socketserver.UnixStreamServer(str(socket_path), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield head
        finally:
            server.shutdown()
            thread.join()


def status(**changes: object) -> api.StatusReply:
    """Return how a head is that has nothing to complain of, with ``changes``."""
    fields: dict[str, object] = {
        "server": "head",
        "version": "0.1.0",
        "api_version": api.API_VERSION,
        "cluster": "c",
        "epoch": 1,
        "pid": 4242,
        "started_s": 1.0,
        "now_s": 1000.0,
        "jobs": {},
        "nodes_up": 1,
        "nodes": 1,
        "cycles": 1,
    }
    return msgspec.convert(fields | changes, api.StatusReply)


def node(name: str = "n1", **changes: object) -> node_rows.NodeRow:
    """Return an idle node, with ``changes``."""
    fields: dict[str, object] = {
        "name": name,
        "state": "up",
        "cpus": 4,
        "cpus_free": 4,
        "memory_bytes": 8 * 1024**3,
        "memory_free_bytes": 8 * 1024**3,
    }
    return msgspec.convert(fields | changes, node_rows.NodeRow)

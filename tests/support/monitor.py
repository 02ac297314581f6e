"""The monitor of a test's cluster, over its Unix socket and over TCP."""

import contextlib
import http.client
import socket
from pathlib import Path
from typing import NamedTuple

import msgspec

from gsched.config.words import monitor_socket_of
from gsched.protocol.web import WebAddress
from tests.support.cluster import Cluster


class Response(NamedTuple):
    """What came back."""

    status: int
    text: str
    headers: dict[str, str]


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("monitor", timeout=20.0)
        self._path = path

    def connect(self) -> None:
        """Connect."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(20.0)
        self.sock.connect(str(self._path))


def send(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    *,
    body: str | None = None,
    headers: dict[str, str] | None = None,
) -> Response:
    """Send a request and return the response."""
    with contextlib.closing(connection):
        connection.request(method, path, body=body, headers=headers or {})
        response = connection.getresponse()
        text = response.read().decode()
    return Response(response.status, text, {name.lower(): v for name, v in response.getheaders()})


def socket_of(cluster: Cluster) -> Path:
    """Return where the monitor listens."""
    return Path(monitor_socket_of(str(cluster.socket)))


def get(cluster: Cluster, path: str, headers: dict[str, str] | None = None) -> Response:
    """Send a GET request on the Unix socket."""
    return send(UnixConnection(socket_of(cluster)), "GET", path, headers=headers)


def is_ready(cluster: Cluster) -> bool:
    """Return whether the monitor answers and has samples."""
    try:
        return get(cluster, "/readyz").status == 200
    except OSError:
        return False


def address(cluster: Cluster) -> WebAddress:
    """Return the page's address, with a token."""
    response = send(UnixConnection(socket_of(cluster)), "POST", "/v1/web-address")
    assert response.status == 200, response.text
    return msgspec.json.decode(response.text, type=WebAddress)

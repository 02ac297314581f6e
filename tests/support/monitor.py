"""The monitor of a test's cluster, over its Unix socket and over TCP."""

import contextlib
import http.client
import re
import socket
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

import msgspec

from gsched.config.words import monitor_socket_of
from gsched.protocol.web import WebAddress
from tests.support.cluster import Cluster
from tests.support.processes import PATIENCE_S


class Response(NamedTuple):
    """What came back."""

    status: int
    text: str
    headers: dict[str, str]


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("monitor", timeout=PATIENCE_S)
        self._path = path

    def connect(self) -> None:
        """Connect."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE_S)
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


class Browser:
    """A session on the TCP address; it sends what browsers send."""

    def __init__(self, found: WebAddress) -> None:
        self.found = found
        self.cookie = ""

    def send(self, method: str, path: str, body: str = "", **headers: str) -> Response:
        """Send a request; header names have ``_`` for ``-``."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.cookie:
            given.setdefault("Cookie", self.cookie)
        connection = http.client.HTTPConnection(self.found.address, timeout=PATIENCE_S)
        return send(connection, method, path, body=body, headers=given)

    def get(self, path: str, **headers: str) -> Response:
        """Send a GET request."""
        return self.send("GET", path, **headers)

    def post(self, path: str, fields: dict[str, str], **headers: str) -> Response:
        """Send a form."""
        given = {"Content_Type": "application/x-www-form-urlencoded"} | headers
        return self.send("POST", path, urlencode(fields), **given)

    def log_in(self) -> Response:
        """Begin a session with the token of the address."""
        response = self.post("/login", {"token": self.found.token})
        self.cookie = response.headers["set-cookie"].partition(";")[0]
        return response

    def form_token(self, path: str = "/") -> str:
        """Return the token of the forms on a page."""
        found = re.search(r'name="form_token" value="([^"]+)"', self.get(path).text)
        assert found is not None
        return found[1]

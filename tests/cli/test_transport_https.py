"""The HTTP client over TLS, against heads that stop, stand by or are silent."""

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gsched import head_connection
from gsched.errors import HeadUnreachableError
from gsched.head_address import parse_address
from gsched.head_connection import LostConnectionError, UnsentError
from gsched.pki import issuing
from gsched.transport import Transport
from tests.support.processes import PATIENCE_S

LARGE = b" " * 16_000_000  # more than the kernel keeps for one who does not read
BREAK = b"before the handshake"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class TlsHead:
    """Gives each connection the next answer, or the last one.

    BREAK closes it before the handshake, ``b""`` after it, None leaves it open in silence.

    Attributes:
        port: where it listens.
        requests: the first lines of what it got whole.
    """

    def __init__(self, certificate: Path, *answers: bytes | None) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate)
        self._answers = answers
        self._listener = socket.create_server(("localhost", 0))
        self._open: list[ssl.SSLSocket] = []
        self.port: int = self._listener.getsockname()[1]
        self.requests: list[str] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        number = 0
        with suppress(OSError):  # it is closed
            while True:
                plain, _ = self._listener.accept()
                answer = self._answers[min(number, len(self._answers) - 1)]
                number += 1
                if answer == BREAK:
                    plain.recv(65536)
                    plain.close()
                    continue
                self._converse(self._context.wrap_socket(plain, server_side=True), answer)

    def _converse(self, connection: ssl.SSLSocket, answer: bytes | None) -> None:
        if answer == b"":
            connection.close()
            return
        request = connection.recv(65536)
        while b"\r\n\r\n" not in request:
            request += connection.recv(65536)
        header, _, body = request.partition(b"\r\n\r\n")
        _, _, length = header.partition(b"Content-Length: ")
        left = int(length.split(b"\r\n")[0] or 0) - len(body)
        while left > 0:
            left -= len(connection.recv(1 << 20))
        self.requests.append(header.partition(b" HTTP")[0].decode())
        if answer is None:
            self._open.append(connection)
            return
        connection.sendall(answer)
        connection.close()

    def stop_listening(self) -> None:
        """Refuse connections from now on; those that are open stay so."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(PATIENCE_S)

    def close(self) -> None:
        """End it and its connections."""
        self.stop_listening()
        for each in self._open:
            each.close()


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file of a certificate for localhost, whose authority counts."""
    now_s = time.time()
    made = issuing.make_authority("test", now_s)
    authority = issuing.read_authority(made)
    (tmp_path / "ca.pem").write_bytes(made[: made.index(b"-----BEGIN PRIVATE")])
    own = issuing.issue_for_names(authority, ["localhost"], now_s=now_s, lifetime_s=3600.0)
    (tmp_path / "own.pem").write_bytes(own)
    monkeypatch.setenv("GSCHED_CA", str(tmp_path / "ca.pem"))
    monkeypatch.setenv("GSCHED_TOKEN", "gsched_1_x")
    return tmp_path / "own.pem"


@contextmanager
def heads(certificate: Path, *each: tuple[bytes | None, ...]) -> Iterator[list[TlsHead]]:
    made = [TlsHead(certificate, *answers) for answers in each]
    try:
        yield made
    finally:
        for one in made:
            one.close()


def at(head: TlsHead, patience_s: float = PATIENCE_S) -> Transport:
    address = parse_address(f"https://localhost:{head.port}", source="test")
    return Transport(address, patience_s=patience_s)


def sends_on_to(head: TlsHead) -> bytes:
    return (
        f"HTTP/1.1 307 Temporary Redirect\r\nLocation: https://localhost:{head.port}/v1/jobs\r\n"
        "Content-Length: 0\r\n\r\n"
    ).encode()


def test_a_request_that_was_not_sent_whole_is_sent_again(certificate: Path) -> None:
    """A head that stops meanwhile cannot have carried it out."""
    with heads(certificate, (b"", OK)) as (head,):
        transport = at(head)
        assert transport.exchange("POST", "/v1/jobs", LARGE).body == b"ok"
        assert head.requests == ["POST /v1/jobs"]


def test_without_patience_the_error_says_that_nothing_was_done(certificate: Path) -> None:
    with heads(certificate, (b"",)) as (head,):
        transport = at(head, patience_s=0.0)
        with pytest.raises(UnsentError, match="nothing was done"):
            transport.exchange("POST", "/v1/jobs", LARGE)
        assert not transport.has_sent


def test_a_head_that_stops_in_the_handshake_is_tried_again(certificate: Path) -> None:
    """Without patience the words are those of a head that does not answer."""
    with heads(certificate, (BREAK, OK)) as (head,):
        assert at(head).exchange("POST", "/v1/jobs").body == b"ok"
    words = r"no head answers at .*: connection reset"
    with heads(certificate, (BREAK,)) as (head,), pytest.raises(HeadUnreachableError, match=words):
        at(head, patience_s=0.0).exchange("GET", "/v1/jobs")


def test_a_change_does_not_wait_for_the_head_it_was_sent_on_to_when_that_is_gone(
    certificate: Path,
) -> None:
    """What only reads is answered by the head that was stated."""
    with (
        heads(certificate, (OK, None)) as (ruler,),
        heads(certificate, (sends_on_to(ruler), OK)) as (stated,),
    ):
        transport = at(stated)
        transport.looks_s = (0.1, 0.2)
        assert transport.exchange("POST", "/v1/jobs").body == b"ok"
        threading.Thread(target=_stop_when, args=(ruler, 2)).start()
        with pytest.raises(LostConnectionError, match="has stopped before its answer"):
            transport.exchange("POST", "/v1/jobs")
        assert transport.exchange("POST", "/v1/jobs").body == b"ok"
        assert stated.requests == ["POST /v1/jobs"] * 2
    with (
        heads(certificate, (OK, None)) as (ruler,),
        heads(certificate, (sends_on_to(ruler), OK)) as (stated,),
    ):
        transport = at(stated)
        transport.looks_s = (0.1, 0.2)
        assert transport.exchange("POST", "/v1/jobs").body == b"ok"
        threading.Thread(target=_stop_when, args=(ruler, 2)).start()
        assert transport.exchange("GET", "/v1/jobs").body == b"ok"
        assert stated.requests == ["POST /v1/jobs", "GET /v1/jobs"]


def _stop_when(head: TlsHead, count: int) -> None:
    """Have a head refuse connections once it has got so many requests."""
    while len(head.requests) < count:
        threading.Event().wait(0.02)
    head.stop_listening()


def test_a_host_without_power_is_given_up_long_before_an_answer_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its connection is as one that the kernel does not answer: here, of a full backlog."""
    monkeypatch.setattr(head_connection, "CONNECT_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        port = listener.getsockname()[1]
        waiting = []
        while True:
            one = socket.socket()
            one.settimeout(0.1)
            waiting.append(one)
            try:
                one.connect(("127.0.0.1", port))
            except TimeoutError:
                break
        address = parse_address(f"http://127.0.0.1:{port}", source="test")
        with pytest.raises(HeadUnreachableError, match="timed out"):
            Transport(address, patience_s=0.0).exchange("GET", "/v1/jobs", timeout_s=1e6)
        for one in waiting:
            one.close()

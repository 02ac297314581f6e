"""The HTTP client against whatever may listen at the other end."""

import os
import socket
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import pytest

from gsched.errors import (
    ConfigError,
    GschedError,
    HeadUnreachableError,
    InternalError,
    NotPermittedError,
)
from gsched.head_address import HeadAddress, find_head, parse_address
from gsched.head_connection import LostConnectionError
from gsched.protocol.headers import STANDBY_HEADER, WARNING_HEADER
from gsched.transport import DEFAULT_TIMEOUT_S, Transport, quote
from tests.support.processes import PATIENCE_S


@contextmanager
def answering(path: Path, *parts: bytes) -> Iterator[list[bytes]]:
    """Listen at ``path``, read one request, send ``parts`` one by one, and close."""
    asked: list[bytes] = []
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        connection, _ = listener.accept()
        # whoever has read enough hangs up
        with connection, suppress(BrokenPipeError, ConnectionResetError):
            asked.append(connection.recv(65536))
            for part in parts:
                connection.sendall(part)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield asked
    finally:
        thread.join(PATIENCE_S)
        listener.close()


def at(path: Path) -> Transport:
    return Transport(HeadAddress(str(path), source="test", path=str(path)), patience_s=0.0)


@pytest.mark.parametrize(
    "parts",
    [
        [b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"],
        [b"HTTP/1.1 200 OK\r\ncontent-le", b"ngth: 5\r\n\r", b"\nhe", b"llo, and more"],
        [b"HTTP/1.0 200 OK\r\n\r\nhel", b"lo"],
        [b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"],
        [
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n",
            b"2;x=y\r\nl",
            b"o\r\n0\r\nTrailer: 1\r\n\r\n",
        ],
    ],
)
def test_answers_are_understood_however_they_are_cut(tmp_path: Path, parts: list[bytes]) -> None:
    with answering(tmp_path / "s", *parts) as asked:
        answer = at(tmp_path / "s").exchange("POST", "/v1/x?a=b", b"{}")

    assert (answer.status, bytes(answer.body)) == (200, b"hello")
    assert asked[0].startswith(b"POST /v1/x?a=b HTTP/1.1\r\n")
    assert b"Content-Length: 2\r\n" in asked[0]
    assert asked[0].endswith(b"\r\n\r\n{}")


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        ([], LostConnectionError),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel"], LostConnectionError),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhe"], LostConnectionError),
        ([b"SSH-2.0-OpenSSH_9.2\r\n\r\n"], InternalError),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n"], InternalError),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"], InternalError),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"], InternalError),
        ([b"HTTP/1.1 200 OK\r\nX: " + b"x" * 400_000], InternalError),
    ],
)
def test_answers_that_end_early_or_lie_are_errors(
    tmp_path: Path, parts: list[bytes], kind: type[GschedError]
) -> None:
    with answering(tmp_path / "s", *parts), pytest.raises(kind):
        at(tmp_path / "s").exchange("GET", "/")


def test_an_answer_that_comes_before_all_was_sent_is_understood(tmp_path: Path) -> None:
    """A head that has no room for a request refuses it and hangs up."""
    refusal = b"HTTP/1.1 429 Too Many\r\nRetry-After: 1\r\nContent-Length: 2\r\n\r\nno"
    with answering(tmp_path / "s", refusal):
        answer = at(tmp_path / "s").exchange("POST", "/", b" " * 16_000_000)

    assert (answer.status, bytes(answer.body), answer.retry_after_s) == (429, b"no", 1.0)


@pytest.mark.skipif(os.getuid() != 0, reason="another user is needed, whom the mode keeps out")
def test_a_socket_that_is_being_set_up_is_waited_for() -> None:
    """Its mode follows a moment after it: a command in the gap once gave up."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        path = Path(directory, "s")
        with answering(path, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"):
            path.chmod(0o755)
            child = os.fork()
            if not child:
                _ask_as_other(path)
            threading.Timer(0.3, path.chmod, [0o666]).start()
            _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0


def _ask_as_other(path: Path) -> NoReturn:
    """In a child: become another user and ask; exit with 0 if there is an answer."""
    code = 1
    try:
        os.setuid(12_345)
        transport = Transport(
            HeadAddress(str(path), source="test", path=str(path)), patience_s=10.0
        )
        code = 0 if transport.exchange("GET", "/").status == 200 else 2
    except Exception:  # noqa: BLE001 - this is the end of the child
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def test_silence_is_given_up(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()

        with pytest.raises(LostConnectionError, match=r"has not answered for 0\.05 s"):
            at(tmp_path / "s").exchange("GET", "/", timeout_s=0.05)


def test_a_silent_head_is_named_once_while_a_command_waits(tmp_path: Path) -> None:
    """Not where a request has a limit of its own: a wait for a job is silent for long."""
    told: list[tuple[float, float]] = []
    with slow(tmp_path / "s"):
        transport = at(tmp_path / "s")
        transport.on_silence = lambda quiet_s, limit_s: told.append((quiet_s, limit_s))
        transport.quiet_s = 0.05
        waited = transport.exchange("GET", "/", timeout_s=59.0).body
        assert told == []
        answers = [transport.exchange("GET", "/").body for _ in range(2)]

    assert told == [(0.05, DEFAULT_TIMEOUT_S)]
    assert [waited, *answers] == [b"late"] * 3


@contextmanager
def slow(path: Path) -> Iterator[None]:
    """Answer each request late, and in two parts."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    threading.Event().wait(0.3)
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nla")
                    threading.Event().wait(0.1)
                    connection.sendall(b"te")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def test_a_missing_head_is_named_with_where_the_address_came_from(tmp_path: Path) -> None:
    with pytest.raises(HeadUnreachableError) as caught:
        at(tmp_path / "none").exchange("GET", "/")

    assert caught.value.exit_code == 69
    assert f"{tmp_path}/none (from test)" in caught.value.message
    assert "gsched doctor" in caught.value.hint


def test_a_socket_nobody_listens_on_is_unreachable(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "s"))

        with pytest.raises(HeadUnreachableError, match="refused"):
            at(tmp_path / "s").exchange("GET", "/")


def test_a_head_that_comes_up_in_time_is_reached(tmp_path: Path) -> None:
    transport = at(tmp_path / "s")
    transport.patience_s = 30.0
    answers: list[int] = []
    client = threading.Thread(target=lambda: answers.append(transport.exchange("GET", "/").status))
    client.start()

    with answering(tmp_path / "s", b"HTTP/1.1 204 No Content\r\n\r\n"):
        client.join(PATIENCE_S)

    assert answers == [204]


def test_a_path_longer_than_the_kernel_takes_is_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    monkeypatch.chdir(deep)
    with answering(Path("s"), b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"):
        assert at(deep / "s").exchange("GET", "/").status == 200


def test_a_tcp_address_is_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

        thread = threading.Thread(target=serve)
        thread.start()
        address = parse_address(f"http://127.0.0.1:{port}", source="test")
        assert bytes(Transport(address).exchange("GET", "/").body) == b"ok"
        thread.join(PATIENCE_S)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/run/h.sock", ("/run/h.sock", "", 0)),
        ("unix:///run/h.sock", ("/run/h.sock", "", 0)),
        ("http://head:8080/", ("", "head", 8080)),
        ("http://head", ("", "head", 80)),
        ("http://[::1]:8080", ("", "::1", 8080)),
    ],
)
def test_addresses_are_paths_or_urls(text: str, expected: tuple[str, str, int]) -> None:
    address = parse_address(text, source="test")

    assert (address.path, address.host, address.port) == expected


@pytest.mark.parametrize("text", ["https://", "ftp://x", "http://head:x", "http://:1"])
def test_other_addresses_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="invalid head address"):
        parse_address(text, source="test")


def test_the_option_beats_the_variable_beats_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "c.toml").write_text('[head]\nsocket = "/configured"\n')
    monkeypatch.setenv("GSCHED_CONFIG", str(tmp_path / "c.toml"))
    monkeypatch.setenv("GSCHED_HEAD", "/variable")

    assert find_head("/option").path == "/option"
    assert (find_head().path, find_head().source) == ("/variable", "$GSCHED_HEAD")
    monkeypatch.delenv("GSCHED_HEAD")
    assert find_head().path == "/configured"
    monkeypatch.delenv("GSCHED_CONFIG")
    assert find_head().path == "/run/gsched/head.sock"


@pytest.mark.skipif("os.getuid() == 0", reason="root may open every socket")
def test_a_closed_socket_is_a_matter_of_permission(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        (tmp_path / "s").chmod(0)

        with pytest.raises(NotPermittedError) as caught:
            at(tmp_path / "s").exchange("GET", "/")
    assert caught.value.exit_code == 159


def test_a_query_keeps_nothing_that_could_end_the_request_line() -> None:
    assert quote("a b\r\nX: y&=é") == "a%20b%0D%0AX%3A%20y%26%3D%C3%A9"


@contextmanager
def serving(path: Path, *answers: bytes) -> Iterator[list[bytes]]:
    """Listen at ``path``, and give each connection the next answer, or the last one."""
    requests: list[bytes] = []
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        with suppress(OSError):  # it is closed
            while True:
                connection, _ = listener.accept()
                with connection, suppress(BrokenPipeError, ConnectionResetError):
                    requests.append(connection.recv(65536).partition(b" HTTP")[0])
                    connection.sendall(answers[min(len(requests), len(answers)) - 1])

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield requests
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE_S)
        listener.close()


def reply(body: bytes, more: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\n%sContent-Length: %d\r\n\r\n%s" % (more, len(body), body)


def test_a_read_goes_to_the_other_head_when_one_ends_before_its_answer(tmp_path: Path) -> None:
    """A change does not: it may have been carried out."""
    first, second = tmp_path / "first", tmp_path / "second"
    follows = f"{STANDBY_HEADER}: first\r\n{WARNING_HEADER}: old\r\n".encode()
    warnings: list[str] = []
    with serving(first, reply(b"{}"), b"") as asked, serving(second, reply(b"1", follows)) as other:
        transport = Transport(parse_address(f"{first},{second}", source="test"), patience_s=0.0)
        transport.on_warning = warnings.append
        assert transport.exchange("GET", "/v1/nodes").body == b"1"
        assert asked == [b"GET /v1/health", b"GET /v1/nodes", b"GET /v1/health"]
        assert other == [b"GET /v1/health", b"GET /v1/nodes"]
        assert warnings == ["old"]
    with serving(tmp_path / "third", reply(b"{}"), b"") as asked:
        address = parse_address(f"{tmp_path / 'third'},{second}", source="test")
        with pytest.raises(LostConnectionError):
            Transport(address, patience_s=0.0).exchange("POST", "/v1/jobs", b"[]")
        assert asked == [b"GET /v1/health", b"POST /v1/jobs"]


def test_a_change_does_not_wait_for_one_of_several_heads_that_has_stopped(tmp_path: Path) -> None:
    """Of a host without power there is no end of the connection; who is only slow is waited for."""
    first, second = tmp_path / "first", tmp_path / "second"
    with silent_after(first, reply(b"{}")) as asked, serving(second, reply(b"{}")) as other:
        transport = Transport(parse_address(f"{first},{second}", source="test"), patience_s=0.0)
        transport.looks_s = (0.1, 0.2)
        with pytest.raises(LostConnectionError, match="has stopped before its answer") as caught:
            transport.exchange("POST", "/v1/jobs", b"[]")
        assert str(first) in caught.value.message
        assert asked == [b"GET /v1/health", b"POST /v1/jobs", b"GET /v1/health"]
        assert transport.exchange("POST", "/v1/jobs", b"[]").body == b"{}"
        assert other == [b"GET /v1/health", b"POST /v1/jobs"]
    busy = tmp_path / "busy"
    with silent_after(busy, reply(b"{}"), None, reply(b"{}"), b"") as asked:
        transport = Transport(parse_address(f"{busy},{second}", source="test"), patience_s=0.0)
        transport.looks_s = (0.1, 0.2)
        assert transport.exchange("POST", "/v1/jobs", b"[]").body == b"late"
        assert asked == [b"GET /v1/health", b"POST /v1/jobs", *[b"GET /v1/health"] * 2]


@contextmanager
def silent_after(path: Path, *answers: bytes | None) -> Iterator[list[bytes]]:
    """Give each connection the next answer; None, and after the last one: silence.

    With an empty answer all that are open get one.
    """
    requests: list[bytes] = []
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    open_ones: list[socket.socket] = []

    def serve() -> None:
        with suppress(OSError):  # it is closed
            while True:
                connection, _ = listener.accept()
                open_ones.append(connection)
                requests.append(connection.recv(65536).partition(b" HTTP")[0])
                answer = answers[len(requests) - 1] if len(requests) <= len(answers) else None
                if answer:
                    connection.sendall(answer)
                    open_ones.remove(connection)
                    connection.close()
                for each in open_ones if answer == b"" else ():
                    with suppress(BrokenPipeError):
                        each.sendall(reply(b"late"))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield requests
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)
        for each in (listener, *open_ones):
            each.close()

"""The token daemon alone, against clients that break off, say nothing, or are too many."""

import json
import os
import resource
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest

from gnode.gpushare import ShareClass, wire
from gnode.gpushare.addresses import GROUPS_FILE
from gnode.gpushare.budgets import (
    MESSAGES_AT_ONCE,
    MESSAGES_PER_S,
    READ_AGAIN,
    STRANGERS_AT_ONCE,
    STRANGERS_PER_S,
)
from gnode.gpushare.clients import SILENT_OF_A_USER
from gnode.gpushare.keeper import LOG_FILE, DaemonKeeper
from gnode.gpushare.node_tokens import Admission, NodeTokens, hash_of
from gnode.gpushare.tokend import JOBS_SOCKET, TokenDaemon
from gnode.gpushare.wire import Message, MessageKind
from gsched.clock import Clock
from tests.support.cluster import wait_until
from tests.support.processes import PATIENCE_S
from tests.support.share_watch import lives

SECRETS = {"7.1": "secret of 7", "8.1": "secret of 8"}


class Daemon:
    """A token daemon that knows a high and a low job, and clients of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.keeper = DaemonKeeper(folder)
        self.keeper.ensure()
        for group, share_class in (("7.1", "high"), ("8.1", "low")):
            self.admit(group, share_class, SECRETS[group])

    def admit(self, group: str, share_class: str, secret: str) -> None:
        self.keeper.ask(
            order="admit",
            admission={
                "group": group,
                "gpu": "GPU-1",
                "share_class": share_class,
                "memory_bytes": 1 << 30,
                "secret_hash": hash_of(secret),
            },
        )

    def metrics(self) -> dict[str, Any]:
        return self.keeper.ask(order="metrics")

    def pids(self, group: str) -> list[int]:
        return cast("list[int]", self.metrics()["groups"][group]["pids"])

    def holder(self) -> str | None:
        return cast("str | None", self.metrics()["gpus"]["GPU-1"]["holder"])

    def saved(self) -> list[str]:
        """Return the jobs in the file for the next daemon."""
        rows = json.loads((self.folder / GROUPS_FILE).read_text())
        return [row["group"] for row in rows]

    def connect(self) -> socket.socket:
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        channel.settimeout(PATIENCE_S)
        channel.connect(str(self.folder / JOBS_SOCKET))
        return channel

    def hello(self, group: str, *, flags: int = 0, channel: int = 0) -> socket.socket:
        client = self.connect()
        message = Message(kind=MessageKind.HELLO, flags=flags, b=channel)
        with suppress(BrokenPipeError, ConnectionResetError):  # answered and closed already
            client.send(wire.pack(message) + SECRETS[group].encode())
        return client

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stand for a node so busy that the daemon does not run for a moment."""
        pid = self.metrics()["pid"]
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def limit_descriptors(self, more: int) -> None:
        """Let the daemon have only so many descriptors more than now."""
        limit_descriptors(self.metrics()["pid"], more)

    def assert_alive(self) -> None:
        self.metrics()
        assert "Traceback" not in (self.folder / LOG_FILE).read_text()
        assert self.keeper.restarts == 0


def limit_descriptors(pid: int, more: int) -> None:
    """Let a process have only so many descriptors more than now."""
    used = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    free = [number for number in range(len(used) + more + 1) if number not in used]
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (free[more], hard))


def answer(channel: socket.socket) -> Message:
    """Return the next message; a descriptor beside it is closed."""
    with suppress(ConnectionResetError):  # it is told first, where a HELLO was not read
        channel.recv(1, socket.MSG_PEEK)
    data, descriptors, _, _ = socket.recv_fds(channel, wire.MESSAGE_BYTES, 1)
    for descriptor in descriptors:
        os.close(descriptor)
    return wire.unpack(data)[0]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    made = Daemon(tmp_path)
    yield made
    for group in SECRETS:
        made.keeper.ask(order="remove", group=group)
    made.keeper.close()


@pytest.mark.parametrize("flags", [0, wire.CLAIM_HELD])
@pytest.mark.parametrize("channel", [wire.CHANNEL_LAUNCH, wire.CHANNEL_MEMORY])
def test_a_client_that_closes_before_its_welcome_leaves_nothing(
    flags: int, channel: int, daemon: Daemon
) -> None:
    with daemon.stopped():
        for _ in range(3):
            daemon.hello("7.1", flags=flags, channel=channel).close()

    wait_until(lambda: daemon.pids("7.1") == [])
    daemon.assert_alive()
    assert daemon.holder() is None
    assert daemon.metrics()["groups"]["7.1"]["window"] == 0, "it still counts as attached"
    with daemon.hello("8.1") as low:
        assert answer(low).kind is MessageKind.WELCOME
        low.send(wire.pack(Message(kind=MessageKind.REQUEST)))
        assert answer(low).kind is MessageKind.GRANT


def test_a_client_that_says_nothing_is_disconnected(daemon: Daemon) -> None:
    with daemon.connect() as silent, daemon.hello("8.1") as low:
        assert silent.recv(64) == b""
        assert answer(low).kind is MessageKind.WELCOME
        assert daemon.pids("8.1") == [os.getpid()]


def test_silent_connections_of_a_user_take_no_place_of_his_jobs(daemon: Daemon) -> None:
    silent = [daemon.connect() for _ in range(SILENT_OF_A_USER + 1)]
    try:
        assert answer(silent[0]).kind is MessageKind.BUSY
        with daemon.hello("8.1") as low:
            assert answer(low).kind is MessageKind.WELCOME
    finally:
        for channel in silent:
            channel.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: connects as another user")
def test_silent_connections_of_a_user_take_no_place_of_others(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.folder.chmod(0o755)
    monkeypatch.chdir(daemon.folder)  # its parents are closed to others
    daemon.folder = Path()
    mine = daemon.connect()
    os.seteuid(65534)
    try:
        theirs = [daemon.connect() for _ in range(4 * SILENT_OF_A_USER)]
    finally:
        os.seteuid(0)
    with mine:
        mine.send(wire.pack(Message(kind=MessageKind.HELLO)) + SECRETS["8.1"].encode())
        assert answer(mine).kind is MessageKind.WELCOME
    for channel in theirs:
        channel.close()


@pytest.mark.parametrize("version", [wire.OLDEST_VERSION - 1, wire.VERSION + 1, 0xFFFF])
def test_a_client_of_another_version_is_told_which_are_served(version: int, daemon: Daemon) -> None:
    with daemon.connect() as client:
        client.send(wire.pack(Message(kind=MessageKind.HELLO), version) + SECRETS["8.1"].encode())
        told = answer(client)
        assert (told.kind, told.a, told.b) == (
            MessageKind.VERSION,
            wire.OLDEST_VERSION,
            wire.VERSION,
        )
        assert client.recv(64) == b""
    assert daemon.pids("8.1") == []


@pytest.mark.parametrize("version", range(wire.OLDEST_VERSION, wire.VERSION + 1))
def test_a_client_is_answered_in_its_own_version(version: int, daemon: Daemon) -> None:
    with daemon.connect() as client:
        client.send(
            wire.pack(Message(kind=MessageKind.HELLO, b=1), version) + SECRETS["8.1"].encode()
        )
        assert wire.version_of(client.recv(64)) == version
        client.send(wire.pack(Message(kind=MessageKind.RESERVE, a=1), version))
        data = client.recv(64)
        assert wire.unpack(data)[0].kind is MessageKind.RESERVED
        assert wire.version_of(data) == version


def test_more_connections_than_descriptors_do_not_end_the_daemon(daemon: Daemon) -> None:
    daemon.limit_descriptors(8)
    silent = [daemon.connect() for _ in range(SILENT_OF_A_USER)]
    with daemon.hello("8.1") as low:
        assert answer(low).kind is MessageKind.WELCOME

    daemon.assert_alive()
    for channel in silent:
        channel.close()


def test_jobs_that_need_more_descriptors_than_there_are_try_again(daemon: Daemon) -> None:
    """A gate needs two, too; gnode gets its answers all the time."""
    daemon.limit_descriptors(3)
    clients = [daemon.hello("7.1", channel=wire.CHANNEL_MEMORY) for _ in range(6)]
    kinds = [answer(client).kind for client in clients]
    assert {kind.name for kind in kinds} == {"WELCOME", "BUSY"}
    with daemon.hello("8.1") as low:
        assert answer(low).kind is MessageKind.BUSY
    daemon.assert_alive()

    for client in clients:
        client.close()

    def is_welcome() -> bool:  # gnode's questions need descriptors, too, for a moment
        with daemon.hello("8.1") as low:
            return answer(low).kind is MessageKind.WELCOME

    wait_until(is_welcome)


def test_a_holder_that_asks_again_is_answered_alone(daemon: Daemon) -> None:
    """Else each message of a job of many processes would be answered to all of them."""
    with daemon.hello("8.1") as first, daemon.hello("8.1") as second:
        for client in (first, second):
            assert answer(client).kind is MessageKind.WELCOME
        first.send(wire.pack(Message(kind=MessageKind.REQUEST)))
        assert [answer(client).kind for client in (first, second)] == [MessageKind.GRANT] * 2

        for _ in range(3):
            first.send(wire.pack(Message(kind=MessageKind.REQUEST)))
            assert answer(first).kind is MessageKind.GRANT
        second.send(wire.pack(Message(kind=MessageKind.PING)))
        assert answer(second).kind is MessageKind.PONG


class Stopped:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_s(self) -> float:
        raise AssertionError("the daemon has no use for the time of day")


@contextmanager
def serving(folder: Path, clock: Clock) -> Iterator[TokenDaemon]:
    """Run a daemon with two jobs in a thread, by another clock than the machine's."""
    tokens = NodeTokens()
    for group, share_class in (("7.1", ShareClass.HIGH), ("8.1", ShareClass.LOW)):
        secret_hash = hash_of(SECRETS[group])
        tokens.admit(
            Admission(
                group=group,
                gpu="GPU-1",
                share_class=share_class,
                memory_bytes=1 << 30,
                secret_hash=secret_hash,
            )
        )
    made = TokenDaemon(folder, tokens, clock)
    ready = threading.Event()
    thread = threading.Thread(target=made.run, args=(ready.set,))
    thread.start()
    assert ready.wait(PATIENCE_S)
    try:
        yield made
    finally:
        keeper = DaemonKeeper(folder)
        for group in SECRETS:
            keeper.ask(order="remove", group=group)
        keeper.ask(order="finish")
        thread.join()


def test_connections_of_strangers_are_taken_in_as_fast_as_their_budget(tmp_path: Path) -> None:
    """Those of jobs do not count, and wait behind them. The clock stands still."""
    clock = Stopped()

    def connect() -> socket.socket:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        client.settimeout(PATIENCE_S)
        client.connect(str(tmp_path / JOBS_SOCKET))
        return client

    def greet(client: socket.socket) -> None:
        hello = wire.pack(Message(kind=MessageKind.HELLO, b=wire.CHANNEL_MEMORY))
        client.send(hello + SECRETS["8.1"].encode())

    with serving(tmp_path, clock), ExitStack() as opened:
        clients = [opened.enter_context(connect()) for _ in range(10)]
        for client in clients:
            greet(client)
            assert answer(client).kind is MessageKind.WELCOME
        for _ in range(int(STRANGERS_AT_ONCE)):
            with connect() as stranger:
                stranger.send(b"knock")
                assert stranger.recv(64) == b"", "it was read, and hung up on"

        greet(late := opened.enter_context(connect()))
        assert select.select([late], [], [], 0.3)[0] == []
        clients[0].send(wire.pack(Message(kind=MessageKind.RESERVE)))
        assert answer(clients[0]).kind is MessageKind.RESERVED, "jobs are served all the time"

        clock.now_s += 2 * READ_AGAIN / STRANGERS_PER_S
        clients[0].send(wire.pack(Message(kind=MessageKind.RESERVE)))
        assert answer(late).kind is MessageKind.WELCOME


@pytest.mark.parametrize("processes", [1, 40])
def test_a_flood_of_a_job_is_read_as_fast_as_its_budget_and_does_not_delay_others(
    processes: int, tmp_path: Path
) -> None:
    """However many processes it has. The clock stands still, so its budget is not filled up."""
    clock = Stopped()

    def connect(group: str) -> socket.socket:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        client.settimeout(PATIENCE_S)
        client.connect(str(tmp_path / JOBS_SOCKET))
        hello = wire.pack(Message(kind=MessageKind.HELLO, b=wire.CHANNEL_MEMORY))
        client.send(hello + SECRETS[group].encode())
        assert answer(client).kind is MessageKind.WELCOME
        return client

    with serving(tmp_path, clock), ExitStack() as opened:
        low = [opened.enter_context(connect("8.1")) for _ in range(processes)]
        high = opened.enter_context(connect("7.1"))
        question = wire.pack(Message(kind=MessageKind.RESERVE))

        def ask(client: socket.socket) -> bool:
            client.send(question)
            return bool(select.select([client], [], [], 0.2)[0] and client.recv(64))

        def answers(count: int) -> int:
            return sum(ask(low[number % processes]) for number in range(count))

        assert answers(int(MESSAGES_AT_ONCE)) == MESSAGES_AT_ONCE
        assert answers(3) == 0
        assert all(ask(high) for _ in range(100))

        clock.now_s += READ_AGAIN / MESSAGES_PER_S
        for client in low[:3]:
            assert client.recv(64)


def test_a_file_that_cannot_be_written_hinders_no_job_and_is_written_later(daemon: Daemon) -> None:
    """Such as on a full file system."""
    pid = daemon.metrics()["pid"]
    limits = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, limits[1]))
    daemon.admit("9.1", "low", "secret of 9")
    daemon.keeper.ask(order="remove", group="8.1")
    with daemon.hello("7.1", channel=wire.CHANNEL_MEMORY) as client:
        assert answer(client).kind is MessageKind.WELCOME
    daemon.assert_alive()
    assert set(daemon.saved()) == {"7.1", "8.1"}

    resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)
    wait_until(lambda: daemon.metrics() and set(daemon.saved()) == {"7.1", "9.1"})
    daemon.keeper.ask(order="remove", group="9.1")


def test_a_daemon_that_does_not_answer_is_replaced(tmp_path: Path) -> None:
    """As one that is stopped or stuck; its jobs are known to the next one."""
    keeper = DaemonKeeper(tmp_path, look_s=0.2, answer_s=0.5)
    keeper.ensure()
    daemon = Daemon(tmp_path)
    stuck = daemon.metrics()["pid"]
    try:
        os.kill(stuck, signal.SIGSTOP)
        wait_until(lambda: keeper.restarts == 1, what="another daemon")

        with daemon.hello("8.1") as low:
            assert answer(low).kind is MessageKind.WELCOME
        assert daemon.metrics()["pid"] != stuck
        assert not lives(stuck)
    finally:
        keeper.close()
        for group in SECRETS:
            daemon.keeper.ask(order="remove", group=group)
        daemon.keeper.close()


def test_a_daemon_that_does_not_answer_is_replaced_for_an_admission(tmp_path: Path) -> None:
    """gnode is restarted, and finds a daemon that it has never heard of."""
    earlier = Daemon(tmp_path)
    stuck = earlier.metrics()["pid"]
    os.kill(stuck, signal.SIGSTOP)
    keeper = DaemonKeeper(tmp_path, answer_s=0.5)
    try:
        keeper.ensure()

        assert keeper.ask(order="metrics")["pid"] != stuck
        assert not lives(stuck)
    finally:
        for group in SECRETS:
            keeper.ask(order="remove", group=group)
        earlier.keeper.close()
        keeper.close()


def test_a_daemon_is_started_again_when_its_log_can_be_opened_again(tmp_path: Path) -> None:
    """As on a full file system, or without descriptors: gnode goes on trying."""
    daemon = Daemon(tmp_path)
    pid = daemon.metrics()["pid"]
    (tmp_path / LOG_FILE).unlink()
    (tmp_path / LOG_FILE).mkdir()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not lives(pid))
    time.sleep(1.0)
    assert daemon.keeper.look() is None

    (tmp_path / LOG_FILE).rmdir()

    wait_until(lambda: daemon.keeper.restarts == 1, what="another daemon")
    assert daemon.pids("7.1") == []
    for group in SECRETS:
        daemon.keeper.ask(order="remove", group=group)
    daemon.keeper.close()

"""The token daemon alone, against clients that break off, say nothing, or are too many."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from gnode.gpushare import wire
from gnode.gpushare.keeper import LOG_FILE, Keeper
from gnode.gpushare.node_tokens import hash_of
from gnode.gpushare.tokend import JOBS_SOCKET
from gnode.gpushare.wire import Kind, Message
from tests.support.cluster import wait_until

SECRETS = {"7.1": "secret of 7", "8.1": "secret of 8"}


class Daemon:
    """A token daemon that knows a high and a low job, and clients of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.keeper = Keeper(folder)
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

    def connect(self) -> socket.socket:
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        channel.settimeout(10.0)
        channel.connect(str(self.folder / JOBS_SOCKET))
        return channel

    def hello(self, group: str, *, flags: int = 0, channel: int = 0) -> socket.socket:
        client = self.connect()
        message = Message(kind=Kind.HELLO, flags=flags, b=channel)
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

    def assert_alive(self) -> None:
        self.metrics()
        assert "Traceback" not in (self.folder / LOG_FILE).read_text()
        assert self.keeper.restarts == 0


def answer(channel: socket.socket) -> Message:
    """Return the next message; a descriptor beside it is closed."""
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
        assert answer(low).kind is Kind.WELCOME
        low.send(wire.pack(Message(kind=Kind.REQUEST)))
        assert answer(low).kind is Kind.GRANT

"""Terminal sessions under attack: a host without the session's node name gets and types nothing."""

import asyncio
import secrets
import sys

import aiohttp

from gsched import terminal as t
from gsched.protocol.sessions import READY
from gsched.terminal import FrameKind
from tests.support.cluster import Cluster
from tests.support.commands import command_environment
from tests.support.dialler import dialled
from tests.support.processes import PATIENCE_S
from tests.support.ptys import Sitting
from tests.support.wire import Side, Wire


async def call(cluster: Cluster, path: str, session: str) -> bool:
    """Say hello as node n1; return whether the head shows what is sent then."""
    async with dialled(cluster, path=path) as peer:
        await peer.say_hello(session=session)
        await peer.hear()
        await peer.socket.send_bytes(READY)
        await peer.socket.send_bytes(t.frame(FrameKind.DATA, b"forged"))
        answer = await peer.socket.receive(timeout=PATIENCE_S)
        return answer.type is aiohttp.WSMsgType.BINARY


def test_a_connection_without_a_session_that_was_requested_gets_none(cluster: Cluster) -> None:
    """Also on the other path; and by TCP a certificate is needed."""
    cluster.start_head()
    session = secrets.token_hex(16)

    assert not asyncio.run(call(cluster, "/v1/session", session))
    assert not asyncio.run(call(cluster, "/v1/session", ""))
    assert not asyncio.run(call(cluster, "/v1/node", session))


def test_a_changed_byte_ends_the_connection_and_not_the_session(cluster: Cluster) -> None:
    """Nothing of it is shown or typed; the client connects again, and the shell goes on."""
    cluster.start_head()
    changed: list[Side] = []

    with Wire(cluster.node_port) as wire:
        cluster.start_node("n1", head=f"127.0.0.1:{wire.port}")
        user = Sitting(
            [sys.executable, "-m", "gsched.cli.commands.gsub", "-I", "-S", "/bin/sh"],
            env=command_environment(cluster.socket, TERM="dumb"),
            cwd=cluster.jobs,
        )
        user.match(r"[$#] ")

        def spoil(side: Side, _count: int, part: bytes) -> bytes:
            if changed:
                return part
            changed.append(side)
            return part[:-1] + bytes([part[-1] ^ 1])

        wire.change = spoil
        user.type("echo marked\n")
        user.until("connecting again")
        user.until("connected again")
        user.type("echo af''ter\n")
        user.until("after")
        user.type("exit\n")
        assert user.code() == 0
        user.close()
        cluster.stop_node("n1")

    assert changed
    assert b"marked" not in wire.seen

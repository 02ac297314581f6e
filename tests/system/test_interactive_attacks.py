"""Terminal sessions under attack: who does not know the key sees and types nothing of his own."""

import asyncio
import secrets
import sys

import aiohttp
import pytest

from gsched import terminal as t
from gsched.protocol import node as n
from gsched.protocol.endpoint import endpoint
from gsched.protocol.sealing import Sealer, session_keys
from gsched.protocol.sessions import READY
from gsched.terminal import FrameKind
from tests.support.cluster import Cluster
from tests.support.commands import command_environment
from tests.support.ptys import Sitting
from tests.support.relay import Frame, Relay, Side, pass_on


async def call(cluster: Cluster, path: str, key: bytes, session: str) -> bool:
    """Say hello as node n1 and prove it with a key; return whether the head goes on."""
    url = f"ws://127.0.0.1:{cluster.node_port}{path}"
    async with aiohttp.ClientSession() as client, client.ws_connect(url) as channel:
        hello = n.Hello(
            version=n.PROTOCOL_VERSION,
            node="n1",
            nonce=secrets.token_hex(16),
            here=endpoint(channel.get_extra_info("sockname")),
            there=endpoint(channel.get_extra_info("peername")),
            session=session,
        )
        plain = n.encode([hello])
        await channel.send_str(plain.decode())
        challenge = await channel.receive(timeout=20)
        if challenge.type is not aiohttp.WSMsgType.BINARY:
            return False
        from_node, _ = session_keys(key, plain, challenge.data)
        sealer = Sealer(from_node)
        await channel.send_bytes(sealer.seal(READY))
        await channel.send_bytes(sealer.seal(t.frame(FrameKind.DATA, b"forged")))
        answer = await channel.receive(timeout=20)
        return answer.type is aiohttp.WSMsgType.BINARY


def test_a_connection_that_proves_nothing_gets_no_session(cluster: Cluster) -> None:
    """Without the key, with it but without a session that was requested, or on the other path."""
    cluster.start_head()
    key = cluster.key_file.read_bytes().strip()
    before = cluster.head.status().dropped.get("frame_not_authentic", 0)
    session = secrets.token_hex(16)

    assert not asyncio.run(call(cluster, "/v1/session", b"another key", session))
    assert cluster.head.status().dropped.get("frame_not_authentic", 0) == before + 1
    assert not asyncio.run(call(cluster, "/v1/session", key, session))
    assert not asyncio.run(call(cluster, "/v1/session", key, ""))
    assert not asyncio.run(call(cluster, "/v1/node", key, session))


@pytest.mark.parametrize("side", ["node", "head"])
def test_a_changed_frame_ends_the_connection_and_not_the_session(
    cluster: Cluster, side: Side
) -> None:
    """Nothing of it is shown or typed; the client connects again, and the shell goes on."""
    cluster.head_settings = {"node_tunnel": True}
    cluster.start_head()
    changed: list[Frame] = []

    def play(sender: Side, number: int, frame: Frame) -> list[tuple[Side, Frame]]:
        target: Side = "head" if sender == "node" else "node"
        if sender == side and not changed and b"marked" in (frame if number else b""):
            assert isinstance(frame, bytes)
            changed.append(frame)
            return [(target, frame.replace(b"marked", b"FORGED"))]
        return pass_on(sender, number, frame)

    with Relay(cluster.node_port) as relay:
        relay.play_session = play
        cluster.start_node("n1", head=f"127.0.0.1:{relay.port}")
        user = Sitting(
            [sys.executable, "-m", "gsched.cli.commands.gsub", "-I", "-S", "/bin/sh"],
            env=command_environment(cluster.socket, TERM="dumb"),
            cwd=cluster.jobs,
        )
        user.match(r"[$#] ")
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
    assert "FORGED" not in user.text

"""The node channel under attack: relays, forged, replayed and changed frames, with real daemons."""

import asyncio
import os
import pwd
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TypeVar

import aiohttp
import pytest

from gsched.model.gpu_tokens import GpuSharing, TokenUse
from gsched.model.job import Owner
from gsched.model.resources import Load
from gsched.protocol import api
from gsched.protocol import node as n
from gsched.protocol.unreadable import Unreadable
from tests.support.cluster import ROOT, Cluster, wait_until
from tests.support.dialler import Dialler
from tests.support.fake_head import launch_order
from tests.support.processes import attempts
from tests.support.relay import Frame, Play, Relay, Side, pass_on

T = TypeVar("T")


def own_account() -> Owner:
    account = pwd.getpwuid(os.getuid())
    return Owner(user=account.pw_name, uid=account.pw_uid, gid=account.pw_gid)


def forged(cluster: Cluster) -> bytes:
    """Return a welcome and a launch as the head would send them; the job would leave a file."""
    status = cluster.head.status()
    order = launch_order(77, own_account(), cluster.jobs, script=f"touch {cluster.jobs}/forged\n")
    messages: list[n.HeadMessage] = [n.Welcome(cluster=status.cluster, epoch=status.epoch), order]
    return n.encode(messages)


def submit_and_wait(cluster: Cluster, script: str = "true\n") -> None:
    """Have a job run from submission to its end: the channel works."""
    job = api.SubmitJob(
        key=os.urandom(8).hex(),
        name="x",
        workdir=str(cluster.jobs),
        launch="script",
        script=f"#!/bin/sh\n{script}",
    )
    (result,) = cluster.head.submit([job]).results
    assert result.id is not None
    number = result.id
    wait_until(lambda: cluster.head.job(number).row.state == "done", 60.0, what="the job's end")


def attack(cluster: Cluster, play: Play) -> None:
    """Start a node behind a relay that plays, until gnode has dialled for the third time."""
    with Relay(cluster.node_port, play) as relay:
        cluster.start_node("n1", head=f"127.0.0.1:{relay.port}", wait=False)
        left = cluster.jobs / "forged"
        wait_until(lambda: relay.connections >= 3 or left.exists(), what="gnode to dial again")
        assert not left.exists()
        assert not list((cluster.node_dir("n1") / "attempts").iterdir())


# --- a relay ---


FORMS: dict[str, Callable[[bytes], Frame]] = {
    "as text": lambda payload: payload.decode(),
    "as a frame without MAC": lambda payload: payload,
    "with a MAC of zeros": lambda payload: bytes(32 + 8) + payload,
    "with an empty MAC": lambda payload: bytes(8) + payload,
}


@pytest.mark.parametrize("form", FORMS)
def test_a_relayed_handshake_lets_nobody_give_orders(cluster: Cluster, form: str) -> None:
    """A user who holds a dead head's port passes hello and challenge on, then gives own orders."""
    cluster.head_settings = {"node_tunnel": True}
    cluster.start_head()
    orders = FORMS[form](forged(cluster))

    def play(sender: Side, number: int, frame: Frame) -> list[tuple[Side, Frame]]:
        if (sender, number) == ("node", 1):  # the registration is not passed on
            return [("node", orders)]
        return pass_on(sender, number, frame)

    attack(cluster, play)

    assert "not obeyed" in cluster.log("n1.log")
    assert cluster.head.nodes().nodes == ()


def test_a_relay_on_loopback_is_refused_with_words(cluster: Cluster) -> None:
    """It could add nothing, but read all; only the head's own port is the head."""
    cluster.start_head()
    with Relay(cluster.node_port) as relay:
        cluster.start_node("n1", head=f"127.0.0.1:{relay.port}", wait=False)
        wait_until(lambda: "node_tunnel" in cluster.log("n1.log"), what="gnode to say why")
        (refusal,) = relay.frames("head")
    assert isinstance(refusal, str)
    assert "something is between them" in refusal
    assert cluster.head.nodes().nodes == ()


def test_a_tunnel_that_the_site_allows_carries_the_channel(cluster: Cluster) -> None:
    cluster.head_settings = {"node_tunnel": True}
    cluster.start_head()
    with Relay(cluster.node_port) as relay:
        cluster.start_node("n1", head=f"127.0.0.1:{relay.port}")
        submit_and_wait(cluster)
        cluster.stop_node("n1")


# --- somebody on the way who changes frames ---

Change = Callable[[list[bytes], bytes], list[Frame]]  # frames of this side so far, and this one

CHANGES: dict[str, Change] = {
    "a changed bit": lambda _, frame: [frame[:-2] + bytes([frame[-2] ^ 1]) + frame[-1:]],
    "appended bytes (T12)": lambda _, frame: [frame + b" "],
    "a cut MAC (T14)": lambda _, frame: [frame[8:]],
    "no MAC (T14)": lambda _, frame: [frame[32:]],
    "no bytes at all": lambda _, frame: [b""],
    "the payload as text (T13)": lambda _, frame: [frame[40:].decode()],
    "a repeated frame (T11)": lambda before, _: [before[-1]],
    "a frame that comes twice (E8)": lambda _, frame: [frame, frame],
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("side", ["node", "head"])
def test_a_changed_frame_closes_the_connection_and_nothing_of_it_is_done(
    cluster: Cluster, side: Side, change: str
) -> None:
    """Then node and head connect anew, and the job runs once."""
    cluster.head_settings = {"node_tunnel": True}
    cluster.start_head()
    target: Side = "head" if side == "node" else "node"
    state = {"spoilt": False}
    before: list[bytes] = []

    def play(sender: Side, number: int, frame: Frame) -> list[tuple[Side, Frame]]:
        if sender == side and number == 2 and not state["spoilt"]:
            state["spoilt"] = True
            assert isinstance(frame, bytes)
            return [(target, made) for made in CHANGES[change](before, frame)]
        if sender == side and isinstance(frame, bytes) and not state["spoilt"]:
            before.append(frame)
        return pass_on(sender, number, frame)

    with Relay(cluster.node_port, play) as relay:
        cluster.start_node("n1", head=f"127.0.0.1:{relay.port}")
        submit_and_wait(cluster, f"echo ran >> {cluster.jobs}/runs\n")
        wait_until(lambda: relay.connections >= 2, what="gnode to dial again")
        cluster.wait_for_node("n1")
        cluster.stop_node("n1")

    assert state["spoilt"]
    assert (cluster.jobs / "runs").read_text() == "ran\n"
    if side == "node":
        assert cluster.head.status().dropped["frame_not_authentic"] == 1
    else:
        assert cluster.log("n1.log").count("not obeyed") == 1


# --- somebody who talks to the head's port ---


def talk(
    cluster: Cluster,
    story: Callable[[Dialler], Coroutine[None, None, T]],
    *,
    node: str = "n1",
    key: bytes = b"",
) -> T:
    """Run a conversation with the head's port for nodes."""

    async def run() -> T:
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(f"ws://127.0.0.1:{cluster.node_port}/v1/node", compress=0) as socket,
        ):
            known = cluster.key_file.read_bytes().strip()
            return await story(Dialler(socket, key or known, node=node))

    return asyncio.run(run())


async def refused_hello(dialler: Dialler, *, version: int = n.PROTOCOL_VERSION) -> n.Refused:
    """Say hello and return the refusal."""
    await dialler.say_hello(version=version)
    frame = await dialler.socket.receive(timeout=20)
    (refusal,) = n.decode_from_head(frame.data)
    assert isinstance(refusal, n.Refused)
    assert (await dialler.socket.receive(timeout=20)).type is aiohttp.WSMsgType.CLOSE
    return refusal


@pytest.mark.parametrize("version", [1, n.PROTOCOL_VERSION + 1])
def test_a_peer_of_another_version_is_refused_with_words(cluster: Cluster, version: int) -> None:
    """T13: the version is part of what is authenticated, and no other one is spoken."""
    cluster.start_head()

    refusal = talk(cluster, lambda dialler: refused_hello(dialler, version=version))

    assert refusal.fatal
    assert f"version {version}" in refusal.message
    assert "install the same gsched" in refusal.message


@pytest.mark.parametrize(
    "name", ["", "-n1", ".", "a b", "n1\n", "n\x1b[31m1", "n/1", "ü", "n" * 65, "n\0", "n1*"]
)
def test_a_name_that_is_none_is_refused(cluster: Cluster, name: str) -> None:
    cluster.start_head()

    refusal = talk(cluster, refused_hello, node=name)

    assert refusal.fatal
    assert "is not valid: a node name has 1 to 64 letters" in refusal.message
    assert cluster.head.nodes().nodes == ()
    assert "\x1b" not in cluster.log("head.log")


def test_t7_who_does_not_know_the_key_is_heard_by_nobody(cluster: Cluster) -> None:
    """The head's challenge does not open, and what is sealed with another key ends it."""
    cluster.start_head()

    async def story(dialler: Dialler) -> aiohttp.WSMsgType:
        await dialler.say_hello()
        await dialler.frame()  # the challenge, which cannot be opened
        await dialler.say()  # sealed with another key
        return (await dialler.socket.receive(timeout=20)).type

    assert talk(cluster, story) is aiohttp.WSMsgType.CLOSE
    assert cluster.head.status().dropped == {"frame_not_authentic": 1}
    assert "does not know the cluster's key" in cluster.log("head.log")
    assert cluster.head.nodes().nodes == ()


def test_t11_a_recorded_registration_is_worth_nothing_on_another_connection(
    cluster: Cluster,
) -> None:
    """The head's nonce is part of the keys."""
    cluster.head_settings = {"node_tunnel": True}
    cluster.start_head()
    with Relay(cluster.node_port) as relay:
        cluster.start_node("n1", head=f"127.0.0.1:{relay.port}")
        cluster.stop_node("n1")
        hello, registration = relay.frames("node")[:2]

    async def story(dialler: Dialler) -> aiohttp.WSMsgType:
        assert isinstance(hello, str)
        assert isinstance(registration, bytes)
        await dialler.socket.send_str(hello)
        await dialler.frame()
        await dialler.socket.send_bytes(registration)
        return (await dialler.socket.receive(timeout=20)).type

    cluster.wait_for_node("n1", "unreachable")
    assert talk(cluster, story) is aiohttp.WSMsgType.CLOSE
    assert cluster.head.nodes().nodes[0].state == "unreachable"


async def cut_off_by(dialler: Dialler, *messages: n.NodeMessage) -> None:
    """Register, say something, and return once the head has closed the connection."""
    await dialler.call()
    assert isinstance(await dialler.register(), n.Welcome)
    await dialler.say(*messages)
    while (await dialler.socket.receive(timeout=20)).type is not aiohttp.WSMsgType.CLOSE:
        pass


@pytest.mark.parametrize(
    "second",
    [n.Hello(version=n.PROTOCOL_VERSION, node="n2", nonce="00")],
    ids=lambda message: type(message).__name__,
)
def test_t17_who_speaks_cannot_change_on_a_connection(
    cluster: Cluster, second: n.NodeMessage
) -> None:
    cluster.start_head()

    talk(cluster, lambda dialler: cut_off_by(dialler, second))

    assert [row.name for row in cluster.head.nodes().nodes] == ["n1"]


def test_a_message_that_a_node_cannot_read_holds_its_job_and_is_not_repeated(
    cluster: Cluster,
) -> None:
    """And a report with a part that the head cannot read costs that part, not the connection."""
    cluster.start_head()
    job = api.SubmitJob(
        key="", name="x", workdir="/tmp", launch="command", arguments=("true",), movable=True
    )
    used = GpuSharing(jobs=(TokenUse(job=1, attempt=1, index=0, launches=2**60),))
    heartbeat = n.Heartbeat(load=Load(load1=7.0), usage=(), gpu_sharing=used)

    async def refuse_its_launch(dialler: Dialler) -> int:
        await dialler.call()
        await dialler.register()
        number = (await asyncio.to_thread(cluster.head.submit, [job])).results[0].id
        while not any(isinstance(each, n.Launch) for each in await dialler.hear_all(20.0)):
            pass
        await dialler.say(heartbeat, Unreadable(of="launch", job=number, attempt=1, reason="why"))
        for _ in attempts(20.0):
            row = (await asyncio.to_thread(cluster.head.job, number)).row
            if row.state == "held":
                break
        assert not dialler.is_closed
        return number

    async def come_again(dialler: Dialler) -> list[n.HeadMessage]:
        await dialler.call()
        await dialler.register()
        return [each for _ in range(3) for each in await dialler.hear_all(1.0)]

    number = talk(cluster, refuse_its_launch)
    row = cluster.head.job(number).row
    assert "LAUNCH_BAD" in row.reason
    assert "node n1 cannot read the message that starts it: why" in row.reason
    assert not any(isinstance(each, n.Launch) for each in talk(cluster, come_again))
    log = cluster.log("head.log")
    assert f"it cannot read the message launch of job {number}, attempt 1: why" in log
    assert "jobs[0].launches of a report of job 1 is left out" in log


def test_t10_the_nodes_port_takes_no_commands(cluster: Cluster) -> None:
    """Nor does the socket for commands take nodes: a role belongs to its listener."""
    cluster.start_head()

    async def story() -> tuple[int, int]:
        async with aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{cluster.node_port}/v1/jobs"
            async with session.get(url) as answer:
                over_nodes = answer.status
        connector = aiohttp.UnixConnector(str(cluster.socket))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get("http://head/v1/node") as answer,
        ):
            over_commands = answer.status
        return over_nodes, over_commands

    assert asyncio.run(story()) == (404, 404)


# --- the Unix socket of one machine ---


def test_a_node_on_the_heads_machine_uses_its_unix_socket(cluster: Cluster) -> None:
    cluster.start_head()
    path = cluster.directory / "head-node.sock"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600

    cluster.start_node("n1", head=f"unix:{path}", address="")

    submit_and_wait(cluster)
    assert cluster.head.nodes().nodes[0].address == "127.0.0.1"
    cluster.kill_head()
    cluster.start_head()
    cluster.wait_for_node("n1")
    submit_and_wait(cluster)


def test_a_head_can_do_without_the_unix_socket(cluster: Cluster) -> None:
    cluster.head_settings = {"node_socket": "none"}
    cluster.start_head()

    assert not (cluster.directory / "head-node.sock").exists()


NOBODY = 65534
#: Listens as nobody on a socket that root has bound, and tells of each frame that comes.
LISTENER = """
import asyncio, os, socket, sys
from aiohttp import web
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
os.setgid(65534); os.setuid(65534)
async def node(request):
    channel = web.WebSocketResponse()
    await channel.prepare(request)
    print("called", flush=True)
    async for frame in channel:
        print("told", flush=True)
    return channel
async def main():
    app = web.Application()
    app.router.add_get("/v1/node", node)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.SockSite(runner, listener).start()
    await asyncio.Event().wait()
asyncio.run(main())
"""

#: Says hello to a head as nobody, and prints the answer.
CALLER = """
import asyncio, os, sys
import aiohttp
from gsched.protocol import node as n
os.setgid(65534); os.setuid(65534)
async def main():
    connector = aiohttp.UnixConnector(sys.argv[1])
    async with aiohttp.ClientSession(connector=connector) as session:
        async with session.ws_connect("http://head/v1/node") as channel:
            hello = n.Hello(version=n.PROTOCOL_VERSION, node="n1", nonce="00")
            await channel.send_str(n.encode([hello]).decode())
            print((await channel.receive()).data)
try:
    asyncio.run(main())
except OSError as error:
    print(f"{type(error.__cause__ or error).__name__}: {error}")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be somebody else")
def test_gnode_says_nothing_to_another_users_socket(cluster: Cluster) -> None:
    """Neither in that user's directory, nor where that user has got a socket into the head's."""
    theirs, heads = cluster.directory / "theirs", cluster.directory / "heads"
    for path, owner in ((theirs, NOBODY), (heads, 0)):
        path.mkdir(mode=0o755)
        os.chown(path, owner, owner)
    open_to_all = cluster.directory / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    for path, words in (
        (theirs, f"belongs to uid {NOBODY}"),
        (open_to_all, "others may write into"),
    ):
        name = path.name
        cluster.start_node(name, head=f"unix:{path}/node.sock", wait=False)
        wait_until(lambda: words in cluster.log(f"{name}.log"), what=words)  # noqa: B023 # used at once
    command = [sys.executable, "-c", LISTENER, str(heads / "node.sock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as listener:
        wait_until((heads / "node.sock").exists, what="the false head's socket")
        cluster.start_node("n1", head=f"unix:{heads}/node.sock", wait=False)
        wait_until(lambda: "of uid 65534, not the head's" in cluster.log("n1.log"), what="refusal")
        listener.terminate()
        assert listener.stdout is not None
        assert listener.stdout.read() == b"called\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be somebody else")
def test_the_head_takes_no_node_of_another_user_on_its_unix_socket(cluster: Cluster) -> None:
    """Its mode keeps others out; should that be lost, the kernel's word does."""
    cluster.start_head()
    path = cluster.directory / "head-node.sock"
    for directory in (cluster.directory, *cluster.directory.parents):
        if directory == Path(tempfile.gettempdir()):
            break
        directory.chmod(0o755)

    assert "PermissionError" in said_to_nobody(path)
    path.chmod(0o666)
    assert "a gnode of uid 65534 is refused" in said_to_nobody(path)


def said_to_nobody(path: Path) -> str:
    """Return what a head says to a gnode of another user."""
    command = [sys.executable, "-c", CALLER, str(path)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False).stdout

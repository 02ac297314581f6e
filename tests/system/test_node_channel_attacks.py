"""The node channel under attack: others on the way, in place of the head, in place of a node."""

import asyncio
import base64
import hashlib
import os
import pwd
import socket
import ssl
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import pytest

from gsched.model.gpu_tokens import GpuSharing, TokenUse
from gsched.model.job import Owner
from gsched.model.resources import Load
from gsched.pki.files import CertificateFiles
from gsched.protocol import node as n
from gsched.protocol import submissions
from gsched.protocol.unreadable import Unreadable
from tests.support.certificates import give_certificate
from tests.support.cluster import ROOT, Cluster, wait_until
from tests.support.dialler import Dialler, dialled
from tests.support.processes import PATIENCE_S, attempts
from tests.support.wire import Side, Wire, hello_over_tls

T = TypeVar("T")


def own_account() -> Owner:
    account = pwd.getpwuid(os.getuid())
    return Owner(user=account.pw_name, uid=account.pw_uid, gid=account.pw_gid)


def submit_and_wait(cluster: Cluster, script: str = "true\n") -> None:
    """Have a job run from submission to its end: the channel works."""
    job = submissions.SubmitJob(
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


# --- somebody on the way ---


def test_a_tunnel_carries_the_channel_and_can_read_nothing(cluster: Cluster) -> None:
    cluster.start_head()
    with Wire(cluster.node_port) as wire:
        cluster.start_node("n1", head=f"127.0.0.1:{wire.port}")
        submit_and_wait(cluster, ": secret-of-a-script\n")
        cluster.stop_node("n1")

    assert wire.seen
    assert b"secret-of-a-script" not in wire.seen
    assert b"register" not in wire.seen


CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "a changed bit": lambda part: part[:-1] + bytes([part[-1] ^ 1]),
    "appended bytes (T12)": lambda part: part + b" ",
    "a cut record (T14)": lambda part: part[:-16] if len(part) > 16 else part[:-1],
    "repeated bytes (T11, E8)": lambda part: part + part,
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("side", ["node", "head"])
def test_changed_bytes_close_the_connection_and_nothing_of_them_is_done(
    cluster: Cluster, side: Side, change: str
) -> None:
    """Then node and head connect anew, and the job runs once."""
    cluster.start_head()
    spoilt: list[Side] = []

    def spoil(sender: Side, _count: int, part: bytes) -> bytes:
        if sender != side or spoilt:
            return part
        spoilt.append(sender)
        return CHANGES[change](part)

    with Wire(cluster.node_port) as wire:
        cluster.start_node("n1", head=f"127.0.0.1:{wire.port}")
        wire.change = spoil
        submit_and_wait(cluster, f"echo ran >> {cluster.jobs}/runs\n")
        wait_until(lambda: wire.connections >= 2, what="gnode to dial again")
        cluster.wait_for_node("n1")
        cluster.stop_node("n1")

    assert spoilt
    assert (cluster.jobs / "runs").read_text() == "ran\n"
    assert "Traceback" not in cluster.log("head.log") + cluster.log("n1.log")


# --- somebody in place of the head ---

WS_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
UPGRADED = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Accept: %s\r\n\r\n"
)


@contextmanager
def impostor(cluster: Cluster, files: CertificateFiles) -> Iterator[tuple[int, list[bytes]]]:
    """Listen on a port with a host's certificate; what comes after the handshake is kept."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    said: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    plain, _ = listener.accept()
                    with suppress(OSError), context.wrap_socket(plain, server_side=True) as peer:
                        key = peer.recv(65536).partition(b"Sec-WebSocket-Key: ")[2][:24]
                        accept = base64.b64encode(hashlib.sha1(key + WS_GUID).digest())
                        peer.sendall(UPGRADED % accept)
                        while part := peer.recv(65536):
                            said.append(part)

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1], said
        listener.shutdown(socket.SHUT_RDWR)


IMPOSTORS: dict[str, tuple[dict[str, Any], str]] = {
    "of another cluster": ({"cluster": "f" * 32}, "the head is that of cluster fff"),
    "expired": ({"shift_s": -200 * 86_400}, "the certificate of the head has expired"),
    "not valid yet": ({"shift_s": 9 * 86_400}, "of the head is not valid yet"),
}


@pytest.mark.parametrize("kind", IMPOSTORS)
def test_a_head_without_a_valid_certificate_gets_no_message(
    cluster: Cluster, tmp_path: Path, kind: str
) -> None:
    cluster.start_head()
    changes, words = IMPOSTORS[kind]
    files = give_certificate(
        cluster.state_dir, tmp_path / "impostor", "test", role="head", **changes
    )
    with impostor(cluster, files) as (port, said):
        cluster.start_node("n1", head=f"127.0.0.1:{port}", wait=False)
        wait_until(lambda: words in cluster.log("n1.log"), what="gnode to say why")

    assert said in ([], [b""]) or not any(len(part) > 8 for part in said), "a close at most"
    assert "Traceback" not in cluster.log("n1.log")


def test_a_stolen_node_cannot_act_as_the_head(cluster: Cluster, tmp_path: Path) -> None:
    """Its certificate is of another role, and not for servers."""
    cluster.start_head()
    files = give_certificate(cluster.state_dir, tmp_path / "n2", "n2")
    with impostor(cluster, files) as (port, said):
        cluster.start_node("n1", head=f"127.0.0.1:{port}", wait=False)
        words = "the certificate of the head is"
        wait_until(lambda: words in cluster.log("n1.log"), what="gnode to say why")

    assert said == []


def test_a_head_of_another_authority_is_refused_with_words(
    cluster: Cluster, tmp_path: Path
) -> None:
    """E21."""
    cluster.start_head()
    other = Cluster(tmp_path / "other", cluster._marker)
    try:
        other.start_head()
        give_certificate(other.state_dir, cluster.node_dir("n1"), "n1")
        cluster.start_node("n1", wait=False)
        words = "is of an authority that is not trusted here"
        wait_until(lambda: words in cluster.log("n1.log"), what="gnode to say why")
        assert "gsched join on this host" in cluster.log("n1.log")
        words = "perhaps as it does not trust the authority of this head"
        wait_until(lambda: words in cluster.log("head.log"), what="the head's words")
    finally:
        other.stop()


# --- somebody in place of a node ---

HOSTS: dict[str, tuple[dict[str, Any], str]] = {
    "of another role (T10)": ({"role": "login"}, "is that of login n1, and this is node n1"),
    "of another name (T15)": ({"name": "n2"}, "is that of node n2, and this is node n1"),
    "expired": ({"shift_s": -200 * 86_400}, "the certificate of this node has expired"),
    "not valid yet": ({"shift_s": 9 * 86_400}, "the certificate of this node is not valid yet"),
    "of another cluster": ({"cluster": "f" * 32}, "this host has joined ffff"),
}


@pytest.mark.parametrize("kind", HOSTS)
def test_a_wrong_certificate_is_explained_by_its_node(cluster: Cluster, kind: str) -> None:
    cluster.start_head()
    changes, words = HOSTS[kind]
    options = {"name": "n1", **changes}
    give_certificate(cluster.state_dir, cluster.node_dir("n1"), **options)
    cluster.start_node("n1", wait=False)

    wait_until(lambda: words in cluster.log("n1.log"), what="gnode to say why")

    assert "Traceback" not in cluster.log("n1.log") + cluster.log("head.log")
    assert cluster.head.nodes().nodes == ()


def test_a_head_that_is_not_there_is_one_line_of_the_log(cluster: Cluster) -> None:
    """However often gnode tries; with what to check."""
    cluster.start_head()
    give_certificate(cluster.state_dir, cluster.node_dir("n1"), "n1")
    cluster.stop_head()
    cluster.start_node("n1", wait=False)
    words = "Connection refused: check head in [node], whether gschedd runs, node_host in [head]"
    wait_until(lambda: words in cluster.log("n1.log"), what="the reason")

    cluster.start_head()
    cluster.wait_for_node("n1")

    assert cluster.log("n1.log").count(words) == 1


def test_an_hour_between_the_clocks_keeps_no_node_away(cluster: Cluster) -> None:
    """F3: A certificate begins a day before it is issued."""
    cluster.start_head()
    give_certificate(cluster.state_dir, cluster.node_dir("n1"), "n1", shift_s=3600.0)

    cluster.start_node("n1")


LIARS: dict[str, tuple[dict[str, Any] | None, str]] = {
    "no certificate": (None, "this host has no certificate: gsched token create"),
    "another role": ({"role": "login"}, "is of login n1, but it connects as node n1"),
    "another name": ({"name": "n2"}, "is of node n2, but it connects as node n1"),
    "another cluster": ({"cluster": "f" * 32}, "is of cluster ffffffff"),
    "the head's role": ({"role": "head"}, "is of head n1, but it connects as node n1"),
}


@pytest.mark.parametrize("kind", LIARS)
def test_t7_a_host_that_lies_is_refused_by_the_head_with_words(
    cluster: Cluster, tmp_path: Path, kind: str
) -> None:
    """What the certificate says counts, whatever the hello says."""
    cluster.start_head()
    changes, words = LIARS[kind]
    files = None
    if changes is not None:
        options = {"name": "n1", **changes}
        files = give_certificate(cluster.state_dir, tmp_path / "liar", **options)

    hello = n.encode([n.Hello(version=n.PROTOCOL_VERSION, node="n1")])
    (refusal,) = n.decode_from_head(hello_over_tls(cluster.node_port, files, hello))

    assert isinstance(refusal, n.Refused)
    assert words in refusal.message
    assert cluster.head.status().dropped == {"peer_refused": 1}
    assert cluster.head.nodes().nodes == ()


@pytest.mark.parametrize(
    ("shift_s", "words"),
    [(-200 * 86_400.0, "a node has expired"), (9 * 86_400.0, "a node is not valid yet")],
)
def test_a_certificate_out_of_its_time_ends_the_handshake_and_is_logged(
    cluster: Cluster, tmp_path: Path, shift_s: float, words: str
) -> None:
    """E21."""
    cluster.start_head()
    files = give_certificate(cluster.state_dir, tmp_path / "n1", "n1", shift_s=shift_s)

    with suppress(ssl.SSLError, ConnectionError):
        hello_over_tls(cluster.node_port, files, b"x")

    wait_until(lambda: words in cluster.log("head.log"), what="the head to say why")
    assert "Traceback" not in cluster.log("head.log")


def test_a_gnode_before_tls_is_refused_with_advice(cluster: Cluster) -> None:
    """It says hello in clear text, as version 3 of the node protocol does."""
    cluster.start_head()

    async def run() -> list[n.HeadMessage]:
        url = f"ws://127.0.0.1:{cluster.node_port}/v1/node"
        async with aiohttp.ClientSession() as client, client.ws_connect(url) as peer:
            await peer.send_str('[{"type":"hello","version":3,"node":"n1","nonce":"00"}]')
            return n.decode_from_head((await peer.receive(timeout=PATIENCE_S)).data)

    (refusal,) = asyncio.run(run())

    assert isinstance(refusal, n.Refused)
    assert "takes nodes over TLS only" in refusal.message
    assert "gsched join on this host. Running jobs keep running" in refusal.message
    assert cluster.head.nodes().nodes == ()


def test_nothing_else_is_served_in_clear_text(cluster: Cluster) -> None:
    cluster.start_head()

    async def run() -> int:
        url = f"http://127.0.0.1:{cluster.node_port}/v1/authority"
        async with aiohttp.ClientSession() as client, client.get(url) as answer:
            return answer.status

    assert asyncio.run(run()) == 426


# --- somebody who talks to the head's port ---


def talk(
    cluster: Cluster, story: Callable[[Dialler], Coroutine[None, None, T]], *, node: str = "n1"
) -> T:
    """Run a conversation with the head's socket for nodes."""

    async def run() -> T:
        async with dialled(cluster, node=node) as dialler:
            return await story(dialler)

    return asyncio.run(run())


async def refused_hello(dialler: Dialler, *, version: int = n.PROTOCOL_VERSION) -> n.Refused:
    """Say hello and return the refusal."""
    await dialler.say_hello(version=version)
    frame = await dialler.socket.receive(timeout=PATIENCE_S)
    (refusal,) = n.decode_from_head(frame.data)
    assert isinstance(refusal, n.Refused)
    assert (await dialler.socket.receive(timeout=PATIENCE_S)).type is aiohttp.WSMsgType.CLOSE
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


async def cut_off_by(dialler: Dialler, *messages: n.NodeMessage) -> None:
    """Register, say something, and return once the head has closed the connection."""
    await dialler.call()
    assert isinstance(await dialler.register(), n.Welcome)
    await dialler.say(*messages)
    while (await dialler.socket.receive(timeout=PATIENCE_S)).type is not aiohttp.WSMsgType.CLOSE:
        pass


@pytest.mark.parametrize(
    "second",
    [n.Hello(version=n.PROTOCOL_VERSION, node="n2")],
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
    job = submissions.SubmitJob(
        key="", name="x", workdir="/tmp", launch="command", arguments=("true",), movable=True
    )
    used = GpuSharing(jobs=(TokenUse(job=1, attempt=1, index=0, launches=2**60),))
    heartbeat = n.Heartbeat(load=Load(load1=7.0), usage=(), gpu_sharing=used)

    async def refuse_its_launch(dialler: Dialler) -> int:
        await dialler.call()
        await dialler.register()
        number = (await asyncio.to_thread(cluster.head.submit, [job])).results[0].id
        while not any(isinstance(each, n.Launch) for each in await dialler.hear_all(PATIENCE_S)):
            pass
        await dialler.say(heartbeat, Unreadable(of="launch", job=number, attempt=1, reason="why"))
        for _ in attempts():
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
        path = str(cluster.directory / "head-node.sock")
        async with (
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(path)) as session,
            session.get("http://head/v1/jobs") as answer,
        ):
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
            hello = n.Hello(version=n.PROTOCOL_VERSION, node="n1")
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

"""Measure what ADRs 1 and 31 decide on: HTTP, WebSocket frames, TLS, client start-up.

Each figure is the median of some rounds, with server and client in a process each, and the CPU time
of both for one request or message, which other load on the machine changes less. TLS is compared
with the sealed frames that the node channel had before, and that job steps still have: an HMAC for
each frame over TCP, with nothing encrypted. A job has three messages of a node. Besides aiohttp
two others answer the same request: h11, if it is installed, as the pure Python parser to compare
with, and bare lines of JSON, which is no protocol but the most that asyncio could do here.
"""

import argparse
import asyncio
import importlib.util
import multiprocessing
import os
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import psutil
from aiohttp import web

from gsched.config.tls import LIFETIME_S, TlsConfig
from gsched.files import replace_file
from gsched.model.job import ExitRecord
from gsched.model.resources import Load, Usage
from gsched.model.states import OutcomeKind
from gsched.pki.contexts import client_context, server_context
from gsched.pki.files import AUTHORITY, CertificateFiles, files_of
from gsched.pki.issuing import issue_with_key, make_authority_file, read_authority
from gsched.pki.names import Identity, Role
from gsched.protocol import actions as a
from gsched.protocol import api, node
from gsched.protocol.sealing import Opener, Sealer

CONNECTIONS = 16
SESSION_KEY = bytes(32)
START_UP_RUNS = 15
BODY = a.HoldJob(ids=("1.head",))
ANSWER = api.ActionReply(results=(api.ActionResult(id="1.head", text="held"),))
EXITED = node.Exited(
    record=ExitRecord(job=1, attempt=1, kind=OutcomeKind.EXITED, exit_code=0),
    usage=Usage(wall_s=1.0, cpu_s=0.5, samples=1),
    load=Load(load1=1.0, cpu_percent=50.0),
)
START_UPS = {
    "pass": "pass",
    "click": "import click",
    "click, msgspec": "import click, msgspec",
    "click, msgspec, gsched.client": "import click, msgspec, gsched.client",
    "click, msgspec, http.client": "import click, msgspec, http.client",
    "click, msgspec, aiohttp": "import click, msgspec, aiohttp",
}

Server = Callable[[str], Coroutine[Any, Any, None]]
#: Gets where the server is and for how long; returns how many there were, and the time in seconds.
Client = Callable[[str, float], Coroutine[Any, Any, tuple[int, float]]]


def answer(body: bytes) -> bytes:
    """Do what a handler does to a small request: decode, check, encode."""
    request = msgspec.json.decode(body, type=a.JOB_ACTION)
    assert request.ids
    return msgspec.json.encode(ANSWER)


# --- servers: each serves on a Unix socket until it is cancelled ---


async def serve_aiohttp(path: str) -> None:
    """Answer with aiohttp, as the head does."""

    async def handle(request: web.Request) -> web.Response:
        return web.Response(body=answer(await request.read()), content_type="application/json")

    async def channel(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(max_msg_size=node.MAX_FRAME_BYTES, compress=False)
        await socket.prepare(request)
        async for frame in socket:
            count = len(node.decode_from_node(frame.data))
            await socket.send_str(str(count))
        return socket

    application = web.Application()
    application.router.add_post("/", handle)
    application.router.add_get("/channel", channel)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.UnixSite(runner, path).start()
    await asyncio.Event().wait()


async def serve_sealed(path: str) -> None:
    """Answer in frames with an HMAC each, over TCP, as the node channel did before TLS."""
    await _serve_tcp(path, None)


async def serve_tls(path: str) -> None:
    """Answer over TLS 1.3 with certificates on both sides, as the node channel does."""
    await _serve_tcp(path, server_context(certificate(path, "head")))


async def _serve_tcp(path: str, context: ssl.SSLContext | None) -> None:
    async def channel(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(max_msg_size=node.MAX_FRAME_BYTES, compress=False)
        await socket.prepare(request)
        opener, sealer = Opener(SESSION_KEY), Sealer(SESSION_KEY)
        async for frame in socket:
            if context is None:
                count = len(node.decode_from_node(opener.open(frame.data)))
                await socket.send_bytes(sealer.seal(b"%d" % count))
            else:
                count = len(node.decode_from_node(frame.data))
                await socket.send_bytes(b"%d" % count)
        return socket

    application = web.Application()
    application.router.add_get("/channel", channel)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    replace_file(path, str(runner.addresses[0][1]).encode())  # as a socket: there when it serves
    await asyncio.Event().wait()


def certificate(path: str, role: Role) -> CertificateFiles:
    """Return the files of a host of the cluster that is kept beside a path."""
    directory = os.path.dirname(path)
    authority = os.path.join(directory, AUTHORITY)
    if not os.path.exists(authority):
        make_authority_file(directory, "bench", time.time())
    issuer = read_authority(Path(authority).read_bytes())
    files = files_of(os.path.join(directory, role), TlsConfig())
    identity = Identity(cluster="bench", role=role, name="n1")
    own = issue_with_key(issuer, identity, now_s=time.time(), lifetime_s=LIFETIME_S)
    files.write(own=own, trusted=issuer.pem.encode())
    return files


async def serve_h11(path: str) -> None:
    """Answer with h11 on asyncio's streams."""
    import h11

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection, body = h11.Connection(h11.SERVER), b""
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await reader.read(65536))
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                reply, body = answer(body), b""
                headers = [("content-type", "application/json"), ("content-length", len(reply))]
                response = h11.Response(
                    status_code=200, headers=[(name, str(value)) for name, value in headers]
                )
                for part in (response, h11.Data(data=reply), h11.EndOfMessage()):
                    writer.write(connection.send(part) or b"")
                connection.start_next_cycle()
            elif isinstance(event, h11.ConnectionClosed):
                return writer.close()

    async with await asyncio.start_unix_server(serve, path) as server:
        await server.serve_forever()


async def serve_lines(path: str) -> None:
    """Answer lines of JSON: no protocol, the most that asyncio could do."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(answer(line) + b"\n")
        writer.close()

    async with await asyncio.start_unix_server(serve, path) as server:
        await server.serve_forever()


# --- load ---


async def http_requests(path: str, seconds: float) -> tuple[int, float]:
    """Return requests and seconds of CONNECTIONS clients that each wait for their answer."""
    body = msgspec.json.encode(BODY)
    request = (
        b"POST / HTTP/1.1\r\nHost: head\r\nContent-Type: application/json\r\n"
        b"Content-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body
    )

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(request)
        header = await reader.readuntil(b"\r\n\r\n")
        length = header.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length))

    return await _load(path, seconds, one)


async def line_requests(path: str, seconds: float) -> tuple[int, float]:
    """Return requests, as lines, and seconds."""
    line = msgspec.json.encode(BODY) + b"\n"

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(line)
        await reader.readline()

    return await _load(path, seconds, one)


async def _load(
    path: str,
    seconds: float,
    one: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> tuple[int, float]:
    started_s = time.monotonic()

    async def client() -> int:
        reader, writer = await asyncio.open_unix_connection(path)
        count = 0
        while time.monotonic() < started_s + seconds:
            await one(reader, writer)
            count += 1
        writer.close()
        return count

    counts = await asyncio.gather(*(client() for _ in range(CONNECTIONS)))
    return sum(counts), time.monotonic() - started_s


def socket_messages(batch: int) -> Client:
    """Return a load that sends frames of ``batch`` exit reports and waits for each's answer."""

    async def load(path: str, seconds: float) -> tuple[int, float]:
        connector = aiohttp.UnixConnector(path)
        messages: list[node.NodeMessage] = [EXITED] * batch
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.ws_connect("http://head/channel", compress=0) as socket,
        ):
            count, started_s = 0, time.monotonic()
            while time.monotonic() < started_s + seconds:
                await socket.send_bytes(node.encode(messages))
                count += int(await socket.receive_str())
            return count, time.monotonic() - started_s

    return load


def port_of(path: str) -> str:
    """Return the port of a server over TCP."""
    return Path(path).read_text(encoding="ascii")


def tcp_messages(batch: int, *, sealed: bool) -> Client:
    """Return the same load over TCP: in authenticated frames, or over TLS."""

    async def load(path: str, seconds: float) -> tuple[int, float]:
        messages: list[node.NodeMessage] = [EXITED] * batch
        sealer, opener = Sealer(SESSION_KEY), Opener(SESSION_KEY)
        scheme = "ws" if sealed else "wss"
        context = True if sealed else client_context(certificate(path, "node"))
        url = f"{scheme}://127.0.0.1:{port_of(path)}/channel"
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(url, compress=0, ssl=context) as socket,
        ):
            count, started_s = 0, time.monotonic()
            while time.monotonic() < started_s + seconds:
                payload = node.encode(messages)
                await socket.send_bytes(sealer.seal(payload) if sealed else payload)
                answer = await socket.receive_bytes()
                count += int(bytes(opener.open(answer)) if sealed else answer)
            return count, time.monotonic() - started_s

    return load


def measure(
    server: Server, load: Client, *, seconds: float, rounds: int
) -> tuple[float, float, float]:
    """Return the median rate of ``load`` against ``server`` over some rounds.

    Also the CPU time of the server and of the client for one request or message, microseconds.
    """
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "s")
        process = multiprocessing.Process(target=_run, args=(server, path), daemon=True)
        process.start()
        try:
            while not os.path.exists(path):
                time.sleep(0.01)
            asyncio.run(load(path, 0.2))  # warm
            rates, in_all = [], 0
            served_s, own_s = _cpu_s(process.pid), time.process_time()
            for _ in range(rounds):
                count, taken_s = asyncio.run(load(path, seconds))
                rates.append(count / taken_s)
                in_all += count
            served_s, own_s = _cpu_s(process.pid) - served_s, time.process_time() - own_s
            return statistics.median(rates), served_s / in_all * 1e6, own_s / in_all * 1e6
        finally:
            process.terminate()
            process.join()


def _cpu_s(pid: int | None) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def _run(server: Server, path: str) -> None:
    asyncio.run(server(path))


def start_up_ms(code: str) -> float:
    """Return the median milliseconds of an interpreter that runs ``code``."""
    times = []
    for _ in range(START_UP_RUNS):
        started_s = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
        times.append((time.perf_counter() - started_s) * 1000)
    return statistics.median(times)


def main() -> None:
    """Print one line for each figure."""
    parser = argparse.ArgumentParser(description="what the wire costs")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="figures whose names contain this")
    args = parser.parse_args()
    cases: list[tuple[str, Server, Client]] = [
        ("requests/s, aiohttp", serve_aiohttp, http_requests),
        ("requests/s, bare lines", serve_lines, line_requests),
        ("messages/s, WebSocket, 1 in a frame", serve_aiohttp, socket_messages(1)),
        ("messages/s, WebSocket, 100 in a frame", serve_aiohttp, socket_messages(100)),
        ("messages/s, sealed, 1 in a frame", serve_sealed, tcp_messages(1, sealed=True)),
        ("messages/s, TLS, 1 in a frame", serve_tls, tcp_messages(1, sealed=False)),
        ("messages/s, sealed, 100 in a frame", serve_sealed, tcp_messages(100, sealed=True)),
        ("messages/s, TLS, 100 in a frame", serve_tls, tcp_messages(100, sealed=False)),
    ]
    if importlib.util.find_spec("h11"):
        cases.insert(1, ("requests/s, h11", serve_h11, http_requests))
    else:
        print("requests/s, h11: left out, it is not installed")
    for name, server, load in cases:
        if args.only not in name:
            continue
        rate, server_us, client_us = measure(server, load, seconds=args.seconds, rounds=args.rounds)
        print(
            f"{name}: {rate:,.0f}; CPU {server_us:,.1f} µs of the server, {client_us:,.1f} µs of "
            f"the client each; load {os.getloadavg()[0]:.0f}",
            flush=True,
        )
    for name, code in START_UPS.items():
        if args.only not in f"start-up, {name}":
            continue
        print(f"start-up, {name}: {start_up_ms(code):.0f} ms", flush=True)


if __name__ == "__main__":
    main()

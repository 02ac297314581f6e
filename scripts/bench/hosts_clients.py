"""One process of simulated hosts: each with its own key, certificate and address, over real TLS.

A host joins as ``gsched join`` does, and is connected by gnode's own `Channel` and `Certificates`:
pauses between tries, their jitter, and renewals are the product's. Behind it there are no jobs.
"""

import asyncio
import contextlib
import logging
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from ipaddress import IPv4Address
from itertools import chain, count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from gnode.core.inputs import Disconnected, HeadOffered, Input, Welcomed
from gnode.daemon.accounts import Accounts
from gnode.daemon.certificates import Certificates
from gnode.daemon.channel import Channel
from gnode.daemon.heads import Heads
from gsched.cli.local.join import again_pauses_s
from gsched.clock import SystemClock
from gsched.config.tls import TlsConfig
from gsched.model.resources import Inventory
from gsched.owner_files import OwnerFiles
from gsched.pki import issuing
from gsched.pki.contexts import joining_context
from gsched.pki.files import digest, files_of
from gsched.protocol.joining import (
    AuthorityReply,
    CertificateIssued,
    CertificateState,
    CertificateWanted,
    Joined,
    JoinHost,
    TrustChanged,
)
from tests.support.simulated_nodes import SimulatedNode

#: The first of the hosts' own addresses, all of which are the loopback interface's.
FIRST_ADDRESS: Final = IPv4Address("127.1.0.1")
#: From which address the connections of the present task come; empty: the kernel's choice.
_SOURCE: ContextVar[str] = ContextVar("_SOURCE", default="")
_ATTEMPT_S: Final = 20.0
#: Why hosts have tried again, in this process.
CUT_OFF: Final[Counter[str]] = Counter()


class _Loop(asyncio.SelectorEventLoop):
    """Binds each connection to the address of its host, as if that were another machine."""

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        if _SOURCE.get() and sock.family == socket.AF_INET:
            sock.bind((_SOURCE.get(), 0))
        await super().sock_connect(sock, address)


class _Counting(Certificates):
    """Tells when this host has got another certificate."""

    renewed: Callable[[], None]

    def take(
        self,
        message: TrustChanged | CertificateIssued,
        send: Callable[[CertificateWanted | CertificateState], None],
    ) -> None:
        super().take(message, send)
        if isinstance(message, CertificateIssued) and message.certificate:
            self.renewed()


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where hosts join.

    Attributes:
        authority: SHA-256 of the head's, as the line of a token has it.
        directory: each host's is in it.
        is_nat: all hosts have one address.
    """

    address: str
    authority: str
    directory: Path
    is_nat: bool


class Host:
    """One simulated host."""

    def __init__(self, number: int, token: str, place: Place) -> None:
        self.name = f"h{number:04d}"
        self._place = place
        self._source = "" if place.is_nat else str(FIRST_ADDRESS + number)
        self._files = files_of(str(place.directory / self.name), TlsConfig())
        node = SimulatedNode(self.name, inventory=Inventory(cpus=16, memory_bytes=64 << 30))
        self._registration = node.registration
        self._key = issuing.make_key()
        self._request = JoinHost(
            token=token, name=self.name, request=issuing.make_request(self._key, self.name)
        )
        self.tries = 0
        self.joined_s = self.welcomed_s = self.renewed_s = 0.0
        self.welcomes = 0
        self._channel: Channel | None = None

    async def join(self) -> None:
        """Join, with the tries and pauses of ``gsched join``, which somebody runs until it has."""
        _SOURCE.set(self._source)
        for pause_s in chain.from_iterable(again_pauses_s() for _ in count()):
            await asyncio.sleep(pause_s)
            self.tries += 1
            try:
                async with asyncio.timeout(_ATTEMPT_S):
                    await self._join_once()
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                CUT_OFF[f"{type(error).__name__}: {error}"[:80]] += 1
                continue
            self.joined_s = time.time()
            return

    async def _join_once(self) -> None:
        found = await self._ask("GET", "/v1/authority", "", None)
        authority = msgspec.json.decode(found, type=AuthorityReply).certificate
        assert digest(authority) == self._place.authority, "another head"
        found = await self._ask("POST", "/v1/join", authority, msgspec.json.encode(self._request))
        joined = msgspec.json.decode(found, type=Joined)
        self._files.write(
            own=joined.certificate.encode() + self._key, trusted=joined.trusted.encode()
        )

    async def _ask(self, method: str, path: str, authority: str, body: bytes | None) -> bytes:
        """Return the answer to a request, on a connection of its own."""
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                method,
                f"https://{self._place.address}{path}",
                data=body,
                ssl=joining_context(authority),
            ) as answer,
        ):
            content = await answer.read()
            if answer.status >= 300:
                raise RuntimeError(f"{self.name}: {answer.status} {content[:300]!r}")
            return content

    async def serve(self) -> None:
        """Stay connected, as gnode does."""
        _SOURCE.set(self._source)
        clock = SystemClock()
        certificates = _Counting(self._files, node=self.name, clock=clock)
        certificates.renewed = self._note_renewal
        self._channel = Channel(
            heads=Heads(self._place.address, self._place.directory / self.name / "heads"),
            trusted=frozenset(),
            node=self.name,
            certificates=certificates,
            post=self._post,
            on_job=lambda _: None,
            on_relay=lambda _: None,
            lookup=Accounts(clock),
            files=OwnerFiles(allow_root=False, uid_min=1000),
            on_delivery=lambda _: None,
            on_settings=_no_settings,
        )
        await self._channel.run()

    def _note_renewal(self) -> None:
        self.renewed_s = time.time()

    def _post(self, event: Input) -> None:
        assert self._channel is not None
        if isinstance(event, HeadOffered):
            self._channel.register(lambda _: self._registration())
        elif isinstance(event, Welcomed):
            self.welcomed_s = time.time()
            self.welcomes += 1
        elif isinstance(event, Disconnected):
            self.welcomed_s = 0.0


async def _no_settings(message: object) -> None:
    del message


def run(orders: Connection, numbers: Sequence[int], tokens: Sequence[str], place: Place) -> None:
    """Serve the orders of the parent until the pipe ends: ``join``, ``serve``, ``times``."""
    logging.basicConfig(level=logging.CRITICAL)
    hosts = [Host(number, token, place) for number, token in zip(numbers, tokens, strict=True)]
    with contextlib.suppress(EOFError, KeyboardInterrupt), asyncio.Runner(loop_factory=_Loop) as it:
        it.run(_obey(orders, hosts))


async def _obey(orders: Connection, hosts: Sequence[Host]) -> None:
    loop = asyncio.get_running_loop()
    serving: list[asyncio.Task[None]] = []
    while True:
        match await loop.run_in_executor(None, orders.recv):
            case "join":
                await asyncio.gather(*(host.join() for host in hosts))
                print("tried again:", *CUT_OFF.most_common(3), flush=True)
            case "serve":
                serving += [loop.create_task(host.serve()) for host in hosts]
            case _:
                pass
        times = [
            (host.joined_s, host.welcomed_s, host.renewed_s, host.tries, host.welcomes)
            for host in hosts
        ]
        orders.send(times)

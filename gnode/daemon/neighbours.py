"""Other gnodes on this machine whose jobs may run on the same CPUs.

Each would give its first job the first CPU, so none of them binds jobs to CPUs while there are
others. They find each other by Unix sockets with abstract names (unix(7)), which leave nothing
behind, and hold a connection to each other: it ends with the process. Only root and the own user
are believed, or any user could take the binding away.
"""

import asyncio
import logging
import os
import secrets
import socket
import struct
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from gnode.core.cpus import cpu_list, parse_cpu_list

log = logging.getLogger(__name__)

PREFIX: Final = "gsched-node-"
_ANSWER_S: Final = 2.0
_LINE_BYTES_MAX: Final = 16384
_CONNECTIONS_MAX: Final = 1024
_SOCKETS: Final = Path("/proc/net/unix")
_CREDENTIALS: Final = struct.Struct("3i")


class Neighbours:
    """Knows which gnodes share CPUs with this one.

    Args:
        cpus: of this node's jobs.
        on_change: is told how many other nodes share some of them, when that changes.
        prefix: of the names of the sockets; tests have their own.
    """

    def __init__(
        self, cpus: Collection[int], on_change: Callable[[int], None], *, prefix: str = PREFIX
    ) -> None:
        self._cpus = frozenset(cpus)
        self._on_change = on_change
        self._prefix = prefix
        self._token = secrets.token_hex(8)
        self._line = f"{self._token} {cpu_list(self._cpus)}\n".encode()
        self._count = 0
        self._links: dict[int, str] = {}  # which gnode is at the other end of a connection
        self._next = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Find the others and be found by those that come; returns once all of them are known."""
        try:
            self._server = await asyncio.start_unix_server(
                self._serve, path=f"\0{self._prefix}{self._token}", limit=_LINE_BYTES_MAX
            )
        except OSError as error:
            log.warning("other nodes on this machine cannot be found: %s", error)
            return
        await asyncio.gather(*(self._meet(name) for name in self._others()))

    def close(self) -> None:
        """Leave."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()

    def _others(self) -> list[str]:
        try:
            lines = _SOCKETS.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return []
        names = {line.rpartition(" @")[2] for line in lines if f" @{self._prefix}" in line}
        return sorted(names - {f"{self._prefix}{self._token}"})[:_CONNECTIONS_MAX]

    async def _meet(self, name: str) -> None:
        """Connect to another gnode, and watch it from then on."""
        try:
            async with asyncio.timeout(_ANSWER_S):
                reader, writer = await asyncio.open_unix_connection(
                    f"\0{name}", limit=_LINE_BYTES_MAX
                )
        except (OSError, TimeoutError):
            return  # it has ended
        met = asyncio.Event()
        task = asyncio.get_running_loop().create_task(self._watch(reader, writer, met))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await met.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        await self._watch(reader, writer, asyncio.Event())

    async def _watch(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, met: asyncio.Event
    ) -> None:
        """Count what is at the other end until it ends, if its jobs use our CPUs."""
        number, self._next = self._next, self._next + 1
        try:
            if len(self._links) >= _CONNECTIONS_MAX or not _is_believed(writer):
                return
            writer.write(self._line)
            token, shares = await self._introduced(reader)
            if token == self._token or not shares:
                return
            self._links[number] = token or f"silent {number}"
            self._tell()
            met.set()
            while await reader.read(_LINE_BYTES_MAX):
                pass
        except OSError as error:
            log.debug("another node's connection: %s", error)
        finally:
            met.set()
            writer.close()
            if self._links.pop(number, None) is not None:
                self._tell()

    async def _introduced(self, reader: asyncio.StreamReader) -> tuple[str, bool]:
        """Return who is at the other end, and whether it shares CPUs; if it says nothing: yes."""
        try:
            async with asyncio.timeout(_ANSWER_S):
                line = await reader.readline()
            token, _, numbers = line.decode("ascii").strip().partition(" ")
            return token, bool(self._cpus & parse_cpu_list(numbers))
        except (TimeoutError, ValueError):
            return "", True

    def _tell(self) -> None:
        count = len(set(self._links.values()))
        if count != self._count:
            self._count = count
            self._on_change(count)


def _is_believed(writer: asyncio.StreamWriter) -> bool:
    """Return whether root or the own user is at the other end."""
    peer: socket.socket = writer.get_extra_info("socket")
    content = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(content)
    return uid in {0, os.geteuid()}

"""The commands' Unix socket on this host: each connection is relayed to the head.

The head treats a connection as the user whom this host's kernel names, if it agrees; see
`gsched.protocol.relays`. Pieces are copied one at a time in each direction, so a slow reader makes
its own connection wait, and nothing else.
"""

import asyncio
import contextlib
import logging
import os
import pwd
import socket
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from gnode.daemon.dialling import BROKEN, HeadConnection, HeadDialler, NoConnectionError, carry
from gnode.daemon.parts import HostIdentity
from gsched.clock import SystemClock
from gsched.host_report import host_report
from gsched.logs import Complaints
from gsched.model.limits import MAX_RELAYS_OF_NODE, MAX_USER_RELAYS
from gsched.protocol.hosts import HostReport
from gsched.protocol.relays import PIECE_BYTES, RelayAnswer, RelayRequest
from gsched.unix_address import address_of, listen_at, peer_ids

log = logging.getLogger(__name__)

SOCKET_MODE: Final = 0o666  # anybody may connect; who connects is known from the kernel
FIRST_BYTES_S: Final = 10.0  # from the connection to the begin of a request, as at the head
ANSWER_S: Final = 10.0  # for the head, which is connected
NAME_S: Final = 5.0  # for the name service
TAKEN_AGAIN_S: Final = 30.0  # after another process had the socket
NO_DESCRIPTORS_S: Final = 0.2
NAME_THREADS: Final = 4


class _NotRelayedError(Exception):
    """There is no connection for a user: an error's code, message and hint."""

    def __init__(self, code: str, message: str, hint: str) -> None:
        super().__init__(message)
        self.code, self.message, self.hint = code, message, hint


class CommandSocket:
    """Serves the socket, where the head is on another machine.

    Args:
        own: this node daemon, with the path of the socket.
        dialler: opens a connection for each one of a user.
        send: sends a message on the node channel.
        is_connected: whether the head can answer.
    """

    def __init__(
        self,
        own: HostIdentity,
        dialler: HeadDialler,
        *,
        send: Callable[[RelayRequest | HostReport], None],
        is_connected: Callable[[], bool],
    ) -> None:
        self._path, self._node, self._dialler = own.command_socket, own.node, dialler
        self._send, self._is_connected = send, is_connected
        self._complaints = Complaints(log, SystemClock())
        self._wanted = asyncio.Event()
        self._is_explicit = own.serves_always
        self._requests: dict[int, asyncio.Future[RelayAnswer]] = {}
        self._next_request = 1
        self._of_user: Counter[int] = Counter()
        self._open: set[asyncio.Task[None]] = set()
        self._reporting: set[asyncio.Task[None]] = set()
        self._names = ThreadPoolExecutor(NAME_THREADS, thread_name_prefix="names")

    def welcomed(self, *, is_here: bool) -> None:
        """Report this host to the head; if that is on this machine, the socket is its own."""
        if self._is_explicit or not is_here:
            self._wanted.set()
        task = asyncio.get_running_loop().create_task(self._report())
        self._reporting.add(task)
        task.add_done_callback(self._reporting.discard)

    async def _report(self) -> None:
        loop = asyncio.get_running_loop()
        report = await loop.run_in_executor(self._names, host_report, SystemClock().wall_s())
        self._send(msgspec.structs.replace(report, sent_s=SystemClock().wall_s()))

    def take(self, answer: RelayAnswer) -> None:
        """Take an answer of the head."""
        request = self._requests.pop(answer.number, None)
        if request is not None and not request.done():
            request.set_result(answer)

    def close_all(self) -> None:
        """End all connections: the head is not there."""
        for task in tuple(self._open):
            task.cancel()

    async def run(self) -> None:
        """Serve until it is cancelled."""
        if not self._path:
            return
        if self._is_explicit:
            self._wanted.set()
        await self._wanted.wait()
        try:
            while True:
                listener = self._listen()
                if listener is not None:
                    with listener:
                        await self._serve(listener)
                await asyncio.sleep(TAKEN_AGAIN_S)
        finally:
            self.close_all()
            self._names.shutdown(wait=False, cancel_futures=True)

    def _listen(self) -> socket.socket | None:
        """Return the socket; None: another process serves it, or it cannot be made."""
        if _is_served(self._path):
            self._complaints.say(self._path, "another process serves commands of users here")
            return None
        try:
            listener = listen_at(self._path, mode=SOCKET_MODE)
        except OSError as error:
            self._complaints.say(self._path, f"commands of users are not served here: {error}")
            return None
        log.info("serving commands of users at %s", self._path)
        return listener

    async def _serve(self, listener: socket.socket) -> None:
        """Accept users, until the socket at the path is another one."""
        listener.settimeout(0.0)
        loop = asyncio.get_running_loop()
        own = os.lstat(self._path).st_ino
        try:
            while self._has(own):
                try:
                    async with asyncio.timeout(TAKEN_AGAIN_S):
                        user, _ = await loop.sock_accept(listener)
                except TimeoutError:
                    continue
                except OSError as error:
                    self._complaints.say(self._path, f"cannot accept a connection: {error}")
                    await asyncio.sleep(NO_DESCRIPTORS_S)
                    continue
                self._welcome(user)
        finally:
            if self._has(own):
                os.unlink(self._path)

    def _has(self, own: int) -> bool:
        try:
            return os.lstat(self._path).st_ino == own
        except OSError:
            return False

    def _welcome(self, user: socket.socket) -> None:
        user.settimeout(0.0)
        uid, gid = peer_ids(user)
        most = ""
        if self._of_user[uid] >= MAX_USER_RELAYS:
            most = f"uid {uid} has {MAX_USER_RELAYS} open connections on {self._node}, the limit"
        elif len(self._open) >= MAX_RELAYS_OF_NODE:
            most = f"{self._node} has {MAX_RELAYS_OF_NODE} open connections of users, the limit"
        if most:
            self._complaints.say(f"uid {uid}", f"refused: {most}")
            with user, contextlib.suppress(OSError):
                user.send(_refusal("try_again", most, "try again in a moment"))
            return
        self._of_user[uid] += 1
        task = asyncio.get_running_loop().create_task(self._relay(user, uid, gid))
        self._open.add(task)

        def end(task: asyncio.Task[None]) -> None:
            self._open.discard(task)
            self._of_user -= Counter({uid: 1})
            user.close()

        task.add_done_callback(end)

    async def _relay(self, user: socket.socket, uid: int, gid: int) -> None:
        """Carry one connection from its first byte to its end."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(FIRST_BYTES_S):
                first = await loop.sock_recv(user, PIECE_BYTES)
        except (OSError, TimeoutError):
            return
        if not first:
            return
        try:
            session = await self._session(uid, gid)
            async with self._dialler.connection(session) as head:
                await head.send(first)
                await carry(_up(user, head), _down(head, user))
        except _NotRelayedError as error:
            self._complaints.say(f"uid {uid}", f"refused: {error.message}")
            with contextlib.suppress(OSError):
                user.send(_refusal(error.code, error.message, error.hint))
        except (NoConnectionError, *BROKEN) as error:
            self._complaints.say(f"uid {uid}", f"a connection is broken: {error!r}")

    async def _session(self, uid: int, gid: int) -> str:
        """Return the number of a session that the head has agreed to.

        Raises:
            _NotRelayedError: it has not.
        """
        away = _NotRelayedError(
            "head_unreachable",
            f"gnode on {self._node} has no connection to the head",
            "the head may be restarting: see `systemctl status gnode` and its log",
        )
        loop = asyncio.get_running_loop()
        name = ""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(NAME_S):
                name = await loop.run_in_executor(self._names, _name_of, uid)
        if not self._is_connected():
            raise away
        number, self._next_request = self._next_request, self._next_request + 1
        answer: asyncio.Future[RelayAnswer] = loop.create_future()
        self._requests[number] = answer
        try:
            self._send(RelayRequest(number=number, uid=uid, gid=gid, user=name))
            async with asyncio.timeout(ANSWER_S):
                given = await answer
        except TimeoutError:
            raise away from None
        finally:
            self._requests.pop(number, None)
        if not given.session:
            raise _NotRelayedError(given.code, given.message, given.hint)
        return given.session


async def _up(user: socket.socket, head: HeadConnection) -> None:
    loop = asyncio.get_running_loop()
    while piece := await loop.sock_recv(user, PIECE_BYTES):
        await head.send(piece)


async def _down(head: HeadConnection, user: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    while piece := await head.receive():
        await loop.sock_sendall(user, piece)


def _is_served(path: str) -> bool:
    """Return whether a process listens at a path: the head, or another gnode."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, address_of(path) as address:
        probe.settimeout(1.0)
        try:
            probe.connect(address)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:
            return True
    return True


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OSError):
        return ""


def _refusal(code: str, message: str, hint: str) -> bytes:
    """Return the HTTP answer of an error, as the head's own."""
    body = msgspec.json.encode({"error": {"code": code, "message": message, "hint": hint}})
    status = {
        "not_permitted": "403 Forbidden",
        "head_unreachable": "502 Bad Gateway",
    }.get(code, "503 Service Unavailable")
    again = "" if code == "not_permitted" else "Retry-After: 1\r\n"
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n{again}"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode("ascii") + body

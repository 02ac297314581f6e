"""Terminal sessions: each a connection to a terminal keeper and one of its own to the head.

Frames are copied, one at a time in each direction: the next one is read when the last one was
taken, so a user who does not read makes the program wait, and nothing piles up here.
"""

import asyncio
import logging
import os
import socket as sockets
from collections.abc import Callable

from gnode.core.effects import ConnectTerminal
from gnode.core.task import AttemptKey
from gnode.daemon.dialling import BROKEN, HeadConnection, HeadDialler, NoConnectionError, carry
from gnode.daemon.peer import NotTheHeadError, check_peer
from gnode.supervisor.terminal import socket_name
from gsched import terminal as t
from gsched.clock import SystemClock
from gsched.logs import Complaints
from gsched.model.limits import MAX_SESSIONS_OF_NODE
from gsched.protocol.node import NodeMessage
from gsched.protocol.sessions import RATE_BYTES_PER_S, OpenSession, SessionFailed

log = logging.getLogger(__name__)

SHELL_START_S = 15.0  # a supervisor starts a shell within milliseconds, unless the node is swamped
LOOK_S = 0.05


class _FailedError(Exception):
    """There is no session; the message says why."""


class NodeSessions:
    """All sessions of this node.

    Args:
        node: this node's name.
        dialler: opens a connection for each session.
        directory: of an attempt's records.
        send: sends a message on the node channel.
    """

    def __init__(
        self,
        *,
        node: str,
        dialler: HeadDialler,
        directory: Callable[[AttemptKey], str],
        send: Callable[[NodeMessage], None],
    ) -> None:
        self._node, self._dialler = node, dialler
        self._directory = directory
        self._send = send
        self._complaints = Complaints(log, SystemClock())
        self._open: set[asyncio.Task[None]] = set()

    async def connect(self, effect: ConnectTerminal) -> None:
        """Carry one session from its start to its end."""
        task = asyncio.current_task()
        assert task is not None
        if len(self._open) >= MAX_SESSIONS_OF_NODE:
            message = f"node {self._node} has {MAX_SESSIONS_OF_NODE} sessions, the limit"
            self._send(SessionFailed(session=effect.order.session, message=message))
            return
        self._open.add(task)
        try:
            await self._connect(effect)
        finally:
            self._open.discard(task)

    def close_all(self) -> None:
        """End all sessions: the head is not there. The terminals stay."""
        for task in tuple(self._open):
            task.cancel()

    async def _connect(self, effect: ConnectTerminal) -> None:
        order = effect.order
        try:
            terminal = await self._reach(self._directory(effect.key), order)
        except _FailedError as error:
            self._send(SessionFailed(session=order.session, message=str(error)))
            return
        try:
            await self._carry(terminal, order)
        except NoConnectionError as error:
            self._send(SessionFailed(session=order.session, message=str(error)))
        except (*BROKEN, t.FrameError) as error:
            self._complaints.say(f"attempt {effect.key.name}", f"a session is broken: {error!r}")
        finally:
            terminal.close()

    async def _reach(self, directory: str, order: OpenSession) -> sockets.socket:
        """Return a connection to the terminal's keeper.

        Raises:
            _FailedError: there is none.
        """
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + (SHELL_START_S if order.start else 0.0)
        while True:
            try:
                return _connected(directory, order.terminal)
            except (FileNotFoundError, ConnectionRefusedError):
                if loop.time() < give_up_s:
                    await asyncio.sleep(LOOK_S)
                    continue
            except OSError as error:
                raise _FailedError(
                    f"node {self._node} cannot reach the terminal: {error}"
                ) from None
            if order.start:
                raise _FailedError(
                    f"no shell has started on node {self._node} within {SHELL_START_S:.0f} s: the "
                    "job's supervisor may have been killed"
                )
            raise _FailedError(f"there is no such terminal on node {self._node}, or it has ended")

    async def _carry(self, terminal: sockets.socket, order: OpenSession) -> None:
        async with self._dialler.connection(order.session) as head:
            await carry(_up(terminal, head), _down(head, terminal))


def _connected(directory: str, terminal: str) -> sockets.socket:
    """Return a connection to a keeper.

    Raises:
        OSError: there is none; or what listens there was not made by a supervisor of ours.
    """
    place = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    made = sockets.socket(sockets.AF_UNIX, sockets.SOCK_SEQPACKET)
    try:
        made.settimeout(0.0)
        made.connect(f"/proc/self/fd/{place}/{socket_name(terminal)}")
        check_peer(made, frozenset({os.geteuid()}))  # the process that has called listen()
    except NotTheHeadError as error:
        made.close()
        raise OSError(str(error)) from error
    except BaseException:
        made.close()
        raise
    finally:
        os.close(place)
    return made


async def _up(terminal: sockets.socket, head: HeadConnection) -> None:
    """Copy what the program shows, until its keeper closes."""
    loop = asyncio.get_running_loop()
    allowance = t.Allowance(RATE_BYTES_PER_S)
    while message := await loop.sock_recv(terminal, t.MAX_FRAME_BYTES):
        await head.send(message)
        wait_s = allowance.spend(len(message), loop.time())
        if wait_s:
            await asyncio.sleep(wait_s)


async def _down(head: HeadConnection, terminal: sockets.socket) -> None:
    """Copy what the user types, until the head closes."""
    loop = asyncio.get_running_loop()
    while content := await head.receive():
        t.split(content)  # an empty packet would look like the end
        await loop.sock_sendall(terminal, content)

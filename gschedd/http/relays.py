"""Commands of users on nodes and login hosts: who they are, and the bytes of their connections.

A host's kernel knows who connects there, and its gnode reports it over the node channel. If the
head agrees, the connection comes as a connection of the node's own (`gschedd.http.legs`) and enters
by the same door as users of the head's machine, with the host as part of its source.
"""

import asyncio
import logging
import os
import pwd
import socket
from collections import Counter
from contextlib import suppress
from typing import Final

from gsched.clock import Clock
from gsched.errors import GschedError, NotPermittedError, TryAgainError
from gsched.logs import Complaints
from gsched.model.limits import MAX_RELAYS_OF_NODE, shown
from gsched.protocol.node import Exited
from gsched.protocol.relays import PIECE_BYTES, RelayAnswer, RelayRequest
from gschedd.core.head import Head
from gschedd.core.requests.relaying import JUST_ENDED_S, check_relayed, has_job_on
from gschedd.http.callers import GROUPS, UserNames, accounts_version
from gschedd.http.door import Door, Source
from gschedd.http.legs import Leg, NodeLegs
from gschedd.http.links import Link

log = logging.getLogger("gschedd.relays")

CONNECT_S: Final = 10.0  # for the node to open the connection that it has requested
ENDED_MOST: Final = 10_000  # remembered ends of jobs


class Relays:
    """The connections of users on other hosts.

    Args:
        accounts: the names of users on the head's machine.

    Attributes:
        door: that of users, by which they come in.
    """

    door: Door

    def __init__(
        self,
        legs: NodeLegs,
        head: Head,
        accounts: UserNames,
        clock: Clock,
    ) -> None:
        self._legs = legs
        self._head = head
        self._accounts = accounts
        self._groups = UserNames(clock, _group_ids, lambda: accounts_version(GROUPS))
        self._clock = clock
        self._complaints = Complaints(log, clock)
        self._open: Counter[str] = Counter()
        self._ended: dict[tuple[str, int, str], float] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, link: Link, request: RelayRequest, *, is_login: bool = False) -> None:
        """Answer a node's request, and serve the connection that it opens then."""
        task = asyncio.get_running_loop().create_task(self._serve(link, request, is_login=is_login))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def note_end(self, node: str, exited: Exited) -> None:
        """Remember for a while that a job of its owner was on a node."""
        job = self._head.state.jobs.get(exited.record.job)
        if job is None:
            return
        if len(self._ended) >= ENDED_MOST:
            self._ended.clear()
        owner = job.spec.owner
        self._ended[node, owner.uid, owner.user] = self._clock.monotonic_s()

    async def _serve(self, link: Link, request: RelayRequest, *, is_login: bool) -> None:
        try:
            source = self._admitted(link, request, is_login=is_login)
        except GschedError as error:
            self._complaints.say(f"{link.node}, uid {request.uid}", f"refused: {error.message}")
            link.send(
                RelayAnswer(
                    number=request.number, code=error.code, message=error.message, hint=error.hint
                )
            )
            return
        self._open[link.node] += 1
        try:
            with self._legs.awaited(link.node) as (session, connection):
                link.send(RelayAnswer(number=request.number, session=session))
                async with asyncio.timeout(CONNECT_S):
                    leg = await connection
            try:
                await self._carry(leg, source)
            finally:
                leg.over.set()
        except (GschedError, TimeoutError) as error:
            why = str(error) or f"it has not come within {CONNECT_S:.0f} s"
            self._complaints.say(link.node, f"no connection for a user of {link.node}: {why}")
        finally:
            self._open -= Counter({link.node: 1})

    def _admitted(self, link: Link, request: RelayRequest, *, is_login: bool) -> Source:
        """Return the source that a user of another host is.

        Raises:
            GschedError: the user is refused.
        """
        host, uid, user, settings = link.node, request.uid, request.user, self._head.settings
        if self._open[host] >= MAX_RELAYS_OF_NODE:
            raise TryAgainError(
                f"{host} has {MAX_RELAYS_OF_NODE} connections of users, the limit",
                hint="try again in a moment",
            )
        known = self._accounts.name(uid, acts=True)
        if not user or user != known:
            raise NotPermittedError(
                _difference(host, uid, user, "" if known == str(uid) else known),
                hint="users need the same name and number on all hosts: tell the administrators",
            )
        ended_s = self._ended.get((host, uid, user), -JUST_ENDED_S)
        is_recent = self._clock.monotonic_s() < ended_s + JUST_ENDED_S
        check_relayed(
            request,
            host,
            settings,
            is_login=is_login,
            has_job=is_recent or has_job_on(self._head.state, host, request),
        )
        groups = self._groups.name(uid, acts=True)
        if not groups.startswith(","):
            raise TryAgainError(f"the head's name service does not tell the groups of {user}")
        if str(request.gid) not in groups.split(","):
            raise NotPermittedError(
                f"group {request.gid} of {user} on {host} is not one of {user}'s groups on the "
                "head's machine",
                hint="groups need the same numbers and members on all hosts; tell the "
                "administrators",
            )
        return Source(
            name=f"uid {uid} on {host}",
            uid=uid,
            gid=request.gid,
            host=host,
            operator=settings.has_operators(host) and settings.operators.has(uid, user),
        )

    async def _carry(self, leg: Leg, source: Source) -> None:
        """Pass the bytes of a connection on in both directions, until either side closes."""
        near, far = socket.socketpair()
        far.settimeout(0.0)
        self.door.welcome(near, source)
        try:
            copies = (
                asyncio.create_task(_from_node(leg, far)),
                asyncio.create_task(_to_node(far, leg)),
            )
            done, others = await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            for task in done:
                with suppress(OSError):
                    task.result()
        finally:
            far.close()


async def _from_node(leg: Leg, far: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    while piece := await leg.receive():
        await loop.sock_sendall(far, piece)


async def _to_node(far: socket.socket, leg: Leg) -> None:
    loop = asyncio.get_running_loop()
    while piece := await loop.sock_recv(far, PIECE_BYTES):
        await leg.send(piece)


def _difference(host: str, uid: int, user: str, known: str) -> str:
    """Return in words how a user of another host differs from the head's."""
    if not user:
        return f"{host} knows no name of uid {uid}"
    here = f"uid {uid} is {known} there" if known else f"no user has uid {uid} there"
    try:
        number = pwd.getpwnam(user).pw_uid
    except (KeyError, ValueError):
        name = f"the head's machine has no user {shown(user)}, and {here}"
    else:
        name = f"on the head's machine {shown(user)} has uid {number}, and {here}"
    return f"user {shown(user)} has uid {uid} on {host}, but {name}"


def _group_ids(uid: int) -> str:
    """Return the numbers of a user's groups, with a comma before each."""
    try:
        user = pwd.getpwuid(uid)
        return "".join(f",{gid}" for gid in os.getgrouplist(user.pw_name, user.pw_gid))
    except (KeyError, OSError):
        return ""

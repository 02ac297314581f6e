"""Files of users on the hosts of the cluster: read and written there as their owners.

A host's gnode does it, node or login host. On its own machine the head does it, where it is root or
the owner; else a gnode that is connected by the Unix socket for nodes.
"""

import asyncio
import os
from collections.abc import Callable
from typing import Final

from msgspec import structs

from gsched.errors import BadStateError
from gsched.model.outputs import FILES_FEATURE
from gsched.owner_files import OwnerFiles
from gsched.protocol.deliveries import FileDone, FileOrder
from gschedd.core.state.settings import Settings
from gschedd.http.hosts import Hosts
from gschedd.http.links import Link, Links

ANSWER_S: Final = 30.0
#: Of the names in a piece of a tree of an older version, beyond the bytes that were requested.
MORE_BYTES: Final = 1024 * 1024
GONE_LOOK_S: Final = 1.0  # how soon it is noticed that a host is gone that was to answer


class HostFiles:
    """Sends orders to hosts.

    Args:
        settings: in force.
    """

    def __init__(self, links: Links, hosts: Hosts, settings: Callable[[], Settings]) -> None:
        self._links = links
        self._hosts = hosts
        self._settings = settings
        self._requests: dict[tuple[str, int], asyncio.Future[FileDone]] = {}
        self._next_request = 1
        head = settings().config.head
        self._own = OwnerFiles(allow_root=head.allow_root_jobs, uid_min=head.min_uid)

    def take(self, host: str, done: FileDone) -> None:
        """Take a host's answer."""
        waiting = self._requests.pop((host, done.request), None)
        if waiting is not None and not waiting.done():
            waiting.set_result(done)

    async def do(self, host: str, order: FileOrder) -> FileDone:
        """Have an order done on a host; empty: on the head's machine.

        Raises:
            BadStateError: it is not connected or does not answer; it may be later.
        """
        if not host and os.geteuid() in {0, order.uid}:
            return await self._own.do(order)
        link = self._link(host)
        if link is None:
            raise BadStateError(self._not_there(host))
        number, self._next_request = self._next_request, self._next_request + 1
        future: asyncio.Future[FileDone] = asyncio.get_running_loop().create_future()
        self._requests[link.node, number] = future
        link.send(structs.replace(order, request=number))
        try:
            async with asyncio.timeout(ANSWER_S):
                while not link.is_gone:
                    await asyncio.wait({future}, timeout=GONE_LOOK_S)
                    if future.done():
                        return _bounded(link.node, order, future.result())
        except TimeoutError:
            raise BadStateError(f"{link.node} has not answered in {ANSWER_S:.0f} s") from None
        else:
            raise BadStateError(self._not_there(host))
        finally:
            self._requests.pop((link.node, number), None)

    def takes_batches(self, host: str) -> bool:
        """Return whether a host can take many files in one order; also where it is not known."""
        link = self._link(host)
        return link is None or FILES_FEATURE in link.features

    def takes_following(self, host: str) -> bool:
        """Return whether a host takes pieces of a file while others are on their way."""
        link = self._link(host)
        return link is None or link.packs

    def _link(self, host: str) -> Link | None:
        if host:
            login = self._hosts.logins.get(host)
            return login.link if login is not None and login.link else self._links.link(host)
        everybody = (*self._links.connected.values(), *self._hosts.connected())
        return next((each for each in everybody if not each.peer.name), None)

    def _not_there(self, host: str) -> str:
        if host:
            return f"{host} is not connected"
        return (
            f"{self._settings().server} has no gnode that is connected by its Unix socket, and the "
            "head is not root there"
        )


def _bounded(host: str, order: FileOrder, done: FileDone) -> FileDone:
    """Return a host's answer, unless it is larger than what was requested."""
    if len(done.data) <= order.max_bytes + MORE_BYTES:
        return done
    error = f"{host} has sent {len(done.data)} bytes; {order.max_bytes} were requested"
    return FileDone(request=done.request, error=error)

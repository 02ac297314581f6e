"""Launches on their way to the agent: each waits until it is known who its owner is here.

Nothing else waits for a name service: other users' launches, stops and pings go on.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from gnode.core.inputs import LaunchOrder
from gnode.daemon.accounts import AccountLookup
from gsched.protocol.node import Launch, Prepare


class Lookup(Protocol):
    """Finds accounts without blocking the event loop."""

    def known(self, user: str) -> AccountLookup | None:
        """Return what is known of a user, None if the name service has to be asked."""

    async def ask(self, user: str) -> AccountLookup:
        """Return what the name service says of a user."""


class Arrivals:
    """Launches whose owners are being looked up, by user, in order.

    Args:
        lookup: finds the owners.
        post: takes the launches.
    """

    def __init__(self, lookup: Lookup, post: Callable[[LaunchOrder], None]) -> None:
        self._lookup = lookup
        self._post = post
        self._waiting: dict[str, list[Launch | Prepare]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, order: Launch | Prepare) -> None:
        """Pass a launch on, or a preparation, now or when its owner is known."""
        user = _launch_of(order).spec.owner.user
        waiting = self._waiting.get(user)
        if waiting is not None:
            waiting.append(order)
            return
        found = self._lookup.known(user)
        if found is not None:
            self._tell(order, found)
            return
        self._waiting[user] = [order]
        task = asyncio.get_running_loop().create_task(self._ask(user))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def forget(self) -> None:
        """Forget what waits: the connection is gone, and the head will say anew what it wants."""
        for task in self._tasks:
            task.cancel()
        self._waiting.clear()

    async def _ask(self, user: str) -> None:
        found = await self._lookup.ask(user)
        for order in self._waiting.pop(user):
            self._tell(order, found)

    def _tell(self, order: Launch | Prepare, found: AccountLookup) -> None:
        self._post(
            LaunchOrder(
                launch=_launch_of(order),
                account=found.account,
                lookup_failed=found.failed,
                prepare=isinstance(order, Prepare),
                yields=isinstance(order, Prepare) and order.yields,
            )
        )


def _launch_of(order: Launch | Prepare) -> Launch:
    return order.launch if isinstance(order, Prepare) else order

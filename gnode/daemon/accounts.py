"""Who a user is on this machine, asked off the event loop: a name service may hang.

A service that hangs costs threads, so each user is looked up once at a time and only a few threads
may hang; then further users are not asked for until one of them has returned.
"""

import asyncio
import logging
import pwd
import threading
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from gnode.core.inputs import LaunchOrder
from gnode.core.task import Account
from gnode.supervisor import kernel
from gsched.clock import Clock
from gsched.protocol.node import Launch, Prepare

log = logging.getLogger(__name__)

KEPT_S = 60.0
KEPT_UNKNOWN_S = 5.0  # a name service may say "not found" for a moment
TIMEOUT_S = 10.0
MAX_THREADS = 8


class AccountLookup(Struct, frozen=True, kw_only=True):
    """What the name service says of a user.

    Attributes:
        account: None if there is none, or none is known.
        failed: it did not answer, so that nothing is known.
    """

    account: Account | None = None
    failed: bool = False


FAILED = AccountLookup(failed=True)
LookUp = Callable[[str], AccountLookup]


def look_up(user: str) -> AccountLookup:
    """Ask the name service for a user; it may hang."""
    try:
        entry = pwd.getpwnam(user)
    except ValueError:  # a NUL in the name
        return AccountLookup()
    except KeyError:  # also where the service could not be asked: Python does not tell
        return FAILED if kernel.name_service_error(user) else AccountLookup()
    return AccountLookup(
        account=Account(
            user=entry.pw_name,
            uid=entry.pw_uid,
            gid=entry.pw_gid,
            home=entry.pw_dir,
            shell=entry.pw_shell,
        )
    )


class Accounts:
    """Looks up accounts and keeps the answers for a while.

    Args:
        clock: for how long they are kept.
        look_up: asks the name service.
        timeout_s: how long an answer is waited for, seconds.
    """

    def __init__(
        self, clock: Clock, look_up: LookUp = look_up, *, timeout_s: float = TIMEOUT_S
    ) -> None:
        self._clock = clock
        self._look_up = look_up
        self._timeout_s = timeout_s
        self._known: dict[str, tuple[float, AccountLookup]] = {}
        self._asking: dict[str, asyncio.Future[AccountLookup]] = {}

    def known(self, user: str) -> AccountLookup | None:
        """Return what is known of a user, None if the service has to be asked."""
        until_s, found = self._known.get(user, (0.0, FAILED))
        return found if until_s > self._clock.monotonic_s() else None

    async def ask(self, user: str) -> AccountLookup:
        """Return what the service says of a user; a failure if it does not answer in time."""
        found = self.known(user)
        if found is not None:
            return found
        asking = self._asking.get(user)
        if asking is None:
            if len(self._asking) >= MAX_THREADS:
                log.warning("the name service does not answer; user %s is not asked for", user)
                return FAILED
            loop = asyncio.get_running_loop()
            try:
                threading.Thread(target=self._run, args=(user, loop), daemon=True).start()
            except RuntimeError as error:  # no more threads
                log.warning("user %s cannot be looked up: %s", user, error)
                return FAILED
            asking = self._asking[user] = loop.create_future()
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.shield(asking)
        except TimeoutError:
            log.warning("the name service does not answer for user %s", user)
            return FAILED

    def _run(self, user: str, loop: asyncio.AbstractEventLoop) -> None:
        try:
            found = self._look_up(user)
        except OSError as error:
            log.warning("the name service failed for user %s: %s", user, error)
            found = FAILED
        try:
            loop.call_soon_threadsafe(self._answered, user, found)
        except RuntimeError:  # gnode has ended meanwhile
            return

    def _answered(self, user: str, found: AccountLookup) -> None:
        kept_s = KEPT_UNKNOWN_S if found.account is None else KEPT_S
        self._known[user] = (self._clock.monotonic_s() + kept_s, found)
        self._asking.pop(user).set_result(found)


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
        """Drop waiting requests: the head repeats them over its next connection."""
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

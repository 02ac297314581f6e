"""The accounts of this machine: a name service that hangs keeps nobody else waiting."""

import asyncio
import contextlib
import math
import pwd
import threading
from collections.abc import Callable
from typing import Final

from gsched.clock import Clock
from gsched.errors import TryAgainError
from gschedd.http.callers import (
    KEPT_S,
    KEPT_TO_ACT_S,
    KEPT_UNKNOWN_S,
    MAX_NAMES,
    PATIENCE_S,
    accounts_version,
)

Account = pwd.struct_passwd

#: Requests to the name service under way, each in a thread.
LOOKUPS_MOST: Final = 16


class KnownAccounts:
    """Looks accounts up in threads, and keeps them as long as the head keeps names.

    Args:
        look_up: asks the name service.
        version: returns what changes with the accounts of this machine.
        patience_s: how long a request waits for the name service.
    """

    def __init__(
        self,
        clock: Clock,
        look_up: Callable[[int], Account] = pwd.getpwuid,
        version: Callable[[], object] = accounts_version,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._clock = clock
        self._look_up = look_up
        self._version = version
        self._patience_s = patience_s
        self._seen: object = None
        self._known: dict[int, tuple[float, Account | None]] = {}
        self._asking: dict[int, asyncio.Future[Account | None]] = {}

    async def of(self, uid: int, *, acts: bool) -> Account | None:
        """Return an account; None: there is none. While the name service hangs, the last one holds.

        Args:
            acts: the user wants to change something, so that it must be newer than for reading.

        Raises:
            TryAgainError: the name service does not answer, and there is no last one.
        """
        version = self._version()
        if version != self._seen:
            self._seen = version
            self._known = {each: (-math.inf, account) for each, (_, account) in self._known.items()}
        at_s, account = self._known.get(uid, (-math.inf, None))
        kept_s = KEPT_TO_ACT_S if acts else KEPT_S if account is not None else KEPT_UNKNOWN_S
        if self._clock.monotonic_s() - at_s < kept_s:
            return account
        if uid not in self._asking and len(self._asking) < LOOKUPS_MOST:
            self._ask(uid)
        if uid in self._asking:
            done, _ = await asyncio.wait({self._asking[uid]}, timeout=self._patience_s)
            if done:
                return self._known[uid][1]
        if account is not None:
            return account
        raise TryAgainError(
            f"the name service does not answer for uid {uid}", hint="try again in a moment"
        )

    def _ask(self, uid: int) -> None:
        loop = asyncio.get_running_loop()
        self._asking[uid] = loop.create_future()

        def ask() -> None:
            account = None
            with contextlib.suppress(KeyError, OSError):
                account = self._look_up(uid)
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(self._learn, uid, account)

        threading.Thread(target=ask, name="names", daemon=True).start()

    def _learn(self, uid: int, account: Account | None) -> None:
        if len(self._known) >= MAX_NAMES:
            self._known.clear()
        self._known[uid] = (self._clock.monotonic_s(), account)
        self._asking.pop(uid).set_result(account)

"""Who a user is on this machine, asked off the event loop: a name service may hang."""

import asyncio
import logging
import pwd

from gnode.core.inputs import Account
from gsched.clock import Clock

log = logging.getLogger(__name__)

KEPT_S = 60.0
KEPT_UNKNOWN_S = 5.0  # a name service may say "not found" for a moment
TIMEOUT_S = 10.0


class Accounts:
    """Looks up accounts and keeps the answers for a while."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[str, tuple[float, Account | None]] = {}

    async def accounts(self, users: set[str]) -> dict[str, Account | None]:
        """Return each user's account here, None for one that is unknown or cannot be asked for."""
        now_s = self._clock.monotonic_s()
        for user in users:
            until_s, _ = self._known.get(user, (0.0, None))
            if until_s <= now_s:
                await self._ask(user, now_s)
        return {user: self._known[user][1] for user in users}

    async def _ask(self, user: str, now_s: float) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                account = await asyncio.to_thread(look_up, user)
        except TimeoutError:
            log.warning("the name service does not answer for user %s", user)
            account = None
        kept_s = KEPT_UNKNOWN_S if account is None else KEPT_S
        self._known[user] = (now_s + kept_s, account)


def look_up(user: str) -> Account | None:
    """Return the account of ``user``, None if there is none."""
    try:
        entry = pwd.getpwnam(user)
    except (KeyError, ValueError):  # ValueError: a NUL in the name
        return None
    return Account(
        user=entry.pw_name,
        uid=entry.pw_uid,
        gid=entry.pw_gid,
        home=entry.pw_dir,
        shell=entry.pw_shell,
    )

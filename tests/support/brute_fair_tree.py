"""Fair Tree straight from its definition, slowly: the rank of each user by comparing it with all.

Source: https://slurm.schedmd.com/fair_tree.html. A user's path holds the ``level_fs`` of all
accounts from the root down to it, and its own. The children of accounts that tie are ranked
together, so paths are compared as words are, whatever the accounts; a user whose path is the
beginning of another's ties with an account there, and so with the highest user in it.
"""

import math
from collections.abc import Mapping, Sequence

from gschedd.shares.tree import Association, ShareAccount, ShareUser

Path = tuple[float, ...]


def brute_factors(
    accounts: Sequence[ShareAccount],
    users: Sequence[ShareUser],
    usage: Mapping[Association, float],
) -> dict[Association, float]:
    """Return the fair-share factor of each user."""
    levels = _Levels(accounts, users, usage)
    paths = {(user.account, user.user): levels.path(user) for user in users}
    every = list(paths.values())
    return {
        key: (len(every) - sum(_is_before(other, path, every) for other in every)) / len(every)
        for key, path in paths.items()
    }


def _is_before(one: Path, other: Path, every: Sequence[Path]) -> bool:
    shorter = min(len(one), len(other))
    if one[:shorter] != other[:shorter]:
        return one[:shorter] > other[:shorter]
    if len(one) < len(other):
        return not _is_highest(other, one, every)
    return False


def _is_highest(path: Path, start: Path, every: Sequence[Path]) -> bool:
    """Return whether no user below what ties with ``start`` is before the one of this path."""
    rivals = [each for each in every if each[: len(start)] == start and len(each) > len(start)]
    return not any(_is_before(rival, path, rivals) for rival in rivals)


class _Levels:
    """What the definition says of accounts and users, looked up anew each time."""

    def __init__(
        self,
        accounts: Sequence[ShareAccount],
        users: Sequence[ShareUser],
        usage: Mapping[Association, float],
    ) -> None:
        self.accounts = {account.name: account for account in accounts}
        self.users = users
        self.usage = usage

    def arena(self, name: str) -> str:
        """Return in which account the children of an account compete."""
        account = self.accounts[name]
        stands = not account.parent or account.shares is not None
        return name if stands else self.arena(account.parent)

    def used(self, name: str) -> float:
        """Return the usage of an account with all that is in it."""
        own = sum(self.usage_of(user) for user in self.users if user.account == name)
        below = sum(self.used(each.name) for each in self.accounts.values() if each.parent == name)
        return own + below + self.usage.get((name, ""), 0.0)

    def usage_of(self, user: ShareUser) -> float:
        """Return the usage of a user."""
        return self.usage.get((user.account, user.user), 0.0)

    def level(self, shares: float | None, used: float, arena: str) -> float:
        """Return the ``level_fs`` of who has these shares and this usage."""
        if shares is None:
            return math.inf
        if shares == 0:
            return 0.0
        if used == 0:
            return math.inf
        rivals = [user.shares for user in self.users if self.arena(user.account) == arena]
        rivals += [
            account.shares
            for account in self.accounts.values()
            if account.parent and self.arena(account.parent) == arena
        ]
        return (shares / sum(each or 0.0 for each in rivals)) / (used / self.used(arena))

    def account_path(self, name: str) -> Path:
        """Return the levels from the root down to an account with shares."""
        account = self.accounts[name]
        if not account.parent:
            return ()
        arena = self.arena(account.parent)
        level = self.level(account.shares, self.used(name), arena)
        return (*self.account_path(arena), level)

    def path(self, user: ShareUser) -> Path:
        """Return the levels from the root down to a user."""
        arena = self.arena(user.account)
        return (
            *self.account_path(arena),
            self.level(user.shares, self.usage_of(user), arena),
        )

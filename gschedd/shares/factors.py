"""The fair-share factors of all users, from the tree of projects and the usage ledger."""

import math
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from gschedd.shares.ledger import UsageLedger
from gschedd.shares.tree import Association, ShareAccount, ShareTree, ShareUser, Standing

#: The account above all projects, and of users without a project.
ROOT: Final = "root"


class Factors(Struct, frozen=True, kw_only=True):
    """Fair-share factors as of a time.

    Attributes:
        by_user: of each user of the tree.
        best: the highest in each account; of a user who is not in the tree yet.
    """

    by_user: Mapping[Association, float]
    best: Mapping[str, float]


class FairShares:
    """Computes the factors, seldom enough.

    Users who are in no list but have used something, or are looked up, have one share of their
    project; of a project that is not configured, one of the root.

    Args:
        ledger: holds the usage.
    """

    def __init__(self, ledger: UsageLedger) -> None:
        self._ledger = ledger
        self._seen: set[Association] = set()
        self._factors = Factors(by_user={}, best={})
        self.configure((), (), recompute_s=30.0)

    def configure(
        self,
        accounts: Iterable[ShareAccount],
        users: Iterable[ShareUser],
        *,
        recompute_s: float,
    ) -> None:
        """Take other projects, without the root, and their users; all is computed anew.

        Raises:
            ConfigError: they make no tree.
        """
        root = ShareAccount(name=ROOT)
        self._accounts = (root, *accounts)
        self._names = {account.name for account in self._accounts}
        self._users = tuple(users)
        self._recompute_s = recompute_s
        self._computed_s = -math.inf
        self._tree = self._listed = ShareTree(self._accounts, self._users)
        self._in_tree = 0

    def place(self, project: str, user: str) -> Association:
        """Return where the jobs of a user for a project stand in the tree."""
        return (project if project in self._names else ROOT, user)

    def factor(self, project: str, user: str, now_s: float) -> float:
        """Return the factor of a user, which is at most so old as `factors` says."""
        factors = self._current(now_s)
        whose = self.place(project, user)
        found = factors.by_user.get(whose)
        if found is None:
            self._seen.add(whose)
            found = factors.best.get(whose[0], 1.0)
        return found

    def factors(self, now_s: float) -> Mapping[Association, float]:
        """Return the factors of all users, by project and user; of none it is ``root``.

        They are computed again when they are ``recompute_s`` old, or the clock was set back.
        """
        return self._current(now_s).by_user

    def standings(self, now_s: float) -> dict[Association, Standing]:
        """Return how all projects and users stand at this moment; a project has no user ("")."""
        usage = self._usage(now_s)
        return self._tree.standings(usage)

    def _current(self, now_s: float) -> Factors:
        if not 0 <= now_s - self._computed_s < self._recompute_s:
            usage = self._usage(now_s)
            by_user = self._tree.factors(usage)
            best: dict[str, float] = {}
            for (project, _), factor in by_user.items():
                best[project] = max(factor, best.get(project, 0.0))
            self._factors = Factors(by_user=by_user, best=best)
            self._computed_s = now_s
        return self._factors

    def _usage(self, now_s: float) -> dict[Association, float]:
        """Return the usage of all users of the tree, which has grown by those who are new."""
        usage = self._ledger.usage(now_s)
        for project, user in [whose for whose in usage if whose[0] not in self._names]:
            used, whose = usage.pop((project, user)), (ROOT, user)
            usage[whose] = usage.get(whose, 0.0) + used
        self._seen.update(usage)
        if len(self._seen) != self._in_tree:
            new = sorted(each for each in self._seen if each not in self._listed)
            users = (ShareUser(account=project, user=user) for project, user in new)
            self._tree = ShareTree(self._accounts, (*self._users, *users))
            self._in_tree = len(self._seen)
        return usage

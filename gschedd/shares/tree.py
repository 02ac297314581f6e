"""The share tree, and Fair Tree: the factor of each user by shares and usage.

Accounts form a tree, and users are in accounts. Among siblings, ``level_fs`` is normalised shares
by normalised usage: above 1 after less than its share. The tree is walked depth-first, the highest
``level_fs`` first, and users are ranked as they are found; the fair-share factor of a user is its
rank by the number of users. So all users of an account that has used less than its share come
before all users of an account beside it that has used more.

Source: Cox and Morrison, "Fair Tree Fairshare Algorithm", Slurm's documentation,
https://slurm.schedmd.com/fair_tree.html. Ties as there: users of one ``level_fs`` share a rank, the
children of accounts of one ``level_fs`` are ranked together, and a user that ties with an account
shares the rank of its highest user. An account without users takes no part in ties. Quotients are
taken in Slurm's order, in floating point: exact arithmetic makes ties that Slurm does not have.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Final

from msgspec import Struct

from gsched.errors import ConfigError

#: The name of an association: an account and a user of it; an account alone has no user ("").
Association = tuple[str, str]

#: However much one has used, its shares count at least by this part in `ShareTree.entitlements`.
LEAST_LEVEL: Final = 0.1

_BY_LEVEL: Final = attrgetter("level_fs")


class ShareAccount(Struct, frozen=True, kw_only=True):
    """An account of the tree.

    Attributes:
        parent: the account above; empty: it is the root.
        shares: against its siblings; None ("parent"): its children compete with its siblings.
    """

    name: str
    parent: str = ""
    shares: float | None = 1.0


class ShareUser(Struct, frozen=True, kw_only=True):
    """A user of an account; shares None ("parent"): it comes before all users with shares."""

    account: str
    user: str
    shares: float | None = 1.0


class Standing(Struct, frozen=True, kw_only=True):
    """How an account or a user stands.

    Attributes:
        norm_shares: its part of the shares of all siblings; of ``parent``: as the account above.
        norm_usage: its part of the usage of all.
        effective_usage: its part of the usage of the account in which it competes.
        level_fs: None for the root, and with shares of ``parent``.
        fair_share: from 0 to 1; None for an account.
    """

    norm_shares: float
    usage: float
    norm_usage: float
    effective_usage: float
    level_fs: float | None = None
    fair_share: float | None = None


class _Node:
    """A user, or what a user and an account have in common.

    Attributes:
        arena: the account among whose members it competes; None: it is the root.
        norm_shares: by the shares of these members.
        users: how many users are in it and below it; 1: it is a user.
        usage, level_fs, fair_share: as last computed.
    """

    __slots__ = (
        "above",
        "arena",
        "fair_share",
        "key",
        "level_fs",
        "norm_shares",
        "shares",
        "usage",
        "users",
    )

    def __init__(self, key: Association, shares: float | None, above: "_Account | None") -> None:
        self.key = key
        self.shares = shares
        self.above = above
        self.arena = None if above is None else above.arena_inside
        self.users = 1
        self.norm_shares = 0.0
        self.usage = 0.0
        self.level_fs = 0.0
        self.fair_share = 0.0


class _Account(_Node):
    """An account.

    Attributes:
        members: the users and accounts that compete in it: its own, and those of accounts below it
            with shares of ``parent``.
        arena_inside: where its users and accounts compete: in it, or where it would.
    """

    __slots__ = ("arena_inside", "members")

    def __init__(self, key: Association, shares: float | None, above: "_Account | None") -> None:
        super().__init__(key, shares, above)
        self.members: list[_Node] = []
        self.users = 0
        joins = shares is None and self.arena is not None
        self.arena_inside: _Account = self.arena if joins and self.arena else self

    def set_levels(self) -> None:
        """Set the ``level_fs`` of all members."""
        for member in self.members:
            if member.shares is None:
                member.level_fs = math.inf
            elif not member.norm_shares:
                member.level_fs = 0.0
            else:
                used = member.usage / self.usage if self.usage else 0.0
                member.level_fs = member.norm_shares / used if used else math.inf


class ShareTree:
    """Accounts and users with their shares."""

    def __init__(self, accounts: Iterable[ShareAccount], users: Iterable[ShareUser]) -> None:
        """Check the tree and build it.

        Raises:
            ConfigError: a name is given twice, a parent is unknown, shares are not 0 or more, there
                is not one root, or accounts are parents of each other.
        """
        self._order = _joined(accounts)
        self._accounts = {account.key[0]: account for account in self._order}
        self._users: dict[Association, _Node] = {}
        for user in users:
            self._add(user)
        for account in reversed(self._order[1:]):
            _above(account).users += account.users
        for account in self._order[1:]:
            if account.shares is not None:
                _arena(account).members.append(account)
        for account in self._order:
            _normalise(account)

    def _add(self, user: ShareUser) -> None:
        key = (user.account, user.user)
        account = self._accounts.get(user.account)
        if account is None:
            raise ConfigError(f"user {user.user} is in account {user.account}, which is unknown")
        if key in self._users:
            raise ConfigError(f"user {user.user} is given twice in account {user.account}")
        _check_shares(f"user {user.user} of account {user.account}", user.shares)
        node = self._users[key] = _Node(key, user.shares, account)
        account.users += 1
        account.arena_inside.members.append(node)

    def __contains__(self, association: Association) -> bool:
        """Return whether a user is in an account."""
        return association in self._users

    def factors(self, usage: Mapping[Association, float]) -> dict[Association, float]:
        """Return the fair-share factor of each user, from 0 to 1.

        Args:
            usage: of users, in any unit, 0 where it is missing. That of others, and of an account
                without a user, counts for the account; that of unknown accounts is ignored.
        """
        self._compute(usage)
        return {key: node.fair_share for key, node in self._users.items()}

    def standings(self, usage: Mapping[Association, float]) -> dict[Association, Standing]:
        """Return how each account and each user stands; the arguments are those of `factors`."""
        self._compute(usage)
        whole = self._order[0].usage
        nodes = (*self._order, *self._users.values())
        return {node.key: _standing(node, whole) for node in nodes}

    def entitlements(
        self,
        demand: Mapping[Association, float],
        usage: Mapping[Association, float],
        whole: float = 1.0,
    ) -> dict[Association, float]:
        """Return what each user with a demand is entitled to of a whole.

        A whole is divided among siblings by their shares; those of one that has used more than its
        share count less, in proportion. What one does not need is divided among the others.

        Args:
            demand: of users, in the unit of ``whole``; of unknown users and accounts ignored.
            usage: as in `factors`.
        """
        self._compute(usage)
        nodes = (*self._order, *self._users.values())
        weights = {
            node.key: (node.shares or 0.0) * min(1.0, max(node.level_fs, LEAST_LEVEL))
            for node in nodes
        }
        self._compute(demand)
        found: dict[Association, float] = {}
        parts: list[tuple[_Node, float]] = [(self._order[0], whole)]
        for node, part in parts:  # it grows meanwhile
            if isinstance(node, _Account):
                parts += _filled(node.members, weights, part)
            elif node.usage:
                found[node.key] = part
        return found

    def _compute(self, usage: Mapping[Association, float]) -> None:
        for node in (*self._order, *self._users.values()):
            node.usage = 0.0
        for key, used in usage.items():
            user, account = self._users.get(key), self._accounts.get(key[0])
            if user is not None:
                user.usage = used
            if account is not None:
                account.usage += used
        for account in reversed(self._order[1:]):
            _above(account).usage += account.usage
        for account in self._order:
            account.set_levels()
        self._rank()

    def _rank(self) -> None:
        """Walk the tree depth-first, and rank users as they are found."""
        rank = unranked = total = len(self._users)
        tied = False  # the next user shares the rank of the user before
        groups = _groups(self._order[:1])
        while groups:
            group = groups.pop()
            accounts = [node for node in group if isinstance(node, _Account)]
            if len(accounts) < len(group):
                if not tied:
                    rank = unranked
                for node in group:
                    node.fair_share = rank / total
                unranked -= len(group) - len(accounts)
                tied = True
            tied = tied and bool(accounts)
            if accounts:
                groups += _groups(accounts)


def _filled(
    members: Sequence[_Node], weights: Mapping[Association, float], whole: float
) -> Iterator[tuple[_Node, float]]:
    """Yield what of a whole each member gets: its part by weight, no more than it needs."""
    wanting = [member for member in members if member.usage]
    left, rest = whole, sum(weights[member.key] for member in wanting)

    def level(member: _Node) -> float:
        weight = weights[member.key]
        return member.usage / weight if weight else math.inf

    for member in sorted(wanting, key=level):
        weight = weights[member.key]
        part = min(left * weight / rest if rest > 0 else 0.0, member.usage)
        left, rest = left - part, rest - weight
        yield member, part


def _joined(given: Iterable[ShareAccount]) -> list[_Account]:
    """Return the accounts, each after the account above it."""
    accounts: dict[str, ShareAccount] = {}
    for account in given:
        if account.name in accounts:
            raise ConfigError(f"account {account.name} is given twice")
        _check_shares(f"account {account.name}", account.shares)
        accounts[account.name] = account
    below: dict[str, list[str]] = {}
    for account in accounts.values():
        if account.parent and account.parent not in accounts:
            raise ConfigError(
                f"account {account.name} has parent {account.parent}, which is unknown"
            )
        below.setdefault(account.parent, []).append(account.name)
    roots = below.get("", [])
    if len(roots) > 1:
        raise ConfigError(f"more than one account has no parent: {', '.join(roots)}")
    joined: dict[str, _Account] = {}
    names = list(roots)
    for name in names:  # it grows meanwhile
        account = accounts[name]
        joined[name] = _Account((name, ""), account.shares, joined.get(account.parent))
        names += below.get(name, ())
    if len(joined) < len(accounts) or not joined:
        raise ConfigError(_circle(accounts, joined))
    return list(joined.values())


def _circle(accounts: Mapping[str, ShareAccount], joined: Collection[str]) -> str:
    """Return what is wrong with accounts that are not below a root."""
    name = next((name for name in accounts if name not in joined), "")
    if not name:
        return "there is no account: the root is missing"
    path: list[str] = []
    while name not in path:
        path.append(name)
        name = accounts[name].parent
    return f"accounts are parents of each other: {' < '.join([*path[path.index(name) :], name])}"


def _check_shares(whose: str, shares: float | None) -> None:
    if shares is not None and not 0 <= shares < math.inf:
        raise ConfigError(f"{whose} has {shares:g} shares, which is not 0 or more")


def _above(node: _Node) -> _Account:
    assert node.above is not None, "only the root has no account above"
    return node.above


def _arena(node: _Node) -> _Account:
    assert node.arena is not None, "only the root competes nowhere"
    return node.arena


def _normalise(account: _Account) -> None:
    """Divide the shares of an account's members by their sum; 0 shares in all are no shares."""
    whole = sum(member.shares or 0.0 for member in account.members)
    for member in account.members:
        if whole:
            member.norm_shares = (member.shares or 0.0) / whole


def _effective_usage(node: _Node) -> float:
    whole = _arena(node).usage
    return node.usage / whole if whole else 0.0


def _groups(accounts: Iterable[_Account]) -> list[list[_Node]]:
    """Return the members of accounts in groups of one ``level_fs``, the highest last."""
    members = [member for account in accounts for member in account.members if member.users]
    members.sort(key=_BY_LEVEL)
    groups: list[list[_Node]] = []
    level_fs = -1.0
    for member in members:
        if member.level_fs == level_fs:
            groups[-1].append(member)
        else:
            groups.append([member])
            level_fs = member.level_fs
    return groups


def _standing(node: _Node, whole: float) -> Standing:
    is_account = isinstance(node, _Account)
    if node.arena is None:
        return Standing(
            norm_shares=0.0, usage=node.usage, norm_usage=float(whole > 0), effective_usage=1.0
        )
    return Standing(
        norm_shares=node.arena.norm_shares if node.shares is None else node.norm_shares,
        usage=node.usage,
        norm_usage=node.usage / whole if whole else 0.0,
        effective_usage=_effective_usage(node),
        level_fs=None if node.shares is None else node.level_fs,
        fair_share=None if is_account else node.fair_share,
    )

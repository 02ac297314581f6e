"""Which limits there are, what of them is used, and by whom, as ``glimits`` shows them."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from gsched.config.shares import ancestry
from gsched.errors import InvalidRequestError, UnknownQueueError
from gsched.protocol.shares import LimitHolder, LimitRow
from gschedd.core.state.limit_use import spent_days
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State
from gschedd.plan.budgets import DAY_S, PERIODS
from gschedd.plan.limits import Bound, LimitRoom, Party, Scope

#: Users who are named in a row, those who have most first.
MAX_HOLDERS: Final = 5


def limit_rows(
    state: State, settings: Settings, now_s: float, wanted: Party, only: str = ""
) -> tuple[LimitRow, ...]:
    """Return the limits that jobs of a party are subject to; what is empty is any.

    Args:
        only: the only user of whom anything is shown; empty: all.

    Raises:
        InvalidRequestError: there is no such queue, project or QOS.
    """
    _check_known(wanted, settings)
    if only:
        wanted = wanted._replace(user=only)
    room = LimitRoom(state.limits, now_s)
    applies = _filter_of(wanted, settings)
    stated = room.rules.stated_scopes(wanted.user, settings.projects)
    scopes = {scope for scope in (*stated, *state.limits.counts) if applies(scope)}
    bounds = [bound for scope in sorted(scopes, key=_order) for bound in _bounds(room, scope)]
    found = _Holders(state, room, bounds).found
    return tuple(_row(bound, room, found[bound.scope, bound.counter], only) for bound in bounds)


def _check_known(wanted: Party, settings: Settings) -> None:
    if wanted.queue and wanted.queue not in settings.queues:
        known = ", ".join(settings.queues)
        raise UnknownQueueError(f"unknown queue {wanted.queue!r}", hint=f"known: {known}")
    if wanted.project and settings.projects and wanted.project not in settings.projects:
        known = ", ".join(settings.projects)
        raise InvalidRequestError(f"unknown project {wanted.project!r}", hint=f"known: {known}")
    if wanted.qos and wanted.qos not in settings.qos:
        known = ", ".join(settings.qos) or "none"
        raise InvalidRequestError(f"unknown QOS {wanted.qos!r}", hint=f"known: {known}")


def _order(scope: Scope) -> tuple[bool, Scope]:
    return scope != ("all",), scope


def _parts(scope: Scope) -> dict[str, str]:
    return {} if scope == ("all",) else dict(zip(scope[::2], scope[1::2], strict=True))


def _filter_of(wanted: Party, settings: Settings) -> Callable[[Scope], bool]:
    """Return whether a limit of a scope counts for jobs of a party."""
    projects: set[str] | None = None
    if wanted.project:
        projects = {each.name for each in ancestry(settings.projects, wanted.project)}
        projects.add(wanted.project)
    elif wanted.user:
        own = [each.name for each in settings.projects.values() if wanted.user in each.user_shares]
        projects = {each.name for name in own for each in ancestry(settings.projects, name)}
    named = {kind: getattr(wanted, kind) for kind in ("user", "queue", "qos")}

    def applies(scope: Scope) -> bool:
        parts = _parts(scope)
        if projects is not None and "project" in parts and parts["project"] not in projects:
            return False
        return all(not name or parts.get(kind, name) == name for kind, name in named.items())

    return applies


def _bounds(room: LimitRoom, scope: Scope) -> Iterator[Bound]:
    parts = _parts(scope)
    party = Party(**{"queue": "", **parts})
    for bound in room.rules.bounds(party):
        if bound.scope == scope:
            yield bound


class _Holders:
    """What each user has of each limit.

    Attributes:
        found: by scope and counter.
    """

    def __init__(self, state: State, room: LimitRoom, bounds: Iterable[Bound]) -> None:
        self.found: dict[tuple[Scope, str], Counter[str]] = {}
        self._counters: dict[Scope, list[str]] = {}
        for bound in bounds:
            self._counters.setdefault(bound.scope, []).append(bound.counter)
            self.found[bound.scope, bound.counter] = Counter()
        self._state = state
        self._room = room
        self._add_running()
        self._add_queued()
        if room.rules.budgets:
            self._add_spent()

    def _of(self, scopes: frozenset[Scope]) -> Iterator[tuple[Counter[str], str]]:
        """Yield what users have of each limit of some scopes, and its counter."""
        for scope in scopes & self._counters.keys():
            for counter in self._counters[scope]:
                yield self.found[scope, counter], counter

    def _add_running(self) -> None:
        book, now_s = self._room.book, self._room.now_s
        for job, held in book.held.items():
            user = self._state.jobs[job].spec.owner.user
            for users, counter in self._of(book.rules.scopes(held.party)):
                users[user] += book.amount_of(held, counter, now_s)

    def _add_queued(self) -> None:
        for job, (scopes, jobs) in self._room.book.queued.items():
            for users, counter in self._of(scopes):
                if counter == "queued":
                    users[self._state.jobs[job].spec.owner.user] += jobs

    def _add_spent(self) -> None:
        day = int(self._room.now_s // DAY_S)
        for party, days in spent_days(self._state):
            for users, counter in self._of(self._room.rules.scopes(party)):
                if counter in PERIODS:
                    begin = PERIODS[counter](day)
                    users[party.user] += sum(days[at] for at in days if at >= begin)


def _row(bound: Bound, room: LimitRoom, holders: Mapping[str, int], only: str) -> LimitRow:
    """Return a row; amounts are in the unit of its key."""
    scale = bound.kind.scale
    has_use = bound.counter != "walltime"
    used = room.used(bound) / scale if has_use else None
    most = bound.most / scale
    users = sorted(holders.items(), key=lambda each: (-each[1], each[0]))
    users = [each for each in users if each[1] and only in {"", each[0]}]
    key = f"{bound.kind.key}.{bound.gpu_type}" if bound.gpu_type else bound.kind.key
    return LimitRow(
        limit_of=bound.limit_of,
        key=key,
        noun=bound.noun,
        limit=most,
        used=used,
        left=None if used is None else max(0.0, most - used),
        holders=tuple(
            LimitHolder(user=user, amount=amount / scale) for user, amount in users[:MAX_HOLDERS]
        ),
        others=max(0, len(users) - MAX_HOLDERS),
        **_parts(bound.scope),
    )

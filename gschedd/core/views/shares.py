"""How projects and users stand: usage, shares and factors, as ``gshare`` shows them."""

import math
from collections.abc import Iterator, Mapping

from msgspec import Struct

from gsched.config.shares import ROOT, ProjectConfig
from gsched.protocol.shares import StandingRow
from gschedd.core.cycle.epoch import share_tree, usage_of
from gschedd.core.state.priority import Member
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State
from gschedd.shares.tree import Standing


class UsageNow(Struct, frozen=True, kw_only=True):
    """What has been used, copied from the state: rows of it can be made in another thread.

    Attributes:
        usage: by project and user, with decay.
        held: CPU- and GPU-seconds of ended attempts, likewise.
    """

    settings: Settings
    usage: Mapping[Member, float]
    held: Mapping[Member, tuple[float, float]]


def used_now(state: State, settings: Settings, now_s: float) -> UsageNow:
    """Return what has been used by now."""
    held: dict[Member, tuple[float, float]] = {}
    for (account, user), row in state.usage.rows.items():
        member = (account if account in settings.projects else ROOT, user)
        cpu_s, gpu_s = held.get(member, (0.0, 0.0))
        held[member] = (cpu_s + row.cpu_s, gpu_s + sum(row.gpu_s.values()))
    return UsageNow(settings=settings, usage=usage_of(state, settings, now_s), held=held)


def share_rows(
    used: UsageNow, *, project: str = "", user: str = "", only: str = ""
) -> tuple[StandingRow, ...]:
    """Return the rows of all projects and users, or of those that are named.

    Args:
        only: the one user who is shown beside projects; empty: all are.
    """
    return tuple(
        row
        for row in _Rows(used).below(ROOT, 0)
        if (not project or row.project == project)
        and (not user or row.user == user)
        and (not only or row.user in {"", only})
    )


class _Rows:
    """Makes the rows, from the root down."""

    def __init__(self, used: UsageNow) -> None:
        projects = used.settings.projects
        loose = sorted({user for project, user in used.usage if project not in projects})
        tree = share_tree(used.settings, loose)
        self._standings = tree.standings(used.usage)
        self._held: dict[str, dict[str, tuple[float, float]]] = {}
        for (project, user), seconds in used.held.items():
            self._held.setdefault(project, {})[user] = seconds
        self._projects = projects
        self._users: dict[str, dict[str, float]] = {ROOT: dict.fromkeys(loose, 1.0)}
        for name, config in projects.items():
            self._users[name] = {each: float(n) for each, n in config.user_shares.items()}
        self._children: dict[str, list[ProjectConfig]] = {}
        for config in projects.values():
            self._children.setdefault(config.parent, []).append(config)

    def below(self, name: str, depth: int) -> Iterator[StandingRow]:
        """Yield the row of a project, those of its users, and then those below it."""
        lower = [
            list(self.below(each.name, depth + 1))
            for each in sorted(self._children.get(name, ()), key=lambda each: each.name)
        ]
        users = self._users[name]
        held = self._held.get(name, {})  # also of users who are in it no more
        parts = [*held.values(), *((rows[0].cpu_s, rows[0].gpu_s) for rows in lower)]
        own = (sum(cpu_s for cpu_s, _ in parts), sum(gpu_s for _, gpu_s in parts))
        shares = None if name == ROOT else float(self._projects[name].shares)
        yield self._row((name, ""), depth, shares, own)
        for user in sorted(users):
            yield self._row((name, user), depth, users[user], held.get(user, (0.0, 0.0)))
        for rows in lower:
            yield from rows

    def _row(
        self, member: Member, depth: int, shares: float | None, held: tuple[float, float]
    ) -> StandingRow:
        standing: Standing = self._standings[member]
        level_fs = standing.level_fs
        return StandingRow(
            project=member[0],
            user=member[1],
            depth=depth,
            shares=shares,
            norm_shares=standing.norm_shares,
            usage=standing.usage,
            norm_usage=standing.norm_usage,
            effective_usage=standing.effective_usage,
            level_fs=None if level_fs is None or math.isinf(level_fs) else level_fs,
            fair_share=standing.fair_share,
            cpu_s=held[0],
            gpu_s=held[1],
        )

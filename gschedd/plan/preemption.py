"""Which running jobs give way so that a waiting job can start: those whose lost work is least.

A job that can shrink does so before another one migrates, that before one is checkpointed and
requeued, that before one is requeued without a checkpoint, and that before one is cancelled. Among
jobs that give way in the same manner the lost work counts, in seconds times resources, then the
later start. No job gives way without need, and none if the waiting job would not start then.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from gsched.config.preemption import WAYS, PreemptWay
from gsched.model.resources import Allocation, Request
from gsched.model.states import Placement
from gschedd.plan.elastic import at_count, is_elastic
from gschedd.plan.fit import NoFit, may_help, place
from gschedd.plan.space import Spaces
from gschedd.plan.validate import limited_to
from gschedd.plan.windows import Closed, without

#: Sizes that differ by less are equal: they are sums of quotients.
LEAST_SIZE: Final = 1e-9


class Preemptible(Struct, frozen=True, kw_only=True):
    """A running job that may be asked to give way.

    Attributes:
        ways: that are possible, the least lost work first.
        losses: the work that each of them costs, in seconds times resources.
        least: the allocation that it keeps if it shrinks; empty: it cannot.
        owner, size: whose job it is, and how large: see `Surplus`.
        from_s: it may be preempted from then on, seconds since the epoch.
    """

    job: int
    request: Request
    allocation: Allocation
    ways: tuple[PreemptWay, ...]
    losses: tuple[float, ...]
    started_s: float
    least: Allocation = ()
    owner: str = ""
    size: float = 0.0
    from_s: float = 0.0


class Victim(Struct, frozen=True, kw_only=True):
    """A job that gives way; ``allocation`` is where it keeps running, empty: nowhere."""

    job: int
    way: PreemptWay
    loss: float
    allocation: Allocation = ()


class Preemption(Struct, frozen=True, kw_only=True):
    """What a waiting job gets, and who gives way for it."""

    allocation: Allocation
    victims: tuple[Victim, ...]

    def cost(self, more: float) -> tuple[int, float, int]:
        """Return by what preemptions are compared: the worst way, the lost work, the jobs.

        Args:
            more: counts as lost work.
        """
        worst = max(WAYS.index(each.way) for each in self.victims)
        return (worst, sum(each.loss for each in self.victims) + more, len(self.victims))


class Surplus(NamedTuple):
    """How much of what each owner has may be taken away; of others there is no limit.

    A job that has up to twice as much as what is left of that may give way: then its owner has less
    too little than it had too much. All that is taken for one waiting job counts as one, if its
    owner stays within its share with it, because the waiting job cannot have a part of that.

    Attributes:
        of: by owner.
        as_one: the owner of the waiting job stays within its share.
    """

    of: Mapping[str, float]
    as_one: bool = False

    def has(self, candidate: Preemptible, taken: float) -> bool:
        """Return whether a job may be taken after so much."""
        surplus = self.of.get(candidate.owner, math.inf)
        left = surplus if self.as_one else surplus - taken
        size = taken + candidate.size if self.as_one else candidate.size
        return left > LEAST_SIZE and left >= size / 2 - LEAST_SIZE


class _PossibleWay(NamedTuple):
    """One way of a candidate; the last options of a list are the most expensive."""

    cost: tuple[int, float, float, int]
    way: PreemptWay
    loss: float
    whose: Preemptible

    @property
    def kept(self) -> Allocation:
        return self.whose.least if self.way == "shrink" else ()


def shrunk(
    request: Request, allocation: Allocation, spaces: Spaces, sizes: Iterable[int]
) -> Allocation:
    """Return the smallest part of its allocation on which an elastic job can run; empty: none.

    Args:
        sizes: the numbers of places that it takes.
    """
    left = spaces.copy()
    left.give(allocation)
    own = (limited_to(each, left[each.node]) for each in allocation if each.node in left)
    given = Spaces({space.name: space for space in own})
    have = sum(share.slots for share in allocation)
    for places in sorted(size for size in sizes if request.places <= size < have):
        found = place(at_count(request, places), given)
        if not isinstance(found, NoFit):
            return found
    return ()


def choose(
    request: Request,
    spaces: Spaces,
    candidates: Sequence[Preemptible],
    closed: frozenset[Closed] = frozenset(),
    surplus: Surplus | None = None,
    breaks: Mapping[str, float] | None = None,
) -> Preemption | None:
    """Return the preemption that costs least by which a request fits; None: there is none.

    Args:
        request: of the waiting job, which does not fit as it is.
        spaces: what is free; not changed.
        candidates: who may give way.
        closed: nodes and parts of nodes on which the job may not start, nor a job that migrates.
        surplus: how much jobs may be taken from each owner; None: there is no limit.
        breaks: what it counts as lost work to take a part of a node, by node.
    """
    surplus = surplus or Surplus({})
    request = at_count(request, request.places) if is_elastic(request) else request
    if _is_on_one_node(request):
        by_node: dict[str, list[Preemptible]] = {}
        for each in candidates:
            for share in each.allocation:
                by_node.setdefault(share.node, []).append(each)
        found = [
            (there.cost((breaks or {}).get(node, 0.0)), node, there)
            for node, on_it in by_node.items()
            if node in spaces
            and (there := _least(request, spaces, on_it, frozenset({node}), closed, surplus))
        ]
        return min(found)[2] if found else None
    return _least(request, spaces, candidates, frozenset(), closed, surplus)


def _is_on_one_node(request: Request) -> bool:
    alone = len(request.chunks) == 1 and request.chunks[0].count == 1
    return alone or request.placement is Placement.PACK


def _least(  # who may give way where, and how much
    request: Request,
    spaces: Spaces,
    candidates: Sequence[Preemptible],
    nodes: frozenset[str],
    closed: frozenset[Closed],
    surplus: Surplus,
) -> Preemption | None:
    """Return the least that has to give way on some nodes; none are named: on all of them."""
    options = sorted((o for each in candidates for o in _options(each)), key=lambda o: o.cost)
    chosen: dict[int, _PossibleWay] = {}
    work = spaces.copy()
    allocation: Allocation = ()
    taken: defaultdict[str, float] = defaultdict(float)
    for option in options:
        before = chosen.get(option.whose.job)
        if before is None:
            if not surplus.has(option.whose, taken[option.whose.owner]):
                continue
            taken[option.whose.owner] += option.whose.size
        work.give(option.whose.allocation if before is None else before.kept)
        work.take(option.kept)
        chosen[option.whose.job] = option
        if any(may_help(request, work[s.node]) for s in option.whose.allocation if s.node in work):
            allocation = _placed(request, work, nodes, closed)
        if allocation:
            break
    if not allocation:
        return None
    there = {share.node for share in allocation}
    chosen = {
        job: each
        for job, each in chosen.items()
        if there & {share.node for share in each.whose.allocation}
    }
    for option in sorted(chosen.values(), key=lambda o: o.cost, reverse=True):
        rest = {job: each for job, each in chosen.items() if job != option.whose.job}
        cheaper = [each for each in options if each.whose is option.whose and each < option]
        for less in (rest, *({**rest, option.whose.job: each} for each in cheaper)):
            if _placed(request, _after(spaces, less.values()), nodes, closed):
                chosen = less
                break
    allocation = _placed(request, _after(spaces, chosen.values()), nodes, closed)
    return _settled(allocation, spaces, chosen.values(), closed) if chosen and allocation else None


def _options(candidate: Preemptible) -> Iterable[_PossibleWay]:
    for way, loss in zip(candidate.ways, candidate.losses, strict=True):
        if way == "shrink" and not candidate.least:
            continue
        cost = (WAYS.index(way), loss, -candidate.started_s, candidate.job)
        yield _PossibleWay(cost, way, loss, candidate)


def _after(spaces: Spaces, options: Iterable[_PossibleWay]) -> Spaces:
    """Return what is free when jobs have given way, wherever those go that migrate."""
    work = spaces.copy()
    for option in options:
        work.give(option.whose.allocation)
        work.take(option.kept)
    return work


def _placed(
    request: Request, after: Spaces, nodes: frozenset[str], closed: frozenset[Closed]
) -> Allocation:
    """Return where a request fits then, on some nodes or on all; empty: nowhere."""
    where = without(after, closed)
    found = place(request, Spaces({name: where[name] for name in nodes}) if nodes else where)
    return () if isinstance(found, NoFit) else found


def _settled(
    allocation: Allocation,
    spaces: Spaces,
    options: Iterable[_PossibleWay],
    closed: frozenset[Closed],
) -> Preemption | None:
    """Return the preemption with the targets of migrations; without one a job has its next way."""
    options = list(options)
    after = _after(spaces, options)
    after.take(allocation)
    free = without(spaces.common_with(after.changed), closed)  # what is free now, and stays so
    victims: list[Victim] = []
    for option in options:
        whose, way, loss, target = option.whose, option.way, option.loss, option.kept
        if way == "migrate":
            target = _elsewhere(whose, free)
            free.take(target)
        if way == "migrate" and not target:
            at = whose.ways.index("migrate") + 1
            if at == len(whose.ways):
                return None
            way, loss = whose.ways[at], whose.losses[at]
        victims.append(Victim(job=whose.job, way=way, loss=loss, allocation=target))
    return Preemption(allocation=allocation, victims=tuple(victims))


def _elsewhere(candidate: Preemptible, free: Spaces) -> Allocation:
    """Return where a job can migrate, with as many places as it has; empty: nowhere."""
    request = candidate.request
    if is_elastic(request):
        request = at_count(request, sum(share.slots for share in candidate.allocation))
    found = place(request, free)
    return () if isinstance(found, NoFit) else found

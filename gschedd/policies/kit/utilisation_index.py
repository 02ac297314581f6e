"""The shares of all nodes that are in use: how unequal they are, and nodes sorted by them.

Both are kept from plan to plan, so that a plan need not look at every node.
"""

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import Final

from msgspec import structs

from gschedd.plan.load import NodeLoad, NodeRates, Use
from gschedd.plan.space import FreeNode, index_of
from gschedd.policies.kit.capacity import Books, Charged, Costs

#: Where less than this share of a resource is in use on average, its unevenness matters less: what
#: nobody needs must not decide where jobs go.
HARDLY_USED: Final = 0.05
#: From this share on a node's CPUs are taken to be full: then a report cannot tell by how much
#: more they are wanted.
FULL: Final = 0.95
#: Shares are summed in whole numbers of this part of a node, so that a sum does not depend on the
#: order in which nodes have changed.
PARTS: Final = 2**40
#: Differences of unevenness below this are rounding.
DIGITS: Final = 9
#: More than by what rounding to that many digits changes a number.
ROUNDING: Final = 10.0**-DIGITS
#: Nodes in a row that are no better, after which it is looked whether the rest can be.
LOOK_EVERY: Final = 8

Shares = tuple[float, float, float, float]  # in use, of CPU, memory, GPUs, GPU memory
PLAIN: Final = 2  # so many of them matter to a job without GPUs


def shares_of(used: Use, rates: NodeRates) -> Shares:
    """Return what share of a node is in use, by resource; 0 of what it does not have."""
    return (
        used.cpu_cores / rates.cores if rates.cores else 0.0,
        used.memory_bytes / rates.memory_bytes if rates.memory_bytes else 0.0,
        used.gpus / rates.gpus if rates.gpus else 0.0,
        used.gpu_memory_bytes / rates.gpu_memory_bytes if rates.gpu_memory_bytes else 0.0,
    )


class Imbalance:
    """How unequal the shares of one resource are that are in use on some nodes."""

    __slots__ = ("_count", "_mean", "_mean_square", "_squares", "_total")

    def __init__(self) -> None:
        self._count = self._total = self._squares = 0
        self._mean = self._mean_square = 0.0

    def copy(self) -> "Imbalance":
        """Return another one of the same nodes."""
        other = Imbalance()
        other._add(self._count, self._total, self._squares)
        return other

    def _add(self, count: int, total: int, squares: int) -> None:
        self._count += count
        self._total += total
        self._squares += squares
        nodes = max(self._count, 1)
        self._mean = self._total / (PARTS * nodes)
        self._mean_square = self._squares / (PARTS * PARTS * nodes)

    def change(self, before: float | None, after: float | None) -> None:
        """Take in that the share of a node is another; None: the node does not count."""
        old = 0 if before is None else round(before * PARTS)
        new = 0 if after is None else round(after * PARTS)
        self._add((before is None) - (after is None), new - old, new * new - old * old)

    def term(self, more: float) -> "Term":
        """Return what `Unevenness` needs to know if more of some node were in use than is now."""
        count = self._count or 1
        mean = self._mean + more / count
        return (more, count, self._mean_square, mean * mean, max(mean, HARDLY_USED))

    def after(self, before: float, more: float) -> float:
        """Return standard deviation over mean if more of a node were in use than is now."""
        return Unevenness([(0, 1.0, self.term(more))]).of((counted(before),))


#: Of one resource: what more is in use of a node, the number of nodes, their mean square now, the
#: square of their mean then, and by what the standard deviation is divided.
Term = tuple[float, int, float, float, float]


def counted(share: float) -> float:
    """Return a share as `Spread` counts it: else a difference would remain."""
    return round(share * PARTS) / PARTS


class Unevenness:
    """How uneven all nodes would be used, by the shares in use of the node that a job goes to.

    Args:
        terms: place among the shares, weight, and what is known of the resource, for each resource
            that counts.
    """

    __slots__ = ("_terms",)

    def __init__(self, terms: Iterable[tuple[int, float, Term]]) -> None:
        self._terms = [(place, factor, *term) for place, factor, term in terms]

    def __call__(self, shares: Shares) -> float:
        """Return it without the digits that are rounding."""
        return round(self.of(tuple(map(counted, shares))), DIGITS)

    def of(self, shares: Sequence[float]) -> float:
        """Return the weighted sum of standard deviation over mean, of shares as they are counted.

        It is computed for many nodes for each job. It does not fall when one of the shares grows.
        """
        total = 0.0
        for place, factor, more, count, square, mean_squared, divisor in self._terms:
            variance = square + more * (2 * shares[place] + more) / count - mean_squared
            if variance > 0:
                total += factor * (math.sqrt(variance) / divisor)
        return total


class Sort:
    """Nodes with the same rates, sorted by what is in use of them; only those that take work.

    Attributes:
        names: of all of them, sorted; also of those that take no work.
        order: what is in use of some of them, sorted.
        alike: names of the nodes of which just that is in use, sorted.
    """

    __slots__ = ("_counted", "_sorted", "alike", "names", "order")

    def __init__(self) -> None:
        self.names: list[str] = []
        self.order: list[Shares] = []
        self._counted: list[tuple[float, ...]] = []  # the same, as `Spread` counts it
        self.alike: dict[Shares, list[str]] = {}
        self._sorted: tuple[list[float], ...] = ([], [], [], [])

    def add(self, name: str, shares: Shares) -> None:
        """Take in a node that takes work."""
        names = self.alike.get(shares)
        if names is None:
            self.alike[shares] = [name]
            place = bisect_left(self.order, shares)
            self.order.insert(place, shares)
            self._counted.insert(place, tuple(map(counted, shares)))
        else:
            insort(names, name)
        for values, share in zip(self._sorted, shares, strict=True):
            insort(values, share)

    def remove(self, name: str, shares: Shares) -> None:
        """Take out a node that took work."""
        names = self.alike[shares]
        del names[bisect_left(names, name)]
        if not names:
            del self.alike[shares]
            place = bisect_left(self.order, shares)
            del self.order[place], self._counted[place]
        for values, share in zip(self._sorted, shares, strict=True):
            del values[bisect_left(values, share)]

    def least(self) -> list[float]:
        """Return the least share of each resource; of no nodes 0."""
        return [values[0] if values else 0.0 for values in self._sorted]

    def best(
        self,
        uneven: Unevenness,
        left: Callable[[str], float],
        may: Callable[[str], FreeNode | None],
    ) -> FreeNode | None:
        """Return the first node of `by_key`, or None if none may be taken.

        Args:
            uneven: the score.
            left: of a node; of those with the same score the one with the most is better.
            may: returns a node if it may be taken, else None.
        """
        best: FreeNode | None = None
        best_key: tuple[float, float, str] = (math.inf, 0.0, "")
        limit, behind = math.inf, 0
        for shares, rounded in zip(self.order, self._counted, strict=True):
            score = uneven.of(rounded)
            if score > limit:
                behind += 1
                if behind % LOOK_EVERY == 0:
                    least = [counted(share) for share in self.least()]
                    least[0] = rounded[0]
                    if uneven.of(least) > limit:
                        break
                continue
            for name in self.alike[shares]:
                space = may(name)
                if space is None:
                    continue
                key = (round(score, DIGITS), -left(name), name)
                if best is None or key < best_key:
                    best, best_key, limit = space, key, key[0] + ROUNDING
                break  # the next ones rank behind it
        return best

    def by_key(
        self,
        score: Callable[[Shares], float],
        key: Callable[[str], tuple[float, float, str]],
        may: Callable[[str], FreeNode | None],
    ) -> Iterator[FreeNode]:
        """Yield nodes by their keys, the lowest first.

        Nodes are looked at by their share of CPU in use; as no share makes a score better, those
        left cannot be better than one with that share and the least of all others.

        Args:
            score: of shares; it does not fall when one of them grows.
            key: of a node; it begins with the score of its shares, and of nodes that are alike the
                lower name has the lower key.
            may: returns a node if it may be taken, else None.
        """
        least = self.least()
        heap: list[tuple[tuple[float, float, str], FreeNode, Iterator[str]]] = []

        def push(names: Iterator[str]) -> None:
            for name in names:
                space = may(name)
                if space is not None:
                    heappush(heap, (key(name), space, names))
                    return

        for shares in self.order:
            if heap:
                bound = score((shares[0], least[1], least[2], least[3]))
                while heap and heap[0][0][0] < bound:
                    _, space, names = heappop(heap)
                    push(names)
                    yield space
            push(iter(self.alike[shares]))
        while heap:
            _, space, names = heappop(heap)
            push(names)
            yield space


class UtilisationIndex(Books):
    """How busy each node is, and how evenly all of them are used.

    Attributes:
        shares: in use, of each node.
        sorts: nodes by their rates.
        spreads: one for each resource; of nodes that take work, and have the resource.
    """

    def __init__(self, window_s: float) -> None:
        super().__init__(window_s)
        self.shares: dict[str, Shares] = {}
        self.sorts: dict[NodeRates, Sort] = {}
        self.spreads = (Imbalance(), Imbalance(), Imbalance(), Imbalance())
        self._taking: dict[str, bool] = {}

    def use(self, load: NodeLoad, costs: Costs) -> Use:
        """Return what is in use on a node, and of a node that is full what its jobs want."""
        used = super().use(load, costs)
        if used.cpu_cores < FULL * load.rates.cores:
            return used
        wanted = sum(costs.of(job).cpu_cores for job in costs.jobs)
        return structs.replace(used, cpu_cores=max(used.cpu_cores, wanted))

    def charge(self, space: FreeNode, now: Charged) -> None:
        """Take in how busy a node is now."""
        name, rates = space.name, now.load.rates
        before = self.nodes.get(name)
        shares = shares_of(now.used, rates)
        if before is not None:
            same_sort = before.load.rates == rates
            if same_sort and self.shares[name] == shares and self._taking[name] is space.open:
                self.nodes[name] = now  # it has reported the same again
                return
            self._count_out(name, before.load.rates, same_sort=same_sort)
        super().charge(space, now)
        self.shares[name] = shares
        sort = self.sorts.get(rates)
        if sort is None:
            sort = self.sorts[rates] = Sort()
        if before is None or before.load.rates != rates:
            insort(sort.names, name)
        self._taking[name] = space.open
        if space.open:
            sort.add(name, shares)
            self._change_spreads(rates, None, shares)

    def _count_out(self, name: str, rates: NodeRates, *, same_sort: bool) -> None:
        sort, shares = self.sorts[rates], self.shares[name]
        if self._taking[name]:
            sort.remove(name, shares)
            self._change_spreads(rates, shares, None)
        if not same_sort:
            del sort.names[bisect_left(sort.names, name)]
            if not sort.names:
                del self.sorts[rates]

    def _change_spreads(
        self, rates: NodeRates, before: Shares | None, after: Shares | None
    ) -> None:
        for place, spread in enumerate(self.spreads):
            if place < PLAIN or rates.gpus:
                spread.change(
                    None if before is None else before[place],
                    None if after is None else after[place],
                )


def utilisation_of(nodes: Mapping[str, FreeNode], window_s: float) -> UtilisationIndex:
    """Return what is kept of some nodes, or a new one where nothing can be kept."""
    return index_of(nodes, ("even", window_s), lambda: UtilisationIndex(window_s))

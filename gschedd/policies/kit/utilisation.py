"""Jobs go where they leave the nodes used most evenly, each in proportion to what it has.

The balancing paper's VALUE (`gschedd.policies.kit.capacity`) compares how much is left in absolute
terms, so that a small node stays idle until a large one has no more left than it. Here the shares
in use are compared: a job goes where, with what it is expected to cost there, the standard
deviation of the nodes' utilisation over its mean becomes least. That is the very imbalance that the
paper sets out to lower. VALUE decides where that is equal, as on an idle cluster.
"""

from collections.abc import Container, Iterator, Mapping
from heapq import merge

from gsched.config.policies import WeightsConfig
from gsched.model.resources import Allocation, Chunk, Share
from gschedd.plan.load import NodeRates
from gschedd.plan.ranked import OrderedRank
from gschedd.plan.room import Rank, RankKey, shortage
from gschedd.plan.snapshot import Snapshot
from gschedd.plan.space import FreeNode, Spaces
from gschedd.policies.kit.capacity import Books, MostCapacity
from gschedd.policies.kit.utilisation_index import (
    PLAIN,
    Shares,
    Sort,
    Unevenness,
    shares_of,
    utilisation_of,
)


class LeastImbalance(MostCapacity):
    """The nodes as they will be once the plan is carried out; lives only inside one plan.

    Args:
        snapshot: what there is.
        weights: of the resources.
        window_s: a job younger than this when its node was last sampled is not in the report yet.
    """

    def __init__(self, snapshot: Snapshot, *, weights: WeightsConfig, window_s: float) -> None:
        super().__init__(snapshot, weights=weights, window_s=window_s, spare_gpu_nodes=True)
        self.nodes: Mapping[str, FreeNode] = snapshot.nodes
        self._factors = (weights.cpu, weights.memory, weights.gpu, weights.gpu_memory)
        self._spreads = tuple(spread.copy() for spread in self.books.spreads)
        self._shares: dict[str, Shares] = {}  # of the nodes that this plan has charged

    def _keep_books(self, snapshot: Snapshot, window_s: float) -> Books:
        self.books = utilisation_of(snapshot.nodes, window_s)
        return self.books

    def rank(self, job: int) -> Rank:
        """Return the ranking of nodes for a job: by what it would leave behind, the most even."""
        return _ByImbalance(self, job)

    def uneven(self, more: Shares, *, with_gpus: bool) -> Unevenness:
        """Return how uneven all nodes were used if so much more of one were, until one is."""
        factors, spreads = self._factors, self._spreads
        return Unevenness(
            (place, factors[place], spreads[place].term(more[place]))
            for place in range(len(factors) if with_gpus else PLAIN)
            if factors[place]
        )

    def shares(self, node: str) -> Shares:
        """Return what is in use of a node, with what this plan has started there."""
        return self._shares.get(node) or self.books.shares[node]

    def left(self, node: str, *, with_gpus: bool) -> float:
        """Return the capacity left on a node: the paper's VALUE."""
        return self._value(node, with_gpus)

    def more(self, job: int, chunk: Chunk, rates: NodeRates) -> Shares:
        """Return what share of a node a job is expected to take.

        What a job costs is asked once for all nodes that are alike.
        """
        requested = Share(
            node=self.books.sorts[rates].names[0],
            cpus=chunk.cpus,
            memory_bytes=chunk.memory_bytes,
            gpu_indices=tuple(range(chunk.gpus)),
        )
        return shares_of(self._cost(job, requested), rates)

    def others_have_room(self, more: Mapping[NodeRates, Shares]) -> bool:
        """Return whether a node without GPUs would not be over-used by a job.

        Args:
            more: what share of each sort of nodes without GPUs the job takes.
        """
        for rates, each in more.items():
            sort = self.books.sorts[rates]
            for shares in sort.order:
                if shares[0] + each[0] > 1:
                    break
                if shares[1] + each[1] <= 1 and any(
                    name not in self._shares for name in sort.alike[shares]
                ):
                    return True
        return any(
            shares[0] + more[rates][0] <= 1 and shares[1] + more[rates][1] <= 1
            for name, shares in self._shares.items()
            if (rates := self.rates(name)) in more
        )

    def rates(self, node: str) -> NodeRates:
        """Return what a node can do."""
        return self.books.nodes[node].load.rates

    def started(self, job: int, allocation: Allocation) -> None:
        """Charge the job's nodes with what it will cost."""
        super().started(job, allocation)
        for share in allocation:
            node, rates = share.node, self.rates(share.node)
            before, after = self.shares(node), shares_of(self._used[node], rates)
            self._shares[node] = after
            for place, spread in enumerate(self._spreads):
                if place < PLAIN or rates.gpus:
                    spread.change(before[place], after[place])


class _ByImbalance(OrderedRank):
    """The ranking of nodes for one job, as long as the plan charges no node."""

    def __init__(self, nodes: LeastImbalance, job: int) -> None:
        self._nodes = nodes
        self._job = job
        self._more: dict[tuple[Chunk, NodeRates], Shares] = {}
        self._uneven: dict[tuple[Chunk, NodeRates], Unevenness] = {}
        self._spare: dict[Chunk, bool] = {}

    def __call__(self, chunk: Chunk, space: FreeNode) -> RankKey:
        """Return by what a node is ranked: GPU nodes to be spared, unevenness, VALUE, name."""
        nodes, with_gpus = self._nodes, chunk.gpus > 0
        uneven = self._uneven_of(chunk, nodes.rates(space.name))
        return (
            not with_gpus and space.total_gpus > 0 and self._spares(chunk),
            uneven(nodes.shares(space.name)),
            -nodes.left(space.name, with_gpus=with_gpus),
            space.name,
        )

    def best(self, chunk: Chunk, spaces: Spaces, *, exclusive: bool) -> FreeNode | None:
        """Return the first node of `fitting`, without an order of the others."""
        changed, nodes, with_gpus = spaces.changed, self._nodes, chunk.gpus > 0
        base = nodes.nodes
        found = [
            space for space in changed.values() if not shortage(chunk, space, exclusive=exclusive)
        ]

        def left(name: str) -> float:
            return nodes.left(name, with_gpus=with_gpus)

        def may(name: str) -> FreeNode | None:
            space = base[name]
            if name in changed or shortage(chunk, space, exclusive=exclusive):
                return None
            return space

        for rates, sort in nodes.books.sorts.items():
            if rates.gpus or not with_gpus:
                best = sort.best(self._uneven_of(chunk, rates), left, may)
                if best is not None:
                    found.append(best)
        if len(found) <= 1:
            return found[0] if found else None
        return min(found, key=lambda space: self(chunk, space))

    def unchanged(
        self, chunk: Chunk, *, exclusive: bool, passed: Container[str]
    ) -> Iterator[FreeNode]:
        """Yield the nodes that the plan has not changed and that have room, best first."""
        ranked = [
            self._of_sort(rates, sort, chunk, exclusive=exclusive, passed=passed)
            for rates, sort in self._nodes.books.sorts.items()
            if rates.gpus or not chunk.gpus
        ]
        if len(ranked) == 1:
            return ranked[0]
        return merge(*ranked, key=lambda space: self(chunk, space))

    def _of_sort(
        self,
        rates: NodeRates,
        sort: Sort,
        chunk: Chunk,
        *,
        exclusive: bool,
        passed: Container[str],
    ) -> Iterator[FreeNode]:
        nodes, with_gpus = self._nodes, chunk.gpus > 0
        score, spaces = self._uneven_of(chunk, rates), self._nodes.nodes

        def key(name: str) -> tuple[float, float, str]:
            return (score(nodes.shares(name)), -nodes.left(name, with_gpus=with_gpus), name)

        def may(name: str) -> FreeNode | None:
            if name in passed or shortage(chunk, spaces[name], exclusive=exclusive):
                return None
            return spaces[name]

        return sort.by_key(score, key, may)

    def _more_of(self, chunk: Chunk, rates: NodeRates) -> Shares:
        known = self._more.get((chunk, rates))
        if known is None:
            known = self._more[chunk, rates] = self._nodes.more(self._job, chunk, rates)
        return known

    def _uneven_of(self, chunk: Chunk, rates: NodeRates) -> Unevenness:
        known = self._uneven.get((chunk, rates))
        if known is None:
            more = self._more_of(chunk, rates)
            known = self._nodes.uneven(more, with_gpus=chunk.gpus > 0)
            self._uneven[chunk, rates] = known
        return known

    def _spares(self, chunk: Chunk) -> bool:
        """Return whether nodes with GPUs are spared, as others would not be over-used."""
        if chunk not in self._spare:
            plain = [rates for rates in self._nodes.books.sorts if not rates.gpus]
            more = {rates: self._more_of(chunk, rates) for rates in plain}
            self._spare[chunk] = self._nodes.others_have_room(more)
        return self._spare[chunk]

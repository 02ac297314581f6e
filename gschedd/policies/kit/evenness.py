"""Jobs go where they leave the nodes used most evenly, each in proportion to what it has.

The balancing paper's VALUE (`gschedd.policies.kit.capacity`) compares how much is left in absolute
terms, so that a small node stays idle until a large one has no more left than it. Here the shares
in use are compared: a job goes where, with what it is expected to cost there, the standard
deviation of the nodes' utilisation over its mean becomes least. That is the very imbalance that the
paper sets out to lower. VALUE decides where that is equal, as on an idle cluster.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import structs

from gsched.model.resources import Allocation, Chunk, Share
from gschedd.plan.load import NodeRates, Use
from gschedd.plan.room import Rank, RankKey
from gschedd.plan.snapshot import Snapshot
from gschedd.plan.space import NodeSpace
from gschedd.policies.kit.capacity import MostCapacity, Weights

#: Where less than this share of a resource is in use on average, its unevenness matters less: what
#: nobody needs must not decide where jobs go.
HARDLY_USED: Final = 0.05
#: From this share on a node's CPUs are taken to be full: then a report cannot tell by how much
#: more they are wanted.
FULL: Final = 0.95
#: Differences of unevenness below this are rounding.
DIGITS: Final = 9

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


class Spread:
    """The shares of one resource that are in use on some nodes, and how unequal they are."""

    __slots__ = ("_shares", "_squares", "_total")

    def __init__(self, shares: Mapping[str, float]) -> None:
        self._shares = dict(shares)
        self._total = sum(self._shares.values())
        self._squares = sum(share * share for share in self._shares.values())

    def set(self, node: str, share: float) -> None:
        """Take in what share of a node is in use now; nodes that do not count go on so."""
        before = self._shares.get(node)
        if before is not None:
            self._shares[node] = share
            self._total += share - before
            self._squares += share * share - before * before

    def after(self, node: str, more: float) -> float:
        """Return standard deviation over mean of the shares if more of a node were in use."""
        before = self._shares.get(node)
        if before is None:
            return 0.0
        count = len(self._shares)
        mean = (self._total + more) / count
        square = (self._squares + more * (2 * before + more)) / count
        return math.sqrt(max(square - mean * mean, 0.0)) / max(mean, HARDLY_USED)


class MostEven(MostCapacity):
    """The nodes as they will be once the plan is carried out; lives only inside one plan.

    Args:
        snapshot: what there is.
        weights: of the resources.
        window_s: a job younger than this when its node was last sampled is not in the report yet.
    """

    def __init__(self, snapshot: Snapshot, *, weights: Weights, window_s: float) -> None:
        super().__init__(snapshot, weights=weights, window_s=window_s, spare_gpu_nodes=True)
        self._charge_full_nodes(snapshot)
        self._taking = [name for name, space in sorted(snapshot.nodes.items()) if space.open]
        self._factors = (weights.cpu, weights.memory, weights.gpu, weights.gpu_memory)
        shares = {name: self._shares(name) for name in self._taking}
        self._spreads = tuple(
            Spread({n: each[r] for n, each in shares.items() if r < PLAIN or self._has_gpus(n)})
            for r in range(len(self._factors))
        )
        #: One node of each sort: what a job costs is asked once for all that are alike.
        self._like: dict[NodeRates, str] = {}
        for name in self._loads:
            self._like.setdefault(self._loads[name].rates, name)

    def _charge_full_nodes(self, snapshot: Snapshot) -> None:
        """Take nodes whose CPUs are full to be used as much as their jobs are expected to want."""
        full = {
            name: 0.0
            for name, used in self._used.items()
            if used.cpu_cores >= FULL * self._loads[name].rates.cores
        }
        if not full:
            return
        for job in snapshot.running:
            for share in job.allocation:
                if share.node in full:
                    full[share.node] += self._cost(job.job, share).cpu_cores
        for name, wanted in full.items():
            if wanted > self._used[name].cpu_cores:
                self._used[name] = structs.replace(self._used[name], cpu_cores=wanted)

    def _has_gpus(self, node: str) -> bool:
        return self._loads[node].rates.gpus > 0

    def _shares(self, node: str) -> Shares:
        return shares_of(self._used[node], self._loads[node].rates)

    def rank(self, job: int) -> Rank:
        """Return the ranking of nodes for a job: by what it would leave behind, the most even."""
        said: dict[tuple[Chunk, NodeRates], Shares] = {}
        spare: dict[Chunk, bool] = {}

        def by_evenness(chunk: Chunk, space: NodeSpace) -> RankKey:
            rates = self._loads[space.name].rates
            more = said.get((chunk, rates))
            if more is None:
                more = said[chunk, rates] = self._more(job, chunk, rates)
            if chunk.gpus or not space.total_gpus:
                return (False, *self._key(space.name, more, with_gpus=chunk.gpus > 0))
            if chunk not in spare:
                spare[chunk] = self._others_have_room(job, chunk)
            return (spare[chunk], *self._key(space.name, more, with_gpus=False))

        return by_evenness

    def _key(self, node: str, more: Shares, *, with_gpus: bool) -> RankKey:
        count = len(self._factors) if with_gpus else PLAIN
        uneven = sum(
            self._factors[r] * self._spreads[r].after(node, more[r])
            for r in range(count)
            if self._factors[r]
        )
        return (round(uneven, DIGITS), -self._value(node, with_gpus), node)

    def _more(self, job: int, chunk: Chunk, rates: NodeRates) -> Shares:
        """Return what share of a node a job is expected to take."""
        asked = Share(
            node=self._like[rates],
            cpus=chunk.cpus,
            memory_bytes=chunk.memory_bytes,
            gpu_indices=tuple(range(chunk.gpus)),
        )
        return shares_of(self._cost(job, asked), rates)

    def _others_have_room(self, job: int, chunk: Chunk) -> bool:
        """Return whether a node without GPUs would not be over-used by a job."""
        found: dict[NodeRates, Shares] = {}
        for name in self._taking:
            if self._has_gpus(name):
                continue
            rates = self._loads[name].rates
            more = found.get(rates)
            if more is None:
                more = found[rates] = self._more(job, chunk, rates)
            used = self._shares(name)
            if used[0] + more[0] <= 1 and used[1] + more[1] <= 1:
                return True
        return False

    def started(self, job: int, allocation: Allocation) -> None:
        """Charge the job's nodes with what it will cost."""
        super().started(job, allocation)
        self._renew(share.node for share in allocation)

    def _renew(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            for spread, share in zip(self._spreads, self._shares(node), strict=True):
                spread.set(node, share)

"""The capacity that is left on each node, and jobs that go where the most of it is.

Capacity left is a weighted sum over CPU, memory, GPU and GPU memory of how large the node is,
beside the largest, and how idle. What a job will cost is predicted from jobs of its kind before it,
and is added to its node at once, so that jobs that arrive between two reports do not all go to one.

Source: Liu Hui et al., "A self-learning load balancing scheduling algorithm for GPU heterogeneous
clusters", Journal of Xi'an Shiyou University, 2015. The paper leaves open, and we decided: the
weights of GPUs that a job does not ask for are spread over the rest, and a job too young to be in
its node's report keeps its predicted part.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from gsched.config.policies import WeightsConfig
from gsched.model.resources import WHOLE_PERCENT, Allocation, Chunk, Share, percent_held
from gschedd.plan.load import NodeLoad, NodeRates, Use
from gschedd.plan.room import Rank, RankKey
from gschedd.plan.snapshot import ByEnd, RunningJob, Snapshot
from gschedd.plan.space import FreeNode, NodeIndex, index_of
from gschedd.plan.times import JobPredictions
from gschedd.policies.kit.chooser import Chooser


class Largest(Struct, frozen=True, kw_only=True):
    """The largest of each rate over all nodes: what a whole Q stands for."""

    cpu: float
    memory: float
    gpu: float
    gpu_memory: float


def largest(rates: Mapping[str, NodeRates]) -> Largest:
    """Return the largest rates of all nodes; 0 where no node has any."""
    each = rates.values()
    return Largest(
        cpu=max((rate.cpu_rate for rate in each), default=0.0),
        memory=max((rate.memory_bytes for rate in each), default=0.0),
        gpu=max((rate.all_gpus_rate for rate in each), default=0.0),
        gpu_memory=max((rate.gpu_memory_bytes for rate in each), default=0.0),
    )


def value(
    rates: NodeRates, used: Use, most: Largest, weights: WeightsConfig, *, with_gpus: bool
) -> float:
    """Return the capacity left on a node: VALUE of the paper, 1 for the largest node when idle.

    More than all of a node may be guaranteed to jobs; then it counts below 0, so that of two full
    nodes the less crowded one is better.

    Args:
        with_gpus: the job requests GPUs; else their weights are spread over the rest.
    """
    total, left = weights.cpu + weights.memory, 0.0
    if rates.cores and most.cpu:
        left += weights.cpu * (rates.cpu_rate / most.cpu) * (1 - used.cpu_cores / rates.cores)
    if rates.memory_bytes and most.memory:
        busy = used.memory_bytes / rates.memory_bytes
        left += weights.memory * (rates.memory_bytes / most.memory) * (1 - busy)
    if with_gpus:
        total = total + weights.gpu + weights.gpu_memory
        if rates.gpus and most.gpu:
            left += weights.gpu * (rates.all_gpus_rate / most.gpu) * (1 - used.gpus / rates.gpus)
        if rates.gpu_memory_bytes and most.gpu_memory:
            busy = used.gpu_memory_bytes / rates.gpu_memory_bytes
            left += weights.gpu_memory * (rates.gpu_memory_bytes / most.gpu_memory) * (1 - busy)
    return left / total


class Charged(Struct, frozen=True, kw_only=True):
    """A node as it counts.

    Attributes:
        load: as reported, or as guaranteed where nothing was.
        used: that, and what the jobs use that are too young to be in the report.
    """

    load: NodeLoad
    used: Use


class Books(NodeIndex):
    """How busy each node is: reckoned anew only for nodes of which something has changed.

    Args:
        window_s: a job younger than this when its node was last sampled is not in the report yet.
    """

    def __init__(self, window_s: float) -> None:
        super().__init__()
        self.nodes: dict[str, Charged] = {}
        self._window_s = window_s
        self._rates: Counter[NodeRates] = Counter()
        self._most: Largest | None = None

    @property
    def most(self) -> Largest:
        """Return the largest rates of all nodes."""
        if self._most is None:
            self._most = largest({str(place): rates for place, rates in enumerate(self._rates)})
        return self._most

    def refresh(
        self, seen: Snapshot, predictions: JobPredictions, names: Iterable[str] | None = None
    ) -> None:
        """Take in what has changed since: of all nodes, or of those that are named."""
        on = running_on(seen.running)
        unsure: set[str] = set()
        stale = self.stale if names is None else self.stale.intersection(names)
        for name in sorted(stale):
            load = seen.loads.get(name)
            if load is None:
                load = guaranteed(seen.nodes[name])
                self.charge(seen.nodes[name], Charged(load=load, used=load.used))
                continue
            costs = Costs(load, on(name), predictions)
            self.charge(seen.nodes[name], Charged(load=load, used=self.use(load, costs)))
            if costs.unsure:
                unsure.add(name)
        self.stale = (self.stale - stale) | unsure

    def use(self, load: NodeLoad, costs: "Costs") -> Use:
        """Return what is in use on a node that has reported."""
        used = load.used
        for job in costs.jobs:
            if load.reported_s - job.started_s < self._window_s:
                used = used.plus(costs.of(job))
        return used

    def charge(self, space: FreeNode, now: Charged) -> None:
        """Take in how busy a node is now."""
        before = self.nodes.get(space.name)
        self.nodes[space.name] = now
        if before is None or before.load.rates != now.load.rates:
            if before is not None:
                self._rates.subtract([before.load.rates])
                self._rates = +self._rates
            self._rates[now.load.rates] += 1
            self._most = None


class Costs:
    """What the jobs of one node are expected to use there; lives only while it is reckoned.

    Attributes:
        jobs: that own something there, by id.
        unsure: some of them was predicted just now, which the next plan may do otherwise.
    """

    def __init__(
        self, load: NodeLoad, jobs: Sequence[RunningJob], predictions: JobPredictions
    ) -> None:
        self.jobs = jobs
        self.unsure = False
        self._load = load
        self._predictions = predictions

    def of(self, job: RunningJob) -> Use:
        """Return what a job uses: as it was predicted when it was assigned, if anything was."""
        name = self._load.name
        known = job.uses.get(name)
        if known is not None:
            return known
        prediction = self._predictions.prediction(job.job, name)
        if prediction is not None:
            self.unsure = True
            return prediction.use
        share = next(share for share in job.allocation if share.node == name)
        return requested_use(share, self._load.rates)


def running_on(running: Collection[RunningJob]) -> Callable[[str], Sequence[RunningJob]]:
    """Return what tells the jobs that own something on a node, by id."""
    if isinstance(running, ByEnd):
        return running.on
    found: dict[str, list[RunningJob]] = {}
    for job in sorted(running, key=lambda each: each.job):
        for share in job.allocation:
            found.setdefault(share.node, []).append(job)
    return lambda node: found.get(node, [])


def requested_use(share: Share, rates: NodeRates) -> Use:
    """Return the use of a job that uses all that it requested."""
    gpus = percent_held([share]) / WHOLE_PERCENT
    return Use(
        cpu_cores=share.cpus,
        memory_bytes=share.memory_bytes,
        gpus=gpus,
        gpu_memory_bytes=gpus * rates.gpu_memory_bytes / rates.gpus if rates.gpus else 0.0,
    )


class MostCapacity(Chooser):
    """The nodes as they will be once the plan is carried out; lives only inside one plan.

    Args:
        snapshot: what there is.
        weights: of the resources.
        window_s: a job younger than this when its node was last sampled is not in the report yet.
        spare_gpu_nodes: jobs without GPUs go to nodes with GPUs only if no other can take them.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        *,
        weights: WeightsConfig,
        window_s: float,
        spare_gpu_nodes: bool,
    ) -> None:
        super().__init__(snapshot)
        self._weights = weights
        self._spare_gpu_nodes = spare_gpu_nodes
        self._books: Books = self._keep_books(snapshot, window_s)
        self._books.refresh(snapshot, self.predictions)
        self._used: dict[str, Use] = {}  # of the nodes that this plan has charged
        self._values: dict[tuple[str, bool], float] = {}

    def _keep_books(self, snapshot: Snapshot, window_s: float) -> Books:
        return index_of(snapshot.nodes, ("books", window_s), lambda: Books(window_s))

    def rank(self, job: int) -> Rank:  # noqa: ARG002 -- the same for all jobs
        """Return the ranking by capacity left, the most first."""
        return self._rank

    def _rank(self, chunk: Chunk, space: FreeNode) -> RankKey:
        with_gpus = chunk.gpus > 0
        return (
            self._spare_gpu_nodes and not with_gpus and space.total_gpus > 0,
            -self._value(space.name, with_gpus),
            space.name,
        )

    def _value(self, node: str, with_gpus: bool) -> float:  # noqa: FBT001 -- part of the key
        key = (node, with_gpus)
        if key not in self._values:
            charged = self._books.nodes[node]
            self._values[key] = value(
                charged.load.rates,
                self._used.get(node, charged.used),
                self._books.most,
                self._weights,
                with_gpus=with_gpus,
            )
        return self._values[key]

    def started(self, job: int, allocation: Allocation) -> None:
        """Charge the job's nodes with what it will cost."""
        for share in allocation:
            node = share.node
            used = self._used.get(node, self._books.nodes[node].used)
            self._used[node] = used.plus(self._cost(job, share))
            for with_gpus in (False, True):
                self._values.pop((node, with_gpus), None)

    def _cost(self, job: int, share: Share) -> Use:
        """Return what a job will use: as predicted, or all that it requested."""
        prediction = self.predictions.prediction(job, share.node)
        if prediction is not None:
            return prediction.use
        return requested_use(share, self._books.nodes[share.node].load.rates)


def guaranteed(space: FreeNode) -> NodeLoad:
    """Return a node without a report as if its jobs used exactly what they requested."""
    gpu_memory_bytes = sum(gpu.memory_bytes for gpu in space.all_gpus)
    free = sum(gpu.memory_bytes for gpu in space.gpus)
    free += sum(each.memory_bytes for each in space.shared)
    left = sum(each.percent for each in space.shared) / WHOLE_PERCENT
    rates = NodeRates(
        cores=space.total_cpus,
        memory_bytes=space.total_memory_bytes,
        gpus=space.total_gpus,
        gpu_memory_bytes=gpu_memory_bytes,
    )
    used = Use(
        cpu_cores=space.total_cpus - space.cpus,
        memory_bytes=space.total_memory_bytes - space.memory_bytes,
        gpus=space.total_gpus - len(space.gpus) - left,
        gpu_memory_bytes=gpu_memory_bytes - free,
    )
    return NodeLoad(name=space.name, rates=rates, used=used, running=space.owners)

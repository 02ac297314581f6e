"""Self-learning load balancing: each job goes where the most capacity is left.

Capacity left is a weighted sum over CPU, memory, GPU and GPU memory of how large the node is,
beside the largest, and how idle. What a job will cost is predicted from jobs of its kind before it,
and is added to its node at once, so that jobs that arrive between two reports do not all go to one.

Source: Liu Hui et al., "A self-learning load balancing scheduling algorithm for GPU heterogeneous
clusters", Journal of Xi'an Shiyou University, 2015. Ours are: the weights of GPUs that a job does
not ask for are spread over the rest; a job too young to be in its node's report keeps its predicted
part; the first job passed over holds a reservation, so that nothing starves; jobs without GPUs stay
off GPU nodes while others can take them; and jobs are planned to run as long as predicted, not as
long as their users' padded walltimes.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from gsched.model.resources import Allocation, Chunk, Share
from gschedd.plan.load import Basis, NodeLoad, NodeRates, Prediction, Use
from gschedd.plan.room import Rank, RankKey
from gschedd.plan.snapshot import Plan, Policy, RunningJob, Shape, Snapshot
from gschedd.plan.space import NodeSpace
from gschedd.policies.kit.chooser import Chooser
from gschedd.policies.kit.order import plan_in_order

#: Runs of the very kind that a predicted run time must stand on, to count instead of the walltime.
ENOUGH_RUNS: Final = 5


class Weights(Struct, frozen=True, kw_only=True):
    """How much each resource counts: the paper's k1 to k4, of any sum above 0."""

    cpu: float = 0.25
    memory: float = 0.25
    gpu: float = 0.25
    gpu_memory: float = 0.25


class Settings(Struct, frozen=True, kw_only=True):
    """What a site may choose.

    Attributes:
        weights: of the resources.
        window_s: a job younger than this when its node was last sampled is not in the report yet.
        reserve: the first job passed over holds a reservation.
        predicted_times: plan with predicted run times instead of walltimes.
    """

    weights: Weights = Weights()
    window_s: float = 10.0
    reserve: bool = True
    predicted_times: bool = True


def plan(snapshot: Snapshot) -> Plan:
    """Start what fits in order, each job where the most capacity is left."""
    return _plan(snapshot, Settings())


def balance(settings: Settings) -> Policy:
    """Return the policy with a site's own settings.

    Raises:
        ValueError: a weight is below 0, or nothing counts for a job without GPUs.
    """
    weights = settings.weights
    if min(weights.cpu, weights.memory, weights.gpu, weights.gpu_memory) < 0:
        raise ValueError(f"a weight is below 0: {weights}")
    if weights.cpu + weights.memory <= 0:
        raise ValueError(f"cpu and memory must not both be 0: {weights}")
    return lambda snapshot: _plan(snapshot, settings)


def _plan(snapshot: Snapshot, settings: Settings) -> Plan:
    return plan_in_order(snapshot, _Balance(snapshot, settings), reserve=settings.reserve)


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
    rates: NodeRates, used: Use, most: Largest, weights: Weights, *, with_gpus: bool
) -> float:
    """Return the capacity left on a node: VALUE of the paper, 1 for the largest node when idle.

    More than all of a node may be promised to jobs; then it counts below 0, so that of two full
    nodes the less crowded one is better.

    Args:
        with_gpus: the job asks for GPUs; else their weights are spread over the rest.
    """
    parts = [
        (weights.cpu, rates.cpu_rate, most.cpu, used.cpu_cores, rates.cores),
        (weights.memory, rates.memory_bytes, most.memory, used.memory_bytes, rates.memory_bytes),
    ]
    if with_gpus:
        gpu_memory = rates.gpu_memory_bytes
        parts += [
            (weights.gpu, rates.all_gpus_rate, most.gpu, used.gpus, rates.gpus),
            (weights.gpu_memory, gpu_memory, most.gpu_memory, used.gpu_memory_bytes, gpu_memory),
        ]
    total = sum(weight for weight, *_ in parts)
    left = sum(
        weight * (rate / top) * (1 - busy / capacity)
        for weight, rate, top, busy, capacity in parts
        if capacity and top
    )
    return left / total


class _Balance(Chooser):
    """The nodes as they will be once the plan is carried out; lives only inside one plan."""

    def __init__(self, snapshot: Snapshot, settings: Settings) -> None:
        self._snapshot = snapshot
        self._settings = settings
        self._loads = {
            name: snapshot.loads.get(name) or promised(space)
            for name, space in snapshot.nodes.items()
        }
        self._most = largest({name: load.rates for name, load in self._loads.items()})
        self._used = {name: load.used for name, load in self._loads.items()}
        self._values: dict[tuple[str, bool], float] = {}
        self._said: dict[tuple[int, str], Prediction] = {}
        for job in sorted(snapshot.running, key=lambda each: each.job):
            for share in job.allocation:
                if self._is_unreported(job, share.node):
                    self._add(job.job, share)

    def _is_unreported(self, job: RunningJob, node: str) -> bool:
        """Return whether a running job is too young to be in its node's report."""
        load = self._snapshot.loads.get(node)
        return load is not None and load.reported_s - job.started_s < self._settings.window_s

    def rank(self, job: int) -> Rank:  # noqa: ARG002 -- the same for all jobs
        return self._rank

    def _rank(self, chunk: Chunk, space: NodeSpace) -> RankKey:
        with_gpus = chunk.gpus > 0
        return (
            not with_gpus and space.total_gpus > 0,
            -self._value(space.name, with_gpus),
            space.name,
        )

    def _value(self, node: str, with_gpus: bool) -> float:  # noqa: FBT001 -- part of the key
        key = (node, with_gpus)
        if key not in self._values:
            self._values[key] = value(
                self._loads[node].rates,
                self._used[node],
                self._most,
                self._settings.weights,
                with_gpus=with_gpus,
            )
        return self._values[key]

    def started(self, job: int, allocation: Allocation) -> None:
        for share in allocation:
            self._add(job, share)

    def _add(self, job: int, share: Share) -> None:
        node = share.node
        if node not in self._used:
            return
        self._used[node] = self._used[node].plus(self._cost(job, share))
        for with_gpus in (False, True):
            self._values.pop((node, with_gpus), None)

    def _cost(self, job: int, share: Share) -> Use:
        """Return what a job will use: as predicted, or all that it asked for."""
        if share.node in self._snapshot.loads:
            said = self._predict(job, share.node)
            if said is not None:
                return said.use
        rates = self._loads[share.node].rates
        gpus = len(share.gpu_indices)
        return Use(
            cpu_cores=share.cpus,
            memory_bytes=share.memory_bytes,
            gpus=gpus,
            gpu_memory_bytes=gpus * rates.gpu_memory_bytes / rates.gpus if rates.gpus else 0.0,
        )

    def _predict(self, job: int, node: str) -> Prediction | None:
        kind = self._snapshot.kinds.get(job)
        predictor = self._snapshot.predictor
        if kind is None or predictor is None or node not in self._loads:
            return None
        key = (job, node)
        if key not in self._said:
            self._said[key] = predictor.predict(kind, self._loads[node], self._snapshot.now_s)
        return self._said[key]

    def run_time_s(self, job: int, shape: Shape, allocation: Allocation) -> float | None:
        foretold_s = self._foretold_s(job, allocation)
        if foretold_s is None or shape.walltime_s is None:
            return shape.walltime_s if foretold_s is None else foretold_s
        return min(foretold_s, shape.walltime_s)

    def end_s(self, running: RunningJob) -> float | None:
        foretold_s = self._foretold_s(running.job, running.allocation)
        if foretold_s is None:
            return running.end_s
        now_s = self._snapshot.now_s
        age_s = max(now_s - running.started_s, 0.0)
        # One that has outlived its prediction is taken to be half done: it is never killed for it.
        end_s = running.started_s + (foretold_s if age_s < foretold_s else 2 * age_s)
        return end_s if running.end_s is None else min(end_s, running.end_s)

    def _foretold_s(self, job: int, allocation: Allocation) -> float | None:
        """Return a run time that is seldom exceeded, if enough runs of the kind are known."""
        if not self._settings.predicted_times:
            return None
        longest_s = 0.0
        for share in allocation:
            said = self._predict(job, share.node)
            if said is None or said.basis is not Basis.KIND or said.records < ENOUGH_RUNS:
                return None
            longest_s = max(longest_s, said.wall_high_s or 0.0)
        return longest_s


def promised(space: NodeSpace) -> NodeLoad:
    """Return a node without a report as if its jobs used exactly what they asked for."""
    gpu_memory_bytes = sum(gpu.memory_bytes for gpu in space.all_gpus)
    free = sum(gpu.memory_bytes for gpu in space.gpus)
    rates = NodeRates(
        cores=space.total_cpus,
        memory_bytes=space.total_memory_bytes,
        gpus=space.total_gpus,
        gpu_memory_bytes=gpu_memory_bytes,
    )
    used = Use(
        cpu_cores=space.total_cpus - space.cpus,
        memory_bytes=space.total_memory_bytes - space.memory_bytes,
        gpus=space.total_gpus - len(space.gpus),
        gpu_memory_bytes=gpu_memory_bytes - free,
    )
    return NodeLoad(name=space.name, rates=rates, used=used, running=space.owners)

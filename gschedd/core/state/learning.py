"""What the head knows that predictions need: loads of nodes, kinds of jobs, and what a part cost.

Loads and kinds are read from the state when a policy asks for them, so that a policy that does not
costs nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

from gsched.model.resources import Inventory
from gsched.model.states import OutcomeKind, PartState
from gschedd.core.state import facts as f
from gschedd.core.state.records import Job, Node
from gschedd.core.state.state import State
from gschedd.core.state.step import Run
from gschedd.models.kinds import kind_of
from gschedd.models.predict import Model
from gschedd.models.records import Record, record_of
from gschedd.plan.load import Kind, NodeLoad, NodeRates, Prediction, Predictor, Use

#: What counts as 1: a core at this clock, MHz, and a GPU of 108 multiprocessors at 1410 MHz (an
#: A100). What does not tell its rate counts as 1, too, so that it is taken for a usual one beside
#: others that do. Both are fixed, not means over the cluster: rates are kept with past runs and
#: must mean the same when nodes have come and gone.
USUAL_CPU_CLOCK_MHZ: Final = 2500.0
USUAL_GPU_RATE_MHZ: Final = 108 * 1410.0

#: Inventories of which the rates are kept: they are requested with each load and each end.
MAX_RATES: Final = 16_384

#: Ends of parts whose use tells something about their kind.
_RAN = frozenset({OutcomeKind.EXITED, OutcomeKind.SIGNALLED, OutcomeKind.OOM})


class Loads(Mapping[str, NodeLoad]):
    """Nodes by name, as their last heartbeats have them; those without one are not in it."""

    def __init__(self, state: State) -> None:
        self._state = state

    def __getitem__(self, name: str) -> NodeLoad:
        load = load_of(self._state.nodes[name], len(self._state.by_node.get(name, ())))
        if load is None:
            raise KeyError(name)
        return load

    def __iter__(self) -> Iterator[str]:
        return (name for name, node in self._state.nodes.items() if node.load is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Kinds(Mapping[int, Kind]):
    """The kinds of jobs that are not done, by id."""

    def __init__(self, state: State) -> None:
        self._state = state

    def __getitem__(self, job: int) -> Kind:
        return kind_of(self._state.jobs[job].spec)

    def __iter__(self) -> Iterator[int]:
        return iter(self._state.jobs)

    def __len__(self) -> int:
        return len(self._state.jobs)


@lru_cache(MAX_RATES)
def rates_of(inventory: Inventory) -> NodeRates:
    """Return what a node can do, against usual cores and GPUs.

    Source:
        Liu Hui et al. (see `gschedd.policies.kit.capacity`): the rate of a node's CPUs is cores
        times clock, that of a GPU its multiprocessors times clock. Unlike there, either may be
        unknown.
    """
    gpus = inventory.gpus
    rates_mhz = [gpu.rate_mhz if gpu.rate_mhz > 0 else USUAL_GPU_RATE_MHZ for gpu in gpus]
    clock_mhz = inventory.cpu_clock_mhz if inventory.cpu_clock_mhz > 0 else USUAL_CPU_CLOCK_MHZ
    capacity_cores = inventory.cpu_capacity_cores
    return NodeRates(
        cores=capacity_cores if capacity_cores > 0 else inventory.cpus,
        memory_bytes=inventory.memory_bytes,
        core_rate=clock_mhz / USUAL_CPU_CLOCK_MHZ,
        gpus=len(gpus),
        gpu_rate=sum(rates_mhz) / len(gpus) / USUAL_GPU_RATE_MHZ if gpus else 1.0,
        gpu_memory_bytes=sum(gpu.memory_bytes for gpu in inventory.gpus),
    )


def load_of(node: Node, running: int) -> NodeLoad | None:
    """Return a node as its last heartbeat has it, or None before the first."""
    load, heartbeat_s = node.load, node.heartbeat_s
    if load is None or heartbeat_s is None:
        return None
    rates = rates_of(node.inventory)
    used = Use(
        cpu_cores=load.cpu_percent / 100 * rates.cores,
        memory_bytes=load.memory_used_bytes,
        gpus=sum(load.gpu_util_percent) / 100,
        gpu_memory_bytes=sum(load.gpu_memory_used_bytes),
    )
    return NodeLoad(name=node.name, rates=rates, used=used, running=running, reported_s=heartbeat_s)


def what_it_cost(state: State, fact: f.PartEnded) -> Record | None:
    """Return the record of a part that has just ended, or None if it says nothing.

    A part that never ran, was stopped or was lost says nothing about what its kind needs.
    """
    job, node = state.jobs.get(fact.job), state.nodes.get(fact.node)
    if job is None or job.attempt is None or node is None:
        return None
    record = fact.record
    if record.stop_reason is not None or record.kind not in _RAN:
        return None
    return record_of(
        kind_of(job.spec),
        job.attempt.parts[fact.node].share,
        rates_of(node.inventory),
        fact.usage,
        ended_s=min(record.ended_s or fact.at_s, fact.at_s),
        succeeded=record.kind is OutcomeKind.EXITED and record.exit_code == 0,
    )


def run_of(state: State, fact: f.PartEnded) -> Run | None:
    """Return the run that has just ended, or None if it says nothing: see `what_it_cost`."""
    record = what_it_cost(state, fact)
    job = state.jobs.get(fact.job)
    if record is None or job is None or job.attempt is None:
        return None
    prediction = job.attempt.parts[fact.node].prediction
    return Run(job=fact.job, attempt=fact.attempt, record=record, prediction=prediction)


def learned(model: Model, state: State, fact: f.PartEnded) -> list[Run]:
    """Learn from the run that has just ended; return it, nothing if it says nothing."""
    run = run_of(state, fact)
    if run is None:
        return []
    model.learn(run.record)
    return [run]


def predict(
    predictor: Predictor, state: State, job: Job, nodes: Sequence[str], now_s: float
) -> dict[str, Prediction]:
    """Return what a job is expected to cost on each of the nodes of which the load is known."""
    kind, loads = kind_of(job.spec), Loads(state)
    deferred = getattr(predictor, "deferred", None) if state.defers_predictions else None
    if deferred is not None:
        return {
            name: deferred(kind, load, now_s)
            for name in nodes
            if (load := loads.get(name)) is not None
        }
    return {
        name: predictor.predict(kind, load, now_s)
        for name in nodes
        if (load := loads.get(name)) is not None
    }


def expected_use(state: State, node: str) -> tuple[Use, int]:
    """Return what the jobs that run on a node were expected to use there, together.

    Beside it: of how many that run nothing was predicted. Where a job only owns resources, and its
    program runs elsewhere, it is expected to use nothing.
    """
    total, unknown = Use(), 0
    for job in state.by_node.get(node, {}).values():
        part = job.attempt.parts.get(node) if job.attempt is not None else None
        if part is None or part.state is PartState.PASSIVE:
            continue
        if part.prediction is None:
            unknown += 1
        else:
            total = total.plus(part.prediction.use)
    return total, unknown

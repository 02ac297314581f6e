"""The state at a scrape: jobs from the head's database, nodes and their GPUs from the samples."""

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from gsched.model.arrays import count
from gsched.model.states import JobState, NodeState
from gsched.protocol.samples import NodeUseSample, UseSamples
from gschedd.core.state.records import Elements
from gschedd.monitor.metrics.counts import MetricGroup, gpu_uses

_decode_elements: Final = msgspec.json.Decoder(Elements).decode
#: An array is one row until its elements become jobs; this finds those that have some left.
_ARRAYS: Final = """
    SELECT user, queue, state, json_extract(CAST(sparse AS TEXT), '$.elements') FROM head.jobs
    WHERE state <> 'done' AND instr(sparse, CAST('"elements"' AS BLOB))"""


class NodeGauge(NamedTuple):
    """A gauge of each node; None: its value is not known."""

    name: str
    text: str
    read: Callable[[NodeUseSample], float | None]


def _load(read: str, factor: float = 1.0) -> Callable[[NodeUseSample], float | None]:
    def value(node: NodeUseSample) -> float | None:
        return None if node.load is None else getattr(node.load, read) * factor

    return value


def _gpus(use: str) -> Callable[[NodeUseSample], float | None]:
    def value(node: NodeUseSample) -> float | None:
        return sum(gpu_uses(node, gpu)[use] for gpu in node.gpus) if node.gpus else None

    return value


_NODE_GAUGES: Final[Sequence[NodeGauge]] = (
    NodeGauge(
        "gsched_node_up",
        "1: the node is connected; none for one that is powered down.",
        lambda n: None if n.power else n.state == NodeState.UP,
    ),
    NodeGauge("gsched_node_drained", "1: the node accepts no jobs.", lambda n: n.drained),
    NodeGauge("gsched_node_cpus", "CPUs.", lambda n: n.cpus),
    NodeGauge("gsched_node_cpus_allocated", "CPUs of jobs.", lambda n: n.cpus - n.cpus_free),
    NodeGauge("gsched_node_cpu_busy_ratio", "CPU time in use, 0 to 1.", _load("cpu_percent", 0.01)),
    NodeGauge("gsched_node_memory_bytes", "Memory.", lambda n: n.memory_bytes),
    NodeGauge(
        "gsched_node_memory_allocated_bytes",
        "Memory that jobs requested.",
        lambda n: n.memory_bytes - n.memory_free_bytes,
    ),
    NodeGauge("gsched_node_memory_used_bytes", "Memory in use.", _load("memory_used_bytes")),
    NodeGauge("gsched_node_gpus", "GPUs.", _gpus("installed")),
    NodeGauge("gsched_node_gpus_allocated", "GPUs of jobs.", _gpus("allocated")),
    NodeGauge("gsched_node_gpus_busy", "Sum of the utilisations of all GPUs.", _gpus("busy")),
    NodeGauge("gsched_node_gpus_unused", "GPUs of jobs with no process there.", _gpus("unused")),
)


def gauges(
    db: sqlite3.Connection, samples: UseSamples | None, now_s: float, groups: Iterable[MetricGroup]
) -> list[Metric]:
    """Return the gauges of some groups."""
    found: list[Metric] = []
    for group in groups:
        if group is MetricGroup.JOBS:
            found += _jobs(db)
        elif group is MetricGroup.PARTITIONS:
            found += _queues(db, samples, now_s)
        elif group is MetricGroup.USERS:
            found += _users(db, samples)
        elif group is MetricGroup.NODES and samples is not None:
            found += _nodes(samples.nodes)
    return found


def _labelled(
    name: str, text: str, labels: Sequence[str], values: dict[tuple[str, ...], float]
) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in sorted(values.items()):
        family.add_metric(key, value)
    return family


def _counted_jobs(db: sqlite3.Connection) -> Counter[tuple[str, str, str]]:
    """Return the unfinished jobs by user, queue and state; elements of arrays count each."""
    jobs: Counter[tuple[str, str, str]] = Counter()
    query = (
        "SELECT user, queue, state, count(*) FROM head.jobs WHERE state <> 'done' GROUP BY 1, 2, 3"
    )
    for user, queue, state, number in db.execute(query):
        jobs[user, queue, state] = number
    for user, queue, state, text in db.execute(_ARRAYS):
        elements = _decode_elements(text)
        jobs[user, queue, state] += count(elements.left) - 1
        jobs[user, queue, JobState.HELD] += count(elements.held)
    return +jobs


def _jobs(db: sqlite3.Connection) -> Iterator[Metric]:
    totals: Counter[tuple[str, ...]] = Counter()
    for (_, queue, state), number in _counted_jobs(db).items():
        totals[queue, state] += number
    yield _labelled("gsched_jobs", "Unfinished jobs, by state.", ("queue", "state"), dict(totals))


def _queues(db: sqlite3.Connection, samples: UseSamples | None, now_s: float) -> Iterator[Metric]:
    query = "SELECT queue, min(eligible_s) FROM head.jobs WHERE state = 'queued' GROUP BY queue"
    waits: dict[tuple[str, ...], float] = {}
    for queue, since_s in db.execute(query):
        waits[queue,] = max(0.0, now_s - since_s)
    text = "For how long the job has waited that waits longest."
    yield _labelled("gsched_queue_longest_wait_seconds", text, ("queue",), waits)
    cpus: Counter[tuple[str, ...]] = Counter()
    gpus: Counter[tuple[str, ...]] = Counter()
    for job in samples.jobs if samples is not None else ():
        cpus[job.queue,] += job.cpus
        gpus[job.queue,] += job.gpus
    yield _labelled("gsched_queue_cpus_allocated", "CPUs of its jobs.", ("queue",), dict(cpus))
    yield _labelled("gsched_queue_gpus_allocated", "GPUs of its jobs.", ("queue",), dict(gpus))


def _users(db: sqlite3.Connection, samples: UseSamples | None) -> Iterator[Metric]:
    totals: Counter[tuple[str, ...]] = Counter()
    for (user, _, state), number in _counted_jobs(db).items():
        totals[user, state] += number
    text = "Unfinished jobs of a user, by state."
    yield _labelled("gsched_user_jobs", text, ("user", "state"), dict(totals))
    sums: dict[str, dict[tuple[str, ...], float]] = {"cpus": {}, "gpus": {}, "busy": {}}
    for job in samples.jobs if samples is not None else ():
        busy = job.use.gpus if job.use is not None else 0.0
        for name, value in (("cpus", job.cpus), ("gpus", job.gpus), ("busy", busy)):
            sums[name][job.user,] = sums[name].get((job.user,), 0.0) + value
    label = ("user",)
    yield _labelled("gsched_user_cpus_allocated", "CPUs of a user's jobs.", label, sums["cpus"])
    yield _labelled("gsched_user_gpus_allocated", "GPUs of a user's jobs.", label, sums["gpus"])
    text = "Sum of the utilisations of the GPUs of a user's jobs."
    yield _labelled("gsched_user_gpus_busy", text, label, sums["busy"])


def _nodes(nodes: Sequence[NodeUseSample]) -> Iterator[Metric]:
    states: Counter[tuple[str, ...]] = Counter()
    gpus: Counter[tuple[str, ...]] = Counter()
    for node in nodes:
        is_up = node.state == NodeState.UP
        states["drained" if node.drained and is_up else node.power or node.state,] += 1
        for gpu in node.gpus:
            kind = gpu.type or "unknown"
            if node.power or not is_up:
                gpus[kind, node.power or "unreachable"] += 1
            elif gpu.jobs:
                gpus[kind, "unused" if gpu.unused else "allocated"] += 1
            else:
                gpus[kind, "outside" if gpu.outside else "drained" if node.drained else "idle"] += 1
    yield _labelled("gsched_nodes", "Nodes, by state.", ("state",), dict(states))
    text = "GPUs, each in one state; unused: of a job without a process there; outside: of others."
    yield _labelled("gsched_gpus", text, ("type", "state"), dict(gpus))
    for gauge in _NODE_GAUGES:
        values: dict[tuple[str, ...], float] = {}
        for node in nodes:
            value = gauge.read(node)
            if value is not None:
                values[node.name,] = float(value)
        yield _labelled(gauge.name, gauge.text, ("node",), values)

"""What goodput models cost: CPU time of reports, models, refits and evaluation."""

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Final

import numpy as np
from msgspec import structs

from gschedd.models.goodput.evaluation import Query, best_of_many, step_times
from gschedd.models.goodput.learner import GoodputLearner
from gschedd.models.goodput.records import BatchLimits, Observation, ThroughputParameters

ROUNDS: Final = 20
TYPES: Final = ("t4", "rtx2080ti", "a100")
#: One, two and four GPUs of a node, then two to eleven whole nodes of four.
NODES: Final = np.array([1, 1, 1, *range(2, 12)])
GPUS: Final = np.array([1, 2, 4, *range(8, 48, 4)])
#: Jobs of a round, when all are evaluated at once.
JOBS: Final = 1000
TRUTH: Final = ThroughputParameters(
    compute_s=0.02,
    compute_per_sample_s=0.002,
    node_sync_s=0.03,
    node_sync_per_replica_s=0.001,
    network_sync_s=0.1,
    network_sync_per_replica_s=0.002,
    overlap=1.7,
)


def report(gpu_type: str, nodes: int, gpus: int, batch: int) -> Observation:
    """Return what a job that runs as `TRUTH` says reports."""
    times = step_times(TRUTH, nodes=nodes, replicas=gpus, per_gpu=batch)
    return Observation(
        gpu_type=gpu_type,
        nodes=nodes,
        gpus=gpus,
        batch_per_gpu=batch,
        gradient_s=float(times.gradient_s),
        step_s=float(times.step_s),
    )


def learner() -> GoodputLearner:
    """Return a job that was profiled on each type and has run on four configurations."""
    found = GoodputLearner(limits=BatchLimits(batch=128, batch_max=4096, per_gpu_max=128))
    found.measure_noise(square_norm=1.0, variance=10.0)
    for gpu_type in TYPES:
        for batch in (8, 12, 16, 24, 32, 48, 64, 80, 96, 128):
            found.add(report(gpu_type, 1, 1, batch))
        for nodes, gpus, batch in ((1, 2, 64), (1, 4, 64), (2, 8, 64), (3, 12, 32)):
            found.add(report(gpu_type, nodes, gpus, batch))
    found.model()
    return found


def lines() -> Iterator[str]:
    """Measure and describe each cost: median, and the most of all rounds."""
    known = learner()
    model = known.model()
    models = [
        structs.replace(model, noise=structs.replace(model.noise, variance=1.0 + number))
        for number in range(JOBS)
    ]
    queries = [Query(each, gpu_type, NODES, GPUS) for each in models for gpu_type in TYPES]
    same = report("t4", 2, 8, 64)

    def refit() -> None:
        known.records["t4"].is_stale = True
        known.model()

    def one_job() -> None:
        for gpu_type in TYPES:
            model.best(gpu_type, NODES, GPUS)

    rows = len(NODES)
    yield _line("a report without news", lambda: known.add(same), 1000)
    yield _line("a model without news", known.model, 1000)
    yield _line("a refit of one type, from earlier parameters", refit, 10)
    yield _line(f"one job on {len(TYPES)} types, {rows} configurations each", one_job, 30)
    yield _line(f"{JOBS} such jobs in one pass", lambda: best_of_many(queries), 1)


def _line(what: str, act: Callable[[], object], repeated: int) -> str:
    costs_s = []
    for _ in range(ROUNDS):
        start_s = time.process_time()
        for _ in range(repeated):
            act()
        costs_s.append((time.process_time() - start_s) / repeated)
    return f"{what:50} {median(costs_s) * 1e3:10.4f} ms, at most {max(costs_s) * 1e3:10.4f} ms"

"""Step times that were measured for Sia's evaluation, and how far off models of them are."""

import csv
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import structs

from gschedd.models.goodput.evaluation import step_times
from gschedd.models.goodput.fitting import fit
from gschedd.models.goodput.learner import GoodputLearner
from gschedd.models.goodput.model import GoodputModel
from gschedd.models.goodput.records import (
    BatchLimits,
    GradientNoise,
    Observation,
    ThroughputParameters,
    TypeModel,
)
from scripts.reproduce.arguments import shared_data

TRACES: Final = shared_data("sia") / "traces"
NETWORKS: Final = ("bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3")
#: Names of GPU types, and of them in the files.
TYPES: Final[Mapping[str, str]] = {"t4": "aws", "rtx2080ti": "rtx", "a100": "dgx-ext"}
GPUS_PER_NODE: Final[Mapping[str, int]] = {"t4": 4, "rtx2080ti": 8, "a100": 8}

Errors = list[float]


def read_steps(network: str, gpu_type: str, folder: Path = TRACES) -> list[Observation]:
    """Return what was measured of a network on a type: one observation of each batch and layout.

    Layouts whose nodes have unequal numbers of GPUs are left out; repetitions are averaged.
    """
    found: dict[tuple[int, int, int], list[tuple[float, float]]] = {}
    for kind in ("placements", "scalability"):
        path = folder / network / f"{kind}-{TYPES[gpu_type]}.csv"
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                counts = _counts(row)
                if counts is not None:
                    step_s = float(row["step_time"])
                    times = step_s - float(row["sync_time"]), step_s
                    found.setdefault((*counts, int(row["local_bsz"])), []).append(times)
    steps = []
    for (nodes, gpus, batch), repetitions in sorted(found.items()):
        gradient_s, step_s = np.mean(repetitions, axis=0).tolist()
        steps.append(
            Observation(
                gpu_type=gpu_type,
                nodes=nodes,
                gpus=gpus,
                batch_per_gpu=batch,
                gradient_s=gradient_s,
                step_s=step_s,
            )
        )
    return steps


def _counts(row: Mapping[str, str]) -> tuple[int, int] | None:
    if "placement" not in row:
        return int(row["num_nodes"]), int(row["num_replicas"])
    digits = [int(digit) for digit in row["placement"]]
    return (len(digits), sum(digits)) if len(set(digits)) == 1 else None


def errors(predict: Callable[[Observation], float], steps: Iterable[Observation]) -> Errors:
    """Return ``|predicted - measured| / measured`` of each step time."""
    return [abs(predict(seen) / seen.step_s - 1) for seen in steps]


def predicted(own: ThroughputParameters, seen: Observation) -> float:
    """Return T_iter of parameters on the configuration and batch of an observation, seconds."""
    times = step_times(own, nodes=seen.nodes, replicas=seen.gpus, per_gpu=seen.batch_per_gpu)
    return float(times.step_s)


def held_out(steps: list[Observation], of: Callable[[Observation], tuple[int, ...]]) -> Errors:
    """Return errors at every second value of a property, of models fitted to the other values.

    The smallest and the largest value are known, if there are an odd number of them.
    """
    values = sorted({of(seen) for seen in steps})
    hidden = set(values[1::2])
    own = fit([seen for seen in steps if of(seen) not in hidden]).parameters
    return errors(lambda seen: predicted(own, seen), [s for s in steps if of(s) in hidden])


def batch_of(seen: Observation) -> tuple[int]:
    """Return the batch of each GPU."""
    return (seen.batch_per_gpu,)


def configuration_of(seen: Observation) -> tuple[int, int]:
    """Return nodes and GPUs."""
    return seen.nodes, seen.gpus


def growth(gpu_type: str, steps: Collection[Observation]) -> list[tuple[int, int]]:
    """Return the configurations of a job that doubles its GPUs as far as was measured."""
    measured = {configuration_of(seen) for seen in steps}
    node = GPUS_PER_NODE[gpu_type]
    path = [(max(1, gpus // node), gpus) for gpus in (1, 2, 4, 8, 16, 32, 64)]
    return [configuration for configuration in path if configuration in measured]


def grown(steps: list[Observation], *, with_profile: bool) -> Errors:
    """Return errors at each next configuration of a growing job, at all its batches.

    The job reports one batch, the middle one, on each configuration that it has run on.
    """
    gpu_type = steps[0].gpu_type
    learner = _learner()
    if with_profile:
        for seen in steps:
            if seen.gpus == 1:
                learner.add(seen)
    path = growth(gpu_type, steps)
    found: Errors = []
    for now, then in pairwise(path):
        here = [seen for seen in steps if configuration_of(seen) == now]
        learner.add(here[len(here) // 2])
        there = [seen for seen in steps if configuration_of(seen) == then]
        found += errors(_prediction(learner.model(), gpu_type), there)
    return found


def known(steps: list[Observation]) -> Errors:
    """Return errors on the same configurations of a model fitted to all that was measured."""
    own = fit(steps).parameters
    path = growth(steps[0].gpu_type, steps)[1:]
    return errors(
        lambda seen: predicted(own, seen), [s for s in steps if configuration_of(s) in path]
    )


def borrowed(steps: list[Observation], others: list[Observation], *, lent: bool) -> Errors:
    """Return errors on several GPUs of a type that was profiled on one of them.

    Args:
        others: what was measured on another type.
        lent: whether the job has run on several GPUs of that type; else scaling is perfect.
    """
    own = fit([seen for seen in steps if seen.gpus == 1]).parameters
    model = GoodputModel(
        limits=BatchLimits(batch=1, batch_max=1),
        models=(
            TypeModel(
                gpu_type=steps[0].gpu_type,
                parameters=own,
                scaling=fit(others).parameters if lent else None,
            ),
        ),
    )
    path = growth(steps[0].gpu_type, steps)[1:]
    predict = _prediction(model, steps[0].gpu_type)
    return errors(predict, [seen for seen in steps if configuration_of(seen) in path])


def _learner() -> GoodputLearner:
    return GoodputLearner(limits=BatchLimits(batch=1, batch_max=1))


def _prediction(model: GoodputModel, gpu_type: str) -> Callable[[Observation], float]:
    """Return what the model predicts of a step, as the policy sees it: its fixed global batch."""

    def step_s(seen: Observation) -> float:
        samples = seen.batch_per_gpu * seen.gpus
        fixed = structs.replace(
            model,
            limits=BatchLimits(batch=samples, batch_max=samples, fixed=True),
            noise=GradientNoise(),
            models=tuple(structs.replace(each, per_gpu_max=0) for each in model.models),
        )
        best = fixed.best(gpu_type, [seen.nodes], [seen.gpus])
        return samples / float(best.goodput[0])

    return step_s

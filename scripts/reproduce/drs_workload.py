"""The DRS paper's experiment: ten kinds of training jobs that arrive at random, with deadlines.

The paper's own table of workloads is not accessible. These are torchvision's and mmaction2's
published parameter counts with public timings of one RTX 2080 Ti; DenseNet's and MobileNet's step
times are guesses.
"""

import random
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from gsched.model.training import Training, Urgency
from gschedd.models.runtime import allowed_time_s, size_of_training
from gschedd.sim.cluster import ClusterNode, read_cluster
from gschedd.sim.workload import TraceJob

HOUR_S: Final = 3600.0


def _training(
    parameters: float, step_time_s: float, batch: int, samples: int, epochs: int
) -> Training:
    return Training(
        parameters=parameters,
        step_time_s=step_time_s,
        batch=batch,
        samples=samples,
        epochs=epochs,
    )


WORKLOADS: Final = {
    "alexnet": _training(57.41e6, 0.0105, 16, 50_000, 100),
    "vgg16": _training(134.67e6, 0.035, 16, 50_000, 60),
    "resnet50": _training(23.71e6, 0.061, 16, 50_000, 60),
    "inception-v3": _training(25.3e6, 0.082, 16, 50_000, 60),
    "densenet121": _training(7.06e6, 0.075, 16, 50_000, 60),
    "mobilenet-v2": _training(2.35e6, 0.035, 16, 50_000, 100),
    "tsn-r50": _training(23.7e6, 0.10, 8, 9_537, 75),
    "r2plus1d-r34": _training(63.6e6, 0.66, 8, 9_537, 25),
    "tsm-r50": _training(23.7e6, 0.41, 8, 9_537, 35),
    "slowonly-r50": _training(31.8e6, 0.41, 8, 9_537, 35),
}

#: Those whose parameters are many for their computing: more GPUs hardly make them faster.
HEAVY: Final = ("alexnet", "vgg16")


class Scenario(Struct, frozen=True, kw_only=True):
    """One point of an experiment; the defaults are those of the paper.

    Attributes:
        per_hour: lambda: training jobs that arrive in an hour, on average.
        reception_h: for how long they arrive.
        urgent: share of urgent ones; of the others a third is normal, the rest relaxed.
        heavy: share of AlexNet and VGG-16 together.
        nodes, gpus: of the cluster.
    """

    per_hour: float = 4.0
    reception_h: float = 24.0
    urgent: float = 0.1
    heavy: float = 0.2
    nodes: int = 4
    gpus: int = 4


def cluster(scenario: Scenario) -> list[ClusterNode]:
    """Return the nodes."""
    return read_cluster(f"{scenario.nodes}xcpus=64,gpus={scenario.gpus}")


def draw(scenario: Scenario, seed: int) -> list[TraceJob]:
    """Return one list of training jobs; equal seeds give equal lists.

    Arrival, kind and urgency come from streams of their own, so that a sweep changes only what it
    sweeps.
    """
    arrivals, kinds, urgencies = (random.Random(f"{seed} {name}") for name in "akd")
    jobs: list[TraceJob] = []
    submit_s = arrivals.expovariate(scenario.per_hour) * HOUR_S
    while submit_s < scenario.reception_h * HOUR_S:
        kind = _kind(kinds, scenario.heavy)
        urgency = _urgency(urgencies, scenario.urgent)
        size = size_of_training(WORKLOADS[kind])
        assert size is not None, f"{kind} says all that is needed"
        jobs.append(
            TraceJob(
                submit_s=submit_s,
                duration_s=0.0,
                name=f"{kind}-{len(jobs)}",
                kind=kind,
                gpus=1,
                gpus_max=scenario.nodes * scenario.gpus,
                deadline_s=allowed_time_s(size, urgency),
                training=WORKLOADS[kind],
            )
        )
        submit_s += arrivals.expovariate(scenario.per_hour) * HOUR_S
    return jobs


def _kind(chance: random.Random, heavy: float) -> str:
    others = [kind for kind in WORKLOADS if kind not in HEAVY]
    return chance.choice(HEAVY) if chance.random() < heavy else chance.choice(others)


def _urgency(chance: random.Random, urgent: float) -> Urgency:
    value = chance.random()
    if value < urgent:
        return Urgency.URGENT
    return Urgency.NORMAL if value < urgent + (1 - urgent) / 3 else Urgency.RELAXED


class Sweep(Struct, frozen=True, kw_only=True):
    """One experiment: what is varied, and the points.

    Attributes:
        name: as on the command line.
        title: for people.
        points: by their labels, in order.
    """

    name: str
    title: str
    points: Sequence[tuple[str, Scenario]]


SWEEPS: Final = (
    Sweep(
        name="lambda",
        title="training jobs an hour",
        points=[(f"{n}", Scenario(per_hour=n)) for n in (2, 4, 6, 8, 10)],
    ),
    Sweep(
        name="nodes",
        title="nodes of 4 GPUs",
        points=[(f"{n}", Scenario(nodes=n)) for n in (2, 3, 4)],
    ),
    Sweep(
        name="urgent",
        title="share of urgent training jobs",
        points=[(f"{n} %", Scenario(urgent=n / 100)) for n in (10, 20, 30, 40, 50)],
    ),
    Sweep(
        name="reception",
        title="hours of reception",
        points=[(f"{n}", Scenario(reception_h=n)) for n in (12, 24, 48, 72)],
    ),
    Sweep(
        name="heavy",
        title="share of AlexNet and VGG-16",
        points=[
            (label, Scenario(heavy=share))
            for label, share in (("1/5", 1 / 5), ("1/4", 1 / 4), ("3/10", 0.3), ("1/3", 1 / 3))
        ],
    ),
    Sweep(name="utilisation", title="GPUs in use over time", points=[("4", Scenario())]),
)

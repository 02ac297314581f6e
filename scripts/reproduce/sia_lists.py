"""Sia's job lists and clusters, as jobs and nodes that gsched's simulator can run."""

import csv
import math
import random
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from pathlib import Path
from types import MappingProxyType
from typing import Final

from msgspec import Struct, structs

from gsched.errors import UsageError
from gsched.model.training import Adaptive, Scaling, Training
from gschedd.plan.training import Fabric
from gschedd.sim.cluster import ClusterNode, read_cluster
from gschedd.sim.workload import TraceJob
from scripts.reproduce.sia_training import TracedTraining, spread
from scripts.reproduce.sia_truth import Application

COLUMNS: Final = ("name", "time", "application", "num_replicas", "batch_size")
#: Words of a column ``category`` that some lists have.
CATEGORIES: Final[Mapping[str, Scaling]] = MappingProxyType(
    {
        "adaptive": Scaling.ADAPTIVE,
        "scale-gpus": Scaling.STRONG,
        "rigid": Scaling.RIGID,
        "": Scaling.ADAPTIVE,
    }
)
#: Nodes of a kind: how many, GPUs of each, and their type.
CLUSTERS: Final[Mapping[str, tuple[tuple[int, int, str], ...]]] = MappingProxyType(
    {
        "hetero64": ((6, 4, "t4"), (3, 8, "rtx2080ti"), (2, 8, "a100")),
        "homo64": ((16, 4, "t4"),),
        "physical44": ((3, 8, "rtx2080ti"), (2, 8, "a100"), (1, 4, "quadro6000")),
    }
)
#: No training of the lists is given more; Sia's evaluation.
GPUS_MAX: Final = 64


class Row(Struct, frozen=True, kw_only=True):
    """One line of a list.

    Attributes:
        submit_s: seconds from the beginning of the list.
        gpus, batch: as its user has tuned them: number of GPUs and global batch.
    """

    name: str
    submit_s: float
    application: str
    gpus: int
    batch: int
    scaling: Scaling = Scaling.ADAPTIVE


class Says(Enum):
    """As what the jobs of a list are submitted."""

    JOBS = auto()  # with the number of GPUs that their users tuned
    TRAININGS = auto()  # with run times for each number of GPUs at the batch that was tuned
    ADAPTIVE = auto()  # number and type of GPUs and batch may be chosen
    RIGID = auto()  # the type of GPUs may be chosen, with the number and the batch of its user


def lists_of(paths: Sequence[Path]) -> list[Path]:
    """Return the lists in some folders, or of some files, by number.

    Raises:
        UsageError: there is none in one of them.
    """
    found: list[Path] = []
    for path in paths:
        here = sorted(path.glob("*.csv"), key=_number) if path.is_dir() else [path]
        if not here:
            raise UsageError(f"no lists in {path}", hint="workload-1.csv, …")
        found += here
    return found


def _number(path: Path) -> tuple[int, str]:
    digits = "".join(filter(str.isdigit, path.stem))
    return int(digits or 0), path.stem


def read_list(path: Path) -> list[Row]:
    """Return the lines of a list, by submission.

    Raises:
        UsageError: it is no list of this form.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise UsageError(f"{path} lacks {', '.join(missing)}", hint="name a list of Sia's")
            rows = [_row(line) for line in reader]
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except (ValueError, KeyError) as error:
        raise UsageError(f"{path} is no list of Sia's: {error}") from error
    if not rows:
        raise UsageError(f"{path} has no jobs")
    return sorted(rows, key=lambda row: row.submit_s)


def with_rigid(rows: Sequence[Row], part: float) -> list[Row]:
    """Return a list of which some jobs keep the number of GPUs and the batch of their users.

    A larger part includes the jobs of a smaller one.

    Args:
        part: of the jobs, 0 to 1.
    """
    order = random.Random(len(rows)).sample(range(len(rows)), len(rows))
    chosen = set(order[: round(part * len(rows))])
    return [
        structs.replace(row, scaling=Scaling.RIGID) if place in chosen else row
        for place, row in enumerate(rows)
    ]


def _row(line: Mapping[str, str]) -> Row:
    return Row(
        name=line["name"],
        submit_s=float(line["time"]),
        application=line["application"],
        gpus=int(float(line["num_replicas"])),
        batch=int(float(line["batch_size"])),
        scaling=CATEGORIES[(line.get("category") or "").strip()],
    )


def batch_of(row: Row, application: Application) -> int:
    """Return the global batch of a line, within those that were measured of its model."""
    return min(max(row.batch, application.batch), application.batch_max)


class Cluster:
    """The nodes of an experiment.

    Attributes:
        name: as on the command line.
        kinds: of its nodes: how many, GPUs of each, and their type.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.kinds = CLUSTERS[name]

    @property
    def gpus(self) -> int:
        """Return the number of GPUs."""
        return sum(count * each for count, each, _ in self.kinds)

    def nodes(self) -> tuple[ClusterNode, ...]:
        """Return the nodes as the simulator takes them."""
        text = "+".join(
            f"{count}xname={kind}-,cpus={8 * each},gpus={each},gpu_type={kind}"
            for count, each, kind in self.kinds
        )
        return read_cluster(text)

    def fabric(self, applications: Sequence[Application]) -> Fabric:
        """Return how fast its GPU types are, for policies that know one number for each.

        That is the geometric mean over the models of the samples a second on one GPU at its largest
        batch, the slowest type being 1.
        """
        rates = {
            kind: math.exp(
                sum(math.log(_rate(application, kind)) for application in applications)
                / len(applications)
            )
            for _, _, kind in self.kinds
        }
        slowest = min(rates.values())
        return Fabric(devices={kind: rate / slowest for kind, rate in rates.items()})

    def slowest(self, applications: Sequence[Application]) -> tuple[int, str]:
        """Return the GPUs of a node, and the type, of the slowest kind of node."""
        devices = self.fabric(applications).devices
        _, each, kind = min(self.kinds, key=lambda kind: devices[kind[2]])
        return each, kind


def _rate(application: Application, gpu_type: str) -> float:
    device = application.device(gpu_type)
    largest = device.largest((1,))
    times = device.times((1,), largest)
    assert times is not None, "the largest batch was measured"
    return largest / times.step_s


class Jobs:
    """A list on a cluster: the jobs, and how each of them really behaves.

    Args:
        says: as what they are submitted.
        alike: training jobs of one model are of one kind, so that what was learned of one is known
            of the next; Sia's authors begin with each job anew.
        profiled: a training measures batches on one GPU when it first runs on a type.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        cluster: Cluster,
        applications: Mapping[str, Application],
        says: Says,
        *,
        alike: bool = False,
        profiled: bool = True,
    ) -> None:
        self._rows = {row.name: row for row in rows}
        if len(self._rows) < len(rows):
            raise UsageError("two jobs of the list have the same name")
        self._cluster = cluster
        self._applications = applications
        self._says = says
        self._alike = alike
        self._profiled = profiled
        self._slowest = cluster.slowest([applications[name] for name in sorted(applications)])
        self.jobs = [self._job(row) for row in rows]

    def truth(self, job: TraceJob) -> TracedTraining:
        """Return how a job really behaves."""
        return self.truth_of_name(job.name)

    def truth_of_name(self, name: str) -> TracedTraining:
        """Return how the job of a name really behaves."""
        row = self._rows[name]
        application = self._applications[row.application]
        is_free = self._says is Says.ADAPTIVE and row.scaling is Scaling.ADAPTIVE
        batch = 0 if is_free else batch_of(row, application)
        return TracedTraining(application, batch, profiled=self._profiled)

    def _job(self, row: Row) -> TraceJob:
        plain = TraceJob(
            submit_s=row.submit_s,
            duration_s=0.0,
            name=row.name,
            kind=row.application if self._alike else row.name,
            gpus=min(row.gpus, self._cluster.gpus),
        )
        match self._says:
            case Says.JOBS:
                return structs.replace(
                    plain, resources=f"select={plain.gpus}:ncpus=1:ngpus=1,place=free"
                )
            case Says.TRAININGS:
                return structs.replace(
                    plain,
                    gpus=1,
                    gpus_max=min(GPUS_MAX, self._cluster.gpus),
                    training=self._training(row),
                )
            case Says.ADAPTIVE:
                return self._adaptive(plain, row)
            case Says.RIGID:
                return self._adaptive(plain, structs.replace(row, scaling=Scaling.RIGID))

    def _adaptive(self, plain: TraceJob, row: Row) -> TraceJob:
        application = self._applications[row.application]
        batch = batch_of(row, application)
        if row.scaling is Scaling.ADAPTIVE:
            asked = Adaptive(batch=application.batch, batch_max=application.batch_max)
        else:
            asked = Adaptive(batch=batch, batch_max=batch, scaling=row.scaling)
        least = min(application.device(kind).per_gpu_min for _, _, kind in self._cluster.kinds)
        most = min(GPUS_MAX, self._cluster.gpus, asked.batch_max // least)
        if row.scaling is Scaling.RIGID:
            return structs.replace(plain, adaptive=asked)
        return structs.replace(plain, gpus=1, gpus_max=most, adaptive=asked)

    def _training(self, row: Row) -> Training:
        """Return the size of a training at its own batch, on the slowest type of GPU."""
        application = self._applications[row.application]
        batch, (each, kind) = batch_of(row, application), self._slowest
        truth = TracedTraining(application, batch)
        rates: list[tuple[int, float]] = []
        for gpus in range(1, min(GPUS_MAX, self._cluster.gpus) + 1):
            places = tuple((kind, count) for count in spread(gpus, each))
            step = truth.step(places, None)
            if step is not None:
                rates.append((gpus, 1.0 / step.step_s))
        iterations = truth.work / batch
        return Training(iterations=iterations, rates=tuple(rates))

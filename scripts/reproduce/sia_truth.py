"""Ground truth of Sia's evaluation: measured step times and gradient statistics of its models.

The traces are those of the artifact of Jayaram Subramanya et al., "Sia: Heterogeneity-aware,
goodput-optimized ML-cluster scheduling", SOSP 2023: for each model and GPU type the time of a step
by placement and by batch per GPU, and for each global batch the gradient statistics of each epoch.
Progress is counted in samples at the efficiency of the smallest batch; the authors count steps.
"""

import csv
import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol

from msgspec import Struct

from gsched.errors import UsageError

#: Suffix of the files of each GPU type; of the A100 the traces with more batch sizes.
SUFFIXES: Final[Mapping[str, str]] = MappingProxyType(
    {"t4": "aws", "rtx2080ti": "rtx", "a100": "dgx-ext", "quadro6000": "quad", "v100": "azure"}
)
#: Epochs after which a training is over; Sia's evaluation.
EPOCHS: Final[Mapping[str, int]] = MappingProxyType(
    {"bert": 2, "cifar10": 100, "imagenet": 90, "deepspeech2": 80, "yolov3": 50, "ncf": 10}
)
#: From the start of an attempt to its first step, seconds; measured by Sia's authors.
RESTART_S: Final[Mapping[str, float]] = MappingProxyType(
    {"deepspeech2": 25.0, "cifar10": 50.0, "yolov3": 80.0, "bert": 120.0, "imagenet": 250.0}
)
#: Real steps take so many times longer than profiled ones; calibrated by Sia's authors.
SLOWDOWNS: Final[Mapping[str, float]] = MappingProxyType({"cifar10": 1.8, "ncf": 1.5})
#: Parameters of the models, about: ResNet18, DeepSpeech2, BERT-base, YOLOv3, ResNet50. Traces do
#: not tell; only policies need them that compute communication from them.
PARAMETERS: Final[Mapping[str, float]] = MappingProxyType(
    {"cifar10": 11.2e6, "deepspeech2": 52e6, "bert": 110e6, "yolov3": 62e6, "imagenet": 25.6e6}
)
OTHER_PARAMETERS: Final = 30e6
BYTES: Final = 4  # of a gradient
OTHER_RESTART_S: Final = 30.0
OTHER_SLOWDOWN: Final = 1.2
#: Deepspeech2 does not fit in the memory of this type beyond this batch, by the authors.
PER_GPU_MAX: Final[Mapping[tuple[str, str], int]] = MappingProxyType(
    {("deepspeech2", "rtx2080ti"): 57}
)
#: Steps across more nodes than were profiled take as long as across so many.
MAX_NODES: Final = 16
#: Of a model of which nothing is said; all epochs that were measured.
MAX_EPOCHS: Final = 1_000_000


class StepTimes(Struct, frozen=True):
    """Times of one step, seconds.

    Attributes:
        step_s: with the synchronisation of gradients.
        gradient_s: without: of one accumulation step.
    """

    step_s: float
    gradient_s: float


class _Curve(Struct, frozen=True):
    """Step and synchronisation times of one placement by batch per GPU, ascending."""

    sizes: tuple[int, ...]
    steps_s: tuple[float, ...]
    syncs_s: tuple[float, ...]

    def at(self, size: float) -> tuple[float, float]:
        """Return both times at a size within the measured ones, by linear interpolation."""
        right = min(max(1, bisect_left(self.sizes, size)), len(self.sizes) - 1)
        if right == 0:
            return self.steps_s[0], self.syncs_s[0]
        low, high = self.sizes[right - 1], self.sizes[right]
        part = (size - low) / (high - low)
        return (
            self.steps_s[right - 1] + part * (self.steps_s[right] - self.steps_s[right - 1]),
            self.syncs_s[right - 1] + part * (self.syncs_s[right] - self.syncs_s[right - 1]),
        )


class _Interpolator(Protocol):
    def __call__(self, points: Sequence[Sequence[float]]) -> Sequence[Sequence[float]]: ...


class Device:
    """One model on one GPU type.

    Attributes:
        per_gpu_min, per_gpu_max: smallest and largest batch per GPU that was measured at all.
        per_node: GPUs of a node.
    """

    def __init__(self, model: str, gpu_type: str, folder: Path) -> None:
        suffix = SUFFIXES[gpu_type]
        rows: dict[tuple[int, ...], dict[int, tuple[float, float]]] = defaultdict(dict)
        for line in _lines(folder / model / f"placements-{suffix}.csv"):
            counts = tuple(sorted(int(digit) for digit in line["placement"]))
            times = float(line["step_time"]), float(line["sync_time"])
            # of several rotations of a placement the first one counts
            rows[counts].setdefault(round(float(line["local_bsz"])), times)
        self._curves = {counts: _curve(by_size) for counts, by_size in rows.items()}
        self._others = [
            (
                int(float(line["num_nodes"])),
                int(float(line["num_replicas"])),
                round(float(line["local_bsz"])),
                float(line["step_time"]),
                float(line["sync_time"]),
            )
            for line in _lines(folder / model / f"scalability-{suffix}.csv")
        ]
        sizes = [size for curve in self._curves.values() for size in curve.sizes]
        self.per_gpu_min = min(sizes)
        self.per_gpu_max = PER_GPU_MAX.get((model, gpu_type), max(sizes))
        self.per_node = max(counts[0] for counts in self._curves if len(counts) == 1)
        self._most: dict[tuple[int, ...], int] = {}
        self._known: dict[tuple[tuple[int, ...], int], StepTimes | None] = {}

    def sizes(self, counts: Sequence[int]) -> tuple[int, ...]:
        """Return the batches per GPU that were measured on a placement, those that fit."""
        curve = self._curves.get(tuple(sorted(counts)))
        sizes = () if curve is None else curve.sizes
        return tuple(size for size in sizes if size <= self.per_gpu_max)

    def largest(self, counts: Sequence[int]) -> int:
        """Return the largest batch per GPU that was measured on a placement."""
        return self._largest(tuple(sorted(counts)))

    def _largest(self, counts: tuple[int, ...]) -> int:
        if counts not in self._most:
            self._most[counts] = min(self.per_gpu_max, self._found_largest(counts))
        return self._most[counts]

    def _found_largest(self, counts: tuple[int, ...]) -> int:
        curve = self._curves.get(counts)
        if curve is not None:
            return curve.sizes[-1]
        nodes, gpus = min(len(counts), MAX_NODES), sum(counts)
        sizes = {row[2] for row in self._others if row[0] >= nodes and row[1] >= gpus}
        # the outermost placements bound what can be interpolated between
        inside = (
            size for size in sorted(sizes, reverse=True) if self._is_inside(nodes, gpus, size)
        )
        return next(inside, 0)

    def _is_inside(self, nodes: int, gpus: int, size: int) -> bool:
        return not math.isnan(self._interpolator([(nodes, gpus, size)])[0][0])

    def times(self, counts: Sequence[int], per_gpu: int) -> StepTimes | None:
        """Return how long a step takes; None where nothing is known of it.

        Below the smallest batch that was measured a step takes as long as with that.

        Args:
            counts: GPUs on each node, in any order.
            per_gpu: batch on each GPU in this step.
        """
        key = (tuple(sorted(counts)), per_gpu)
        if key not in self._known:
            self._known[key] = self._times(*key)
        return self._known[key]

    def _times(self, counts: tuple[int, ...], per_gpu: int) -> StepTimes | None:
        if not counts or per_gpu < 1 or per_gpu > self._largest(counts):
            return None
        size = max(per_gpu, self.per_gpu_min)
        curve = self._curves.get(counts)
        if curve is not None:
            step_s, sync_s = curve.at(max(size, curve.sizes[0]))
        else:
            point = (min(len(counts), MAX_NODES), sum(counts), size)
            step_s, sync_s = (float(value) for value in self._interpolator([point])[0])
            if math.isnan(step_s):
                return None
        return StepTimes(step_s, max(step_s - sync_s, 0.0))

    @cached_property
    def _interpolator(self) -> _Interpolator:
        """Return the linear interpolation between all placements, by nodes, GPUs and batch."""
        from scipy.interpolate import LinearNDInterpolator

        means: dict[tuple[int, int, int], list[tuple[float, float]]] = defaultdict(list)
        for counts, curve in self._curves.items():
            for size, step_s, sync_s in zip(curve.sizes, curve.steps_s, curve.syncs_s, strict=True):
                means[len(counts), sum(counts), size].append((step_s, sync_s))
        for nodes, gpus, size, step_s, sync_s in self._others:
            means[nodes, gpus, size].append((step_s, sync_s))
        points = sorted(means)
        values = [
            tuple(sum(times) / len(means[point]) for times in zip(*means[point], strict=True))
            for point in points
        ]
        made: _Interpolator = LinearNDInterpolator(points, values)
        return made


class Epoch(Struct, frozen=True):
    """Gradient statistics of one epoch at one global batch, at the scale of the smallest batch."""

    sqr: float
    var: float


class Application:
    """One model: its training, whatever it runs on.

    Attributes:
        batch: the smallest global batch, at which progress is counted (M0).
        batch_max: the largest one.
        ends: progress at the end of each epoch, in samples at the efficiency of the smallest batch.
        restart_s: from the start of an attempt to its first step, seconds.
        gradient_bytes: that each GPU shares with the others in a step.
        slowdown: so many times longer than measured steps real ones take.
    """

    def __init__(self, name: str, folder: Path) -> None:
        tables: dict[int, list[dict[str, str]]] = {}
        for path in (folder / name).glob("validation-*.csv"):
            tables[int(path.stem.partition("-")[2])] = _lines(path)
        if not tables:
            raise UsageError(
                f"no traces of {name!r} in {folder}",
                hint="a folder for each model: shared/data/sia",
            )
        self.name = name
        self._folder = folder
        self.batches = tuple(sorted(tables))
        self.batch, self.batch_max = self.batches[0], self.batches[-1]
        epochs = min(EPOCHS.get(name, MAX_EPOCHS), *map(len, tables.values()))
        self.ends = tuple(
            self.batch * min(float(table[epoch]["progress"]) for table in tables.values())
            for epoch in range(epochs)
        )
        self._epochs = {
            batch: tuple(
                Epoch(float(line["grad_sqr"]), float(line["grad_var"])) for line in table[:epochs]
            )
            for batch, table in tables.items()
        }
        self.restart_s = RESTART_S.get(name, OTHER_RESTART_S)
        self.gradient_bytes = BYTES * PARAMETERS.get(name, OTHER_PARAMETERS)
        self.slowdown = SLOWDOWNS.get(name, OTHER_SLOWDOWN)
        self._devices: dict[str, Device] = {}

    def device(self, gpu_type: str) -> Device:
        """Return what is known of it on a GPU type."""
        if gpu_type not in self._devices:
            self._devices[gpu_type] = Device(self.name, gpu_type, self._folder)
        return self._devices[gpu_type]

    def epoch(self, done: float) -> int:
        """Return the epoch, from 0, after so much progress; the last one when it is over."""
        return min(bisect_right(self.ends, done), len(self.ends) - 1)

    def gradients(self, batch: float, epoch: int) -> Epoch:
        """Return the gradient statistics at a global batch, linear between measured batches."""
        right = bisect_left(self.batches, batch)
        if right == 0:
            return self._epochs[self.batch][epoch]
        if right == len(self.batches):
            return self._epochs[self.batch_max][epoch]
        low, high = self.batches[right - 1], self.batches[right]
        part = (batch - low) / (high - low)
        first, second = self._epochs[low][epoch], self._epochs[high][epoch]
        return Epoch(
            first.sqr + part * (second.sqr - first.sqr), first.var + part * (second.var - first.var)
        )

    def gain(self, batch: float, epoch: int) -> float:
        """Return the progress of one step at a global batch, in steps of the smallest batch."""
        found, scale = self.gradients(batch, epoch), batch / self.batch
        return (found.var + found.sqr) / (found.var / scale + found.sqr)


def _curve(by_size: Mapping[int, tuple[float, float]]) -> _Curve:
    sizes = sorted(by_size)
    return _Curve(
        tuple(sizes),
        tuple(by_size[size][0] for size in sizes),
        tuple(by_size[size][1] for size in sizes),
    )


def _lines(path: Path) -> list[dict[str, str]]:
    """Return the lines of a table.

    Raises:
        UsageError: there is none.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file", hint="the traces of Sia's artifact") from None

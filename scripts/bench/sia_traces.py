"""Throughput models fitted to the traces of Sia's artifact, and gradient noise measured there."""

import csv
from pathlib import Path

from msgspec import Struct

from gschedd.models.goodput.fitting import fit
from gschedd.models.goodput.records import GradientNoise, Observation, TypeModel

#: GPU types and the files that hold them.
FILES = {"a100": "dgx-ext", "rtx": "rtx", "t4": "aws"}


class Measured(Struct, frozen=True):
    """What the traces say of one application: a model for each GPU type, and noise by epoch."""

    models: tuple[TypeModel, ...]
    noises: tuple[GradientNoise, ...]


def measured(directory: Path, application: str, batch: int) -> Measured:
    """Return the fitted models of an application, and its noise at the batch for which it is tuned.

    Args:
        directory: ``traces`` of the artifact.
        application: name of its folder.
        batch: M0.

    Raises:
        OSError: a file cannot be read.
    """
    folder = directory / application
    models = []
    for gpu_type, name in FILES.items():
        rows = _rows(folder / f"placements-{name}.csv")
        seen = [_observation(row, gpu_type) for row in rows]
        largest = max(each.batch_per_gpu for each in seen)
        models.append(
            TypeModel(gpu_type=gpu_type, parameters=fit(seen).parameters, per_gpu_max=largest)
        )
    noises = tuple(
        GradientNoise(square_norm=float(row["grad_sqr"]), variance=float(row["grad_var"]))
        for row in _rows(folder / f"validation-{batch}.csv")
    )
    return Measured(tuple(models), noises)


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _observation(row: dict[str, str], gpu_type: str) -> Observation:
    placement, step_s = row["placement"], float(row["step_time"])
    return Observation(
        gpu_type=gpu_type,
        nodes=len(placement),
        gpus=sum(int(digit) for digit in placement),
        batch_per_gpu=int(row["local_bsz"]),
        gradient_s=max(step_s - float(row["sync_time"]), 0.0),
        step_s=step_s,
    )

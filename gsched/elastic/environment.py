"""What gsched says to a training in its environment; outside gsched it says nothing."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from gsched.elastic.errors import BadEnvironmentError


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Where a training runs.

    Attributes:
        job: number of the job; 0 outside gsched.
        attempt: which start of the job this is, from 1; 0 outside gsched.
        directory: where checkpoints are, the same on all nodes; None: nowhere.
        socket: where gnode listens; a leading ``@`` means an abstract name; None: nowhere.
        interval_s: between two checkpoints that nobody asked for, seconds; 0: none;
            None: chosen from what a checkpoint costs.
        copy_min_bytes: a state of this size is copied while the training goes on, when a move waits
            for it; None: `gsched.elastic.keeper.COPY_MIN_BYTES`.
        batch_per_gpu: samples of a micro-batch on each GPU, for an adaptive training; 0: the
            script's batch is divided among the ranks.
        accumulation: micro-batches of a step before the last one; only with ``batch_per_gpu``.
        profile_batches: measure steps of several batch sizes, of an adaptive training that is new.
    """

    job: int = 0
    attempt: int = 0
    directory: str | None = None
    socket: str | None = None
    interval_s: float | None = None
    copy_min_bytes: float | None = None
    batch_per_gpu: int = 0
    accumulation: int = 0
    profile_batches: bool = False

    @classmethod
    def read(cls, variables: Mapping[str, str] | None = None) -> "Environment":
        """Return what ``variables`` say; the default is this process's environment.

        Raises:
            BadEnvironmentError: a number that is none.
        """
        variables = os.environ if variables is None else variables
        interval_s = _number(variables, "GSCHED_CHECKPOINT_INTERVAL_S")
        return cls(
            job=int(_number(variables, "GSCHED_JOB_NUMBER") or 0),
            attempt=int(_number(variables, "GSCHED_ATTEMPT") or 0),
            directory=variables.get("GSCHED_CHECKPOINT_DIR") or None,
            socket=variables.get("GSCHED_ELASTIC_SOCKET") or None,
            interval_s=interval_s,
            copy_min_bytes=_number(variables, "GSCHED_COPY_MIN_BYTES"),
            batch_per_gpu=_count(variables, "GSCHED_BATCH_PER_GPU"),
            accumulation=_count(variables, "GSCHED_ACCUMULATION"),
            profile_batches=_count(variables, "GSCHED_PROFILE_BATCHES") > 0,
        )


def _count(variables: Mapping[str, str], name: str) -> int:
    """Return the whole number in a variable, 0 where it is not set or empty."""
    value = _number(variables, name) or 0.0
    if value != int(value):
        raise BadEnvironmentError(f"{name}={variables[name]!r}: should be a whole number from 0")
    return int(value)


def _number(variables: Mapping[str, str], name: str) -> float | None:
    """Return the value of a variable, None where it is not set or empty."""
    text = variables.get(name, "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise BadEnvironmentError(f"{name}={text!r}: should be a number from 0")
    return value

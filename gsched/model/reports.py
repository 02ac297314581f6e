"""What training jobs say of themselves: one record each for progress and checkpoints.

The line of a training, the message of its node, the head's state and the API's replies inherit
them, so that a number that is added here is in all of them. Bounds hold wherever one is decoded:
nothing that a training says is longer or larger.
"""

from functools import lru_cache
from typing import Annotated, TypeVar

from msgspec import Meta, Struct

from gsched.model.numbers import MAX_NUMBER, Count

_Kind = TypeVar("_Kind", bound=Struct)

Measured = Annotated[float, Meta(ge=0.0, le=1e300)]
Text = Annotated[str, Meta(max_length=4096)]
Sizes = Annotated[tuple[Annotated[int, Meta(ge=1, le=2**31)], ...], Meta(max_length=256)]


class Progress(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a training was when it last said so; work is in samples, 0 where it is not said.

    Attributes:
        at_s: seconds since the epoch.
        step, work_done: over all attempts.
        work_total: of the whole training.
        step_s, communication_s: means over the steps since the last report, seconds.
        gpus: ranks.
        batch_per_gpu, accumulation: of the steps since the last report (see `Batching`).
        batch: for which the script of an adaptive training is tuned (count); 0: it does not say.
        batch_max: the most samples that the script allows in a step (count); 0: any number.
        gradient_sqr, gradient_var: squared norm of the gradient, and its variance at the batch for
            which the training was tuned, both smoothed; the gradient noise scale follows from them.
    """

    at_s: Measured
    step: Count
    work_done: Measured = 0.0
    work_total: Measured = 0.0
    step_s: Measured = 0.0
    communication_s: Measured = 0.0
    gpus: Count = 0
    batch_per_gpu: Count = 0
    accumulation: Count = 0
    batch: Count = 0
    batch_max: Count = 0
    gradient_sqr: Measured = 0.0
    gradient_var: Measured = 0.0


class StepSample(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step of a training on one GPU, as it was profiled.

    Attributes:
        batch_per_gpu: samples of it (count).
        step_s: the whole step, seconds.
        gradient_s: of it without what ranks would wait for each other: all of it, seconds.
    """

    batch_per_gpu: Count
    step_s: Measured
    gradient_s: Measured


Samples = Annotated[tuple[StepSample, ...], Meta(max_length=64)]


class ProgressReport(Progress, frozen=True, kw_only=True, omit_defaults=True):
    """Progress as a training tells it: at the first step of an attempt, and then now and then.

    Attributes:
        restored_step: from which it went on; -1: from none.
        restore_s: reading the checkpoint took so long.
        gradient_bytes: that each rank has to share with the others in a step; 0: not known.
        world_sizes: numbers of ranks that it can run on, ascending; empty: it does not say.
        gradient_s: mean time of one of the step's passes without synchronisation, seconds; what the
            optimiser and the loader take is divided among them.
        profile: steps on one GPU, told once.
        batch_per_gpu_max: the most samples that fitted on a GPU; 0: no limit was found.
        ready: its script calls `elastic.ready`, so that its next attempt can be prepared.
    """

    at_s: Measured = 0.0
    restored_step: Annotated[int, Meta(ge=-1, le=MAX_NUMBER)] = -1
    restore_s: Measured = 0.0
    gradient_bytes: Measured = 0.0
    world_sizes: Sizes = ()
    gradient_s: Measured = 0.0
    profile: Samples = ()
    batch_per_gpu_max: Count = 0
    ready: bool = False


class Checkpoint(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A training's newest checkpoint; ``wall_s`` is what writing it took."""

    at_s: Measured
    step: Count
    path: str = ""
    size_bytes: Count = 0
    wall_s: Measured = 0.0


class CheckpointReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A checkpoint as a training tells of it when it is published.

    Attributes:
        request: number of the checkpoint request; 0: a checkpoint of the training's own accord.
        step: steps done over all attempts.
        work_done: over all attempts, in the training's own unit (samples).
        work_total: of the whole training, in that unit; 0: it does not say.
        path: of the checkpoint.
        wall_s: from the agreed step to the published manifest, seconds.
        waits: the training is paused until it is told to continue.
    """

    request: Count = 0
    step: Count = 0
    work_done: Measured = 0.0
    work_total: Measured = 0.0
    path: Text = ""
    size_bytes: Count = 0
    wall_s: Measured = 0.0
    waits: bool = False


def made_of(kind: type[_Kind], record: Struct, **others: object) -> _Kind:
    """Return a record with the fields that another one has, too, and with these ``others``."""
    fields = {name: getattr(record, name) for name in _shared_names(kind, type(record))}
    return kind(**(fields | others))


@lru_cache(256)
def _shared_names(kind: type[Struct], other: type[Struct]) -> tuple[str, ...]:
    return tuple(name for name in kind.__struct_fields__ if name in other.__struct_fields__)

"""The goodput of configurations and batches, vectorised; see `ThroughputParameters`.

Of each configuration `CANDIDATES` global batches are tried, evenly spaced on a logarithmic scale.
A batch that does not fit into memory is split into accumulation steps. All configurations of a job
are rows of one NumPy pass, and so are those of many jobs, in blocks that stay in the cache.

Source: Jayaram Subramanya et al., SOSP 2023, section 3.2, and Qiao et al., OSDI 2021, section 3.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gschedd.models.goodput.records import (
    BatchLimits,
    GradientNoise,
    ThroughputParameters,
    TypeModel,
)
from gschedd.plan.training import Goodputs

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
_Column: TypeAlias = Floats | float
_Three: TypeAlias = tuple[Floats, Floats, Floats]

#: Global batches that are tried on each configuration.
CANDIDATES: Final = 50
#: Rows of one block: few enough for its temporary arrays to stay in the cache, and so many that
#: calling NumPy costs little; from 256 to 2,048 the time differs by a sixth.
BLOCK_ROWS: Final = 512
_ARRAYS: Final = 6
#: Quotients of whole numbers are whole to this relative precision.
_WHOLE: Final = 1e-9
_STEPS: Final[Floats] = np.linspace(0.0, 1.0, CANDIDATES)
#: More than any batch, but finite: what fits into a memory of which nothing is known.
_ENDLESS: Final = 1e300


class _Model(Protocol):
    """What is evaluated: a `GoodputModel`, which calls this module. Hashable."""

    @property
    def limits(self) -> BatchLimits: ...
    @property
    def noise(self) -> GradientNoise: ...
    @property
    def replica_gpus(self) -> tuple[tuple[str, int], ...]: ...

    def on(self, gpu_type: str) -> TypeModel: ...
    def gpus_of_replica(self, gpu_type: str) -> int: ...


class Query(NamedTuple):
    """Configurations of one job on one GPU type, as for `GoodputModel.best`.

    Attributes:
        nodes, gpus: of each configuration, both of shape ``(C,)``.
    """

    model: _Model
    gpu_type: str
    nodes: Ints
    gpus: Ints


class PhaseTimes(NamedTuple):
    """Times of a step, seconds; all of one shape."""

    gradient_s: Floats
    sync_s: Floats
    step_s: Floats


def step_times(
    parameters: ThroughputParameters,
    *,
    nodes: ArrayLike,
    replicas: ArrayLike,
    per_gpu: ArrayLike,
    accumulation: ArrayLike = 0,
) -> PhaseTimes:
    """Return T_grad, T_sync and T_iter; arguments are broadcast against each other.

    Args:
        replicas: data-parallel copies of the model: GPUs, unless a copy takes several.
        per_gpu: samples of one micro-step on one replica.
        accumulation: additional accumulation steps.
    """
    per_gpu = np.asarray(per_gpu, dtype=np.float64)
    gradient_s = parameters.compute_s + parameters.compute_per_sample_s * per_gpu
    sync_s = sync_times(parameters, np.asarray(nodes), np.asarray(replicas))
    overlap = parameters.overlap
    joint_s = (gradient_s**overlap + sync_s**overlap) ** (1 / overlap)
    step_s = np.asarray(accumulation) * gradient_s + joint_s
    return PhaseTimes(*np.broadcast_arrays(gradient_s, sync_s, step_s))


def sync_times(parameters: ThroughputParameters, nodes: Ints, replicas: Ints) -> Floats:
    """Return T_sync, seconds: of nothing on one replica, on one node, or on several."""
    further = np.maximum(replicas - 2, 0)
    inside_s = parameters.node_sync_s + parameters.node_sync_per_replica_s * further
    between_s = parameters.network_sync_s + parameters.network_sync_per_replica_s * further
    return np.where(replicas > 1, np.where(nodes > 1, between_s, inside_s), 0.0)


def noise_scale(noise: GradientNoise, batch: float) -> float:
    """Return phi, samples; 0 where the noise is not known, infinite where there is nothing else."""
    variance, square_norm = _known(noise)
    return batch * variance / square_norm if square_norm > 0 else float("inf")


def efficiency(noise: GradientNoise, batch: float, global_batch: ArrayLike) -> Floats:
    """Return the statistical efficiency of global batches: progress per sample, 1 at M0.

    It is (phi + M0) / (phi + M), for M of at least M0.

    Args:
        batch: M0, samples.
        global_batch: M, samples; smaller ones than M0 count as M0.
    """
    variance, square_norm = _known(noise)
    larger = np.maximum(np.asarray(global_batch, dtype=np.float64), batch)
    return batch / (batch * variance + larger * square_norm)


def best_of_model(model: _Model, gpu_type: str, nodes: ArrayLike, gpus: ArrayLike) -> Goodputs:
    """Return the best batch of each configuration of one job on one GPU type."""
    nodes, gpus = np.asarray(nodes), np.asarray(gpus)
    columns = _columns(model, gpu_type)
    is_fixed = model.limits.fixed
    work = np.empty((_ARRAYS, len(gpus), 1 if is_fixed else CANDIDATES))
    return _best(nodes[:, None], gpus[:, None], columns, work, is_fixed=is_fixed)


def best_of_many(queries: Sequence[Query]) -> list[Goodputs]:
    """Return what `GoodputModel.best` returns for each query, in one pass over all of them."""
    if not queries:
        return []
    lengths = [len(query.gpus) for query in queries]
    nodes = np.concatenate([query.nodes for query in queries])[:, None]
    gpus = np.concatenate([query.gpus for query in queries])[:, None]
    table = np.array(_rows(queries))
    owner: Ints = np.repeat(np.arange(len(queries)), lengths)
    is_fixed = np.array([query.model.limits.fixed for query in queries])[owner]
    goodput, per_gpu, accumulation = np.empty(len(owner)), _whole(owner), _whole(owner)
    work = np.empty((_ARRAYS, BLOCK_ROWS, CANDIDATES))
    for fixed in (False, True):
        rows = np.flatnonzero(is_fixed == fixed)
        for start in range(0, len(rows), BLOCK_ROWS):
            block = rows[start : start + BLOCK_ROWS]
            columns = _Columns(*table[owner[block]].T[:, :, None])
            found = _best(nodes[block], gpus[block], columns, work, is_fixed=fixed)
            goodput[block], per_gpu[block], accumulation[block] = found
    ends = np.cumsum(lengths).tolist()
    return [
        Goodputs(goodput[start:end], per_gpu[start:end], accumulation[start:end])
        for start, end in zip([0, *ends], ends, strict=False)
    ]


class _Columns(NamedTuple):
    """What the rows of a pass have: a number for all of them, or arrays of shape ``(R, 1)``.

    Attributes:
        own_s, own_per_sample_s: T_grad of the type itself, seconds.
        gradient_s ... overlap: parameters of the type whose scaling is used.
        batch, batch_max: M0, and the largest global batch.
        per_gpu_min, per_gpu_max: of a replica.
        noise, square_norm: efficiency is batch / (noise + M * square_norm).
        replica_gpus: GPUs of a replica.
        borrows: whether the scaling is another type's.
    """

    own_s: _Column
    own_per_sample_s: _Column
    gradient_s: _Column
    gradient_per_sample_s: _Column
    node_sync_s: _Column
    node_sync_per_replica_s: _Column
    network_sync_s: _Column
    network_sync_per_replica_s: _Column
    overlap: _Column
    per_gpu_max: _Column
    replica_gpus: _Column
    borrows: _Column
    batch: _Column
    batch_max: _Column
    per_gpu_min: _Column
    noise: _Column
    square_norm: _Column


def _columns(model: _Model, gpu_type: str) -> _Columns:
    return _Columns(*_of_type(model, gpu_type), *_of_job(model))


def _rows(queries: Iterable[Query]) -> list[tuple[float, ...]]:
    """Return the columns of each query; those of one model on several types stand together."""
    rows: list[tuple[float, ...]] = []
    model: _Model | None = None
    of_job: tuple[float, ...] = ()
    for query in queries:
        if query.model is not model:
            model, of_job = query.model, _of_job(query.model)
        rows.append(_of_type(query.model, query.gpu_type) + of_job)
    return rows


def _of_type(model: _Model, gpu_type: str) -> tuple[float, ...]:
    """Return the columns that depend on the GPU type, the first ones."""
    found = model.on(gpu_type)
    own, scaling = found.parameters, found.scaling or found.parameters
    return (
        own.compute_s,
        own.compute_per_sample_s,
        scaling.compute_s,
        scaling.compute_per_sample_s,
        scaling.node_sync_s,
        scaling.node_sync_per_replica_s,
        scaling.network_sync_s,
        scaling.network_sync_per_replica_s,
        scaling.overlap,
        found.per_gpu_max or model.limits.per_gpu_max or _ENDLESS,
        model.gpus_of_replica(gpu_type) if model.replica_gpus else 1,
        found.scaling is not None,
    )


def _of_job(model: _Model) -> tuple[float, ...]:
    """Return the columns that are the same on each GPU type, the last ones."""
    limits = model.limits
    variance, square_norm = _known(model.noise)
    batch_max = limits.batch if limits.fixed else max(limits.batch, limits.batch_max)
    return (
        limits.batch,
        batch_max,
        max(1, limits.per_gpu_min),
        limits.batch * variance,
        square_norm,
    )


def _best(nodes: Ints, gpus: Ints, at: _Columns, work: Floats, *, is_fixed: bool) -> Goodputs:
    """Return the best candidate of each row.

    Temporary arrays are the cost of this function, so that each has a name and is written in place.

    Args:
        nodes, gpus: of each row, shape ``(R, 1)``.
        work: memory to work in, shape ``(_ARRAYS, at least R, CANDIDATES)``, or of one column if
            the global batch is fixed.
        is_fixed: of all rows. The batch then is M0, and where it cannot be split evenly some
            replicas have a sample less than others.
    """
    steps = _STEPS[:1] if is_fixed else _STEPS
    replicas = np.maximum(gpus // at.replica_gpus, 1.0)
    smallest = np.maximum(at.batch, at.per_gpu_min * replicas)
    runs = (replicas * at.replica_gpus == gpus) & (nodes >= 1) & (smallest <= at.batch_max)
    per_gpu, passes, samples, goodput, step_s, spare = work[:, : len(nodes), : len(steps)]

    share = per_gpu  # of a replica; rounded up below, but a whole number stays
    np.multiply(np.log(np.maximum(at.batch_max / smallest, 1.0)), steps, out=share)
    np.exp(share, out=share)
    share *= smallest / replicas * (1 - _WHOLE)
    np.divide(share, at.per_gpu_max, out=passes)
    np.ceil(passes, out=passes)
    alone = np.flatnonzero(replicas == 1)
    if len(alone):  # gradient noise is measured between passes where there is one replica
        passes[alone] = np.maximum(passes[alone], 1.0 + (share > at.batch)[alone])
    share /= passes
    np.ceil(share, out=per_gpu)
    np.multiply(replicas, passes, out=samples)
    if not is_fixed:
        np.divide(at.batch_max, samples, out=spare)
        np.minimum(per_gpu, np.floor(spare, out=spare), out=per_gpu)
    samples *= per_gpu
    if is_fixed:
        np.minimum(samples, at.batch, out=samples)

    passes -= 1.0
    accumulation = passes
    _step_s(_sync_s(nodes, replicas, at), per_gpu, accumulation, at, out=(step_s, goodput, spare))
    np.maximum(samples, at.batch, out=goodput)
    goodput *= at.square_norm
    goodput += at.noise
    goodput *= step_s
    np.divide(samples, goodput, out=goodput)
    is_short = per_gpu < at.per_gpu_min
    if is_short.any():
        goodput[is_short] = 0.0
    row, column = np.arange(len(goodput)), goodput.argmax(axis=1)
    best = (goodput[row, column, None] * at.batch * runs)[:, 0]
    possible = best > 0
    return Goodputs(
        goodput=best,
        batch_per_gpu=(per_gpu[row, column] * possible).astype(np.int64),
        accumulation=(accumulation[row, column] * possible).astype(np.int64),
    )


def _sync_s(nodes: Ints, replicas: Floats, at: _Columns) -> Floats:
    further = np.maximum(replicas - 2, 0.0)
    inside_s = at.node_sync_s + at.node_sync_per_replica_s * further
    between_s = at.network_sync_s + at.network_sync_per_replica_s * further
    return np.where(nodes > 1, between_s, inside_s) * (replicas > 1)


def _step_s(
    sync_s: Floats, per_gpu: Floats, accumulation: Floats, at: _Columns, out: _Three
) -> None:
    """Write T_iter, seconds, to the first array; scaled to the type where the scaling is borrowed.

    Powers are taken as exponentials of logarithms, in half the time.
    """
    step_s, gradient_s, spare = out
    np.multiply(per_gpu, at.gradient_per_sample_s, out=gradient_s)
    gradient_s += at.gradient_s
    np.log(gradient_s, out=step_s)
    step_s *= at.overlap
    np.exp(step_s, out=step_s)
    step_s += sync_s**at.overlap
    np.log(step_s, out=step_s)
    step_s /= at.overlap
    np.exp(step_s, out=step_s)
    step_s += np.multiply(accumulation, gradient_s, out=spare)
    if np.any(at.borrows):
        np.multiply(per_gpu, at.own_per_sample_s, out=spare)
        spare += at.own_s
        spare /= gradient_s
        step_s *= spare


def _known(noise: GradientNoise) -> tuple[float, float]:
    """Return variance and squared norm as parts of their sum; 0 and 1 where none is known."""
    variance, square_norm = max(0.0, noise.variance), max(0.0, noise.square_norm)
    both = variance + square_norm
    return (variance / both, square_norm / both) if both > 0 else (0.0, 1.0)


def _whole(like: Ints) -> Ints:
    return np.zeros(len(like), dtype=np.int64)

"""The throughput model fitted to observations: Levenberg and Marquardt's method on logarithms.

The loss is RMSE(log T_grad) + RMSE(log T_iter) + 1e-3 (overlap - 1)^2 + 1e-2 (b^2 / a^2), the last
summed over both kinds of synchronisation with constant a and slope b. Each root of a mean square
is replaced by its quadratic upper bound at the present parameters, so that a step is a problem of
least squares in the logarithms of the parameters; these keep times positive and alike in scale.

Source of the loss, the bounds and the rules: Qiao et al., OSDI 2021, section 4.1, and Jayaram
Subramanya et al., SOSP 2023. SciPy's L-BFGS-B finds the same parameters (a test compares them) in
three times the CPU time, and would have to be installed on each head.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from msgspec import structs

from gschedd.models.goodput.evaluation import Floats
from gschedd.models.goodput.records import (
    LEAST_S,
    OVERLAP_LEAST,
    OVERLAP_MOST,
    Observation,
    ThroughputParameters,
)

#: Steps of one fit; from the parameters of an earlier one a handful is enough.
MAX_STEPS: Final = 40
#: A step that lowers the loss by no more than this part of it is the last; a loss below
#: `SMALL_LOSS` counts as that, which is an error of some percent.
ENOUGH: Final = 1e-5
SMALL_LOSS: Final = 0.1
OVERLAP_PENALTY: Final = 1e-3
SLOPE_PENALTY: Final = 1e-2
#: Between nodes synchronisation costs at least so much more than inside one, until it was seen.
BETWEEN_LEAST: Final = 1.1

#: Columns of parameters, in the order of `ThroughputParameters`.
_COMPUTE, _PER_SAMPLE, _NODE, _NODE_SLOPE, _NETWORK, _NETWORK_SLOPE, _OVERLAP = range(7)
_SLOPES: Final = ((_NODE_SLOPE, _NODE), (_NETWORK_SLOPE, _NETWORK))
_LOWEST: Final[Floats] = np.log([LEAST_S] * 6 + [OVERLAP_LEAST])
_HIGHEST: Final[Floats] = np.log([1e6] * 6 + [OVERLAP_MOST])
#: Where the search for a slope begins, in parts of its constant: the penalty is small there.
_SLOPE_START: Final = 0.02
#: Below this an error is as good as none; keeps weights finite.
_ERROR_LEAST: Final = 1e-6
#: Longest change of a logarithm in one step.
_LONGEST: Final = 2.0
#: Damping at first, and its factors after steps that lower the loss and that do not.
_DAMPING: Final = 1e-2
_DAMPING_LEAST: Final = 1e-9
_DAMPING_FACTOR: Final = 5.0
_TRIES: Final = 8


class Fit(NamedTuple):
    """Parameters, and the loss that they have."""

    parameters: ThroughputParameters
    loss: float


def fit(observations: Sequence[Observation], previous: ThroughputParameters | None = None) -> Fit:
    """Return the parameters that explain what was observed on one GPU type.

    Terms that were never observed stay at their bounds: synchronisation without several replicas,
    its slope without more than two. Synchronisation between nodes then costs at least
    `BETWEEN_LEAST` times that inside one. With a single batch size half of computing counts as
    constant.

    Args:
        observations: of one type, at least one; their GPUs count as replicas.
        previous: where to start; None: at values estimated from the observations.
    """
    data = _data(observations)
    start, is_free = _start(data)
    if previous is not None:
        before = np.log(structs.astuple(previous))
        start = np.where(is_free & (before > _LOWEST), before, start)
        for slope, constant in _SLOPES:
            if is_free[slope] and before[slope] <= _LOWEST[slope]:
                start[slope] = start[constant] + np.log(_SLOPE_START)
    logs, loss = _minimised(data, np.clip(start, _LOWEST, _HIGHEST), np.flatnonzero(is_free))
    values = np.exp(logs)
    for inside, between in ((_NODE, _NETWORK), (_NODE_SLOPE, _NETWORK_SLOPE)):
        if not is_free[between] and is_free[inside]:
            values[between] = BETWEEN_LEAST * values[inside]
    names = ThroughputParameters.__struct_fields__
    return Fit(ThroughputParameters(**dict(zip(names, values.tolist(), strict=True))), loss)


class _Data(NamedTuple):
    """Observations as arrays of shape ``(N,)``.

    Attributes:
        further: replicas beyond the second.
        inside, between: 1 where several replicas synchronise in one node, or among nodes, else 0.
        log_gradient, log_step: logarithms of what was measured.
        gradient_weight: 1 / (number with a measured T_grad), 0 for the others.
        slopes: those of synchronisation that were observed, with their constants.
    """

    per_gpu: Floats
    accumulation: Floats
    further: Floats
    inside: Floats
    between: Floats
    log_gradient: Floats
    log_step: Floats
    gradient_weight: Floats
    slopes: tuple[tuple[int, int], ...]


def _data(observations: Sequence[Observation]) -> _Data:
    rows = [
        (seen.nodes, seen.gpus, seen.batch_per_gpu, seen.accumulation, seen.gradient_s, seen.step_s)
        for seen in observations
    ]
    nodes, replicas, per_gpu, accumulation, gradient_s, step_s = np.array(rows, dtype=float).T
    is_measured = gradient_s > 0
    further = np.maximum(replicas - 2, 0.0)
    has_slope = [further[(nodes > 1) == is_between].any() for is_between in (False, True)]
    return _Data(
        per_gpu=per_gpu,
        accumulation=accumulation,
        further=further,
        inside=1.0 * ((replicas > 1) & (nodes <= 1)),
        between=1.0 * ((replicas > 1) & (nodes > 1)),
        log_gradient=np.log(np.where(is_measured, gradient_s, 1.0)),
        log_step=np.log(step_s),
        gradient_weight=is_measured / max(1, int(is_measured.sum())),
        slopes=tuple(pair for pair, seen in zip(_SLOPES, has_slope, strict=True) if seen),
    )


def _start(data: _Data) -> tuple[Floats, Floats]:
    """Return logarithms of parameters near those sought, and which of them were observed."""
    step_s = np.exp(data.log_step)
    is_measured = data.gradient_weight > 0
    gradient_s = np.where(is_measured, np.exp(data.log_gradient), step_s / (data.accumulation + 1))
    line = np.stack([1.0 / gradient_s, data.per_gpu / gradient_s], axis=1)
    (constant, slope), *_ = np.linalg.lstsq(line, np.ones(len(step_s)), rcond=None)
    typical = float(np.median(gradient_s))
    start = np.exp(_LOWEST)
    is_free = np.zeros(7, dtype=bool)
    is_free[_COMPUTE] = np.ptp(data.per_gpu) > 0
    is_free[_PER_SAMPLE] = True
    if not is_free[_COMPUTE]:  # one batch does not tell the constant part, and half is nearest
        constant, slope = typical / 2, typical / 2 / data.per_gpu[0]
    start[_COMPUTE] = max(float(constant), 1e-3 * typical)
    start[_PER_SAMPLE] = max(float(slope), 1e-3 * typical / float(np.median(data.per_gpu)))
    further_s = step_s - (data.accumulation + 1) * gradient_s
    for mask, constant_at, slope_at in (
        (data.inside > 0, _NODE, _NODE_SLOPE),
        (data.between > 0, _NETWORK, _NETWORK_SLOPE),
    ):
        if not mask.any():
            continue
        is_free[[constant_at, _OVERLAP]] = True
        is_free[slope_at] = data.further[mask].any()
        start[constant_at] = max(float(np.median(further_s[mask])), 0.02 * typical)
        if is_free[slope_at]:
            start[slope_at] = _SLOPE_START * start[constant_at]
    if is_free[_OVERLAP]:
        start[_OVERLAP] = 1.5
    return np.log(start), is_free


class _Point(NamedTuple):
    """The model at some parameters.

    Attributes:
        of_gradient, of_sync: T_grad and T_sync as parts of the time that they take together.
        gradient_error, step_error: residuals of the logarithms, the former weighted by 0 or 1.
        gradient_rmse, step_rmse: roots of their mean squares.
    """

    values: Floats
    gradient_s: Floats
    joint_s: Floats
    step_s: Floats
    of_gradient: Floats
    of_sync: Floats
    gradient_error: Floats
    step_error: Floats
    gradient_rmse: float
    step_rmse: float
    loss: float


def _point(data: _Data, logs: Floats) -> _Point:
    values = np.exp(logs)
    compute_s, per_sample_s, node_s, node_slope_s, network_s, network_slope_s, overlap = values
    gradient_s = compute_s + per_sample_s * data.per_gpu
    sync_s = data.inside * (node_s + node_slope_s * data.further)
    sync_s += data.between * (network_s + network_slope_s * data.further)
    joint_s = (gradient_s**overlap + sync_s**overlap) ** (1 / overlap)
    step_s = data.accumulation * gradient_s + joint_s
    gradient_error = (np.log(gradient_s) - data.log_gradient) * (data.gradient_weight > 0)
    step_error = np.log(step_s) - data.log_step
    gradient_rmse = float(np.sqrt(data.gradient_weight @ gradient_error**2))
    step_rmse = float(np.sqrt(step_error @ step_error / len(step_error)))
    penalty = OVERLAP_PENALTY * (overlap - 1) ** 2
    penalty += SLOPE_PENALTY * sum((values[slope] / values[at]) ** 2 for slope, at in data.slopes)
    return _Point(
        values=values,
        gradient_s=gradient_s,
        joint_s=joint_s,
        step_s=step_s,
        of_gradient=gradient_s / joint_s,
        of_sync=sync_s / joint_s,
        gradient_error=gradient_error,
        step_error=step_error,
        gradient_rmse=gradient_rmse,
        step_rmse=step_rmse,
        loss=gradient_rmse + step_rmse + float(penalty),
    )


def _bound(data: _Data, at: _Point) -> tuple[Floats, Floats]:
    """Return matrix and gradient of the quadratic upper bound of the loss, in logarithms."""
    overlap = at.values[_OVERLAP]
    ones = np.ones_like(at.gradient_s)
    by_gradient = (data.accumulation + at.of_gradient ** (overlap - 1)) / at.step_s
    by_sync = at.of_sync ** (overlap - 1) / at.step_s
    inside, between = by_sync * data.inside, by_sync * data.between
    sync_log = np.log(np.maximum(at.of_sync, 1e-300))
    by_overlap = at.of_gradient**overlap * np.log(at.of_gradient) + at.of_sync**overlap * sync_log
    by_overlap *= at.joint_s / at.step_s / overlap
    columns = (
        *(by_gradient, by_gradient * data.per_gpu, inside, inside * data.further),
        *(between, between * data.further, by_overlap),
    )
    steps = np.stack(columns, axis=1) * at.values
    gradients = np.stack([ones, data.per_gpu], axis=1) * at.values[:2] / at.gradient_s[:, None]

    weighted = steps.T / (len(ones) * max(at.step_rmse, _ERROR_LEAST))
    matrix, slope = weighted @ steps, weighted @ at.step_error
    weighted = gradients.T * (data.gradient_weight / max(at.gradient_rmse, _ERROR_LEAST))
    matrix[:2, :2] += weighted @ gradients
    slope[:2] += weighted @ at.gradient_error
    for steeper, constant in data.slopes:
        square = 2 * SLOPE_PENALTY * (at.values[steeper] / at.values[constant]) ** 2
        sign = np.zeros(7)
        sign[steeper], sign[constant] = 1.0, -1.0
        matrix += square * np.outer(sign, sign)
        slope += square * sign
    matrix[_OVERLAP, _OVERLAP] += 2 * OVERLAP_PENALTY * overlap**2
    slope[_OVERLAP] += 2 * OVERLAP_PENALTY * overlap * (overlap - 1)
    return matrix, slope


def _minimised(data: _Data, start: Floats, free: Floats) -> tuple[Floats, float]:
    """Return the logarithms of the parameters that have the least loss nearby, and that loss."""
    logs, at, damping = start, _point(data, start), _DAMPING
    for _ in range(MAX_STEPS):
        matrix, slope = _bound(data, at)
        outwards = ((logs <= _LOWEST) & (slope > 0)) | ((logs >= _HIGHEST) & (slope < 0))
        inner = free[~outwards[free]]
        enough = ENOUGH * max(at.loss, SMALL_LOSS)
        for _ in range(_TRIES if len(inner) else 0):
            step = _step(matrix[np.ix_(inner, inner)], slope[inner], damping)
            there = logs.copy()
            there[inner] += step
            there = np.clip(there, _LOWEST, _HIGHEST)
            then = _point(data, there)
            if then.loss < at.loss:
                break
            damping *= _DAMPING_FACTOR
        else:
            break
        gain, logs, at = at.loss - then.loss, there, then
        damping = max(damping / _DAMPING_FACTOR, _DAMPING_LEAST)
        if gain <= enough:
            break
    return logs, at.loss


def _step(matrix: Floats, slope: Floats, damping: float) -> Floats:
    diagonal = np.diag(matrix)
    damped = matrix + np.diag(damping * diagonal + 1e-12 * (1.0 + diagonal.max()))
    return np.clip(-np.linalg.solve(damped, slope), -_LONGEST, _LONGEST)

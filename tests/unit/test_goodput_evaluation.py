"""The goodput of configurations: the equations, a slow reference, and the limits of batches."""

import math
import pickle
import subprocess
import sys

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from numpy.typing import NDArray

from gschedd.models.goodput.evaluation import (
    CANDIDATES,
    Query,
    best_of_many,
    efficiency,
    noise_scale,
    step_times,
)
from gschedd.models.goodput.model import UNKNOWN, GoodputModel, times_as_fast
from gschedd.models.goodput.records import (
    BatchLimits,
    GradientNoise,
    ThroughputParameters,
    TypeModel,
)
from gschedd.plan.training import Goodput, Goodputs

#: The examples of a night take longer than a unit test usually may.
pytestmark = pytest.mark.timeout(300)

PARAMETERS = ThroughputParameters(
    compute_s=0.01,
    compute_per_sample_s=0.002,
    node_sync_s=0.02,
    node_sync_per_replica_s=0.001,
    network_sync_s=0.05,
    network_sync_per_replica_s=0.004,
    overlap=2.0,
)
NOISE = GradientNoise(square_norm=0.5, variance=2.0)
LIMITS = BatchLimits(batch=128, batch_max=4096, per_gpu_min=4, per_gpu_max=200)
NODES = np.array([1, 1, 1, 2, 3, 8])
GPUS = np.array([1, 2, 4, 8, 12, 32])

seconds = st.floats(1e-8, 2.0)
parameters = st.builds(
    ThroughputParameters,
    compute_s=seconds,
    compute_per_sample_s=seconds,
    node_sync_s=seconds,
    node_sync_per_replica_s=seconds,
    network_sync_s=seconds,
    network_sync_per_replica_s=seconds,
    overlap=st.just(1.0) | st.floats(1.0, 10.0),
)
moments = st.just(0.0) | st.floats(1e-9, 1e9)
noises = st.builds(GradientNoise, square_norm=moments, variance=moments)


def best(
    parameters: ThroughputParameters,
    noise: GradientNoise,
    limits: BatchLimits,
    nodes: NDArray[np.int64],
    gpus: NDArray[np.int64],
) -> Goodputs:
    """Return the best batch of each configuration where one GPU holds a replica."""
    models = (TypeModel(gpu_type="", parameters=parameters),)
    return GoodputModel(limits=limits, noise=noise, models=models).best("", nodes, gpus)


@st.composite
def limits(draw: st.DrawFn) -> BatchLimits:
    batch = draw(st.integers(1, 3000))
    least = draw(st.integers(1, 64))
    return BatchLimits(
        batch=batch,
        batch_max=draw(st.integers(batch, 100 * batch)),
        per_gpu_min=least,
        per_gpu_max=draw(st.just(0) | st.integers(least, 1000)),
        fixed=draw(st.booleans()),
    )


@st.composite
def configurations(draw: st.DrawFn) -> tuple[int, int]:
    nodes = draw(st.integers(1, 16))
    return nodes, nodes * draw(st.integers(1, 8))


@st.composite
def models(draw: st.DrawFn) -> GoodputModel:
    found = draw(st.lists(st.tuples(parameters, st.none() | parameters), max_size=2))
    return GoodputModel(
        limits=draw(limits()),
        noise=draw(noises),
        models=tuple(
            TypeModel(
                gpu_type="ab"[number],
                parameters=own,
                scaling=scaling,
                per_gpu_max=draw(st.just(0) | st.integers(64, 500)),
            )
            for number, (own, scaling) in enumerate(found)
        ),
        replica_gpus=draw(st.just(()) | st.just((("a", 2), ("b", 3)))),
    )


def slow_gradient_s(own: ThroughputParameters, per_gpu: int) -> float:
    return own.compute_s + own.compute_per_sample_s * per_gpu


def slow_step_s(own: ThroughputParameters, nodes: int, gpus: int, per_gpu: int, more: int) -> float:
    """T_iter of the source, one number at a time."""
    gradient_s = slow_gradient_s(own, per_gpu)
    if gpus == 1:
        sync_s = 0.0
    elif nodes == 1:
        sync_s = own.node_sync_s + own.node_sync_per_replica_s * (gpus - 2)
    else:
        sync_s = own.network_sync_s + own.network_sync_per_replica_s * (gpus - 2)
    longer = max(gradient_s, sync_s)
    joint = (gradient_s / longer) ** own.overlap + (sync_s / longer) ** own.overlap
    return float(more * gradient_s + longer * joint ** (1 / own.overlap))


def slow_efficiency(noise: GradientNoise, batch: int, samples: float) -> float:
    if noise.square_norm == 0 and noise.variance > 0:
        return 1.0
    phi = batch * noise.variance / noise.square_norm if noise.square_norm > 0 else 0.0
    return (phi + batch) / (phi + max(samples, batch))


def slow_best(model: GoodputModel, gpu_type: str, nodes: int, gpus: int) -> float:
    """Try each candidate after the other, as the source describes it."""
    of_type = {found.gpu_type: found for found in model.models}
    size = dict(model.replica_gpus).get(gpu_type, 1)
    assumed = [
        (slow_gradient_s(own.parameters, model.limits.batch), own.gpu_type) for own in model.models
    ]
    unknown = TypeModel(gpu_type="", parameters=ThroughputParameters(compute_per_sample_s=1.0))
    chosen = of_type.get(gpu_type) or (of_type[min(assumed)[1]] if assumed else unknown)
    faster = UNKNOWN if assumed and gpu_type not in of_type else 1.0
    if gpus % size:
        return 0.0
    replicas = gpus // size
    batch, most = model.limits.batch, model.limits.batch_max
    if model.limits.fixed:
        most = batch
    least = max(batch, model.limits.per_gpu_min * replicas)
    if least > most:
        return 0.0
    memory = chosen.per_gpu_max or model.limits.per_gpu_max or 10**9
    goodputs = [0.0]
    for number in range(CANDIDATES):
        share = least * (most / least) ** (number / (CANDIDATES - 1)) / replicas
        passes = max(1, math.ceil(share / memory - 1e-7))
        if replicas == 1 and share > batch + 1e-6:
            passes = max(2, passes)
        per_gpu = math.ceil(share / passes - 1e-7)
        samples = replicas * per_gpu * passes
        if model.limits.fixed:
            samples = batch
        elif samples > most:
            per_gpu = most // (replicas * passes)
            samples = replicas * per_gpu * passes
        if per_gpu < model.limits.per_gpu_min:
            continue
        if chosen.scaling is None:
            step_s = slow_step_s(chosen.parameters, nodes, replicas, per_gpu, passes - 1)
        else:
            step_s = slow_step_s(chosen.scaling, nodes, replicas, per_gpu, passes - 1)
            step_s *= slow_gradient_s(chosen.parameters, per_gpu)
            step_s /= slow_gradient_s(chosen.scaling, per_gpu)
        goodputs.append(faster * samples / step_s * slow_efficiency(model.noise, batch, samples))
    return max(goodputs)


def test_the_equations_by_hand() -> None:
    """One GPU, four of a node and eight of two nodes, with numbers from a pocket calculator."""
    found = step_times(
        PARAMETERS,
        nodes=[1, 1, 2],
        replicas=[1, 4, 8],
        per_gpu=[20, 20, 45],
        accumulation=[1, 0, 2],
    )

    assert found.gradient_s == pytest.approx([0.05, 0.05, 0.1])
    assert found.sync_s == pytest.approx([0.0, 0.022, 0.074])
    joint = [0.05, math.hypot(0.05, 0.022), math.hypot(0.1, 0.074)]
    assert found.step_s == pytest.approx([0.05 + joint[0], joint[1], 0.2 + joint[2]])


def test_efficiency_by_hand() -> None:
    """A noise scale of 512 at M0 = 128: (512 + 128) / (512 + M)."""
    assert noise_scale(NOISE, 128) == 512
    assert efficiency(NOISE, 128, [128, 768, 4608]) == pytest.approx([1.0, 0.5, 0.125])


def test_unknown_noise_counts_as_none_and_keeps_the_batch() -> None:
    """Larger batches bring nothing that is known, so the smallest that is allowed is taken."""
    found = best(PARAMETERS, GradientNoise(), LIMITS, NODES, GPUS)

    global_batch = GPUS * found.batch_per_gpu * (found.accumulation + 1)
    assert list(efficiency(GradientNoise(), 128, [128, 256])) == [1.0, 0.5]
    assert list(global_batch) == [128, 128, 128, 128, 132, 128]


def test_noise_without_a_mean_makes_every_batch_efficient() -> None:
    only_noise = GradientNoise(variance=1.0)

    assert noise_scale(only_noise, 128) == math.inf
    assert list(efficiency(only_noise, 128, [128, 10**6])) == [1.0, 1.0]


@given(models(), st.sampled_from("abc"), configurations())
def test_best_is_that_of_the_slow_reference(
    model: GoodputModel, gpu_type: str, configuration: tuple[int, int]
) -> None:
    nodes, gpus = configuration

    found = model.best(gpu_type, np.array([nodes]), np.array([gpus]))

    assert found.goodput[0] == pytest.approx(slow_best(model, gpu_type, nodes, gpus), rel=1e-6)


@given(st.lists(st.tuples(models(), st.sampled_from("abc")), max_size=3), st.data())
def test_many_jobs_in_one_pass_are_as_each_alone(
    jobs: list[tuple[GoodputModel, str]], data: st.DataObject
) -> None:
    queries = []
    for model, gpu_type in jobs:
        pairs = data.draw(st.lists(configurations(), max_size=3))
        nodes, gpus = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        queries.append(Query(model, gpu_type, nodes, gpus))

    found = best_of_many(queries)

    for (model, gpu_type), query, together in zip(jobs, queries, found, strict=True):
        alone = model.best(gpu_type, query.nodes, query.gpus)
        assert together.goodput == pytest.approx(alone.goodput, rel=1e-12)
        assert list(together.batch_per_gpu) == list(alone.batch_per_gpu)
        assert list(together.accumulation) == list(alone.accumulation)


@given(models(), st.sampled_from("abc"), configurations())
def test_batches_keep_their_limits(
    model: GoodputModel, gpu_type: str, configuration: tuple[int, int]
) -> None:
    nodes, gpus = configuration

    found = model.best(gpu_type, np.array([nodes]), np.array([gpus]))

    per_gpu, accumulation = int(found.batch_per_gpu[0]), int(found.accumulation[0])
    if found.goodput[0] == 0:
        assert (per_gpu, accumulation) == (0, 0)
        return
    of_type = {known.gpu_type: known.per_gpu_max for known in model.models}
    memory = of_type.get(gpu_type, 0) or model.limits.per_gpu_max or math.inf
    replicas = gpus // model.gpus_of_replica(gpu_type)
    samples = replicas * per_gpu * (accumulation + 1)
    if gpu_type in of_type or not of_type:
        assert per_gpu <= memory
    assert per_gpu >= model.limits.per_gpu_min
    assert accumulation >= 0
    if model.limits.fixed:
        assert samples - replicas * (accumulation + 1) < model.limits.batch <= samples
    else:
        assert samples <= model.limits.batch_max
        if replicas == 1 and samples > model.limits.batch:
            assert accumulation > 0


@given(parameters, configurations(), st.integers(1, 500), st.integers(0, 5))
def test_steps_take_longer_with_more_samples_passes_and_replicas(
    own: ThroughputParameters, configuration: tuple[int, int], per_gpu: int, more: int
) -> None:
    nodes, gpus = configuration
    gpus += 1

    def step_s(gpus: int, per_gpu: int, more: int) -> float:
        found = step_times(own, nodes=nodes, replicas=gpus, per_gpu=per_gpu, accumulation=more)
        return float(found.step_s)

    now_s = step_s(gpus, per_gpu, more) * (1 - 1e-12)
    assert now_s <= step_s(gpus, per_gpu + 1, more)
    assert now_s <= step_s(gpus, per_gpu, more + 1)
    assert now_s <= step_s(gpus + 1, per_gpu, more)


@given(parameters, limits(), configurations(), st.floats(0.1, 10), st.floats(1, 10))
def test_noisier_gradients_never_lower_goodput(
    own: ThroughputParameters,
    allowed: BatchLimits,
    configuration: tuple[int, int],
    variance: float,
    factor: float,
) -> None:
    nodes, gpus = (np.array([count]) for count in configuration)

    def goodput(variance: float) -> float:
        noise = GradientNoise(square_norm=1.0, variance=variance)
        return float(best(own, noise, allowed, nodes, gpus).goodput[0])

    assert goodput(variance * factor) >= goodput(variance) * (1 - 1e-12)


def test_scaling_is_perfect_until_synchronisation_was_seen() -> None:
    """With nothing but noise, and computing in proportion to samples: N GPUs, N times the speed."""
    own = ThroughputParameters(compute_per_sample_s=0.001)
    allowed = BatchLimits(batch=128, batch_max=128 * 64)

    found = best(own, GradientNoise(variance=1.0), allowed, NODES, GPUS)

    assert found.goodput == pytest.approx(1000 * GPUS, rel=1e-3)


def test_a_fixed_batch_is_divided_and_gives_throughput() -> None:
    """128 samples on 12 GPUs: eleven on the slowest of them."""
    allowed = structs.replace(LIMITS, fixed=True)

    found = best(PARAMETERS, NOISE, allowed, NODES, GPUS)

    assert list(found.batch_per_gpu) == [128, 64, 32, 16, 11, 4]
    assert found.goodput[4] == pytest.approx(128 / slow_step_s(PARAMETERS, 3, 12, 11, 0))
    assert best(PARAMETERS, NOISE, allowed, [5], [33]).goodput[0] == 0  # less than 4 on each


def test_one_replica_grows_its_batch_by_passes_only() -> None:
    """Memory for all 4096 samples, and every batch efficient: noise is measured between passes."""
    allowed = BatchLimits(batch=128, batch_max=4096)

    found = best(PARAMETERS, GradientNoise(variance=1.0), allowed, [1, 1], [1, 2])

    assert list(found.batch_per_gpu) == [2048, 2048]
    assert list(found.accumulation) == [1, 0]


def test_memory_splits_batches_into_passes() -> None:
    allowed = BatchLimits(batch=128, batch_max=128, per_gpu_max=50)

    found = best(PARAMETERS, NOISE, allowed, [1, 1], [1, 4])

    assert list(found.batch_per_gpu) == [42, 32]  # 3 x 43 would be more than 128
    assert list(found.accumulation) == [2, 0]


def test_replicas_of_several_gpus_scale_in_their_number() -> None:
    """A replica of four GPUs: 8 are two replicas, 6 cannot be used."""
    model = GoodputModel(
        limits=BatchLimits(batch=8, batch_max=64),
        noise=NOISE,
        models=(TypeModel(gpu_type="a", parameters=PARAMETERS),),
        replica_gpus=(("a", 4),),
    )

    found = model.best("a", [1, 1, 1], [4, 6, 8])

    plain = structs.replace(model, replica_gpus=())
    assert list(found.goodput[[0, 2]]) == list(plain.best("a", [1, 1], [1, 2]).goodput)
    assert list(found.batch_per_gpu[1:2]) == [0]
    assert found.goodput[1] == 0


def test_a_type_borrows_the_scaling_of_another() -> None:
    """xput_A(N) = xput_A(1) / xput_B(1) * xput_B(N), at one batch per GPU."""
    slow = ThroughputParameters(compute_s=0.04, compute_per_sample_s=0.01)
    limits = BatchLimits(batch=256, batch_max=256, per_gpu_max=32)
    model = GoodputModel(
        limits=limits,
        models=(
            TypeModel(gpu_type="a", parameters=slow, scaling=PARAMETERS),
            TypeModel(gpu_type="b", parameters=PARAMETERS),
        ),
    )

    a, b = (model.best(name, [1, 2], [1, 8]).goodput for name in "ab")

    assert a[1] == pytest.approx(a[0] / b[0] * b[1])
    assert a[0] == pytest.approx(256 / (8 * (0.04 + 0.01 * 32)))


def test_an_unknown_type_counts_as_faster_than_the_fastest_known_one_and_a_guess_before() -> None:
    slow = structs.replace(PARAMETERS, compute_per_sample_s=0.01)
    model = GoodputModel(
        limits=LIMITS,
        noise=NOISE,
        models=(
            TypeModel(gpu_type="a", parameters=PARAMETERS),
            TypeModel(gpu_type="b", parameters=slow),
        ),
    )

    assert model.types() == {"a", "b"}
    fastest = model.best("a", NODES, GPUS)
    assert model.best("c", NODES, GPUS).goodput == pytest.approx(UNKNOWN * fastest.goodput)
    guess = times_as_fast(model.on("b"), "c", 4.0)
    guessed = structs.replace(model, guesses=(guess,))
    slowest = model.best("b", NODES, GPUS)
    assert guessed.best("c", NODES, GPUS).goodput == pytest.approx(4.0 * slowest.goodput)
    assert guessed.types() == {"a", "b"}


def test_a_model_is_a_value() -> None:
    """Alike models are equal and hash alike; they survive a pickle and JSON."""

    def made() -> GoodputModel:
        return GoodputModel(
            limits=LIMITS,
            noise=NOISE,
            models=(TypeModel(gpu_type="a", parameters=PARAMETERS, scaling=PARAMETERS),),
        )

    model: Goodput = made()
    assert model == made()
    assert hash(model) == hash(made())
    assert pickle.loads(pickle.dumps(model)) == model
    assert msgspec.json.decode(msgspec.json.encode(model), type=GoodputModel) == model
    assert model != GoodputModel(limits=LIMITS, noise=NOISE)


def test_records_and_models_are_imported_without_numpy() -> None:
    """The head starts without it."""
    names = "import sys, gschedd.models.goodput.model as m; sys.exit('numpy' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", names], check=False).returncode == 0

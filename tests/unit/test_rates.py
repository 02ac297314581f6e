"""What nodes can do, as the head compares them: by cores and clocks, known or not."""

import pytest

from gsched.model.resources import Gpu, Inventory, Load
from gsched.model.states import NodeState
from gschedd.core.state.learning import USUAL_CPU_CLOCK_MHZ, USUAL_GPU_RATE_MHZ, load_of, rates_of
from gschedd.core.state.records import Node


def inventory(**fields: object) -> Inventory:
    return Inventory(**{"cpus": 8, "memory_bytes": 1 << 30, **fields})  # type: ignore[arg-type] # any of its fields


def test_nodes_that_tell_nothing_are_equal_core_by_core() -> None:
    rates = rates_of(inventory(gpus=(Gpu(index=0), Gpu(index=1))))

    assert (rates.cores, rates.core_rate, rates.cpu_rate) == (8, 1, 8)
    assert (rates.gpus, rates.gpu_rate, rates.all_gpus_rate) == (2, 1, 2)


def test_clocks_compare_nodes() -> None:
    """Twice the clock is twice the rate, for cores and for GPUs."""
    slow = rates_of(inventory(cpu_clock_mhz=1500.0, gpus=(Gpu(index=0, rate_mhz=60_000.0),)))
    fast = rates_of(inventory(cpu_clock_mhz=3000.0, gpus=(Gpu(index=0, rate_mhz=120_000.0),)))

    assert fast.cpu_rate / slow.cpu_rate == pytest.approx(2)
    assert fast.all_gpus_rate / slow.all_gpus_rate == pytest.approx(2)


@pytest.mark.parametrize("clock_mhz", [1000.0, 2596.0, 5700.0])
def test_a_known_clock_is_no_giant_beside_an_unknown_one(clock_mhz: float) -> None:
    """What is unknown counts as usual, so that processors on sale are within a few times it."""
    known, unknown = rates_of(inventory(cpu_clock_mhz=clock_mhz)), rates_of(inventory())

    assert known.core_rate / unknown.core_rate == clock_mhz / USUAL_CPU_CLOCK_MHZ
    assert 1 / 3 < known.cpu_rate / unknown.cpu_rate < 3


@pytest.mark.parametrize("rate_mhz", [40 * 1590.0, 108 * 1410.0, 132 * 1980.0])
def test_a_known_gpu_is_no_giant_beside_an_unknown_one(rate_mhz: float) -> None:
    """T4, A100 and H200; on one node the mean counts."""
    mixed = rates_of(inventory(gpus=(Gpu(index=0, rate_mhz=rate_mhz), Gpu(index=1))))

    assert mixed.all_gpus_rate == pytest.approx(rate_mhz / USUAL_GPU_RATE_MHZ + 1)
    assert 1 / 3 < mixed.gpu_rate < 3


@pytest.mark.parametrize("nonsense", [-1.0, float("nan")])
def test_nonsense_counts_as_unknown(nonsense: float) -> None:
    """It came over a socket."""
    told = inventory(
        cpu_clock_mhz=nonsense,
        cpu_capacity_cores=nonsense,
        gpus=(Gpu(index=0, rate_mhz=nonsense),),
    )

    assert rates_of(told) == rates_of(inventory(gpus=(Gpu(index=0),)))


def test_a_confined_nodes_load_is_in_cores_that_it_has() -> None:
    """Eight CPUs are offered that are half a core: 60 % of it is 0.3."""
    known = Node(name="n1", state=NodeState.UP, inventory=inventory(cpu_capacity_cores=0.5))
    known.load, known.heartbeat_s = Load(cpu_percent=60), 7.0

    load = load_of(known, 0)

    assert load is not None
    assert load.rates.cores == 0.5
    assert load.used.cpu_cores == pytest.approx(0.3)

"""Nodes and GPUs on the page: states of GPUs, and charts."""

import pytest

from gsched.model.resources import Load
from gsched.protocol.samples import GpuUseSample, NodeUseSample
from gschedd.monitor.page.charts import LETTER, WIDTH, chart
from gschedd.monitor.page.nodes import GPU_STATES, gpu_line


@pytest.mark.parametrize(
    ("jobs", "unused", "outside", "state"),
    [
        ((), 0, 0, "free"),
        ((7,), 0, 0, "busy"),
        ((7,), 1, 0, "held, idle"),
        ((), 0, 1, "outside"),
    ],
)
def test_a_gpu_is_in_the_list_of_its_state(
    jobs: tuple[int, ...], unused: int, outside: int, state: str
) -> None:
    gpu = GpuUseSample(index=0, type="a40", jobs=jobs, unused=bool(unused), outside=bool(outside))
    node = NodeUseSample(name="n1", state="up", gpus=(gpu,), load=Load(gpu_util_percent=(0.0,)))

    assert gpu_line(node, 0, gpu, {7: "alice"}).state == state
    assert state in GPU_STATES


@pytest.mark.parametrize("unit", ["%", "GiB", "cores of this node"])
def test_the_texts_of_a_chart_are_inside_it(unit: str) -> None:
    points = [(60.0 * at, 16.0) for at in range(60)]
    drawn = chart("CPU", points, since_s=0.0, until_s=3600.0, period_s=60.0, unit=unit)

    assert all(LETTER * len(text) < drawn.left for _, text in drawn.scale)
    assert drawn.times
    assert all(drawn.left <= place <= WIDTH - 3 * LETTER for place, _ in drawn.times)
    assert all(float(drawn.lines[0].split(",")[0]) >= drawn.left for _ in drawn.lines)

"""Two jobs from submission to their end on one GPU that is shared by interception."""

import sys
from pathlib import Path

import pytest

from gsched.client import new_job
from tests.support.builds import give_share_library
from tests.support.cluster import Cluster, wait_until
from tests.support.gpu_device import JOB, MIB, Device
from tests.support.gpu_fixtures import fake_driver, library_cache, needs_compiler

__all__ = ["fake_driver", "library_cache"]
pytestmark = [needs_compiler, pytest.mark.xdist_group("gpushare"), pytest.mark.timeout(180)]

LAUNCHES = 8
LAUNCHES_S = LAUNCHES * 0.4
STEPS = """\
cuda.start()
cuda.total()
cuda.alloc('plain', 65 << 20)[0]
cuda.alloc('plain', 64 << 20)[0]
cuda.launch(100, count=5)
cuda.synchronize()
"""


def test_jobs_of_both_classes_get_their_limit_and_launch(
    cluster: Cluster, fake_driver: Path, library_cache: Path, tmp_path: Path
) -> None:
    """Each sees a device of 64 MiB and not a byte more, and all launches of both arrive."""
    device = Device(tmp_path / "device")
    (tmp_path / "steps").write_text(STEPS)
    cluster.cuda_driver = str(fake_driver)
    cluster.share_runtimes["n1"] = "interception"
    give_share_library(library_cache, cluster.node_dir("n1"))
    cluster.start_head()
    cluster.start_node("n1", cpus=4, gpus=1)
    script = (
        f"#!/bin/sh\nexport GSCHED_FAKE_STATE={device.path}\n"
        f"{sys.executable} {JOB} < {tmp_path / 'steps'}\n"
    )
    numbers = []
    for share_class in ("high", "low"):
        job = new_job(
            name=share_class,
            workdir=str(cluster.jobs),
            script=script,
            resources=(f"gpu_share=40%:64mb:{share_class}",),
        )
        (result,) = cluster.head.submit([job]).results
        assert result.error is None, result.error
        numbers.append(str(result.id))
    wait_until(
        lambda: {row.state for row in cluster.head.jobs(numbers).jobs} == {"done"},
        timeout_s=90,
        what="the end of both jobs",
    )

    outputs = {path.name: path.read_text() for path in cluster.jobs.glob("*.o*")}
    assert len(outputs) == 2, list(cluster.jobs.iterdir())
    for text in outputs.values():
        assert text.splitlines()[1:] == ["0", f"[0, {64 * MIB}]", "2", "0", "0", "0"], text
    assert len(device.log()) == 10
    assert len({ran.pid for ran in device.log()}) == 2


def test_a_job_on_a_shared_gpu_is_charged_with_its_time_on_it(
    cluster: Cluster, fake_driver: Path, library_cache: Path, tmp_path: Path
) -> None:
    """There is no NVML that names processes: the token daemon tells how long it held the token."""
    device = Device(tmp_path / "device")
    cluster.cuda_driver = str(fake_driver)
    cluster.share_runtimes["n1"] = "interception"
    give_share_library(library_cache, cluster.node_dir("n1"))
    cluster.start_head()
    cluster.start_node("n1", cpus=4, gpus=1, sample_s=0.3)
    work = "cuda.launch(400000)\ncuda.synchronize()\n"
    (tmp_path / "steps").write_text("cuda.start()\n" + LAUNCHES * work)
    job = new_job(
        name="shares",
        workdir=str(cluster.jobs),
        script=(
            f"#!/bin/sh\nexport GSCHED_FAKE_STATE={device.path}\n"
            f"{sys.executable} {JOB} < {tmp_path / 'steps'}\n"
        ),
        resources=("gpu_share=40%:64mb:low",),
    )
    (result,) = cluster.head.submit([job]).results
    assert result.error is None, result.error
    number = str(result.id)

    def percent() -> float:
        (row,) = cluster.head.jobs([number]).jobs
        return row.live.gpu_percent if row.live is not None else 0.0

    assert wait_until(lambda: percent() > 5 and percent(), what="the live use of its GPU") <= 100
    wait_until(
        lambda: cluster.head.jobs([number]).jobs[0].state == "done", timeout_s=60, what="its end"
    )
    (attempt,) = cluster.head.job(number).attempts
    assert attempt.usage is not None
    assert attempt.started_s is not None
    assert attempt.ended_s is not None
    used_s = attempt.usage.gpu_util_mean_percent / 100 * (attempt.ended_s - attempt.started_s)
    assert used_s > LAUNCHES_S / 2  # it also starts and ends, which takes long on a busy machine
    assert attempt.usage.gpu_util_mean_percent <= 100

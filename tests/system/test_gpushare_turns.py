"""Jobs that do not leave a shared GPU to others in time: seen, demoted or killed, with a reason."""

import sys
from functools import partial
from pathlib import Path

import pytest

from gnode.gpushare import ShareClass
from gsched.client import new_job
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import run_command
from tests.support.gpu_device import JOB, Device, Job, SharedGpu
from tests.support.gpu_device import wait_until as until
from tests.support.gpu_fixtures import fake_driver, library_cache, needs_compiler, shared_gpu
from tests.system.test_gpushare_priority import Make, gpu_counters, is_waiting, of

__all__ = ["fake_driver", "library_cache", "shared_gpu"]
pytestmark = [needs_compiler, pytest.mark.timeout(180)]

HIGH, LOW = ShareClass.HIGH, ShareClass.LOW
#: Kernels that last longer than a drain may.
SLOW = "[cuda.launch(700_000) or cuda.synchronize() for _ in range({times})]"


def test_a_low_job_with_long_kernels_is_demoted_and_waits_for_the_end_of_the_high_one(
    shared_gpu: Make,
) -> None:
    gpu = shared_gpu(drain_max_s=0.1, overlaps_max=2)
    high, low = gpu.run(gpu.task("1", HIGH)), gpu.run(gpu.task("2", LOW))
    assert high.call("cuda.launch(10) or cuda.synchronize()") == 0
    low.send(SLOW.format(times=3))
    for count in (1, 2):
        until(partial(has_launched, gpu, low, count))
        assert high.call("cuda.launch(10)") == 0
    until(lambda: gpu.metrics()["groups"]["2.1"]["demoted"])
    assert high.call("cuda.synchronize()") == 0
    until(lambda: is_waiting(gpu, "2.1"))
    assert gpu_counters(gpu)["demotions"] == 1
    assert len(of(gpu.device.log(), low)) == 2

    high.close()

    assert low.receive() == [0, 0, 0]
    assert len(of(gpu.device.log(), low)) == 3


def has_launched(gpu: SharedGpu, job: Job, count: int) -> bool:
    return len(of(gpu.device.log(), job)) == count


def start(cluster: Cluster, fake_driver: Path, library_cache: Path, **settings: object) -> Device:
    """Start a head and a node with one shared GPU; return the device."""
    folder = cluster.node_dir("n1") / "gpushare"
    folder.mkdir(parents=True)
    (folder / "lib").symlink_to(library_cache)
    cluster.cuda_driver = str(fake_driver)
    cluster.share_runtimes["n1"] = "interception"
    cluster.share_settings = {"drain_max_s": 0.1, "overlaps_max": 2, **settings}
    cluster.start_head()
    cluster.start_node("n1", cpus=4, gpus=1, sample_s=0.3)
    return Device(cluster.directory / "device")


def submit(cluster: Cluster, device: Device, share_class: str, steps: str) -> str:
    """Submit a job that evaluates expressions on the GPU; return its number."""
    path = cluster.directory / share_class
    path.write_text(steps)
    script = (
        f"#!/bin/sh\nexport GSCHED_FAKE_STATE={device.path}\nexec {sys.executable} {JOB} < {path}\n"
    )
    job = new_job(
        name=share_class,
        workdir=str(cluster.jobs),
        script=script,
        resources=(f"gpu_share=40%:64mb:{share_class}",),
    )
    (result,) = cluster.head.submit([job]).results
    assert result.error is None, result.error
    return str(result.id)


BUSY = "cuda.start()\nlen(cuda.train(1000, 3, 60, 60.0))\n"
LONG = f"cuda.start()\n{SLOW.format(times=60)}\n"


def details(cluster: Cluster, command: str, *arguments: str) -> str:
    ran = run_command(command, *arguments, head=cluster.socket)
    assert ran.status == 0, ran.stderr
    return " ".join(ran.stdout.split())


def test_gnodes_and_gstat_show_turns_and_who_is_demoted(
    cluster: Cluster, fake_driver: Path, library_cache: Path
) -> None:
    device = start(cluster, fake_driver, library_cache)
    submit(cluster, device, "high", BUSY)
    low = submit(cluster, device, "low", LONG)

    wait_until(
        lambda: "demoted: it did not leave the GPU" in details(cluster, "gstat", "-f", low),
        timeout_s=60,
        what="the demotion of the low job",
    )

    shown = details(cluster, "gnodes", "n1")
    assert "gpu_sharing = interception" in shown, shown
    assert "switches" in shown
    assert "2 overlaps" in shown
    assert f"jobs {low}: too slow to leave the GPU" in shown
    assert "2 overlaps with the next job" in details(cluster, "gstat", "-f", low)


def test_a_site_can_have_such_a_job_killed_and_its_outcome_says_why(
    cluster: Cluster, fake_driver: Path, library_cache: Path
) -> None:
    device = start(cluster, fake_driver, library_cache, overlap_action="kill")
    high = submit(cluster, device, "high", BUSY)
    low = submit(cluster, device, "low", LONG)

    row = wait_until(
        lambda: next((r for r in cluster.head.jobs([low]).jobs if r.state == "done"), None),
        timeout_s=60,
        what="the end of the low job",
    )

    assert row is not None
    assert row.outcome is not None
    assert row.outcome.signal == 9 or row.outcome.exit_code == 137
    words = "has not left the shared GPU to others within 0.1 s, 2 times in a row"
    assert words in row.outcome.message
    assert words in details(cluster, "gstat", "-f", low)
    assert cluster.head.job(int(high)).row.state == "running"

"""Logs on a full disk: lines are lost, and nothing else."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gsched.client import new_job
from tests.support.cluster import Cluster, wait_until
from tests.support.disks import fill, small_disk


@pytest.fixture
def full_disk(cluster: Cluster) -> Iterator[Path]:
    with small_disk(cluster.directory / "logs", "64k") as disk:
        yield disk


@pytest.mark.root
@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a small file system")
def test_b2_head_node_and_launcher_work_on_while_no_log_can_be_written(
    cluster: Cluster, full_disk: Path
) -> None:
    node_dir = cluster.node_dir("n1")
    node_dir.mkdir(parents=True)
    for directory, name in (
        (cluster.directory, "head.log"),
        (cluster.directory, "n1.log"),
        (node_dir, "launcher.log"),
    ):
        (full_disk / name).touch()
        (directory / name).symlink_to(full_disk / name)
    fill(full_disk)
    cluster.start_head()
    cluster.start_node("n1", cpus=2)

    script = "#!/bin/sh\ntouch up; while [ ! -e go ]; do sleep 0.05; done; exit 7\n"
    asked = new_job(name="logless", workdir=str(cluster.jobs), script=script)
    job = cluster.head.submit([asked]).results[0].id
    wait_until((cluster.jobs / "up").exists)
    cluster.kill_node("n1")
    cluster.start_node("n1", cpus=2)  # which has much to complain of
    cluster.kill_head()
    cluster.start_head()
    (cluster.jobs / "go").touch()
    outcome = cluster.head.wait([job], timeout_s=40.0)[0].row.outcome

    assert outcome is not None
    assert outcome.exit_code == 7
    assert [path.stat().st_size for path in full_disk.glob("*.log")] == [0, 0, 0]

"""Jobs whose directories are made after their submission, as clients do that name them so."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, wait_until
from tests.support.commands import Ran, command_environment, run_command

#: What clients do, with the time between submission and directory.
SUBMIT_FIRST = 'j=$(sbatch --parsable -o D/%j/out --wrap true); sleep {}; mkdir -p D/$j; echo "$j"'


@pytest.fixture
def site(cluster: Cluster) -> Cluster:
    """Return a cluster of one node; its starts wait for a directory for a second."""
    cluster.start_head()
    cluster.start_node("n1", cpus=4, directory_wait_s=1.0)
    return cluster


def run(cluster: Cluster, name: str, *arguments: str) -> Ran:
    ran = run_command(name, *arguments, head=cluster.socket, cwd=cluster.jobs)
    assert ran.status == 0, ran.stderr
    return ran


def row(cluster: Cluster, job: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(run(cluster, "gstat", "--json", job).stdout)["jobs"][0]
    return found


def test_the_directory_may_be_made_after_the_submission(site: Cluster, tmp_path: Path) -> None:
    """At once, after a moment, and after the node has given it up."""
    shims = tmp_path / "shims"
    run(site, "gsched", "install-shims", str(shims), "--personality", "slurm")
    path = f"{shims}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = command_environment(site.socket, PATH=path)
    jobs = []
    for pause_s in ("0", "0", "0.3", "4"):
        line = SUBMIT_FIRST.format(pause_s)
        ran = subprocess.run(
            ["bash", "-c", line],
            env=environment,
            cwd=site.jobs,
            capture_output=True,
            text=True,
            check=True,
        )
        jobs.append(ran.stdout.strip())

    stories = site.head.wait([int(job) for job in jobs], timeout_s=60)

    assert [story.row.outcome and story.row.outcome.exit_code for story in stories] == [0] * 4
    assert all((site.jobs / "D" / job / "out").exists() for job in jobs)
    assert [story.row.attempt for story in stories[:3]] == [1] * 3
    assert stories[3].row.attempt > 1


def test_a_job_that_waits_for_its_directory_says_so_everywhere(site: Cluster) -> None:
    output = "$GSCHED_JOB_NUMBER/out"
    job = run(site, "gsub", "-o", output, "--", "true").stdout.strip().partition(".")[0]
    wait_until(lambda: row(site, job)["state"] == "waiting", what="the job to wait")
    late = site.jobs / job
    words = f"directory {late} does not exist on n1; next try at "

    found = row(site, job)
    assert str(found["reason"]).startswith(words)
    assert str(found["next_try_iso"])[:4].isdigit()
    assert words in " ".join(run(site, "gstat", "--why", job).stdout.split())
    assert f"galter -o FILE -e FILE {job}" in run(site, "gstat", "--why", job).stdout
    full = run(site, "gstat", "-f", job).stdout
    assert f"requeued: directory {late} does not exist on n1" in full

    late.mkdir()
    (story,) = site.head.wait([int(job)], timeout_s=30)
    assert story.row.outcome is not None
    assert story.row.outcome.exit_code == 0
    assert site.head.nodes().nodes[0].faults == 0


def test_a_missing_directory_is_not_reported_where_no_file_can_be_created(site: Cluster) -> None:
    job = run(site, "gsub", "-o", "/proc/x", "--", "true").stdout.strip().partition(".")[0]
    (story,) = site.head.wait([int(job)], timeout_s=30)
    assert story.row.outcome is not None
    full = run(site, "gstat", "-f", job).stdout
    assert "cannot write /proc/x: no file can be created in /proc: choose -o" in full
    assert "does not exist" not in full

"""An element of an array of sbatch is a job with a small number of its own, for every command."""

import os
import sys
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, wait_until
from tests.support.commands import Ran, run_command
from tests.support.slurm_commands import slurm


@pytest.fixture
def bench(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Return a cluster of one node, for commands of this process."""
    monkeypatch.setenv("GSCHED_HEAD", str(cluster.socket))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.chdir(cluster.jobs)
    cluster.start_head()
    cluster.start_node("n1", cpus=2)
    return cluster


def run(cluster: Cluster, name: str, *arguments: str) -> Ran:
    return run_command(name, *arguments, head=cluster.socket, cwd=cluster.jobs)


def shown(name: str, *arguments: str) -> list[str]:
    ran = slurm(name, *arguments)
    assert ran.status == 0, ran.stderr
    return ran.stdout.split()


def test_an_element_has_a_small_number_from_its_start_to_the_accounting(bench: Cluster) -> None:
    script = 'echo $SLURM_JOB_ID $SLURM_ARRAY_JOB_ID $SLURM_ARRAY_TASK_ID > "told.$PBS_ARRAYID"'
    work = f"{script}; while [ ! -e over ]; do sleep 0.1; done"
    (array,) = shown("sbatch", "--parsable", "-a", "4,7-9", "-o", "out.%j", "--wrap", work)
    first = int(array) + 1
    (after,) = shown("sbatch", "--parsable", "-H", "--wrap", "true")
    assert int(after) == first + 4
    told = [Path("told.4"), Path("told.7")]
    wait_until(
        lambda: all(each.exists() and each.read_text() for each in told), what="two elements"
    )
    assert Path("told.4").read_text().split() == [str(first), array, "4"]
    assert Path("told.7").read_text().split() == [str(first + 1), array, "7"]
    assert Path(f"out.{first}").exists()

    assert shown("squeue", "-h", "-j", str(first), "-o", "%i %A %F %K") == [
        *(f"{array}_4", str(first), array, "4")
    ]
    assert shown("squeue", "-h", "-j", str(first + 3), "-o", "%i %t") == [f"{array}_9", "PD"]
    assert f"JobId={first} ArrayJobId={array} ArrayTaskId=4" in " ".join(
        shown("scontrol", "show", "job", str(first))
    )
    assert f"{array}[4]" in run(bench, "gstat", str(first)).stdout
    bench.kill_head()
    bench.start_head()
    waits = ["--parsable", "-d", f"afterok:{first}", "--wrap", "true"]
    (follower,) = shown("sbatch", *waits)
    assert int(follower) == first + 5, "no number is given twice"
    assert shown("scancel", str(first + 3)) == []
    assert shown("squeue", "-h", "-j", str(first + 3), "-o", "%t") == []

    Path("over").touch()
    assert run(bench, "gwait", follower).status == 0
    assert run(bench, "gwait", f"{array}[]").status != 0, "an element was cancelled"
    for name, number, state in (("4", first, "COMPLETED"), ("9", first + 3, "CANCELLED")):
        seen = shown("sacct", "-XnP", "-j", str(number), "-o", "JobID,JobIDRaw,State")
        assert seen == [f"{array}_{name}|{number}|{state}"]
    assert f"{array}[7]" in run(bench, "ghist", str(first + 1)).stdout
    ran = run(bench, "gdel", str(first + 1))
    assert "has already finished" in ran.stderr
    (late,) = shown("sbatch", "--parsable", "-d", f"afterok:{first + 1}", "--wrap", "true")
    assert run(bench, "gwait", late).status == 0
    ran = slurm("sbatch", "-d", f"afterok:{first + 50}", "--wrap", "true")
    assert ran.status == 1
    assert run(bench, "gstat", str(first + 50)).status != 0

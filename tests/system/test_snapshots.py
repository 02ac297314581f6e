"""What the policies of a real head see: saved by an operator, and replayed with gsim."""

import json
import stat
import subprocess
import sys

from tests.support.cluster import Cluster, wait_until
from tests.support.commands import Ran, command_environment, run_command


def doctor(cluster: Cluster, *arguments: str) -> Ran:
    return run_command("gsched", "doctor", *arguments, head=cluster.socket, cwd=cluster.jobs)


def gsim(cluster: Cluster, *arguments: str) -> Ran:
    done = subprocess.run(
        [sys.executable, "-m", "gschedd.sim.cli", *arguments],
        env=command_environment(),
        cwd=cluster.jobs,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return Ran(status=done.returncode, stdout=done.stdout, stderr=done.stderr)


def test_a_saved_snapshot_is_planned_on_again(cluster: Cluster) -> None:
    """A job that waits for GPUs waits for the same reason, and another policy can be asked."""
    cluster.start_head()
    cluster.start_node("n1", cpus=4, gpus=1)
    asked = ("-l", "nodes=1:ppn=1:gpus=2", "--", "true")
    refused = run_command("gsub", *asked, head=cluster.socket, cwd=cluster.jobs)
    assert refused.status != 0, "no node has two"
    for seconds in ("60", "1"):
        run_command(
            "gsub", "-l", "nodes=1:ppn=1:gpus=1", "--", "sleep", seconds,
            head=cluster.socket, cwd=cluster.jobs,
        )  # fmt: skip
    wait_until(lambda: cluster.head.jobs([1]).jobs[0].state == "running", what="job 1 to run")
    file = cluster.jobs / "snapshot.json"

    saved = doctor(cluster, "--save-snapshot", "snapshot.json")
    again = doctor(cluster, "--save-snapshot", "snapshot.json")
    told = gsim(cluster, "plan", "snapshot.json")
    other = gsim(cluster, "plan", "snapshot.json", "--policy", "fifo", "--json")

    assert saved.status == 0, saved.stderr
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert again.status == 73, "a file that is there is not overwritten"
    assert told.status == 0, told.stderr
    assert "1 nodes, 1 waiting jobs, 1 running" in told.stdout
    assert "wait     job 2: needs 1 CPU, 1 GPU" in told.stdout
    plan = json.loads(other.stdout)
    assert plan["policy"] == "fifo"
    assert [wait["job"] for wait in plan["waits"]] == [2]
    assert plan["starts"] == []

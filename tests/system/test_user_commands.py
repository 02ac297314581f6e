"""gsub, gstat, gwait and gpeek against a real head and node."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.cluster import Cluster, wait_until
from tests.support.commands import Ran, command_environment, run_command
from tests.support.warm import Lender


@pytest.fixture
def running(warm: Lender) -> Cluster:
    return warm(cpus=2, gpus=1)


def run(cluster: Cluster, name: str, *arguments: str) -> Ran:
    return run_command(name, *arguments, head=cluster.socket, cwd=cluster.jobs)


def test_waiting_for_a_command_gives_its_code_and_its_last_words(running: Cluster) -> None:
    ran = run(running, "gsub", "--wait", "--", "sh", "-c", "echo boom >&2; exit 3")

    job = ran.stdout.strip()
    assert (ran.status, ran.stdout) == (3, f"{job}\n")
    assert job.endswith(".test")
    assert f"job {job}: failed with exit code 3 on n1" in ran.stderr
    assert "  | boom" in ran.stderr


def test_watching_loses_nothing_of_the_output_when_the_job_ends(running: Cluster) -> None:
    """The last line comes with the end of the job, after the last look at its node."""
    ran = run(
        running, "gsub", "--watch", "--", "sh", "-c", "echo first; sleep 1; echo last; exit 5"
    )

    job, *lines = ran.stdout.splitlines()
    assert (ran.status, lines) == (5, ["first", "last"])
    assert job.endswith(".test")


def test_a_script_gets_its_directives_its_arguments_and_its_origin(running: Cluster) -> None:
    script = running.jobs / "job.sh"
    script.write_text(
        "#!/bin/sh\n#PBS -N named -j oe -o result\n#GSUB -v A=1\n"
        'echo "$PBS_JOBNAME|$A|$PBS_O_WORKDIR|$1|$2"\npwd\n'
    )
    ran = run(running, "gsub", "--wait", "-F", "x 'y z'", "job.sh")

    assert (ran.status, ran.stderr) == (0, "")
    assert (running.jobs / "result").read_text() == (
        f"named|1|{running.jobs}|x|y z\n{running.jobs}\n"
    )


def test_the_output_of_an_array_is_that_of_its_elements(running: Cluster) -> None:
    ran = run(running, "gsub", "--wait", "-t", "1-2", "--", "echo", "here")
    assert ran.status == 0
    number = ran.stdout.partition("[")[0]

    whole = run(running, "gpeek", f"{number}[]")

    assert whole.status != 0
    assert "is an array: each of its elements has its own output" in whole.stderr, whole
    assert run(running, "gpeek", f"{number}[2]").stdout == "here\n"


def test_a_running_jobs_output_and_story_can_be_read(running: Cluster, tmp_path: Path) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    submitted = run(running, "gsub", "--", "sh", "-c", f"echo here; cat {go}")
    job = submitted.stdout.strip()
    wait_until(lambda: run(running, "gpeek", job).stdout == "here\n", what="the job's output")
    running_row = json.loads(run(running, "gstat", "--json", "-s", "R").stdout)["jobs"][0]
    follower = subprocess.Popen(
        [sys.executable, "-m", "gsched.cli.commands.gpeek", "-f", job],
        env=command_environment(running.socket),
        stdout=subprocess.PIPE,
    )
    go.write_text("there\n")
    output, _ = follower.communicate(timeout=60)
    story = run(running, "gstat", "-f", job).stdout

    assert (output, follower.returncode) == (b"here\nthere\n", 0)
    assert (running_row["id"], running_row["nodes"]) == (int(job.partition(".")[0]), ["n1"])
    assert "exit_status = 0" in story
    assert "Attempt 1: ended" in story
    assert run(running, "gwait", job).status == 0


def test_what_no_node_could_hold_is_refused_with_the_largest(running: Cluster) -> None:
    ran = run(running, "gsub", "-l", "nodes=1:ppn=9", "--", "true")

    assert (ran.status, ran.stdout) == (2, "")
    assert "9 CPUs" in ran.stderr
    assert "n1 with 2 CPUs" in ran.stderr


def test_waiting_outlives_the_head(cluster: Cluster, tmp_path: Path) -> None:
    cluster.start_head()
    cluster.start_node("n1", cpus=2, gpus=1)
    go = tmp_path / "go"
    os.mkfifo(go)
    job = run(cluster, "gsub", "--", "sh", "-c", f"cat {go}; exit 4").stdout.strip()
    wait_until(lambda: cluster.head.job(job).row.state == "running", what="the job's start")
    waiter = subprocess.Popen(
        [sys.executable, "-m", "gsched.cli.commands.gwait", "-q", job],
        env=command_environment(cluster.socket),
    )
    seen: list[int] = []

    def waits() -> bool:
        """Say whether the same connection was open three times: its short questions are over."""
        open_fds = [each.fd for each in psutil.Process(waiter.pid).net_connections(kind="unix")]
        seen[:] = [*seen, *open_fds] if open_fds else []
        return len(seen) >= 3

    wait_until(waits, what="gwait to wait")
    cluster.kill_head()
    cluster.start_head()
    cluster.wait_for_node("n1")
    go.write_text("")

    assert waiter.wait(60) == 4

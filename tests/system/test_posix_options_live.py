"""Options of qsub, with real jobs: what a job is, where it starts, and where its output goes."""

import os
import pwd
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from tests.support.cluster import ROOT, Cluster, wait_until
from tests.support.commands import Ran, run_command
from tests.support.processes import PATIENCE_S

SCRIPT = """\
#ODD -N odd
echo "out A=$A B=$B SECRET=$SECRET name=$PBS_JOBNAME queue=$PBS_QUEUE shell=$0"
echo err >&2
"""


@pytest.fixture
def running(cluster: Cluster) -> Cluster:
    cluster.queues = '[[queue]]\nname = "batch"\n[[queue]]\nname = "long"\n'
    cluster.start_head()
    cluster.start_node("n1", cpus=4)
    (cluster.jobs / "job.sh").write_text(SCRIPT)
    return cluster


def gsub(cluster: Cluster, *arguments: str) -> Ran:
    ran = run_command("gsub", *arguments, head=cluster.socket, cwd=cluster.jobs)
    assert ran.status == 0, ran.stderr
    return ran


def test_each_option_of_qsub_shows_in_the_job_that_runs(
    running: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "exported")
    jobs = running.jobs
    name = f"kept-{uuid.uuid4().hex}"
    soon = time.strftime("%Y%m%d%H%M.%S", time.localtime(time.time() + 4))

    def read(path: str) -> str:
        return (jobs / path).read_text()

    gsub(running, "-o", "out", "-e", "err", "-v", "A=1,B=x y", "-A", "lab", "-p", "-5", "job.sh")
    gsub(running, "-joe", "-N", "joined", "-r", "n", "-q", "long", "job.sh")
    gsub(running, "-V", "-C", "#ODD", "-S", "/bin/bash", "job.sh")
    assert gsub(running, "-z", "-h", "-u", pwd.getpwuid(os.getuid()).pw_name, "job.sh").stdout == ""
    gsub(running, "-a", soon, "-N", "later", "job.sh")
    gsub(running, "-k", "oe", "-N", name, "job.sh")
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    kept = [home / f"{name}.{letter}6" for letter in "oe"]
    assert running.head.job(4).row.state == "held"
    assert run_command("grls", "4", head=running.socket).status == 0

    try:
        wait_until(lambda: not running.head.jobs().jobs, what="all jobs to end")
        assert [path.read_text()[:3] for path in kept] == ["out", "err"]
    finally:
        for path in kept:
            path.unlink(missing_ok=True)

    assert (read("out"), read("err")) == (
        "out A=1 B=x y SECRET= name=job.sh queue=batch shell=" + read("out").rpartition("=")[2],
        "err\n",
    )
    stories = {number: running.head.job(number) for number in range(1, 7)}
    assert (stories[1].row.account, stories[1].row.priority) == ("lab", -5)
    assert not (jobs / "joined.e2").exists()
    assert read("joined.o2").splitlines()[-1] == "err"
    assert "queue=long" in read("joined.o2")
    assert (stories[2].rerunnable, stories[1].rerunnable) == (False, True)
    assert "SECRET=exported name=odd" in read("odd.o3")
    assert read("job.sh.o4").startswith("out")
    started_s = stories[5].row.started_s
    assert started_s is not None
    assert started_s >= time.mktime(time.strptime(soon, "%Y%m%d%H%M.%S"))


def test_a_job_waits_for_its_blocking_command_and_a_signal_leaves_it(running: Cluster) -> None:
    """-W block=true has the exit code of the job; a signal ends the command, not the job."""
    block = ("-W", "block=true", "--", "sh", "-c")
    ran = run_command("gsub", *block, "exit 7", head=running.socket, cwd=running.jobs)
    assert (ran.status, ran.stdout) == (7, "1.test\n")

    go = running.jobs / "go"
    work = f"while [ ! -e {go} ]; do sleep 0.2; done"
    waiting = subprocess.Popen(
        [sys.executable, "-m", "gsched.cli.commands.gsub", *block, work],
        env={**os.environ, "GSCHED_HEAD": str(running.socket), "PYTHONPATH": str(ROOT)},
        cwd=running.jobs,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert waiting.stdout is not None
    assert waiting.stdout.readline() == "2.test\n"
    wait_until(lambda: running.head.job(2).row.state == "running", what="the job to run")
    waiting.send_signal(signal.SIGINT)
    _, said = waiting.communicate(timeout=PATIENCE_S)

    assert waiting.returncode == 130
    assert "job 2 continues; wait for it with gwait 2, or end it with gdel 2" in said
    assert running.head.job(2).row.state == "running"
    go.touch()
    assert run_command("gwait", "2", head=running.socket).status == 0

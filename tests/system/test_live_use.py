"""The use of a running job reaches every command within seconds, and its end the accounting."""

import contextlib
import io
import json
import re

import pytest

from gsched.cli.dialect import GSCHED, speak
from gsched.cli.slurm.commands import run_slurm
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import Ran, run_command

#: Keeps a core busy and 64 MiB in use until a file is there.
BUSY = (
    "import os, sys\n"
    "held = b'x' * (64 << 20)\n"
    "while not os.path.exists(sys.argv[1]):\n"
    "    sum(range(100000))\n"
)


def run(cluster: Cluster, name: str, *arguments: str) -> str:
    ran: Ran = run_command(name, *arguments, head=cluster.socket, cwd=cluster.jobs)
    assert ran.status == 0, ran.stderr
    return ran.stdout


def slurm(name: str, *arguments: str) -> str:
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            assert run_slurm(name, arguments) == 0
    finally:
        speak(GSCHED)
    return out.getvalue()


def test_a_job_is_seen_at_work_and_its_peaks_after_its_end(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GSCHED_HEAD", str(cluster.socket))
    cluster.start_head()
    cluster.start_node("n1", cpus=2, sample_s=0.5)
    (cluster.jobs / "busy.py").write_text(BUSY)
    over = cluster.jobs / "over"
    asked = ("-l", "mem=200mb", "-o", "/dev/null", "-j", "oe", "--", "python3", "busy.py")
    job = run(cluster, "gsub", *asked, str(over)).strip().partition(".")[0]

    def live() -> dict[str, float]:
        row = json.loads(run(cluster, "gstat", "--json", job))["jobs"][0]
        found: dict[str, float] = row["live"] or {}
        return found if found.get("memory_bytes", 0) > 64 << 20 else {}

    seen = wait_until(live, what="the use of the job")
    assert 0 < seen["cpu_cores"] <= 2.5

    full = run(cluster, "gstat", "-f", job)
    assert re.search(r"live_use = [0-9.]+ of 1 core, [0-9.]+mb \([0-9]+ s ago\)", full), full
    cells = run(cluster, "gstat", "--format", "{cpu_use}|{memory_use}|{gpu_use}|{use_age}", job)
    assert re.fullmatch(r"[0-9.]+\|[0-9.]+mb\|\|[0-9]+s\n", cells), cells
    assert run(cluster, "gstat", "--format", "usage", "--sort", "-cpu_use").count("\n") == 2
    (line,) = slurm("sstat", "-n", "-P", "-j", f"{job}.batch", "-o", "JobID,NTasks,MaxRSS").split()
    assert re.fullmatch(rf"{job}\.batch\|1\|[0-9]{{5,}}K", line), line
    assert re.search(r"measured = [0-9]+ s ago", run(cluster, "gnodes", "n1"))

    over.touch()
    run(cluster, "gwait", job)
    row = json.loads(run(cluster, "gstat", "--json", job))["jobs"][0]
    assert row["live"] is None
    assert row["memory_peak_bytes"] > 64 << 20
    (line,) = slurm("sacct", "-n", "-P", "-j", job, "-o", "MaxRSS,AveRSS,TotalCPU").split()
    assert re.fullmatch(r"[0-9]{5,}K\|[0-9]+K\|[0-9:]+", line), line

"""Limits are exact while the head is killed and started under submissions, by the jobs' journal."""

import getpass
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from gsched.errors import GschedError
from tests.support.cluster import Cluster, wait_until
from tests.support.in_process import run_here

pytestmark = pytest.mark.timeout(240)
#: Jobs that run at once, and GPUs of all of them.
MOST, MOST_GPUS = 3, 2
#: A job writes a line when it begins and when it ends, with the kernel's clock.
SCRIPT = """#!/bin/sh
echo "begin $PBS_JOBID ${{CUDA_VISIBLE_DEVICES:-}} $(date +%s.%N)" >> {journal}
sleep 0.4
echo "end $PBS_JOBID - $(date +%s.%N)" >> {journal}
"""


def submit(cluster: Cluster, script: Path, *options: str) -> bool:
    """Submit a job; return whether the head took it."""
    words = ("-l", "walltime=60", "-o", "/dev/null", "-e", "/dev/null", *options, str(script))
    return run_here("gsub", *words, head=cluster.socket).status == 0


@contextmanager
def submissions(cluster: Cluster, script: Path) -> Iterator[None]:
    """Submit jobs with and without GPUs meanwhile, whether there is a head or not."""
    stop = threading.Event()

    def run() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            options = ("-l", "gpus=1") if number % 2 else ()
            submit(cluster, script, *options)
            stop.wait(0.1)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def most_at_once(lines: Sequence[str]) -> tuple[int, int]:
    """Return how many jobs of a journal ran at once at most, and with how many GPUs."""
    gpus = {line.split()[1]: len(line.split()) == 4 for line in lines if line.startswith("begin")}
    events = sorted((float(line.split()[-1]), line.split()[0], line.split()[1]) for line in lines)
    running: set[str] = set()
    jobs = held = 0
    for _, event, job in events:
        (running.add if event == "begin" else running.discard)(job)
        jobs = max(jobs, len(running))
        held = max(held, sum(gpus[each] for each in running))
    return jobs, held


def test_limits_hold_while_the_head_is_killed_under_submissions(cluster: Cluster) -> None:
    """At no moment more run than may, none of those that run is lost, and nobody waits for ever."""
    cluster.queues = (
        f"[limits]\neach_user = {{ max_running = {MOST}, max_gpus = {MOST_GPUS}, "
        "max_gpu_hours_per_month = 1000 }\n"
        '[[queue]]\nname = "batch"\n'
    )
    journal, script = cluster.directory / "journal", cluster.directory / "job.sh"
    script.write_text(SCRIPT.format(journal=journal))
    journal.touch()
    cluster.start_head()
    cluster.start_node("a", cpus=16, gpus=8)

    def ended() -> int:
        return journal.read_text().count("end ")

    def has_more(before: int) -> bool:
        return ended() > before + 4

    with submissions(cluster, script):
        for _ in range(2):
            before = ended()
            wait_until(partial(has_more, before), what="jobs to run")
            cluster.kill_head()
            time.sleep(0.3)
            cluster.start_head()
            cluster.wait_for_node("a")
        before = ended()
        wait_until(partial(has_more, before), what="jobs to run after the last start")
    wait_until(lambda: is_idle(cluster), timeout_s=120, what="all jobs to end")

    lines = journal.read_text().splitlines()
    jobs, held = most_at_once(lines)
    assert (jobs, held) == (MOST, MOST_GPUS)
    begun = sorted(line.split()[1] for line in lines if line.startswith("begin"))
    assert begun == sorted(line.split()[1] for line in lines if line.startswith("end"))
    assert len(begun) == len(set(begun))
    rows = json.loads(
        run_here("glimits", "--json", "-u", getpass.getuser(), head=cluster.socket).stdout
    )["rows"]
    used = {row["key"]: row.get("used", 0.0) for row in rows}
    assert (used["max_running"], used["max_gpus"]) == (0, 0)
    with_gpus = sum(len(line.split()) == 4 for line in lines if line.startswith("begin"))
    shares = json.loads(run_here("gshare", "--json", head=cluster.socket).stdout)["rows"]
    gpu_s = sum(row.get("gpu_s", 0.0) for row in shares if row.get("user"))
    assert used["max_gpu_hours_per_month"] * 3600 == pytest.approx(gpu_s, abs=0.01 * with_gpus)
    assert gpu_s >= 0.4 * with_gpus


def is_idle(cluster: Cluster) -> bool:
    """Return whether no job is unfinished."""
    try:
        return not cluster.head.status().jobs
    except GschedError:
        return False

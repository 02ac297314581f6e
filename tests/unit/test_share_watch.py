"""The judge of ``scripts/share-faults`` finds what it is there to find."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.gpu_device import Device
from tests.support.share_faults import ShareFaults
from tests.support.share_watch import CARD_BYTES, Holding, Watch, crowded, lives


def holding(job: int, percent: int = 40, share_class: str = "low", gib: int = 1) -> Holding:
    return Holding(
        job=job, attempt=1, percent=percent, memory_bytes=gib << 30, share_class=share_class
    )


@pytest.mark.parametrize(
    ("held", "words"),
    [
        ([holding(1), holding(2)], ""),
        ([holding(1, 60, "high"), holding(2, 40)], ""),
        ([holding(1, 100, "", 0)], ""),
        ([holding(1, 61, "high"), holding(2, 40)], "101 % for 1.1, 2.1"),
        ([holding(1, 10, "high"), holding(2, 10, "high")], "jobs of the class high: [1, 2]"),
        ([holding(1, 10, gib=9), holding(2, 10, gib=8)], f"{17 << 30} bytes for"),
        ([holding(1, 100, "", 0), holding(2, 10)], "a whole GPU for 1.1, 2.1"),
    ],
)
def test_what_is_given_twice_is_named(held: list[Holding], words: str) -> None:
    assert (words in crowded(held)) if words else (crowded(held) == "")


def began(job: int, pid: int, percent: int) -> str:
    row = {
        "what": "begin",
        "pid": pid,
        "job": job,
        "attempt": 1,
        "node": "n1",
        "gpu": 0,
        "percent": percent,
        "memory_bytes": 1 << 30,
        "share_class": "low",
    }
    return json.dumps(row) + "\n"


def test_live_processes_with_too_much_of_a_gpu_are_found_and_dead_ones_are_not(
    tmp_path: Path,
) -> None:
    journal = tmp_path / "programs"
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    journal.write_text(began(1, os.getpid(), 70) + began(2, gone.pid, 70))
    watch = Watch({("n1", 0): Device(tmp_path / "device")}, journal, tmp_path / "none.db")

    watch.look()
    assert not lives(gone.pid)
    assert watch.problems == {}

    with journal.open("a") as file:
        file.write(began(3, os.getppid(), 31))
        file.write(json.dumps({"what": "wrong", "pid": os.getpid(), "text": "a bad result"}) + "\n")
    watch.look()
    assert [text.partition(": ")[2][:9] for text in watch.problems] == ["a bad res", "101 % for"]


def test_memory_beyond_a_share_is_found(tmp_path: Path) -> None:
    journal = tmp_path / "programs"
    journal.write_text(began(1, os.getpid(), 70))
    device = Device(tmp_path / "device")
    with device.path.open("r+b") as file:  # as the driver writes it: a process and its bytes
        file.seek(40)  # behind five numbers
        file.write(os.getpid().to_bytes(8, "little") + ((1 << 30) + 1).to_bytes(8, "little") * 2)
    watch = Watch({("n1", 0): device}, journal, tmp_path / "none.db")

    watch.look()

    assert [text.rpartition(" uses ")[2] for text in watch.problems] == [f"{(1 << 30) + 1} bytes"]
    assert len(list(watch.memory_problems())) == 1
    assert CARD_BYTES == 16 << 30


def test_jobs_that_do_not_leave_the_gpu_in_time_are_found(tmp_path: Path) -> None:
    """Beside those that were frozen, and those of daemons that have ended since."""
    run = ShareFaults(Cluster(tmp_path / "cluster", "shares"), tmp_path, tmp_path, 1)
    run.drains = {("n1", 11): (300, 20), ("n1", 12): (100, 0), ("n2", 21): (100, 34)}
    run.kills["freeze"] = 1
    assert list(run.slow_drains()) == []

    run.drains["n2", 21] = 100, 35

    assert list(run.slow_drains()) == ["55 of 500 drains were overtaken: 54 may be"]

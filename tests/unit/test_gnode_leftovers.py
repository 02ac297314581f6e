"""What a starting gnode takes for jobs of a spool that was wiped, and what it leaves alone."""

import os
import shutil
import subprocess
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import pytest

from gnode.daemon import leftovers
from gnode.supervisor import proc
from tests.support.gnode_world import lives
from tests.support.processes import PATIENCE_S, attempts


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    made: list[subprocess.Popen[bytes]] = []
    yield made
    for process in made:
        process.kill()
        process.wait(20)


def job(root: Path) -> subprocess.Popen[bytes]:
    """Start a process that looks like a job's in ``root``.

    The kernel shows the environment of a program some moments after `Popen` has returned.
    """
    started = subprocess.Popen(
        ["sleep", "974"], env={**os.environ, "GSCHED_JOB_DIR": f"{root}/9.1"}
    )
    for _ in attempts(PATIENCE_S):
        if proc.environment_text_after(started.pid, b"GSCHED_JOB_DIR="):
            break
    return started


def child_of(pid: int, name: bytes) -> int:
    for _ in attempts(20.0):
        for child in proc.descendants((pid,), proc.snapshot()):
            if Path(f"/proc/{child}/cmdline").read_bytes().startswith(name):
                return child
    raise AssertionError(f"{pid} has no child {name!r}")


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare"
)
def test_processes_of_another_pid_namespace_are_left_alone(
    tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    words = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    outer = subprocess.Popen([*words, "env", f"GSCHED_JOB_DIR={tmp_path}/9.1", "sleep", "975"])
    started += [outer, job(tmp_path)]
    inner = child_of(outer.pid, b"sleep\0")

    killed = leftovers.kill_foreign(str(tmp_path / "n1"), [str(tmp_path)], ())

    assert killed == [started[1].pid]
    assert lives(inner)


def test_a_process_that_does_not_die_is_given_up_and_each_scan_reads_an_environment_once(
    tmp_path: Path, started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    started.append(job(tmp_path))
    reads: list[int] = []
    scans: list[int] = []
    read, snapshot = proc._environment, proc.snapshot

    def counted_read(pid: int) -> bytes:
        reads.append(pid)
        return read(pid)

    def counted_snapshot() -> dict[int, proc.ProcessStat]:
        scans.append(0)
        return snapshot()

    def keep(_pids: Iterable[int], _number: int) -> None:
        """Send nothing, as to a process that the kernel does not let die."""

    monkeypatch.setattr(proc, "_environment", counted_read)
    monkeypatch.setattr(proc, "snapshot", counted_snapshot)
    monkeypatch.setattr(proc, "send", keep)
    monkeypatch.setattr(leftovers, "FOREIGN_S", 0.0)
    roots: Collection[str] = [str(tmp_path), *(f"{tmp_path}-{number}" for number in range(10))]

    killed = leftovers.kill_foreign(str(tmp_path / "n1"), roots, ())

    assert killed == [started[0].pid]
    assert len(scans) == 1
    assert len(reads) == len(set(reads))

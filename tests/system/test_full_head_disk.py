"""The head's disk is full: while it runs, at its start, and by what users keep there."""

import contextlib
import hashlib
import io
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gsched.errors import HeadUnreachableError, TryAgainError
from gsched.model.job import CodeSnapshot
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import run_command
from tests.support.judge import Judge, verdict
from tests.support.mishaps import Submission, a_job, wait_for_end, wait_for_starts
from tests.support.processes import PATIENCE_S

DISK_BYTES = 16 * 1024 * 1024
FILL_BYTES = 64 * 1024


@pytest.fixture
def judge(cluster: Cluster) -> Judge:
    return Judge(cluster.jobs)


def database(cluster: Cluster) -> Path:
    return cluster.state_dir / "gsched.db"


@pytest.fixture
def small_disk(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Give the head a disk of its own that can be filled."""
    if os.geteuid() != 0:
        pytest.skip("a file system of limited size is mounted by root only")
    where = cluster.state_dir
    size_bytes = getattr(request, "param", DISK_BYTES)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_bytes},mode=0700", "none", str(where)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount here: {mounted.stderr.strip()}")
    yield where
    cluster.stop()
    subprocess.run(["umount", str(where)], check=True)


def free_bytes(where: Path) -> int:
    status = os.statvfs(where)
    return status.f_bavail * status.f_frsize


def fill(where: Path, leave_bytes: int = 0) -> Path:
    """Fill the disk but for ``leave_bytes``; return the file that does it."""
    filler = where / "filler"
    with open(filler, "ab", buffering=0) as stream:
        while (room := free_bytes(where) - leave_bytes) > 0:
            try:
                stream.write(b"x" * min(room, FILL_BYTES))
            except OSError:  # ENOSPC: some of it is guaranteed to others
                break
    return filler


@pytest.mark.root
def test_b1_a_nearly_full_disk_refuses_submits_with_exit_75_and_takes_them_again_later(
    cluster: Cluster, judge: Judge, small_disk: Path
) -> None:
    cluster.start_head()
    cluster.start_node("n1")
    (running,) = Submission(cluster, a_job(cluster, judge, judge.gate())).ids()
    wait_for_starts(judge, [running])

    filler = fill(small_disk, leave_bytes=1024 * 1024)
    refused = run_command("gsub", "--", "true", head=cluster.socket, cwd=cluster.jobs)

    assert refused.status == 75
    assert refused.stdout == ""
    assert "disk is full" in refused.stderr
    assert cluster.head.job(running).row.state == "running"
    filler.unlink()
    accepted = run_command("gsub", "--", "true", head=cluster.socket, cwd=cluster.jobs)
    assert accepted.status == 0
    wait_until(lambda: judge.open_gate() and not cluster.head.jobs().jobs)
    assert verdict(judge, database(cluster), [running], attempts_max=1) == [
        # gsub's own job does not write into the judge's file
        f"{what} ({running + 1}, 1) on n1 is missing, outcome 0"
        for what in ("start", "end")
    ]


@pytest.mark.root
def test_b1_a_full_disk_stalls_the_head_which_recovers_alone_with_every_outcome(
    cluster: Cluster, judge: Judge, small_disk: Path
) -> None:
    cluster.start_head()
    cluster.start_node("n1", cpus=60)
    jobs = Submission(cluster, *(a_job(cluster, judge, judge.gate()) for _ in range(60))).ids()
    wait_for_starts(judge, jobs)
    pid = cluster.head_process.pid

    def stalls() -> bool:
        fill(small_disk)  # and what the ballast file gave back, too
        judge.open_gate()
        return "trying again" in cluster.log("head.log")

    wait_until(stalls, 60.0, what="a commit to find no room")
    wait_until(lambda: judge.open_gate() and all(judge.count("end", job) for job in jobs), 60.0)
    refused = run_command("gsub", "--", "true", head=cluster.socket, cwd=cluster.jobs)
    shown = run_command("gstat", head=str(cluster.socket))
    assert refused.status == 75, refused
    assert "disk is full" in refused.stderr
    assert shown.status == 0, shown
    assert "disk is full" in shown.stderr
    assert "may not be durable yet" in shown.stderr
    (small_disk / "filler").unlink()

    wait_until(lambda: all_are_over(cluster), 60.0, what="all outcomes to be recorded")
    assert cluster.head_process.poll() is None
    assert cluster.head.status().pid == pid
    (new,) = Submission(cluster, a_job(cluster, judge)).ids()
    wait_for_end(cluster, [new])
    assert verdict(judge, database(cluster), [*jobs, new], attempts_max=1) == []


def all_are_over(cluster: Cluster) -> bool:
    """Return whether the head can write again, and knows no unfinished job."""
    listed = cluster.head.jobs()
    return not listed.jobs and not listed.warning


@pytest.mark.root
@pytest.mark.parametrize("ballast", [True, False], ids=["ballast", "none"])
def test_b1_a_killed_head_starts_on_a_full_disk_answers_and_recovers(
    cluster: Cluster, judge: Judge, small_disk: Path, *, ballast: bool
) -> None:
    """With the ballast it is as any start; without it the head waits for room, and says so."""
    cluster.start_head()
    cluster.start_node("n1")
    (running,) = Submission(cluster, a_job(cluster, judge, judge.gate())).ids()
    wait_for_starts(judge, [running])
    epoch = cluster.head.status().epoch
    cluster.kill_head()
    if not ballast:
        (small_disk / "gsched.ballast").unlink()
    fill(small_disk)

    cluster.start_head(wait=False)
    wait_until(lambda: heads_epoch(cluster) == epoch + 1, 30.0, what="the head to answer")
    if not ballast:
        wait_until(lambda: cluster.head.status().stalled, what="the head to find no room")
    refused = run_command("gsub", "--", "true", head=str(cluster.socket), cwd=cluster.jobs)
    shown = run_command("gstat", head=str(cluster.socket))
    doctor = run_command("gsched", "doctor", head=str(cluster.socket))

    assert refused.status == 75, refused
    assert "disk is full" in refused.stderr
    assert shown.status == 0, shown
    assert str(running) in shown.stdout
    assert "FAIL  head's disk" in doctor.stdout
    assert "Traceback" not in cluster.log("head.log")
    (small_disk / "filler").unlink()
    cluster.wait_for_node("n1")
    wait_until(lambda: judge.open_gate() and all_are_over(cluster))
    (new,) = Submission(cluster, a_job(cluster, judge)).ids()
    wait_for_end(cluster, [new])
    assert verdict(judge, database(cluster), [running, new], attempts_max=1) == []


def heads_epoch(cluster: Cluster) -> int:
    """Return the epoch of the head that answers, 0 if none does."""
    with contextlib.suppress(HeadUnreachableError):
        return cluster.head.status().epoch
    return 0


@pytest.mark.root
def test_b1_a_head_leaves_room_for_its_next_start(cluster: Cluster, small_disk: Path) -> None:
    """A head that has given its ballast up makes a smaller one when it stops."""
    cluster.start_head()
    fill(small_disk, leave_bytes=1024 * 1024)
    (small_disk / "gsched.ballast").unlink()
    fill(small_disk, leave_bytes=1024 * 1024)
    assert cluster.stop_head() == 0
    fill(small_disk)

    cluster.start_head()

    assert run_command("gsub", "--", "true", head=str(cluster.socket)).status == 75


@pytest.mark.root
@pytest.mark.parametrize("small_disk", [64 * 1024 * 1024], indirect=True, ids=["64 MiB"])
def test_one_users_code_snapshots_leave_room_for_the_jobs_of_others(
    cluster: Cluster, small_disk: Path
) -> None:
    cluster.start_head()
    data = os.urandom(400_000)

    def upload(number: int) -> None:
        archive = number.to_bytes(4, "big") + data
        snapshot = CodeSnapshot(
            digest=hashlib.sha256(archive).hexdigest(), size_bytes=len(archive), files=1, root="/x"
        )
        cluster.head.send_code(snapshot, io.BytesIO(archive))

    for number in range(4):
        upload(number)
    with pytest.raises(TryAgainError, match="code snapshots of this user; the limit is"):
        upload(4)
    assert run_command("gsub", "--", "true", head=str(cluster.socket)).status == 0
    fill(small_disk, leave_bytes=8 * 1024 * 1024)
    with pytest.raises(TryAgainError, match="nearly full"):
        upload(200)
    assert run_command("gsub", "--", "true", head=str(cluster.socket)).status == 0
    assert "Traceback" not in cluster.log("head.log")


@pytest.mark.root
def test_b1_a_head_that_starts_on_a_full_disk_says_so_without_a_traceback(
    cluster: Cluster, judge: Judge, small_disk: Path
) -> None:
    cluster.start_head()
    cluster.stop_head()
    (small_disk / "gsched.ballast").unlink(missing_ok=True)
    filler = fill(small_disk)

    cluster.start_head(wait=False)
    code = cluster.head_process.wait(PATIENCE_S)

    assert code in {3, 75}
    assert "full" in cluster.log("head.log")
    assert "Traceback" not in cluster.log("head.log")
    filler.unlink()
    cluster.start_head()

"""Which attempts of a user run on a node, as a login finds them in the records."""

import json
import os
from pathlib import Path

import pytest

from gnode.supervisor import journal, login, proc, spool
from gnode.task import SupervisorInfo
from tests.support.records import a_task

USER, UID = "alice", os.getuid()


def accept(state_dir: Path, job: int) -> bytes:
    """Write the task of a job's attempt; return it."""
    directory = state_dir / "attempts" / f"{job}.1"
    directory.mkdir(mode=0o700, parents=True)
    content = json.dumps(vars(a_task(job=job, attempt=1, user=USER))).encode()
    (directory / spool.TASK).write_bytes(content)
    (directory / spool.TASK).chmod(0o600)
    return content


def start(state_dir: Path, job: int) -> None:
    """Record this process as the supervisor and the program of a job's attempt."""
    ticks = proc.start_ticks("self")
    started = SupervisorInfo(
        pid=os.getpid(),
        start_ticks=ticks,
        job_pid=os.getpid(),
        job_start_ticks=ticks,
        started_s=float(job),
        started_boottime_s=1.0,
    )
    made = journal.make_journal(str(state_dir / "attempts" / f"{job}.1"))
    made.write_started(started)
    made.close()


def found(state_dir: Path) -> list[int]:
    return [each.task.job for each in login.attempts_of(str(state_dir), USER, UID)]


def test_the_attempt_that_started_last_comes_first(tmp_path: Path) -> None:
    for job in (12, 13):
        accept(tmp_path, job)
        start(tmp_path, job)
    accept(tmp_path, 14)

    assert found(tmp_path) == [13, 12]


@pytest.mark.parametrize("missing", [1, 100, None])
def test_a_task_that_gnode_is_writing_counts_as_none(tmp_path: Path, missing: int | None) -> None:
    """A login meanwhile is neither refused nor kept from another job."""
    accept(tmp_path, 12)
    start(tmp_path, 12)
    size = len(accept(tmp_path, 13))
    os.truncate(tmp_path / "attempts" / "13.1" / spool.TASK, size - (missing or size))

    assert found(tmp_path) == [12]

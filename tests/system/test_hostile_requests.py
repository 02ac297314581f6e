"""Requests that no command of ours sends: each gets an answer, and harms nobody else."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from gsched.protocol import actions as a
from tests.support.cluster import Cluster, wait_until
from tests.support.processes import PATIENCE_S
from tests.support.warm import Lender

AN_HOUR_S = 3600


@pytest.fixture
def shared(warm: Lender) -> Cluster:
    return warm()


@pytest.fixture
def running(shared: Cluster) -> int:
    """Return a job that runs on n1."""
    key = os.urandom(8).hex()
    job = submit(shared, {"key": key, "arguments": ["sleep", str(AN_HOUR_S)]})["id"]
    assert isinstance(job, int)
    wait_until(lambda: shared.head.job(job).row.started_s is not None, what="the job's start")
    return job


def ask(cluster: Cluster, method: str, target: str, body: bytes = b"") -> tuple[int, str]:
    """Send a request as it stands; return status and body."""
    answer = cluster.head.transport.exchange(method, target, body, timeout_s=PATIENCE_S)
    return answer.status, bytes(answer.body).decode()


def submit(cluster: Cluster, changes: Mapping[str, object]) -> dict[str, object]:
    """Submit one job by hand; return its result."""
    job = {"name": "x", "workdir": str(cluster.jobs), "launch": "command", "arguments": ["true"]}
    body = json.dumps({"jobs": [{**job, **changes}]}).encode()
    status, text = ask(cluster, "POST", "/v1/jobs", body)
    assert status == 200, text
    (result,) = json.loads(text)["results"]
    assert isinstance(result, dict)
    return result


@pytest.mark.parametrize("offset", ["1e30", "-1e30", "9007199254740994", "1e17", "nan", "inf", "x"])
def test_an_offset_beyond_any_file_is_refused_and_the_node_lives(
    shared: Cluster, running: int, offset: str
) -> None:
    """It once ended gnode, and then made an order that gnode could not read."""
    status, text = ask(shared, "GET", f"/v1/jobs/{running}/output?offset={offset}")

    assert (status, "offset" in text) == (400, True)
    assert "message_unreadable" not in shared.head.status().dropped
    assert shared.head.nodes().nodes[0].state == "up"


def test_numbers_that_are_none_are_refused(shared: Cluster, running: int) -> None:
    """NaN in a timer breaks the order of all timers."""
    for target in (f"/v1/jobs/{running}/wait?timeout_s=nan", "/v1/history?limit=inf"):
        status, text = ask(shared, "GET", target)

        assert (status, "is not a number" in text) == (400, True)


def test_impossible_statements_are_refused_at_submission(shared: Cluster, running: int) -> None:
    """Each once broke gstat for everybody, or looked like a fault of the node."""
    impossible: list[dict[str, object]] = [
        {"start_after_s": 1e300},
        {"account": "a\0b"},
        {"shell": "/bin/\0sh"},
        {"stdout_path": "/tmp/\0x"},
    ]
    for number, changes in enumerate(impossible):
        result = submit(shared, {"key": f"bad{number}", **changes})

        assert "error" in result, changes
    alteration = a.Alteration(account="a\0b")
    request = a.AlterJob(ids=(str(running),), alteration=alteration)
    (altered,) = shared.head.act(request).results
    assert altered.error is not None
    assert "without control characters" in altered.error.hint
    assert ask(shared, "GET", "/v1/jobs")[0] == 200


def test_a_body_that_is_no_text_is_refused(shared: Cluster, running: int) -> None:
    """And so is one that is nested without end."""
    for body in (b'{"jobs":[{"key":"\xff"}]}', b"[" * 100_000):
        status, _ = ask(shared, "POST", "/v1/jobs", body)

        assert status == 400


def test_what_a_refused_job_brings_is_not_kept(cluster: Cluster) -> None:
    """Its script is in no later commit."""
    cluster.start_head()
    script = "#!/bin/sh\n" + "x" * 1_000_000
    changes = {"key": "big", "launch": "script", "script": script, "queue": "nowhere"}
    assert "error" in submit(cluster, changes)
    assert "error" not in submit(cluster, {"key": "small"})

    files = [Path(cluster.state_dir) / name for name in ("gsched.db", "gsched.db-wal")]
    assert sum(path.stat().st_size for path in files if path.exists()) < 900_000


def test_a_key_of_a_job_that_ended_before_a_restart_still_names_it(cluster: Cluster) -> None:
    """The database remembers what memory has forgotten."""
    cluster.start_head()
    first = submit(cluster, {"key": "k"})["id"]
    cluster.head.act(a.DeleteJob(ids=(str(first),)))
    cluster.kill_head()
    cluster.start_head()

    assert submit(cluster, {"key": "k"})["id"] == first

"""Jobs that are migrated by a signal: it goes to who handles it, and kills nobody."""

import sys

import pytest

from gsched.client import error_from, new_job
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import run_command

USR1, INT = 10, 2
HANDLES = """
import pathlib, signal, sys, time
def leave(number, frame):
    pathlib.Path("saved").touch()
    sys.exit(0)
signal.signal(signal.SIGUSR1, leave)
pathlib.Path("began").open("a").write("x")
time.sleep(600)
"""


#: Python handles INT itself, by an exception that ends a program which does not expect it.
PLAIN = """
import pathlib, time
pathlib.Path("began").open("a").write("x")
time.sleep(600)
"""


def submit(cluster: Cluster, script: str, signal: int = USR1) -> int:
    job = new_job(
        name="signalled",
        workdir=str(cluster.jobs),
        script=script,
        grace_s=3.0,
        checkpoint_signal=signal,
    )
    result = cluster.head.submit([job]).results[0]
    if result.error is not None:
        raise error_from(result.error)
    return result.id


def start(cluster: Cluster) -> None:
    cluster.start_head()
    for name in ("n1", "n2"):
        cluster.start_node(name)


def test_a_job_without_a_handler_is_not_killed_by_its_signal(cluster: Cluster) -> None:
    """It is not sent; the migration is off after the grace period, and the job runs on."""
    start(cluster)
    job = submit(cluster, "#!/bin/sh\necho x >> began\nexec sleep 600\n")
    wait_until((cluster.jobs / "began").exists)

    moved = run_command("gmigrate", "--wait", str(job), head=str(cluster.socket))

    assert moved.status != 0
    assert "USR1" in moved.stderr
    row = cluster.head.job(job).row
    assert (row.state, row.attempt) == ("running", 1)
    assert (cluster.jobs / "began").read_text() == "x\n"
    assert run_command("gdel", "-W", "0", str(job), head=str(cluster.socket)).status == 0


def test_the_signal_goes_to_the_processes_that_handle_it(cluster: Cluster) -> None:
    """The shell that started the program has no handler: it is not hit, and ends with it."""
    start(cluster)
    (cluster.jobs / "program.py").write_text(HANDLES)
    job = submit(cluster, f"#!/bin/sh\n{sys.executable} program.py\n")
    wait_until((cluster.jobs / "began").exists)
    (before,) = cluster.head.job(job).row.nodes

    moved = run_command("gmigrate", "--wait", str(job), head=str(cluster.socket))

    assert moved.status == 0, moved.stderr
    assert "restarted" in moved.stdout
    assert "without progress" not in moved.stdout
    assert (cluster.jobs / "saved").exists()
    row = cluster.head.job(job).row
    assert (row.attempt, row.moves, row.moves_cost_s) == (2, 1, 0.0)
    assert row.nodes != (before,)
    assert run_command("gdel", "-W", "0", str(job), head=str(cluster.socket)).status == 0


@pytest.mark.parametrize("below", ["", "exec "])
def test_a_program_that_its_signal_kills_is_restarted_and_not_migrated(
    cluster: Cluster, below: str
) -> None:
    """Below a shell, which tells of it by its exit code, and without one."""
    start(cluster)
    (cluster.jobs / "program.py").write_text(PLAIN)
    job = submit(cluster, f"#!/bin/sh\n{below}{sys.executable} program.py\n", signal=INT)
    wait_until((cluster.jobs / "began").exists)
    (before,) = cluster.head.job(job).row.nodes
    head = str(cluster.socket)

    moved = run_command("gmigrate", "--wait", str(job), head=head)

    assert moved.status != 0
    assert "was not migrated but restarted on n" in moved.stderr
    assert "2 (INT)" in moved.stderr
    wait_until(lambda: (cluster.jobs / "began").read_text() == "xx")
    row = cluster.head.job(job).row
    assert row.nodes != (before,)
    assert (row.state, row.attempt, row.moves, row.moves_lost) == ("running", 2, 0, 1)
    story = run_command("gstat", "-f", str(job), head=head).stdout
    assert "moves = 0, 1 restart instead" in story
    assert "last_move = failed, restarted after" in story
    assert "its work since its own last checkpoint is lost" in story
    assert "attempt 2 restarted from the job's own last checkpoint, if any" in story
    assert run_command("gdel", "-W", "0", str(job), head=head).status == 0
    wait_until(lambda: "1 restart instead" in run_command("ghist", head=head).stdout)

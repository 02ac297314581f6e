"""Jobs that are migrated by a signal: it goes to who handles it, and kills nobody."""

import sys

from gsched.client import error_from, new_job
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import run_command

USR1 = 10
HANDLES = """
import pathlib, signal, sys, time
def leave(number, frame):
    pathlib.Path("saved").touch()
    sys.exit(0)
signal.signal(signal.SIGUSR1, leave)
pathlib.Path("began").open("a").write("x")
time.sleep(600)
"""


def submit(cluster: Cluster, script: str) -> int:
    job = new_job(
        name="signalled",
        workdir=str(cluster.jobs),
        script=script,
        grace_s=3.0,
        checkpoint_signal=USR1,
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

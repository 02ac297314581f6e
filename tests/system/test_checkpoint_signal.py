"""Jobs that are migrated by a signal: it goes to who handles it, and kills nobody."""

import os
import signal
import sys

import pytest

from gsched.client import new_job
from gsched.head_calls import error_from
from tests.support import records
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import run_command

USR1, INT = 10, 2
#: The head waits for so long. A node says after half of it, 10 s at most, that no process has a
#: handler: the rest is for a busy machine to deliver that.
GRACE_S = 30.0
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


def submit(cluster: Cluster, script: str, *, number: int = USR1, **more: object) -> int:
    job = new_job(
        name="signalled",
        workdir=str(cluster.jobs),
        script=script,
        grace_s=GRACE_S,
        checkpoint_signal=number,
        **more,
    )
    result = cluster.head.submit([job]).results[0]
    if result.error is not None:
        raise error_from(result.error)
    return result.id


def start(cluster: Cluster) -> None:
    cluster.start_head()
    for name in ("n1", "n2"):
        cluster.start_node(name)


#: It takes the signal in a thread of its own; all threads block it.
SIGWAIT = """
import os, pathlib, signal, threading, time
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
def leave():
    signal.sigwait({signal.SIGUSR1})
    pathlib.Path("saved").touch()
    os._exit(0)
threading.Thread(target=leave).start()
pathlib.Path("began").open("a").write("x")
time.sleep(600)
"""
#: It needs some time to install its handler, as a program that imports a framework.
SLOW = """
import pathlib
pathlib.Path("began").open("a").write("x")
""" + HANDLES.replace("signal.signal", "time.sleep(1.0); signal.signal")


def wait_until_it_runs(cluster: Cluster, job: int) -> None:
    """Wait until the program has begun, and the head knows that it runs."""
    wait_until((cluster.jobs / "began").exists)
    wait_until(lambda: cluster.head.job(job).attempts[-1].state == "running")


@pytest.mark.parametrize("line", ["sleep 600", "trap '' USR1; exec sleep 600"])
def test_a_job_that_does_not_handle_its_signal_keeps_running_and_the_reason_is_told_at_once(
    cluster: Cluster, line: str
) -> None:
    """The signal would kill it, or it ignores it: it is not sent, and nobody waits for its end."""
    start(cluster)
    job = submit(cluster, f"#!/bin/sh\necho x >> began\n{line}\n")
    wait_until_it_runs(cluster, job)
    head = str(cluster.socket)

    moved = run_command("gmigrate", "--wait", str(job), head=head)

    assert moved.status == 170
    assert "migration abandoned: no process of the job handles signal 10 (USR1)" in moved.stderr
    assert "have the program install a handler" in moved.stderr
    story = cluster.head.job(job)
    assert (story.row.state, story.row.attempt, story.move) == ("running", 1, None)
    assert (cluster.jobs / "began").read_text() == "x\n"
    assert run_command("gdel", "-W", "0", str(job), head=head).status == 0


@pytest.mark.parametrize("program", [SIGWAIT, SLOW], ids=["sigwait", "slow"])
def test_a_job_that_waits_for_its_signal_or_has_just_started_is_migrated(
    cluster: Cluster, program: str
) -> None:
    """A blocked signal kills nobody, and a handler may need a moment."""
    start(cluster)
    (cluster.jobs / "program.py").write_text(program)
    job = submit(cluster, f"#!/bin/sh\nexec {sys.executable} program.py\n")
    wait_until_it_runs(cluster, job)

    moved = run_command("gmigrate", "--wait", str(job), head=str(cluster.socket))

    assert moved.status == 0, moved.stderr
    assert (cluster.jobs / "saved").exists()
    row = cluster.head.job(job).row
    assert (row.attempt, row.moves, row.moves_lost) == (2, 1, 0)
    assert run_command("gdel", "-W", "0", str(job), head=str(cluster.socket)).status == 0


def test_an_answer_outlives_the_supervisor_and_gnode(cluster: Cluster) -> None:
    """A supervisor is killed, the launcher takes over: what was answered stays answered."""
    start(cluster)
    job = submit(cluster, "#!/bin/sh\necho x >> began\nexec sleep 600\n")
    wait_until_it_runs(cluster, job)
    head = str(cluster.socket)
    assert run_command("gmigrate", "--wait", str(job), head=head).status == 170
    (node,) = cluster.head.job(job).row.nodes
    info = records.started(cluster.node_dir(node) / "attempts" / f"{job}.1")
    assert info is not None
    os.kill(info["pid"], signal.SIGKILL)
    cluster.kill_node(node)
    cluster.start_node(node)

    again = run_command("gmigrate", "--wait", str(job), head=head)

    assert again.status == 170
    assert "no process of the job handles signal 10 (USR1)" in again.stderr
    story = cluster.head.job(job)
    assert (story.row.state, story.row.attempt, story.moves_requested) == ("running", 1, 2)
    assert run_command("gdel", "-W", "0", str(job), head=head).status == 0


def test_the_signal_goes_to_the_processes_that_handle_it(cluster: Cluster) -> None:
    """The shell that started the program has no handler: it is not hit, and ends with it."""
    start(cluster)
    (cluster.jobs / "program.py").write_text(HANDLES)
    job = submit(cluster, f"#!/bin/sh\n{sys.executable} program.py\n")
    wait_until_it_runs(cluster, job)
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
    job = submit(cluster, f"#!/bin/sh\n{below}{sys.executable} program.py\n", number=INT)
    wait_until_it_runs(cluster, job)
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


@pytest.mark.parametrize(
    ("script", "leaves"),
    [
        ("trap 'exit 0' USR1; pbsdsh -u sleep 600 & wait", True),
        (f"pbsdsh -u {sys.executable} $PWD/program.py", True),
        ("pbsdsh -u sleep 600", False),
    ],
    ids=["script", "tasks", "none"],
)
def test_a_job_with_tasks_on_two_nodes_is_migrated_if_one_process_handles_its_signal(
    cluster: Cluster, script: str, *, leaves: bool
) -> None:
    """gsched's own processes among those of the job do not count, nor does their end."""
    start(cluster)
    cluster.start_node("n3")
    (cluster.jobs / "program.py").write_text(HANDLES)
    shims = str(cluster.jobs / "shims")
    installed = run_command("gsched", "install-shims", "--personality", "torque", shims)
    assert installed.status == 0, installed.stderr
    job = submit(
        cluster,
        f"#!/bin/bash\nPATH={shims}:$PATH\n{script}\n",
        resources=("select=2:ncpus=1,place=scatter",),
        environment={"PATH": os.environ["PATH"]},
    )
    wait_until(lambda: sum(each.state == "running" for each in cluster.head.job(job).attempts))
    wait_until(lambda: agents(cluster, job) == 2, what="the step agent")
    here = cluster.head.job(job).row.nodes
    there = ",".join(sorted({"n1", "n2", "n3"} - {here[0]}))
    head = str(cluster.socket)

    moved = run_command("gmigrate", str(job), "--to", there, "--wait", head=head)

    row = cluster.head.job(job).row
    if leaves:
        assert moved.status == 0, moved.stderr
        assert (row.state, row.attempt, row.moves, row.moves_lost) == ("running", 2, 1, 0)
    else:
        assert "no process of the job handles signal 10 (USR1)" in moved.stderr
        assert (row.state, row.attempt, row.nodes) == ("running", 1, here)
    assert run_command("gdel", "-W", "0", str(job), head=head).status == 0


def agents(cluster: Cluster, job: int) -> int:
    """Return on how many nodes supervisors of a job's first attempt run."""
    places = (cluster.node_dir(name) / "attempts" / f"{job}.1" for name in ("n1", "n2", "n3"))
    return sum(records.started(place) is not None for place in places)

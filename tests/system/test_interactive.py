"""Interactive jobs from end to end: real commands on a real terminal, a real head and gnode."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import psutil
import pytest

from gsched.client import new_job
from gsched.model.states import JobState
from gsched.protocol.api import JobRow
from gschedd.http import sessions
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import Ran, command_environment, run_command
from tests.support.ptys import Sitting


@pytest.fixture
def running(cluster: Cluster) -> Cluster:
    cluster.start_head()
    cluster.start_node("n1", cpus=8, gpus=2)
    return cluster


@pytest.fixture
def sittings() -> Iterator[list[Sitting]]:
    opened: list[Sitting] = []
    yield opened
    for each in opened:
        each.close()


def sit(
    cluster: Cluster, sittings: list[Sitting], command: str, *words: str, **more: object
) -> Sitting:
    """Start a command of gsched at a terminal."""
    made = Sitting(
        [sys.executable, "-m", f"gsched.cli.commands.{command}", *words],
        env=command_environment(cluster.socket, TERM="dumb", PS1="$ "),
        cwd=cluster.jobs,
        **more,  # type: ignore[arg-type] # of Sitting
    )
    sittings.append(made)
    return made


def submit(cluster: Cluster, sittings: list[Sitting], *words: str) -> Sitting:
    """Sit at the shell of an interactive job."""
    user = sit(cluster, sittings, "gsub", "-I", "-S", "/bin/sh", "-v", "PS1=$ ", *words)
    user.match(r"gsub: waiting for job \d+\.test to start\r\n")
    user.match(r"gsub: job \d+\.test ready on n1")
    user.match(r"[$#] ")
    return user


def row_of(cluster: Cluster, job: int) -> JobRow:
    return cluster.head.job(job).row


def run(cluster: Cluster, name: str, *arguments: str) -> Ran:
    return run_command(name, *arguments, head=cluster.socket, cwd=cluster.jobs)


def test_a_session_survives_its_client_gnode_and_the_head(
    running: Cluster, sittings: list[Sitting]
) -> None:
    """A prompt, a size that follows, kills of everybody but the shell, and its exit code."""
    user = submit(running, sittings, "-l", "gpus=1,walltime=0:30:00")
    user.type("echo $PBS_ENVIRONMENT $CUDA_VISIBLE_DEVICES $TERM; tty; pwd; stty size\n")
    user.match(r"\nPBS_INTERACTIVE 0 dumb\r\n/dev/pts/\d+\r\n" + re.escape(str(running.jobs)))
    user.until("24 80")
    user.resize(50, 132)
    user.type("sleep 0.5; stty size; echo pid=$$\n")
    user.until("50 132")
    shell = psutil.Process(int(user.match(r"pid=(\d+)")[1]))

    user.kill()
    again = sit(running, sittings, "gattach", "1", size=(30, 100))
    again.match(r"ready on n1")
    again.until("50 132")  # the last output is shown
    again.type("x=kept; sleep 0.5; stty size\n")
    again.until("30 100")

    running.kill_node("n1")
    again.until("connecting again")
    running.start_node("n1", cpus=8, gpus=2)
    again.until("connected again")
    again.type("echo gnode $x\n")
    again.until("\r\ngnode kept")

    running.kill_head()
    again.until("connecting again")
    running.start_head()
    running.wait_for_node("n1")
    again.until("connected again")
    again.type("echo head $x\n")
    again.until("\r\nhead kept")
    assert shell.is_running()
    assert again.text.count("gnode kept") == 1, "no output is shown twice"
    again.type("exit 3\n")

    assert again.code() == 3
    outcome = running.head.wait([1])[0].row.outcome
    assert outcome is not None
    assert (outcome.kind, outcome.exit_code) == ("exited", 3)


def test_leaving_coming_again_and_taking_over(running: Cluster, sittings: list[Sitting]) -> None:
    user = submit(running, sittings)
    user.type("echo on''ce\n")
    user.until("once")
    user.type("~?")
    user.until("~d  detach")
    user.type("~d")
    assert user.code() == 0
    assert "reattach with gattach 1" in user.text

    second = sit(running, sittings, "gattach", "1")
    second.until("once")
    third = sit(running, sittings, "gattach", "1.test")
    third.until("once")
    assert second.code() == 1
    assert "another client has attached" in second.text
    third.type("~~\n~.")
    assert third.code() != 0
    assert "job 1.test is deleted" in third.text
    assert row_of(running, 1).state == JobState.DONE


def test_a_command_a_script_and_directives(running: Cluster, sittings: list[Sitting]) -> None:
    script = running.jobs / "job.sh"
    script.write_text("#!/bin/sh\n#PBS -N named -l ncpus=2\necho script $1 $PBS_NP; exit 5\n")

    command = sit(running, sittings, "gsub", "-I", "--", "sh", "-c", "tty; exit 4")
    command.until("/dev/pts/")
    assert command.code() == 4

    executed = sit(running, sittings, "gsub", "-I", "-x", "job.sh", "word")
    executed.until("script word 2")
    assert executed.code() == 5

    shell = sit(running, sittings, "gsub", "-I", "-S", "/bin/sh", "job.sh")
    shell.until("ready")
    shell.type("echo $PBS_JOBNAME-$PBS_NP; exit\n")
    shell.until("named-2")
    assert shell.code() == 0
    assert "script" not in shell.text

    named = sit(running, sittings, "gsub", "-I", "-x", "sh", "--", "-c", "exit 6")
    assert named.code() == 6
    missing = sit(running, sittings, "gsub", "-I", "--", "/no/such/program")
    assert missing.code() == 127
    assert "/no/such/program" in missing.text


def test_a_login_shell_reads_the_profile(
    running: Cluster, sittings: list[Sitting], tmp_path: Path
) -> None:
    user = sit(running, sittings, "gsub", "-I", "-S", "/bin/bash")
    user.until("ready")
    user.type("shopt -q login_shell && echo log''in; exit 0\n")
    user.until("login")
    assert user.code() == 0


def test_who_does_not_wait_does_not_get_a_job(running: Cluster, sittings: list[Sitting]) -> None:
    """A client that is killed or interrupted before the start takes its job along."""
    killed = sit(running, sittings, "gsub", "-I", "-h")
    killed.until("gsub: waiting for job 1.test to start")
    killed.until("job 1.test waits: ")
    interrupted = sit(running, sittings, "gsub", "-I", "-l", "ncpus=2", "-h")
    interrupted.until("job 2.test waits: ")
    interrupted.type("\x03")

    assert interrupted.code() == 130
    assert "job 2.test is deleted: it had not started" in interrupted.text
    assert row_of(running, 2).state == JobState.DONE
    assert row_of(running, 1).state == JobState.HELD
    killed.kill()
    ended = running.head.wait([1])[0]
    assert ended.row.outcome is not None
    assert "its gsub -I ended before the job started" in ended.row.outcome.message


def test_a_waiting_job_starts_when_it_is_released(
    running: Cluster, sittings: list[Sitting]
) -> None:
    user = sit(running, sittings, "gsub", "-I", "-h", "-S", "/bin/sh")
    user.until("job 1.test waits: ")
    assert run(running, "grls", "1").status == 0
    user.until("job 1.test ready on n1")
    user.type("exit\n")

    assert user.code() == 0


def test_a_session_that_is_left_for_good_ends(running: Cluster, sittings: list[Sitting]) -> None:
    user = submit(running, sittings, "--detach-timeout", "2s")
    user.type("~d")
    assert user.code() == 0

    outcome = running.head.wait([1])[0].row.outcome
    assert outcome is not None
    assert outcome.signal == signal.SIGHUP


def test_a_shell_beside_a_job(running: Cluster, sittings: list[Sitting]) -> None:
    """With its GPUs, environment, directory and limits; it ends with the job."""
    words = ("-l", "gpus=1", "-v", "MARK=of-the-job", "-N", "long", "--", "sleep", "600")
    assert run(running, "gsub", *words).status == 0
    wait_until(lambda: row_of(running, 1).state == JobState.RUNNING)

    piped = run(running, "gshell", "1", "sh", "-c", "echo $MARK; pwd; exit 7")
    assert (piped.status, piped.stdout) == (7, f"of-the-job\n{running.jobs}\n")
    failing = run(running, "gshell", "1", "/no/such/program")
    assert failing.status == 127
    assert "cannot run /no/such/program" in failing.stdout

    user = sit(running, sittings, "gshell", "--node", "n1", "1", "/bin/sh")
    user.type("echo $CUDA_VISIBLE_DEVICES-$PBS_JOBNAME-$PBS_ENVIRONMENT; cat /proc/self/cgroup\n")
    user.until("0-long-PBS_INTERACTIVE")
    leaving = sit(running, sittings, "gshell", "1", "/bin/sh")
    leaving.match(r"[$#%] ")
    leaving.type("~.")
    assert leaving.code() == 129
    assert run(running, "gdel", "1").status == 0
    user.code()

    assert "the job is being stopped" in user.text
    ended = run(running, "gshell", "1", "true")
    assert ended.status == 170
    assert "job 1 has ended" in ended.stderr


@pytest.mark.parametrize(
    ("command", "words", "status", "said"),
    [
        ("gsub", ["-I"], 2, "an interactive job (-I) needs a terminal"),
        ("gsub", ["-I", "--watch"], 2, "-I and --watch are mutually exclusive"),
        ("gsub", ["-x", "--", "true"], 2, "-x is for interactive jobs"),
        ("gattach", ["1"], 2, "gattach needs a terminal"),
        ("gshell", ["1"], 2, "a shell needs a terminal"),
        ("gshell", ["1", "true"], 170, "job 1 has not started"),
        ("gshell", ["99", "true"], 153, "Unknown Job Id"),
        ("gshell", ["--node", "n9", "2", "true"], 170, "no processes on node 'n9'"),
        ("gpeek", ["3"], 156, "job 3 is interactive"),
        ("grerun", ["3"], 170, "cannot be rerun"),
        ("galter", ["-r", "y", "3"], 170, "cannot be rerun"),
        ("gshell", ["2", "x" * 8000], 2, "too long"),
    ],
)
def test_mistakes_without_a_terminal(
    mistaken: Cluster, command: str, words: list[str], status: int, said: str
) -> None:
    ran = run(mistaken, command, *words)

    assert said in ran.stderr
    assert ran.status == status
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("command", "words", "status", "said"),
    [
        ("gsub", ["-I", "-t", "0-9"], 156, "cannot be an array"),
        ("gsub", ["-I", "--gpus", "1..2", "--elastic"], 156, "cannot have a range of GPUs"),
        ("gsub", ["-I", "--elastic"], 156, "cannot migrate"),
        ("gsub", ["-I", "--deadline", "8h"], 156, "cannot have a deadline"),
        ("gsub", ["-I", "--every-node"], 156, "cannot run on every node"),
        ("gsub", ["-I", "--lease", "1h"], 156, "cannot be restarted"),
        ("gsub", ["-I", "--torchrun", "x.py"], 2, "mutually exclusive"),
        ("gsub", ["-I", "-x"], 2, "-x needs a command"),
        ("gsub", ["-I", "--detach-timeout", "90d"], 156, "not between 0 and"),
        ("gsub", ["-I", "--detach-timeout", "soon"], 2, "soon"),
        ("gattach", ["2"], 170, "use gshell 2|gshell 2"),
        ("gattach", ["5"], 170, r"job 5\.test has ended: finished"),
        ("gattach", ["99"], 153, "Unknown Job Id"),
        ("gattach", ["4"], 170, "job 4 has ended"),
        ("gattach", ["--json", "3"], 2, "no document"),
    ],
)
def test_mistakes_at_a_terminal(
    mistaken: Cluster, command: str, words: list[str], status: int, said: str
) -> None:
    user = Sitting(
        [sys.executable, "-m", f"gsched.cli.commands.{command}", *words],
        env=command_environment(mistaken.socket),
        cwd=mistaken.jobs,
    )
    code = user.code()
    user.close()

    assert re.search(said, user.text.replace("\r\n", " ")) or said in user.text, user.text
    assert code == status, user.text
    assert "Traceback" not in user.text


@pytest.fixture(scope="module")
def mistaken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with a held job 1, a running job 2, a running shell 3, and two that have ended."""
    made = Cluster(tmp_path_factory.mktemp("mistaken"), f"mistaken{os.getpid()}")
    made.start_head()
    made.start_node("n1", cpus=8)
    assert run(made, "gsub", "-h", "--", "true").status == 0
    assert run(made, "gsub", "--", "sleep", "600").status == 0
    opened: list[Sitting] = []
    submit(made, opened)
    assert run(made, "gsub", "--wait", "--", "true").status == 0
    opened.append(sit(made, opened, "gsub", "-I", "--", "true"))
    assert opened[-1].code() == 0
    yield made
    for each in opened:
        each.close()
    made.stop()


def test_floods_in_both_directions_leave_the_head_free(
    running: Cluster, sittings: list[Sitting]
) -> None:
    """One session shows without end, one types without end, one does not read: others go on."""
    showing = submit(running, sittings)
    showing.type("yes\n")
    typing = submit(running, sittings)
    typing.type("stty -echo; exec sleep 600\n")
    stuck = submit(running, sittings)
    stuck.type("yes stuck\n")
    flood = subprocess.Popen(
        [sys.executable, "-c", "import os\nwhile True: os.write(1, b'x' * 4000 + b'\\n')"],
        stdout=typing.master,
    )
    drain = subprocess.Popen(["cat"], stdin=showing.master, stdout=subprocess.DEVNULL)
    try:
        time.sleep(2.0)
        for _ in range(5):
            assert run(running, "gsub", "--wait", "--", "true").status == 0
        processes = [running.head_process.pid, running.node_process("n1").pid]
        memory = [psutil.Process(pid).memory_info().rss for pid in processes]
        assert max(memory) < 400 << 20, memory
    finally:
        for process in (flood, drain):
            process.kill()
            process.wait()


def test_the_number_of_sessions_of_a_user_is_bounded(running: Cluster) -> None:
    job = new_job(name="held", workdir="/", launch="command", holds=["user"], interactive={})
    (result,) = running.head.submit([job]).results
    assert result.error is None

    async def last_answer() -> str:
        path = str(running.socket)
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(path)) as client:
            opened = [
                await client.ws_connect(f"http://gschedd/v1/jobs/{result.id}/session")
                for _ in range(sessions.MAX_OF_USER + 1)
            ]
            said = str((await opened[-1].receive()).data)
            for each in opened:
                await each.close()
            return said

    assert f"{sessions.MAX_OF_USER} terminal sessions, the limit" in asyncio.run(last_answer())

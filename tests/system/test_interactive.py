"""Interactive jobs from end to end: real commands on a real terminal, a real head and gnode."""

import asyncio
import contextlib
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import aiohttp
import psutil
import pytest

from gsched.client import new_job
from gsched.forwarding import CONNECTIONS_MAX
from gsched.model.limits import MAX_USER_SESSIONS
from gsched.model.states import JobState
from gsched.protocol.job_rows import JobRow
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import Ran, command_environment, run_command
from tests.support.ports import free_port
from tests.support.ptys import Sitting


@pytest.fixture
def running(cluster: Cluster) -> Cluster:
    cluster.start_head()
    cluster.start_node("n1", cpus=8, gpus=2)
    return cluster


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with a held job 1, a running job 2, a running shell 3, and two that have ended."""
    made = Cluster(tmp_path_factory.mktemp("shared"), f"shared{os.getpid()}")
    made.start_head()
    made.start_node("n1", cpus=8, gpus=2)
    assert run(made, "gsub", "-h", "--", "true").status == 0
    assert run(made, "gsub", "--", "sleep", "600").status == 0
    opened: list[Sitting] = []
    assert submit(made, opened)[1] == "3"
    assert run(made, "gsub", "--wait", "--", "true").status == 0
    assert sit(made, opened, "gsub", "-I", "--", "true").code() == 0
    yield made
    for each in opened:
        each.close()
    made.stop()


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


def submit(cluster: Cluster, sittings: list[Sitting], *words: str) -> tuple[Sitting, str]:
    """Sit at the shell of an interactive job; return its number, too."""
    user = sit(cluster, sittings, "gsub", "-I", "-S", "/bin/sh", *words)
    job = user.match(r"gsub: waiting for job (\d+)\.test to start\r\n")[1]
    user.match(r"gsub: job \d+\.test ready on n1")
    user.match(r"[$#] ")
    return user, job


def row_of(cluster: Cluster, job: str) -> JobRow:
    return cluster.head.job(job).row


def run(cluster: Cluster, name: str, *arguments: str) -> Ran:
    return run_command(name, *arguments, head=cluster.socket, cwd=cluster.jobs)


def test_a_session_survives_its_client_gnode_and_the_head(
    running: Cluster, sittings: list[Sitting]
) -> None:
    """A prompt, a size that follows, kills of everybody but the shell, and its exit code."""
    user, _ = submit(running, sittings, "-l", "gpus=1,walltime=0:30:00")
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


def test_leaving_coming_again_and_taking_over(shared: Cluster, sittings: list[Sitting]) -> None:
    user, job = submit(shared, sittings)
    user.type("echo on''ce\n")
    user.until("once")
    user.type("~?")
    user.until("~d  detach")
    user.type("~d")
    assert user.code() == 0
    assert f"reattach with gattach {job}" in user.text

    second = sit(shared, sittings, "gattach", job)
    second.until("once")
    third = sit(shared, sittings, "gattach", f"{job}.test")
    third.until("once")
    assert second.code() == 1
    assert "another client has attached" in second.text
    third.type("~~\n~.")
    assert third.code() != 0
    assert f"job {job}.test is cancelled" in third.text
    assert row_of(shared, job).state == JobState.DONE


def test_a_command_a_script_and_directives(shared: Cluster, sittings: list[Sitting]) -> None:
    script = shared.jobs / "job.sh"
    script.write_text("#!/bin/sh\n#PBS -N named -l ncpus=2\necho script $1 $PBS_NP; exit 5\n")

    command = sit(shared, sittings, "gsub", "-I", "--", "sh", "-c", "tty; exit 4")
    command.until("/dev/pts/")
    assert command.code() == 4

    executed = sit(shared, sittings, "gsub", "-I", "-x", "job.sh", "word")
    executed.until("script word 2")
    assert executed.code() == 5

    shell = sit(shared, sittings, "gsub", "-I", "-S", "/bin/sh", "job.sh")
    shell.until("ready")
    shell.type("echo $PBS_JOBNAME-$PBS_NP; exit\n")
    shell.until("named-2")
    assert shell.code() == 0
    assert "script" not in shell.text

    named = sit(shared, sittings, "gsub", "-I", "-x", "sh", "--", "-c", "exit 6")
    assert named.code() == 6
    missing = sit(shared, sittings, "gsub", "-I", "--", "/no/such/program")
    assert missing.code() == 127
    assert "/no/such/program" in missing.text


def test_a_login_shell_reads_the_profile(shared: Cluster, sittings: list[Sitting]) -> None:
    user = sit(shared, sittings, "gsub", "-I", "-S", "/bin/bash")
    user.until("ready")
    user.type("shopt -q login_shell && echo log''in; exit 0\n")
    user.until("login")
    assert user.code() == 0


def test_who_does_not_wait_does_not_get_a_job(shared: Cluster, sittings: list[Sitting]) -> None:
    """A client that is killed or interrupted before the start takes its job along."""
    killed = sit(shared, sittings, "gsub", "-I", "-h")
    first = killed.match(r"gsub: waiting for job (\d+)\.test to start")[1]
    killed.until(f"job {first}.test waits: ")
    interrupted = sit(shared, sittings, "gsub", "-I", "-h")
    second = interrupted.match(r"job (\d+)\.test waits: ")[1]
    interrupted.type("\x03")

    assert interrupted.code() == 130
    assert f"job {second}.test is cancelled: it had not started" in interrupted.text
    assert row_of(shared, second).state == JobState.DONE
    assert row_of(shared, first).state == JobState.HELD
    killed.kill()
    ended = shared.head.wait([first])[0]
    assert ended.row.outcome is not None
    assert "its gsub -I ended before the job started" in ended.row.outcome.message


def test_a_waiting_job_starts_when_it_is_released(shared: Cluster, sittings: list[Sitting]) -> None:
    user = sit(shared, sittings, "gsub", "-I", "-h", "-S", "/bin/sh")
    job = user.match(r"job (\d+)\.test waits: ")[1]
    assert run(shared, "grls", job).status == 0
    user.until(f"job {job}.test ready on n1")
    user.type("exit\n")

    assert user.code() == 0


def test_a_session_that_is_left_for_good_ends(shared: Cluster, sittings: list[Sitting]) -> None:
    user, job = submit(shared, sittings, "--detach-timeout", "2s")
    user.type("~d")
    assert user.code() == 0

    outcome = shared.head.wait([job])[0].row.outcome
    assert outcome is not None
    assert outcome.signal == signal.SIGHUP


SERVER = """
import http.server, sys
class Echo(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        data = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo)
open("port", "w").write(str(server.server_port))
server.serve_forever()
"""


def test_a_port_of_a_job_is_reached_through_its_session(
    shared: Cluster, sittings: list[Sitting]
) -> None:
    """A real HTTP server in a job: several connections, some megabytes both ways, and its end."""
    (shared.jobs / "server.py").write_text(SERVER)
    job = run(shared, "gsub", "--", sys.executable, "server.py").stdout.partition(".")[0]
    wait_until(lambda: (shared.jobs / "port").exists() and (shared.jobs / "port").read_text() != "")
    remote = (shared.jobs / "port").read_text()
    local, closed = free_port(), free_port()
    ports = ("-L", f"{local}:{remote}", "-L", f"{closed}:1")
    user = sit(shared, sittings, "gshell", "-N", *ports, job)
    user.until(f"http://127.0.0.1:{local} leads to port {remote} of job {job}.test")
    user.until(f"http://127.0.0.1:{closed} leads to port 1")
    data = os.urandom(3 * 1024 * 1024)

    def post(_: int) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", local, timeout=60)
        with contextlib.closing(connection):
            connection.request("POST", "/", body=data)
            return connection.getresponse().read()

    with ThreadPoolExecutor(4) as pool:
        idle = socket.create_connection(("127.0.0.1", local))  # one that never reads
        idle.sendall(b"GET /server.py HTTP/1.1\r\n\r\n" * 2000)
        assert list(pool.map(post, range(4))) == [data] * 4
        idle.close()
    with contextlib.ExitStack() as many:
        for _ in range(CONNECTIONS_MAX + 2):
            many.enter_context(socket.create_connection(("127.0.0.1", local)))
        user.until(f"{CONNECTIONS_MAX} connections are open, the limit: more are refused")

    def is_refused() -> bool:
        """Connect: it is refused for their number until the many have ended on the node, too."""
        with socket.create_connection(("127.0.0.1", closed)) as refused:
            assert refused.recv(1) == b""
        user._read(0.1)
        return b"port 1 of the job: connection refused" in user.seen

    wait_until(is_refused, what="the refusal by the node")
    relays = [each for each in psutil.process_iter(["name"]) if each.name() == "gforward"]
    assert {each.uids().real for each in relays} == {os.getuid()}

    beside = run(shared, "gshell", "-L", str(free_port()), job, "echo", "ran")
    assert (beside.status, beside.stdout) == (0, "ran\n"), beside.stderr
    taken = run(shared, "gshell", "-N", "-L", f"{local}:{remote}", job)
    assert (taken.status, "address already in use" in taken.stderr) == (73, True)
    for words in (("-N", job), ("-N", "-L", "9:9", job, "ls"), ("-L", "x", job, "ls")):
        assert run(shared, "gshell", *words).status == 2
    assert run(shared, "gshell", "-N", "-L", str(free_port()), "1").status == 170
    assert run(shared, "gdel", job).status == 0
    assert user.code() == 0


def test_a_forwarding_names_the_connection_that_is_lost(
    running: Cluster, sittings: list[Sitting]
) -> None:
    """The one of the node, where only gnode was killed."""
    job = run(running, "gsub", "--", "sleep", "600").stdout.partition(".")[0]
    user = sit(running, sittings, "gshell", "-N", "-L", f"{free_port()}:1", job)
    user.until("leads to port 1")

    running.kill_node("n1")

    user.until("the connection to node n1 is lost: connecting again")
    running.start_node("n1", cpus=8, gpus=2)
    user.until("connected again")
    assert run(running, "gdel", "-W", "1", job).status == 0


def test_a_shell_beside_a_job(shared: Cluster, sittings: list[Sitting]) -> None:
    """With its GPUs, environment, directory and limits; it ends with the job."""
    words = ("-l", "gpus=1", "-v", "MARK=of-the-job", "-N", "long", "--", "sleep", "600")
    submitted = run(shared, "gsub", *words)
    job = submitted.stdout.partition(".")[0]

    piped = run(shared, "gshell", job, "sh", "-c", "echo $MARK; pwd; exit 7")
    assert (piped.status, piped.stdout) == (7, f"of-the-job\n{shared.jobs}\n"), piped.stderr
    assert run(shared, "gshell", job, "--", "echo", "--", "ran").stdout == "-- ran\n"
    failing = run(shared, "gshell", job, "/no/such/program")
    assert failing.status == 127
    assert "gshell: cannot run /no/such/program" in failing.stdout
    line = run(shared, "gshell", job, "echo $((40+2)) | tr 4 5; false || exit 3")
    assert (line.status, line.stdout) == (3, "52\n")

    user = sit(shared, sittings, "gshell", "--node", "n1", job, "/bin/sh")
    user.type("echo $CUDA_VISIBLE_DEVICES-$PBS_JOBNAME-$PBS_ENVIRONMENT; cat /proc/self/cgroup\n")
    user.until("0-long-PBS_INTERACTIVE")
    leaving = sit(shared, sittings, "gshell", job, "/bin/sh")
    leaving.match(r"[$#%] ")
    leaving.type("~.")
    assert leaving.code() == 129
    assert run(shared, "gdel", job).status == 0
    user.code()

    assert "the job is being stopped" in user.text
    ended = run(shared, "gshell", job, "true")
    assert ended.status == 170
    assert f"job {job} has ended" in ended.stderr


def slurm(cluster: Cluster, sittings: list[Sitting], name: str, *words: str) -> Sitting:
    """Start a command of Slurm at a terminal, as its shim does."""
    code = f"from gsched.cli.slurm.commands import main; main({name!r})"
    made = Sitting(
        [sys.executable, "-c", code, *words],
        env=command_environment(cluster.socket, TERM="dumb"),
        cwd=cluster.jobs,
    )
    sittings.append(made)
    return made


def test_salloc_and_srun_pty(shared: Cluster, sittings: list[Sitting]) -> None:
    command = "echo $SLURM_JOB_NAME-$SLURM_CPUS_ON_NODE; tty; exit 6"
    allocated = slurm(shared, sittings, "salloc", "-c", "2", "-J", "named", "sh", "-c", command)
    job = allocated.match(r"salloc: waiting for job (\d+)\.test to start")[1]
    allocated.match(r"named-2\r\n/dev/pts/")
    assert allocated.code() == 6
    assert row_of(shared, job).name == "named"

    run_there = slurm(shared, sittings, "srun", "--pty", "-n", "1", "sh", "-c", "tty; exit 7")
    run_there.until("/dev/pts/")
    assert run_there.code() == 7
    beside = slurm(shared, sittings, "srun", "--jobid", "2", "--pty", "sh", "-c", "echo $PBS_JOBID")
    beside.until("2.test")
    assert beside.code() == 0


@pytest.mark.parametrize(
    ("command", "words", "status", "said"),
    [
        ("gsub", ["-I"], 2, "an interactive job (-I) needs a terminal"),
        ("gsub", ["-I", "--watch"], 2, "-I and --watch are mutually exclusive"),
        ("gsub", ["-x", "--", "true"], 2, "-x is for interactive jobs"),
        ("gattach", ["1"], 2, "gattach needs a terminal"),
        ("gshell", ["1"], 2, "a shell needs a terminal"),
        ("gshell", ["-L", "8888", "1"], 2, "-N only forwards ports"),
        ("gshell", ["1", "true"], 170, "job 1 has not started"),
        ("gshell", ["99", "true"], 153, "Unknown Job Id"),
        ("gshell", ["--node", "n9", "2", "true"], 170, "no processes on node 'n9'"),
        ("gpeek", ["3"], 156, "job 3 is interactive"),
        ("grerun", ["3"], 170, "is not rerunnable (-r n)"),
        ("galter", ["-r", "y", "3"], 170, "cannot be rerun"),
        ("gshell", ["2", "x" * 8000], 2, "too long"),
    ],
)
def test_mistakes_without_a_terminal(
    shared: Cluster, command: str, words: list[str], status: int, said: str
) -> None:
    ran = run(shared, command, *words)

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
    shared: Cluster, command: str, words: list[str], status: int, said: str
) -> None:
    user = Sitting(
        [sys.executable, "-m", f"gsched.cli.commands.{command}", *words],
        env=command_environment(shared.socket),
        cwd=shared.jobs,
    )
    code = user.code()
    user.close()

    assert re.search(said, user.text.replace("\r\n", " ")) or said in user.text, user.text
    assert code == status, user.text
    assert "Traceback" not in user.text


def test_floods_in_both_directions_leave_the_head_free(
    running: Cluster, sittings: list[Sitting]
) -> None:
    """One session shows without end, one types without end, one does not read: others go on."""
    showing, _ = submit(running, sittings)
    showing.type("yes\n")
    typing, _ = submit(running, sittings)
    typing.type("stty -echo; exec sleep 600\n")
    stuck, _ = submit(running, sittings)
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


def test_the_number_of_sessions_of_a_user_is_bounded(shared: Cluster) -> None:
    job = new_job(name="held", workdir="/", launch="command", holds=["user"], interactive={})
    (result,) = shared.head.submit([job]).results
    assert result.error is None

    async def last_answer() -> str:
        path = str(shared.socket)
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(path)) as client:
            opened = [
                await client.ws_connect(f"http://gschedd/v1/jobs/{result.id}/session")
                for _ in range(MAX_USER_SESSIONS + 1)
            ]
            said = str((await opened[-1].receive()).data)
            for each in opened:
                await each.close()
            return said

    assert f"{MAX_USER_SESSIONS} terminal sessions, the limit" in asyncio.run(last_answer())

"""A program in a fork is what it would be in an interpreter of its own."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support import forks
from tests.support.processes import MARKER, PATIENCE_S, attempts, processes_of

#: Stands for a command: both kinds of start execute it as ``__main__``.
PROGRAM = """\
import json, os, signal, sys
print(json.dumps({
    "name": __name__,
    "argv": [os.path.basename(sys.argv[0]), *sys.argv[1:]],
    "path": sys.path[0],
    "directory": os.getcwd(),
    "environment": dict(os.environ),
    "shown": open("/proc/self/cmdline").read().rstrip("\\0").split("\\0"),
    "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    "pipe": signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN,
    "leads": os.getsid(0) == os.getpid(),
    "has_terminal": os.isatty(0) and os.tcgetpgrp(0) == os.getpid(),
    "descriptors": sorted(os.listdir("/proc/self/fd")),
    "encodings": [sys.stdout.encoding, sys.stdout.errors, sys.stderr.encoding, sys.stdin.encoding],
    "buffered": [sys.stdout.line_buffering, sys.stdout.write_through],
    "input": sys.stdin.read(),
}), flush=True)
for stream in (sys.stdout, sys.stderr):
    stream.reconfigure(errors="backslashreplace")
print("to stderr", file=sys.stderr)
if "wait" in sys.argv:
    signal.pause()
sys.exit("the end" if "text" in sys.argv else 7)
"""
Start = Callable[..., "subprocess.Popen[Any]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return what starts the program, by a fork unless ``new``."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "program.py").write_text(PROGRAM)
    server = forks.ForkServer(sys.executable, ["json"])

    def begin(*words: str, new: bool, **how: Any) -> "subprocess.Popen[Any]":
        command = [sys.executable, "-m", "program", *words]
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        how = {"cwd": tmp_path / "here", "text": True, **streams, **how}
        if new:
            return subprocess.Popen(command, **how)
        return forks.Forked(command, server=server, **how)

    yield begin
    server.close()


@pytest.mark.parametrize("new_session", [False, True])
def test_a_fork_finds_what_a_new_interpreter_finds(start: Start, *, new_session: bool) -> None:
    """Arguments, directory, environment, streams, signals: also as /proc shows them."""
    kept = {key: value for key, value in os.environ.items() if key.startswith("PYTHON")}
    environment = {**kept, "PATH": os.environ["PATH"], "TZ": "Asia/Tokyo", "EMPTY": ""}
    seen = []
    for new in (True, False):
        process = start("a", "", new=new, env=environment, start_new_session=new_session)
        stdout, stderr = process.communicate("some input", timeout=30)
        assert (process.returncode, stderr) == (7, "to stderr\n")
        seen.append(json.loads(stdout))

    new, fork = seen
    for each in (new, fork):  # Python sets it where there is no locale
        each["environment"].pop("LC_CTYPE", None)
    assert fork == new
    assert fork["environment"] == environment
    assert fork["input"] == "some input"


def test_a_fork_at_a_terminal_finds_what_a_new_interpreter_finds(start: Start) -> None:
    """Its standard input is the terminal of its session, and its streams are buffered by lines."""
    kept = {key: value for key, value in os.environ.items() if key.startswith("PYTHON")}
    seen = []
    for new in (True, False):
        master, slave = os.openpty()
        streams = {"stdin": slave, "stdout": slave, "stderr": slave}
        terminal = {"start_new_session": True, "preexec_fn": forks.take_terminal}
        process = start("a", new=new, env=kept, text=False, **streams, **terminal)
        os.close(slave)
        os.write(master, b"\x04")  # the end of its input
        shown = b""
        with contextlib.suppress(OSError):  # EIO: the other side is closed
            while data := os.read(master, 65536):
                shown += data
        os.close(master)
        assert process.wait(PATIENCE_S) == 7
        line = next(each for each in shown.decode().splitlines() if "{" in each)
        seen.append(json.loads(line[line.index("{") :]))

    new, fork = seen
    for each in (new, fork):
        each["environment"].pop("LC_CTYPE", None)
    assert fork == new
    assert fork["has_terminal"]


@pytest.mark.parametrize("new", [True, False])
def test_the_end_of_a_fork_is_told_as_that_of_a_child(start: Start, *, new: bool) -> None:
    process = start("text", new=new)
    _, stderr = process.communicate("", timeout=30)
    assert (process.returncode, stderr) == (1, "to stderr\nthe end\n")

    process = start("wait", new=new)
    assert process.stdin is not None
    process.stdin.close()
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == -signal.SIGTERM
    assert process.poll() == -signal.SIGTERM
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    process.stderr.close()


def test_a_fork_is_known_by_the_environment_of_its_test(start: Start, tmp_path: Path) -> None:
    """So one that is left behind is found, wherever it works."""
    process = start("wait", new=False, cwd="/", env={**os.environ, MARKER: "forks"})
    process.kill()
    process.communicate()
    process = start("wait", new=False, env={**os.environ, MARKER: "forks"})
    for _ in attempts():
        if processes_of("forks", tmp_path / "elsewhere"):
            break
    found = processes_of("forks", tmp_path / "elsewhere")
    process.kill()
    process.communicate()
    assert [each.pid for each in found] == [process.pid]


def test_a_program_whose_interpreter_would_be_another_is_no_fork() -> None:
    """What an interpreter reads at its start is as it was in the server."""
    command = [sys.executable, "-m", "gsched.cli.commands.gstat", "--version"]
    kinds = []
    for environment in (os.environ, os.environ | {"PYTHONUTF8": "0"}, os.environ | {"LANG": "x"}):
        process = forks.popen(command, env=dict(environment), stdout=subprocess.PIPE, text=True)
        stdout, _ = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, stdout.split()[:1]) == (0, ["gstat"])
        kinds.append(isinstance(process, forks.Forked))
    assert kinds == [not os.environ.get("GSCHED_TEST_NO_FORKS"), False, False]


class TimeOutError(Exception):
    """Stands for the time-out of a test, which a signal brings."""


def interrupted(server: forks.ForkServer, work: Callable[[], object]) -> None:
    """Begin some work that the server does, and leave it before the answer comes."""

    def give_up(*_: object) -> None:
        raise TimeOutError

    before = signal.signal(signal.SIGUSR1, give_up)
    os.kill(server.pid, signal.SIGSTOP)
    late = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))
    late.start()
    try:
        with pytest.raises(TimeOutError):
            work()
    finally:
        late.join()
        os.kill(server.pid, signal.SIGCONT)
        signal.signal(signal.SIGUSR1, before)


def test_a_time_out_before_an_answer_spoils_no_later_process(tmp_path: Path) -> None:
    """One test that was too slow made all later ones of its worker fail."""
    server = forks.ForkServer(sys.executable, ["json"])
    program = tmp_path / "program.py"
    program.write_text("import sys; sys.exit(int(sys.argv[1]))")

    def start(code: int) -> forks.Forked:
        return forks.Forked(["python", str(program), str(code)], server=server)

    interrupted(server, lambda: start(3))
    first, second = start(4), start(5)
    select.select([first._pidfd], [], [], PATIENCE_S)
    interrupted(server, first.wait)

    assert (first.wait(PATIENCE_S), second.wait(PATIENCE_S)) == (4, 5)
    server.close()


def test_servers_of_one_run_share_one_process_that_has_imported(tmp_path: Path) -> None:
    """Each outlives the other, and that process; after its end the next server gets a new one."""
    program = tmp_path / "program.py"
    program.write_text("print('ran')")
    servers = [forks.ForkServer(sys.executable, ["json", "this"]) for _ in range(2)]
    parents = [psutil.Process(server.pid).ppid() for server in servers]
    assert servers[0].pid != servers[1].pid
    assert parents[0] == parents[1] != os.getpid()

    servers[0].close()
    os.kill(parents[1], signal.SIGKILL)
    servers.append(forks.ForkServer(sys.executable, ["json", "this"]))
    assert psutil.Process(servers[2].pid).ppid() != parents[1]
    for server in servers[1:]:
        assert server.run([str(program)], timeout=PATIENCE_S).stdout == "ran\n"
        server.close()


def test_a_server_that_cannot_import_says_why() -> None:
    with pytest.raises(RuntimeError, match=r"No module named 'json\.nothing'"):
        forks.ForkServer(sys.executable, ["json.nothing"])


@pytest.mark.root
def test_a_fork_runs_as_another_user_and_sees_other_files() -> None:
    """With groups, and as the owner of its own /proc; others see the files as they were."""
    seen_before = Path("/etc/passwd").read_text()
    server = forks.ForkServer(sys.executable, ["json"])
    with tempfile.TemporaryDirectory(prefix="gsched-forks-") as name:  # others reach it
        top = Path(name)
        top.chmod(0o755)
        program = top / "program.py"
        program.write_text(
            "import os; print(os.getresuid(), os.getresgid(), sorted(os.getgroups()),"
            " os.stat('/proc/self/fd').st_uid, open('/etc/passwd').read())"
        )
        (top / "accounts").write_text("nobody at all")
        done = server.run(
            [str(program)],
            timeout=60.0,
            cwd="/",
            env=dict(os.environ),
            wrapper=forks.Wrapper(mounts=((str(top / "accounts"), "/etc/passwd"),)),
            user=71_001,
            group=71_002,
            extra_groups=[71_003],
        )
    server.close()

    whose = "(71001, 71001, 71001) (71002, 71002, 71002) [71003] 71001"
    assert (done.stdout, done.stderr) == (f"{whose} nobody at all\n", "")
    assert Path("/etc/passwd").read_text() == seen_before

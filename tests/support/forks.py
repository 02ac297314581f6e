"""Starts Python programs in forks of one process that has imported what they need.

A fork starts within some milliseconds, an interpreter that imports gsched within 0.1 to 0.5 s, one
that imports torch within 3 s. `popen` is `subprocess.Popen` for a program of gsched, `ForkServer`
also knows other interpreters. With GSCHED_TEST_NO_FORKS=1 each program gets a new interpreter.

Forks differ from new interpreters in that: they have one hash seed, and what they import late may
be there already. ``test_starts`` starts each program for real.
"""

import atexit
import contextlib
import fcntl
import functools
import hashlib
import json
import os
import pathlib
import select
import socket
import subprocess
import sys
import tempfile
import termios
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import IO, Any, NamedTuple

from tests.support import timings
from tests.support.fork_server import MESSAGE_BYTES, PADDING
from tests.support.processes import FORKS, MARKER
from tests.support.torch_python import torch_python

ROOT = pathlib.Path(__file__).resolve().parents[2]
SERVER = ROOT / "tests" / "support" / "fork_server.py"
TORCH = (
    "torch._dynamo",  # by an optimiser
    "torch.distributed.checkpoint.state_dict",
    "torch.nn.parallel",
)
DAEMONS = ("gschedd.main", "gnode.main", "tests.support.odd_head")
LAUNCHER = "gnode.supervisor.launcher"
#: What head and node start: as forks of these, which are forks themselves.
WORKERS = (
    "gschedd.planner.worker",
    "gschedd.monitor.worker",
    "gschedd.notify.worker",
    LAUNCHER,
)
COMMANDS = "gsched.cli.commands."
PREHEATED = "tests.support.preheated"
#: What a node of a cluster runs (`ForkServer.trains`).
NODE = ("gnode.main!", LAUNCHER, PREHEATED)
#: Variables that an interpreter reads at its start: with other values than here, no fork.
READ_AT_START = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_")

_GROUPS = pathlib.Path("/proc/self/cgroup")
#: The control groups of this process, and of its servers, before a test enters others.
GROUPS = _GROUPS.read_text()


class Wrapper(NamedTuple):
    """What is done before a program starts.

    Attributes:
        words: programs that do it, before the command.
        namespaces: files of namespaces that it enters, if that is all that the words do;
        mounts: and files that it sees in place of others, in a mount namespace of its own.
    """

    words: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    mounts: tuple[tuple[str, str], ...] = ()

    @property
    def is_simple(self) -> bool:
        """Return whether a fork can do it by itself."""
        return bool(self.namespaces or self.mounts)

    def after(self, *words: str) -> "Wrapper":
        """Return one that runs another program first."""
        return Wrapper((*words, *self.words))


NONE = Wrapper()


def take_terminal() -> None:
    """Make its standard input the terminal of a new session; the ``preexec_fn`` of a program."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


#: Of processes that have imported some modules, and that this one has started.
_started: "list[subprocess.Popen[bytes]]" = []


def _connect(python: str, modules: tuple[str, ...]) -> socket.socket:
    """Return a connection with a new fork of the one process of this run that has these modules.

    All workers of a run share it; it is started by the first that needs it, and ends with that.
    """
    wanted = hashlib.sha256(repr((python, modules)).encode()).hexdigest()[:16]
    path = os.path.join(_directory(), wanted)
    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            channel.connect(path)
        except OSError:  # there is none, or it has ended
            _start(python, modules, path)
            channel.connect(path)
    return channel


@functools.cache
def _directory() -> str:
    """Return where the sockets of this run are: for all of its workers, or for this process."""
    given = os.environ.get(FORKS)
    if given:
        return given
    made = tempfile.TemporaryDirectory(prefix="gsched-forks-")
    atexit.register(made.cleanup)
    return made.name


def _start(python: str, modules: tuple[str, ...], path: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment.pop(MARKER, None)  # it is of no single test
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()
        process = subprocess.Popen(
            [python, str(SERVER), str(listener.fileno()), PADDING, *modules],
            env={**environment, "PADDING": PADDING},
            # Pipes, or the streams of the forks would take themselves for files.
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[listener.fileno()],
        )
    if not _started:
        atexit.register(_end_all)
    _started.append(process)


def _end(process: "subprocess.Popen[bytes]") -> str:
    """End a process, and return what it has printed; servers may have its streams still."""
    process.kill()
    process.wait()
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout as output:
        os.set_blocking(output.fileno(), False)
        return (output.read() or b"").decode(errors="replace")


def _output_of_ended() -> str:
    output = ""
    for process in list(_started):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timings.END_S)  # its socket closes before its parent is told
            _started.remove(process)
            output += f":\n{_end(process)}"
    return output


def _end_all() -> None:
    while _started:
        _end(_started.pop())


class ForkServer:
    """Gives programs a process of their own that has imported some modules already.

    Attributes:
        trains: it can start nodes.
        pid: its process id.
    """

    def __init__(self, python: str, modules: Sequence[str]) -> None:
        self.trains = "gnode.main!" in modules
        self._turn = threading.Lock()
        self._number = 0
        try:
            self.pid = self._join(python, tuple(modules))
        except RuntimeError:  # with the worker that had started it, perhaps
            self.pid = self._join(python, tuple(modules))

    def _join(self, python: str, modules: tuple[str, ...]) -> int:
        self._channel = _connect(python, modules)
        try:
            return self.ask({"join": timings.account()})[0]
        except RuntimeError:
            self._channel.close()
            raise

    def ask(self, request: Mapping[str, object], streams: Sequence[int] = ()) -> tuple[int, float]:
        """Return the server's answer to a request: a number, and seconds of CPU time.

        The time-out of a test may come before the answer, which then is not that of the next one.
        """
        with self._turn:
            self._number += 1
            message = json.dumps({**request, "number": self._number}).encode()
            with contextlib.suppress(ConnectionError):  # the next line says it
                socket.send_fds(self._channel, [message], streams)
            while True:
                answer = self._receive()
                if not answer:
                    raise RuntimeError(f"the server of forks has ended{_output_of_ended()}")
                number, found, cpu_s = json.loads(answer)
                if number == self._number:
                    return found, cpu_s

    def _receive(self) -> bytes:
        with contextlib.suppress(ConnectionError):
            return self._channel.recv(MESSAGE_BYTES)
        return b""

    def start(
        self,
        script: Sequence[str],
        environment: Mapping[str, str],
        output: IO[bytes],
        errors: IO[bytes] | None = None,
    ) -> "subprocess.Popen[bytes]":
        """Start a script.

        Args:
            script: its path and its arguments.
            environment: all of it.
            output: gets its standard output.
            errors: gets its standard error; None: ``output`` does.
        """
        return Forked(
            ["python", *script],
            server=self,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors or output,
        )

    def run(
        self, script: Sequence[str], *, timeout: float, **how: Any
    ) -> "subprocess.CompletedProcess[str]":
        """Run a script to its end; the keywords are `subprocess.run`'s."""
        return _run(partial(Forked, ["python", *script], server=self), timeout, how)

    def close(self) -> None:
        """End it, and with it each fork."""
        end = os.pidfd_open(self.pid)
        self._channel.close()
        select.select([end], [], [])
        os.close(end)


class Forked(subprocess.Popen[Any]):
    """A process that a `ForkServer` has started, which is its parent."""

    def __init__(
        self, command: Sequence[str], *, server: ForkServer, wrapper: Wrapper = NONE, **how: Any
    ) -> None:
        self._server = server
        self._wrapper = wrapper
        self._pidfd = -1
        super().__init__(command, **how)

    def _execute_child(self, args: Sequence[str], *rest: Any) -> None:
        cwd, env = rest[4:6]
        pipes = rest[9:15]
        start = {
            "command": args,
            "environment": dict(os.environ if env is None else env),
            "directory": str(cwd or os.getcwd()),
            "new_session": rest[20],
            "terminal": rest[1] is take_terminal,
            "group": rest[16],
            "groups": rest[17],
            "user": rest[18],
            "namespaces": self._wrapper.namespaces,
            "mounts": self._wrapper.mounts,
        }
        given = (pipes[0], pipes[3], pipes[5])
        streams = [own if own >= 0 else number for number, own in enumerate(given)]
        self.pid, _ = self._server.ask({"start": start}, streams)
        self._pidfd = os.pidfd_open(self.pid)
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]  # of the base, on all systems

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        return self._reap(0)

    def _wait(self, timeout: float | None) -> int:
        code = self._reap(timeout)
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return code

    def _reap(self, timeout_s: float | None) -> int | None:
        if self.returncode is None and self._pidfd >= 0:
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            if poll.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000):
                status, cpu_s = self._server.ask({"end": self.pid})
                timings.add_cpu_s(cpu_s)
                self.returncode = os.waitstatus_to_exitcode(status)
                os.close(self._pidfd)
                self._pidfd = -1
        return self.returncode


def popen(
    command: Sequence[str],
    *,
    wrapper: Wrapper = NONE,
    server: ForkServer | None = None,
    **how: Any,
) -> "subprocess.Popen[Any]":
    """Start a program as `subprocess.Popen` does; by a fork, if it is a daemon or a command.

    ``server`` starts it instead of the one for daemons and commands.
    """
    environment = dict(how.get("env") or os.environ)
    if (
        not _is_ours(command)
        or _at_start(environment) != _at_start(dict(os.environ))
        or _GROUPS.read_text() != GROUPS  # a fork would be in the server's
        or (wrapper.words and not wrapper.is_simple)
    ):
        return subprocess.Popen([*wrapper.words, *command], **how)
    return Forked(command, server=server or _gsched_server(), wrapper=wrapper, **how)


def popen_launcher(
    command: Sequence[str], *, server: ForkServer | None = None, **how: Any
) -> "subprocess.Popen[Any]":
    """Start a launcher (``python -I -m``) as a fork of a server that has imported nothing else.

    Like a launcher that was started alone, it is small, and its supervisors are cheap to fork.
    """
    if os.environ.get("GSCHED_TEST_NO_FORKS") or _GROUPS.read_text() != GROUPS:
        return subprocess.Popen(command, **how)
    words = [word for word in command if word != "-I"]
    if server is None or not server.trains:
        server = _launcher_server()
    return Forked(words, server=server, **how)


def run(
    command: Sequence[str], *, timeout: float, typed: str = "", **how: Any
) -> "subprocess.CompletedProcess[str]":
    """Run a program to its end, as `subprocess.run` with ``capture_output`` and ``text`` does.

    It reads ``typed`` from a pipe; from /dev/null if that is empty.
    """
    return _run(partial(popen, command), timeout, how, typed)


def _run(
    start: "Callable[..., subprocess.Popen[Any]]",
    timeout: float,
    how: Mapping[str, Any],
    typed: str = "",
) -> "subprocess.CompletedProcess[str]":
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    stdin = subprocess.PIPE if typed else subprocess.DEVNULL
    with start(stdin=stdin, **pipes, **how) as process:
        try:
            stdout, stderr = process.communicate(typed or None, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def _is_ours(command: Sequence[str]) -> bool:
    if os.environ.get("GSCHED_TEST_NO_FORKS") or list(command[:2]) != [sys.executable, "-m"]:
        return False
    fits = sum(map(len, command)) < len(PADDING)
    return fits and (command[2] in DAEMONS or command[2].startswith(COMMANDS))


def _at_start(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what an interpreter reads at its start, but where the tree lies."""
    found = {key: each for key, each in environment.items() if key.startswith(READ_AT_START)}
    if found.get("PYTHONPATH") == str(ROOT):
        del found["PYTHONPATH"]
    return found


@functools.cache
def _gsched_server() -> ForkServer:
    """Return the server of this process, which ends with it."""
    made = ForkServer(
        sys.executable,
        [*(f"{name}!" for name in DAEMONS), *WORKERS, *_cli(), f"{COMMANDS[:-1]}!", PREHEATED],
    )
    atexit.register(made.close)
    return made


@functools.cache
def _launcher_server() -> ForkServer:
    """Return the server for launchers of this process, which ends with it."""
    made = ForkServer(sys.executable, (f"{LAUNCHER}!",))
    atexit.register(made.close)
    return made


def _cli() -> list[str]:
    """Return the modules of which commands consist."""
    top = ROOT / "gsched" / "cli"
    paths = [path.relative_to(ROOT).with_suffix("") for path in sorted(top.rglob("*.py"))]
    return [".".join(path.parts) for path in paths if path.name not in {"__init__", "__main__"}]


def torch_server(*packages: str, modules: Sequence[str] = ()) -> ForkServer:
    """Return a server of an interpreter that has torch, and these packages, or skip the test.

    It has imported what is used of torch, and ``modules``. If it is this interpreter, it also
    starts nodes whose training jobs find all this in memory (`tests.support.programs`).
    """
    python = torch_python(*packages)
    nodes = NODE if python == sys.executable else ()
    return ForkServer(python, (*TORCH, *modules, *nodes))


@functools.cache
def training_server() -> ForkServer:
    """Return the server with torch of this process, which ends with it."""
    made = torch_server("sklearn", modules=("sklearn.datasets",))
    atexit.register(made.close)
    return made

"""Runs programs in forks of a process that has imported what they import.

``python fork_server.py LISTENER PADDING MODULE...`` imports the modules. Who connects to the socket
LISTENER gets a server of its own, a fork. That serves requests, each one message with a ``number``,
which is in the answer: ``{"join": FILE}`` of a control group, answered by the server's process id;
``{"start": ...}`` with three standard streams, answered by a process id; or ``{"end": pid}``, of a
process that has ended, answered by its wait status and its seconds of CPU time. A module whose name
ends with ``!`` is forgotten again, with all below it: a fork that runs it executes it once more, as
``python -m`` does, and finds in memory all that it imports. A fork that starts one of the modules
(``gsched up`` a daemon, the head a worker) gets a fork of itself (`Daemons`). The environment must
hold what the modules read at their import (``OMP_NUM_THREADS``).
"""

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import logging
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
import traceback
from typing import Any, NoReturn

from tests.support import programs

CLONE_NEWNS, MS_BIND, MS_REC, MS_PRIVATE = 0x20000, 4096, 16384, 1 << 18
PR_SET_DUMPABLE = 4
MESSAGE_BYTES = 120_000
#: Makes room in the command line and in the environment of the server for those of a fork.
PADDING = "-" * 4096
PR_SET_PDEATHSIG = 1
#: How often, and after how many seconds again, it is looked whether other threads compute.
LOOKS, LOOK_S = 500, 0.002
#: An interpreter's own, which the head changes.
GC_THRESHOLDS, SWITCH_S = gc.get_threshold(), sys.getswitchinterval()
#: What an interpreter begins with, whatever the process that starts it does with them.
HANDLED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD)


def accept(listener: socket.socket) -> socket.socket:
    """Return, in forks only, the connection of each process that connects."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a server has ended
    while True:
        channel, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return channel
        channel.close()


def serve(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Serve requests; return None at their end, and in a fork what it is to run."""
    ended: dict[int, tuple[int, float]] = {}
    while True:
        message, streams, _, _ = socket.recv_fds(channel, MESSAGE_BYTES, 3)
        if not message:
            return None
        request = json.loads(message)
        if "join" in request:
            answer, cpu_s = os.getpid(), 0.0
            if request["join"]:
                with open(request["join"], "w") as group:
                    group.write("0")
        elif "start" in request:
            pid, cpu_s = os.fork(), 0.0
            if pid == 0:
                channel.close()
                return request["start"], streams
            for stream in streams:
                os.close(stream)
            answer = pid
        else:
            with contextlib.suppress(ChildProcessError):  # a time-out came before the last answer
                pid, status, used = os.wait4(request["end"], 0)
                ended[pid] = status, used.ru_utime + used.ru_stime
            answer, cpu_s = ended[request["end"]]
        channel.send(json.dumps((request["number"], answer, cpu_s)).encode())


class Daemons(subprocess.Popen[Any]):
    """Starts a daemon, or a worker of a daemon, as a fork of the fork that starts it.

    With GSCHED_TEST_NO_FORKS it gets an interpreter of its own.
    """

    modules: frozenset[str] = frozenset()

    def _execute_child(self, args: Any, *rest: Any) -> None:
        command = plain(list(args)) if isinstance(args, list | tuple) else []
        if module_of(command) not in self.modules or os.environ.get("GSCHED_TEST_NO_FORKS"):
            super()._execute_child(args, *rest)  # type: ignore[misc]  # of the base, on all systems
            return
        given = (rest[9], rest[12], rest[14])
        streams = [own if own >= 0 else number for number, own in enumerate(given)]
        start = {
            "command": command,
            "environment": dict(os.environ if rest[5] is None else rest[5]),
            "directory": str(rest[4] or os.getcwd()),
            "new_session": rest[20],
            "group": None,
            "groups": None,
            "user": None,
            "namespaces": [],
            "mounts": [],
            "outlives": True,
        }
        _let_threads_rest()
        self.pid = os.fork()
        if self.pid == 0:
            _be_daemon(start, streams, {int(each) for each in rest[3]})
        self._child_created = True
        self._close_pipe_fds(*rest[9:15])  # type: ignore[attr-defined]  # as above


def _let_threads_rest() -> None:
    """Wait until no other thread computes: what it locks (in SQLite) would stay so in a fork."""
    own = str(threading.get_native_id())
    for _ in range(LOOKS):
        if not any(_computes(task) for task in os.listdir("/proc/self/task") if task != own):
            return
        time.sleep(LOOK_S)


def _computes(task: str) -> bool:
    try:
        with open(f"/proc/self/task/{task}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "R"
    except OSError:
        return False


def plain(command: list[str]) -> list[str]:
    """Return a command that boots a module of a tree (``-I -c``) as one that runs it (``-m``)."""
    if command[1:3] != ["-I", "-c"]:
        return command
    boot = re.search(r"run_module\('([\w.]+)'", command[3])
    return [command[0], "-m", boot[1], *command[5:]] if boot else command


def module_of(command: list[str]) -> str:
    """Return the module that a command runs with this interpreter; empty: none."""
    if command[:1] != [sys.executable]:
        return ""
    words = command[1:]
    if words[:1] == ["-P"]:
        del words[0]
    return words[1] if len(words) > 1 and words[0] == "-m" else ""


def _be_daemon(start: dict[str, Any], streams: list[int], passed: set[int]) -> None:
    """Run a daemon in a fork of what starts it, set up as an interpreter, and end the process."""
    gc.freeze()  # nothing of the other is thrown away: it would close this one's files
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_S)
    logging.getLogger().handlers.clear()
    atexit._clear()
    signal.set_wakeup_fd(-1)
    for number in HANDLED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    above = 1 + max(passed, default=2)
    kept = [fcntl.fcntl(stream, fcntl.F_DUPFD, above) for stream in streams]
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in {0, 1, 2, *kept, *passed}:
            with contextlib.suppress(OSError):  # that of the list
                os.close(int(name))
    sys.modules.pop(module_of(start["command"]), None)
    code: object = 1
    try:
        become(start, kept)
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001 - an interpreter prints it and ends
        traceback.print_exc()
    _end(code if isinstance(code, int) else int(code is not None))


def _end(code: int) -> NoReturn:
    """End this process, without the clearing of all modules, which copies what forks share.

    That takes as much CPU time as the start of a daemon.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = 120  # as the interpreter ends
    os._exit(code)


def become(start: dict[str, Any], streams: list[int]) -> None:
    """Run a program in this process, as the interpreter would."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if start["new_session"]:
        os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    if start.get("terminal"):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        text: Any = sys.stdout
        text.reconfigure(line_buffering=not text.write_through)  # as the interpreter does
    os.environ.clear()
    os.environ.update(start["environment"])
    _enter(start["namespaces"], start["mounts"])
    os.chdir(start["directory"])
    time.tzset()
    _show(start["command"], start["environment"])
    outlives = start.get("outlives", False)
    _set_user(start["groups"], start["group"], start["user"], outlives=outlives)
    if "gsched.failpoint" in sys.modules:
        sys.modules["gsched.failpoint"].arm(os.environ.get("GSCHED_FAIL", ""))
    _, *words = start["command"]
    if words[0] == "-P":  # where it imports from is set already
        del words[0]
    if words[0] == "-m":
        sys.argv = words[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path[0] = os.path.dirname(words[0])
        runpy.run_path(words[0], run_name="__main__")


def _enter(namespaces: list[str], mounts: list[tuple[str, str]]) -> None:
    """Enter namespaces, then see files in place of others, in a mount namespace of its own."""
    libc = ctypes.CDLL(None, use_errno=True)

    def call(name: str, *arguments: object) -> None:
        if getattr(libc, name)(*arguments):
            raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")

    for path in namespaces:
        with open(path) as file:
            call("setns", file.fileno(), 0)
    if mounts:
        call("unshare", CLONE_NEWNS)
        call("mount", b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None)
    for source, target in mounts:
        call("mount", source.encode(), target.encode(), None, ctypes.c_ulong(MS_BIND), None)


def _set_user(
    groups: list[int] | None, group: int | None, user: int | None, *, outlives: bool
) -> None:
    """Take another identity, which undoes that the process ends with its server if it is to."""
    if groups is not None:
        os.setgroups(groups)
    if group is not None:
        os.setregid(group, group)
    if user is not None:
        os.setreuid(user, user)
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_DUMPABLE, 1)  # else /proc would show it as root's
    libc.prctl(PR_SET_PDEATHSIG, 0 if outlives else signal.SIGKILL)


def _show(command: list[str], environment: dict[str, str]) -> None:
    """Let /proc tell this command and environment, as far as there is room for them."""
    with open("/proc/self/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    arguments, arguments_end, variables, variables_end = map(int, fields[45:49])
    _write(arguments, arguments_end, command)
    _write(variables, variables_end, [f"{name}={value}" for name, value in environment.items()])


def _write(first: int, last: int, words: list[str]) -> None:
    text = b"".join(os.fsencode(word) + b"\0" for word in words)[: last - first - 1]
    ctypes.memset(first, 0, last - first)
    ctypes.memmove(first, text, len(text))


def main() -> None:
    """Import, serve, and in a fork run."""
    _, listener, _, *names = sys.argv
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with the process that has started it
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for name in names:
        importlib.import_module(name.removesuffix("!"))
    forgotten = tuple(name.replace("!", ".") for name in names if name.endswith("!"))
    for name in list(sys.modules):
        if f"{name}.".startswith(forgotten):
            del sys.modules[name]
    gc.collect()
    gc.enable()  # which the start of a daemon has turned off
    gc.freeze()  # a fork's collections leave the pages that all share alone
    assert len(os.listdir("/proc/self/task")) == 1, "only this thread would be in the forks"
    to_run = serve(accept(socket.socket(fileno=int(listener))))
    if to_run is not None:
        Daemons.modules = frozenset(name.removesuffix("!") for name in names)
        subprocess.Popen = Daemons  # type: ignore[misc]  # of this process alone
        if "torch" in sys.modules:
            programs.install(_show)
        code = 0
        try:
            become(*to_run)
        except SystemExit as end:
            if isinstance(end.code, str):
                raise  # the interpreter prints it
            code = end.code or 0
        threading._shutdown()  # type: ignore[attr-defined]  # as the interpreter does
        _end(code)


if __name__ == "__main__":
    main()

"""Runs programs in forks of a process that has imported what they import.

``python fork_server.py CHANNEL PADDING MODULE...`` imports the modules and serves requests, each
one message of the socket CHANNEL: ``{"start": ...}`` with three standard streams, answered by a
process id; or ``{"end": pid}``, of a process that has ended, answered by its wait status and its
seconds of CPU time. A module whose name ends with ``!`` is forgotten again, with all below it: a
fork that runs it executes it once more, as ``python -m`` does, and finds in memory all that it
imports. The environment must hold what the modules read at their import (``OMP_NUM_THREADS``).
"""

import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import time
from typing import Any

CLONE_NEWNS, MS_BIND, MS_REC, MS_PRIVATE = 0x20000, 4096, 16384, 1 << 18
PR_SET_DUMPABLE = 4
MESSAGE_BYTES = 120_000
#: Makes room in the command line and in the environment of the server for those of a fork.
PADDING = "-" * 4096
PR_SET_PDEATHSIG = 1


def serve(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Serve requests; return None at their end, and in a fork what it is to run."""
    while True:
        message, streams, _, _ = socket.recv_fds(channel, MESSAGE_BYTES, 3)
        if not message:
            return None
        request = json.loads(message)
        if "start" in request:
            pid, cpu_s = os.fork(), 0.0
            if pid == 0:
                channel.close()
                return request["start"], streams
            for stream in streams:
                os.close(stream)
            answer = pid
        else:
            _, answer, used = os.wait4(request["end"], 0)
            cpu_s = used.ru_utime + used.ru_stime
        channel.send(json.dumps((answer, cpu_s)).encode())


def become(start: dict[str, Any], streams: list[int]) -> None:
    """Run a program in this process, as the interpreter would."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if start["new_session"]:
        os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(start["environment"])
    _enter(start["namespaces"], start["mounts"])
    os.chdir(start["directory"])
    time.tzset()
    _show(start["command"], start["environment"])
    _set_user(start["groups"], start["group"], start["user"])
    if "gsched.failpoint" in sys.modules:
        sys.modules["gsched.failpoint"].arm(os.environ.get("GSCHED_FAIL", ""))
    _, *words = start["command"]
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


def _set_user(groups: list[int] | None, group: int | None, user: int | None) -> None:
    """Take another identity; the process ends with its server, which a change of it undoes."""
    if groups is not None:
        os.setgroups(groups)
    if group is not None:
        os.setregid(group, group)
    if user is not None:
        os.setreuid(user, user)
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_DUMPABLE, 1)  # else /proc would show it as root's
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


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
    _, channel, _, *names = sys.argv
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with the process that it serves
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
    to_run = serve(socket.socket(fileno=int(channel)))
    if to_run is not None:
        become(*to_run)


if __name__ == "__main__":
    main()

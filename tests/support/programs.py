"""Runs the scripts of training jobs in the process that would start an interpreter for them.

The nodes of a cluster with `Cluster.trains` are forks of a server that has imported torch. So are
their launchers, their supervisors, and the process of a job until its program starts: it goes on as
that program, and so does each rank that the program starts, instead of an interpreter that imports
torch for a second. The process is left as an exec leaves it: same process id, descriptors that are
not inherited closed, signals as at the start, its own environment, arguments and name.

Scripts are those whose PYTHONPATH begins in `tests/support`: their tests say by this that the start
of the interpreter is not what they test.
"""

import atexit
import ctypes
import fcntl
import gc
import io
import os
import pathlib
import runpy
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

ROOT = pathlib.Path(__file__).resolve().parents[2]
OWN_STARTS = f"{ROOT}/tests/support/"
PR_SET_DUMPABLE = 4
#: As `torch_start` sets them.
GC_THRESHOLDS = (100_000, 50, 50)

_execve, _posix_spawn = os.execve, os.posix_spawn
_kept: list[object] = []  # streams whose descriptors are others' now

Words = tuple[str, ...] | list[str]
Show = Callable[[list[str], dict[str, str]], None]


def install(show: Show) -> None:
    """Let this process and its forks run such scripts; ``show`` tells /proc what runs."""

    def execve(path: str, argv: Words, env: Mapping[str, str]) -> None:
        if not _is_training(path, argv, env):
            _execve(path, argv, env)
        _run(argv, env, show)

    def posix_spawn(
        path: str,
        argv: Words,
        env: Mapping[str, str],
        *,
        file_actions: Sequence[tuple[int, ...]] = (),
        setsid: bool = False,
        setsigmask: Sequence[int] = (),
        **others: Any,
    ) -> int:
        duplicates = all(action[0] == os.POSIX_SPAWN_DUP2 for action in file_actions)
        if others or not duplicates or not _is_training(path, argv, env):
            how: dict[str, Any] = {"setsid": True} if setsid else {}
            how |= {"file_actions": file_actions} if file_actions else {}
            return _posix_spawn(path, argv, env, setsigmask=setsigmask, **how, **others)
        pid = os.fork()
        if pid == 0:
            if setsid:
                os.setsid()
            for _, source, target in file_actions:
                os.dup2(source, target)
            signal.pthread_sigmask(signal.SIG_SETMASK, setsigmask)
            _run(argv, env, show)
        return pid

    os.execve = execve  # type: ignore[assignment]  # of this process and its forks alone
    os.posix_spawn = posix_spawn  # type: ignore[assignment]  # with what is used of it


def _is_training(path: str, argv: Words, env: Mapping[str, str]) -> bool:
    words = [word for word in argv[1:] if word != "-u"]
    is_own = env.get("PYTHONPATH", "").startswith(OWN_STARTS)
    return path == sys.executable and is_own and words[:1] != [] and words[0].endswith(".py")


def _run(argv: Words, env: Mapping[str, str], show: Show) -> NoReturn:
    """Run a script as the interpreter would, and end the process."""
    words = [word for word in argv[1:] if word != "-u"]
    code: object = 1
    try:
        _leave(env)
        gsched_first = sorted(env.items(), key=lambda item: not item[0].startswith("GSCHED"))
        show(list(argv), dict(gsched_first))
        _open_streams(write_through="-u" in argv)
        sys.argv = list(words)
        sys.path[:2] = [os.path.dirname(words[0]), *env["PYTHONPATH"].split(":")]
        runpy.run_path(words[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code
        if not isinstance(code, int | None):
            print(code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 - an interpreter prints it and ends
        traceback.print_exc()
    threading._shutdown()  # type: ignore[attr-defined]  # as the interpreter does
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = 120  # as the interpreter ends
    os._exit(code if isinstance(code, int) else int(code is not None))


def _leave(env: Mapping[str, str]) -> None:
    """Leave behind what an exec would: descriptors, handlers, what is done at the end."""
    gc.collect()
    gc.freeze()  # nothing is thrown away: it would close files of the program
    gc.set_threshold(*GC_THRESHOLDS)
    gc.enable()
    atexit._clear()
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) not in (signal.SIG_IGN, signal.SIG_DFL, None):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in os.listdir("/proc/self/fd"):
        try:
            if int(name) > 2 and fcntl.fcntl(int(name), fcntl.F_GETFD) & fcntl.FD_CLOEXEC:
                os.close(int(name))
        except OSError:
            continue  # that of the list
    os.environ.clear()
    os.environ.update(env)
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    with open("/proc/self/comm", "wb") as file:
        file.write(os.path.basename(sys.executable).encode())


def _open_streams(*, write_through: bool) -> None:
    _kept.extend((sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__))
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - as long as the process
    for name, number in (("stdout", 1), ("stderr", 2)):
        raw = io.FileIO(number, "wb", closefd=False)
        stream = io.TextIOWrapper(
            io.BufferedWriter(raw),
            encoding="utf-8",
            errors="strict" if number == 1 else "backslashreplace",
            line_buffering=number == 2 or raw.isatty(),
            write_through=write_through,
        )
        setattr(sys, name, stream)

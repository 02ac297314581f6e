"""Which processes a test has started, however they were started, and how to end them."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

#: Set in the environment of each system and cli test; processes inherit it unless they clean up.
MARKER = "GSCHED_TEST_MARKER"


def processes_of(marker: str, directory: Path) -> list[psutil.Process]:
    """Return the live processes that belong to a test, other than this one and its ancestors.

    A process belongs to it if its environment has the test's marker, if it works in the test's
    directory or writes its output there (jobs get a fresh environment, but run and write
    somewhere), or if it descends from one that does.
    """
    ours = {os.getpid()} | {parent.pid for parent in psutil.Process().parents()}
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        if process.pid not in ours and _belongs(process.pid, marker, directory):
            found[process.pid] = process
            for child in _children(process):
                found[child.pid] = child
    return [process for process in found.values() if _alive(process)]


def kill_all(find: Callable[[], list[psutil.Process]], timeout_s: float = 10.0) -> None:
    """Kill what ``find`` returns until it returns nothing; a fork between two looks is met again.

    Raises:
        TimeoutError: something is still there after ``timeout_s``.
    """
    for _ in attempts(timeout_s):
        left = find()
        if not left:
            return
        for process in left:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
    raise TimeoutError(f"still alive after {timeout_s:.0f} s of KILL: {describe(find())}")


def describe(processes: list[psutil.Process]) -> str:
    """Return pids and command lines, for a failure's message."""
    lines: list[str] = []
    for process in processes:
        try:
            lines.append(f"{process.pid}: {' '.join(process.cmdline())[:200]}")
        except psutil.Error:
            lines.append(f"{process.pid}: gone")
    return "\n".join(lines)


def attempts(timeout_s: float, interval_s: float = 0.02) -> Iterator[int]:
    """Yield 0, 1, 2, … with a pause between, at least twice, until ``timeout_s`` have passed."""
    deadline_s = time.monotonic() + timeout_s
    number = 0
    while number < 2 or time.monotonic() < deadline_s:
        yield number
        number += 1
        time.sleep(interval_s)


def _belongs(pid: int, marker: str, directory: Path) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False  # gone, or another user's
    if f"{MARKER}={marker}".encode() in environment.split(b"\0"):
        return True
    return any(_is_below(f"/proc/{pid}/{link}", directory) for link in ("cwd", "fd/1", "fd/2"))


def _is_below(link: str, directory: Path) -> bool:
    try:
        return Path(os.readlink(link)).is_relative_to(directory)
    except OSError:
        return False


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def _alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False

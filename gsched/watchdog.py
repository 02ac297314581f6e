"""Tells systemd that a daemon's event loop still runs (``WatchdogSec=`` of its unit).

A loop that is blocked for longer is killed and started again; jobs do not notice. See
sd_notify(3) and sd_watchdog_enabled(3).
"""

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Iterator

from gsched.config.environment import environment

_ALIVE = b"WATCHDOG=1"


def interval_s() -> float | None:
    """Return how often systemd wants to hear of this process, seconds; None: it does not."""
    microseconds, pid = environment("WATCHDOG_USEC"), environment("WATCHDOG_PID")
    if not environment("NOTIFY_SOCKET") or not microseconds.isdecimal() or not int(microseconds):
        return None
    if pid and pid != str(os.getpid()):
        return None
    return int(microseconds) / 2e6  # twice as often as it must


async def feed() -> None:
    """Say again and again that the event loop runs, until cancelled; where nobody asks, nothing."""
    every_s = interval_s()
    while every_s is not None:
        _notify()
        await asyncio.sleep(every_s)


@contextlib.contextmanager
def fed_meanwhile() -> Iterator[None]:
    """Say from a thread that the process runs: before there is an event loop, work may be long."""
    every_s = interval_s()
    is_done = threading.Event()

    def notify() -> None:
        while not is_done.wait(every_s):
            _notify()

    thread = threading.Thread(target=notify, daemon=True)
    if every_s is not None:
        thread.start()
    try:
        yield
    finally:
        is_done.set()


def _notify() -> None:
    address = environment("NOTIFY_SOCKET")
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notify:
        notify.setblocking(False)  # noqa: FBT003 # its only parameter
        with contextlib.suppress(OSError):  # systemd is busy, or is being replaced
            notify.sendto(_ALIVE, address)

"""What a worker process does at its start and at its end.

Its first line of standard input says what it works with; the end of that input is the end of the
head. It writes reports as lines to standard output.
"""

import asyncio
import contextlib
import fcntl
import os
import signal
import sys
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from gsched.config.environment import environment
from gsched.logs import FILE_VARIABLE, FORMAT_VARIABLE, HEAD_LINE, set_up

B = TypeVar("B", bound=Struct)

NICENESS: Final = 5
#: Where memory runs out, it is killed rather than the head: it is started again.
OOM_SCORE: Final = 500
#: How often the lock of the process before is tried, seconds.
LOCK_PERIOD_S: Final = 0.5


def begin(wanted: type[B]) -> B:
    """Set the process up and return its first line of input; end it where there is none."""
    log_format, log_file = environment(FORMAT_VARIABLE, "text"), environment(FILE_VARIABLE)
    set_up("info", log_format=log_format, path=log_file, line=HEAD_LINE)
    _settle_in()
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(0, 1)  # unbuffered: what follows is waited for in the event loop
        if not part:
            sys.exit(0)
        line += part
    return msgspec.json.decode(line, type=wanted)


def _settle_in() -> None:
    """Give way to the head, and end with it: not by the signals that its whole group gets.

    What is started here gets the default again, as a handler is not inherited.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    os.nice(NICENESS)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(OOM_SCORE))


async def watch_input(ended: asyncio.Event) -> None:
    """Set the event at the end of standard input."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.read(4096):
        pass
    ended.set()


async def pause(ended: asyncio.Event, pause_s: float) -> None:
    """Wait for some seconds, or for the end of the head."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(ended.wait(), pause_s)


async def locked(descriptor: int, ended: asyncio.Event) -> bool:
    """Wait for the process of the head before, which may still work; False: the head has ended."""
    while not ended.is_set():
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            await pause(ended, LOCK_PERIOD_S)
        else:
            return True
    return False


def write_report(report: Struct) -> None:
    """Tell the head."""
    with contextlib.suppress(BrokenPipeError):  # the head has died: the end of the input follows
        sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
        sys.stdout.buffer.flush()

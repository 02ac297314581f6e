"""Reading jobs' output for `gpeek`, and appending for `gmsg`: as the owner, off the event loop."""

import asyncio
import os
import sys
from pathlib import Path
from weakref import WeakValueDictionary

import msgspec
from msgspec import Struct

import gnode
from gnode.core.effects import ReadFile
from gnode.daemon import read_as_owner
from gsched.protocol.node import OutputRead

MAX_BYTES = 4 * 1024 * 1024  # of one answer: base64 and other messages share its frame
TIMEOUT_S = 10.0
BOOT = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from gnode.daemon.read_as_owner import main; main()"
)
ROOT = str(Path(gnode.__file__).resolve().parent.parent)
READERS_MAX = 16  # file servers may hang: the others go on
READERS_OF_USER = 4


class _Head(Struct, frozen=True):
    offset: int = 0
    size_bytes: int = 0
    error: str = ""


class OutputReader:
    """Reads pieces of output, a bounded number at a time, of one user and of one attempt.

    Its owner can stop a reader, which then holds its place until the time is over. A reader is in
    the attempt's control group, which is to be empty at its end: with one at a time it is between
    two of them, however many are requested.
    """

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(READERS_MAX)
        self._of_user: WeakValueDictionary[int, asyncio.Semaphore] = WeakValueDictionary()
        self._of_attempt: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def read(self, order: ReadFile) -> OutputRead:
        """Return the answer to one order; what goes wrong is said in it."""
        try:
            of_user = self._of_user.setdefault(order.uid, asyncio.Semaphore(READERS_OF_USER))
            of_attempt = self._of_attempt.setdefault(order.cgroup or order.path, asyncio.Lock())
            async with asyncio.timeout(TIMEOUT_S), of_attempt, of_user, self._slots:
                head, data = await _read(order)
        except TimeoutError:
            error = f"{order.path}: no answer within {TIMEOUT_S:.0f} s from its file system"
            return OutputRead(request=order.request, path=order.path, error=error)
        return OutputRead(
            request=order.request,
            path=order.path,
            offset=head.offset,
            size_bytes=head.size_bytes,
            data=data,
            error=head.error,
        )


async def _read(order: ReadFile) -> tuple[_Head, bytes]:
    max_bytes = max(0, min(order.max_bytes, MAX_BYTES))
    if not order.switch_user:
        if os.geteuid() == 0 and order.uid != 0:  # nothing of a user's is ever opened as root
            return _Head(error=f"{order.path}: is not read as root for uid {order.uid}"), b""
        head, data = await asyncio.to_thread(
            read_as_owner.do, order.path, order.offset, max_bytes, order.append
        )
        return msgspec.convert(head, _Head), data
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-c", BOOT, ROOT),
        *(order.user, str(order.uid), str(order.gid), order.cgroup or "", order.path),
        *(str(order.offset), str(max_bytes), order.append.hex()),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
        cwd="/",
    )
    try:
        output, _ = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        raise
    line, _, data = output.partition(b"\n")
    if process.returncode != 0 or not line:
        return _Head(error=f"{order.path}: cannot be read as {order.user}"), b""
    return msgspec.json.decode(line, type=_Head), data

"""Reading and writing files of users as their owners, for a daemon of this host.

Each order is done by a process of its own (`gnode.daemon.act_as_owner`), which becomes the owner:
a file server that hangs stops that process only, and nothing of a user's is opened as root.
"""

import asyncio
import errno
import os
import sys
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

import msgspec
from msgspec import structs

import gsched
from gsched.protocol.deliveries import OUTBOX, FileDone, FileOrder

TIMEOUT_S: Final = 20.0
AT_ONCE: Final = 16
OF_USER: Final = 4
_BOOT: Final = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from gnode.daemon.act_as_owner import main; main()"
)
_ROOT: Final = str(Path(gsched.__file__).resolve().parent.parent)


class OwnerFiles:
    """Does orders, a bounded number at a time, of one user and of all.

    Args:
        allow_root: files of root, too: where jobs of root run.
        uid_min: the lowest uid of users; 0: that of the system.
        outboxes: the directory of this node's outboxes; empty: it has none.
    """

    def __init__(self, *, allow_root: bool, uid_min: int, outboxes: str = "") -> None:
        self._outboxes = outboxes
        self._rules = ("1" if allow_root else "0", str(uid_min))
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._of_user: WeakValueDictionary[int, asyncio.Semaphore] = WeakValueDictionary()

    async def do(self, order: FileOrder) -> FileDone:
        """Return the answer to an order; what goes wrong is found in it."""
        of_user = self._of_user.setdefault(order.uid, asyncio.Semaphore(OF_USER))
        try:
            async with asyncio.timeout(TIMEOUT_S), of_user, self._slots:
                done = await self._act(order)
        except TimeoutError:
            error = f"{order.path}: no answer within {TIMEOUT_S:.0f} s from its file system"
            done = FileDone(request=0, error=error, errno=errno.ETIMEDOUT)
        except OSError as error:
            done = FileDone(request=0, error=f"cannot start a process: {error}", errno=errno.EAGAIN)
        return structs.replace(done, request=order.request)

    async def _act(self, order: FileOrder) -> FileDone:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-c", _BOOT, _ROOT, *self._rules),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={"PATH": os.defpath, "LANG": "C.UTF-8"},
            cwd="/",
        )
        path = order.path
        if path.startswith(OUTBOX) and not order.writes:
            path = f"{self._outboxes}/{path.removeprefix(OUTBOX)}"
        line = msgspec.json.encode(structs.replace(order, path=path, data=b"")) + b"\n"
        try:
            output, _ = await process.communicate(line + order.data)
        except asyncio.CancelledError:
            process.kill()
            raise
        first, _, data = output.partition(b"\n")
        if process.returncode != 0 or not first:
            error = f"{order.path}: cannot be reached as {order.user}"
            return FileDone(request=0, error=error, errno=errno.EPERM)
        found = msgspec.json.decode(first, type=dict[str, object])
        return msgspec.convert({"request": 0, "data": data, **found}, FileDone)

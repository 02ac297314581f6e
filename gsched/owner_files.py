"""Reading and writing files of users as their owners, for a daemon of this host.

An order is done by a process (`gnode.daemon.act_as_owner`) that becomes the owner: a file server
that hangs stops that process only, and nothing of a user's is opened as root. The process takes
further orders of its owner, one after the other, until there is none for a while.
"""

import asyncio
import contextlib
import errno
import os
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final, NamedTuple, Self
from weakref import WeakValueDictionary

import msgspec
from msgspec import structs

import gsched
from gsched.protocol.deliveries import OUTBOX, FileDone, FileOrder

TIMEOUT_S: Final = 20.0
AT_ONCE: Final = 16
OF_USER: Final = 4
#: A process without an order ends after so long.
IDLE_S: Final = 10.0
#: After so long it takes no more orders: its owner may have other groups by now.
AGE_S: Final = 60.0
IDLE_MOST: Final = 8
_BUFFER_BYTES: Final = 4 * 1024 * 1024
_BOOT: Final = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from gnode.daemon.act_as_owner import main; main()"
)
_ROOT: Final = str(Path(gsched.__file__).resolve().parent.parent)


class _Owner(NamedTuple):
    """Whose files a process may touch."""

    user: str
    uid: int
    gid: int


class _ProcessGoneError(Exception):
    """A process has ended instead of answering."""


class _OwnerProcess:
    """A process that does orders of one owner."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.used = 0
        self.begun_s = asyncio.get_running_loop().time()

    @classmethod
    async def start(cls, rules: tuple[str, str]) -> Self:
        """Start one; it becomes the owner with its first order.

        Raises:
            OSError: it cannot be started.
        """
        return cls(
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-c", _BOOT, _ROOT, *rules),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env={"PATH": os.defpath, "LANG": "C.UTF-8"},
                cwd="/",
                limit=_BUFFER_BYTES,
            )
        )

    async def do(self, order: FileOrder) -> FileDone:
        """Return the answer to an order.

        Raises:
            _ProcessGoneError: there is none.
        """
        into, out = self._process.stdin, self._process.stdout
        assert into is not None, "it was started with pipes"
        assert out is not None, "likewise"
        fields = msgspec.to_builtins(structs.replace(order, data=b""))
        line = msgspec.json.encode({**fields, "count": len(order.data)})
        into.writelines((line, b"\n", order.data))
        try:
            await into.drain()
            first = await out.readuntil()
            found = msgspec.json.decode(first, type=dict[str, object])
            data = await out.readexactly(int(str(found.pop("count"))))
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            raise _ProcessGoneError from error
        return msgspec.convert({"request": 0, "data": data, **found}, FileDone)

    def end(self) -> None:
        """Let it end: it has no more orders."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    def kill(self) -> None:
        """End it at once."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()


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
        self._of_file: WeakValueDictionary[tuple[str, bytes, str], asyncio.Lock]
        self._of_file = WeakValueDictionary()
        self._idle: list[
            tuple[_Owner, _OwnerProcess]
        ] = []  # the one that was used last is the last

    async def do(self, order: FileOrder) -> FileDone:
        """Return the answer to an order; what goes wrong is found in it."""
        of_user = self._of_user.setdefault(order.uid, asyncio.Semaphore(OF_USER))
        try:
            async with asyncio.timeout(TIMEOUT_S), self._turn(order), of_user, self._slots:
                done = await self._act(order)
        except TimeoutError:
            error = f"{order.path}: no answer within {TIMEOUT_S:.0f} s from its file system"
            done = FileDone(request=0, error=error, errno=errno.ETIMEDOUT)
        except OSError as error:
            done = FileDone(request=0, error=f"cannot start a process: {error}", errno=errno.EAGAIN)
        return structs.replace(done, request=order.request)

    def _turn(self, order: FileOrder) -> AbstractAsyncContextManager[object]:
        """Let pieces of one file be written in the order in which they came.

        Batches below a tree, too: one that comes again, as its answer was lost, may have other
        files together, and two processes at once would take each other's files away.
        """
        if not order.writes:
            return contextlib.nullcontext()
        below = b"batch" if order.kind == "batch" else order.below
        name = (f"{order.path}/{order.name}", below, order.temporary)
        return self._of_file.setdefault(name, asyncio.Lock())

    async def _act(self, order: FileOrder) -> FileDone:
        if order.path.startswith(OUTBOX) and not order.writes:
            path = f"{self._outboxes}/{order.path.removeprefix(OUTBOX)}"
            order = structs.replace(order, path=path)
        owner = _Owner(order.user, order.uid, order.gid)
        process = self._take(owner)
        if process is not None:
            with contextlib.suppress(_ProcessGoneError):  # its user may have killed it since
                return await self._done(owner, process, order)
        try:
            return await self._done(owner, await _OwnerProcess.start(self._rules), order)
        except _ProcessGoneError:
            error = f"{order.path}: cannot be reached as {order.user}"
            return FileDone(request=0, error=error, errno=errno.EPERM)

    async def _done(self, owner: _Owner, process: _OwnerProcess, order: FileOrder) -> FileDone:
        try:
            done = await process.do(order)
        except BaseException:
            process.kill()
            raise
        self._keep(owner, process)
        return done

    def _take(self, owner: _Owner) -> _OwnerProcess | None:
        for number in range(len(self._idle) - 1, -1, -1):
            if self._idle[number][0] == owner:
                return self._idle.pop(number)[1]
        return None

    def _keep(self, owner: _Owner, process: _OwnerProcess) -> None:
        """Keep a process for the next order of its owner, a bounded number of them."""
        loop = asyncio.get_running_loop()
        if loop.time() - process.begun_s > AGE_S:
            process.end()
            return
        kept = (owner, process)
        self._idle.append(kept)
        if len(self._idle) > IDLE_MOST:
            self._idle.pop(0)[1].end()
        used = process.used = process.used + 1
        loop.call_later(IDLE_S, self._forget, kept, used)

    def _forget(self, kept: tuple[_Owner, _OwnerProcess], used: int) -> None:
        if kept[1].used == used and kept in self._idle:
            self._idle.remove(kept)
            kept[1].end()

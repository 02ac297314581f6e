"""Output of jobs on its way to their hosts of submission, where this node lacks their directories.

An attempt's *outbox* is a directory of its owner with the files ``stdout`` and ``stderr``, and the
directory ``files`` of what is staged out: files, directories and symbolic links. After the end its
files go to the head in pieces, one at a time, each acknowledged. How far a file has come is written
down with each acknowledgement, so a gnode that is killed continues there, and a piece that is sent
again is not written twice. The outbox is removed when all of it has arrived; what cannot be
delivered stays in it.

gnode opens these files as root: the outbox's own name is root's, no symbolic link is followed, and
a file must belong to the owner of the outbox. Sockets, pipes and devices are left out. A file that
cannot be delivered does not keep the others.
"""

import asyncio
import logging
import os
import stat
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct, structs

from gnode.core.effects import DeliverOutput
from gnode.core.inputs import Input, OutputReturned
from gnode.core.task import AttemptKey, parse_outbox
from gnode.daemon.removals import TRASH_PREFIX, Remover
from gnode.daemon.scratch import Scratch
from gnode.task import FILES, STDERR, STDOUT
from gsched.clock import Clock
from gsched.errors import InvalidRequestError
from gsched.failpoint import failpoint
from gsched.files import replace_file
from gsched.model.limits import MAX_DELIVERED_BYTES, MAX_DELIVERED_FILES, MAX_DELIVERY_RATE
from gsched.model.units import format_size
from gsched.model.wording import counted
from gsched.protocol.deliveries import (
    BEGIN,
    DELIVERY_BYTES,
    DeliverPiece,
    Kind,
    PieceDelivered,
)

log = logging.getLogger(__name__)

AT_ONCE: Final = 4  # outboxes of which a piece is on its way
ANSWER_S: Final = 60.0
#: For so long without any progress the end of an attempt is not reported.
GATE_S: Final = 20.0
PAUSE_FIRST_S: Final = 1.0
PAUSE_LONGEST_S: Final = 60.0
#: After so long without any progress it is not tried again before gnode's next start.
GIVE_UP_S: Final = 3 * 86_400.0
#: What was not delivered is removed after so long.
KEEP_S: Final = 30 * 86_400.0
KEEP_LOOK_S: Final = 3600.0
DEPTH_MAX: Final = 32  # of what is staged out, as in gnode.daemon.owner_tree
#: How often the progress of what is staged out is kept: what comes again is written again.
PROGRESS_S: Final = 1.0


class _FileProgress(Struct, omit_defaults=True):
    """How far a file has come: where it begins and ends there, and how much of it has gone."""

    base: int = BEGIN
    end: int = BEGIN
    sent: int = 0
    done: bool = False


class _DeliveryError(Exception):
    """A file cannot be delivered; ``later``: it may be later; ``others`` cannot, either."""

    def __init__(self, message: str, *, later: bool, others: int = 0) -> None:
        super().__init__(message)
        self.later = later
        self.others = others


class Outboxes:
    """The outboxes of this node.

    Args:
        node: its name.
        places: where they lie.
        state_dir: of the node, where the progress is kept.
        send: sends a message to the head.
        is_connected: whether the head listens.
        post: takes that the output of an attempt has returned.
        remover: removes outboxes.
    """

    def __init__(  # noqa: PLR0913 - what the shell puts together
        self,
        *,
        node: str,
        places: Scratch,
        state_dir: str,
        send: Callable[[DeliverPiece], None],
        is_connected: Callable[[], bool],
        post: Callable[[Input], None],
        remover: Remover,
        clock: Clock,
    ) -> None:
        self._node = node
        self._clock = clock
        self._places = places
        self._progress_dir = Path(state_dir, "deliveries")
        self._send = send
        self._is_connected = is_connected
        self._post = post
        self._remover = remover
        self._requests: dict[int, asyncio.Future[PieceDelivered]] = {}
        self._next_request = 1
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._under_way: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()

    def take(self, answer: PieceDelivered) -> None:
        """Take an answer of the head."""
        request = self._requests.pop(answer.request, None)
        if request is not None and not request.done():
            request.set_result(answer)

    def connected(self) -> None:
        """Try again at once what has waited for the head, or was on its way to it."""
        for number in list(self._requests):
            self.take(PieceDelivered(request=number, error="the head was away", later=True))
        self._wake.set()
        self._wake = asyncio.Event()

    def resume(self, known: Collection[AttemptKey]) -> None:
        """Continue with outboxes of attempts that are not known any more, at gnode's start."""
        names = set()
        for path in self._places.abandoned(()):
            name = os.path.basename(path)
            names.add(name)
            try:
                key = parse_outbox(name)[0]
            except InvalidRequestError:
                if name.startswith(TRASH_PREFIX):
                    self._remover.remove(path)
                continue
            if key not in known:
                self._begin(path, None)
        if self._progress_dir.is_dir():
            for left in self._progress_dir.iterdir():
                if left.name not in names:
                    left.unlink()

    def deliver(self, effect: DeliverOutput) -> None:
        """Deliver an outbox; its attempt hears when that has ended, or takes long."""
        self._begin(effect.outbox, effect.key)

    async def run(self) -> None:
        """Remove outboxes that could not be delivered for a long time, until gnode ends."""
        try:
            await self._clean()
        finally:
            for task in self._tasks:
                task.cancel()  # the next gnode continues

    async def _clean(self) -> None:
        while True:
            await asyncio.sleep(KEEP_LOOK_S)
            for path in self._places.abandoned(()):
                age_s = self._clock.wall_s() - os.lstat(path).st_mtime
                if age_s > KEEP_S and os.path.basename(path) not in self._under_way:
                    log.warning("%s could not be delivered for 30 days: removed", path)
                    self._finish(path)

    def _begin(self, path: str, key: AttemptKey | None) -> None:
        task = asyncio.get_running_loop().create_task(self._deliver(path, key))
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.result()  # a fault of ours ends the daemon: see the loop's exception handler

    async def _deliver(self, path: str, key: AttemptKey | None) -> None:
        """Deliver an outbox, trying again while that may help."""
        name = os.path.basename(path)
        if name in self._under_way or not await asyncio.to_thread(os.path.isdir, path):
            self._return(key, "")
            return
        self._under_way.add(name)
        try:
            box = _Outbox(path, self._progress_dir / name)
            await self._try(box, key)
        finally:
            self._under_way.discard(name)

    async def _try(self, box: "_Outbox", key: AttemptKey | None) -> None:
        loop = asyncio.get_running_loop()
        since_s, pause_s, gate = loop.time(), PAUSE_FIRST_S, key
        while True:
            before = box.total_sent()
            wake = self._wake
            try:
                await self._carry(box)
            except _DeliveryError as error:
                fault = error
            else:
                self._finish(box.path)
                self._return(gate, "")
                return
            now_s = loop.time()
            if box.total_sent() > before:
                since_s, pause_s = now_s, PAUSE_FIRST_S
            stalled_s = now_s - since_s
            if gate is not None and (not fault.later or stalled_s >= GATE_S):
                self._return(gate, self._words(box, fault))
                gate = None
            if not fault.later or stalled_s >= GIVE_UP_S:
                log.warning("%s", self._words(box, fault))
                return
            try:
                async with asyncio.timeout(min(pause_s, GATE_S) if gate is not None else pause_s):
                    await wake.wait()
            except TimeoutError:
                pause_s = min(2 * pause_s, PAUSE_LONGEST_S)

    def _words(self, box: "_Outbox", fault: _DeliveryError) -> str:
        if fault.later:
            return f"output waits on {self._node} in {box.path} to be delivered: {fault}"
        more = f", with {counted(fault.others, 'other file')}" if fault.others else ""
        return f"output was not delivered: {fault}; it is on {self._node} in {box.path}{more}"

    def _return(self, key: AttemptKey | None, fault: str) -> None:
        if key is not None:
            self._post(OutputReturned(key=key, fault=fault))

    def _finish(self, path: str) -> None:
        """Remove an outbox, and after it what says that all of it has arrived."""
        failpoint("delivery.node.before_removal")
        self._remover.add(path)
        (self._progress_dir / os.path.basename(path)).unlink(missing_ok=True)

    async def _carry(self, box: "_Outbox") -> None:
        """Send what is left of an outbox.

        Raises:
            _DeliveryError: a file is not there in full.
        """
        if not self._is_connected():
            raise _DeliveryError("this node is not connected to the head", later=True)
        try:
            some = islice(box.names(), MAX_DELIVERED_FILES + 1)
            names = await asyncio.to_thread(lambda: list(some))
        except OSError as error:
            raise _DeliveryError(f"{box.path}: {error.strerror}", later=True) from error
        if len(names) > MAX_DELIVERED_FILES:
            text = f"there are more than {MAX_DELIVERED_FILES} files"
            raise _DeliveryError(text, later=False)
        faults = []
        for name in names:
            if box.progress.setdefault(name, _FileProgress()).done:
                continue
            try:
                await self._carry_file(box, name)
            except _DeliveryError as error:
                if error.later:
                    raise
                faults.append(str(error))
        if faults:
            raise _DeliveryError(faults[0], later=False, others=len(faults) - 1)

    async def _carry_file(self, box: "_Outbox", name: str) -> None:
        shown = name.encode("latin-1").decode("utf-8", "backslashreplace")
        try:
            entry = await asyncio.to_thread(box.entry, name)
            if entry is not None:
                await self._entry(box, name, entry)
                return
            fd = await asyncio.to_thread(box.open, name)
        except OSError as error:
            raise _DeliveryError(f"{shown}: {error.strerror or error}", later=False) from error
        try:
            status = os.fstat(fd)
            if status.st_size > MAX_DELIVERED_BYTES:
                text = (
                    f"{shown} has {format_size(status.st_size)}; the limit is "
                    f"{format_size(MAX_DELIVERED_BYTES)}"
                )
                raise _DeliveryError(text, later=False)
            while not box.progress[name].done:
                async with self._slots:
                    await self._piece(box, name, fd, status)
        finally:
            os.close(fd)

    async def _entry(self, box: "_Outbox", name: str, entry: tuple[Kind, bytes]) -> None:
        """Send a directory or link, which is one piece."""
        async with self._slots:
            file, below = _split(name)
            kind, data = entry
            piece = box.piece(file, below, kind=kind, data=data, last=True)
            answer = await self._ask(piece)
        failpoint("staging.node.after_entry")
        if answer.error:
            raise _DeliveryError(answer.error, later=answer.later)
        box.progress[name].done = True
        await box.keep_progress()

    async def _piece(self, box: "_Outbox", name: str, fd: int, status: os.stat_result) -> None:
        sent = box.progress[name]
        data = await asyncio.to_thread(os.pread, fd, DELIVERY_BYTES, sent.sent)
        last = sent.sent + len(data) >= status.st_size
        file, below = _split(name)
        mode = stat.S_IMODE(status.st_mode) & 0o777 if file.startswith(f"{FILES}/") else 0
        answer = await self._ask(
            box.piece(file, below, at=sent.end, data=data, last=last, mode=mode)
        )
        failpoint("delivery.node.after_answer")
        if answer.error:
            raise _DeliveryError(answer.error, later=answer.later)
        begun = sent.base == BEGIN
        if begun:
            sent.base = answer.end - answer.taken
        if not begun and answer.end < sent.end:  # the host has lost what it had acknowledged
            sent.sent = max(0, answer.end - sent.base)
            sent.base = min(sent.base, answer.end)
        else:
            sent.sent += answer.taken
            sent.done = last and answer.taken == len(data)
        sent.end = answer.end
        if file.startswith(f"{FILES}/"):
            await box.keep_progress()
        else:
            await asyncio.to_thread(box.write_progress, durable=begun)
        await asyncio.sleep(len(data) / MAX_DELIVERY_RATE)

    async def _ask(self, piece: DeliverPiece) -> PieceDelivered:
        number, self._next_request = self._next_request, self._next_request + 1
        request: asyncio.Future[PieceDelivered] = asyncio.get_running_loop().create_future()
        self._requests[number] = request
        self._send(structs.replace(piece, request=number))
        try:
            async with asyncio.timeout(ANSWER_S):
                return await request
        except TimeoutError:
            raise _DeliveryError(f"no answer within {ANSWER_S:.0f} s", later=True) from None
        finally:
            self._requests.pop(number, None)


def _split(name: str) -> tuple[str, bytes]:
    """Return what the head knows a file as, and its path below that."""
    if not name.startswith(f"{FILES}/"):
        return name, b""
    number, _, below = name.removeprefix(f"{FILES}/").partition("/")
    return f"{FILES}/{number}", below.encode("latin-1")


class _Outbox:
    """One outbox: its files, and how far they have come.

    A name of a file is a text whose characters are the bytes of its path in the outbox.
    """

    def __init__(self, path: str, progress: Path) -> None:
        self.path = path
        self.key, self.token = parse_outbox(os.path.basename(path))
        self._file = progress
        self._kept_s = 0.0
        self.progress: dict[str, _FileProgress] = {}
        try:
            self.progress = msgspec.json.decode(
                progress.read_bytes(), type=dict[str, _FileProgress]
            )
        except FileNotFoundError:
            pass
        except msgspec.MsgspecError as error:
            log.warning("%s is broken and ignored: %s", progress, error)

    def total_sent(self) -> int:
        """Return a number that grows whenever something has arrived."""
        return sum(each.sent + each.done for each in self.progress.values())

    async def keep_progress(self) -> None:
        """Keep how far the files have come, unless that was done just now."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._kept_s >= PROGRESS_S:
            self._kept_s = now_s
            await asyncio.to_thread(self.write_progress, durable=False)

    def write_progress(self, *, durable: bool) -> None:
        """Keep how far the files have come."""
        self._file.parent.mkdir(mode=0o700, exist_ok=True)
        replace_file(str(self._file), msgspec.json.encode(self.progress), durable=durable)

    def piece(self, file: str, below: bytes, **fields: Any) -> DeliverPiece:
        """Return a piece of one of its files."""
        return DeliverPiece(
            request=0,
            job=self.key.job,
            attempt=self.key.attempt,
            token=self.token,
            file=file,
            name=below,
            **fields,
        )

    def names(self) -> Iterator[str]:
        """Yield the names of what is to be delivered, a directory before what is in it."""
        for name in (STDOUT, STDERR):
            if os.path.lexists(os.path.join(self.path, name)):
                yield name
        top = os.path.join(self.path, FILES)
        if os.path.islink(top):
            return
        if not os.path.isdir(top):
            return
        for place, directories, files, fd in os.fwalk(top):
            below = os.path.relpath(place, self.path)
            if below.count("/") > DEPTH_MAX:
                raise _DeliveryError(f"is more than {DEPTH_MAX} directories deep", later=False)
            directories.sort()
            for name in sorted((*directories, *files)):
                mode = os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode
                if stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode):
                    yield os.fsencode(os.path.join(below, name)).decode("latin-1")

    def entry(self, name: str) -> tuple[Kind, bytes] | None:
        """Return what a directory or link is; None for a file.

        Raises:
            OSError: it is not there any more.
        """
        if name in {STDOUT, STDERR}:
            return None
        place, last = self._way(name)
        try:
            mode = os.stat(last, dir_fd=place, follow_symlinks=False).st_mode
            if stat.S_ISLNK(mode):
                return "link", os.readlink(last, dir_fd=place)
            return ("directory", b"") if stat.S_ISDIR(mode) else None
        finally:
            os.close(place)

    def _way(self, name: str) -> tuple[int, bytes]:
        """Return the directory of a file, reached without a symbolic link, and its name there."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        place = os.open(self.path, flags)
        try:
            *way, last = name.encode("latin-1").split(b"/")
            for each in way:
                below = os.open(each, flags, dir_fd=place)
                os.close(place)
                place = below
        except OSError:
            os.close(place)
            raise
        return place, last

    def open(self, name: str) -> int:
        """Open a file of the outbox, which must be its owner's own.

        Raises:
            OSError: it is not, or leads elsewhere.
        """
        owner = os.lstat(self.path).st_uid
        place, last = self._way(name)
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            fd = os.open(last, flags, dir_fd=place)
        finally:
            os.close(place)
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != owner:
            os.close(fd)
            raise PermissionError(1, "is not a plain file of the job's owner")
        return fd

"""Output of jobs on its way to their hosts of submission, where this node lacks their directories.

An attempt's *outbox* is a directory of its owner with the files ``stdout`` and ``stderr``, and the
directory ``files`` of what is staged out: files, directories and symbolic links. While the attempt
runs, what its output has gained goes to the head now and then; after the end all files go there in
pieces, each acknowledged. Small files share a piece; several files, and several pieces of a file,
are on their way at once. How far a file has come is written down with each acknowledgement, so a
gnode that is killed continues there, and a piece that is sent again is not written twice. The
outbox is removed when all of it has arrived; what cannot be delivered stays in it. A file that
cannot be delivered does not keep the others.
"""

import asyncio
import logging
import os
import stat
from collections import deque
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from msgspec import structs

from gnode.core.effects import DeliverOutput
from gnode.core.inputs import Input, OutputReturned
from gnode.core.task import AttemptKey, parse_outbox
from gnode.daemon.outbox import (
    DeliveryError,
    FileBatch,
    FileProgress,
    Outbox,
    shown,
    split,
    take_item,
)
from gnode.daemon.owner_tree import BATCH_ENTRIES
from gnode.daemon.rate_limit import RateLimit
from gnode.daemon.removals import TRASH_PREFIX, Remover
from gnode.daemon.scratch import Scratch
from gnode.task import FILES, STDERR, STDOUT
from gsched.clock import Clock
from gsched.errors import InvalidRequestError
from gsched.failpoint import failpoint
from gsched.host_slots import HostSlots
from gsched.model.limits import MAX_DELIVERED_BYTES, MAX_DELIVERY_RATE, MAX_RUNNING_OUTPUT
from gsched.model.units import format_size
from gsched.model.wording import counted
from gsched.protocol.deliveries import BEGIN, DELIVERY_BYTES, DeliverPiece, Kind, PieceDelivered

log = logging.getLogger(__name__)

AT_ONCE: Final = 32  # pieces on their way, to all hosts
OF_HOST: Final = 16  # to one host of submission
FILES_AT_ONCE: Final = 4  # files or batches of what an attempt stages out
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
#: While an attempt runs: when its output is looked at first, and how often then.
RUNNING_FIRST_S: Final = 5.0
RUNNING_LOOK_S: Final = 10.0


@dataclass(slots=True, kw_only=True)
class _Flying:
    """A piece on its way: where it begins in the file there, and what will be answered."""

    at: int
    size: int
    last: bool
    follows: bool
    answer: asyncio.Task[PieceDelivered]


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
        self._slots = HostSlots(AT_ONCE, OF_HOST)
        self._rate = RateLimit(MAX_DELIVERY_RATE)
        self._hosts: dict[str, str] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
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
        """Deliver an outbox; its attempt hears when that has ended, or takes long.

        Of an attempt that runs: deliver what its output gains, until it has ended.
        """
        name = os.path.basename(effect.outbox)
        self._hosts[name] = effect.host
        if not effect.runs:
            self._begin(effect.outbox, effect.key)
        elif name not in self._running and name not in self._under_way:
            task = asyncio.get_running_loop().create_task(self._follow(effect.outbox))
            self._running[name] = task
            self._tasks.add(task)
            task.add_done_callback(self._on_done)

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
                name = os.path.basename(path)
                if age_s > KEEP_S and name not in self._under_way:
                    log.warning("%s could not be delivered for 30 days: removed", path)
                    with suppress(InvalidRequestError):
                        await self._drop(Outbox(path, self._progress_dir / name))
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
        running = self._running.pop(name, None)
        if running is not None:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running  # its last piece may come again
        if name in self._under_way or not await asyncio.to_thread(os.path.isdir, path):
            self._return(key, "")
            return
        self._under_way.add(name)
        try:
            box = Outbox(path, self._progress_dir / name)
            await self._try(box, key)
        finally:
            self._under_way.discard(name)
            self._hosts.pop(name, None)

    async def _follow(self, path: str) -> None:
        """Deliver what the output of an attempt gains while it runs."""
        box = Outbox(path, self._progress_dir / os.path.basename(path))
        pause_s = RUNNING_FIRST_S
        while True:
            await asyncio.sleep(pause_s)
            pause_s = RUNNING_LOOK_S
            if not await asyncio.to_thread(os.path.isdir, path):
                return
            if not self._is_connected():
                continue
            try:
                for name in await asyncio.to_thread(box.streams):
                    await self._carry_gain(box, name)
            except DeliveryError as error:
                pause_s = PAUSE_LONGEST_S
                log.info("%s: %s", path, error)

    async def _carry_gain(self, box: Outbox, name: str) -> None:
        """Send what a file of a running attempt has gained, up to a limit."""
        sent = box.progress.setdefault(name, FileProgress())
        try:
            fd = await asyncio.to_thread(box.open, name)
        except OSError as error:
            raise DeliveryError(f"{name}: {error.strerror or error}", later=True) from error
        try:
            most_bytes = min(sent.sent + MAX_RUNNING_OUTPUT, MAX_DELIVERED_BYTES)
            while sent.base == BEGIN or sent.sent < min(os.fstat(fd).st_size, most_bytes):
                before = sent.base, sent.sent
                status = os.fstat(fd)
                await self._carry_pieces(
                    box, name, fd, status, most_bytes=min(status.st_size, most_bytes)
                )
                if (sent.base, sent.sent) == before:
                    break
        finally:
            os.close(fd)

    async def _try(self, box: Outbox, key: AttemptKey | None) -> None:
        loop = asyncio.get_running_loop()
        since_s, pause_s, gate = loop.time(), PAUSE_FIRST_S, key
        while True:
            before = box.total_sent()
            wake = self._wake
            try:
                await self._carry(box)
            except DeliveryError as error:
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
                self._return(gate, self._words(box, fault, is_over=not fault.later))
                gate = None
            if not fault.later or stalled_s >= GIVE_UP_S:
                log.warning("%s", self._words(box, fault, is_over=True))
                await self._drop(box)
                return
            left_s = GATE_S - stalled_s if gate is not None else pause_s
            try:
                async with asyncio.timeout(min(pause_s, left_s)):
                    await wake.wait()
            except TimeoutError:
                pause_s = min(2 * pause_s, PAUSE_LONGEST_S)

    async def _drop(self, box: Outbox) -> None:
        """Have the host remove what it has of files that are given up, if it is there."""
        for name, sent in box.progress.items():
            file, below = split(name)
            if file.startswith(f"{FILES}/") and sent.sent and not sent.done:
                if not self._is_connected():
                    return
                with suppress(DeliveryError):
                    await self._ask(box.piece(file, below, drops=True))

    def _words(self, box: Outbox, fault: DeliveryError, *, is_over: bool) -> str:
        if not is_over:  # an outcome keeps these words
            where = f"it was kept in {box.path} on {self._node}, to return as soon as it can"
            return f"output had not returned when the job ended: {fault}; {where}"
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

    async def _carry(self, box: Outbox) -> None:
        """Send what is left of an outbox.

        Raises:
            DeliveryError: a file is not there in full.
        """
        if not self._is_connected():
            raise DeliveryError("this node is not connected to the head", later=True)
        names, faults = await asyncio.to_thread(box.listed)
        left = [name for name in names if not box.progress.setdefault(name, FileProgress()).done]
        streams = [deque([name]) for name in left if name in {STDOUT, STDERR}]
        files = deque(name for name in left if name not in {STDOUT, STDERR})
        await asyncio.gather(
            *(self._carry_some(box, each, faults, asyncio.Lock()) for each in streams),
            self._carry_tree(box, files, names, faults),
        )
        for fault in faults:
            if fault.later:
                raise fault
        if faults:
            others = len(faults) - 1 + sum(each.others for each in faults)
            raise DeliveryError(str(faults[0]), later=False, others=others)

    async def _carry_tree(
        self, box: Outbox, left: deque[str], names: dict[str, bool], faults: list[DeliveryError]
    ) -> None:
        """Send what is staged out: directories first, as the host may write a later piece first."""
        in_turn = asyncio.Lock()
        left = deque(sorted(left, key=lambda name: not names[name]))
        first = frozenset(name for name in left if names[name])
        await self._carry_some(box, left, faults, in_turn, only=first)
        several = min(FILES_AT_ONCE, len(left))
        await asyncio.gather(
            *(self._carry_some(box, left, faults, in_turn) for _ in range(several))
        )

    async def _carry_some(
        self,
        box: Outbox,
        left: deque[str],
        faults: list[DeliveryError],
        in_turn: asyncio.Lock,
        *,
        only: Collection[str] | None = None,
    ) -> None:
        """Send one file or batch after the other, until nothing is left or all must wait.

        Args:
            only: of these; ends before another one.
        """
        while not any(fault.later for fault in faults):
            async with in_turn:
                if not left or (only is not None and left[0] not in only):
                    return
                batch = await asyncio.to_thread(box.batch, list(islice(left, BATCH_ENTRIES)))
                names = [left.popleft() for _ in range(max(1, len(batch.names + batch.faults)))]
            try:
                if batch.names or batch.faults:
                    again = await self._carry_batch(box, batch, faults)
                    async with in_turn:
                        left.extendleft(reversed(again))
                else:
                    await self._carry_file(box, names[0])
            except DeliveryError as error:
                faults.append(error)
                if error.whole and not error.later:
                    async with in_turn:
                        error.others += take_item(left, names[0])

    async def _carry_batch(
        self, box: Outbox, batch: FileBatch, faults: list[DeliveryError]
    ) -> list[str]:
        """Send files that share a piece; return those that the host did not process."""
        answer = PieceDelivered(request=0)
        if batch.names:
            file, _ = split(batch.names[0])
            async with self._slot(box):
                piece = box.piece(file, kind="batch", data=batch.content, last=True)
                answer = await self._ask(piece)
            failpoint("staging.node.after_entry")
            if answer.is_single:
                box.takes_batches = False
                return batch.names
            await self._rate.passed(len(batch.content))
        arrived = batch.names[: answer.taken]
        refused = batch.names[answer.taken : answer.taken + 1] if answer.error else []
        for name in arrived:
            box.progress[name].done = True
        await box.keep_progress()
        if answer.error and answer.later:
            raise DeliveryError(answer.error, later=True)
        if refused and answer.whole:
            others = len(batch.names) - len(arrived) - 1
            raise DeliveryError(answer.error, later=False, others=others, whole=True)
        if not (arrived or refused or batch.faults):
            raise DeliveryError("the host of submission takes nothing", later=True)
        words = [f"{shown(name)}: {why}" for name, why in batch.faults]
        words += [answer.error] * len(refused)
        faults += [DeliveryError(each, later=False) for each in words]
        return batch.names[len(arrived) + len(refused) :]

    async def _carry_file(self, box: Outbox, name: str) -> None:
        try:
            entry = await asyncio.to_thread(box.entry, name)
            if entry is not None:
                await self._entry(box, name, entry)
                return
            fd = await asyncio.to_thread(box.open, name)
        except OSError as error:
            raise DeliveryError(f"{shown(name)}: {error.strerror or error}", later=False) from error
        try:
            status = os.fstat(fd)
            if status.st_size > MAX_DELIVERED_BYTES:
                text = (
                    f"{shown(name)} has {format_size(status.st_size)}; the limit is "
                    f"{format_size(MAX_DELIVERED_BYTES)}"
                )
                raise DeliveryError(text, later=False)
            while not box.progress[name].done:
                await self._carry_pieces(box, name, fd, status)
        finally:
            os.close(fd)

    async def _entry(self, box: Outbox, name: str, entry: tuple[Kind, bytes, int]) -> None:
        """Send a directory or link, which is one piece."""
        file, below = split(name)
        kind, data, mode = entry
        async with self._slot(box):
            piece = box.piece(file, below, kind=kind, data=data, last=True, mode=mode)
            answer = await self._ask(piece)
        if answer.error:
            raise DeliveryError(answer.error, later=answer.later)
        box.progress[name].done = True
        await box.keep_progress()

    async def _carry_pieces(
        self,
        box: Outbox,
        name: str,
        fd: int,
        status: os.stat_result,
        *,
        most_bytes: int | None = None,
    ) -> None:
        """Send a file from where it is, several pieces at once as far as its host takes that.

        Returns early where an answer is another one than was expected: to be called again.

        Args:
            most_bytes: of a running attempt: up to where; the file does not end there.
        """
        sent = box.progress[name]
        at, offset = sent.end, sent.sent
        begins, end = at == BEGIN, status.st_size if most_bytes is None else most_bytes
        flight: deque[_Flying] = deque()
        try:
            while True:
                window = 1 if begins else max(1, box.window)
                while len(flight) < window and not (flight and flight[0].answer.done()):
                    if flight and offset >= end:
                        break
                    flying = await self._send_piece(
                        box, name, fd, status.st_mode, (at, offset, end),
                        follows=bool(flight), runs=most_bytes is not None,
                    )  # fmt: skip
                    if flying is None:  # the file was cut
                        end = offset
                        break
                    flight.append(flying)
                    at, offset = at + flying.size, offset + flying.size
                if not flight:
                    return
                await asyncio.wait({flight[0].answer})
                is_expected = True
                while flight and is_expected and flight[0].answer.done():
                    is_expected = _take_answer(box, sent, flight.popleft())
                await self._keep(box, name, begins=begins)
                if not is_expected or (not flight and offset >= end):
                    return
        finally:
            for each in flight:  # the host may write it: it comes again
                each.answer.cancel()
            await asyncio.gather(*(each.answer for each in flight), return_exceptions=True)

    async def _send_piece(  # noqa: PLR0913 - a piece, and where it is
        self,
        box: Outbox,
        name: str,
        fd: int,
        mode: int,
        place: tuple[int, int, int],
        *,
        follows: bool,
        runs: bool,
    ) -> "_Flying | None":
        """Send a piece when it is its turn; None: there is none, as the file was cut.

        Args:
            mode: of the file.
            place: where the piece begins there and here, and where the file ends here.
            follows: others are on their way.
            runs: the file may grow.
        """
        at, offset, end = place
        file, below = split(name)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._slot(box))
            try:
                data = await asyncio.to_thread(os.pread, fd, DELIVERY_BYTES, offset)
            except OSError as error:
                words = f"{shown(name)}: {error.strerror or error}"
                raise DeliveryError(words, later=False) from error
            if not data and (follows or (runs and at != BEGIN)):
                return None
            last = not runs and (not data or offset + len(data) >= end)
            piece = box.piece(
                file,
                below,
                at=at,
                data=data,
                last=last,
                mode=stat.S_IMODE(mode) & 0o777 if file.startswith(f"{FILES}/") else 0,
                follows=follows,
            )
            answer = asyncio.create_task(self._answered(piece, stack.pop_all()))
        await self._rate.passed(len(data))
        return _Flying(at=at, size=len(data), last=last, follows=follows, answer=answer)

    async def _answered(self, piece: DeliverPiece, slot: AsyncExitStack) -> PieceDelivered:
        async with slot:
            return await self._ask(piece)

    async def _keep(self, box: Outbox, name: str, *, begins: bool) -> None:
        """Keep how far a file has come; of what is staged out that may be some time ago."""
        if name.startswith(f"{FILES}/"):
            await box.keep_progress()
        else:
            await box.keep_now(durable=begins)

    def _slot(self, box: Outbox) -> AbstractAsyncContextManager[None]:
        name = os.path.basename(box.path)
        return self._slots.slot(self._hosts.get(name, name))

    async def _ask(self, piece: DeliverPiece) -> PieceDelivered:
        number, self._next_request = self._next_request, self._next_request + 1
        request: asyncio.Future[PieceDelivered] = asyncio.get_running_loop().create_future()
        self._requests[number] = request
        self._send(structs.replace(piece, request=number))
        try:
            async with asyncio.timeout(ANSWER_S):
                return await request
        except TimeoutError:
            raise DeliveryError(f"no answer within {ANSWER_S:.0f} s", later=True) from None
        finally:
            self._requests.pop(number, None)


def _take_answer(box: Outbox, sent: FileProgress, piece: _Flying) -> bool:
    """Note an answer to a piece of a file; return whether it is the expected one.

    Raises:
        DeliveryError: the piece is not written.
    """
    answer = piece.answer.result()
    failpoint("delivery.node.after_answer")
    if answer.error:
        raise DeliveryError(answer.error, later=answer.later, whole=answer.whole)
    box.window = answer.window
    if piece.follows and answer.taken != piece.size:
        return False  # it comes again, at the end of what has been acknowledged
    begun = sent.base == BEGIN
    if begun:
        sent.base = answer.end - answer.taken
    if not begun and answer.end < sent.end:  # the host has lost what it had acknowledged
        sent.sent = max(0, answer.end - sent.base)
        sent.base = min(sent.base, answer.end)
    else:
        sent.sent += answer.taken
        sent.done = piece.last and answer.taken == piece.size
    sent.end = answer.end
    return not begun and answer.taken == piece.size and answer.end == piece.at + piece.size

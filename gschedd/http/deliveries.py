"""Files between nodes and hosts of submission, and reading output there afterwards.

A node names an attempt and one of its files, never a path, a user or a host: these come from the
head's own records of the job. So a node writes nothing but the output of attempts that it has run,
and what they stage out, into the files of that job, and reads nothing but what jobs that run there
stage in.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Final
from weakref import WeakValueDictionary

from msgspec import structs

from gsched.clock import Clock
from gsched.errors import (
    PASSING,
    BadStateError,
    GschedError,
    InvalidRequestError,
    NotPermittedError,
)
from gsched.failpoint import failpoint
from gsched.host_slots import HostSlots
from gsched.logs import Complaints
from gsched.model.ids import array_of, short_job_id
from gsched.model.job import JobSpec, StagedFile
from gsched.model.limits import (
    MAX_DELIVERIES,
    MAX_FILE_PIECES,
    MAX_HOST_DELIVERIES,
    MAX_NODE_PIECES,
)
from gsched.model.outputs import OutputFile, OutputNames, output_files, staged_path
from gsched.model.passages import Passage
from gsched.model.states import Join, PartState
from gsched.protocol.api import OutputChunk
from gsched.protocol.deliveries import (
    DELIVERY_BYTES,
    FILES,
    OUTBOX,
    TREE_END,
    DeliverPiece,
    FileDone,
    FileOrder,
    PieceDelivered,
    StagedRead,
    StagedWanted,
)
from gschedd.core.head import Head
from gschedd.core.nodes.passing import note_passage
from gschedd.core.state.records import Attempt, Job
from gschedd.http.code import is_there
from gschedd.http.host_files import HostFiles
from gschedd.store.reader import Reader

log = logging.getLogger("gschedd.deliveries")

STREAMS: Final = ("stdout", "stderr")
LOOKUPS: Final = 8  # of attempts in the database
TOO_MANY: Final = f"more than {MAX_NODE_PIECES} pieces at once"
#: So long a piece waits for its turn at a host that is slow to answer; its node sends it again.
TURN_S: Final = 20.0


class Deliveries:
    """Passes pieces on.

    Args:
        reader: of the database, for jobs that are done and for earlier attempts.
    """

    def __init__(self, head: Head, files: HostFiles, reader: Reader, clock: Clock) -> None:
        self._head = head
        self._files = files
        self._reader = reader
        self._clock = clock
        self._complaints = Complaints(log, clock)
        self._slots = HostSlots(MAX_DELIVERIES, MAX_HOST_DELIVERIES)
        self._lookups = asyncio.Semaphore(LOOKUPS)
        self._orders: WeakValueDictionary[tuple[str, int, int], asyncio.Lock]
        self._orders = WeakValueDictionary()
        self._held: Counter[str] = Counter()  # pieces of each node
        self._tasks: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Close the database's file."""
        self._reader.close()

    def take(self, node: str, piece: DeliverPiece, send: Callable[[PieceDelivered], None]) -> None:
        """Write a piece of a node, and send the answer."""

        async def deliver() -> None:
            with self._hold(node):
                answer = await self.deliver(node, piece)
            send(answer)

        if self._holds_too_much(node):
            send(PieceDelivered(request=piece.request, error=TOO_MANY, later=True))
        else:
            self._begin(deliver())

    def took(self, host: str, done: FileDone) -> None:
        """Take a host's answer about a file."""
        self._files.take(host, done)

    def fetch(
        self, node: str, wanted: StagedWanted, pass_on: Callable[[StagedRead], Awaitable[None]]
    ) -> None:
        """Send a node a piece of what is staged in, once it has been read."""
        too_much = self._holds_too_much(node)

        async def give() -> None:
            if too_much:
                await pass_on(StagedRead(request=wanted.request, error=TOO_MANY, later=True))
                return
            with self._hold(node):
                await pass_on(await self.read_staged(node, wanted))

        self._begin(give())

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _holds_too_much(self, node: str) -> bool:
        """Return whether a node has more pieces on their way than gnode ever has."""
        if self._held[node] < MAX_NODE_PIECES:
            return False
        self._head.oddities["delivery_refused"] += 1
        self._complaints.say(node, f"{node}: a piece of a file is refused: {TOO_MANY}")
        return True

    @contextmanager
    def _hold(self, node: str) -> Iterator[None]:
        """Count a piece of a node while the head has it."""
        self._held[node] += 1
        try:
            yield
        finally:
            self._held[node] -= 1
            if not self._held[node]:
                del self._held[node]

    async def read_staged(self, node: str, wanted: StagedWanted) -> StagedRead:
        """Return a piece of what a job that starts on a node stages in."""
        number, host = wanted.request, ""
        try:
            host, order = self._staged_order(node, wanted)
            done = await self._done(host, order)
            failpoint("staging.head.after_host")
        except NotPermittedError as error:
            self._head.oddities["delivery_refused"] += 1
            self._complaints.say(node, f"{node}: a file is not staged in: {error.message}")
            return StagedRead(request=number, error=error.message)
        except GschedError as error:
            self._note(wanted, node, host, error=error.message)
            return StagedRead(request=number, error=error.message, later=True)
        if done.error:
            words = f"{host or self._head.settings.server}: {done.error}"
            self._note(wanted, node, host, error=words)
            return StagedRead(request=number, error=words, later=done.errno in PASSING)
        if not wanted.lists:
            is_over = done.data.endswith(TREE_END) and self._is_last(wanted)
            self._note(wanted, node, host, size_bytes=len(done.data), is_over=is_over)
        return StagedRead(request=number, data=done.data)

    def _is_last(self, wanted: StagedWanted) -> bool:
        """Return whether nothing that passes the head is staged in after an item."""
        job = self._head.state.jobs.get(wanted.job)
        return job is not None and not any(
            each.passes_head for each in job.spec.stage_in[wanted.item + 1 :]
        )

    def _note(
        self,
        message: StagedWanted | DeliverPiece,
        node: str,
        host: str,
        *,
        size_bytes: int = 0,
        error: str = "",
        is_over: bool = False,
    ) -> None:
        """Note how far the files of an attempt are, for its user."""
        piece = Passage(
            attempt=message.attempt,
            node=node,
            host=host or self._head.settings.server,
            returns=isinstance(message, DeliverPiece),
            size_bytes=size_bytes,
            error=error,
            at_s=self._clock.wall_s(),
            is_over=is_over,
        )
        note_passage(self._head.state, message.job, piece)

    def _staged_order(self, node: str, wanted: StagedWanted) -> tuple[str, FileOrder]:
        """Return the host from which something is staged in, and what it has to do.

        Raises:
            NotPermittedError: the node may not read that.
        """
        name = f"{short_job_id(wanted.job)}.{wanted.attempt}"
        job = self._head.state.jobs.get(wanted.job)
        if job is None or not is_there(self._head.state, node, wanted):
            raise NotPermittedError(f"attempt {name} does not run on {node}")
        place, files = job.spec.place, job.spec.stage_in
        item = files[wanted.item] if wanted.item < len(files) else None
        if place is None or item is None or not item.passes_head:
            raise NotPermittedError(f"attempt {name} stages no file {wanted.item} in")
        return place.host, structs.replace(
            self._owned(job.spec, OutputFile(staged_path(job.spec, item), "")),
            tree=True,
            lists=wanted.lists,
            below=wanted.after,
            offset=wanted.offset,
            max_bytes=DELIVERY_BYTES,
        )

    async def deliver(self, node: str, piece: DeliverPiece) -> PieceDelivered:
        """Return the answer to a piece of a node, once it is written."""
        host = ""
        try:
            in_order = self._orders.setdefault((node, piece.job, piece.attempt), asyncio.Lock())
            async with in_order, self._lookups:
                job, attempt = await self._attempt(piece.job, piece.attempt)
            order = self._order(job, attempt, node, piece)
            assert job.spec.place is not None, "the order says so"
            host = job.spec.place.host
            if piece.kind == "batch" and not self._files.takes_batches(host):
                return PieceDelivered(request=piece.request, is_single=True)
            done = await self._done(host, order)
            failpoint("delivery.head.after_host")
        except NotPermittedError as error:
            self._head.oddities["delivery_refused"] += 1
            self._complaints.say(node, f"{node}: output is not delivered: {error.message}")
            return PieceDelivered(request=piece.request, error=error.message)
        except GschedError as error:
            self._note(piece, node, host, error=error.message)
            return PieceDelivered(request=piece.request, error=error.message, later=True)
        shown = host or self._head.settings.server
        if done.error:
            error_words = f"{shown}: {done.error}"
            self._note(piece, node, host, error=error_words)
            return PieceDelivered(
                request=piece.request,
                error=error_words,
                later=done.errno in PASSING,
                taken=done.taken if piece.kind == "batch" else 0,
                whole=done.whole,
            )
        if not _runs(attempt, node):  # else it is nothing that anybody waits for
            self._note(piece, node, host, size_bytes=len(piece.data))
        return PieceDelivered(
            request=piece.request,
            end=done.end,
            taken=done.taken,
            path=f"{shown}:{done.path}",
            window=MAX_FILE_PIECES if self._files.takes_following(host) else 0,
        )

    async def _done(self, host: str, order: FileOrder) -> FileDone:
        """Have an order done on a host when it is that host's turn.

        Raises:
            BadStateError: it is not done; it may be later.
        """
        if self._slots.is_slow(host):
            limit_s: float | None = TURN_S
        else:
            limit_s = None
        try:
            async with asyncio.timeout(limit_s) as turn, self._slots.slot(host):
                turn.reschedule(None)
                return await self._files.do(host, order)
        except TimeoutError:
            name = host or self._head.settings.server
            raise BadStateError(f"{name} is slow to answer: other files wait for it") from None

    async def read(
        self, job: Job, node: str, stream: str, *, offset: int, max_bytes: int
    ) -> OutputChunk:
        """Return a piece of the output of a part that has ended, from where it is.

        Raises:
            GschedError: it cannot be read there.
        """
        attempt = job.attempt
        assert attempt is not None, "a part belongs to an attempt"
        part = attempt.parts[node]
        stated = part.stdout_path if stream == "stdout" else part.stderr_path
        host, file = node, OutputFile(stated, "")
        done = FileDone(request=0, error="it is not looked for")
        window = structs.replace(self._owned(job.spec, file), offset=offset, max_bytes=max_bytes)
        if job.spec.place is not None and not stated.startswith("/"):
            host, file = job.spec.place.host, self._target(job, attempt, node, stream)
            done = await self._in_outbox(node, job, attempt, stream, window)
            window = structs.replace(window, path=file.path, name=file.name)
        if done.error:
            done = await self._tried(host, window)
        if done.error:
            where = host or self._head.settings.server
            raise InvalidRequestError(
                f"job {short_job_id(job.id)} has finished, and its {stream} cannot be read on "
                f"{where}: {done.error}",
                hint=f"gstat -f {short_job_id(job.id)} tells where it is",
            )
        return OutputChunk(
            path=stated,
            node=node,
            offset=done.offset,
            size_bytes=done.size_bytes,
            data=done.data,
            ended=True,
            served=True,
        )

    async def _in_outbox(
        self, node: str, job: Job, attempt: Attempt, stream: str, window: FileOrder
    ) -> FileDone:
        """Return a piece of output that has not returned yet; an error where it has."""
        name = f"{job.id}.{attempt.number}.{attempt.token}"
        order = structs.replace(window, path=f"{OUTBOX}{name}/{stream}", name="")
        return await self._tried(node, order)

    async def _tried(self, host: str, order: FileOrder) -> FileDone:
        """Return a host's answer; also that it is not there is one."""
        try:
            return await self._files.do(host, order)
        except BadStateError as error:
            return FileDone(request=0, error=error.message)

    async def _attempt(self, number: int, attempt: int) -> tuple[Job, Attempt]:
        """Return a job and one of its attempts.

        Raises:
            NotPermittedError: there is no such attempt.
        """
        job = self._head.state.jobs.get(number)
        if job is None:
            found = await asyncio.to_thread(self._reader.jobs, [number])
            job = found[0] if found else None
        if job is not None and job.attempt is not None and job.attempt.number == attempt:
            return job, job.attempt
        known = await asyncio.to_thread(self._reader.attempts, number) if job is not None else []
        for each in known:
            if each.number == attempt and job is not None:
                return job, each
        name = f"{short_job_id(number)}.{attempt}"
        raise NotPermittedError(f"the head knows no attempt {name}")

    def _order(self, job: Job, attempt: Attempt, node: str, piece: DeliverPiece) -> FileOrder:
        """Return what the host of submission has to do.

        Raises:
            NotPermittedError: the piece is not of a file that the node may deliver.
        """
        name, spec = short_job_id(job.id), job.spec
        if len(piece.data) > DELIVERY_BYTES:
            raise NotPermittedError(f"a piece of job {name} has {len(piece.data)} bytes")
        if node not in attempt.parts:
            raise NotPermittedError(f"attempt {attempt.number} of job {name} is not of {node}")
        if piece.token != attempt.token:
            raise NotPermittedError(f"job {name} is of another history")
        if spec.place is None:
            raise NotPermittedError(f"the output of job {name} stays on its nodes")
        if piece.file.startswith(f"{FILES}/"):
            return self._stage_out_order(job, attempt, node, piece)
        other = {Join.INTO_OUT: "stderr", Join.INTO_ERR: "stdout"}.get(spec.join, "")
        if piece.file not in STREAMS or piece.file == other:
            raise NotPermittedError(f"job {name} has no file {piece.file[:80]!r} that returns")
        if piece.file[len("std")] in spec.place.kept:
            raise NotPermittedError(f"job {name} keeps its {piece.file} on the node")
        order = self._owned(spec, self._target(job, attempt, node, piece.file))
        is_later = job.attempt is not None and job.attempt.number > attempt.number
        return structs.replace(
            order,
            writes=True,
            append=spec.append or attempt.number > 1 or is_later,
            at=piece.at,
            data=piece.data,
            last=piece.last,
            follows=piece.follows,
            umask=spec.umask,
        )

    def _stage_out_order(
        self, job: Job, attempt: Attempt, node: str, piece: DeliverPiece
    ) -> FileOrder:
        """Return what the host of submission has to do with what is staged out.

        Raises:
            NotPermittedError: the job does not stage that out.
        """
        item = _item_of(job.spec.stage_out, piece.file)
        if item is None or b"\0" in piece.name:
            raise NotPermittedError(f"job {short_job_id(job.id)} stages no {piece.file[:80]!r} out")
        rank = list(attempt.parts).index(node)
        file = OutputFile(staged_path(job.spec, item, rank), "")
        return structs.replace(
            self._owned(job.spec, file),
            writes=True,
            at=piece.at,
            data=piece.data,
            last=piece.last,
            follows=piece.follows,
            drops=piece.drops,
            mode=piece.mode,
            umask=job.spec.umask,
            makes=0 if item.host else item.remote.count("/"),
            below=piece.name,
            kind=piece.kind,
            temporary=f"{job.id}.{attempt.number}.{rank}",
        )

    def _owned(self, spec: JobSpec, file: OutputFile) -> FileOrder:
        owner = spec.owner
        return FileOrder(
            request=0,
            user=owner.user,
            uid=owner.uid,
            gid=owner.gid,
            path=file.path,
            name=file.name,
        )

    def _target(self, job: Job, attempt: Attempt, node: str, stream: str) -> OutputFile:
        names = OutputNames(
            job=job.id,
            server=self._head.settings.server,
            node=node,
            rank=list(attempt.parts).index(node),
            home="~",
            short_number=job.short_number if array_of(job.id) else 0,
        )
        return output_files(job.spec, names)[STREAMS.index(stream)]


def _runs(attempt: Attempt, node: str) -> bool:
    return attempt.parts[node].state is PartState.RUNNING


def _item_of(files: Sequence[StagedFile], name: str) -> StagedFile | None:
    """Return what the name of a file of an outbox stands for; None: nothing that returns."""
    number = name.removeprefix(f"{FILES}/")
    if not (number.isascii() and number.isdecimal() and len(number) <= len(str(len(files)))):
        return None
    item = files[int(number)] if int(number) < len(files) else None
    return item if item is not None and item.passes_head else None

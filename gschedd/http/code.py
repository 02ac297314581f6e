"""Code snapshots: taken from users in pieces, and given to the nodes of their jobs in pieces."""

import asyncio
from collections.abc import Callable
from functools import partial

from aiohttp import web

from gsched.clock import Clock
from gsched.errors import BadStateError, GschedError, InvalidRequestError
from gsched.model.job import CodeSnapshot
from gsched.protocol.code import CodePiece, CodeRead, CodeReply, CodeWanted
from gsched.protocol.deliveries import StagedWanted
from gschedd.core.state.state import State
from gschedd.http.answers import answer
from gschedd.http.bodies import Bodies, read_body
from gschedd.http.callers import Callers
from gschedd.http.pace import Pace
from gschedd.store.code import CodeStore, QuotaError

READS_AT_ONCE = 8  # of all nodes: a piece is 256 KiB
LOOKED_AT = 1000  # jobs, before others may get their turn


class CodeSnapshots:
    """Takes and gives the pieces.

    Args:
        state: tells which archives unfinished jobs have.
    """

    def __init__(
        self,
        store: CodeStore,
        *,
        state: State,
        callers: Callers,
        bodies: Bodies,
        clock: Clock,
    ) -> None:
        self._store = store
        self._state = state
        self._callers = callers
        self._bodies = bodies
        self._clock = clock
        self._reads = asyncio.Semaphore(READS_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [web.post("/v1/code", self.take)]

    async def take(self, request: web.Request) -> web.StreamResponse:
        """``POST /v1/code``: a piece of an archive; without a digest only the limits are told."""
        caller = self._callers.of(request)
        piece = await read_body(request, self._bodies, CodePiece)
        received = await self._put(caller.uid, piece) if piece.digest else 0
        return answer(
            CodeReply(
                received_bytes=received,
                size_bytes_most=self._store.limits.snapshot_bytes,
                files_most=self._store.limits.snapshot_files,
            )
        )

    async def _put(self, uid: int, piece: CodePiece) -> int:
        """Keep a piece; where a quota is used up, archives of finished jobs make room.

        Raises:
            GschedError: as `CodeStore.put`.
        """
        put = partial(
            self._store.put,
            uid,
            piece.digest,
            size_bytes=piece.size_bytes,
            offset=piece.offset,
            data=piece.data,
            now_s=self._clock.wall_s(),
        )
        try:
            return await asyncio.to_thread(put)
        except QuotaError as error:
            async with self._bodies.brief(uid) as pace:
                made = await asyncio.to_thread(
                    self._store.make_room,
                    error,
                    uid=uid,
                    size_bytes=piece.size_bytes,
                    in_use=await self._in_use(pace),
                    now_s=self._clock.wall_s(),
                )
            if not made:
                raise
        return await asyncio.to_thread(put)

    async def _in_use(self, pace: Pace) -> set[tuple[int, str]]:
        """Return owner and digest of the archives of unfinished jobs."""
        found: set[tuple[int, str]] = set()
        for number, job in enumerate(list(self._state.jobs.values())):
            if job.spec.snapshot is not None:
                found.add((job.spec.owner.uid, job.spec.snapshot.digest))
            if number % LOOKED_AT == 0:
                await pace.keep()
        return found

    async def check(self, uid: int, snapshot: CodeSnapshot | None) -> None:
        """Refuse a job whose snapshot is not here.

        Raises:
            InvalidRequestError: it is not.
        """
        if snapshot is not None and not await asyncio.to_thread(
            self._store.has, uid, snapshot.digest
        ):
            raise InvalidRequestError(
                "the head does not have the job's code snapshot", hint="submit again"
            )

    def give(
        self, state: State, node: str, wanted: CodeWanted, send: Callable[[CodeRead], None]
    ) -> None:
        """Send a piece to a node, once it has been read."""

        async def give() -> None:
            send(await self.read(state, node, wanted))

        task = asyncio.create_task(give())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def read(self, state: State, node: str, wanted: CodeWanted) -> CodeRead:
        """Return a piece of the snapshot of a job that runs on a node."""
        try:
            job = state.jobs.get(wanted.job)
            if job is None or job.spec.snapshot is None or not is_there(state, node, wanted):
                raise BadStateError("the job does not run there, or has no snapshot")
            async with self._reads:
                size_bytes, data = await asyncio.to_thread(
                    self._store.read,
                    job.spec.owner.uid,
                    job.spec.snapshot.digest,
                    wanted.offset,
                )
        except (GschedError, OSError) as error:
            return CodeRead(request=wanted.request, error=str(error))
        return CodeRead(request=wanted.request, size_bytes=size_bytes, data=data)


def is_there(state: State, node: str, wanted: CodeWanted | StagedWanted) -> bool:
    """Return whether an attempt runs on a node, or is prepared there."""
    job = state.jobs[wanted.job]
    if job.attempt is not None and job.attempt.number == wanted.attempt:
        return node in job.attempt.parts
    move = job.move
    return (
        move is not None
        and move.prepare == wanted.attempt
        and any(share.node == node for share in move.allocation)
    )

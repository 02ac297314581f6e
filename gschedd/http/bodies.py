"""Reading requests: how large, how slowly, and how much at once, for each user and for all.

What is in flight is counted while it comes in, not when it is there: 200 connections that each send
60 MB cost what one user may have in flight, whatever they announce.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Final, TypeVar

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware
from msgspec import Raw, Struct

from gsched.errors import InvalidRequestError
from gsched.model.limits import MAX_ENVIRONMENT_BYTES, MAX_REQUEST_BYTES, MAX_SUBMIT_BYTES, MIB
from gsched.protocol import api
from gschedd.http.answers import BusyError, TooLargeError
from gschedd.http.door import Visitor

T = TypeVar("T")

USER_BYTES: Final = 64 * MIB  # in flight of one user: four of the largest requests
ALL_BYTES: Final = 256 * MIB  # in flight of all users
SMALL_BYTES: Final = 64 * 1024  # what is not larger is always taken: it is bounded by connections
SILENCE_S: Final = 10.0
WHOLE_S: Final = 60.0
LARGE_AT_ONCE: Final = 2  # requests beyond SMALL_BYTES that are worked on at the same time

#: The fields of a job that become many objects; as text they cost no more than their bytes. Half
#: as much again as they may hold, as JSON escapes some of it.
_MAX_FIELD_BYTES: Final = MAX_ENVIRONMENT_BYTES * 3 // 2


class Bodies:
    """How many bytes of requests are in flight, by user."""

    def __init__(self, *, of_user: int = USER_BYTES, in_all: int = ALL_BYTES) -> None:
        self._of_user = of_user
        self._in_all = in_all
        self._held: Counter[int] = Counter()
        self._of_request: dict[object, int] = {}  # by connection: it has one at a time
        self._large = asyncio.Semaphore(LARGE_AT_ONCE)
        self._turns: dict[int, _Turn] = {}

    @property
    def held_bytes(self) -> int:
        """Return how many bytes are in flight."""
        return self._held.total()

    def take(self, request: web.Request, uid: int, count: int) -> None:
        """Count bytes of a request that have come in.

        Raises:
            BusyError: it is too much for this user, or for all.
        """
        held = self._of_request.get(request.protocol, 0) + count
        if held > SMALL_BYTES:
            if self._held[uid] + count > self._of_user:
                raise BusyError(
                    f"uid {uid} has {self._held[uid] >> 20} MiB of requests in flight", status=429
                )
            if self.held_bytes + count > self._in_all:
                raise BusyError("the head has too many large requests in flight", status=503)
        self._of_request[request.protocol] = held
        self._held[uid] += count

    def give_back(self, request: web.Request, uid: int) -> None:
        """Count a request no longer."""
        count = self._of_request.pop(request.protocol, 0)
        if not count:
            return
        self._held[uid] -= count
        if not self._held[uid]:
            del self._held[uid]

    @asynccontextmanager
    async def turn(self, uid: int) -> AsyncIterator[None]:
        """Wait for a turn at work that takes long: one for each user, a few for all.

        Users take turns in the order in which they came, however many requests each has sent.
        """
        turn = self._turns.setdefault(uid, _Turn())
        turn.waiting += 1
        try:
            async with turn.lock, self._large:
                yield
        finally:
            turn.waiting -= 1
            if not turn.waiting:
                del self._turns[uid]

    def turn_if(self, is_needed: bool, uid: int) -> AbstractAsyncContextManager[None]:  # noqa: FBT001 - the name of the method says of what
        """Wait for a turn if it is needed; else go on at once."""
        return self.turn(uid) if is_needed else nullcontext()


class _Turn:
    __slots__ = ("lock", "waiting")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.waiting = 0


def uid_of(request: web.Request) -> int:
    """Return the user at the other end, as the kernel told it when the connection came."""
    visitor = request.protocol
    return visitor.source.uid if isinstance(visitor, Visitor) else -1


def watched(bodies: Bodies) -> Middleware:
    """Return the middleware that tells a connection's visitor what it is busy with."""

    @web.middleware
    async def middleware(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        visitor = request.protocol
        if isinstance(visitor, Visitor):
            visitor.begin(request)
        try:
            return await handler(request)
        finally:
            bodies.give_back(request, uid_of(request))
            if isinstance(visitor, Visitor):
                visitor.end()

    return middleware


async def read_bytes(request: web.Request, bodies: Bodies, most: int) -> bytes:
    """Return a request's body.

    Raises:
        TooLargeError: it is larger than ``most``.
        BusyError: its user, or all, have too much in flight.
        InvalidRequestError: it comes too slowly, or compressed.
    """
    if request.headers.get("Content-Encoding", "identity") != "identity":
        raise InvalidRequestError("compressed requests are not taken", hint="send JSON as it is")
    announced = request.content_length
    if announced is not None and announced > most:
        raise _too_large(request, announced, most)
    uid = uid_of(request)
    body = bytearray()
    try:
        async with asyncio.timeout(WHOLE_S):
            while not request.content.at_eof():
                async with asyncio.timeout(SILENCE_S):
                    part = await request.content.readany()
                bodies.take(request, uid, len(part))
                body += part
                if len(body) > most:
                    raise _too_large(request, len(body), most)
    except TimeoutError:
        raise InvalidRequestError(
            f"{request.method} {request.path}: its body came too slowly",
            hint=f"send it within {WHOLE_S:.0f} s, without pauses of {SILENCE_S:.0f} s",
        ) from None
    return bytes(body)


def _too_large(request: web.Request, size: int, most: int) -> TooLargeError:
    return TooLargeError(
        f"{request.method} {request.path}: {size} bytes or more, {most} are the limit",
        hint="send less at once; data belong into files",
    )


def decoded(request: web.Request, body: bytes, kind: type[T]) -> T:
    """Return a body, decoded and checked.

    Raises:
        InvalidRequestError: it is no JSON or does not follow the schema; says where.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError(
            f"{request.method} {request.path}: {error}", hint="see /v1/openapi.json"
        ) from None


async def read_body(request: web.Request, bodies: Bodies, kind: type[T]) -> T:
    """Return the body of any request but a submission, decoded and checked.

    Raises:
        InvalidRequestError: as `read_bytes` and `decoded`.
        BusyError: as `read_bytes`.
    """
    return decoded(request, await read_bytes(request, bodies, MAX_REQUEST_BYTES), kind)


class _SizedJob(Struct):
    """The fields of a job that can become many objects, as they stand there."""

    script: Raw = Raw(b"")
    resources: Raw = Raw(b"")
    arguments: Raw = Raw(b"")
    environment: Raw = Raw(b"")
    holds: Raw = Raw(b"")
    training: Raw = Raw(b"")


class _LargeSubmission(Struct):
    """A submission beyond the size of other requests holds one job, with a large script."""

    jobs: tuple[_SizedJob]


async def read_submission(request: web.Request, bodies: Bodies) -> api.SubmitRequest:
    """Return a submission.

    One that is larger than any other request may be holds one job: then decoding it costs no more
    than its bytes, as a script is one text. The head decodes on the thread that serves everybody.

    Raises:
        InvalidRequestError: as `read_bytes` and `decoded`, or a large one holds many jobs.
        BusyError: as `read_bytes`.
    """
    body = await read_bytes(request, bodies, MAX_SUBMIT_BYTES)
    if len(body) > MAX_REQUEST_BYTES:
        _check_large(request, body)
    return decoded(request, body, api.SubmitRequest)


def _check_large(request: web.Request, body: bytes) -> None:
    try:
        (job,) = msgspec.json.decode(body, type=_LargeSubmission).jobs
    except msgspec.ValidationError:
        raise TooLargeError(
            f"{len(body)} bytes with several jobs, {MAX_REQUEST_BYTES} are the limit",
            hint="send fewer jobs at once; one job alone may have a large script",
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError(f"{request.method} {request.path}: {error}") from None
    sizes = {name: len(memoryview(getattr(job, name))) for name in job.__struct_fields__}
    rest = len(body) - sum(sizes.values())
    for name, size in (*sizes.items(), ("the rest of it", rest)):
        most = MAX_SUBMIT_BYTES if name == "script" else _MAX_FIELD_BYTES
        if size > most:
            raise TooLargeError(
                f"{name} has {size} bytes, {most} are the limit", hint="put data into files"
            )

"""Reading requests: how large, how slowly, and how much at once, for each user and for all.

What is in flight is counted while it comes in, not when it is there: 200 connections that each send
60 MB cost what one user may have in flight, whatever they announce.
"""

import asyncio
from collections import Counter
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final, TypeVar

from aiohttp import web
from aiohttp.typedefs import Middleware

from gsched.errors import InvalidRequestError
from gsched.model.limits import (
    MAX_BODY_BYTES,
    MAX_REQUEST_BYTES,
    MAX_SUBMIT_BYTES,
    MAX_USER_BODY_BYTES,
)
from gsched.protocol import submissions
from gschedd.http.answers import BusyError, TooLargeError
from gschedd.http.decoding import (
    DIRECT_BYTES,
    check_count,
    decode,
    decode_submission,
    decoded,
)
from gschedd.http.door import Handler, Visitor
from gschedd.http.pace import Entrance, Pace, Turns

T = TypeVar("T")

SMALL_BYTES: Final = 64 * 1024  # what is not larger is always taken: it is bounded by connections
SILENCE_S: Final = 10.0
WHOLE_S: Final = 60.0
LARGE_AT_ONCE: Final = 2  # requests beyond SMALL_BYTES that are worked on at the same time


class Bodies:
    """How many bytes of requests are in flight, by user."""

    def __init__(self, *, of_user: int = MAX_USER_BODY_BYTES, in_all: int = MAX_BODY_BYTES) -> None:
        self._of_user = of_user
        self._in_all = in_all
        self._held: Counter[int] = Counter()
        self._of_request: dict[object, int] = {}  # by connection: it has one at a time
        self._large = Turns(LARGE_AT_ONCE)
        self._brief = Turns(1, rests=True)
        self.entrance = Entrance()

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

    def turn(self, uid: int) -> AbstractAsyncContextManager[Pace]:
        """Wait for a turn at work that takes long: one for each user, a few for all."""
        return self._large.turn(uid)

    def turn_if(self, is_needed: bool, uid: int) -> AbstractAsyncContextManager[Pace]:  # noqa: FBT001 - the name of the method says of what
        """Wait for a turn if it is needed; else go on at once."""
        return self.turn(uid) if is_needed else nullcontext(Pace())

    def brief(self, uid: int) -> AbstractAsyncContextManager[Pace]:
        """Wait for a turn at some milliseconds of work, decoding say: one for all users."""
        return self._brief.turn(uid)


def uid_of(request: web.Request) -> int:
    """Return the user at the other end, as the kernel told it when the connection came."""
    visitor = request.protocol
    return visitor.source.uid if isinstance(visitor, Visitor) else -1


def counted(bodies: Bodies) -> Middleware:
    """Return the middleware that lets requests begin, and counts them no longer at their end."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            await bodies.entrance.enter(uid_of(request))
            return await handler(request)
        finally:
            bodies.give_back(request, uid_of(request))

    return middleware


async def read_bytes(request: web.Request, bodies: Bodies, most: int) -> bytearray:
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
    return body


def _too_large(request: web.Request, size: int, most: int) -> TooLargeError:
    return TooLargeError(
        f"{request.method} {request.path}: {size} bytes or more, {most} are the limit",
        hint="send less at once; data belong into files",
    )


def _where(request: web.Request) -> str:
    return f"{request.method} {request.path}"


async def read_body(request: web.Request, bodies: Bodies, kind: type[T]) -> T:
    """Return the body of any request but a submission, decoded and checked.

    Raises:
        InvalidRequestError: as `read_bytes` and `gschedd.http.decoding.decode`.
        BusyError: as `read_bytes`.
    """
    body = await read_bytes(request, bodies, MAX_REQUEST_BYTES)
    if len(body) <= DIRECT_BYTES:
        return decoded(_where(request), body, kind)
    async with bodies.brief(uid_of(request)) as pace:
        return await decode(_where(request), body, kind, pace)


async def read_submission(request: web.Request, bodies: Bodies) -> submissions.SubmitRequest:
    """Return a submission, with a number of jobs that is allowed.

    Raises:
        InvalidRequestError: as `read_bytes` and `gschedd.http.decoding.decode_submission`.
        BusyError: as `read_bytes`.
    """
    body = await read_bytes(request, bodies, MAX_SUBMIT_BYTES)
    if len(body) > DIRECT_BYTES:
        async with bodies.brief(uid_of(request)) as pace:
            return await decode_submission(_where(request), body, pace)
    submission = decoded(_where(request), body, submissions.SubmitRequest)
    check_count(len(submission.jobs), dry_run=submission.dry_run)
    return submission

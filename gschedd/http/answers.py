"""JSON answers and errors of the HTTP API."""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

import msgspec
from aiohttp import web

from gsched.clock import SystemClock
from gsched.errors import (
    NO_ROOM,
    GschedError,
    InternalError,
    InvalidRequestError,
    StorageFullError,
    TryAgainError,
    forget_frames,
)
from gsched.logs import Complaints
from gsched.model.limits import shown
from gsched.protocol.api import ErrorBody, ErrorReply
from gschedd.http.pace import Pace

log = logging.getLogger("gschedd.http")

_faults = Complaints(log, SystemClock())
_encoder = msgspec.json.Encoder()
#: Characters of a message or hint: it may quote what somebody wrote.
MAX_ERROR_TEXT: Final = 2000
#: HTTP status by error code; all others are 400.
STATUS: Final = {
    "unknown_job": 404,
    "unknown_node": 404,
    "not_permitted": 403,
    "try_again": 503,
    "stands_by": 503,
    "internal": 500,
    "storage": 500,
    "bad_state": 409,
}


class TooLargeError(InvalidRequestError):
    """A request is larger than its kind may be (HTTP status 413)."""

    status = 413


class BusyError(TryAgainError):
    """A user, or all of them, have too much in flight (HTTP status 429 or 503)."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message, hint="try again in a moment")
        self.status = status
        self.retry_after_s = 1


def answer(body: object, *, status: int = 200) -> web.Response:
    """Return a JSON answer."""
    return web.Response(body=_encoder.encode(body), status=status, content_type="application/json")


async def answer_in_pieces(
    rows: Iterable[object], reply: Callable[[Sequence[msgspec.Raw]], object]
) -> web.Response:
    """Return a JSON answer with a list, worked out and encoded row by row, in some turns.

    Args:
        rows: what is worked out while it is iterated; others get their turn meanwhile.
        reply: returns the answer with the rows, each encoded.
    """
    pace = Pace()
    encoded: list[msgspec.Raw] = []
    for row in rows:
        encoded.append(msgspec.Raw(_encoder.encode(row)))
        await pace.keep()
    return answer(reply(encoded))


def error_body(error: GschedError) -> ErrorBody:
    """Return an error as it stands in an answer."""
    return ErrorBody(
        code=error.code, message=error.message[:MAX_ERROR_TEXT], hint=error.hint[:MAX_ERROR_TEXT]
    )


def refusal(error: GschedError) -> web.Response:
    """Return the answer that refuses a whole request."""
    status = getattr(error, "status", 0) or STATUS.get(error.code, 400)
    response = answer(ErrorReply(error=error_body(error)), status=status)
    if isinstance(error, BusyError):
        response.headers["Retry-After"] = str(error.retry_after_s)
    return response


def _methods(request: web.Request) -> str:
    """Return the methods of a path that a route names; patterns that it matches are of others."""
    named = (each for each in request.app.router.resources() if each.canonical == request.path)
    return ",".join(sorted({route.method for resource in named for route in resource}))


#: What is below these paths refuses a query itself, in the form of another API.
OTHER_FORMS: Final = ("/slurm/", "/slurmdb/")


def check_query(request: web.Request) -> None:
    """Check that no field of the query is stated twice: one of them would not count.

    Raises:
        InvalidRequestError: one is.
    """
    if request.query_string:
        for name, count in Counter(each for each, _ in request.query.items()).items():
            if count > 1:
                raise InvalidRequestError(
                    f"the query states {shown(name)} {count} times",
                    hint="state it once; several ids with commas between",
                )


@web.middleware
async def errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Turn errors into answers; an unknown one is our fault: logged, told without details."""
    source = getattr(handler, "__qualname__", "a request")
    try:
        if not request.path.startswith(OTHER_FORMS):
            check_query(request)
        return await handler(request)
    except GschedError as error:
        return refusal(error)
    except web.HTTPException as error:
        wrong = InvalidRequestError(f"{request.method} {request.path}: {error.reason}")
        response = answer(ErrorReply(error=error_body(wrong)), status=error.status)
        if "Allow" in error.headers:
            response.headers["Allow"] = _methods(request) or error.headers["Allow"]
        forget_frames(error)  # aiohttp keeps it with the request, which its frames have
        return response
    except (ConnectionError, TimeoutError):
        raise
    except OSError as error:
        if error.errno not in NO_ROOM:
            _faults.fault(source, f"{request.method} {request.path} failed")
            return refusal(InternalError("a fault inside the head; its log says more"))
        return refusal(
            StorageFullError("the head's disk is full", hint="try again when it has room")
        )
    except Exception:  # noqa: BLE001 - it is logged
        _faults.fault(source, f"{request.method} {request.path} failed")
        return refusal(InternalError("a fault inside the head; its log says more"))

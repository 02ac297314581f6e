"""JSON answers and errors of the HTTP API."""

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from aiohttp import web

from gsched.errors import GschedError, InternalError, InvalidRequestError
from gsched.protocol.api import ErrorBody, ErrorReply

log = logging.getLogger("gschedd.http")

_encoder = msgspec.json.Encoder()
T = TypeVar("T")

#: HTTP status by error code; all others are 400.
_STATUS = {
    "unknown_job": 404,
    "unknown_node": 404,
    "not_permitted": 403,
    "try_again": 503,
    "internal": 500,
    "storage": 500,
    "bad_state": 409,
}


def answer(body: object, *, status: int = 200) -> web.Response:
    """Return a JSON answer."""
    return web.Response(body=_encoder.encode(body), status=status, content_type="application/json")


def error_body(error: GschedError) -> ErrorBody:
    """Return an error as it stands in an answer."""
    return ErrorBody(code=error.code, message=error.message, hint=error.hint)


def refusal(error: GschedError) -> web.Response:
    """Return the answer that refuses a whole request."""
    return answer(ErrorReply(error=error_body(error)), status=_STATUS.get(error.code, 400))


async def read_body(request: web.Request, kind: type[T]) -> T:
    """Return a request's body, decoded and checked.

    Raises:
        InvalidRequestError: it is no JSON or does not follow the schema; says where.
    """
    body = await request.read()
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError(
            f"{request.method} {request.path}: {error}", hint="see /v1/openapi.json"
        ) from None


@web.middleware
async def errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Turn errors into answers; an unknown one is our fault: logged, told without details."""
    try:
        return await handler(request)
    except GschedError as error:
        return refusal(error)
    except web.HTTPException as error:
        wrong = InvalidRequestError(f"{request.method} {request.path}: {error.reason}")
        return answer(ErrorReply(error=error_body(wrong)), status=error.status)
    except (ConnectionError, TimeoutError):
        raise
    except Exception:
        log.exception("%s %s failed", request.method, request.path)
        return refusal(InternalError("a fault inside the head; its log says more"))

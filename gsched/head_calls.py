"""Requests to a head as records: encoded, sent again where that is safe, refusals as errors."""

from typing import TypeVar

import msgspec

from gsched.clock import SystemClock
from gsched.errors import ALL_ERRORS, GschedError, HeadUnreachableError, InternalError, UsageError
from gsched.head_address import find_head
from gsched.head_connection import Answer, LostConnectionError
from gsched.protocol import api
from gsched.transport import DEFAULT_TIMEOUT_S, Transport, pause

RETRY_S = 30.0  # how long a submission whose answer was lost is tried again: a head's restart
PAUSE_S = 0.2
_NO_ROOM = frozenset({429, 503})  # with Retry-After: nothing was done, the request may come again
_TAKES_TLS = 426  # a request in clear text, at a port for HTTPS
_AWAY = 502  # likewise: gnode, which relays the commands of its host, cannot reach the head
T = TypeVar("T", bound=msgspec.Struct)
_ERRORS_BY_CODE: dict[str, type[GschedError]] = {error.code: error for error in ALL_ERRORS}


def error_from(body: api.ErrorBody) -> GschedError:
    """Return the exception that ``body`` stands for; raise it, or print it for one operand."""
    return _ERRORS_BY_CODE.get(body.code, InternalError)(body.message, hint=body.hint)


def body_of(error: GschedError) -> api.ErrorBody:
    """Return what goes over the wire, or into JSON, for ``error``."""
    return api.ErrorBody(code=error.code, message=error.message, hint=error.hint)


class HeadCalls:
    """One head, with what all requests to it share.

    Args:
        address: a socket's path, ``ssh://host`` or ``https://host:port``; empty: $GSCHED_HEAD, the
            configuration, or the default place.
        patience_s: how long each call tries to connect to a head that may be starting.
    """

    def __init__(self, address: str = "", *, patience_s: float | None = None):
        self.transport = Transport(find_head(address))
        if patience_s is not None:
            self.transport.patience_s = patience_s

    def _send(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        until_s: float | None = None,
    ) -> bytes | bytearray:
        answer = self._exchange(method, target, body, timeout_s=timeout_s, until_s=until_s)
        if answer.status < 300:
            return answer.body
        try:
            reply = msgspec.json.decode(answer.body, type=api.ErrorReply)
        except msgspec.DecodeError:
            if answer.status == _TAKES_TLS:
                raise HeadUnreachableError(
                    f"the port of {self.transport.address.text} takes HTTPS only",
                    hint="write https:// in place of http://",
                ) from None
            raise InternalError(
                f"the head at {self.transport.address.text} answered {answer.status} to "
                f"{method} {target} without a reason",
                hint="is it a gschedd of the same version? see `gsched version`",
            ) from None
        raise error_from(reply.error)

    def _exchange(
        self, method: str, target: str, body: bytes, *, timeout_s: float, until_s: float | None
    ) -> Answer:
        """Return the answer of a head that has room for the request; wait while it has none."""
        clock = SystemClock()
        begin_s = clock.monotonic_s()
        while True:
            answer = self.transport.exchange(
                method, target, body, timeout_s=timeout_s, until_s=until_s
            )
            wait_s = answer.retry_after_s
            if wait_s is None or answer.status not in {*_NO_ROOM, _AWAY}:
                return answer
            patience_s = self.transport.patience_s if answer.status == _AWAY else RETRY_S
            end_s = begin_s + patience_s
            if clock.monotonic_s() + wait_s > (end_s if until_s is None else min(end_s, until_s)):
                return answer
            if answer.status == _AWAY:
                self.transport.note_wait()
            pause(wait_s)

    def _get(
        self,
        target: str,
        kind: type[T],
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        until_s: float | None = None,
    ) -> T:
        sent = self._send("GET", target, timeout_s=timeout_s, until_s=until_s)
        return self._decode(sent, kind, target)

    def _post(self, target: str, request: msgspec.Struct, kind: type[T]) -> T:
        return self._decode(self._send("POST", target, encoded(request)), kind, target)

    def _decode(self, body: bytes | bytearray, kind: type[T], target: str) -> T:
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.DecodeError as error:
            raise InternalError(
                f"this version cannot read the head's answer to {target}: {error}",
                hint="the versions of head and commands must match: see `gsched version`",
            ) from error

    def _post_again(self, target: str, body: bytes) -> bytes | bytearray:
        """Post a request that is safe to repeat, until there is an answer."""
        clock = SystemClock()
        give_up_s = clock.monotonic_s() + (RETRY_S if self.transport.patience_s else 0.0)
        sent = False
        while True:
            try:
                return self._send("POST", target, body)
            except HeadUnreachableError as error:
                sent = sent or isinstance(error, LostConnectionError)
                if not sent:
                    raise
                if clock.monotonic_s() >= give_up_s:
                    raise LostConnectionError(
                        f"{error.message}; the job may have been queued",
                        hint="check with gstat before you submit it again",
                    ) from error
            pause(PAUSE_S)


def encoded(message: msgspec.Struct) -> bytes:
    """Return a message as JSON.

    Raises:
        UsageError: a word of it is no UTF-8 text, as it came from the command line.
    """
    try:
        return msgspec.json.encode(message)
    except UnicodeEncodeError as error:
        raise UsageError(f"{error.object!r} is not valid UTF-8") from None

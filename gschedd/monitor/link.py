"""The monitor's connection to its head: the same API that commands use, over the same socket."""

import asyncio
from collections.abc import Mapping
from typing import Final, TypeVar

import aiohttp
import msgspec

from gsched.errors import GschedError, HeadUnreachableError
from gsched.protocol.api import ErrorBody, ErrorReply
from gsched.protocol.samples import UseSamples
from gschedd.http.answers import MAX_ERROR_TEXT, STATUS
from gschedd.http.callers import ON_BEHALF_OF
from gschedd.monitor.viewers import Viewer

T = TypeVar("T")

TIMEOUT_S: Final = 20.0
CONNECTIONS: Final = 8
HINT: Final = "it is busy or hangs; gsched doctor on its host says more"


class RefusedByHeadError(GschedError):
    """The head refuses a request; ``status`` is that of its answer, ``reason`` its error code."""

    def __init__(self, message: str, *, hint: str, reason: str, status: int) -> None:
        super().__init__(message, hint=hint)
        self.reason = reason
        self.status = status


class HeadLink:
    """Sends requests to the head, for the monitor itself or for somebody who looks at the page.

    Attributes:
        silence: that the head does not answer, in words: then nothing is sent; empty: it does.
        hint: what to do then.
    """

    def __init__(self, socket: str) -> None:
        self.silence = self.hint = ""
        self._waiting: set[asyncio.Timeout] = set()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(path=socket, limit=CONNECTIONS)
        )

    async def get(
        self, path: str, answer: type[T], *, viewer: Viewer | None = None, **query: str
    ) -> T:
        """Return the answer to a GET request.

        Raises:
            HeadUnreachableError: the head does not answer.
            RefusedByHeadError: it refuses the request.
        """
        self._check_silence()
        data = await self._send("GET", path, viewer=viewer, query=query)
        return msgspec.json.decode(data, type=answer)

    async def text(self, path: str, *, timeout_s: float) -> str:
        """Return the answer to a GET request as text, also of a silent head; errors as in `get`."""
        return (await self._send("GET", path, timeout_s=timeout_s)).decode()

    async def post(self, path: str, body: object, answer: type[T], *, viewer: Viewer) -> T:
        """Return the answer to a POST request; errors as in `get`."""
        self._check_silence()
        data = await self._send("POST", path, viewer=viewer, body=msgspec.json.encode(body))
        return msgspec.json.decode(data, type=answer)

    async def samples(self) -> UseSamples:
        """Return samples of all nodes and running jobs; errors as in `get`."""
        return await self.get("/v1/samples", UseSamples)

    def note_silence(self, words: str, hint: str) -> None:
        """Note that the head does not answer: requests that wait for it end, too."""
        self.silence, self.hint = words, hint
        for limit in self._waiting:
            limit.reschedule(asyncio.get_running_loop().time())

    def note_answer(self) -> None:
        """Note that the head answers."""
        self.silence = self.hint = ""

    def _check_silence(self) -> None:
        if self.silence:
            raise HeadUnreachableError(self.silence, hint=self.hint)

    async def _send(
        self,
        method: str,
        path: str,
        *,
        viewer: Viewer | None = None,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> bytes:
        headers = {"Content-Type": "application/json"}
        if viewer is not None:
            headers[ON_BEHALF_OF] = f"{viewer.uid}:{viewer.gid}"
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                self._waiting.add(limit)
                async with self._session.request(
                    method,
                    f"http://head{path}",
                    params=query,
                    data=body,
                    headers=headers,
                    timeout=aiohttp.ClientTimeout(),
                ) as response:
                    data = await response.read()
        except TimeoutError as error:
            self._check_silence()
            raise HeadUnreachableError(
                f"the head has not answered for {timeout_s:g} s",
                hint=HINT,
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise HeadUnreachableError(
                f"the head does not answer: {str(error) or type(error).__name__}",
                hint="is gschedd running? See its log",
            ) from error
        finally:
            self._waiting.discard(limit)
        if response.status >= 400:
            raise refusal_of(data, response.status)
        return data

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()


def refused_part(error: ErrorBody) -> RefusedByHeadError:
    """Return the refusal of one of the jobs of a request, which is answered as a whole."""
    status = STATUS.get(error.code, 400)
    return RefusedByHeadError(error.message, hint=error.hint, reason=error.code, status=status)


def refusal_of(data: bytes, status: int) -> RefusedByHeadError:
    """Return the refusal that an answer with an error status is."""
    try:
        error = msgspec.json.decode(data, type=ErrorReply).error
    except msgspec.DecodeError:
        text = data[:MAX_ERROR_TEXT].decode(errors="replace").strip()
        message = text or f"the head refuses the request with status {status}"
        return RefusedByHeadError(message, hint="", reason="internal", status=status)
    return RefusedByHeadError(error.message, hint=error.hint, reason=error.code, status=status)

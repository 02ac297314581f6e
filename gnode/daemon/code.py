"""Code snapshots: what starts a job's program asks by the node's socket, and the head answers."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from gnode.core.task import AttemptKey
from gsched.protocol import training as wire
from gsched.protocol.code import CodeRead, CodeWanted

ANSWER_S = 30.0  # then it is asked for again: the connection to the head may have been lost
LATER = "the head has not answered"


@dataclass(slots=True, kw_only=True)
class CodeRelay:
    """Passes pieces on, one at a time for each program.

    Attributes:
        send: sends a message to the head, where one is connected.
    """

    send: Callable[[CodeWanted], None]
    _pending: dict[int, "asyncio.Future[CodeRead]"] = field(default_factory=dict)
    _next: int = 1

    def take(self, answer: CodeRead) -> None:
        """Take an answer of the head."""
        pending = self._pending.pop(answer.request, None)
        if pending is not None and not pending.done():
            pending.set_result(answer)

    async def serve(
        self, key: AttemptKey, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer each line of a program with a piece, until it closes."""
        while line := await reader.readline():
            read = wire.decode_line(line).read
            if read is None:
                raise wire.BadLineError("an offset is missing")
            reply = await self._answer(key, read.offset)
            writer.write(msgspec.json.encode(reply) + b"\n")
            with contextlib.suppress(ConnectionError):
                await writer.drain()

    async def _answer(self, key: AttemptKey, offset: int) -> dict[str, object]:
        number, self._next = self._next, self._next + 1
        pending = self._pending[number] = asyncio.get_running_loop().create_future()
        self.send(CodeWanted(request=number, job=key.job, attempt=key.attempt, offset=offset))
        try:
            async with asyncio.timeout(ANSWER_S):
                answer = await pending
        except TimeoutError:
            return {"later": LATER}
        finally:
            self._pending.pop(number, None)
        if answer.error:
            return {"error": answer.error}
        return {"size_bytes": answer.size_bytes, "data": answer.data}

"""A worker process beside the head: started when needed, killed when late, started again."""

import asyncio
import contextlib
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
from typing import Final

from gsched.clock import Clock
from gsched.config.environment import full_environment
from gschedd.core.cycle.rounds import Answer, Failed, Question
from gschedd.core.forecast.start import ForecastAnswer, ForecastQuestion
from gschedd.plan.compose import Composed
from gschedd.planner.messages import HEADER, READY, Begin

log = logging.getLogger("gschedd.planner")

#: To import the policies and what they compute with, also on a machine that is busy, seconds.
START_S: Final = 60.0
#: Until a worker that failed is started again, at first; twice as long after each failure in a row.
FIRST_PAUSE_S: Final = 0.5
LAST_PAUSE_S: Final = 60.0
#: A process whose end is closed is about to end, and then says how.
END_S: Final = 5.0
MAX_ANSWER_BYTES: Final = 1 << 30
_READ_BYTES: Final = 1 << 18


class LostError(Exception):
    """The worker has died, or has not answered in time; the text says which."""


class Worker:
    """Answers questions in a process of its own, one at a time.

    Args:
        policy: that is asked; it is pickled, so it consists of what can be imported.
        name: for the log.
        time_limit_s: within which each answer must come.
        clock: for intervals.

    Attributes:
        failures: answers in a row that did not come.
        trouble: why, in words; empty while all is well.
        pid: of the process; 0: none runs.
        ready: it can answer.
    """

    def __init__(self, policy: Composed, *, name: str, time_limit_s: float, clock: Clock) -> None:
        self.failures = 0
        self.trouble = ""
        self.ready = False
        self._policy = policy
        self._name = name
        self._time_limit_s = time_limit_s
        self._clock = clock
        self._turn = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._channel: socket.socket | None = None
        self._not_before_s = 0.0

    @property
    def pid(self) -> int:
        """Return the id of the process, 0 if none runs."""
        return 0 if self._process is None else self._process.pid

    async def ask(self, question: Question) -> Answer:
        """Return what is to become of training jobs, or that there is no answer."""
        answer = await self._ask(question)
        assert isinstance(answer, Answer)
        return answer

    async def forecast(self, question: ForecastQuestion) -> ForecastAnswer | Failed:
        """Return a forecast, or that there is none."""
        answer = await self._ask(question)
        assert isinstance(answer, ForecastAnswer | Failed)
        return answer

    async def begin(self) -> None:
        """Start the process, unless it runs, and wait until it can answer, or has failed."""
        async with self._turn:
            if self._channel is None:
                try:
                    await self._start()
                except LostError as lost:
                    await self._give_up(str(lost))

    async def _ask(self, question: Question | ForecastQuestion) -> object:
        async with self._turn:
            try:
                channel = self._channel or await self._start()
                answer = await self._exchange(channel, question, self._time_limit_s)
            except LostError as lost:
                await self._give_up(str(lost))
                return Failed(number=question.number, why=f"the {self._name} {lost}")
            self.failures, self.trouble = 0, ""
            return answer

    async def _start(self) -> socket.socket:
        """Start the process and wait until it can answer."""
        await asyncio.sleep(max(0.0, self._not_before_s - self._clock.monotonic_s()))
        ours, theirs = socket.socketpair()
        ours.settimeout(0.0)
        self._channel = ours
        path = os.pathsep.join(filter(None, sys.path))
        with theirs:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-P", "-m", "gschedd.planner.worker", str(theirs.fileno())),
                    self._name,  # for whoever lists processes
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    env={**full_environment(), "PYTHONPATH": path},
                    start_new_session=True,
                )
            except OSError as error:
                raise LostError(f"cannot be started: {error.strerror}") from None
        begin = Begin(policy=self._policy, time_limit_s=self._time_limit_s, head=os.getpid())
        if await self._exchange(ours, begin, START_S) != READY:
            raise LostError("sent an invalid reply")
        self.ready = True
        log.info("%s started: process %d", self._name, self.pid)
        return ours

    async def _exchange(self, channel: socket.socket, message: object, limit_s: float) -> object:
        loop = asyncio.get_running_loop()
        body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        try:
            async with asyncio.timeout(limit_s):
                await loop.sock_sendall(channel, HEADER.pack(len(body)) + body)
                (length,) = HEADER.unpack(await _exactly(channel, HEADER.size))
                if length > MAX_ANSWER_BYTES:
                    raise LostError(f"has sent {length} bytes")
                answer: object = pickle.loads(await _exactly(channel, length))  # noqa: S301 - by our own child, on a socket pair made before it
                return answer
        except TimeoutError:
            raise LostError(f"has not answered within {limit_s:g} s") from None
        except (OSError, EOFError):
            raise LostError(await self._end()) from None

    async def _end(self) -> str:
        """Return how the process ended that has closed its end."""
        process = self._process
        if process is None:
            return "was not running"
        try:
            async with asyncio.timeout(END_S):
                code = await process.wait()
        except TimeoutError:
            return "has closed its end"
        if code < 0:
            return f"was killed by signal {-code} ({signal.Signals(-code).name})"
        return f"has ended with exit status {code}"

    async def _give_up(self, why: str) -> None:
        """Kill what is left of the process, and note when the next one may start."""
        await self._kill()
        self.failures += 1
        pause_s = min(FIRST_PAUSE_S * 2 ** min(self.failures - 1, 30), LAST_PAUSE_S)
        self._not_before_s = self._clock.monotonic_s() + pause_s
        self.trouble = why
        if self.failures > 1:
            self.trouble += f"; {self.failures} failures in a row"
        log.error("%s %s; it is started again in %.1f s", self._name, why, pause_s)

    async def _kill(self) -> None:
        process, channel = self._process, self._channel
        self._process = self._channel = None
        self.ready = False
        if channel is not None:
            channel.close()
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def close(self) -> None:
        """End the process, whatever it is doing."""
        await self._kill()


async def _exactly(channel: socket.socket, count: int) -> bytes:
    """Return the next bytes.

    Raises:
        EOFError: there are fewer.
    """
    loop = asyncio.get_running_loop()
    received = bytearray()
    while len(received) < count:
        part = await loop.sock_recv(channel, min(count - len(received), _READ_BYTES))
        if not part:
            raise EOFError
        received += part
    return bytes(received)

"""How gnode passes on that a program of a job wants step agents."""

import asyncio
from typing import Any

from gnode.core.table import NodeAttempt
from gnode.core.task import AttemptKey
from gnode.core.transitions import Phase
from gnode.daemon.steps import StepServer
from gnode.task import SupervisorInfo
from gsched.clock import SystemClock
from gsched.protocol import training as wire

KEY = AttemptKey(7, 1)
CALL = wire.StepCall(version=1, job=7, attempt=1, nodes=("n2",), port=4000, secret="0" * 32)
INFO = SupervisorInfo(
    pid=1, start_ticks=1, job_pid=2, job_start_ticks=1, started_s=1.0, started_boottime_s=1.0
)


def test_a_step_request_waits_until_the_start_of_its_attempt_is_reported() -> None:
    """The head drops what concerns an attempt that it does not know to run: nobody would answer."""
    attempt = NodeAttempt(key=KEY, phase=Phase.STARTING)
    sent: asyncio.Queue[Any] = asyncio.Queue()
    server = StepServer(
        node="n1",
        attempts={KEY: attempt},
        send=sent.put_nowait,
        is_connected=lambda: True,
        takes_logins=lambda: False,
        clock=SystemClock(),
    )

    async def call() -> None:
        reader: Any = asyncio.StreamReader()
        writer: Any = None  # nothing is answered
        serving = asyncio.create_task(server.serve_call(KEY, CALL, reader, writer))
        await asyncio.sleep(0.1)
        assert sent.empty()
        attempt.info, attempt.phase = INFO, Phase.RUNNING
        request = await sent.get()
        reader.feed_eof()
        await serving
        assert (request.job, request.attempt, request.nodes) == (7, 1, ("n2",))

    asyncio.run(asyncio.wait_for(call(), 30))

"""Interactive jobs that have not started, and whether anybody waits for them.

A job whose `gsub -I` is gone would take resources for a shell that nobody uses, so it is deleted.
A client that goes closes its connection, which the kernel tells at once; after a start of the head
the clients need some seconds to come again.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Iterator
from typing import Final

from gsched.clock import Clock
from gsched.errors import GschedError
from gsched.logs import Complaints
from gsched.model.ids import short_job_id
from gsched.model.states import JobState
from gsched.protocol.actions import DeleteJob
from gschedd.core.requests import commands as c
from gschedd.core.state.settings import Caller
from gschedd.engine.loop import Engine

log = logging.getLogger("gschedd.sessions")

LOOK_S: Final = 1.0
ABSENT_S: Final = 10.0  # without a client; one that has just submitted is about to connect
ABSENT_AT_START_S: Final = 60.0
MESSAGE: Final = "its gsub -I ended before the job started"
UNSTARTED: Final = frozenset({JobState.QUEUED, JobState.HELD, JobState.WAITING})


class Waiting:
    """The unstarted interactive jobs, and their clients."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._clients: Counter[int] = Counter()
        self._alone_since_s: dict[int, float] = {}
        self._complaints = Complaints(log, clock)

    def expect(self, job: int) -> None:
        """Note that an interactive job was submitted: its client is about to come."""
        self._alone_since_s.setdefault(job, self._clock.monotonic_s())

    @contextlib.contextmanager
    def client_of(self, job: int) -> Iterator[None]:
        """Note that a client waits for a job."""
        self._clients[job] += 1
        try:
            yield
        finally:
            self._clients[job] -= 1
            if not self._clients[job]:
                del self._clients[job]
                self._alone_since_s[job] = self._clock.monotonic_s()

    async def run(self) -> None:
        """Delete the jobs that nobody waits for, for ever."""
        begun_s = self._clock.monotonic_s() + ABSENT_AT_START_S - ABSENT_S
        for job in self._engine.head.state.jobs.values():
            if job.spec.interactive is not None and job.state in UNSTARTED:
                self._alone_since_s.setdefault(job.id, begun_s)
        while True:
            await asyncio.sleep(LOOK_S)
            for number in self._abandoned(self._clock.monotonic_s()):
                await self._delete(number)

    def _abandoned(self, now_s: float) -> list[int]:
        """Return the jobs that nobody waits for any more; forget those that have ended."""
        jobs = self._engine.head.state.jobs
        found: list[int] = []
        for number, since_s in tuple(self._alone_since_s.items()):
            job = jobs.get(number)
            if job is None or job.state is JobState.DONE:
                del self._alone_since_s[number]
            elif job.state not in UNSTARTED:  # it may come back to its queue
                self._alone_since_s[number] = now_s
            elif number not in self._clients and now_s - since_s >= ABSENT_S:
                found.append(number)
        return found

    async def _delete(self, number: int) -> None:
        job = self._engine.head.state.jobs.get(number)
        if job is None:
            return
        owner = job.spec.owner
        command = c.ActOnJob(
            caller=Caller(user=owner.user, uid=owner.uid, gid=owner.gid),
            job=number,
            action=DeleteJob(ids=(str(number),), message=MESSAGE),
        )
        head = self._engine.head
        try:
            (step,) = await self._engine.ask(lambda now_s: [head.command(command, now_s)])
        except GschedError as error:  # the database cannot be written now: later
            self._complaints.say(
                f"uid {owner.uid}", f"job {short_job_id(number)} waits for nobody: {error}"
            )
            return
        if step.error is None:
            text = f"job {short_job_id(number)} is cancelled: {MESSAGE}"
            self._complaints.say(f"uid {owner.uid}", text, level=logging.INFO)

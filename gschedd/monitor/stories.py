"""Stories of jobs: what the head's database has of them, and what only the head knows."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from msgspec import structs

from gsched.clock import Clock
from gsched.errors import HeadUnreachableError, StorageError, UnknownJobError
from gsched.model.ids import own_job_number, short_job_id
from gsched.model.states import JobState
from gsched.protocol.job_rows import JobStory
from gsched.protocol.stories import JobStories
from gschedd.core.head import Head
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State
from gschedd.core.views.jobs import JobViews
from gschedd.http.stories import recorded
from gschedd.monitor.link import HeadLink, RefusedByHeadError
from gschedd.monitor.viewers import Viewer
from gschedd.plan.snapshot import Plan, Snapshot
from gschedd.store.reader import Reader

#: How long a page waits for the head where the database has the job, seconds.
PATIENCE_S: Final = 0.15
LATE: Final = "the head has not answered yet; load the page again for the reason and present use"
AWAY: Final = "the head does not answer; its database has no reasons of jobs"


class Stories:
    """Reads stories of jobs: a head that is busy, or away, delays no page.

    Args:
        database: path of the head's.
        server: name of the cluster's head.
    """

    def __init__(self, database: str, server: str, head: HeadLink, clock: Clock) -> None:
        self._server = server
        self._head = head
        self._clock = clock
        self._reader = Reader(database)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="stories")
        settings = Settings(server=server, queues={})
        self._nothing = Head(state=State(), settings=settings, policy=_plans_nothing)

    async def recorded(self, text: str, may_read: Callable[[str], bool]) -> JobStory | None:
        """Return what the database has of a job; None: only the head can tell.

        Args:
            text: its identifier.
            may_read: whether who looks may see the arguments of a user's jobs.
        """
        number = own_job_number(text, server=self._server)
        read = partial(self._read, number, may_read)
        return await asyncio.get_running_loop().run_in_executor(self._thread, read)

    def _read(self, number: int, may_read: Callable[[str], bool]) -> JobStory | None:
        with self._reader.moment():
            try:
                job = next(iter(self._reader.jobs([number])), None)
            except StorageError:
                return None
            if job is None or job.spec.array is not None:
                return None
            past = recorded(self._reader, job, with_origin=False)
        now_s = self._clock.wall_s()
        story = JobViews(self._nothing, now_s=now_s).story(
            job, attempts=past.attempts, events=past.events, now_s=now_s
        )
        if job.state is JobState.QUEUED:  # what it waits for is not recorded
            row = structs.replace(story.row, reason="", short_reason="")
            story = structs.replace(
                story, row=row, cause="", remedy="", ahead=None, ahead_jobs=None
            )
        return story if may_read(job.spec.owner.user) else structs.replace(story, arguments=())

    async def with_live(
        self, story: JobStory, viewer: Viewer, may_read: Callable[[str], bool]
    ) -> tuple[JobStory, str]:
        """Return a recorded story with what only the head knows, and why that is missing."""
        if story.row.state == JobState.DONE:
            return story, ""
        text = short_job_id(story.row.id)
        try:
            async with asyncio.timeout(PATIENCE_S):
                live = await self.live(text, viewer, past="0")
        except TimeoutError:
            return story, LATE
        except (HeadUnreachableError, RefusedByHeadError):
            return story, AWAY
        newest = story if _moment(live) == _moment(story) else await self.recorded(text, may_read)
        if newest is None:
            return live, ""
        if _moment(live) != _moment(newest):
            return newest, ""
        known = {each.attempt: each for each in live.attempts}
        attempts = tuple(known.get(each.attempt, each) for each in newest.attempts)
        return structs.replace(live, attempts=attempts, events=newest.events), ""

    async def live(self, text: str, viewer: Viewer, **query: str) -> JobStory:
        """Return the story that the head has of a job.

        Raises:
            UnknownJobError: there is no such job.
            HeadUnreachableError: the head does not answer.
            RefusedByHeadError: it refuses the request.
        """
        reply = await self._head.get("/v1/stories", JobStories, viewer=viewer, ids=text, **query)
        for error in reply.errors.values():
            raise UnknownJobError(error.message, hint=error.hint)
        return reply.jobs[0]

    def close(self) -> None:
        """Wait for the read under way, and close the database."""
        self._thread.shutdown()
        self._reader.close()


def _moment(story: JobStory) -> tuple[str, int]:
    return story.row.state, story.row.attempt


def _plans_nothing(snapshot: Snapshot) -> Plan:  # noqa: ARG001 - of a policy
    return Plan()

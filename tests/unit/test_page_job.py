"""The page of a job: which buttons it has, and what it waits for."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request
from msgspec import structs

from gsched.clock import SystemClock
from gsched.protocol.job_rows import JobList, JobRow, JobStory, StartRow
from gschedd.monitor.page.job import JobPages, possible_actions
from gschedd.monitor.page.shown import ShownJobs
from gschedd.monitor.viewers import Viewer
from tests.support.slurm_commands import OK, row


def story_of(state: str, **changes: object) -> JobStory:
    return JobStory(
        server="test", now_s=0.0, row=row(1, state=state, **changes), attempts=(), events=(),
        workdir="/", resources="nodes=1", stdout_path="", stderr_path="", join="n",
        launch="script", rerunnable=True, grace_s=30.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("state", "changes", "buttons"),
    [
        ("queued", {}, {"hold", "cancel", "resubmit"}),
        ("running", {}, {"requeue", "cancel", "resubmit"}),
        ("exiting", {}, {"resubmit"}),
        ("done", {"outcome": OK}, {"resubmit"}),
    ],
)
def test_a_job_has_the_buttons_of_its_state(
    state: str, changes: dict[str, object], buttons: set[str]
) -> None:
    possible = possible_actions(story_of(state, **changes))
    assert {name for name, is_possible in possible.items() if is_possible} == buttons


class _Head:
    """A head that knows when a job starts, and notes that it was asked."""

    def __init__(self, waits: JobRow) -> None:
        self._waits = waits
        self.asked = asyncio.Event()

    async def get(self, path: str, answer: object, **query: object) -> JobList:
        assert (path, query["forecast"]) == ("/v1/jobs", "1"), answer
        self.asked.set()
        start = StartRow(expected_s=4711.0)
        return JobList(server="test", now_s=0.0, jobs=(structs.replace(self._waits, start=start),))


class _Stories:
    """The head tells why a job waits when it was asked for its start, too."""

    def __init__(self, story: JobStory, head: _Head) -> None:
        self._story = story
        self._head = head

    async def recorded(self, _text: str, _may_read: object) -> JobStory:
        return self._story

    async def with_live(self, story: JobStory, *_: object) -> tuple[JobStory, str]:
        await self._head.asked.wait()
        return story, ""


class _Site:
    """Returns what a page shows."""

    def may_act(self, _viewer: Viewer, _owner: str) -> bool:
        return False

    def page(self, _template: str, _viewer: Viewer, **values: object) -> dict[str, object]:
        return values


def test_the_page_of_a_job_that_waits_asks_for_all_at_once() -> None:
    """Or it waits for the reason first, and for the start afterwards."""
    story = story_of("queued")
    head = _Head(story.row)
    model: Any = SimpleNamespace(
        stories=_Stories(story, head), head=head, clock=SystemClock(), only=lambda _: ""
    )
    site: Any = _Site()
    pages = JobPages(site, model, ShownJobs(model))
    viewer = Viewer(uid=1, gid=1, user="bob")
    request = make_mocked_request("GET", "/jobs/1", match_info={"id": "1"})

    async def load() -> Any:
        async with asyncio.timeout(30.0):
            return await pages.job(request, viewer)

    shown = asyncio.run(load())
    assert shown["row"].start.expected_s == 4711.0

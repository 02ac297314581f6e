"""The page of a job: which buttons it has, and what it waits for."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request
from msgspec import structs

from gsched.cli.times import COMPUTING
from gsched.clock import SystemClock
from gsched.protocol.job_rows import JobList, JobRow, JobStory, StartRow
from gschedd.monitor.page.job import JobPages, possible_actions
from gschedd.monitor.page.queue import table_of
from gschedd.monitor.page.shown import FRESH_S, ShownJobs
from gschedd.monitor.page.site import with_breaks
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
    possible = possible_actions(story_of(state, **changes), is_operator=False)
    assert {name for name, is_possible in possible.items() if is_possible} == buttons


@pytest.mark.parametrize(
    ("holds", "of_user", "of_operator"),
    [
        (("user",), "user", "user"),
        (("operator",), "", "operator"),
        (("operator", "system", "user"), "user", "operator,system,user"),
        (("dependency",), "", ""),
    ],
)
def test_a_user_is_offered_to_release_own_holds_only(
    holds: tuple[str, ...], of_user: str, of_operator: str
) -> None:
    story = structs.replace(story_of("held"), holds=holds)
    assert possible_actions(story, is_operator=False)["release"] == of_user
    assert possible_actions(story, is_operator=True)["release"] == of_operator
    done = structs.replace(story_of("done", outcome=OK), holds=holds)
    assert not possible_actions(done, is_operator=True)["release"]


class _Head:
    """A head that knows when a job starts, and notes that it was asked."""

    def __init__(self, waits: JobRow, start: StartRow | None = None) -> None:
        self._waits = waits
        self._start = start or StartRow(expected_s=4711.0)
        self.asked = asyncio.Event()
        self.questions = 0

    async def get(self, path: str, answer: object, **query: object) -> JobList:
        assert (path, query["forecast"]) == ("/v1/jobs", "1"), answer
        self.asked.set()
        self.questions += 1
        told = structs.replace(self._waits, start=self._start)
        return JobList(server="test", now_s=0.0, jobs=(told,))


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


class _Clock:
    """Goes on when it is told to."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_s(self) -> float:
        return self.now_s


def load_page(head: _Head, story: JobStory, pages: JobPages | None = None) -> Any:
    pages = pages or job_pages(head, story, SystemClock())
    viewer = Viewer(uid=1, gid=1, user="bob")
    request = make_mocked_request("GET", "/jobs/1", match_info={"id": "1"})

    async def load() -> Any:
        async with asyncio.timeout(30.0):
            return await pages.job(request, viewer)

    return asyncio.run(load())


def job_pages(head: _Head, story: JobStory, clock: object) -> JobPages:
    model: Any = SimpleNamespace(
        stories=_Stories(story, head),
        head=head,
        clock=clock,
        only=lambda _: "",
        operators=frozenset(),
    )
    site: Any = _Site()
    return JobPages(site, model, ShownJobs(model))


def test_the_page_of_a_job_that_waits_asks_for_all_at_once() -> None:
    """Or it waits for the reason first, and for the start afterwards."""
    story = story_of("queued")
    shown = load_page(_Head(story.row), story)

    assert shown["row"].start.expected_s == 4711.0
    assert not shown["is_partial"]


def test_an_unfinished_forecast_is_requested_again_soon() -> None:
    """And the page is marked, so that it is loaded again; a known start is shown for longer."""
    story, clock = story_of("queued"), _Clock()
    for start, is_partial, questions in (
        (StartRow(unknown=f"{COMPUTING}: the forecast is still being computed"), True, 2),
        (StartRow(expected_s=4711.0), False, 1),
    ):
        head = _Head(story.row, start)
        pages = job_pages(head, story, clock)
        assert load_page(head, story, pages)["is_partial"] is is_partial
        clock.now_s += FRESH_S
        load_page(head, story, pages)
        assert head.questions == questions


class _Rows:
    """A head that tells the present rows of jobs."""

    def __init__(self) -> None:
        self.state = "queued"
        self.questions = 0

    async def get(self, path: str, answer: object, **query: object) -> JobList:
        assert path == "/v1/jobs", answer
        self.questions += "forecast" not in query
        return JobList(server="test", now_s=0.0, jobs=(row(1, state=self.state),))


def test_a_row_of_an_earlier_state_is_not_shown_again() -> None:
    """Right after an action: else its line contradicts the numbers above the list."""
    head, clock = _Rows(), _Clock()
    model: Any = SimpleNamespace(head=head, clock=clock, server="test", only=lambda _: "")
    shown, viewer = ShownJobs(model), Viewer(uid=1, gid=1, user="bob")

    async def listed() -> str:
        reply = await shown.rows([1], viewer, known=[row(1, state=head.state)])
        return reply.jobs[0].state

    async def look() -> None:
        assert [await listed(), await listed()] == ["queued", "queued"]
        assert head.questions == 1
        head.state = "held"
        assert [await listed(), await listed()] == ["held", "held"]
        assert head.questions == 2

    asyncio.run(look())


def test_texts_are_broken_behind_separators_only() -> None:
    assert with_breaks("nodes=1:gpus=1,mem=1gb") == "nodes=1:gpus=1,<wbr>mem=1gb"
    assert with_breaks("/home/<b>") == "/home/<wbr>&lt;b&gt;"
    assert with_breaks("a, b") == "a, b"


def test_a_table_has_no_column_without_any_text() -> None:
    jobs = (row(1, gpus=0, walltime_s=None), row(2, gpus=0, walltime_s=None, name="x" * 99))
    table = table_of(JobList(server="test", now_s=0.0, jobs=jobs))
    titles = [column.title for _, column, _ in table.columns]

    assert "GPUs" not in titles
    assert "Limit" not in titles
    assert {"Job ID", "Name", "User", "State"} <= set(titles)
    assert {len(line.cells) for line in table.lines} == {len(titles) - 1}
    with_gpus = table_of(JobList(server="test", now_s=0.0, jobs=(row(1), row(2, gpus=3))))
    assert "GPUs" in [column.title for _, column, _ in with_gpus.columns]

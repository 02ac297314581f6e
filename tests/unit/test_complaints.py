"""Lines of a daemon's log about outsiders: a few for each source, the rest is counted."""

import asyncio
import logging

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from gsched.logs import Complaints
from gsched.model.limits import MAX_LINES, MAX_SOURCE_LINES
from gschedd.http.answers import errors


class Hands:
    """A clock that is set by hand."""

    now_s = 0.0

    def wall_s(self) -> float:
        return self.now_s

    def monotonic_s(self) -> float:
        return self.now_s


def test_each_source_and_all_have_a_bound_and_the_rest_is_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Hands()
    complaints = Complaints(logging.getLogger("test"), clock)
    for source in range(100):
        for _ in range(100):
            complaints.say(f"uid {source}", "x")
    assert len(caplog.records) == MAX_LINES
    clock.now_s = 61.0
    complaints.say("uid 1", "y")

    assert len(caplog.records) == MAX_LINES + 2
    assert f"{100 * 100 - MAX_LINES} more lines like these" in caplog.records[-2].getMessage()


@pytest.mark.parametrize("error", [ValueError("ours"), OSError(5, "Input/output error")])
def test_a_fault_that_somebody_repeats_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    async def handler(_: web.Request) -> web.StreamResponse:
        raise error

    handler.__qualname__ = f"handler of {type(error).__name__}"  # each has lines of its own

    async def ask() -> None:
        for number in range(50):
            request = make_mocked_request("GET", f"/v1/{type(error).__name__}/{number}")
            assert (await errors(request, handler)).status == 500

    asyncio.run(ask())

    assert 1 <= len(caplog.records) <= MAX_SOURCE_LINES
    assert all(record.exc_info for record in caplog.records)


def test_a_full_disk_is_answered_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def handler(_: web.Request) -> web.StreamResponse:
        raise OSError(28, "No space left on device")

    async def ask() -> int:
        return (await errors(make_mocked_request("POST", "/v1/code"), handler)).status

    assert asyncio.run(ask()) == 507
    assert not caplog.records


def test_a_field_of_a_query_that_is_stated_twice_is_refused() -> None:
    """One of the two would not count, and nobody would be told."""

    async def handler(_: web.Request) -> web.StreamResponse:
        return web.Response()

    async def status(query: str, path: str = "/v1/history") -> tuple[int, str]:
        response = await errors(make_mocked_request("GET", f"{path}?{query}"), handler)
        assert isinstance(response, web.Response)
        return response.status, response.text or ""

    assert asyncio.run(status("since=1&until=2&x")) == (200, "")
    refused, words = asyncio.run(status("since=&since=3"))
    assert refused == 400
    assert "the query states 'since' 2 times" in words
    of_slurm = "/slurmdb/v0.0.44/jobs/"  # refused there, in Slurm's form
    assert asyncio.run(status("users=a&users=b", of_slurm)) == (200, "")

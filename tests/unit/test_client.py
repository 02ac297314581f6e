"""The Python API: what it asks, what it retries, and what it makes of refusals."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gsched import client, head_calls, transport
from gsched.client import HeadClient, new_job
from gsched.errors import (
    ALL_ERRORS,
    GschedError,
    HeadUnreachableError,
    InternalError,
    RequestTooLargeError,
    UnknownJobError,
    UsageError,
)
from gsched.head_calls import body_of, error_from
from gsched.head_connection import LostConnectionError
from gsched.model.limits import MAX_REQUEST_BYTES
from gsched.protocol import api
from tests.support.fake_api import FakeApi, make_row, serve
from tests.support.processes import PATIENCE_S


@pytest.fixture
def fake(tmp_path: Path) -> FakeApi:
    return FakeApi(tmp_path)


@pytest.fixture
def head(fake: FakeApi, tmp_path: Path) -> Iterator[HeadClient]:
    with serve(fake.application(), tmp_path / "s"):
        yield HeadClient(str(tmp_path / "s"))


def test_a_submission_whose_answer_was_lost_gives_the_same_job(
    fake: FakeApi, head: HeadClient
) -> None:
    """Twice the answer is lost after the head has acted: three requests, one key, one job."""
    fake.lose_answers = 2
    reply = head.submit([new_job(name="a", workdir="/")])

    assert [each.id for each in reply.results] == [1]
    assert len(fake.submitted) == 3
    assert len({each.key for each in fake.submitted}) == 1


def test_a_submission_that_is_never_answered_says_that_it_may_be_queued(
    fake: FakeApi, head: HeadClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_calls, "RETRY_S", 0.0)
    fake.lose_answers = 1000

    with pytest.raises(HeadUnreachableError, match="may have been queued") as caught:
        head.submit([new_job(name="a", workdir="/")])
    assert "gstat" in caught.value.hint


def test_of_several_heads_each_that_does_not_answer_is_named(tmp_path: Path) -> None:
    both = [f"{tmp_path}/a.sock", f"{tmp_path}/b.sock"]
    with pytest.raises(HeadUnreachableError) as caught:
        HeadClient(",".join(both), patience_s=0.0).status()
    assert all(f"no head answers at {each} " in caught.value.message for each in both)
    assert "gsched doctor" in caught.value.hint


def test_no_head_at_all_is_an_error_without_retries(tmp_path: Path) -> None:
    with pytest.raises(HeadUnreachableError, match="no head answers"):
        HeadClient(str(tmp_path / "none"), patience_s=0.0).submit([new_job(name="a", workdir="/")])


def test_more_jobs_than_one_request_takes_are_split_in_order(
    fake: FakeApi, head: HeadClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "MAX_JOBS_PER_REQUEST", 3)
    jobs = [new_job(name=f"j{number}", workdir="/") for number in range(10)]

    reply = head.submit(jobs)

    assert [each.id for each in reply.results] == list(range(1, 11))
    assert [each.name for each in fake.submitted] == [each.name for each in jobs]


def test_a_refusal_is_raised_as_its_class_with_its_hint(fake: FakeApi, head: HeadClient) -> None:
    fake.refuse = api.ErrorBody(code="request_too_large", message="too large", hint="ask for less")

    with pytest.raises(RequestTooLargeError, match="too large") as caught:
        head.submit([new_job(name="a", workdir="/")])
    assert caught.value.hint == "ask for less"


@pytest.mark.parametrize("kind", ALL_ERRORS)
def test_every_error_survives_the_wire(kind: type[GschedError]) -> None:
    again = error_from(body_of(kind("what", hint="do")))

    assert (type(again), again.message, again.hint) == (kind, "what", "do")


def test_an_error_of_a_later_version_is_still_an_error() -> None:
    assert isinstance(error_from(api.ErrorBody(code="new", message="what")), InternalError)


def test_an_unknown_error_reply_is_reported(head: HeadClient) -> None:
    with pytest.raises(InternalError, match="answered 404 to GET /v1/recover"):
        head.recovery()


def test_invalid_ids_are_reported_beside_the_jobs(fake: FakeApi, head: HeadClient) -> None:
    fake.add(make_row(1))
    fake.add(make_row(2, state="done", letter="C"))

    reply = head.jobs(["2.fake", "9.fake", "abc", "1"])

    assert sorted(row.id for row in reply.jobs) == [1, 2]
    assert list(reply.errors) == ["9.fake", "abc"]
    assert all(error.code == "unknown_job" for error in reply.errors.values())


def test_ids_that_are_none_at_all_do_not_ask_for_every_job(fake: FakeApi, head: HeadClient) -> None:
    fake.add(make_row(1))

    assert head.jobs(["abc"]).jobs == ()


def test_thousands_of_ids_are_asked_in_requests_that_fit_a_line(
    fake: FakeApi, head: HeadClient
) -> None:
    fake.add(make_row(100_000))
    reply = head.jobs(range(100_000, 103_000))

    assert len(reply.jobs) == 1
    assert len(reply.errors) == 2_999
    assert max(len(target) for target in fake.targets) < 8_000


def test_filters_reach_the_head(fake: FakeApi, head: HeadClient) -> None:
    fake.add(make_row(1))
    fake.add(make_row(2, user="bob"))
    fake.add(make_row(3, user="bob", state="done"))

    assert [row.id for row in head.jobs(user="bob").jobs] == [2]
    assert [row.id for row in head.jobs(user="bob", finished=True).jobs] == [2, 3]
    assert [row.id for row in head.jobs(states=["done"], finished=True).jobs] == [3]


def test_waiting_goes_on_over_lost_connections_until_the_job_is_done(
    fake: FakeApi, head: HeadClient
) -> None:
    fake.add(make_row(1, state="running"))
    fake.lose_answers = 1
    polls: list[int] = []

    def third_poll_ends(job: int) -> None:
        polls.append(job)
        if len(polls) == 3:
            fake.change(job, state="done")

    fake.on_wait = third_poll_ends
    assert head.wait([1])[0].row.state == "done"
    assert len(polls) == 3


def test_waiting_ends_at_its_time_with_the_job_as_it_is(fake: FakeApi, head: HeadClient) -> None:
    fake.add(make_row(1, state="running"))

    assert head.wait([1], timeout_s=0.0)[0].row.state == "running"


def test_a_wait_with_a_limit_ends_where_no_head_answers(tmp_path: Path) -> None:
    """However long its client waits for a head that restarts."""
    head = HeadClient(str(tmp_path / "s"), patience_s=1e6)
    with pytest.raises(HeadUnreachableError, match="no head answers"):
        head.wait([1], timeout_s=0.05)


def test_a_wait_with_a_limit_ends_where_the_head_is_silent(
    fake: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "LATE_S", 0.05)
    fake.add(make_row(1, state="running"))
    silence = threading.Event()

    def is_silent(_job: int) -> None:
        silence.wait(PATIENCE_S)

    fake.on_wait = is_silent
    head = HeadClient(str(tmp_path / "s"), patience_s=1e6)
    with serve(fake.application(), tmp_path / "s"):
        try:
            with pytest.raises(LostConnectionError, match=r"has not answered for 0\.\d+ s"):
                head.wait([1], timeout_s=0.5)
        finally:
            silence.set()


def test_waiting_for_an_unknown_job_is_an_error_before_any_wait(
    fake: FakeApi, head: HeadClient
) -> None:
    fake.add(make_row(1, state="running"))
    fake.on_wait = lambda job: pytest.fail("waited")

    with pytest.raises(UnknownJobError):
        head.wait([1, 99])


def test_waiting_asks_for_no_forecast(fake: FakeApi, head: HeadClient) -> None:
    """The details of a waiting job have one, which takes the policy long."""
    fake.add(make_row(1, state="done"))
    with_forecast: list[int] = []
    fake.on_job = with_forecast.append

    head.wait([1])

    assert with_forecast == []
    head.job(1)
    assert with_forecast == [1]


def test_output_can_be_read_from_its_end(fake: FakeApi, head: HeadClient) -> None:
    fake.add(make_row(1))
    fake.output[1, "stderr"] = b"0123456789"

    chunk = head.output("1.fake", stream="stderr", offset=-4, max_bytes=3)
    assert (chunk.offset, chunk.data, chunk.size_bytes) == (6, b"678", 10)


def test_a_job_with_a_field_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="frob"):
        new_job(name="a", workdir="/", frob=1)


def test_a_head_without_room_is_asked_again_when_it_says(fake: FakeApi, head: HeadClient) -> None:
    """It has not begun with the request, so it may come again."""
    fake.no_room = 2

    assert head.submit([new_job(name="a", workdir="/")]).results[0].id == 1
    assert len(fake.submitted) == 1


def test_jobs_that_are_too_large_together_are_sent_in_parts(
    fake: FakeApi, head: HeadClient
) -> None:
    """The head takes a request beyond 1 MiB only with one job in it."""
    jobs = [new_job(name=f"j{n}", workdir="/", script="#" * 300_000) for n in range(8)]

    reply = head.submit(jobs)

    assert [each.id for each in reply.results] == list(range(1, 9))
    assert max(fake.sizes) <= MAX_REQUEST_BYTES

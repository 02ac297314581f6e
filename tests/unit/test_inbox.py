"""What waits for the owner of the head's state: requests need not wait for all reports."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from gschedd.core.state.step import Step
from gschedd.engine.inbox import FullError, Inbox, Input


def named(name: str) -> Input:
    def action(_now_s: float) -> Sequence[Step]:
        raise AssertionError(name)

    return action, None


def name_of(each: Input | None) -> str:
    if each is None:
        return ""
    with pytest.raises(AssertionError) as told:
        each[0](0.0)
    return str(told.value)


def taken(inbox: Inbox) -> str:
    return "".join(iter(lambda: name_of(inbox.take()), ""))


def test_a_request_passes_reports_and_no_other_request() -> None:
    """In turn, so that many requests do not keep reports from being heard either."""
    inbox = Inbox(20)
    for name in "abcde":
        inbox.put(named(name))
    for name in "XYZ":
        inbox.put(named(name), is_request=True)

    assert taken(inbox) == "XaYbZcde"


def test_of_one_kind_all_are_taken_in_their_order() -> None:
    inbox = Inbox(20)
    for name in "XYZ":
        inbox.put(named(name), is_request=True)
    assert taken(inbox) == "XYZ"
    for name in "abc":
        inbox.put(named(name))
    assert taken(inbox) == "abc"


def test_a_full_inbox_refuses_requests_and_lets_nodes_wait() -> None:
    async def scenario() -> str:
        inbox = Inbox(2)
        inbox.put(named("a"))
        inbox.put(named("b"))
        with pytest.raises(FullError):
            inbox.put(named("X"), is_request=True)
        waiting = [asyncio.create_task(inbox.put_later(named(name))) for name in "cd"]
        await asyncio.sleep(0)
        assert len(inbox) == 2
        order = name_of(inbox.take())
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        order += name_of(inbox.take())
        await asyncio.gather(*waiting)
        return order + taken(inbox)

    assert asyncio.run(scenario()) == "abcd"


def test_whoever_waits_for_an_input_hears_of_the_next() -> None:
    async def scenario() -> str:
        inbox = Inbox(2)
        await inbox.wait(0.0)  # the time is over
        waiting = asyncio.create_task(inbox.wait(30.0))
        await asyncio.sleep(0)
        inbox.put(named("a"))
        await waiting
        await inbox.wait(30.0)  # it is still there
        return taken(inbox)

    assert asyncio.run(scenario()) == "a"


def test_when_requests_are_refused_reports_stay() -> None:
    async def scenario() -> tuple[str, Any]:
        inbox = Inbox(4)
        asked: asyncio.Future[Sequence[Step]] = asyncio.get_running_loop().create_future()
        inbox.put(named("a"))
        inbox.put((named("X")[0], asked), is_request=True)
        inbox.put((named("Y")[0], asyncio.get_running_loop().create_future()))
        inbox.refuse(lambda: ValueError("stalled"))
        return taken(inbox), asked.exception()

    left, error = asyncio.run(scenario())
    assert left == "a"
    assert str(error) == "stalled"


async def waited(inbox: Inbox, put: str, *, is_request: bool) -> bool:
    """Return whether a wait for a request ends before its time, 10 s, once something is put."""
    wait = asyncio.create_task(inbox.wait_for_request(10.0))
    await asyncio.sleep(0)
    inbox.put(named(put), is_request=is_request)
    done, _ = await asyncio.wait({wait}, timeout=0.1)
    wait.cancel()
    return bool(done)


def test_reports_wait_for_others_but_not_a_request() -> None:
    async def scenario() -> None:
        inbox = Inbox(20)
        inbox.put(named("a"))
        assert not await waited(inbox, "b", is_request=False)
        assert await waited(inbox, "X", is_request=True)
        await asyncio.wait_for(inbox.wait_for_request(10.0), 1.0)  # it is still there
        assert taken(inbox) == "Xab"
        assert not await waited(inbox, "c", is_request=False)

    asyncio.run(scenario())


def test_the_wait_for_a_request_ends_with_its_time() -> None:
    async def scenario() -> None:
        inbox = Inbox(20)
        inbox.put(named("a"))
        await asyncio.wait_for(inbox.wait_for_request(0.001), 1.0)
        await asyncio.wait_for(inbox.wait_for_request(-1.0), 1.0)

    asyncio.run(scenario())

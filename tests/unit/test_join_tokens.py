"""How many tokens there are: those that hosts can join with count, those that ended do not."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TypeVar

import pytest

from gsched.errors import InvalidRequestError, NotPermittedError
from gsched.protocol.joining import CreateToken
from gschedd.http.members import MAX_ENDED, MAX_TOKENS, Members

T = TypeVar("T")


class Notes:
    """Stands where the store is.

    Attributes:
        fails: the disk is full.
    """

    fails = False

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], str] = {}

    def notes(self, kind: str) -> dict[str, str]:
        return {name: text for (of, name), text in self.kept.items() if of == kind}

    def save_note(self, kind: str, name: str, text: str | None) -> None:
        if self.fails:
            raise OSError("no room")
        if text is None:
            del self.kept[kind, name]
        else:
            self.kept[kind, name] = text


class Clock:
    """Shows the time that a test sets, seconds."""

    now_s = 1000.0

    def wall_s(self) -> float:
        return self.now_s

    def monotonic_s(self) -> float:
        return self.now_s


async def at_once(work: Callable[[], None]) -> None:
    await asyncio.sleep(0)
    work()


def made(notes: Notes, clock: Clock) -> Members:
    return Members(notes, in_writer=at_once, clock=clock)


def run(work: Coroutine[object, object, T]) -> T:
    return asyncio.run(work)


WANTED = CreateToken(role="node", ttl_s=60.0)


async def create(members: Members, count: int) -> list[str]:
    return [(await members.create(WANTED, "root"))[1] for _ in range(count)]


async def join(members: Members, text: str, name: str) -> None:
    await members.use(members.check(text, name, request=name), name, name)


def test_only_tokens_that_a_host_can_join_with_count() -> None:
    clock = Clock()
    members = made(Notes(), clock)

    async def story() -> None:
        first, *_ = await create(members, MAX_TOKENS)
        with pytest.raises(InvalidRequestError, match="1000 tokens that no host has used"):
            await create(members, 1)
        await join(members, first, "n1")
        await create(members, 1)
        with pytest.raises(InvalidRequestError, match="the limit"):
            await create(members, 1)
        clock.now_s += 60.0  # all have expired, and are still listed
        await create(members, MAX_TOKENS)
        assert len(members.tokens()) == 2 * MAX_TOKENS + 1
        with pytest.raises(NotPermittedError, match=r"was used .* by node n1"):
            members.check(first, "n2")

    run(story())


def test_tokens_that_ended_are_kept_for_a_day_and_in_bounded_number() -> None:
    clock, notes = Clock(), Notes()
    members = made(notes, clock)

    async def story() -> None:
        oldest, *_ = await create(members, 1)
        clock.now_s += 61.0
        for _ in range(MAX_ENDED // MAX_TOKENS):
            await create(members, MAX_TOKENS)
            clock.now_s += 61.0
        await create(members, 1)
        assert len(members.tokens()) == MAX_ENDED + 1
        with pytest.raises(NotPermittedError, match="unknown here"):
            members.check(oldest, "n1")
        clock.now_s += 2 * 86_400.0
        await create(members, 1)
        assert len(members.tokens()) == len(notes.kept) == 1

    run(story())
    assert len(made(notes, clock).tokens()) == 1


def test_a_name_is_taken_until_the_certificate_ends_that_was_issued_for_it() -> None:
    """Of two hosts that join at once with one name, one gets it; a failed write gives it back."""
    clock, notes = Clock(), Notes()
    members = made(notes, clock)

    async def story() -> None:
        first, second, third = await create(members, 3)
        row = members.check(first, "n1", request="r1")
        await members.use(row, "n1", "r1", expires_s=1030.0)
        assert members.has_joined("n1")
        assert members.is_request_of("node", "n1", "r1")
        assert not members.is_request_of("node", "n1", "r2")
        assert not members.is_request_of("login", "n1", "r1")
        assert made(notes, clock).has_joined("n1"), "it is durable"
        clock.now_s = 1030.0
        assert not members.has_joined("n1")
        clock.now_s = 1000.0
        await members.revoke("node", "n1", replaced=True)
        assert members.has_joined("n1")
        await members.revoke("node", "n1")
        assert not members.has_joined("n1")
        assert not made(notes, clock).has_joined("n1")

        row = members.check(second, "n2", request="r2")
        notes.fails = True
        with pytest.raises(OSError, match="no room"):
            await members.use(row, "n2", "r2", expires_s=1030.0)
        notes.fails = False
        assert not members.has_joined("n2")

        row = members.check(third, "n3", request="r3")
        using = members.use(row, "n3", "r3", expires_s=1030.0)
        assert not members.has_joined("n3")
        using.send(None)  # it waits for the disk
        assert members.has_joined("n3")
        using.close()
        assert not members.has_joined("n3")

    run(story())


def test_login_hosts_that_an_older_version_has_noted_keep_their_names() -> None:
    notes = Notes()
    notes.kept["login-host", "l1"] = ""
    members = made(notes, Clock())

    async def story() -> None:
        await members.note_login("l1")
        await members.note_login("l2")
        assert list(made(notes, Clock()).logins) == ["l1", "l2"]

    run(story())

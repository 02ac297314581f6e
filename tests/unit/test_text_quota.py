"""How much of scripts and environments the database takes of each user."""

import asyncio

import pytest

from gsched.errors import StorageFullError
from gsched.protocol.submissions import SubmitJob
from gschedd.http.contents import RECOUNT_S, Content, TextQuota, content_of

MOST = 1000


def content(text: str) -> Content:
    return content_of(SubmitJob(key="", name="x", workdir="/", script=text))


class ManualClock:
    """Goes when it is told to."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def wall_s(self) -> float:
        return self.now_s

    def monotonic_s(self) -> float:
        return self.now_s


class Database:
    """Has a number of bytes for each user, and counts how often it was asked."""

    def __init__(self) -> None:
        self.held: dict[int, int] = {}
        self.questions = 0

    def stored_bytes(self, uid: int) -> int:
        self.questions += 1
        return self.held.get(uid, 0)


def test_a_user_beyond_the_limit_is_refused_and_no_other() -> None:
    database, clock = Database(), ManualClock()
    database.held[1] = 900
    quota = TextQuota(database.stored_bytes, most_bytes=MOST, clock=clock)

    async def story() -> None:
        await quota.admit(1, [content("x" * 100)])
        with pytest.raises(StorageFullError, match=r"keeps 1000b .* 1b more"):
            await quota.admit(1, [content("y")])
        await quota.admit(2, [content("y" * MOST)])

    asyncio.run(story())


def test_the_database_is_asked_only_where_it_matters_and_once_a_minute() -> None:
    """Also if nothing but refusals comes; what was removed meanwhile makes room."""
    database, clock = Database(), ManualClock()
    quota = TextQuota(database.stored_bytes, most_bytes=MOST, clock=clock)

    async def story() -> list[str]:
        told = []
        for size in (400, 400, 400, 400):
            try:
                await quota.admit(1, [content("x" * size), content("x" * size)])
            except StorageFullError:
                told.append("refused")
            else:
                told.append("taken")
        clock.now_s += RECOUNT_S
        await quota.admit(1, [content("z" * 300)])
        return told

    assert asyncio.run(story()) == ["taken", "taken", "refused", "refused"]
    assert database.questions == 2


def test_without_a_limit_nobody_is_counted() -> None:
    database = Database()
    quota = TextQuota(database.stored_bytes, most_bytes=0, clock=ManualClock())

    asyncio.run(quota.admit(1, [content("x" * MOST * 2)]))

    assert database.questions == 0

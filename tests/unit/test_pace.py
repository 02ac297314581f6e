"""Work of a request in pieces, with waits that may be none at all."""

import asyncio
import contextlib
from collections.abc import Sequence

import pytest

from gschedd.http.pace import BUSY_S, LONGEST_REST_S, PIECE_S, Pace

SLICES = 40
LITTLE_S = 2 * BUSY_S


def turns_of_others() -> int:
    """Return how often another task had its turn beside slices of less than a piece each."""

    async def run() -> int:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(count())
        loop, mine = asyncio.get_running_loop(), Pace()
        for _ in range(SLICES):
            mine.begin()
            until_s = loop.time() + PIECE_S / 2
            while loop.time() < until_s:
                pass
            await mine.keep()
            mine.stop()
        other.cancel()
        return turns

    return asyncio.run(run())


def test_small_slices_that_nothing_waits_for_add_up_to_pieces() -> None:
    assert turns_of_others() >= SLICES / 4


class Loop:
    """A clock, on which others have the loop for some time in each turn, and sleeps take theirs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.others_s: list[float] = []  # of the next turns
        self.rests_s: list[float] = []
        monkeypatch.setattr(asyncio, "sleep", self.sleep)
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: self)

    def time(self) -> float:
        """Return the time."""
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        """Let others have their turn."""
        if seconds:
            self.rests_s.append(seconds)
        self.now_s += max(seconds, self.others_s.pop(0) if self.others_s else 0.0)

    def work(self, mine: Pace, *, others_s: Sequence[float] = ()) -> None:
        """Work for a piece while others wait to work for so long."""
        self.others_s = list(others_s)
        self.now_s += PIECE_S
        with contextlib.suppress(StopIteration):
            mine.rest().send(None)


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    return Loop(monkeypatch)


def test_there_is_no_rest_where_nobody_else_has_anything_to_do(loop: Loop) -> None:
    mine = Pace()
    for _ in range(5):
        loop.work(mine)

    assert not loop.rests_s
    assert loop.now_s == pytest.approx(5 * PIECE_S)


def test_a_rest_is_as_long_as_the_work_with_what_others_did_in_it(loop: Loop) -> None:
    mine = Pace()
    loop.work(mine, others_s=[PIECE_S / 4])

    assert loop.rests_s == [pytest.approx(PIECE_S * 3 / 4)]


def test_what_others_did_for_longer_shortens_the_next_rests(loop: Loop) -> None:
    mine = Pace()
    loop.work(mine, others_s=[2.5 * PIECE_S])
    loop.work(mine, others_s=[LITTLE_S])
    loop.work(mine, others_s=[LITTLE_S])

    assert loop.rests_s == [pytest.approx(PIECE_S / 2 - 2 * LITTLE_S)]


def test_others_do_not_owe_more_than_the_longest_rest(loop: Loop) -> None:
    mine = Pace()
    loop.work(mine, others_s=[1.0])
    pieces = round(LONGEST_REST_S / PIECE_S)
    for _ in range(pieces):
        loop.work(mine, others_s=[LITTLE_S])
    assert not loop.rests_s

    loop.work(mine, others_s=[LITTLE_S])
    assert loop.rests_s == [pytest.approx(PIECE_S - (pieces + 1) * LITTLE_S)]

"""How a node looks for what supervisors have written, with one timer for all attempts."""

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from gnode.core.task import AttemptKey
from gnode.daemon import starts
from gnode.daemon.starts import Looks

FIRST, SECOND, THIRD = (AttemptKey(job, 1) for job in (1, 2, 3))


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_LOOK_S", "LONGEST_LOOK_S", "BETWEEN_LOOKS_S"):
        monkeypatch.setattr(starts, name, 0.001)


class Records:
    """What was looked at; ``there`` is found, and a look at one of ``broken`` fails."""

    def __init__(self) -> None:
        self.looks: Counter[AttemptKey] = Counter()
        self.waited_s: dict[AttemptKey, list[float]] = {}
        self.there: set[AttemptKey] = set()
        self.broken: set[AttemptKey] = set()

    def look(self, key: AttemptKey, waited_s: float) -> bool:
        self.looks[key] += 1
        self.waited_s.setdefault(key, []).append(waited_s)
        if key in self.broken:
            raise RuntimeError("a fault of ours")
        return key in self.there


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 # looks are no events
            await asyncio.sleep(0.001)


def test_each_attempt_is_looked_at_until_its_record_is_there() -> None:
    records = Records()

    async def run() -> None:
        looks = Looks(records.look)
        for key in (FIRST, SECOND):
            looks.begin(key)
        await until(lambda: records.looks[FIRST] > 2 and records.looks[SECOND] > 2)
        records.there.add(FIRST)
        await until(lambda: not looks.forget(FIRST))
        seen = records.looks[FIRST]
        looks.begin(THIRD)  # the timer goes on for others
        await until(lambda: records.looks[THIRD] > 2)
        assert records.looks[FIRST] == seen
        looks.close()

    asyncio.run(run())
    assert records.waited_s[SECOND] == sorted(set(records.waited_s[SECOND]))


def test_a_forgotten_attempt_is_not_looked_at() -> None:
    records = Records()

    async def run() -> None:
        looks = Looks(records.look)
        looks.begin(FIRST)
        looks.begin(SECOND)
        assert looks.forget(FIRST)
        assert not looks.forget(FIRST)
        await until(lambda: records.looks[SECOND] > 2)
        looks.close()
        seen = records.looks[SECOND]
        await asyncio.sleep(0.02)
        assert records.looks[SECOND] == seen

    asyncio.run(run())
    assert FIRST not in records.looks


def test_a_new_attempt_does_not_wait_for_one_that_is_looked_at_rarely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records = Records()

    async def run() -> None:
        looks = Looks(records.look)
        monkeypatch.setattr(starts, "LONGEST_LOOK_S", 3600.0)
        monkeypatch.setattr(starts, "FIRST_LOOK_S", 1800.0)
        looks.begin(FIRST)
        monkeypatch.setattr(starts, "FIRST_LOOK_S", 0.001)
        looks.begin(SECOND)
        await until(lambda: records.looks[SECOND] > 0)
        looks.close()

    asyncio.run(run())
    assert FIRST not in records.looks


def test_a_look_that_fails_ends_none_of_the_others() -> None:
    records = Records()
    records.broken.add(FIRST)

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        looks = Looks(records.look)
        for key in (FIRST, SECOND):
            looks.begin(key)
        await until(lambda: records.looks[SECOND] > 2)
        looks.close()

    asyncio.run(run())
    assert records.looks[FIRST] == 1
    assert records.looks[SECOND] > 2

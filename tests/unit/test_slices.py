"""Work in slices: it and the loop never run at once, and what it returns or raises is the same."""

import asyncio
import threading

import pytest

from gschedd.engine import slices
from gschedd.engine.slices import Slices
from gschedd.plan import rests
from gschedd.plan.rests import resting, with_rests

ITEMS = 10


@pytest.fixture(autouse=True)
def _at_each_item(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_S", 0.0)
    monkeypatch.setattr(rests, "EVERY", 1)


class Work:
    """Looks at some items, and notes who has the turn at each."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.threads: set[int] = set()

    def __call__(self) -> int:
        with resting():
            for item in with_rests(range(ITEMS)):
                self.threads.add(threading.get_ident())
                self.seen.append(f"item {item}")
        return ITEMS


def test_others_have_a_turn_after_each_slice_and_never_during_one() -> None:
    work, done = Work(), Slices()

    async def scenario() -> int:
        return await done.between_turns(work, lambda: work.seen.append("turn"))

    assert asyncio.run(scenario()) == ITEMS
    done.close()
    assert work.seen == [each for item in range(ITEMS) for each in (f"item {item}", "turn")]
    assert threading.get_ident() not in work.threads
    assert len(work.threads) == 1


def test_work_that_has_not_used_up_its_slice_does_not_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_S", 60.0)
    work, done = Work(), Slices()

    with pytest.raises(StopIteration) as caught:
        next(done.of(work))

    done.close()
    assert caught.value.value == ITEMS


def test_it_rests_only_where_it_says_that_it_can() -> None:
    done = Slices()

    def half() -> None:
        list(with_rests(range(ITEMS)))  # in the middle of a change, say
        with resting():
            list(with_rests(range(3)))

    count = sum(1 for _ in done.of(half))

    done.close()
    assert count == 3


def test_without_slices_it_does_not_rest() -> None:
    work = Work()

    assert work() == ITEMS
    assert len(work.seen) == ITEMS


def test_what_it_raises_is_raised_and_the_next_work_is_done() -> None:
    done = Slices()

    def failing() -> None:
        with resting():
            for item in with_rests(range(ITEMS)):
                if item == 3:
                    raise ValueError("a node without a name")

    async def scenario() -> int:
        with pytest.raises(ValueError, match="without a name"):
            await done.between_turns(failing, lambda: None)
        return await done.between_turns(Work(), lambda: None)

    assert asyncio.run(scenario()) == ITEMS
    done.close()


def test_who_is_cancelled_meanwhile_has_it_done_at_once() -> None:
    """A head that ends does not leave half a cycle, nor a thread."""
    work, done = Work(), Slices()

    async def scenario() -> None:
        task = asyncio.create_task(done.between_turns(work, lambda: None))
        for _ in range(3):
            await asyncio.sleep(0)
        assert 0 < len(work.seen) < ITEMS
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    done.close()
    assert len(work.seen) == ITEMS
    assert not [each for each in threading.enumerate() if each.name.startswith("slices")]


def test_its_cpu_time_is_counted() -> None:
    done, before_s = Slices(), Slices.cpu_s

    def busy() -> None:
        with resting():
            for _ in with_rests(range(20)):
                sum(range(20_000))

    for _ in done.of(busy):
        pass
    done.close()

    assert Slices.cpu_s > before_s

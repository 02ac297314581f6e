"""The head's loop collects garbage between its turns."""

import asyncio
import gc
import socket
import time
import weakref
from collections.abc import Iterator

import pytest

from gschedd.daemon import garbage
from gschedd.daemon.garbage import GC_THRESHOLDS, OLDER, OLDEST, YOUNG, YOUNG_MOST, generation_due


class Ring:
    """An object that only a collection frees: it refers to itself."""

    def __init__(self) -> None:
        self.ring = self


class Seen(garbage.CollectingSelector):
    """Notes its looks."""

    order: list[str]

    def look(self, timeout: float | None) -> garbage.Ready:
        self.order.append("look")
        return super().look(timeout)


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Note looks at the sockets and collections of garbage of a loop, in their order."""
    order: list[str] = []

    def collected(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            order.append(f"generation {info['generation']}")

    monkeypatch.setattr(garbage, "CollectingSelector", Seen)
    Seen.order = order
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(*GC_THRESHOLDS)
    gc.callbacks.append(collected)
    yield order
    gc.callbacks.remove(collected)
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.mark.parametrize(
    ("counts", "how", "generation"),
    [
        ((YOUNG - 1, 9, 9), "short idle", None),
        ((YOUNG, 0, 0), "short", 0),
        ((YOUNG, OLDER, 0), "short", 1),
        ((YOUNG, OLDER, 0), "idle", 1),
        ((YOUNG_MOST - 1, OLDER, 0), "", None),
        ((YOUNG_MOST, 0, 0), "", 0),
        ((YOUNG_MOST, OLDER, 0), "", 1),
        ((0, 0, OLDEST), "idle", 2),
        ((0, 0, OLDEST), "short", None),
        ((YOUNG, 0, OLDEST), "short", 0),
        ((0, 0, 2 * OLDEST), "", 2),
    ],
)
def test_which_generation_is_due(
    counts: tuple[int, int, int], how: str, generation: int | None
) -> None:
    assert generation_due(counts, is_short="short" in how, is_idle="idle" in how) == generation


def test_garbage_of_a_long_run_is_collected_between_turns_and_never_within_one(
    order: list[str],
) -> None:
    rings: list[weakref.ref[Ring]] = []
    most = 0

    async def work() -> None:
        nonlocal most
        for _ in range(500):
            order.append("turn")
            rings.extend(weakref.ref(Ring()) for _ in range(200))
            order.append("end")
            rings[:] = [each for each in rings if each() is not None]
            most = max(most, len(rings))
            await asyncio.sleep(0)

    garbage.run(work())

    collections = [place for place, each in enumerate(order) if each.startswith("generation")]
    assert collections
    assert {order[place] for place in collections} == {"generation 0", "generation 1"}
    assert not [place for place in collections if order[place - 1] == "turn"]
    assert most <= YOUNG_MOST + 200


def test_after_a_long_turn_who_waits_comes_before_the_collection(order: list[str]) -> None:
    here, there = socket.socketpair()
    kept: list[Ring] = []

    async def work() -> None:
        heard = asyncio.Event()

        def hear() -> None:
            order.append("heard")
            asyncio.get_running_loop().remove_reader(here)
            heard.set()

        asyncio.get_running_loop().add_reader(here, hear)
        there.send(b"x")
        kept.extend(Ring() for _ in range(YOUNG))
        until_s = time.thread_time() + 3 * garbage.SHORT_S
        while time.thread_time() < until_s:
            pass
        order.clear()
        await heard.wait()

    with here, there:
        garbage.run(work())

    assert order.index("heard") < order.index("generation 0")


def test_an_idle_loop_collects_what_a_long_turn_has_left(order: list[str]) -> None:
    kept: list[Ring] = []

    async def work() -> None:
        kept.extend(Ring() for _ in range(YOUNG))
        until_s = time.thread_time() + 3 * garbage.SHORT_S
        while time.thread_time() < until_s:
            pass
        order.clear()
        await asyncio.sleep(0.01)

    garbage.run(work())

    assert order[:3] == ["look", "generation 0", "look"]


def test_a_turn_that_makes_very_many_objects_does_not_keep_their_garbage(
    order: list[str],
) -> None:
    rings: list[weakref.ref[Ring]] = []

    async def work() -> None:
        rings.extend(weakref.ref(Ring()) for _ in range(10 * GC_THRESHOLDS[0]))

    garbage.run(work())

    alive = sum(each() is not None for each in rings)
    assert alive <= 2 * GC_THRESHOLDS[0]

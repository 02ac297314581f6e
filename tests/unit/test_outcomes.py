"""The log of outcomes: what it has is found again, and what it cannot keep is flushed elsewhere."""

import asyncio
import errno
import os
from collections.abc import Coroutine
from functools import partial
from pathlib import Path

import pytest

from gnode.daemon import outcomes
from gnode.daemon.outcomes import EndToKeep, OutcomeLog


class World:
    """A log, and the journals that it flushes."""

    def __init__(self, directory: Path, *, bytes_max: int = 1 << 20) -> None:
        self.directory = directory
        (directory / "attempts").mkdir(exist_ok=True)
        self.flushed: list[str] = []
        self.failures = 0
        self.begun: list[Coroutine[None, None, None]] = []
        self.log = OutcomeLog(
            str(directory), flush_exit=self._flush, start=self.begun.append, bytes_max=bytes_max
        )

    def _flush(self, name: str) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EIO, "no flush")
        self.flushed.append(name)

    def keep(self, *names: str, gone: tuple[str, ...] = ()) -> list[str]:
        """Keep outcomes; return those that are not durable."""
        batch = [EndToKeep(name, b'{"code":%d}' % len(name), lambda: None) for name in names]
        return [each.name for each in self.log.keep(batch, gone)]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_what_is_kept_is_read_by_the_next_one(world: World) -> None:
    assert world.keep("1.1", "22.1") == []
    world.keep("333.1", gone=("1.1",))

    kept = World(world.directory).log.read()

    assert kept == {"22.1": b'{"code":4}', "333.1": b'{"code":5}'}
    assert world.flushed == []


def test_an_attempt_of_the_same_number_counts_after_the_one_that_is_gone(world: World) -> None:
    world.keep("1.1")
    world.keep("2.1", gone=("1.1",))
    world.keep("1.1")

    assert set(world.log.read()) == {"1.1", "2.1"}


@pytest.mark.parametrize("cut", [2, 5, 20])
def test_a_torn_line_spoils_no_other(world: World, cut: int) -> None:
    world.keep("1.1")
    world.keep("2.1")
    path = world.directory / "outcomes"
    path.write_bytes(path.read_bytes()[:-cut])
    World(world.directory).keep("3.1")

    assert set(world.log.read()) == {"1.1", "3.1"}


def test_a_line_that_was_changed_counts_as_none(world: World) -> None:
    world.keep("1.1", "22.1")
    path = world.directory / "outcomes"
    path.write_bytes(path.read_bytes().replace(b'22.1 {"code":4}', b'22.1 {"code":0}'))

    assert set(world.log.read()) == {"1.1"}


def test_a_log_that_cannot_be_flushed_has_the_journals_flushed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, "no flush")

    monkeypatch.setattr(os, "fdatasync", fail)
    world.failures = 1

    assert world.keep("1.1", "2.1") == ["1.1"]
    assert world.flushed == ["2.1"]


def test_one_without_a_text_is_flushed_in_its_journal(world: World) -> None:
    assert world.log.keep([EndToKeep("7.1", b"", lambda: None)]) == []

    assert world.flushed == ["7.1"]
    assert not (world.directory / "outcomes").exists()


def test_a_file_that_is_full_is_followed_by_another(tmp_path: Path) -> None:
    world = World(tmp_path, bytes_max=60)
    for name in ("1.1", "2.1", "3.1"):
        (tmp_path / "attempts" / name).mkdir()
    for number in range(1, 9):
        world.keep(f"{number}.1")

    kept = set(world.log.read())

    assert {"7.1", "8.1"} <= kept
    assert world.flushed == ["1.1", "2.1", "3.1"], "they are in the spool, and in no log"
    assert kept.isdisjoint({"1.1", "2.1", "3.1"})


def test_each_is_taken_in_once_it_is_durable(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "RETRY_S", 0.01)
    taken: list[str] = []

    async def run() -> None:
        world.failures = 2  # of the journals
        (world.directory / "outcomes").mkdir()
        for name in ("1.1", "2.1", "3.1"):
            world.log.add(EndToKeep(name, b"{}", partial(taken.append, name)))
        (running,) = world.begun
        await asyncio.wait_for(running, 10.0)

    asyncio.run(run())

    assert taken == ["3.1", "1.1", "2.1"]
    world.log.close()

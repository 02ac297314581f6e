"""Writes that a full disk refuses are kept, in order, and done when there is space."""

import asyncio
import errno
from collections.abc import Callable

from gnode.daemon.writes import Writes


class Disk:
    """Takes writes while it is not full."""

    def __init__(self) -> None:
        self.full = False
        self.written: list[str] = []

    def write(self, text: str) -> Callable[[], None]:
        def now() -> None:
            if self.full:
                raise OSError(errno.ENOSPC, "No space left on device")
            self.written.append(text)

        return now


def on_a_loop(story: Callable[[Disk, Writes], None]) -> None:
    async def run() -> None:
        writes = Writes()
        story(Disk(), writes)
        writes.close()

    asyncio.run(run())


def test_a_write_that_works_is_done_at_once() -> None:
    def story(disk: Disk, writes: Writes) -> None:
        writes.do("a", disk.write("a1"))

        assert disk.written == ["a1"]
        assert len(writes) == 0

    on_a_loop(story)


def test_writes_of_one_subject_keep_their_order_over_a_full_disk() -> None:
    def story(disk: Disk, writes: Writes) -> None:
        disk.full = True
        writes.do("a", disk.write("a1"))
        disk.full = False
        writes.do("a", disk.write("a2"))  # must not pass the first
        writes.do("b", disk.write("b1"))
        assert disk.written == ["b1"]

        writes.again()

        assert disk.written == ["b1", "a1", "a2"]
        assert len(writes) == 0

    on_a_loop(story)


def test_a_disk_that_stays_full_keeps_all_and_a_replaced_write_is_dropped() -> None:
    def story(disk: Disk, writes: Writes) -> None:
        disk.full = True
        writes.do("a", disk.write("a1"))
        for mark in ("m1", "m2"):
            writes.replace("mark", disk.write(mark))
        writes.again()
        assert (disk.written, len(writes)) == ([], 2)

        disk.full = False
        writes.again()

        assert disk.written == ["a1", "m2"]

    on_a_loop(story)

"""Work of a request in pieces, with waits that may be none at all."""

import asyncio

from gschedd.http.pace import PIECE_S, Pace

SLICES = 40


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
        loop, pace = asyncio.get_running_loop(), Pace()
        for _ in range(SLICES):
            pace.begin()
            until_s = loop.time() + PIECE_S / 2
            while loop.time() < until_s:
                pass
            await pace.keep()
            pace.stop()
        other.cancel()
        return turns

    return asyncio.run(run())


def test_small_slices_that_nothing_waits_for_add_up_to_pieces() -> None:
    assert turns_of_others() >= SLICES / 4

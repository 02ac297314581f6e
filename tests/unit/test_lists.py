"""Lists of jobs on the head: others get their turn while many jobs are compared with a filter."""

import asyncio
import time
from collections.abc import Mapping
from typing import cast

from gschedd.core.state.records import Job
from gschedd.http.lists import JOBS_PER_LOOK, chosen_jobs
from gschedd.http.pace import PIECE_S

LOOKS = 5
JOBS = cast("Mapping[int, Job]", {number: number for number in range(LOOKS * JOBS_PER_LOOK)})


def is_even(job: Job) -> bool:
    """Take as long as a thousandth of a piece, or a little longer."""
    end_s = time.perf_counter() + PIECE_S / JOBS_PER_LOOK
    while time.perf_counter() < end_s:
        pass
    return cast("int", job) % 2 == 0


def test_a_filter_over_many_jobs_leaves_the_loop_to_others() -> None:
    async def run() -> tuple[int, list[Job]]:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        found = await chosen_jobs(JOBS, is_even)
        task.cancel()
        return turns, found

    turns, found = asyncio.run(run())
    assert turns >= LOOKS - 1
    assert found == [job for job in JOBS.values() if cast("int", job) % 2 == 0]

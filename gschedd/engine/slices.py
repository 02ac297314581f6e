"""Work that is done in slices between the turns of an event loop.

A plan calls through many functions, so it cannot stop in the middle and return. It runs in a thread
of its own instead, which runs only while the loop waits for it: never do both run at once.
"""

import asyncio
import math
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Lock
from typing import ClassVar, Final, TypeVar, cast

from gsched.clock import thread_cpu_s
from gschedd.plan.rests import offered

#: CPU time of a slice, as all requests wait meanwhile.
SLICE_S: Final = 0.005

T = TypeVar("T")


class Slices:
    """Does work slice by slice.

    Attributes:
        cpu_s: CPU time of all slices of this process; that of the loop's thread is without it.
    """

    cpu_s: ClassVar[float] = 0.0

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="slices")

    def of(self, work: Callable[[], T]) -> Generator[None, None, T]:
        """Do work, up to the next rest that is due each time; return what it returns.

        Closing it does what is left at once.

        Args:
            work: rests where it can (`gschedd.plan.rests`); whatever it raises is raised here.
        """
        going, resting = Lock(), Lock()
        going.acquire()
        resting.acquire()
        begun_s = until_s = 0.0
        is_over = is_hurried = False

        def begin() -> None:
            nonlocal begun_s, until_s
            begun_s = thread_cpu_s()
            until_s = math.inf if is_hurried else begun_s + SLICE_S

        def rest() -> None:
            if thread_cpu_s() < until_s:
                return
            Slices.cpu_s += thread_cpu_s() - begun_s
            resting.release()
            going.acquire()
            begin()

        def whole() -> T:
            nonlocal is_over
            begin()
            try:
                with offered(rest):
                    return work()
            finally:
                Slices.cpu_s += thread_cpu_s() - begun_s
                is_over = True
                resting.release()

        future = self._thread.submit(whole)
        try:
            while True:
                resting.acquire()
                if is_over:
                    return future.result()
                yield
                going.release()
        except GeneratorExit:
            is_hurried = True
            going.release()
            future.exception()  # waits for its end
            raise

    async def between_turns(self, work: Callable[[], T], resting: Callable[[], None]) -> T:
        """Do work, and let others have their turns between its slices.

        Args:
            work: as in `of`.
            resting: is called before each of these turns.
        """
        with closing(self.of(work)) as slices:
            while True:
                try:
                    next(slices)
                except StopIteration as end:
                    return cast("T", end.value)
                resting()
                await asyncio.sleep(0)

    def close(self) -> None:
        """End the thread; no work may be under way."""
        self._thread.shutdown(wait=True)

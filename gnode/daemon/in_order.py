"""Calls that block for a while, one after the other in a thread, awaited from the event loop."""

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class InOrder:
    """Runs blocking calls in the order in which they come.

    The thread starts with the first call, and does not delay the end of the program.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def put(self, call: Callable[[], T]) -> "asyncio.Future[T]":
        """Have a call run after those that were put before; its result or error comes back."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            if future.cancelled():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type] # of T where no error came

        def run() -> None:
            result, error = None, None
            try:
                result = call()
            except Exception as raised:  # noqa: BLE001 - whoever awaits the call gets it
                error = raised
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, result, error)

        self._calls.put(run)
        if not self._thread.is_alive():
            self._thread.start()
        return future

    def _run(self) -> None:
        while True:
            self._calls.get()()

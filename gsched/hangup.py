"""SIGHUP: a daemon reads its configuration again, and never ends because a terminal closed."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import Final

PAUSE_S: Final = 1.0


def survive_hangups() -> None:
    """Let SIGHUP not end this process from its very beginning; `OnHangup` follows.

    What it starts gets the default again, as a handler is not inherited and an ignored signal is.
    """
    signal.signal(signal.SIGHUP, lambda *_: None)


class OnHangup:
    """Does something for SIGHUP; all signals that come within a second after it are one."""

    def __init__(self, action: Callable[[], Awaitable[object]]) -> None:
        self._action = action
        self._again = False
        self._task: asyncio.Task[None] | None = None

    def install(self) -> None:
        """Handle the signal from now on, in the running event loop."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._on_signal)

    def _on_signal(self) -> None:
        self._again = True
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="SIGHUP")

    async def _run(self) -> None:
        while self._again:
            self._again = False
            await self._action()
            await asyncio.sleep(PAUSE_S)

"""Whether the monitor lives, and whether head and monitor work."""

import asyncio
import os
from typing import Final

from aiohttp import web

from gsched.errors import GschedError
from gschedd.monitor.model import ReadModel

#: Samples that may be missing in a row before the head counts as stopped.
SAMPLES_MISSED: Final = 2
#: A head that does not answer for so long is stopped, seconds.
PATIENCE_S: Final = 8.0
#: For how long an answer of the head counts for further requests, seconds.
FRESH_S: Final = 1.0
#: States of proc(5).
_STATES: Final = {
    "T": "it is stopped by a signal (SIGSTOP)",
    "t": "a debugger has stopped it",
    "D": "it waits for a disk",
    "R": "it is busy: its event loop is blocked",
    "S": "its event loop is blocked",
    "Z": "it has ended",
}


class HealthRoutes:
    """``/livez`` and ``/readyz``: 200 where all is well, else 503 with the reason as text."""

    def __init__(self, model: ReadModel) -> None:
        self._model = model
        self._turn = asyncio.Lock()
        self._checked_s = -FRESH_S
        self._trouble = ""

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [web.get("/livez", self.live), web.get("/readyz", self.ready)]

    async def live(self, _: web.Request) -> web.StreamResponse:
        """``GET /livez``: the process answers."""
        return web.Response(text="ok\n")

    async def ready(self, _: web.Request) -> web.StreamResponse:
        """``GET /readyz``: the head decides and records, and the monitor has its samples."""
        async with self._turn:
            if self._model.clock.monotonic_s() - self._checked_s >= FRESH_S:
                self._trouble = await self._head_trouble()
                self._checked_s = self._model.clock.monotonic_s()
        text = self._trouble or self._own_trouble()
        return web.Response(text=f"{text or 'ok'}\n", status=503 if text else 200)

    async def _head_trouble(self) -> str:
        """Return why the head does not work, in words; empty: it does."""
        try:
            await self._model.head.text("/readyz", timeout_s=PATIENCE_S)
        except GschedError as error:
            if getattr(error, "status", 0):
                return error.message
            return f"{error.message}; {_state_of(os.getppid())}"
        return ""

    def _own_trouble(self) -> str:
        model = self._model
        if model.sample_age_s is None:
            return model.trouble or "no samples of nodes and jobs yet"
        if model.sample_age_s > model.config.sample_period_s * (1 + SAMPLES_MISSED):
            return f"the newest samples are {model.sample_age_s:.0f} s old: {model.trouble}"
        return ""


def _state_of(pid: int) -> str:
    """Return what a process does, in words."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            state = file.read(4096).rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "there is no such process any more"
    return f"process {pid}: {_STATES.get(state, f'state {state}')}"

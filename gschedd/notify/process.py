"""The head's side of the notifier: starts its process, starts it again, and keeps its reports."""

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
from typing import Final

import msgspec

from gsched.config.environment import full_environment
from gschedd.notify.worker import Begin, Report

log = logging.getLogger("gschedd.notify")

FIRST_PAUSE_S: Final = 0.5
LAST_PAUSE_S: Final = 60.0
#: How long the head waits at its end; the process itself finishes what is under way.
CLOSE_S: Final = 1.0
#: A report that is longer is no report.
LONGEST: Final = 1 << 16


class Notifier:
    """Keeps one notifying process running.

    Attributes:
        report: the last one.
        trouble: why no process runs, in words; empty while one does.
        pid: of the process; 0: none runs.
    """

    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self._process: asyncio.subprocess.Process | None = None
        self.report = Report()
        self.trouble = ""

    @property
    def pid(self) -> int:
        """Return the id of the process, 0 if none runs."""
        return 0 if self._process is None else self._process.pid

    async def run(self) -> None:
        """Run the process again and again, until cancelled."""
        failures = 0
        while True:
            try:
                process = await self._start()
            except OSError as error:
                self.trouble = f"cannot be started: {error.strerror}"
            else:
                self.trouble = ""
                if await self._hear(process):
                    failures = 0
                self.trouble = f"has ended with exit status {await process.wait()}"
                self._process = None
            pause_s = min(FIRST_PAUSE_S * 2 ** min(failures, 30), LAST_PAUSE_S)
            failures += 1
            log.error("the notifier %s; it is started again in %.1f s", self.trouble, pause_s)
            await asyncio.sleep(pause_s)

    async def _start(self) -> asyncio.subprocess.Process:
        path = os.pathsep.join(filter(None, sys.path))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "gschedd.notify.worker"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**full_environment(), "PYTHONPATH": path},
            start_new_session=True,
            limit=LONGEST,
        )
        self._process = process
        assert process.stdin is not None, "it is a pipe"
        process.stdin.write(msgspec.json.encode(self._begin) + b"\n")
        return process

    async def _hear(self, process: asyncio.subprocess.Process) -> bool:
        """Keep reports until the process ends; return whether there was one."""
        assert process.stdout is not None, "it is a pipe"
        received = False
        while True:
            try:
                line = await process.stdout.readline()
                if not line:
                    return received
                self.report = msgspec.json.decode(line, type=Report)
                received = True
            except (ValueError, ConnectionError):  # half a line, as it was killed
                return received

    async def close(self) -> None:
        """Tell the process to end; it finishes the deliveries that are under way."""
        process, self._process = self._process, None
        if process is None or process.stdin is None:
            return
        process.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await process.wait()

"""The head's side of a worker process: starts it, starts it again, and keeps its reports."""

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import msgspec
from msgspec import Struct

from gsched.config.environment import full_environment
from gsched.logs import log_environment

R = TypeVar("R", bound=Struct)

FIRST_PAUSE_S: Final = 0.5
LAST_PAUSE_S: Final = 60.0
#: How long the head waits at its end; the process itself finishes what is under way.
CLOSE_S: Final = 1.0
#: How long whoever has it restarted waits for its first report.
SETTLE_S: Final = 10.0
#: A report that is longer is no report.
LONGEST: Final = 1 << 16


class KeptWorker(Generic[R]):
    """Keeps one process running, which reads one line of JSON and writes reports, a line each.

    Args:
        module: that the process runs, with ``-m``.
        begin: returns what its first line of input says, each time it is started; None: no
            process is to run.
        empty: the report before the first.

    Attributes:
        name: for the log.
        report: the last one.
        trouble: why no process runs, in words; empty while one does.
        pid: of the process; 0: none runs.
    """

    def __init__(
        self, name: str, module: str, begin: Callable[[], Struct | None], empty: R
    ) -> None:
        self._log = logging.getLogger(module.rpartition(".")[0])
        self.name = name
        self._module = module
        self._empty = empty
        self._begin = begin
        self._changed = asyncio.Event()
        self._reported = asyncio.Event()  # by a process that runs with the present settings
        self._reported.set()
        self._process: asyncio.subprocess.Process | None = None
        self.report = empty
        self.trouble = ""

    @property
    def pid(self) -> int:
        """Return the id of the process, 0 if none runs."""
        return 0 if self._process is None else self._process.pid

    async def run(self) -> None:
        """Run the process again and again, until cancelled."""
        failures = 0
        while True:
            self._changed.clear()
            if not self.is_on:
                await self._changed.wait()
                continue
            try:
                process = await self._start()
            except OSError as error:
                self.trouble = f"cannot be started: {error.strerror}"
            else:
                self.trouble = ""
                if await self._keep_reports(process):
                    failures = 0
                self.trouble = f"has ended with exit status {await process.wait()}"
                self._process = None
                if self._changed.is_set():
                    self.trouble = ""
                    continue
            self._reported.set()  # it will not soon
            pause_s = min(FIRST_PAUSE_S * 2 ** min(failures, 30), LAST_PAUSE_S)
            failures += 1
            self._log.error(
                "the %s %s; it is started again in %.1f s", self.name, self.trouble, pause_s
            )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()

    def restart(self) -> None:
        """Let a process with other settings follow, once this one has finished what it does."""
        self.report = self._empty
        self._changed.set()
        self._reported.clear()
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    async def settled(self) -> None:
        """Wait until a process that was restarted works again, or cannot; not for ever."""
        if self.is_on:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_S):
                    await self._reported.wait()

    @property
    def is_on(self) -> bool:
        """Return whether a process is to run."""
        return self._begin() is not None

    @property
    def complaint(self) -> str:
        """Return what does not work, in the words of the process if it has some."""
        if not self.is_on:
            return ""
        own = getattr(self.report, "trouble", "")
        return own or (f"the {self.name} {self.trouble}" if self.trouble else "")

    async def _start(self) -> asyncio.subprocess.Process:
        path = os.pathsep.join(filter(None, sys.path))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", self._module),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**full_environment(), **log_environment(), "PYTHONPATH": path},
            start_new_session=True,
            limit=LONGEST,
        )
        self._process = process
        assert process.stdin is not None, "it is a pipe"
        begin = self._begin()
        if begin is None:  # it was turned off just now
            process.stdin.close()
        else:
            process.stdin.write(msgspec.json.encode(begin) + b"\n")
        return process

    async def _keep_reports(self, process: asyncio.subprocess.Process) -> bool:
        """Keep reports until the process ends; return whether it worked according to one."""
        assert process.stdout is not None, "it is a pipe"
        worked = False
        while True:
            try:
                line = await process.stdout.readline()
                if not line:
                    return worked
                self.report = msgspec.json.decode(line, type=type(self.report))
                worked = worked or not getattr(self.report, "trouble", "")
                if not self._changed.is_set():
                    self._reported.set()
            except (ValueError, ConnectionError):  # half a line, as it was killed
                return worked

    async def close(self) -> None:
        """Tell the process to end; it finishes what is under way."""
        process, self._process = self._process, None
        if process is None or process.stdin is None:
            return
        process.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await process.wait()

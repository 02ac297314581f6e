"""Runs the programs of the site that power nodes down and up."""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Sequence
from typing import Final

from gsched.config.tables import PowerConfig
from gsched.logs import one_line
from gsched.model.host_lists import compact, in_order
from gschedd.core.state import effects as e
from gschedd.http.links import Links

log = logging.getLogger("gschedd.power")

_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MAX_ERROR: Final = 500  # characters of what a program writes to standard error


class PowerSwitches:
    """Takes the effects of commits: switches go to the programs, all others to the nodes.

    A program that runs when the head ends is not stopped.

    Args:
        links: takes what is for nodes.
        config: returns ``[power]`` as it is now.
    """

    def __init__(self, links: Links, config: Callable[[], PowerConfig]) -> None:
        self._links = links
        self._config = config
        self._home = os.path.expanduser("~")
        self._tasks: set[asyncio.Task[None]] = set()

    def deliver(self, effects: Sequence[e.AnyEffect]) -> None:
        """Send what is for nodes, and run each program once for all nodes of a commit."""
        self._links.deliver([each for each in effects if not isinstance(each, e.SwitchPower)])
        switches = [each for each in effects if isinstance(each, e.SwitchPower)]
        for up in {each.up for each in switches}:
            nodes = compact(in_order(each.node for each in switches if each.up is up))
            task = asyncio.create_task(self._switch(nodes, up=up), name="power")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def reached(self, reached: tuple[int, int]) -> None:
        """Take in the newest event and the next job id that are durable."""
        self._links.reached(reached)

    async def _switch(self, nodes: str, *, up: bool) -> None:
        config, direction = self._config(), "up" if up else "down"
        program = config.resume_program if up else config.suspend_program
        limit_s = config.resume_timeout_s if up else config.suspend_timeout_s
        if not program:
            log.warning("%s: not powered %s: [power] has no program for it now", nodes, direction)
            return
        log.info("powering %s %s: %s", direction, nodes, program)
        problem = await self._run(program, nodes, limit_s)
        if problem:
            log.error("powering %s %s: %s", direction, nodes, problem)

    async def _run(self, program: str, nodes: str, limit_s: float) -> str:
        """Run a program with a list of nodes; return what went wrong, or the empty string."""
        try:
            process = await asyncio.create_subprocess_exec(
                *(program, nodes),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env={"PATH": _PATH, "LANG": "C.UTF-8", "HOME": self._home},
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            return f"{program}: {error.strerror}"
        try:
            async with asyncio.timeout(limit_s):
                _, stderr = await process.communicate()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            return f"{program} has not ended within {limit_s:g} s"
        if process.returncode == 0:
            return ""
        reply = one_line(stderr.decode("utf-8", "replace").strip())[:_MAX_ERROR]
        return f"{program} has ended with exit status {process.returncode}: {reply}"

"""Runs the health checks of this node: the site's programs, and the built-in one of its GPUs."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from gnode.core.inputs import HealthChanged
from gnode.core.site_programs import ROOT_PATH
from gnode.hw.gpu_health import GpuHealth
from gnode.supervisor import site_programs
from gsched.clock import Clock
from gsched.config.nodes import GPU_CHECK, HealthCheckConfig, NodeConfig
from gsched.errors import TryAgainError
from gsched.model.health import MAX_TEXT, HealthResult

log = logging.getLogger(__name__)

_LOOK_S: Final = 1.0  # how often a check for idle nodes looks whether the node is idle


@dataclass(slots=True, kw_only=True)
class HealthChecks:
    """The checks of a node that are run at intervals.

    Attributes:
        programs: of the site, without those that run before a job.
        gpus: the built-in check of GPUs; None: there are none.
        gpu_interval_s: how often that is run; 0: not.
    """

    node: str
    programs: tuple[HealthCheckConfig, ...] = ()
    gpus: GpuHealth | None = None
    gpu_interval_s: float = 0.0
    _results: dict[str, HealthResult] = field(default_factory=dict)
    _closed: bool = False
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def configure(self, config: NodeConfig, post: Callable[[HealthChanged], None]) -> None:
        """Run other checks from now on; results of those that stay as they were are kept."""
        programs = tuple(each for each in config.health_check if each.when != "job")
        if (programs, config.gpu_check_interval_s) == (self.programs, self.gpu_interval_s):
            return
        kept = {each.name for each in self.programs if each in programs}
        kept |= {GPU_CHECK} if self.gpu_interval_s and config.gpu_check_interval_s else set()
        self._results = {name: each for name, each in self._results.items() if name in kept}
        self.programs, self.gpu_interval_s = programs, config.gpu_check_interval_s
        post(self.pending())
        self._changed.set()

    def pending(self) -> HealthChanged:
        """Return that the checks for all times have not run yet: no job starts before they have."""
        names = [each.name for each in self.programs if each.when == "any"]
        names += [GPU_CHECK] if self.gpus is not None and self.gpu_interval_s else []
        for name in names:
            if name in self._results:
                continue
            self._results[name] = HealthResult(
                name=name, passed=False, at_s=0.0, text="has not run yet"
            )
        return HealthChanged(results=tuple(self._results.values()))

    async def run(
        self, clock: Clock, is_idle: Callable[[], bool], post: Callable[[HealthChanged], None]
    ) -> None:
        """Run all checks until this is cancelled, and post all results with each that comes."""
        try:
            while True:
                self._changed.clear()
                async with asyncio.TaskGroup() as group:
                    running = [
                        group.create_task(self._repeat(check, clock, is_idle, post))
                        for check in self.programs
                    ]
                    if self.gpus is not None and self.gpu_interval_s:
                        running.append(group.create_task(self._repeat_gpus(self.gpus, clock, post)))
                    await self._changed.wait()
                    for task in running:
                        task.cancel()
        finally:
            self._closed = True

    async def _repeat(
        self,
        check: HealthCheckConfig,
        clock: Clock,
        is_idle: Callable[[], bool],
        post: Callable[[HealthChanged], None],
    ) -> None:
        while True:
            if check.when == "any" or is_idle():
                passed, text = await asyncio.to_thread(self._check, check)
                self._note(check.name, text, clock, post, passed=passed)
                await asyncio.sleep(check.interval_s)
            else:
                await asyncio.sleep(min(_LOOK_S, check.interval_s))

    async def _repeat_gpus(
        self, gpus: GpuHealth, clock: Clock, post: Callable[[HealthChanged], None]
    ) -> None:
        while True:
            fault = await asyncio.to_thread(gpus.look)
            self._note(GPU_CHECK, fault, clock, post, passed=not fault)
            await asyncio.sleep(self.gpu_interval_s)

    def _note(
        self,
        name: str,
        text: str,
        clock: Clock,
        post: Callable[[HealthChanged], None],
        *,
        passed: bool,
    ) -> None:
        at_s = clock.wall_s()
        known = self._results.get(name)
        if known is None or known.passed is not passed or (not passed and known.text != text):
            if passed:
                log.info("health check %s passed: %s", name, text or "no output")
            else:
                log.warning("health check %s failed: %s", name, text)
        self._results[name] = HealthResult(
            name=name, passed=passed, text=text[:MAX_TEXT], at_s=at_s
        )
        post(HealthChanged(results=tuple(self._results.values())))

    def _check(self, check: HealthCheckConfig) -> tuple[bool, str]:
        """Return whether a check has passed, and the first line of its output."""
        env = {
            "PATH": ROOT_PATH,
            "LANG": "C.UTF-8",
            "GSCHED_STAGE": "health",
            "GSCHED_NODE": self.node,
        }
        try:
            ended = site_programs.run((check.program,), env, check.timeout_s, self._look)
        except TryAgainError:
            return True, ""
        first = next((line.strip() for line in ended.output.splitlines() if line.strip()), "")
        if not ended.fault:
            return True, first
        fault = ended.fault.partition(": ")[0]
        return False, f"{first} ({fault})" if first else fault

    def _look(self) -> None:
        if self._closed:
            raise TryAgainError("gnode ends")

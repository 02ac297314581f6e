"""The thread that samples NVML for the watchdog, and kills what it finds."""

import logging
import os
import select
import threading
from collections.abc import Callable, Mapping
from typing import Any, cast

from gnode.gpushare.culprits import Culprits
from gnode.gpushare.watchdog import Offence, SharedJob, Watchdog
from gnode.hw.nvml import Nvml

log = logging.getLogger(__name__)


class WatchdogSampler:
    """Looks every ``period_s`` seconds until it is closed.

    Args:
        nvml: the library for measurements.
        watchdog: the rule.
        metrics: the token daemon's metrics.
        culprits: knows the jobs of processes, and kills them.
        period_s: time between two looks, seconds.
    """

    def __init__(
        self,
        nvml: Nvml,
        watchdog: Watchdog,
        *,
        metrics: Callable[[], Mapping[str, object]],
        culprits: Culprits,
        period_s: float,
    ) -> None:
        self._nvml = nvml
        self._watchdog = watchdog
        self._metrics = metrics
        self._culprits = culprits
        self._period_s = period_s
        self._closing, self._close_now = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="gpushare-watchdog", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        os.write(self._close_now, b"x")
        self._thread.join()

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._closing, select.POLLIN)
        while not poll.poll(self._period_s * 1000):
            try:
                for offence in self.look():
                    self._culprits.kill(offence)
            except Exception:  # the next sample may work, and the node must go on
                log.exception("the watchdog of shared GPUs could not look")

    def look(self) -> list[Offence]:
        """Take one sample and judge it."""
        samples = self._nvml.samples()
        if not samples:
            return []
        memory = {
            gpu.uuid: sample.process_memory_bytes
            for gpu, sample in zip(self._nvml.gpus(), samples, strict=False)
        }
        groups = cast("dict[str, dict[str, Any]]", self._metrics()["groups"])
        jobs = [
            SharedJob(
                group=group,
                gpu=str(row["gpu"]),
                memory_bytes=int(row["memory_bytes"]),
                pids=frozenset(row["pids"]),
            )
            for group, row in groups.items()
        ]
        return self._watchdog.look(memory, jobs, self._culprits.group_of)

"""What NVML shows of shared GPUs against what jobs may use: finds what escapes interception."""

import logging
import os
import select
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from gnode.gpushare.node_tokens import hash_of
from gnode.hw import cgroups
from gnode.hw.nvml import Nvml
from gsched.model.units import format_size

_SECRET: Final = b"GSCHED_SHARE_SECRET="
log = logging.getLogger(__name__)
PATIENCE: Final = 3  # samples in a row: memory moves while it is measured


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedJob:
    """A job on a shared GPU; ``pids`` are the processes that the token daemon knows."""

    group: str
    gpu: str
    memory_bytes: int
    pids: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offence:
    """Processes of a job that are to be killed, and why."""

    group: str
    pids: tuple[int, ...]
    reason: str


@dataclass(slots=True)
class Watchdog:
    """The rule, with its memory of earlier samples.

    Attributes:
        context_bytes: GPU memory of each process that interception does not see.
    """

    context_bytes: int
    _seen: dict[tuple[str, str], int] = field(default_factory=dict)

    def look(
        self,
        memory: Mapping[str, Mapping[int, int]],
        jobs: Sequence[SharedJob],
        group_of: Callable[[int], str | None],
    ) -> list[Offence]:
        """Return what has been wrong for `PATIENCE` samples in a row.

        Args:
            memory: bytes of each process on each GPU, by the GPU's UUID.
            jobs: the jobs that share these GPUs.
            group_of: which shared job an unknown process is of; None: of none, it is left alone.
        """
        wrong: dict[tuple[str, str], Offence] = {}
        for job in jobs:
            used = memory.get(job.gpu, {})
            strangers = [pid for pid in used if pid not in job.pids and group_of(pid) == job.group]
            if strangers:
                wrong[job.group, "strangers"] = Offence(
                    group=job.group,
                    pids=tuple(sorted(strangers)),
                    reason=f"job {job.group} uses the shared GPU {job.gpu} around gsched's library",
                )
            pids = tuple(sorted({*strangers, *(pid for pid in used if pid in job.pids)}))
            total = sum(used[pid] for pid in pids)
            allowed = job.memory_bytes + len(pids) * self.context_bytes
            if total > allowed:
                wrong[job.group, "memory"] = Offence(
                    group=job.group,
                    pids=pids,
                    reason=(
                        f"job {job.group} uses {format_size(total)} of GPU {job.gpu}, "
                        f"and its limit is {format_size(job.memory_bytes)} "
                        f"with {format_size(self.context_bytes)} for each of {len(pids)} contexts"
                    ),
                )
        self._seen = {key: self._seen.get(key, 0) + 1 for key in wrong}
        return [offence for key, offence in wrong.items() if self._seen[key] >= PATIENCE]


class Culprits:
    """Finds the job of a process by its control group, which it cannot leave.

    Where attempts have none, or the process is in none of theirs, its environment tells.

    Args:
        secrets: jobs by the hash of their secret.

    Attributes:
        tracking: the control group below which all attempts of this node are, each by its name,
            as /proc/PID/cgroup names it; empty: there is none.
        notify: is told of each offence before its processes are killed, in any thread.
    """

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self._secrets = secrets
        self.tracking = ""
        self.notify: Callable[[Offence], None] = lambda _: None

    def group_of(self, pid: int) -> str | None:
        """Return the job of a process; None if it belongs to no job that shares a GPU."""
        if self.tracking:
            own = cgroups.own_paths(Path(f"/proc/{pid}")).get("", "")
            if own.startswith(f"{self.tracking}/"):
                name = own.removeprefix(f"{self.tracking}/").partition("/")[0]
                return name if name in self._secrets.values() else None
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return None
        for entry in environment.split(b"\0"):
            if entry.startswith(_SECRET):
                secret = entry.removeprefix(_SECRET).decode("ascii", "replace")
                return self._secrets.get(hash_of(secret))
        return None

    def kill(self, offence: Offence) -> None:
        """Kill the processes, as long as they are of that job."""
        self.notify(offence)
        for pid in offence.pids:
            try:
                process = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            try:
                if self.group_of(pid) == offence.group:
                    log.warning("killed process %d: %s", pid, offence.reason)
                    signal.pidfd_send_signal(process, signal.SIGKILL)
            except ProcessLookupError:
                log.debug("process %d has ended by itself", pid)
            finally:
                os.close(process)


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

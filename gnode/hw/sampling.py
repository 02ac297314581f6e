"""How busy the machine is, and what each attempt uses, over all its processes."""

import os
import stat
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

import psutil

from gnode.hw import cgroups
from gnode.hw.idle import GpuActivity, GpuWindow
from gnode.hw.nvml import GpuSample, Nvml
from gsched.clock import SystemClock
from gsched.config.idle_gpus import IdleGpusConfig
from gsched.model.resources import LiveUse, Usage

KeyT = TypeVar("KeyT", bound=Hashable)

#: The least time over which busy cores are averaged for their peak, seconds: CPU time counts in
#: ticks of 10 ms, and a moment's figure would be noise.
PEAK_INTERVAL_S: Final = 1.0
#: Major numbers of the device files of pseudoterminals (Linux, Documentation/admin-guide/devices).
_TERMINALS: Final = range(136, 144)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingTarget(Generic[KeyT]):
    """An attempt to be sampled.

    Attributes:
        supervisor_pid: whose descendants the job's processes are.
        cgroup: the group they are in, or None: then descent alone counts.
        wall_s: seconds since the start.
        shared_gpus: of which the attempt has a part, by index.
    """

    key: KeyT
    supervisor_pid: int
    cgroup: str | None
    gpu_indices: tuple[int, ...]
    wall_s: float
    shared_gpus: tuple[int, ...] = ()


@dataclass(slots=True)
class _Sum:
    """What the samples of one attempt add up to."""

    samples: int = 0
    cpu_s: float = 0.0
    cpu_peak_cores: float = 0.0
    peak_mark: tuple[float, float] = (0.0, 0.0)  # wall and CPU seconds where its interval began
    reaped_before_cpu_s: float = 0.0  # a supervisor may have served other attempts before
    memory_peak_bytes: int = 0
    memory_sum_bytes: int = 0
    gpu_util_sum_percent: float = 0.0
    gpu_memory_peak_bytes: int = 0
    gpu_memory_sum_bytes: int = 0
    read_bytes: int = 0
    write_bytes: int = 0
    windows: dict[int, GpuWindow] = field(default_factory=dict)  # of each GPU by index
    live: LiveUse = field(default_factory=LiveUse)
    live_mark: tuple[float, float] = (0.0, 0.0)  # wall and CPU seconds of the sample before
    held_mark: tuple[float, float] | None = None  # wall and token seconds of the sample before

    def note_cpu(self, cpu_s: float, wall_s: float) -> None:
        """Take in the CPU time so far; what was used stays used, though the sum may fall."""
        self.cpu_s = max(self.cpu_s, cpu_s)
        marked_s, used_s = self.peak_mark
        interval_s = wall_s - marked_s
        if interval_s >= PEAK_INTERVAL_S:
            self.cpu_peak_cores = max(self.cpu_peak_cores, (self.cpu_s - used_s) / interval_s)
        if interval_s >= PEAK_INTERVAL_S or interval_s < 0:  # the clock was set back
            self.peak_mark = (wall_s, self.cpu_s)

    def note_live(
        self, wall_s: float, memory_bytes: int, gpus: Mapping[int, GpuActivity], pids: set[int]
    ) -> None:
        """Note what is in use at this sample, after its CPU time and its GPUs' windows."""
        marked_s, used_s = self.live_mark
        interval_s = wall_s - marked_s
        cores = max(0.0, self.cpu_s - used_s) / interval_s if interval_s > 0 else 0.0
        self.live_mark = (wall_s, self.cpu_s)
        known = any(window.known for window in self.windows.values())
        found = (window.idle(index) for index, window in self.windows.items())
        idle = tuple(gpu for gpu in found if gpu is not None)
        self.live = LiveUse(
            cpu_s=self.cpu_s,
            cpu_cores=cores,
            memory_bytes=memory_bytes,
            gpus=sum(gpu.util_percent or 0.0 for gpu in gpus.values()) / 100.0,
            gpu_memory_bytes=sum(gpu.memory_bytes for gpu in gpus.values()),
            gpus_idle=idle if known else None,
            terminal_idle_s=terminal_idle_s(pids) if idle else None,
        )

    def held_part(self, held_s: float, wall_s: float) -> float:
        """Return for which part of the time since the sample before the token was held, 0 to 1."""
        before, self.held_mark = self.held_mark, (wall_s, held_s)
        marked_s, held_before_s = before or (0.0, 0.0)
        if held_s < held_before_s:  # another token daemon counts from 0
            held_before_s = 0.0
        interval_s = wall_s - marked_s
        return min(1.0, (held_s - held_before_s) / interval_s) if interval_s > 0 else 0.0

    def usage(self, wall_s: float) -> Usage:
        return Usage(
            wall_s=wall_s,
            cpu_s=self.cpu_s,
            cpu_peak_cores=self.cpu_peak_cores,
            memory_peak_bytes=self.memory_peak_bytes,
            memory_mean_bytes=self.memory_sum_bytes // self.samples,
            gpu_util_mean_percent=self.gpu_util_sum_percent / self.samples,
            gpu_memory_peak_bytes=self.gpu_memory_peak_bytes,
            gpu_memory_mean_bytes=self.gpu_memory_sum_bytes // self.samples,
            read_bytes=self.read_bytes,
            write_bytes=self.write_bytes,
            samples=self.samples,
            gpu_idle_s=sum(window.idle_sum_s for window in self.windows.values()),
        )


class Sampler(Generic[KeyT]):
    """Samples attempts and keeps their sums; used by one thread at a time, off the event loop."""

    def __init__(self, nvml: Nvml, idle: IdleGpusConfig | None = None) -> None:
        self._nvml = nvml
        self._idle = idle if idle is not None and idle.window_s else None
        self._sums: dict[KeyT, _Sum] = {}

    @property
    def live(self) -> dict[KeyT, LiveUse]:
        """Return what each target of the last sample used then."""
        return {key: total.live for key, total in self._sums.items()}

    def sample(
        self, targets: Sequence[SamplingTarget[KeyT]], held_s: Mapping[KeyT, float] | None = None
    ) -> tuple[dict[KeyT, Usage], tuple[GpuSample, ...]]:
        """Take one sample of each target.

        Args:
            targets: attempts that run.
            held_s: for how long they have held the token of their shared GPU, as far as one is
                used; it tells their part of that GPU where NVML does not.

        Returns:
            What each target has used since its start, and how busy each GPU is. An attempt that
            is no longer among the targets is forgotten.
        """
        shared = {index for target in targets for index in target.shared_gpus}
        gpus = self._nvml.samples(by_process=shared)
        tokens = held_s or {}
        self._sums = {target.key: self._sums.get(target.key, _Sum()) for target in targets}
        below = _descendants_of() if targets else {}
        usage: dict[KeyT, Usage] = {}
        for target in targets:
            total = self._sums[target.key]
            self._add(total, target, _processes(target, below), gpus, tokens.get(target.key))
            usage[target.key] = total.usage(target.wall_s)
        return usage, gpus

    def _add(
        self,
        total: _Sum,
        target: SamplingTarget[KeyT],
        pids: set[int],
        gpus: tuple[GpuSample, ...],
        held_s: float | None,
    ) -> None:
        reaped_cpu_s = _reaped_cpu_s(target.supervisor_pid)
        if total.samples == 0:
            total.reaped_before_cpu_s = reaped_cpu_s
        cpu_s = reaped_cpu_s - total.reaped_before_cpu_s
        memory_bytes = read_bytes = write_bytes = 0
        for pid in pids:
            figures = _figures(pid)
            cpu_s += figures[0]
            memory_bytes += int(figures[1])
            read_bytes += int(figures[2])
            write_bytes += int(figures[3])
        total.samples += 1
        exact_cpu_s = cgroups.cpu_s(target.cgroup) if target.cgroup else None
        total.note_cpu(cpu_s if exact_cpu_s is None else exact_cpu_s, target.wall_s)
        total.read_bytes = max(total.read_bytes, read_bytes)
        total.write_bytes = max(total.write_bytes, write_bytes)
        total.memory_peak_bytes = max(total.memory_peak_bytes, memory_bytes)
        total.memory_sum_bytes += memory_bytes
        held_part = None if held_s is None else total.held_part(held_s, target.wall_s)
        activities = {
            index: _activity(gpus[index], pids) for index in target.gpu_indices if index < len(gpus)
        }
        for index in target.shared_gpus:
            if index < len(gpus):
                activities[index] = _shared_activity(gpus[index], pids, held_part)
            elif held_part is not None and not activities:  # a declared GPU
                activities[index] = GpuActivity(
                    util_percent=100.0 * held_part, memory_bytes=0, has_process=True
                )
        if self._idle is not None:
            for index, activity in activities.items():
                window = total.windows.setdefault(index, GpuWindow(self._idle))
                window.note(activity, target.wall_s)
        total.note_live(target.wall_s, memory_bytes, activities, pids)
        if activities:
            total.gpu_util_sum_percent += 100.0 * total.live.gpus / len(activities)
        gpu_memory_bytes = total.live.gpu_memory_bytes
        total.gpu_memory_peak_bytes = max(total.gpu_memory_peak_bytes, gpu_memory_bytes)
        total.gpu_memory_sum_bytes += gpu_memory_bytes


def _activity(gpu: GpuSample, pids: Collection[int]) -> GpuActivity:
    """Return what an attempt with these processes does on a GPU that is its own."""
    return GpuActivity(
        util_percent=gpu.util_percent if gpu.tells_util else None,
        memory_bytes=_gpu_memory_bytes(gpu, pids),
        has_process=_has_process(gpu, pids if gpu.tells_util else None),
    )


def _shared_activity(gpu: GpuSample, pids: Collection[int], held_part: float | None) -> GpuActivity:
    """Return what an attempt with these processes does on a GPU of which it has a part.

    Of a GPU that tells of no process what it does, another job's process may be its own in another
    pid namespace. What a process does through an MPS server may be counted as the server's.
    """
    percent = _shared_percent(gpu, pids, held_part)
    if held_part is None and not gpu.mps_pids.isdisjoint(pids):
        percent = None
    return GpuActivity(
        util_percent=percent,
        memory_bytes=_named_bytes(gpu, pids),
        has_process=_has_process(gpu, pids if percent is not None else None),
    )


def _has_process(gpu: GpuSample, pids: Collection[int] | None) -> bool:
    """Return whether one of these processes is on a GPU; None: any."""
    found = gpu.pids | gpu.mps_pids
    return bool(found) if pids is None else not found.isdisjoint(pids)


def _gpu_memory_bytes(gpu: GpuSample, pids: Iterable[int]) -> int:
    """Return what these processes hold; in another pid namespace NVML cannot name them: all."""
    named = [gpu.process_memory_bytes[pid] for pid in pids if pid in gpu.process_memory_bytes]
    return sum(named) if named else gpu.memory_used_bytes


def _named_bytes(gpu: GpuSample, pids: Iterable[int]) -> int:
    """Return what these processes hold of a shared GPU; the rest of it is others'."""
    return sum(gpu.process_memory_bytes.get(pid, 0) for pid in pids)


def _shared_percent(gpu: GpuSample, pids: Iterable[int], held_part: float | None) -> float | None:
    """Return the part of a shared GPU that these processes keep busy, percent; None: not known.

    NVML says it, unless it cannot tell the processes apart (MIG, old GPUs) or names none of them
    (another pid namespace). Then it is the time for which the job held the GPU's token: a little
    more than its kernels took.
    """
    own = set(pids)
    named = gpu.process_memory_bytes.keys() | (gpu.process_util_percent or {}).keys()
    if gpu.process_util_percent is not None and (own & named or held_part is None):
        return min(100.0, sum(gpu.process_util_percent.get(pid, 0.0) for pid in own))
    return None if held_part is None else 100.0 * held_part


def terminal_idle_s(pids: Iterable[int]) -> float | None:
    """Return for how long nothing was typed at the terminals of these processes, as w(1) does.

    None: they have none. A read from a terminal sets the time of the last access of its file.
    """
    accessed_s: list[float] = []
    for pid in pids:
        try:
            status = os.stat(f"/proc/{pid}/fd/0")
        except OSError:  # it has ended, or has closed it
            continue
        if stat.S_ISCHR(status.st_mode) and os.major(status.st_rdev) in _TERMINALS:
            accessed_s.append(status.st_atime)
    return max(0.0, SystemClock().wall_s() - max(accessed_s)) if accessed_s else None


def _descendants_of() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for process in psutil.process_iter(["ppid"]):
        children.setdefault(process.info["ppid"] or 0, []).append(process.pid)
    return children


def _processes(target: SamplingTarget[KeyT], children: dict[int, list[int]]) -> set[int]:
    """Return the job's processes: in its group, or below its supervisor."""
    found: set[int] = set(cgroups.members(target.cgroup)) if target.cgroup else set()
    ends = list(children.get(target.supervisor_pid, ()))
    while ends:
        pid = ends.pop()
        if pid not in found:
            found.add(pid)
        ends.extend(children.get(pid, ()))
    return found


def _reaped_cpu_s(pid: int) -> float:
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.children_user + times.children_system)


def _figures(pid: int) -> tuple[float, float, float, float]:
    """Return CPU seconds (with reaped children), resident, read and written bytes of a process."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            times = process.cpu_times()
            cpu_s = times.user + times.system + times.children_user + times.children_system
            resident_bytes = process.memory_info().rss
            try:
                io = process.io_counters()
            except psutil.AccessDenied:  # another user's process, where we are not root
                return cpu_s, resident_bytes, 0, 0
            return cpu_s, resident_bytes, io.read_bytes, io.write_bytes
    except psutil.Error:
        return 0.0, 0.0, 0.0, 0.0  # it ended while we looked

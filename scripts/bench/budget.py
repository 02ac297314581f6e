"""Where the time of a short job goes: each process by threads, the disk, and both idle cores.

A snapshot is taken before and after some rounds; all figures are the kernel's (/proc), so nothing
is slowed down by them. What system calls cost is in the kernel's part of each thread; their number
is told by ``strace -f -c -p PID``.
"""

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_SECTOR_BYTES = 512
#: Fields of a line of /proc/diskstats after the name: see the kernel's iostats.rst.
_WRITES, _SECTORS, _DISCARDS, _FLUSHES = 4, 6, 11, 15


@dataclass(kw_only=True)
class Part:
    """What a process, or one of its threads, has used.

    Attributes:
        waits: how often it has given up its core to wait for something.
        taken: how often its core was given to another.
    """

    user_s: float = 0.0
    kernel_s: float = 0.0
    waits: int = 0
    taken: int = 0
    written_bytes: int = 0

    def add(self, other: "Part", sign: int = 1) -> None:
        """Add what another has used, or subtract it."""
        self.user_s += sign * other.user_s
        self.kernel_s += sign * other.kernel_s
        self.waits += sign * other.waits
        self.taken += sign * other.taken
        self.written_bytes += sign * other.written_bytes


@dataclass(kw_only=True)
class Snapshot:
    """All parts by name, and figures of disk and machine by name."""

    parts: dict[str, Part] = field(default_factory=dict)
    others: Counter[str] = field(default_factory=Counter)

    def add(self, other: "Snapshot", sign: int = 1) -> None:
        """Add another one, or subtract it."""
        for name, part in other.parts.items():
            self.parts.setdefault(name, Part()).add(part, sign)
        for name, value in other.others.items():
            self.others[name] += sign * value


def snapshot(processes: dict[str, list[int]], directory: Path) -> Snapshot:
    """Return what has been used up to now.

    Args:
        processes: by the name of their part; the first thread of ``head`` and ``gnode`` is the
            event loop.
        directory: on the disk that is told of.
    """
    found = Snapshot()
    for name, pids in processes.items():
        for pid in pids:
            _add_process(found, name, pid)
    found.others.update(_disk(directory))
    idle = Path("/proc/stat").read_text().splitlines()[0].split()[4:6]
    found.others["idle_ms"] = 1000 * sum(map(int, idle)) // _TICKS_PER_S
    return found


def _add_process(found: Snapshot, name: str, pid: int) -> None:
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            is_loop = thread.name == str(pid)
            part = name if is_loop or name not in ("head", "gnode") else f"{name}, other threads"
            found.parts.setdefault(part, Part()).add(_thread(thread))
        io = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
        found.parts[name].written_bytes += int(io["wchar"])
        if name == "supervisors":
            found.parts.setdefault("jobs", Part()).add(_reaped(pid))
    except (FileNotFoundError, ProcessLookupError):
        return  # it has ended: one supervisor in 500 attempts does


def _stat(directory: Path) -> list[str]:
    return (directory / "stat").read_text().rpartition(")")[2].split()


def _thread(directory: Path) -> Part:
    user, kernel = _stat(directory)[11:13]
    status = dict(
        line.split(":\t", 1)
        for line in (directory / "status").read_text().splitlines()
        if ":\t" in line
    )
    return Part(
        user_s=int(user) / _TICKS_PER_S,
        kernel_s=int(kernel) / _TICKS_PER_S,
        waits=int(status["voluntary_ctxt_switches"]),
        taken=int(status["nonvoluntary_ctxt_switches"]),
    )


def _reaped(pid: int) -> Part:
    user, kernel = _stat(Path(f"/proc/{pid}"))[13:15]
    return Part(user_s=int(user) / _TICKS_PER_S, kernel_s=int(kernel) / _TICKS_PER_S)


def _disk(directory: Path) -> dict[str, int]:
    device = os.stat(directory).st_dev
    number = (str(os.major(device)), str(os.minor(device)))
    for line in Path("/proc/diskstats").read_text().splitlines():
        words = line.split()
        if tuple(words[:2]) == number and len(words) > 3 + _FLUSHES:
            values = [int(word) for word in words[3:]]
            return {
                "writes": values[_WRITES],
                "disk_bytes": values[_SECTORS] * _SECTOR_BYTES,
                "discards": values[_DISCARDS],
                "flushes": values[_FLUSHES],
            }
    return {}  # in memory


def table(used: Snapshot, jobs: int, elapsed_s: float) -> list[str]:
    """Return the lines that say what a job has cost."""
    lines = [f"{'a job':22} {'user ms':>8} {'kernel ms':>10} {'waits':>6} {'taken':>6} {'KB':>6}"]
    total = Part()
    for name, part in used.parts.items():
        lines.append(_line(name, part, jobs))
        total.add(part)
    lines.append(_line("sum", total, jobs))
    others = used.others
    if "writes" in others:
        each = {name: value / jobs for name, value in others.items()}
        lines.append(
            f"disk, whole machine, a job: {each['writes']:.2f} writes of {each['disk_bytes']:.0f}"
            f" bytes in all, {each['flushes']:.2f} flushes, {each['discards']:.2f} discards"
        )
    lines.append(f"the head's database grew by {others['database_bytes'] / jobs:.0f} bytes a job")
    cores = os.cpu_count() or 1
    idle = others["idle_ms"] / 1000 / elapsed_s
    lines.append(
        f"of {cores} cores {(total.user_s + total.kernel_s) / elapsed_s:.2f} were busy with this, "
        f"{idle:.2f} idle; load {os.getloadavg()[0]:.0f}"
    )
    return lines


def _line(name: str, part: Part, jobs: int) -> str:
    return (
        f"{name:22} {part.user_s * 1000 / jobs:8.2f} {part.kernel_s * 1000 / jobs:10.2f} "
        f"{part.waits / jobs:6.1f} {part.taken / jobs:6.1f} {part.written_bytes / 1024 / jobs:6.1f}"
    )

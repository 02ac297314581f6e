"""Which CPU of the node is which attempt's, and how CPUs are chosen. Pure.

A CPU is a hardware thread. An attempt gets whole cores first and stays on one NUMA node if it can,
so that jobs neither share a core nor reach across the machine for their memory.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from gnode.core.task import AttemptKey


class Cpu(NamedTuple):
    """One CPU.

    Attributes:
        number: as the kernel counts.
        core: the lowest number of its core: hardware threads of one core have the same.
        numa: its NUMA node.
    """

    number: int
    core: int
    numa: int


class _Choice(NamedTuple):
    """CPUs of one NUMA node, after what counts when choices are compared: less is better."""

    cores: int
    split: int
    left: int
    numa: int
    numbers: tuple[int, ...]


class CpuMap:
    """Owners of the CPUs of a node.

    Args:
        cpus: all that attempts may be given; empty: no attempt is given particular ones.
    """

    def __init__(self, cpus: Iterable[Cpu] = ()) -> None:
        self._cpus = {cpu.number: cpu for cpu in cpus}
        self._owners: dict[int, AttemptKey] = {}

    @property
    def owners(self) -> dict[int, AttemptKey]:
        """Return which attempt owns which CPU; only to be read."""
        return self._owners

    @property
    def numbers(self) -> tuple[int, ...]:
        """Return all CPUs, ascending."""
        return tuple(sorted(self._cpus))

    def own(self, key: AttemptKey, numbers: Iterable[int]) -> None:
        """Note what an attempt owns; its own before, or what an older attempt of its job owned."""
        for number in numbers:
            self._owners[number] = key

    def release(self, key: AttemptKey, numbers: Iterable[int]) -> None:
        """Give back what an attempt still owns."""
        for number in numbers:
            if self._owners.get(number) == key:
                del self._owners[number]

    def choose(self, job: int, count: int) -> tuple[int, ...]:
        """Return ``count`` CPUs for an attempt of a job, ascending; empty if there are too few.

        Those of earlier attempts of the same job are the last choice: this attempt does not start
        before they have ended.
        """
        free = [cpu for number, cpu in self._cpus.items() if number not in self._owners]
        if len(free) < count:
            free += [
                self._cpus[n]
                for n, key in self._owners.items()
                if n in self._cpus and key.job == job
            ]
        return choose(free, count, self._cpus.values())


def choose(free: Iterable[Cpu], count: int, cpus: Iterable[Cpu]) -> tuple[int, ...]:
    """Return ``count`` of the free CPUs, ascending; empty if there are too few.

    Prefers one NUMA node to several, then the fewest cores, then cores that are already in part
    use, then the node with the fewest free CPUs.

    Args:
        free: what can be chosen.
        cpus: all of the node, which tell how many hardware threads a core has.
    """
    left = sorted(free)
    if count <= 0 or len(left) < count:
        return ()
    threads: dict[int, int] = {}
    for cpu in cpus:
        threads[cpu.core] = threads.get(cpu.core, 0) + 1
    chosen: list[int] = []
    while True:
        nodes = _grouped(left, lambda cpu: cpu.numa)
        wanted = count - len(chosen)
        fitting = [_within(node, wanted, threads) for node in nodes.values() if len(node) >= wanted]
        if fitting:
            return tuple(sorted([*chosen, *min(fitting).numbers]))
        largest = max(nodes.values(), key=len)
        chosen.extend(cpu.number for cpu in largest)
        left = [cpu for cpu in left if cpu not in largest]


def _within(free: Sequence[Cpu], count: int, threads: dict[int, int]) -> _Choice:
    """Return ``count`` of the free CPUs of one NUMA node."""
    cores = _grouped(free, lambda cpu: cpu.core)
    whole = [core for number, core in cores.items() if len(core) == threads[number]]
    chosen: list[Cpu] = []
    for core in sorted(whole, key=lambda core: (-len(core), core)):
        if len(core) <= count - len(chosen):
            chosen.extend(core)
    taken = {cpu.core for cpu in chosen}
    rest = [core for number, core in cores.items() if number not in taken]
    split = 0
    while len(chosen) < count:
        wanted = count - len(chosen)
        # A core of which others have a part goes first: the smallest that is enough.
        core = min(
            rest,
            key=lambda core: (
                len(core) == threads[core[0].core],
                len(core) < wanted,
                abs(len(core) - wanted),
                core,
            ),
        )
        rest.remove(core)
        split += len(core) == threads[core[0].core] and len(core) > wanted
        chosen.extend(core[:wanted])
    used = {cpu.core for cpu in chosen}
    return _Choice(
        cores=len(used),
        split=split,
        left=len(free) - count,
        numa=free[0].numa,
        numbers=tuple(cpu.number for cpu in chosen),
    )


def _grouped(cpus: Iterable[Cpu], of: Callable[[Cpu], int]) -> dict[int, list[Cpu]]:
    groups: dict[int, list[Cpu]] = {}
    for cpu in cpus:
        groups.setdefault(of(cpu), []).append(cpu)
    return groups


def cpu_list(numbers: Collection[int]) -> str:
    """Return CPUs as the kernel writes them: ``0-3,8``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def parse_cpu_list(text: str) -> frozenset[int]:
    """Return the CPUs that ``0-3,8`` names.

    Raises:
        ValueError: it is no such list.
    """
    found: set[int] = set()
    for part in text.strip().split(","):
        if not part:
            continue
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)

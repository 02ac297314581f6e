"""What Slurm's options of resources come to together, as one text for ``-l``. Pure.

Slurm counts tasks, CPUs of each task and GPUs of each node, task or job; PBS counts CPUs and GPUs
of each node. So they cannot be translated one by one.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from gsched.errors import UsageError
from gsched.model.host_lists import expanded
from gsched.model.units import exact_size, parse_size_bytes

#: Options that are read here, by their short names; all have a value.
OPTIONS: Final[Mapping[str, str]] = {
    "-N": "--nodes",
    "-n": "--ntasks",
    "-c": "--cpus-per-task",
    "-G": "--gpus",
    "-w": "--nodelist",
    "-C": "--constraint",
    "-L": "--licenses",
}
#: Names that Slurm reads, too.
SYNONYMS: Final[Mapping[str, str]] = {
    "--tasks-per-node": "--ntasks-per-node",
    "--workdir": "--chdir",
    "--licences": "--licenses",
    "--cluster": "--clusters",
}


class Gpus(Struct, frozen=True):
    """A number of GPUs, and their type or nothing."""

    count: int = 0
    type: str = ""


class SlurmRequest(Struct, kw_only=True):
    """What has been said so far; 0 and the empty text: nothing."""

    nodes: int = 0
    tasks: int = 0
    tasks_per_node: int = 0
    cpus_per_task: int = 0
    cpus_per_gpu: int = 0
    gpus: Gpus = Gpus()
    gpus_per_node: Gpus = Gpus()
    gpus_per_task: Gpus = Gpus()
    memory_bytes: int = 0  # of each node
    memory_per_cpu_bytes: int = 0
    memory_per_gpu_bytes: int = 0
    hosts: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    generic: tuple[tuple[str, int], ...] = ()
    stated: bool = False

    def take(self, name: str, value: str) -> None:
        """Take in an option.

        Raises:
            UsageError: its value cannot be read.
        """
        self.stated = True
        if name == "--gres":
            self._take_gres(value)
        elif name == "--licenses":
            self._take_licences(value)
        else:
            field, read = _READERS[name]
            setattr(self, field, read(name, value))

    def _take_gres(self, value: str) -> None:
        for item in filter(None, value.split(",")):
            name, _, rest = item.partition(":")
            if name.removeprefix("gres/") == "gpu":
                self.gpus_per_node = _gpus("--gres", rest or "1")
            else:
                self.generic += ((name, _count("--gres", rest or "1")),)

    def _take_licences(self, value: str) -> None:
        """Take in ``name[@server][:count]``; what no node declares is ignored with a warning."""
        for item in filter(None, re.split(r"[,|]", value)):
            name, _, count = item.partition(":")
            amount = _count("--licenses", count or "1")
            self.generic += ((name.partition("@")[0], amount),)

    @property
    def text(self) -> str:
        """Return the request for ``-l``; empty if nothing was stated."""
        if not self.stated:
            return ""
        nodes = self._node_count()
        # What is stated of each node says that there is one, as Slurm packs tasks.
        of_node = self.gpus_per_node.count or self.memory_bytes
        spread = not nodes and not of_node and self.tasks > 1
        count = self.tasks if spread else max(1, nodes)
        tasks = 1 if spread else self._tasks_on_each(count)
        cpus, gpus = tasks * max(1, self.cpus_per_task), self._gpus_on_each(count, tasks)
        cpus = max(cpus, self.cpus_per_gpu * gpus.count)
        terms = [self._chunks(count, cpus, gpus, spread=spread)]
        memory_bytes = self.memory_bytes * count
        memory_bytes += self.memory_per_cpu_bytes * cpus * count
        memory_bytes += self.memory_per_gpu_bytes * gpus.count * count
        if memory_bytes:
            terms.append(f"mem={exact_size(memory_bytes)}")
        terms.extend(f"{name}={amount}" for name, amount in self.generic)
        return ",".join(terms)

    def _node_count(self) -> int:
        if self.nodes or self.hosts:
            return max(self.nodes, len(self.hosts))
        if self.tasks_per_node and self.tasks:
            return -(-self.tasks // self.tasks_per_node)
        return 0

    def _tasks_on_each(self, nodes: int) -> int:
        return self.tasks_per_node or -(-max(1, self.tasks) // nodes)

    def _gpus_on_each(self, count: int, tasks: int) -> Gpus:
        if self.gpus_per_node.count:
            return self.gpus_per_node
        if self.gpus_per_task.count:
            return Gpus(self.gpus_per_task.count * tasks, self.gpus_per_task.type)
        return Gpus(-(-self.gpus.count // count), self.gpus.type)

    def _chunks(self, count: int, cpus: int, gpus: Gpus, *, spread: bool) -> str:
        if spread:
            words = [f"select={count}:ncpus={cpus}"]
            words += [f"ngpus={gpus.count}"] if gpus.count else []
            words += [f"gpu_type={gpus.type}"] if gpus.type else []
            words += [f"host={feature}" for feature in self.features]
            return ":".join(words)
        words = [f"ppn={cpus}"]
        words += [f"gpus={gpus.count}"] if gpus.count else []
        words += [f"gpu_type={gpus.type}"] if gpus.type else []
        words += self.features
        behind = ":".join(words)
        if not self.hosts:
            return f"nodes={count}:{behind}"
        named = [f"{host}:{behind}" for host in self.hosts]
        others = count - len(self.hosts)
        return "nodes=" + "+".join([*named, *([f"{others}:{behind}"] if others else [])])

    def environment(self) -> dict[str, str]:
        """Return the variables that Slurm sets from these options."""
        found = {}
        if self.tasks or self.tasks_per_node:
            tasks = self.tasks or self.tasks_per_node * max(1, self._node_count())
            found["SLURM_NTASKS"] = found["SLURM_NPROCS"] = str(tasks)
        if self.tasks_per_node:
            found["SLURM_NTASKS_PER_NODE"] = str(self.tasks_per_node)
        if self.cpus_per_task:
            found["SLURM_CPUS_PER_TASK"] = str(self.cpus_per_task)
        return found


def _node_count(name: str, value: str) -> int:
    """Return the least number of ``2`` or ``2-4``."""
    return _count(name, value.partition("-")[0])


def _features(name: str, value: str) -> tuple[str, ...]:
    if "|" in value:
        raise UsageError(f"{name}={value}: alternatives are not supported")
    return tuple(filter(None, re.split(r"[&*]", value.strip("[]"))))


def _count(name: str, value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,7}", value) or not int(value):
        raise UsageError(f"{name}: invalid number {value!r}")
    return int(value)


def _gpus(name: str, value: str) -> Gpus:
    """Return what ``2``, ``a100`` or ``a100:2`` says."""
    kind, colon, count = value.rpartition(":")
    if not colon and not value.isdecimal():
        kind, count = value, "1"
    return Gpus(_count(name, count.partition("(")[0]), kind)


def slurm_size(name: str, value: str) -> int:
    """Return the bytes of a size of Slurm's: megabytes where it has no unit.

    Raises:
        UsageError: it cannot be read.
    """
    match = re.fullmatch(r"([0-9]{1,12})([kKmMgGtT]?)[bB]?", value)
    if match is None:
        raise UsageError(f"{name}: invalid size {value!r}", hint="write 4G or 4000M")
    return parse_size_bytes(f"{match[1]}{(match[2] or 'm').lower()}b")


def _hosts(name: str, value: str) -> tuple[str, ...]:
    return expanded(value, option=name)


_READERS: Final[Mapping[str, tuple[str, Callable[[str, str], object]]]] = {
    "--nodes": ("nodes", _node_count),
    "--ntasks": ("tasks", _count),
    "--ntasks-per-node": ("tasks_per_node", _count),
    "--cpus-per-task": ("cpus_per_task", _count),
    "--cpus-per-gpu": ("cpus_per_gpu", _count),
    "--gpus": ("gpus", _gpus),
    "--gpus-per-node": ("gpus_per_node", _gpus),
    "--gpus-per-task": ("gpus_per_task", _gpus),
    "--mem": ("memory_bytes", slurm_size),
    "--mem-per-cpu": ("memory_per_cpu_bytes", slurm_size),
    "--mem-per-gpu": ("memory_per_gpu_bytes", slurm_size),
    "--nodelist": ("hosts", _hosts),
    "--constraint": ("features", _features),
}
NAMES: Final = frozenset({*_READERS, "--gres", "--licenses"})

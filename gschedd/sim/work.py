"""How the jobs of one machine progress: pluggable models of what they do to each other."""

import heapq
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol

from gnode.core.task import AttemptKey
from gsched.model.resources import GpuShare
from gschedd.sim.agenda import FOREVER
from gschedd.sim.gpu_work import GpuWork
from gschedd.sim.program import Program

#: Work that counts as none, seconds: floating point leaves some over.
DONE_S: Final = 1e-6


class Work(Protocol):
    """The jobs of one machine, from their start to the end of their work.

    Attributes:
        cpus_used: CPUs kept busy now, at most those that are there.
        memory_bytes: in use now.
    """

    cpus_used: float
    memory_bytes: int

    def start(
        self, key: AttemptKey, program: Program, now_s: float, held: Sequence[GpuShare] = ()
    ) -> None:
        """Let a job work that owns these GPUs, or parts of them."""

    def gpu_percent(self, index: int, now_s: float) -> float:
        """Return how busy a GPU was in the last minute, percent; 0 where that is not modelled."""

    def stop(self, key: AttemptKey, now_s: float) -> float:
        """Take a job away, done or not; return the CPU seconds that it has used."""

    def next_end_s(self) -> float:
        """Return when the next job is done if nothing changes, `FOREVER` if none ever is."""

    def done(self, now_s: float) -> list[AttemptKey]:
        """Return the jobs whose work is done by now, in the order in which they ended."""


class FixedWork:
    """Every job runs for its duration, whatever runs beside it."""

    __slots__ = ("_cpus", "_ends", "_jobs", "_speed", "_wanted", "cpus_used", "memory_bytes")

    def __init__(self, cpus: float, speed: float) -> None:
        self._cpus = cpus
        self._speed = speed
        self._wanted = 0.0
        self._jobs: dict[AttemptKey, tuple[Program, float]] = {}
        self._ends: list[tuple[float, AttemptKey]] = []
        self.cpus_used = 0.0
        self.memory_bytes = 0

    def gpu_percent(self, index: int, now_s: float) -> float:  # noqa: ARG002 - not modelled
        """Return 0."""
        return 0.0

    def start(
        self,
        key: AttemptKey,
        program: Program,
        now_s: float,
        held: Sequence[GpuShare] = (),  # noqa: ARG002 - whatever GPUs it has
    ) -> None:
        """Let a job work."""
        self._jobs[key] = (program, now_s)
        heapq.heappush(self._ends, (now_s + program.work_s / self._speed, key))
        self._use(program, 1)

    def stop(self, key: AttemptKey, now_s: float) -> float:
        """Take a job away."""
        program, started_s = self._jobs.pop(key)
        self._use(program, -1)
        return program.cpus * (now_s - started_s)

    def _use(self, program: Program, sign: int) -> None:
        self._wanted = self._wanted + sign * program.cpus if self._jobs else 0.0
        self.cpus_used = min(self._wanted, self._cpus)
        self.memory_bytes += sign * program.memory_bytes

    def next_end_s(self) -> float:
        """Return when the next job is done."""
        while self._ends and self._ends[0][1] not in self._jobs:
            heapq.heappop(self._ends)
        return self._ends[0][0] if self._ends else FOREVER

    def done(self, now_s: float) -> list[AttemptKey]:
        """Return the jobs that are done by now."""
        found: list[AttemptKey] = []
        while self.next_end_s() <= now_s:
            found.append(heapq.heappop(self._ends)[1])
        return found


class SharedWork:
    """Jobs share the CPUs: when they want more than there are, all of them slow down alike.

    The clock of the work runs at the speed that each job gets, so that a job is done when that
    clock has advanced by its work, however often the speed changes meanwhile.
    """

    __slots__ = (
        "_at_s",
        "_clock_s",
        "_cpus",
        "_ends",
        "_jobs",
        "_speed",
        "_wanted",
        "cpus_used",
        "memory_bytes",
    )

    def __init__(self, cpus: float, speed: float) -> None:
        self._cpus = cpus
        self._speed = speed
        self._clock_s = 0.0
        self._at_s = 0.0
        self._wanted = 0.0
        self._jobs: dict[AttemptKey, tuple[Program, float]] = {}
        self._ends: list[tuple[float, AttemptKey]] = []
        self.cpus_used = 0.0
        self.memory_bytes = 0

    def _rate(self) -> float:
        """Return the seconds of work that each job does in a second."""
        return self._speed * min(1.0, self._cpus / self._wanted if self._wanted else 1.0)

    def _advance(self, now_s: float) -> None:
        self._clock_s += (now_s - self._at_s) * self._rate()
        self._at_s = now_s

    def gpu_percent(self, index: int, now_s: float) -> float:  # noqa: ARG002 - not modelled
        """Return 0."""
        return 0.0

    def start(
        self,
        key: AttemptKey,
        program: Program,
        now_s: float,
        held: Sequence[GpuShare] = (),  # noqa: ARG002 - whatever GPUs it has
    ) -> None:
        """Let a job work; the others get slower if the CPUs are too few now."""
        self._advance(now_s)
        self._jobs[key] = (program, self._clock_s)
        heapq.heappush(self._ends, (self._clock_s + program.work_s, key))
        self._use(program, 1)

    def stop(self, key: AttemptKey, now_s: float) -> float:
        """Take a job away; the others may get faster."""
        self._advance(now_s)
        program, began_s = self._jobs.pop(key)
        self._use(program, -1)
        return program.cpus * (self._clock_s - began_s) / self._speed

    def _use(self, program: Program, sign: int) -> None:
        self._wanted = self._wanted + sign * program.cpus if self._jobs else 0.0
        self.cpus_used = min(self._wanted, self._cpus)
        self.memory_bytes += sign * program.memory_bytes

    def next_end_s(self) -> float:
        """Return when the next job is done if nothing changes."""
        while self._ends and self._ends[0][1] not in self._jobs:
            heapq.heappop(self._ends)
        if not self._ends:
            return FOREVER
        return self._at_s + max(0.0, self._ends[0][0] - self._clock_s) / self._rate()

    def done(self, now_s: float) -> list[AttemptKey]:
        """Return the jobs that are done by now."""
        self._advance(now_s)
        found: list[AttemptKey] = []
        # relative to the clock, too: a long run leaves no more digits than a double has
        while self.next_end_s() <= now_s + DONE_S:
            found.append(heapq.heappop(self._ends)[1])
        return found


#: Models by the name that the command line knows: made from the CPUs of a node and its speed.
WORK_MODELS: Final[Mapping[str, Callable[[float, float], Work]]] = MappingProxyType(
    {"fixed": FixedWork, "gpus": GpuWork, "shared": SharedWork}
)

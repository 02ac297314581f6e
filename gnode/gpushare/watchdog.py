"""What NVML shows of shared GPUs against what jobs may use: finds what escapes interception."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gsched.model.units import format_size

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

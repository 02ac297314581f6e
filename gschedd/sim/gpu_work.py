"""Jobs progress by what they get of their GPUs, of which several jobs may share one.

A job that has a GPU for itself keeps it busy for a part of the time (`Program.gpu_use`).

Without costs the model is a fluid: on a shared GPU the job of the class ``high`` runs as if it were
alone. The jobs of the class ``low`` get the time that it leaves: all that they want if that is
enough, else all of them slow down alike. Switching between jobs costs nothing, and they do not wait
for each other: what comes out is a bound. With costs see `gschedd.sim.gpu_costs`.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from gnode.core.task import AttemptKey
from gsched.model.resources import WHOLE_PERCENT, GpuShare
from gsched.model.states import ShareClass
from gschedd.sim.agenda import FOREVER
from gschedd.sim.gpu_costs import SharingCosts, shared_rates
from gschedd.sim.program import Program

#: Work that counts as none, seconds.
DONE_S: Final = 1e-6
MINUTE_S: Final = 60.0


class _Job(Struct):
    """A job that works.

    Attributes:
        left_s: work that is left, seconds on a GPU of its own.
        rate: work done in a second.
    """

    program: Program
    held: tuple[GpuShare, ...]
    left_s: float
    rate: float = 1.0
    cpu_s: float = 0.0


class GpuWork:
    """The jobs of one machine.

    Args:
        costs: of sharing a GPU; None: the fluid.

    Attributes:
        busy_s: for how long each GPU was busy, by index.
    """

    def __init__(self, cpus: float, speed: float, costs: SharingCosts | None = None) -> None:
        self._cpus = cpus
        self._speed = speed
        self._costs = costs
        self._jobs: dict[AttemptKey, _Job] = {}
        self._at_s = 0.0
        self._past: deque[tuple[float, dict[int, float]]] = deque()
        self.busy_s: dict[int, float] = {}
        self.cpus_used = 0.0
        self.memory_bytes = 0

    def start(
        self, key: AttemptKey, program: Program, now_s: float, held: Sequence[GpuShare] = ()
    ) -> None:
        """Let a job work; the others on its GPU may get slower."""
        self._advance(now_s)
        self._jobs[key] = _Job(
            program=program, held=tuple(held), left_s=program.work_s / self._speed
        )
        self._arrange()

    def stop(self, key: AttemptKey, now_s: float) -> float:
        """Take a job away; the others on its GPU may get faster."""
        self._advance(now_s)
        job = self._jobs.pop(key)
        self._arrange()
        return job.cpu_s

    def next_end_s(self) -> float:
        """Return when the next job is done if nothing changes."""
        ends = (job.left_s / job.rate for job in self._jobs.values() if job.rate > 0)
        return self._at_s + max(0.0, min(ends, default=FOREVER))

    def done(self, now_s: float) -> list[AttemptKey]:
        """Return the jobs that are done by now, by what was left of them, the least first."""
        self._advance(now_s)
        found = [(job.left_s, key) for key, job in self._jobs.items() if job.left_s <= DONE_S]
        return [key for _, key in sorted(found)]

    def gpu_percent(self, index: int, now_s: float) -> float:
        """Return how busy a GPU was in the last minute, percent."""
        self._advance(now_s)
        busy_s = self.busy_s.get(index, 0.0) - self._busy_before_s(index, now_s - MINUTE_S)
        return 100.0 * busy_s / MINUTE_S

    def _busy_before_s(self, index: int, at_s: float) -> float:
        """Return for how long a GPU had been busy by a time of the last minute."""
        steps = [*self._past, (self._at_s, self.busy_s)]
        (first_s, first), (next_s, following) = steps[0], steps[min(1, len(steps) - 1)]
        began_s = first.get(index, 0.0)
        if at_s <= first_s or next_s <= first_s:
            return began_s
        part = (at_s - first_s) / (next_s - first_s)
        return began_s + part * (following.get(index, 0.0) - began_s)

    def _advance(self, now_s: float) -> None:
        passed_s = now_s - self._at_s
        if passed_s <= 0:
            return
        self._past.append((self._at_s, dict(self.busy_s)))
        while len(self._past) > 1 and self._past[1][0] <= now_s - MINUTE_S:
            self._past.popleft()
        for job in self._jobs.values():
            job.left_s -= passed_s * job.rate
            job.cpu_s += passed_s * job.program.cpus
            for share in job.held:
                before_s = self.busy_s.get(share.index, 0.0)
                self.busy_s[share.index] = before_s + passed_s * job.rate * job.program.gpu_use
        self._at_s = now_s

    def _arrange(self) -> None:
        """Give each job its rate."""
        jobs = self._jobs.values()
        self.cpus_used = min(sum(job.program.cpus for job in jobs), self._cpus)
        self.memory_bytes = sum(job.program.memory_bytes for job in jobs)
        on: dict[int, list[tuple[_Job, GpuShare]]] = {}
        for job in jobs:
            job.rate = 1.0
            for share in job.held:
                if share.percent < WHOLE_PERCENT:
                    on.setdefault(share.index, []).append((job, share))
        for sharers in on.values():
            high = [job for job, share in sharers if share.share_class is ShareClass.HIGH]
            low = [job for job, share in sharers if share.share_class is ShareClass.LOW]
            rates = self._rates(_uses(high), _uses(low))
            for job, rate in zip([*high, *low], rates, strict=True):
                job.rate = min(job.rate, rate)

    def _rates(self, high: Sequence[float], low: Sequence[float]) -> list[float]:
        """Return how fast the high and the low jobs of a GPU run, each of its speed alone."""
        if self._costs is not None:
            fast, slow = shared_rates(high, low, self._costs)
            return fast + slow
        left, wanted = max(0.0, 1.0 - sum(high)), sum(low)
        rate = min(1.0, left / wanted) if wanted else 1.0
        return [1.0] * len(high) + [rate] * len(low)


def _uses(jobs: Sequence[_Job]) -> list[float]:
    return [job.program.gpu_use for job in jobs]

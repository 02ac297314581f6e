"""FIFO by priority with EASY backfill.

Jobs start in order of priority, then of submission. The first that does not fit gets a
reservation: the earliest time at which, from the walltimes of what runs, it is sure to fit. Later
jobs may pass it only if they do not delay that: they end before it by their own walltime, or they
use what the reservation leaves over.

Jobs of one shape (queue, request, walltime) stand or fall together, so a pass costs as much as
there are shapes, not jobs.

Source: EASY backfilling, Mu'alem & Feitelson, IEEE TPDS 12(6):529-543, 2001. We place resources of
several kinds on named nodes where they count processors, so the reservation is an allocation.
"""

import heapq
from typing import Final

from gsched.model.resources import Allocation
from gschedd.plan.fit import NoFit, place
from gschedd.plan.snapshot import Group, OrderKey, Plan, Shape, Snapshot, Start, Wait
from gschedd.plan.space import Spaces

#: A job without a walltime is planned as if it ended this long after all others, oldest first: then
#: a reservation behind it exists and nothing can pass it for ever. Seconds; any long time does.
UNLIMITED_S: Final = 365 * 86400.0


def plan(snapshot: Snapshot) -> Plan:
    """Start what fits in order, reserve for the first that does not, backfill behind it.

    Ties go to the lower job id, so equal snapshots always give equal plans.
    """
    return _Pass(snapshot).run()


class _Pass:
    """One pass over the groups; lives only inside `plan`."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.free = Spaces(snapshot.nodes)
        self.starts: list[Start] = []
        self.waits: list[Wait] = []
        self.shadow_s: float | None = None
        self.blocked_job: int | None = None
        self.spare = self.free

    def run(self) -> Plan:
        heap: list[tuple[OrderKey, int, int]] = [
            (group.order[0], number, 0) for number, group in enumerate(self.snapshot.groups)
        ]
        heapq.heapify(heap)
        while heap:
            key, number, position = heapq.heappop(heap)
            group = self.snapshot.groups[number]
            if self._start(group, key[1]) and position + 1 < len(group.order):
                heapq.heappush(heap, (group.order[position + 1], number, position + 1))
        return Plan(starts=tuple(self.starts), waits=tuple(self.waits))

    def _start(self, group: Group, job: int) -> bool:
        """Start the job, or note why its whole group waits and return False."""
        found = place(group.shape.request, self.free)
        if isinstance(found, NoFit):
            self._wait(group.shape, job, found.text)
            return False
        if self.blocked_job is None:
            self._accept(group.shape, job, found, "next in order")
            return True
        return self._backfill(group.shape, job, found)

    def _backfill(self, shape: Shape, job: int, found: Allocation) -> bool:
        assert self.shadow_s is not None
        walltime_s = shape.walltime_s
        if walltime_s is not None and self.snapshot.now_s + walltime_s <= self.shadow_s:
            self._accept(shape, job, found, f"ends before job {self.blocked_job} can start")
            return True
        beside = place(shape.request, self.free.common_with(self.spare))
        if isinstance(beside, NoFit):
            self.waits.append(
                Wait(
                    shape=shape,
                    first=job,
                    reason=f"would delay job {self.blocked_job}, which is before it and waits for "
                    "more; a walltime that ends sooner would let it pass",
                )
            )
            return False
        self.spare.take(beside)
        self._accept(shape, job, beside, f"does not delay job {self.blocked_job}")
        return True

    def _accept(self, shape: Shape, job: int, allocation: Allocation, why: str) -> None:
        self.free.take(allocation)
        self.starts.append(Start(job=job, shape=shape, allocation=allocation, why=why))

    def _wait(self, shape: Shape, job: int, reason: str) -> None:
        if self.blocked_job is not None:
            self.waits.append(Wait(shape=shape, first=job, reason=reason))
            return
        self.blocked_job = job
        self.shadow_s, predicted_s, self.spare = self._reserve(shape)
        self.waits.append(
            Wait(
                shape=shape,
                first=job,
                reason=reason,
                predicted_start_s=predicted_s,
                reserved=True,
            )
        )

    def _reserve(self, shape: Shape) -> tuple[float, float | None, Spaces]:
        """Return when the job is sure to fit, the same if it can be told to people, what is spare.

        If it does not fit even when all has ended (its nodes are down), nothing is reserved: the
        shadow time lies beyond everything and all that is free is spare.
        """
        now_s = self.snapshot.now_s
        later = self.free.copy()
        ends: list[tuple[bool, float, int, Allocation]] = [
            (end_s is None, end_s if end_s is not None else started_s, job, allocation)
            for job, allocation, started_s, end_s in self._running(now_s)
        ]
        for unlimited, end_s, _, allocation in sorted(ends, key=lambda item: item[:3]):
            later.give(allocation)
            found = place(shape.request, later)
            if not isinstance(found, NoFit):
                later.take(found)
                if unlimited:
                    return now_s + UNLIMITED_S, None, later
                return max(end_s, now_s), max(end_s, now_s), later
        return now_s + UNLIMITED_S, None, self.free.copy()

    def _running(self, now_s: float) -> list[tuple[int, Allocation, float, float | None]]:
        running = [
            (job.job, job.allocation, job.started_s, job.end_s) for job in self.snapshot.running
        ]
        for start in self.starts:
            walltime_s = start.shape.walltime_s
            end_s = None if walltime_s is None else now_s + walltime_s
            running.append((start.job, start.allocation, now_s, end_s))
        return running

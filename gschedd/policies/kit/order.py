"""The pass over the queue that policies share: in order, with one reservation and backfill.

Jobs start in order of priority, then of submission; a job that cannot run now is passed over. The
first that does not fit gets a reservation: the earliest time at which it fits by the planned ends
of what runs. Later jobs may pass it only if they do not delay that: they are
planned to end before it, or they use what the reservation leaves over.

Jobs of one class (queue, request, walltime) stand or fall together, so a pass costs as much as
there are classes and starts, not jobs. Where users have lanes in a class (`gschedd.plan.lanes`),
a lane of jobs that are predicted to be short may backfill before another one. A pass ends at the
snapshot's limit of starts; the next one, with the started jobs running, starts what this one would
have started beyond it.

Source: EASY backfilling, Mu'alem & Feitelson, IEEE TPDS 12(6):529-543, 2001. We place resources of
several kinds on named nodes where they count processors, so the reservation is an allocation.
"""

import heapq
from collections.abc import Iterable, Mapping
from typing import Final

from gsched.model.ids import short_job_id
from gsched.model.resources import Allocation, Request
from gsched.model.units import format_duration
from gschedd.plan.amounts import amounts_needed, amounts_there
from gschedd.plan.fit import NoFit, place
from gschedd.plan.lanes import MAX_PASSED, Walk, walk_of
from gschedd.plan.limits import AtLimit, LimitRoom
from gschedd.plan.rests import with_rests
from gschedd.plan.snapshot import (
    ByEnd,
    JobClass,
    OrderKey,
    Plan,
    RunningJob,
    Snapshot,
    Start,
    Wait,
    end_order,
)
from gschedd.plan.space import FreeNode, Spaces, common, take
from gschedd.plan.windows import Closed, barred, window_reason, without
from gschedd.plan.words import Lack, Reason
from gschedd.policies.kit.chooser import Chooser
from gschedd.policies.kit.earliest import WaitingRequest, earliest

#: Why a job waits that would be preempted where it could start.
KEPT: Final = Reason(
    "what is free is kept for waiting jobs for which it would give way", "kept for other jobs"
)
#: A job without a planned end is planned as if it ended this long after all others, oldest first:
#: then a reservation behind it exists and nothing can pass it for ever. Seconds; any long time.
UNLIMITED_S: Final = 365 * 86400.0


def plan_in_order(snapshot: Snapshot, chooser: Chooser, *, reserve: bool = True) -> Plan:
    """Start what fits in order, reserve for the first that does not, backfill behind it.

    Ties go to the lower job id, so equal snapshots always give equal plans.

    Args:
        snapshot: what there is.
        chooser: which nodes to take, and how long jobs are planned to run.
        reserve: without, whatever fits passes, and a large job may wait for ever.
    """
    return _Pass(snapshot, chooser, reserve=reserve).run()


def _would_delay(blocked_job: int, job_class: JobClass, run_time_s: float | None) -> Reason:
    """Return why a job may not pass the blocked one, and what would help."""
    if run_time_s is None:
        advice = "a walltime may let it backfill"
    elif run_time_s == job_class.walltime_s:
        advice = "a shorter walltime may let it backfill"
    else:
        advice = f"its expected run time is {format_duration(run_time_s)}"
    name = short_job_id(blocked_job)
    words = f"cannot backfill: would delay job {name}'s reservation; {advice}"
    return Reason(words, f"would delay job {name}")


class _Pass:
    """One pass over the groups; lives only inside `plan_in_order`."""

    def __init__(self, snapshot: Snapshot, chooser: Chooser, *, reserve: bool) -> None:
        self.snapshot = snapshot
        self.chooser = chooser
        self.reserve = reserve
        self.free = Spaces(snapshot.nodes)
        self.starts: list[Start] = []
        self.waits: dict[JobClass, Wait] = {}
        #: Where the job was to start that was refused last, as it would delay another one.
        self.delaying: Allocation | None = None
        #: The job that was refused last does not start, as it would give way there.
        self.kept_back = False
        self.shadow_s: float | None = None
        self.blocked_job: int | None = None
        #: What did not fit goes on not fitting: a pass only takes.
        self.lacking: dict[tuple[Request, frozenset[Closed], bool], NoFit] = {}
        #: Nodes with windows into which jobs with a walltime would run, and what is free elsewhere.
        self.barred: dict[float | None, frozenset[Closed]] = {}
        self.views: dict[frozenset[Closed], Spaces] = {}
        self.spare: dict[str, FreeNode] = {}
        #: What is free now and when the job with the reservation starts; None: not looked at yet.
        self.beside: Spaces | None = None
        #: Requests that do not fit beside the reservation, with the nodes that are closed to them.
        self.lacking_beside: set[tuple[Request, frozenset[Closed]]] = set()
        self.needed: dict[tuple[Request, float | None], Mapping[str, float]] = {}
        self.room = None if snapshot.limits is None else snapshot.limits.copy()
        self.again_s: float | None = None

    def run(self) -> Plan:
        groups = self.snapshot.groups
        walks = [walk_of(group.order) for group in groups]
        heap: list[tuple[OrderKey, int]] = [(walk.first, at) for at, walk in enumerate(walks)]
        heapq.heapify(heap)
        most = self.snapshot.starts_max
        while heap:
            if most is not None and len(self.starts) >= most:
                return self._plan(more=True)
            (_, job), number = heap[0]
            walk, job_class = walks[number], groups[number].job_class
            if self._start(job_class, job):
                walk.advance()
            elif not self._pass_lanes(walk, job_class):
                heapq.heappop(heap)
                continue
            if walk:
                heapq.heapreplace(heap, (walk.first, number))
            else:
                heapq.heappop(heap)
        return self._plan()

    def _pass_lanes(self, walk: Walk, job_class: JobClass) -> bool:
        """Go on to a lane whose next job may end before the reservation; return whether there is.

        The next job of the class fits, and would delay the job with the reservation.
        """
        found, self.delaying = self.delaying, None
        if self.kept_back:
            self.kept_back = False
            walk.pass_lane()
            return bool(walk)
        if found is None or self.shadow_s is None or self.snapshot.predictor is None:
            return False
        left_s = self.shadow_s - self.snapshot.now_s
        for _ in range(MAX_PASSED):
            walk.pass_lane()
            if not walk:
                break
            run_time_s = self.chooser.run_time_s(walk.first[1], job_class, found)
            if run_time_s is not None and run_time_s <= left_s:
                return True
        return False

    def _plan(self, *, more: bool = False) -> Plan:
        waits = tuple(self.waits.values())
        return Plan(starts=tuple(self.starts), waits=waits, again_s=self.again_s, more=more)

    def _start(self, job_class: JobClass, job: int) -> bool:
        """Start the job, or note why its class waits and return False."""
        request = job_class.request
        if self.room is not None and job_class.party is not None:
            limit = self._limit(self.room, job_class)
            if limit is not None:
                return self._wait_for_limit(job_class, job, limit)
        closed = self._barred(job_class)
        key = (request, closed, job_class.walltime_s is None)
        found = self.lacking.get(key) or self._place(job_class, job, closed)
        if isinstance(found, NoFit):
            self.lacking[key] = found
            self._wait(job_class, job, found.reason)
            return False
        if (kept := self._kept_from(job)) and not kept.isdisjoint(s.node for s in found):
            found = place(request, self._free_without(closed | kept), self.chooser.rank(job))
            if isinstance(found, NoFit):
                self.kept_back = True
                self._note(Wait(job_class=job_class, first=job, reason=KEPT))
                return False
        if self.room is not None and job_class.party is not None:
            within = self._within(self.room, job_class, job, found)
            if isinstance(within, AtLimit):
                return self._wait_for_limit(job_class, job, within)
            found = within
        if self.blocked_job is None:
            self._accept(job_class, job, found, "next in order")
            return True
        return self._backfill(job_class, job, found)

    def _limit(
        self, room: LimitRoom, job_class: JobClass, allocation: Allocation | None = None
    ) -> AtLimit | None:
        """Return the limit that keeps a job of a class from starting, anywhere or there."""
        return room.lack(job_class.party, self._counted(job_class, allocation))

    def _within(
        self, room: LimitRoom, job_class: JobClass, job: int, found: Allocation
    ) -> Allocation | AtLimit:
        """Return the allocation, one on GPUs of other types, or the limit that it would break."""
        first = limit = self._limit(room, job_class, found)
        closed = self._closed(job_class, job)
        while limit is not None and first is not None:
            gpu_type = limit.bound.gpu_type
            if not gpu_type:
                return first
            nodes = self.snapshot.nodes.values()
            closed |= frozenset(
                space.name for space in nodes if gpu_type in {gpu.type for gpu in space.all_gpus}
            )
            rank = self.chooser.rank(job)
            placed = place(job_class.request, without(self.free, closed), rank)
            if isinstance(placed, NoFit):
                return first
            found, limit = placed, self._limit(room, job_class, placed)
        return found

    def _counted(
        self, job_class: JobClass, allocation: Allocation | None = None
    ) -> Mapping[str, float]:
        if allocation is None:
            key = (job_class.request, job_class.walltime_s)
            if key not in self.needed:
                self.needed[key] = amounts_needed(*key)
            return self.needed[key]
        return amounts_there(allocation, self.snapshot.nodes, job_class.walltime_s)

    def _wait_for_limit(self, job_class: JobClass, job: int, limit: AtLimit) -> bool:
        """Note that a class waits for a limit: it blocks nobody, and has no reservation."""
        self._note(Wait(job_class=job_class, first=job, reason=limit))
        assert self.room is not None
        assert job_class.party is not None
        frees_s = self.room.frees_s(job_class.party, self._counted(job_class))
        self.again_s = min(filter(None, (self.again_s, frees_s)), default=None)
        return False

    def _barred(self, job_class: JobClass) -> frozenset[Closed]:
        """Return nodes and parts of nodes on which jobs of a class may not start, for windows."""
        walltime_s, windows = job_class.walltime_s, self.snapshot.windows
        if walltime_s not in self.barred:
            self.barred[walltime_s] = barred(windows, self.snapshot.now_s, walltime_s)
        return self.barred[walltime_s]

    def _closed(self, job_class: JobClass, job: int) -> frozenset[Closed]:
        """Return the same, with the nodes that are kept from a job."""
        return self._barred(job_class) | self._kept_from(job)

    def _kept_from(self, job: int) -> frozenset[str]:
        kept = self.snapshot.kept
        return frozenset() if kept is None else kept.from_job(job)

    def _place(
        self, job_class: JobClass, job: int, closed: frozenset[Closed]
    ) -> Allocation | NoFit:
        request, rank = job_class.request, self.chooser.rank(job)
        found = place(request, self._free_without(closed), rank)
        if closed and isinstance(found, NoFit):
            elsewhere = place(request, self.free, rank)
            if not isinstance(elsewhere, NoFit):
                windows, now_s = self.snapshot.windows, self.snapshot.now_s
                mine = [share.node for share in elsewhere]
                return NoFit(reason=window_reason(windows, mine, now_s, job_class.walltime_s))
            return elsewhere  # it says nothing of nodes that are closed to this job alone
        return found

    def _free_without(self, closed: frozenset[Closed]) -> Spaces:
        if not closed:
            return self.free
        if closed not in self.views:
            self.views[closed] = without(self.free, closed)
        return self.views[closed]

    def _backfill(self, job_class: JobClass, job: int, found: Allocation) -> bool:
        assert self.shadow_s is not None
        assert self.blocked_job is not None
        run_time_s = self.chooser.run_time_s(job, job_class, found)
        if run_time_s is not None and self.snapshot.now_s + run_time_s <= self.shadow_s:
            self._accept(
                job_class, job, found, f"ends before job {short_job_id(self.blocked_job)} can start"
            )
            return True
        beside = self._place_beside_reservation(job_class, job)
        if beside is None:
            self.delaying = found
            reason = _would_delay(self.blocked_job, job_class, run_time_s)
            self._note(Wait(job_class=job_class, first=job, reason=reason))
            return False
        if self.room is not None and (limit := self._limit(self.room, job_class, beside)):
            return self._wait_for_limit(job_class, job, limit)
        for share in beside:
            if share.node in self.spare:
                self.spare[share.node] = take(self.spare[share.node], share)
        self._accept(job_class, job, beside, f"does not delay job {short_job_id(self.blocked_job)}")
        return True

    def _place_beside_reservation(self, job_class: JobClass, job: int) -> Allocation | None:
        """Return where a job fits into what is free now and when the reserved job starts."""
        request, closed = job_class.request, self._closed(job_class, job)
        if (request, closed) in self.lacking_beside:
            return None
        if self.beside is None:
            self.beside = self.free.common_with(self.spare)
        found = place(request, without(self.beside, closed), self.chooser.rank(job))
        if isinstance(found, NoFit):
            self.lacking_beside.add((request, closed))
            return None
        return found

    def _accept(self, job_class: JobClass, job: int, allocation: Allocation, why: str) -> None:
        self.free.take(allocation)
        self.views.clear()
        self._follow_beside(allocation)
        self.chooser.started(job, allocation)
        if self.room is not None and job_class.party is not None:
            self.room.take(job_class.party, self._counted(job_class, allocation))
        self.starts.append(Start(job=job, job_class=job_class, allocation=allocation, why=why))

    def _follow_beside(self, allocation: Allocation) -> None:
        """Take in what was taken, once it is taken of what is spare, too."""
        if self.beside is not None:
            for node in (share.node for share in allocation):
                space, spare = self.free[node], self.spare.get(node)
                self.beside.put(space if spare is None else common(space, spare))

    def _wait(self, job_class: JobClass, job: int, reason: Lack | str) -> None:
        if self.blocked_job is not None or not self.reserve:
            self._note(Wait(job_class=job_class, first=job, reason=reason, lacking=True))
            return
        self.blocked_job = job
        self.shadow_s, predicted_s, self.spare = self._reserve(job_class, job)
        self._note(
            Wait(
                job_class=job_class,
                first=job,
                reason=reason,
                predicted_start_s=predicted_s,
                reserved=True,
                reserved_on=tuple(self.spare),
                lacking=True,
            )
        )

    def _note(self, wait: Wait) -> None:
        """Note why a class waits; what was noted of its first job stays."""
        self.waits.setdefault(wait.job_class, wait)

    def _reserve(
        self, job_class: JobClass, job: int
    ) -> tuple[float, float | None, dict[str, FreeNode]]:
        """Return when the job is sure to fit, the same if it can be told to people, what is spare.

        What is spare is said of the reserved nodes only: on all others that is all that is free,
        since until then things are only given back. If the job does not fit even when all has
        ended (its nodes are down), nothing is reserved: the shadow time lies beyond everything.
        """
        now_s = self.snapshot.now_s
        never_s = now_s + UNLIMITED_S
        rank = self.chooser.rank(job)
        fit = earliest(
            WaitingRequest(request=job_class.request, walltime_s=job_class.walltime_s, rank=rank),
            self.free,
            self._in_order_of_ends(),
            self.snapshot.windows,
            (now_s, never_s),
        )
        if fit is None:
            return never_s, None, {}
        shares = with_rests(fit.allocation)
        spare = {share.node: take(fit.later[share.node], share) for share in shares}
        if fit.end_s is None:
            return never_s, None, spare
        return max(fit.end_s, now_s), max(fit.end_s, now_s), spare

    def _in_order_of_ends(self) -> Iterable[RunningJob]:
        """Return what runs and what this plan starts, by planned ends."""
        now_s = self.snapshot.now_s
        started = [
            RunningJob(
                job=start.job,
                allocation=start.allocation,
                started_s=now_s,
                end_s=None if run_time_s is None else now_s + run_time_s,
            )
            for start in self.starts
            for run_time_s in [
                self.chooser.run_time_s(start.job, start.job_class, start.allocation)
            ]
        ]
        running: Iterable[RunningJob] = self.snapshot.running
        if not isinstance(running, ByEnd):
            running = sorted(running, key=end_order)
        if not started:
            return running
        return heapq.merge(running, sorted(started, key=end_order), key=end_order)

"""Themis: finish-time fairness among several training jobs at once.

Each training has a finish-time fairness rho = T_shared / T_alone: the time from its arrival to its
expected end on the GPUs that it would have, over its run time on the whole cluster to itself. GPUs
are lent for a time; what is idle, or was lent long enough ago, is auctioned: again and again the
bidder with the highest rho gets its next number of GPUs (powers of two) that is faster and can be
had. The part of the bidders that is worst off may be served before all others. Deadlines play no
part.

Source: Mahajan et al., "Themis: Fair and Efficient GPU Cluster Scheduling", NSDI 2020. Simplified:
a training is an application with one job, whose speed is known; the auction lifts the worst bidder
instead of maximising the product of all, takes no hidden payments, and counts GPUs wherever they
are; they are joined afterwards. T_alone is taken on the whole cluster, not on an equal part of it.
"""

import heapq
import math
from collections.abc import Sequence
from functools import partial

from msgspec import Struct

from gschedd.allocation.changes import Speeds, carry_out, timeline_for
from gschedd.allocation.running import TrainingJobs, open_gpus_of
from gschedd.plan.forecast import Forecast
from gschedd.plan.snapshot import Plan, Policy, Snapshot
from gschedd.plan.training import TrainingProfile, gpu_count


class Settings(Struct, frozen=True, kw_only=True):
    """What may be chosen.

    Attributes:
        lease_s: for how long GPUs are lent, seconds.
        fairness: f: the part of the bidders that sees no offer before the others have chosen. The
            source takes 0.8 for hundreds of applications; where there are few, that gives all GPUs
            to one, so that here all bid at once.
        auctions_s: how long at least from one auction that only follows the end of a lease to the
            next; ours, so that leases that end one after the other do not cost an auction each.
    """

    lease_s: float = 1200.0
    fairness: float = 0.0
    auctions_s: float = 300.0


def plan(snapshot: Snapshot) -> Plan:
    """Auction what is idle or was lent long enough ago among those that have no lease."""
    return _plan(snapshot, Settings())


def themis(settings: Settings) -> Policy:
    """Return the policy with other settings."""
    return partial(_plan, settings=settings)


def _plan(snapshot: Snapshot, settings: Settings) -> Plan:
    return _Auction(snapshot, settings).plan()


class _Auction:
    """One auction; lives only inside `plan`."""

    def __init__(self, snapshot: Snapshot, settings: Settings) -> None:
        self.snapshot = snapshot
        self.settings = settings
        self.training_jobs = TrainingJobs.of(snapshot)
        self.speeds = Speeds(snapshot)
        self.numbers: dict[int, int] = {}
        self.leased: set[int] = set()
        self.bidders: list[int] = list(self.training_jobs.waiting)
        self.idle = timeline_for(snapshot, self.training_jobs.others).free[0]
        for running in self.training_jobs.fixed.values():
            self.idle -= open_gpus_of(snapshot, running.allocation)
        for job, running in self.training_jobs.movable.items():
            if snapshot.now_s - running.started_s < settings.lease_s:
                self.leased.add(job)
                self.numbers[job] = gpu_count(running.allocation)
                self.idle -= self.numbers[job]
            else:
                self.bidders.append(job)

    def plan(self) -> Plan:
        fairest = {job: self._rho(self.snapshot.profiles[job]) for job in self.bidders}
        self.bidders.sort(key=lambda job: (-fairest[job], job))
        first = math.ceil(len(self.bidders) * (1 - self.settings.fairness))
        self._fill(self.bidders[:first])
        self._fill(self.bidders[first:])
        changes = carry_out(self.snapshot, self.training_jobs, self.numbers, {})
        return Plan(
            starts=changes.starts,
            waits=changes.waits,
            moves=changes.moves,
            verdicts=tuple(
                self._verdict(job, changes.gpus.get(job, 0))
                for job in [*self.training_jobs.movable, *self.training_jobs.waiting]
            ),
            again_s=self._again_s(),
        )

    def _again_s(self) -> float | None:
        """Return when the first lease has ended, on a grid that is the same for all snapshots."""
        step_s = self.settings.auctions_s
        now_s, lease_s = self.snapshot.now_s, self.settings.lease_s
        ends_s = [
            lease_s + (running.started_s if job in self.leased else now_s)
            for job, running in self.training_jobs.movable.items()
        ]
        return math.ceil(min(ends_s) / step_s) * step_s if ends_s else None

    def _rho(self, profile: TrainingProfile, rate: float | None = None) -> float:
        """Return the finish-time fairness at a rate, or at the highest one if none is named."""
        fastest = self.speeds.levels(profile).fastest
        rate = fastest if rate is None else rate
        if not fastest or not rate:
            return math.inf
        shared_s = (
            self.snapshot.now_s - profile.arrived_s + (profile.startup_s + profile.work / rate)
        )
        if not profile.whole_startup_s:
            return shared_s * fastest / profile.total_work
        return shared_s / (profile.whole_startup_s + profile.total_work / fastest)

    def _fill(self, bidders: Sequence[int]) -> None:
        """Lift the bidder that is worst off by a level, as long as anybody can be lifted.

        Of those that have nothing yet the one that stands first goes first.
        """
        profiles = self.snapshot.profiles
        heap = [(-math.inf, place, job, 0) for place, job in enumerate(bidders)]
        while heap and self.idle > 0:
            _, place, job, level = heapq.heappop(heap)
            levels = self.speeds.levels(profiles[job])
            if level == len(levels.gpus):
                continue
            more = levels.gpus[level] - self.numbers.get(job, 0)
            if more <= self.idle:
                self.idle -= more
                self.numbers[job] = levels.gpus[level]
                rho = self._rho(profiles[job], levels.rates[level])
                heapq.heappush(heap, (-rho, place, job, level + 1))

    def _verdict(self, job: int, gpus: int) -> Forecast:
        """Say when a training will be done if it keeps the GPUs that it has.

        While it has none, nothing is known until even the fastest run would end too late.
        """
        profile = self.snapshot.profiles[job]
        end_s = self.speeds.end_s(profile, gpus, self.snapshot.now_s)
        meets = profile.deadline_s is None or (end_s is not None and end_s <= profile.deadline_s)
        unsure_until_s = None if meets or end_s is not None else self._latest_start_s(profile)
        return Forecast(
            job=job,
            meets=meets,
            end_s=end_s,
            gpus=gpus,
            why="" if meets else "fairness does not look at deadlines",
            firm=False,
            unsure_until_s=unsure_until_s,
        )

    def _latest_start_s(self, profile: TrainingProfile) -> float | None:
        """Return until when a waiting training can still be in time; None: it is too late."""
        fastest = self.speeds.levels(profile).fastest
        if profile.deadline_s is None or not fastest:
            return None
        latest_s = profile.deadline_s - profile.startup_s - profile.work / fastest
        return latest_s if latest_s >= self.snapshot.now_s else None

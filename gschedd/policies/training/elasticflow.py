"""ElasticFlow: training jobs are admitted by their deadline, and have as many GPUs as that needs.

A new training is admitted if it and all that were admitted before can be in time, each on its
minimum satisfactory share, in order of their deadlines. GPUs that are idle then go, one level at a
time, to the training that saves most GPU time with each of them. Running training jobs are resized
for that, and moved where places have to be joined.

Source: Gu et al., "ElasticFlow: An Elastic Serverless Training Platform for Distributed Deep
Learning", ASPLOS 2023, from its public description. Ours differs in this: shares are counted over
steps of free GPUs, not over slots of equal length; decisions are made when something happens; a
training that has just been started or resized keeps what it has for one slot, if nobody needs it; a
training that is refused, or is late although it was admitted, may use what nobody else wants.

`plan_in_slots` decides at the end of each slot only, and admits all that arrived in it, or none of
them, as the simulator of the source does.
"""

import heapq
import math
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

from msgspec import structs

from gsched.config.policies import ElasticflowConfig
from gschedd.allocation.changes import Changes, Speeds, carry_out, stays, timeline_for
from gschedd.allocation.running import TrainingJobs, open_gpus_of
from gschedd.allocation.shares import Demand, Shares
from gschedd.plan.forecast import Forecast
from gschedd.plan.snapshot import Plan, Policy, Snapshot, Wait
from gschedd.plan.training import TrainingProfile, gpu_count
from gschedd.plan.words import IN_TIME, Reason

#: No training has less of its work left than this part while it runs.
ALMOST_DONE: Final = 1e-9
#: How often GPUs that found no place, for want of CPUs or of their type, are given away anew.
MAX_REFILLS: Final = 4

SLOT: Final = Reason("decided at the end of the time slot", "end of time slot")
IDLE_GPUS: Final = Reason(
    "its deadline cannot be met; it runs when GPUs are idle", "only idle GPUs"
)


def plan(snapshot: Snapshot) -> Plan:
    """Admit by minimum satisfactory share, and give away what is idle."""
    return _plan(snapshot, ElasticflowConfig())


def plan_in_slots(snapshot: Snapshot) -> Plan:
    """Do the same, but at the end of each slot only, and for all that arrived in it together."""
    return _plan(snapshot, ElasticflowConfig(in_slots=True))


def elasticflow(settings: ElasticflowConfig) -> Policy:
    """Return the policy with other settings."""
    return partial(_plan, settings=settings)


def _plan(snapshot: Snapshot, settings: ElasticflowConfig) -> Plan:
    if settings.in_slots:
        return _plan_in_slots(snapshot, settings)
    return _Round(snapshot, settings).plan()


def _plan_in_slots(snapshot: Snapshot, settings: ElasticflowConfig) -> Plan:
    end_s = math.ceil(snapshot.now_s / settings.slot_s) * settings.slot_s
    if not snapshot.profiles:
        return Plan()
    if end_s == snapshot.now_s:
        return structs.replace(_Round(snapshot, settings).plan(), again_s=end_s + settings.slot_s)
    waits = tuple(
        Wait(job_class=job_class, first=job, reason=SLOT)
        for job, job_class in TrainingJobs.of(snapshot).waiting.items()
    )
    return Plan(waits=waits, again_s=end_s)


class _Round:
    """One decision; lives only inside `plan`."""

    def __init__(self, snapshot: Snapshot, settings: ElasticflowConfig) -> None:
        self.snapshot = snapshot
        self.settings = settings
        self.training_jobs = TrainingJobs.of(snapshot)
        self.speeds = Speeds(snapshot)
        self.refused: list[int] = []
        #: Jobs for which there is no room on more than they have, with the number that had none.
        self.capped: dict[int, int] = {}
        self.shares = self._admit()
        self.numbers = {job: claim.gpus for job, claim in self.shares.claims.items()}
        self.idle = max(self.shares.timeline.free[0], 0)

    def plan(self) -> Plan:
        kept_until_s = self._keep()
        self._share_out()
        changes = self._carry_out()
        for _ in range(MAX_REFILLS):
            if self._give_back(changes):
                self._share_out()
            elif not self._offer_again():
                break
            changes = self._carry_out()
        return Plan(
            starts=changes.starts,
            waits=changes.waits,
            moves=changes.moves,
            verdicts=tuple(self._verdicts(changes)),
            again_s=kept_until_s if self.idle else None,
        )

    def _carry_out(self) -> Changes:
        return carry_out(self.snapshot, self.training_jobs, self.numbers, self._reasons())

    def _give_back(self, changes: Changes) -> bool:
        """Let others have what could not be placed; return whether there is any of it."""
        short = {
            job: changes.gpus.get(job, 0)
            for job in (*self.training_jobs.movable, *self.training_jobs.waiting)
            if changes.gpus.get(job, 0) < self.numbers.get(job, 0)
        }
        for job, gpus in short.items():
            self.capped[job] = self.numbers[job]
            self.idle += self.numbers[job] - gpus
            self.numbers[job] = gpus
        return bool(short)

    def _offer_again(self) -> bool:
        """Give idle GPUs to those that got none while others had numbers that have shrunk since."""
        without = [job for job in self.capped if not self.numbers[job]]
        for job in without:
            if self.capped[job] <= self.idle:
                self.numbers[job] = self.capped[job]
                self.idle -= self.capped[job]
        return any(self.numbers[job] for job in without)

    def _share_out(self) -> None:
        """Give idle GPUs to those that will be in time, and then to the others."""
        self._grow(
            (demand.job, self.shares.claims[demand.job].gpu_s / demand.work)
            for demand in self.shares.demands
            if demand.job in self.shares.claims
        )
        if self.idle:
            self._best_effort()

    def _admit(self) -> Shares:
        """Return the shares of all that were admitted, before and now."""
        profiles, training_jobs = self.snapshot.profiles, self.training_jobs
        timeline = timeline_for(self.snapshot, training_jobs.others)
        admitted: list[int] = []
        new: list[int] = []
        for job, running in training_jobs.fixed.items():
            if running.leaving:
                admitted.append(job)
                continue
            ends_in_s = self.speeds.run_time_s(profiles[job], gpu_count(running.allocation))
            taken = open_gpus_of(self.snapshot, running.allocation)
            timeline.take(taken, until_s=self.snapshot.now_s + ends_in_s)
        admitted += training_jobs.movable
        for job in training_jobs.waiting:
            (new if profiles[job].guaranteed is None else admitted).append(job)
        shares = Shares(timeline, [d for job in admitted if (d := self._demand(profiles[job]))])
        new.sort(key=lambda job: (profiles[job].arrived_s, job))
        asking = [demand for job in new if (demand := self._demand(profiles[job]))]
        if self.settings.in_slots:
            groups = [asking] if asking else []
        else:
            groups = [[demand] for demand in asking]
        for group in groups:
            if not shares.admit(*group):
                self.refused += [demand.job for demand in group]
        return shares

    def _demand(self, profile: TrainingProfile) -> Demand | None:
        if profile.deadline_s is None or profile.guaranteed is False:
            return None
        # what is all but done still holds what it has
        work = max(profile.work, ALMOST_DONE * profile.total_work)
        levels = self.speeds.levels(profile)
        return Demand(
            job=profile.job,
            deadline_s=profile.deadline_s,
            work=work,
            levels=levels,
            startup_s=profile.startup_s,
        )

    def _has(self, job: int) -> int:
        running = self.training_jobs.movable.get(job)
        return gpu_count(running.allocation) if running else 0

    def _keep(self) -> float | None:
        """Let those that were just changed keep what they have, if nobody needs it.

        Returns:
            When the first of them may be changed again, seconds since the epoch; None: there is
            none.
        """
        now_s, slot_s = self.snapshot.now_s, self.settings.slot_s
        kept = [
            job
            for job, running in self.training_jobs.movable.items()
            if job in self.numbers and now_s - running.started_s < slot_s
        ]
        for job in kept:
            more = self._has(job) - self.numbers[job]
            if 0 < more <= self.idle:
                self.numbers[job] += more
                self.idle -= more
        return min(
            (self.training_jobs.movable[job].started_s + slot_s for job in kept), default=None
        )

    def _grow(self, candidates: Iterable[tuple[int, float]]) -> None:
        """Give idle GPUs away, a level at a time, to where each of them saves most GPU time.

        A training whose share takes c GPU seconds for each unit of work saves c times what it gets
        done more, less the GPUs that it has more.

        Args:
            candidates: jobs, and the GPU time that a unit of their work takes.
        """
        heap: list[tuple[float, int, int, float]] = []

        def offer(job: int, cost: float) -> None:
            levels = self.speeds.levels(self.snapshot.profiles[job])
            at = levels.floor(self.numbers.get(job, 0))
            if at < len(levels.gpus):
                before = levels.rates[at - 1] if at else 0.0
                more = levels.gpus[at] - self.numbers.get(job, 0)
                saved = cost * (levels.rates[at] - before) / more
                heapq.heappush(heap, (-saved, job, levels.gpus[at], cost))

        for job, cost in candidates:
            if job not in self.capped:
                offer(job, cost)
        while heap and self.idle:
            _, job, gpus, cost = heapq.heappop(heap)
            more = gpus - self.numbers.get(job, 0)
            if more <= self.idle and self._worth_it(job, gpus):
                self.numbers[job] = gpus
                self.idle -= more
                offer(job, cost)

    def _worth_it(self, job: int, gpus: int) -> bool:
        """Return whether a number, if it is more than a training has, is worth the move to it."""
        running = self.training_jobs.movable.get(job)
        if running is None:
            return job in self.training_jobs.waiting
        has = gpu_count(running.allocation)
        if gpus <= has:
            return True
        if self.snapshot.now_s - running.started_s < self.settings.slot_s:
            return False
        profile = self.snapshot.profiles[job]
        now_s = self.speeds.run_time_s(profile, has)
        return self.speeds.run_time_s(profile, gpus) + profile.move_s < now_s

    def _best_effort(self) -> None:
        """Let those without a guarantee have what is left, the oldest first."""
        profiles = self.snapshot.profiles
        jobs = [*self.training_jobs.movable, *self.training_jobs.waiting]
        rest = [job for job in jobs if job not in self.shares.claims]
        rest.sort(key=lambda job: (job not in self.shares.late, profiles[job].arrived_s, job))
        costs: list[tuple[int, float]] = []
        for job in rest:
            levels = self.speeds.levels(profiles[job])
            if not levels.gpus or job in self.capped:
                continue
            if not self.numbers.get(job) and levels.gpus[0] <= self.idle:
                self.numbers[job] = levels.gpus[0]
                self.idle -= levels.gpus[0]
            if self.numbers.get(job):
                costs.append((job, levels.gpus[0] / levels.rates[0]))
        self._grow(costs)

    def _reasons(self) -> Mapping[int, str]:
        reasons: dict[int, str] = {}
        for job in self.training_jobs.waiting:
            profile = self.snapshot.profiles[job]
            if profile.guaranteed is False or job in self.refused:
                reasons[job] = IDLE_GPUS
            elif job in self.shares.claims:
                reasons[job] = IN_TIME
        return reasons

    def _verdicts(self, changes: Changes) -> Iterable[Forecast]:
        """Say when those with a share will be done at the latest, and who cannot be in time."""
        for job, claim in self.shares.claims.items():
            gpus = changes.gpus.get(job, 0) or claim.level
            yield Forecast(job=job, meets=True, end_s=claim.end_s, gpus=gpus)
        for running in self.training_jobs.fixed.values():
            if running.job not in self.shares.claims:  # it is on its way, with a share to come
                yield stays(self.snapshot, self.speeds, running)
        for job in (*self.training_jobs.movable, *self.training_jobs.waiting):
            if job in self.shares.claims:
                continue
            profile = self.snapshot.profiles[job]
            if profile.deadline_s is None:
                yield Forecast(job=job, meets=True, gpus=changes.gpus.get(job, 0))
                continue
            why = "it or another job would miss its deadline"
            if job in self.shares.late:
                why = "it takes longer than planned"
            yield Forecast(job=job, meets=False, gpus=changes.gpus.get(job, 0), why=why)

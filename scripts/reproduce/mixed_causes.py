"""Why the jobs of others wait beside a flood: what keeps them at each moment, in seconds of wait.

A job waits for regular jobs where it would not fit even without the flood. Else it waits for what
keeps the flood's jobs from giving way: each row lets one more of them give way than the row before.
"""

from collections import defaultdict
from collections.abc import Collection
from typing import Final

from gschedd.core.cycle.look import Look
from gschedd.core.state.records import Job
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State
from gschedd.plan.fit import NoFit, place
from gschedd.plan.snapshot import JobClass
from gschedd.plan.space import Spaces
from gschedd.sim.simulation import Simulation

#: In the order in which they are looked at.
CAUSES: Final = (
    "regular jobs",  # it would not fit without the flood
    "leaving",  # others are giving way for it
    "no rule",  # by no rule enough of the flood's jobs give way, or they are too large
    "immune",  # they gave way before, less than the time ago that they are left alone
    "minimum run",
    "surplus",  # the flood would get below its share, or a reservation is in the way
    "loss budget",
    "cycle",  # nothing keeps it
)


class Causes:
    """Adds up why the jobs of all but one user wait; `see` is to be called before each moment."""

    def __init__(self, simulation: Simulation, flood: str) -> None:
        self.waits_s: defaultdict[str, float] = defaultdict(float)
        self._simulation = simulation
        self._flood = flood

    def see(self, lasts_s: float) -> None:
        """Add what is so until the next moment."""
        head, now_s = self._simulation.head, self._simulation.agenda.now_s
        look: Look | None = None
        for job_class, group in list(head.state.groups.items()):
            for (user, *_), order in group.lanes.items():
                if user == self._flood:
                    continue
                look = look or Look(head.state, head.settings, now_s, head.preemptions.left_s)
                jobs = [head.state.jobs[number] for _, number in order]
                cause = _cause(head.state, head.settings, look, jobs[0], job_class, self._flood)
                self.waits_s[cause] += lasts_s * sum(job.claim is None for job in jobs)
        for job in head.state.claims.values():
            if job.spec.owner.user != self._flood:
                self.waits_s["leaving"] += lasts_s


def _cause(
    state: State, settings: Settings, look: Look, job: Job, job_class: JobClass, flood: str
) -> str:
    floods = {each.id for each in state.running.values() if each.spec.owner.user == flood}
    if not _fits(state, job, floods):
        return "regular jobs"
    if not settings.config.preemption.by:
        return "no rule"
    candidates = look.candidates_for(job)
    if not _fits(state, job, {each.job for each in candidates}):
        return "no rule"
    now = {each.job for each in candidates if each.from_s <= look.now_s}
    if not _fits(state, job, now):
        before = {each.job for each in candidates if state.jobs[each.job].preempted is not None}
        young = {each.job for each in candidates} - before
        return "minimum run" if _fits(state, job, now | young) else "immune"
    found = look.preemption(job, job_class, look.now_s, has_budget=False)
    if found is None:
        return "surplus"
    return "loss budget" if look.loss_by_share(job, found) > look.left_s else "cycle"


def _fits(state: State, job: Job, without: Collection[int]) -> bool:
    """Return whether a job fits if others have left."""
    spaces = Spaces(state.spaces)
    for number in without:
        spaces.give(state.jobs[number].current_attempt.allocation)
    return not isinstance(place(job.spec.request, spaces), NoFit)

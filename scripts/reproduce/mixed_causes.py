"""Why the jobs of others wait beside a flood: what keeps them at each moment, in seconds of wait.

A job waits for regular jobs where it would not fit even without the flood. Else it waits for what
keeps the flood's jobs from giving way: each row lets one more of them give way than the row before.
Jobs are looked at as the head does it, in the order of the queue.
"""

from collections import defaultdict
from collections.abc import Collection
from typing import Final

from msgspec import structs

from gsched.model.states import NodeState
from gschedd.core.cycle.look import Look
from gschedd.core.cycle.preempt import looked_at
from gschedd.core.state.records import Job
from gschedd.core.state.state import State
from gschedd.plan.fit import NoFit, place
from gschedd.plan.snapshot import JobClass
from gschedd.plan.space import Spaces
from gschedd.sim.simulation import Simulation

#: In the order in which they are looked at.
CAUSES: Final = (
    "lost nodes",  # it would not fit without the flood, but with the nodes that are away
    "regular jobs",  # it would not fit without the flood, nor with these nodes
    "leaving",  # others are giving way for it
    "no rule",  # by no rule enough of the flood's jobs give way, or they are too large
    "immune",  # they gave way before, less than the time ago that they are left alone
    "minimum run",
    "surplus",  # the flood would get below its share
    "job ahead",  # what it could get is reserved or kept for a job ahead of it
    "loss budget",
    "next look",  # nothing keeps it
)


class Causes:
    """Adds up why the jobs of all but one user wait; `see` is to be called before each moment."""

    def __init__(self, simulation: Simulation, flood: str) -> None:
        self.waits_s: defaultdict[str, float] = defaultdict(float)
        self._simulation = simulation
        self._flood = flood

    def see(self, lasts_s: float) -> None:
        """Add what is so until the next moment."""
        head, look = self._simulation.head, self._look()
        state = head.state
        found: dict[int, str] = {}
        for job_class, job in looked_at(state, head.waits, look):
            if job.spec.owner.user != self._flood:
                found[job.id] = self._cause(look, job, job_class)
            look.keep(job, head.waits[job_class])
        for job_class, group in list(state.groups.items()):
            wait = head.waits.get(job_class)
            for (user, *_), order in group.lanes.items():
                if user == self._flood:
                    continue
                jobs = [state.jobs[number] for _, number in order]
                cause = found.get(jobs[0].id) or self._cause(look, jobs[0], job_class)
                if wait is not None and not wait.lacking and cause not in CAUSES[:2]:
                    cause = "job ahead"
                self.waits_s[cause] += lasts_s * sum(job.claim is None for job in jobs)
        for job in state.claims.values():
            if job.spec.owner.user != self._flood:
                self.waits_s["leaving"] += lasts_s

    def _look(self) -> Look:
        head = self._simulation.head
        now_s = self._simulation.agenda.now_s
        return Look(head.state, head.settings, now_s, head.preemptions.left_s)

    def _cause(self, look: Look, job: Job, job_class: JobClass) -> str:
        """Return what keeps a job.

        Args:
            look: with what jobs ahead of it have reserved.
        """
        state, now_s = look.state, look.now_s
        running = state.running.values()
        floods = {each.id for each in running if each.spec.owner.user == self._flood}
        if not _fits(state, job, floods):
            lost = {name for name, node in state.nodes.items() if node.state is not NodeState.UP}
            return "lost nodes" if lost and _fits(state, job, floods, lost) else "regular jobs"
        candidates = look.candidates_for(job)
        if not look.rules or not _fits(state, job, {each.job for each in candidates}):
            return "no rule"
        now = {each.job for each in candidates if each.from_s <= now_s}
        if not _fits(state, job, now):
            before = {e.job for e in candidates if state.jobs[e.job].preempted is not None}
            young = {each.job for each in candidates} - before
            return "minimum run" if _fits(state, job, now | young) else "immune"
        found = look.preemption(job, job_class, now_s, has_budget=False)
        if found is None:
            alone = self._look().preemption(job, job_class, now_s, has_budget=False)
            return "surplus" if alone is None else "job ahead"
        return "loss budget" if look.loss_by_share(job, found) > look.left_s else "next look"


def _fits(state: State, job: Job, without: Collection[int], back: Collection[str] = ()) -> bool:
    """Return whether a job fits if others have left, and some nodes are back."""
    spaces = Spaces(
        {
            name: structs.replace(space, open=True) if name in back else space
            for name, space in state.spaces.items()
        }
    )
    for number in without:
        spaces.give(state.jobs[number].current_attempt.allocation)
    return not isinstance(place(job.spec.request, spaces), NoFit)

"""A look at what runs: which jobs give way for a waiting job, by which rule, at what cost."""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Final, NamedTuple

from gsched.config.preemption import PreemptMode
from gsched.config.shares import ROOT
from gsched.model.resources import WHOLE_PERCENT, Allocation, Request, percent_held
from gsched.model.states import AttemptState, JobState
from gschedd.core.attempts.give_way import lost_s, ways_of
from gschedd.core.attempts.running import Running
from gschedd.core.cycle.epoch import share_tree, usage_of
from gschedd.core.cycle.run import limit_room
from gschedd.core.state.priority import Member, member_of
from gschedd.core.state.records import Job
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State
from gschedd.core.training.world_size import takes_gpus
from gschedd.plan.amounts import amounts_there
from gschedd.plan.elastic import at_count
from gschedd.plan.preemption import (
    LEAST_SIZE,
    Preemptible,
    Preemption,
    Surplus,
    choose,
    shrunk,
)
from gschedd.plan.snapshot import JobClass, KeptByJob, Wait
from gschedd.plan.space import Spaces
from gschedd.plan.windows import Closed, barred

#: To take a part of the GPUs of a node all of which jobs could vacate counts as losing the work of
#: all of them for so long, seconds: a later job may need the whole node.
BREAK_S: Final = 600.0
#: So often the time doubles for which a job runs that gave way by ``share``.
MAX_DOUBLED: Final = 20
#: No job gives way by ``share`` that is more than so many times as large as the waiting job.
MOST_FREED: Final = 2.0
#: Ends the words of the rule ``share``.
ABOVE: Final = "above its share"


class Standings(NamedTuple):
    """What users have and are entitled to, as parts of all that there is."""

    held: Mapping[Member, float]
    entitled: Mapping[Member, float]

    def ratio(self, member: Member, more: float = 0.0) -> float:
        """Return what a user has for what it is entitled to, with so much more."""
        has = self.held.get(member, 0.0) + more
        return has / max(self.entitled.get(member, 0.0), LEAST_SIZE)


class Look:
    """One look at what runs; all of it is of one moment."""

    def __init__(self, state: State, settings: Settings, now_s: float, left_s: float) -> None:
        self.left_s = left_s
        self.state = state
        self.settings = settings
        self.now_s = now_s
        self.rules = settings.config.preemption.by
        self._candidates_of: dict[int, list[Preemptible]] = {}
        self._members: dict[int, Member] = {}
        self._candidates: list[tuple[Job, Preemptible]] | None = None
        self._standings: Standings | None = None
        self._whole = _whole(state)
        self._keeps: list[tuple[Job, frozenset[Closed], float]] = []

    def preemption(
        self, job: Job, job_class: JobClass, at_s: float, *, has_budget: bool = True
    ) -> Preemption | None:
        """Return which jobs give way for a job, if it were that time; None: it would not start.

        Args:
            has_budget: by it, no more work is lost for shares than may be.
        """
        state, request = self.state, job_class.request
        candidates = self.candidates_for(job)
        found = [each for each in candidates if each.from_s <= at_s]
        if not found:
            return None
        closed = barred(state.windows(at_s), at_s, job_class.walltime_s)
        closed |= self._kept_from(job, job_class, at_s)
        spaces = Spaces(state.spaces)
        breaks = self._breaks(request, candidates)
        chosen = choose(request, spaces, found, closed, self._surplus(job), breaks)
        if chosen is None or (has_budget and self.loss_by_share(job, chosen) > self.left_s):
            return None
        room = limit_room(state, at_s)
        if room is None:
            return chosen
        counted = amounts_there(chosen.allocation, spaces, job_class.walltime_s)
        return None if room.lack(job_class.party, counted) else chosen

    def keep(self, job: Job, wait: Wait) -> None:
        """Let what a job has reserved be vacated for no job behind it that would still run then.

        It starts there when those jobs have ended that do not give way for it. Jobs that have
        precedence over it are not kept from it.
        """
        if not wait.reserved or wait.first != job.id:
            return
        give_way = {each.job for each in self.candidates_for(job)}
        running = Running(self.state, self.settings, self.now_s)
        ends = (
            math.inf if each.end_s is None else each.end_s
            for node in wait.reserved_on
            for each in running.on(node)
            if each.job not in give_way
        )
        self._keeps.append((job, frozenset(wait.reserved_on), max(ends, default=self.now_s)))

    def _kept_from(self, job: Job, job_class: JobClass, at_s: float) -> frozenset[Closed]:
        """Return what jobs ahead of one have reserved, if it would not end before."""
        end_s = math.inf if job_class.walltime_s is None else at_s + job_class.walltime_s
        kept = (
            nodes
            for ahead, nodes, to_s in self._keeps
            if end_s > to_s and not self.rule(job, ahead)
        )
        return frozenset().union(*kept)

    def nodes_at_last(self, job: Job, job_class: JobClass) -> frozenset[str]:
        """Return the nodes on which a job starts when all may give way that do; empty: nowhere."""
        last_s = max((each.from_s for each in self.candidates_for(job)), default=self.now_s)
        found = self.preemption(job, job_class, max(last_s, self.now_s), has_budget=False)
        return frozenset(share.node for share in found.allocation) if found else frozenset()

    def later(
        self, job: Job, job_class: JobClass, from_s: float
    ) -> tuple[float, Preemption] | None:
        """Return the earliest time at which others may give way, and who; None: never."""
        times = {each.from_s for each in self.candidates_for(job) if each.from_s > self.now_s}
        ascending = sorted({max(from_s, at_s) for at_s in times} | {max(from_s, self.now_s)})
        last = self.preemption(job, job_class, ascending[-1])
        if last is None:
            return None
        at = bisect_left(
            ascending[:-1],
            True,  # noqa: FBT003 # bisect's key
            key=lambda at_s: self.preemption(job, job_class, at_s) is not None,
        )
        at_s = ascending[at]
        return at_s, self.preemption(job, job_class, at_s) or last

    # --- who is more important ---

    def has_precedence(self, waiting: Job) -> bool:
        """Return False if a job surely has precedence over no running job."""
        qos = self.settings.qos.get(waiting.spec.qos)
        if "queue" in self.rules or ("qos" in self.rules and qos is not None and qos.preempts):
            return True
        if "share" not in self.rules:
            return False
        ratio = self.standings.ratio(self._member(waiting), self._size_of(waiting.spec.request))
        return ratio < self._most_ratio

    @cached_property
    def _most_ratio(self) -> float:
        """Return the highest ratio of those that run something; 0 where all are within shares."""
        standings = self.standings
        most = max((standings.ratio(member) for member in standings.held), default=0.0)
        return most if most > 1 + LEAST_SIZE else 0.0

    def rule(self, waiting: Job, running: Job) -> str:
        """Return in words by which rule a running job gives way; empty: it does not.

        The first rule by which either job has precedence decides, and a job never takes the
        resources back from those for which it gave way: else both could go on for ever.
        """
        for rule in self.rules:
            words = _RULES[rule](self, waiting, running)
            if words:
                return "" if self._gave_way(waiting, running) else words
            if _RULES[rule](self, running, waiting):
                return ""
        return ""

    def _gave_way(self, waiting: Job, running: Job) -> bool:
        """Return whether a job gave way for another one, or for one that gave way for it."""
        jobs, seen = self.state.jobs, {0}
        preempted = waiting.preempted
        while preempted is not None and preempted.job_for not in seen:
            if preempted.job_for == running.id:
                return True
            seen.add(preempted.job_for)
            follows = jobs.get(preempted.job_for)
            preempted = follows.preempted if follows is not None else None
        return False

    def loss_by_share(self, job: Job, found: Preemption) -> float:
        """Return the work that is lost for shares, seconds of all nodes."""
        return sum(
            each.loss
            for each in found.victims
            if self.rule(job, self.state.jobs[each.job]).endswith(ABOVE)
        )

    def _by_queue(self, waiting: Job, running: Job) -> str:
        queues, first, second = self.settings.queues, waiting.spec.queue, running.spec.queue
        if first not in queues or second not in queues:
            return ""
        higher = queues[first].priority > queues[second].priority
        return f"queue {first} has a higher priority" if higher else ""

    def _by_qos(self, waiting: Job, running: Job) -> str:
        qos = self.settings.qos.get(waiting.spec.qos)
        preempts = qos is not None and running.spec.qos in qos.preempts
        return f"QOS {waiting.spec.qos} preempts {running.spec.qos}" if preempts else ""

    def _by_share(self, waiting: Job, running: Job) -> str:
        mine, theirs = self._member(waiting), self._member(running)
        have = self.standings.ratio(theirs)
        if mine == theirs or have <= 1 + LEAST_SIZE:
            return ""
        if self.standings.ratio(mine, self._size_of(waiting.spec.request)) >= have:
            return ""
        return f"{mine[1]} is below its share, {theirs[1]} {ABOVE}"

    def _surplus(self, waiting: Job) -> Surplus:
        """Return how much jobs of others may be taken for one so that none gets below its share."""
        if self.rules != ("share",):
            return Surplus({})
        held, entitled = self.standings
        size = self._size_of(waiting.spec.request)
        return Surplus(
            of={str(m): part - entitled.get(m, 0.0) for m, part in held.items()},
            as_one=self.standings.ratio(self._member(waiting), size) <= 1 + LEAST_SIZE,
        )

    def _member(self, job: Job) -> Member:
        if job.id not in self.state.jobs:  # its number may be that of another one soon
            return member_of(job.spec, self.settings.projects)
        if job.id not in self._members:
            self._members[job.id] = member_of(job.spec, self.settings.projects)
        return self._members[job.id]

    @property
    def standings(self) -> Standings:
        """Return what users have and are entitled to now."""
        if self._standings is None:
            self._standings = self._stand()
        return self._standings

    def _stand(self) -> Standings:
        state = self.state
        held: dict[Member, float] = {}
        for job in (*state.running.values(), *state.claims.values()):
            member = self._member(job)
            held[member] = held.get(member, 0.0) + self._size_there(_kept(job))
        demand = dict(held)
        for group in state.groups.values():
            size = self._size_of(group.job_class.request)
            for (user, project, _), order in group.lanes.items():
                member = (project if project in self.settings.projects else ROOT, user)
                demand[member] = demand.get(member, 0.0) + len(order) * size
        loose = [user for project, user in demand if project == ROOT]
        usage = usage_of(state, self.settings, self.now_s)
        entitled = share_tree(self.settings, loose).entitlements(demand, usage)
        return Standings(held, entitled)

    def _size_of(self, request: Request) -> float:
        return self._part(request.cpus, request.memory_bytes, request.gpus)

    def _size_there(self, allocation: Allocation) -> float:
        gpus = percent_held(allocation) / WHOLE_PERCENT
        cpus = sum(share.cpus for share in allocation)
        return self._part(cpus, sum(share.memory_bytes for share in allocation), gpus)

    def _part(self, *amounts: float) -> float:
        """Return the largest part of CPUs, memory or GPUs of all nodes."""
        parts = (part / whole for part, whole in zip(amounts, self._whole, strict=True) if whole)
        return max(parts, default=0.0)

    # --- who may give way ---

    @property
    def candidates(self) -> list[tuple[Job, Preemptible]]:
        """Return all that run and may give way, now or later."""
        if self._candidates is None:
            found = ((job, self._candidate(job)) for job in self.state.running.values())
            self._candidates = [(job, each) for job, each in found if each is not None]
        return self._candidates

    def candidates_for(self, job: Job) -> list[Preemptible]:
        """Return all that give way for a job, now or later."""
        if job.id not in self._candidates_of:
            most = MOST_FREED * self._size_of(job.spec.request) + LEAST_SIZE
            ranked = ((self.rule(job, running), each) for running, each in self.candidates)
            self._candidates_of[job.id] = [
                each
                for words, each in ranked
                if words and (each.size <= most or not words.endswith(ABOVE))
            ]
        return self._candidates_of[job.id]

    def _breaks(self, request: Request, candidates: Iterable[Preemptible]) -> dict[str, float]:
        """Return what it costs to take a part of a node that could be had as a whole, by node."""
        whole = Spaces(self.state.spaces)
        for each in candidates:
            whole.give(each.allocation)
        return {
            space.name: BREAK_S * self._part(0, 0, space.total_gpus)
            for space in whole
            if len(space.gpus) == space.total_gpus > request.gpus > 0
        }

    def _candidate(self, job: Job) -> Preemptible | None:
        attempt = job.current_attempt
        ways = ways_of(job, self.mode(job))
        is_guaranteed = bool(job.guaranteed and job.meets)
        if not ways or is_guaranteed or attempt.state is not AttemptState.RUNNING:
            return None
        if attempt.reservation:
            return None
        started_s = attempt.started_s or attempt.assigned_s
        config = self.settings.config.preemption
        runs_s, again_s = self._min_run_s(job), 0.0
        if job.preempted is not None:
            again_s = job.preempted.at_s + config.again_s
            if job.preempted.why.endswith(ABOVE):  # else a job could be rerun for ever
                doubled = 2.0 ** min(job.preemptions - 1, MAX_DOUBLED)
                runs_s = max(runs_s, config.again_s * doubled)
        size = self._size_there(attempt.allocation)
        losses = tuple(size * lost_s(job, way, self.now_s) for way in ways)
        least: Allocation = ()
        if "shrink" in ways:
            request = job.spec.request
            sizes = [
                places
                for places in range(request.places, request.places_max)
                if takes_gpus(self.state, job, at_count(request, places).gpus)
            ]
            least = shrunk(request, attempt.allocation, Spaces(self.state.spaces), sizes)
        return Preemptible(
            job=job.id,
            request=job.spec.request,
            allocation=attempt.allocation,
            ways=ways,
            losses=losses,
            started_s=started_s,
            least=least,
            owner=str(self._member(job)),
            size=size,
            from_s=max(started_s + runs_s, again_s),
        )

    def mode(self, job: Job) -> PreemptMode:
        """Return the last way in which a job may give way."""
        qos, queue = self.settings.qos.get(job.spec.qos), self.settings.queues.get(job.spec.queue)
        own = (qos.preempt_mode if qos else "") or (queue.preempt_mode if queue else "")
        return own or self.settings.config.preemption.mode

    def _min_run_s(self, job: Job) -> float:
        qos, queue = self.settings.qos.get(job.spec.qos), self.settings.queues.get(job.spec.queue)
        own = (each.preempt_min_run_s for each in (qos, queue) if each is not None)
        return next((s for s in own if s >= 0), self.settings.config.preemption.min_run_s)


class KeptNodes:
    """Nodes on which waiting jobs start when others have left, and from whom they are kept.

    Attributes:
        nodes: of each job for which some are kept.
        until_s: how long they are, seconds since the epoch.
    """

    def __init__(
        self, look: Look, nodes: Mapping[int, frozenset[str]], until_s: Mapping[int, float]
    ) -> None:
        self._look = look
        self.nodes = nodes
        self.until_s = until_s

    def from_job(self, job: int) -> frozenset[str]:
        """Return the nodes on which a job does not start, as it would give way there."""
        found = frozenset[str]()
        for waiting in self._waiting():
            if waiting.id != job and self._look.rule(waiting, self._look.state.jobs[job]):
                found |= self.nodes[waiting.id]
        return found

    def detach(self, jobs: Iterable[Job]) -> KeptByJob:
        """Return what is kept from some waiting jobs, as a value."""
        waiting, found = self._waiting(), dict[int, frozenset[int]]()
        alike: dict[object, frozenset[int]] = {}
        for job in jobs:
            key = (job.spec.queue, job.spec.qos, job.spec.owner.user, job.spec.account)
            rest = [each for each in waiting if each.preempted is not None or key not in alike]
            ranked = frozenset(each.id for each in rest if self._look.rule(each, job))
            if key not in alike:
                alike[key] = ranked.difference(e.id for e in waiting if e.preempted is not None)
            found[job.id] = (alike[key] | ranked) - {job.id}
        return KeptByJob(nodes=self.nodes, until_s=self.until_s, jobs=found)

    def _waiting(self) -> list[Job]:
        """Return the jobs for which nodes are kept, as far as they still wait."""
        known = (self._look.state.jobs.get(number) for number in self.nodes)
        return [
            job
            for job in known
            if job is not None and job.state is JobState.QUEUED and not job.claim
        ]


_RULES: Final[Mapping[str, Callable[[Look, Job, Job], str]]] = {
    "queue": Look._by_queue,  # noqa: SLF001 # its own
    "qos": Look._by_qos,  # noqa: SLF001 # its own
    "share": Look._by_share,  # noqa: SLF001 # its own
}


def _kept(job: Job) -> Allocation:
    """Return what a job has, or will have when it has migrated; nothing of one that is ending."""
    if job.claim is not None:
        return job.claim.allocation
    if job.move is not None:
        return job.move.allocation
    return job.current_attempt.allocation if job.state is JobState.RUNNING else ()


def _whole(state: State) -> tuple[int, int, int]:
    """Return the CPUs, memory and GPUs of all nodes that take jobs."""
    nodes = [space for space in state.spaces.values() if space.open]
    return (
        sum(each.total_cpus for each in nodes),
        sum(each.total_memory_bytes for each in nodes),
        sum(each.total_gpus for each in nodes),
    )

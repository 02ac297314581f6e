"""Pre-emption in a cycle: for which waiting jobs running jobs give way, who does, and when.

Jobs are looked at in the order of the queue. A job that is not chosen here has no claim on what
others hold. With one, the allocation is kept for it until the others have left it, and it starts as
soon as all of that is free.
"""

import heapq
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from msgspec import structs

from gsched.config.preemption import PreemptMode
from gsched.config.shares import ROOT
from gsched.model.ids import short_job_id
from gsched.model.resources import WHOLE_PERCENT, Allocation, Request, percent_held
from gsched.model.states import AttemptState, JobState
from gschedd.core.attempts.assign import Assigner
from gschedd.core.attempts.give_way import GiveWay, give_way, lost_s, ways_of
from gschedd.core.attempts.running import Running
from gschedd.core.cycle.epoch import share_tree, usage_of
from gschedd.core.cycle.run import limit_room
from gschedd.core.state import facts as f
from gschedd.core.state.ledger import owned_space
from gschedd.core.state.priority import Member, member_of
from gschedd.core.state.records import Job
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State
from gschedd.core.training.world_size import takes_gpus
from gschedd.plan.amounts import amounts_there
from gschedd.plan.elastic import at_count
from gschedd.plan.limits import AtLimit
from gschedd.plan.moments import moment
from gschedd.plan.preemption import (
    LEAST_SIZE,
    Preemptible,
    Preemption,
    Surplus,
    choose,
    shrunk,
)
from gschedd.plan.snapshot import JobClass, Wait
from gschedd.plan.space import Spaces
from gschedd.plan.validate import covers
from gschedd.plan.windows import Closed, barred, without

#: So many waiting jobs are looked at: the first of the order.
LOOKED_AT: Final = 16
#: Jobs that are named of those that give way.
MAX_NAMED: Final = 8
#: Of so many of them it is worked out when others will give way.
PREDICTED: Final = 4
#: The least time between two looks, seconds.
LEAST_S: Final = 1.0
#: Beyond the time that a job has to save its state and to end, seconds.
MARGIN_S: Final = 60.0
HOUR_S: Final = 3600.0
DAY_S: Final = 86400.0
#: To take a part of the GPUs of a node all of which jobs could vacate counts as losing the work of
#: all of them for so long, seconds: a later job may need the whole node.
BREAK_S: Final = 600.0
#: So often the time doubles for which a job runs that gave way by ``share``.
MAX_DOUBLED: Final = 20
#: No job gives way by ``share`` that is more than so many times as large as the waiting job.
MOST_FREED: Final = 2.0
#: Ends the words of the rule ``share``.
ABOVE: Final = "above its share"
#: How long a job whose claim has come to nothing pre-empts nobody, seconds; twice as long after
#: each further one.
FIRST_PAUSE_S: Final = 60.0
LAST_PAUSE_S: Final = 3600.0


class Standings(NamedTuple):
    """What users have and are entitled to, as parts of all that there is."""

    held: Mapping[Member, float]
    entitled: Mapping[Member, float]

    def ratio(self, member: Member, more: float = 0.0) -> float:
        """Return what a user has for what it is entitled to, with so much more."""
        has = self.held.get(member, 0.0) + more
        return has / max(self.entitled.get(member, 0.0), LEAST_SIZE)


class LossBudget:
    """How much work may be lost for shares: a part of the time of all nodes.

    It is saved for a day; a head that has just started has that of an hour.
    """

    def __init__(self) -> None:
        self._since_s: float | None = None  # what has come since then is left

    def left_s(self, max_loss: float, now_s: float) -> float:
        """Return what is left, seconds of all nodes."""
        since_s = now_s - HOUR_S if self._since_s is None else self._since_s
        self._since_s = min(max(since_s, now_s - DAY_S), now_s)
        return max_loss * (now_s - self._since_s)

    def take(self, max_loss: float, loss_s: float) -> None:
        """Note that so much work of what is left is lost."""
        if self._since_s is not None and max_loss:
            self._since_s += loss_s / max_loss


class Preemptions:
    """Which jobs are preempted next; what it remembers may be lost.

    Attributes:
        due_s: when to look although nothing has changed, seconds since the epoch; None: never.
    """

    def __init__(self) -> None:
        self.due_s: float | None = None
        self._looked_s = 0.0
        self._budget = LossBudget()
        self._pauses: dict[int, tuple[float, int]] = {}

    def note(self, fact: f.AnyFact) -> None:
        """Let a job whose claim has come to nothing wait before it preempts others again."""
        if isinstance(fact, f.ClaimEnded):
            _, failures = self._pauses.get(fact.job, (0.0, 0))
            pause_s = min(LAST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures, 10))
            self._pauses[fact.job] = (fact.at_s + pause_s, failures + 1)
        elif isinstance(fact, f.AttemptAssigned | f.JobEnded):
            self._pauses.pop(fact.job, None)

    def next_due_s(self, state: State) -> float | None:
        """Return when to look next, or to give up a claim."""
        ends = (job.claim.until_s for job in state.claims.values() if job.claim is not None)
        found = [*ends, *([self.due_s] if self.due_s is not None else [])]
        return min(found, default=None)

    def take_due(self, now_s: float) -> bool:
        """Return whether to look now, although nothing has changed; True once."""
        if self.due_s is None or self.due_s > now_s:
            return False
        self.due_s = None
        return True

    def found(
        self, state: State, settings: Settings, waits: dict[JobClass, Wait], now_s: float
    ) -> Iterator[list[f.AnyFact]]:
        """Yield each preemption, if it is time to look; it is to be applied before the next one."""
        if self._is_due(settings, now_s):
            while facts := self._next(state, settings, waits, now_s):
                yield facts

    def _is_due(self, settings: Settings, now_s: float) -> bool:
        """Return whether to look now; else it is due when the least time has passed."""
        if not settings.config.preemption.by:
            self.due_s = None
            return False
        if now_s < self._looked_s + LEAST_S:
            self.due_s = self._looked_s + LEAST_S
            return False
        self._looked_s, self.due_s = now_s, None
        return True

    def _next(
        self, state: State, settings: Settings, waits: dict[JobClass, Wait], now_s: float
    ) -> list[f.AnyFact]:
        """Return the next preemption; empty: there is none, and ``waits`` tell of those to come."""
        max_loss = settings.config.preemption.max_loss
        left_s = self._budget.left_s(max_loss, now_s)
        look = _Look(state, settings, now_s, left_s)
        for at, (job_class, job) in enumerate(_waiting(state, waits)):
            from_s = max(
                job.eligible_s + settings.config.preemption.wait_s,
                self._pauses.get(job.id, (0.0, 0))[0],
            )
            found = look.preemption(job, job_class, now_s) if from_s <= now_s else None
            if found is not None:
                self._budget.take(max_loss, look.loss_by_share(job, found))
                return list(_facts(state, settings, job, found, look, now_s))
            if at < PREDICTED:
                self._predict(look, job, job_class, from_s, waits)
            look.keep(job, waits[job_class])
        return []

    def _predict(
        self,
        look: "_Look",
        job: Job,
        job_class: JobClass,
        from_s: float,
        waits: dict[JobClass, Wait],
    ) -> None:
        """Note when others will give way for a job, if they go on as they are."""
        later, wait = look.later(job, job_class, from_s), waits[job_class]
        if wait.first == job.id:
            wait = structs.replace(wait, gives_way="")
        if later is not None:
            at_s, found = later
            names = ", ".join(short_job_id(each.job) for each in found.victims[:MAX_NAMED])
            jobs = f"job{'s' * (len(found.victims) > 1)} {names}"
            soon_s = min(at_s, wait.predicted_start_s or at_s)
            verb = "give" if len(found.victims) > 1 else "gives"
            if wait.first == job.id:
                words = f"{jobs} {verb} way at {moment(at_s)}"
                wait = structs.replace(wait, gives_way=words, predicted_start_s=soon_s)
            self.due_s = min(at_s, self.due_s or at_s)
        waits[job_class] = wait


def _waiting(state: State, waits: Mapping[JobClass, Wait]) -> list[tuple[JobClass, Job]]:
    """Return the first jobs of the order that lack room, each the first of its class and lane."""
    found = []
    for job_class, wait in waits.items():
        group = state.groups.get(job_class)
        if group is None or not wait.lacking or isinstance(wait.reason, AtLimit):
            continue
        if job_class.training or job_class.reservation or job_class.request.gpu_share is not None:
            continue
        found += [(key, job_class) for key in state.fronts(group, LOOKED_AT)]
    first = heapq.nsmallest(LOOKED_AT, found, key=lambda each: each[0])
    return [(job_class, state.jobs[key[1]]) for key, job_class in first]


class _Look:
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
        self._kept_nodes: frozenset[Closed] = frozenset()
        self._kept_until_s = math.inf

    def preemption(self, job: Job, job_class: JobClass, at_s: float) -> Preemption | None:
        """Return which jobs give way for a job, if it were that time; None: it would not start."""
        state, request = self.state, job_class.request
        candidates = self._candidates_for(job)
        found = [each for each in candidates if each.from_s <= at_s]
        if not found:
            return None
        closed = barred(state.windows(at_s), at_s, job_class.walltime_s)
        if job_class.walltime_s is None or at_s + job_class.walltime_s > self._kept_until_s:
            closed |= self._kept_nodes
        spaces = Spaces(state.spaces)
        breaks = self._breaks(request, candidates)
        chosen = choose(request, spaces, found, closed, self._surplus(), breaks)
        room = limit_room(state, at_s)
        if chosen is None or self.loss_by_share(job, chosen) > self.left_s:
            return None
        if room is None:
            return chosen
        counted = amounts_there(chosen.allocation, spaces, job_class.walltime_s)
        return None if room.lack(job_class.party, counted) else chosen

    def keep(self, job: Job, wait: Wait) -> None:
        """Let what a job has reserved be vacated for no job behind it that would still run then.

        It starts there when those jobs have ended that do not give way for it.
        """
        if not wait.reserved or wait.first != job.id:
            return
        give_way = {each.job for each in self._candidates_for(job)}
        running = Running(self.state, self.settings, self.now_s)
        ends = (
            math.inf if each.end_s is None else each.end_s
            for node in wait.reserved_on
            for each in running.on(node)
            if each.job not in give_way
        )
        self._kept_nodes = frozenset(wait.reserved_on)
        self._kept_until_s = max(ends, default=self.now_s)

    def later(
        self, job: Job, job_class: JobClass, from_s: float
    ) -> tuple[float, Preemption] | None:
        """Return the earliest time at which others may give way, and who; None: never."""
        times = {each.from_s for each in self._candidates_for(job) if each.from_s > self.now_s}
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

    def _surplus(self) -> Surplus:
        """Return how much jobs of others may be taken so that none gets below its share."""
        if self.rules != ("share",):
            return Surplus({})
        held, entitled = self.standings
        return Surplus({str(m): part - entitled.get(m, 0.0) for m, part in held.items()})

    def _member(self, job: Job) -> Member:
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

    def _candidates_for(self, job: Job) -> list[Preemptible]:
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
            if job.preempted.behind:  # else a job could be rerun for ever
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


_RULES: Final[Mapping[str, Callable[[_Look, Job, Job], str]]] = {
    "queue": _Look._by_queue,  # noqa: SLF001 # its own
    "qos": _Look._by_qos,  # noqa: SLF001 # its own
    "share": _Look._by_share,  # noqa: SLF001 # its own
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


def _facts(
    state: State, settings: Settings, job: Job, found: Preemption, look: _Look, now_s: float
) -> Iterator[f.AnyFact]:
    """Yield that jobs give way, and that what they leave is kept for a job."""
    longest_s = 0.0
    for victim in found.victims:
        running = state.jobs[victim.job]
        rule = look.rule(job, running)
        why = f"for job {short_job_id(job.id)} of {job.spec.owner.user}: {rule}"
        saves = victim.way in {"shrink", "migrate", "checkpoint"}
        order = GiveWay(
            way=victim.way,
            why=why,
            allocation=victim.allocation,
            job_for=job.id,
            or_requeue=saves and "requeue" in ways_of(running, look.mode(running)),
            behind=state.next_job if rule.endswith(ABOVE) else 0,
        )
        yield from give_way(state, settings, running, order, now_s)
        moves = settings.config.moves
        wait_s = running.spec.grace_s
        if saves:
            wait_s += moves.checkpoint_timeout_s + moves.prepare_timeout_s
        longest_s = max(longest_s, wait_s)
    yield f.RoomClaimed(
        at_s=now_s,
        job=job.id,
        allocation=found.allocation,
        jobs=tuple(victim.job for victim in found.victims),
        until_s=now_s + longest_s + MARGIN_S,
    )


def overdue_claims(state: State, now_s: float) -> list[f.ClaimEnded]:
    """Return that jobs wait again for which others have not given way in time."""
    reason = "not all jobs have given way in time"
    return [
        f.ClaimEnded(at_s=now_s, job=job.id, reason=reason)
        for job in state.claims.values()
        if job.claim is not None and job.claim.until_s <= now_s
    ]


def claimed_starts(
    state: State, settings: Settings, assigner: Assigner, now_s: float
) -> Iterator[f.AttemptAssigned | f.ClaimEnded]:
    """Yield the starts of jobs whose allocations others have left; claims that have ended, too."""
    for job in state.claims.values():
        claim, queue = job.claim, settings.queues.get(job.spec.queue)
        assert claim is not None, "it has one"
        nodes = {share.node for share in claim.allocation} & state.nodes.keys()
        owned = Spaces({name: owned_space(state, state.nodes[name]) for name in nodes})
        left = without(owned, barred(state.windows(now_s), now_s, job.spec.walltime_s))
        request, reason = job.spec.request, ""
        if queue is None or not queue.started or not settings.scheduling:
            reason = "its queue is stopped"
        elif not covers(request, claim.allocation, left):
            names = ", ".join(map(short_job_id, claim.jobs[:MAX_NAMED]))
            why = f"job{'s' * (len(claim.jobs) > 1)} {names} gave way"
            yield assigner.assign(job, claim.allocation, why)
        elif not covers(request, claim.allocation, owned):
            reason = "a window begins there"
        if reason:
            yield f.ClaimEnded(at_s=now_s, job=job.id, reason=reason)

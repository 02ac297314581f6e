"""Pre-emption in a cycle: for which waiting jobs running jobs give way, who does, and when.

Jobs are looked at in the order of the queue. A job that is not chosen here has no claim on what
others hold. With one, the allocation is kept for it until the others have left it, and it starts as
soon as all of that is free.
"""

import heapq
from collections.abc import Iterator, Mapping
from itertools import islice
from operator import itemgetter
from typing import Final

from msgspec import structs

from gsched.model.ids import short_job_id
from gschedd.core.attempts.assign import Assigner
from gschedd.core.attempts.give_way import GiveWay, give_way, ways_of
from gschedd.core.cycle.look import ABOVE, KeptNodes, Look
from gschedd.core.state import facts as f
from gschedd.core.state.ledger import owned_space
from gschedd.core.state.records import Job
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State
from gschedd.plan.limits import AtLimit
from gschedd.plan.moments import moment
from gschedd.plan.preemption import (
    Preemption,
)
from gschedd.plan.snapshot import JobClass, Wait
from gschedd.plan.space import FreeNode, Spaces, take
from gschedd.plan.validate import covers
from gschedd.plan.windows import barred, without

#: So many waiting jobs are looked at: the first of the order.
LOOKED_AT: Final = 16
#: Of so many it is found out whether they have precedence over any running job.
WALKED: Final = 1024
#: Jobs that are named of those that give way.
MAX_NAMED: Final = 8
#: Of so many of them it is worked out when others will give way.
PREDICTED: Final = 4
#: The least time between two looks, seconds.
LEAST_S: Final = 1.0
#: Beyond the time that a job has to save its state and to end, seconds.
MARGIN_S: Final = 60.0
#: For so long nodes are kept for a waiting job from those that it could preempt there, seconds.
KEPT_S: Final = 1800.0
HOUR_S: Final = 3600.0
DAY_S: Final = 86400.0
#: How long a job whose claim has come to nothing pre-empts nobody, seconds; twice as long after
#: each further one.
FIRST_PAUSE_S: Final = 60.0
LAST_PAUSE_S: Final = 3600.0


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
        left_s: how much work may be lost for shares, as of the last look, seconds of all nodes.
        plan_first: the last look ended with the job that held the reservation: jobs have to be
            planned before the next one, as those behind must heed who holds it then.
    """

    #: The facts that `note` takes in.
    NOTED: Final = frozenset({f.ClaimEnded, f.AttemptAssigned, f.JobEnded})

    def __init__(self) -> None:
        self.due_s: float | None = None
        self.left_s = 0.0
        self.plan_first = False
        self._looked_s = 0.0
        self._budget = LossBudget()
        self._pauses: dict[int, tuple[float, int]] = {}
        self._kept: dict[int, tuple[float, frozenset[str]]] = {}

    def note(self, fact: f.AnyFact) -> None:
        """Let a job whose claim has come to nothing wait before it preempts others again."""
        if isinstance(fact, f.ClaimEnded):
            _, failures = self._pauses.get(fact.job, (0.0, 0))
            pause_s = min(LAST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures, 10))
            self._pauses[fact.job] = (fact.at_s + pause_s, failures + 1)
        elif isinstance(fact, f.AttemptAssigned | f.JobEnded):
            self._pauses.pop(fact.job, None)
            self._kept.pop(fact.job, None)

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
        self.plan_first = False
        if self._is_due(settings, now_s):
            while not self.plan_first and (facts := self._next(state, settings, waits, now_s)):
                yield facts
            if self.plan_first:
                self._looked_s = 0.0
                state.dirty.mark_all()
        elif not settings.config.preemption.by:
            state.volatile.kept = None

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
        self.left_s = self._budget.left_s(max_loss, now_s)
        look = Look(state, settings, now_s, self.left_s)
        kept: dict[int, frozenset[str]] = {}
        for at, (job_class, job) in enumerate(looked_at(state, waits, look)):
            from_s = max(
                job.eligible_s + settings.config.preemption.wait_s,
                self._pauses.get(job.id, (0.0, 0))[0],
            )
            found = look.preemption(job, job_class, now_s) if from_s <= now_s else None
            if found is not None:
                self._budget.take(max_loss, look.loss_by_share(job, found))
                self.plan_first = waits[job_class].reserved and waits[job_class].first == job.id
                return list(_facts(state, settings, job, found, look, now_s))
            if at < PREDICTED:
                self._predict(look, job, job_class, from_s, waits)
            look.keep(job, waits[job_class])
            if nodes := self._keeps(look, job, waits[job_class]):
                kept[job.id] = nodes
        before = state.volatile.kept
        until_s = {job: self._kept[job][0] + KEPT_S for job in kept}
        state.volatile.kept = KeptNodes(look, kept, until_s) if kept else None
        if kept != ({} if before is None else before.nodes):
            state.dirty.mark_all()
        return []

    def _keeps(self, look: Look, job: Job, wait: Wait) -> frozenset[str]:
        """Return the nodes that are kept for a job from those that it could preempt there.

        They are kept for a limited time: jobs that it cannot preempt yet may run for long.
        """
        if not look.candidates_for(job):
            return frozenset()
        since_s, nodes = self._kept.get(job.id, (look.now_s, frozenset()))
        ends_s = since_s + KEPT_S
        if look.now_s >= ends_s:
            return frozenset()
        found = look.nodes_at_last(job, wait.job_class)
        if not found and wait.reserved and wait.first == job.id:
            nodes = frozenset(wait.reserved_on)
        elif found:
            nodes = nodes or found
        self._kept[job.id] = (since_s, nodes)
        self.due_s = min(ends_s, self.due_s or ends_s)
        return nodes

    def _predict(
        self,
        look: Look,
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


def looked_at(
    state: State, waits: Mapping[JobClass, Wait], look: Look
) -> Iterator[tuple[JobClass, Job]]:
    """Yield the first jobs of the order that lack room, each the first of its class and lane.

    Those that have no precedence over anybody are passed over, but for what they have reserved.
    """
    fronts = []
    for job_class, wait in waits.items():
        group = state.groups.get(job_class)
        if group is None or not wait.lacking or isinstance(wait.reason, AtLimit):
            continue
        if job_class.training or job_class.reservation or job_class.request.gpu_share is not None:
            continue
        fronts.append([(key, job_class) for key in state.fronts(group, WALKED)])
    found = 0
    for key, job_class in islice(heapq.merge(*fronts, key=itemgetter(0)), WALKED):
        job = state.jobs[key[1]]
        if look.has_precedence(job):
            found += 1
            yield job_class, job
        else:
            look.keep(job, waits[job_class])
        if found == LOOKED_AT:
            break


def _facts(
    state: State, settings: Settings, job: Job, found: Preemption, look: Look, now_s: float
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
            behind=state.next_job if rule.endswith(ABOVE) or settings.orders_by_terms else 0,
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
    spaces: dict[str, FreeNode] = {}  # what these starts leave
    for job in state.claims.values():
        claim, queue = job.claim, settings.queues.get(job.spec.queue)
        assert claim is not None, "it has one"
        nodes = {share.node for share in claim.allocation} & state.nodes.keys()
        spaces |= {n: owned_space(state, state.nodes[n]) for n in nodes - spaces.keys()}
        owned = Spaces({name: spaces[name] for name in nodes})
        left = without(owned, barred(state.windows(now_s), now_s, job.spec.walltime_s))
        request, reason = job.spec.request, ""
        if queue is None or not queue.started or not settings.scheduling:
            reason = "its queue is stopped"
        elif not covers(request, claim.allocation, left):
            names = ", ".join(map(short_job_id, claim.jobs[:MAX_NAMED]))
            why = f"job{'s' * (len(claim.jobs) > 1)} {names} gave way"
            yield assigner.assign(job, claim.allocation, why)
            spaces |= {each.node: take(spaces[each.node], each) for each in claim.allocation}
        elif not covers(request, claim.allocation, owned):
            reason = "a window begins there"
        if reason:
            yield f.ClaimEnded(at_s=now_s, job=job.id, reason=reason)

"""The order of waiting jobs by priority terms, where ``[priority]`` is in force. Pure.

The priority of a job is the sum of its terms, each by its weight. Jobs of one class, user, project
and QOS have the same terms but for age and their own priority, so such a lane keeps the order of
their own priority and submission, and lanes are compared by the priority of their first jobs.

Terms that change with time, fair share and age, are those of the last time they were computed: in
between the order is fixed, so that predicted starts are those of the order in force.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from gsched.config.shares import ROOT, PriorityConfig
from gsched.model.job import JobSpec
from gsched.model.priorities import PriorityTerms
from gsched.model.resources import Inventory, Request
from gschedd.core.state.records import Job
from gschedd.core.state.settings import Settings
from gschedd.plan.snapshot import OrderKey

#: Steps of an order key in a priority of 1.
_STEPS: Final = 100
#: What a step is in the first number of an order key; numbers of jobs are below it.
_BASE: Final = 2**36
#: Priorities beyond it count as this: order keys are numbers of 64 bits.
PRIORITY_MAX: Final = 1_300_000.0

#: A project, or the root, and a user of it.
Member = tuple[str, str]


class Priorities:
    """The priorities of jobs as they were computed last.

    Args:
        settings: the weights, and the priorities of queues and QOS.
        factors: the fair shares of users, 0 to 1; of whom nothing is known it is 1.
        nodes: what the nodes have, for the size.
        at_s: when, seconds since the epoch.
    """

    def __init__(
        self,
        settings: Settings,
        factors: Mapping[Member, float],
        nodes: Sequence[Inventory],
        at_s: float,
    ) -> None:
        self.weights: PriorityConfig = settings.config.priority
        self.factors = factors
        self.at_s = at_s
        self._key_of: Callable[[OrderKey], OrderKey] | None = None
        self._queues = {name: queue.priority for name, queue in settings.queues.items()}
        self._qos = {name: qos.priority for name, qos in settings.qos.items()}
        self._projects = settings.projects.keys()
        self.whole = (
            sum(each.cpus for each in nodes),
            sum(each.memory_bytes for each in nodes),
            sum(len(each.gpus) for each in nodes),
        )

    def factor(self, job: Job) -> float:
        """Return the fair share of the user of a job in its project."""
        return self.factors.get(member_of(job.spec, self._projects), 1.0)

    def terms(self, job: Job) -> PriorityTerms:
        """Return what the priority of a job is the sum of."""
        terms = self._terms(job)
        return PriorityTerms(
            priority=sum(terms),
            factor=self.factor(job),
            **dict(zip(("fair_share", "age", "size", "queue", "qos", "own"), terms, strict=True)),
        )

    def _terms(self, job: Job) -> tuple[float, ...]:
        spec, weights = job.spec, self.weights
        waits_s = max(0.0, self.at_s - job.eligible_s) if weights.age else 0.0
        return (
            weights.fair_share * self.factor(job),
            weights.age * min(1.0, waits_s / weights.max_age_s),
            weights.size * self._size(spec.request) if weights.size else 0.0,
            weights.queue * self._queues.get(spec.queue, 0),
            weights.qos * self._qos.get(spec.qos, 0),
            weights.own * spec.priority,
        )

    def keys_of(self, jobs: Mapping[int, Job]) -> Callable[[OrderKey], OrderKey]:
        """Return what gives the order keys of jobs by their places; always the same function."""
        if self._key_of is None:
            self._key_of = lambda place: self.key(jobs[place[1]])
        return self._key_of

    def key(self, job: Job) -> OrderKey:
        """Return by what waiting jobs are ordered: priority, submission, id."""
        priority = min(max(sum(self._terms(job)), -PRIORITY_MAX), PRIORITY_MAX)
        return (job.order_number - round(priority * _STEPS) * _BASE, job.id)

    def is_same_order(self, other: "Priorities") -> bool:
        """Return whether jobs have the same order as with other ones; never so with age."""
        return not self.weights.age and ((self.factors, self.whole) == (other.factors, other.whole))

    def _size(self, request: Request) -> float:
        wanted = (request.cpus, request.memory_bytes, request.gpus)
        parts = (part / whole for part, whole in zip(wanted, self.whole, strict=True) if whole)
        return min(1.0, max(parts, default=0.0))


def member_of(spec: JobSpec, projects: Collection[str]) -> Member:
    """Return whose usage and shares count for a job: its user in its project, or at the root."""
    return (spec.account if spec.account in projects else ROOT, spec.owner.user)

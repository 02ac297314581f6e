"""The head's state: what is durable, what follows from it, and what is neither."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from msgspec import structs

from gsched.config.nodes import SharingRules
from gsched.model.ids import ELEMENT_BASE
from gsched.model.job import JobSpec
from gsched.model.reservation import Reservation
from gsched.model.resources import Allocation, Gpu, Request, Share
from gsched.model.states import JobState, PowerState
from gsched.model.window import NodeWindow
from gschedd.core.state.keys import ClientKeys
from gschedd.core.state.priority import Priorities
from gschedd.core.state.records import ArrayIndex, Attempt, Job, Node, Reached
from gschedd.core.state.transient import (
    NO_LANE,
    Caches,
    Dirty,
    Lane,
    Unstored,
    Volatile,
    WaitingGroup,
)
from gschedd.core.state.windowed import WindowedNodes
from gschedd.models.adaptive import GoodputKnowledge
from gschedd.models.startup import Startups
from gschedd.models.steptimes import StepTimes
from gschedd.plan.limits import NO_LIMITS, LimitBook, LimitRules, Party
from gschedd.plan.rests import with_rests
from gschedd.plan.sharing import DEFAULT_RULES
from gschedd.plan.snapshot import JobClass, OrderKey
from gschedd.plan.space import SortedSpaces
from gschedd.shares.ledger import UsageLedger

#: Windows of a recurring reservation that plans see: of those that follow they know nothing yet.
PLANNED_WINDOWS: Final = 3


def party_of(spec: JobSpec) -> Party:
    """Return whose limits a job is subject to."""
    return Party(spec.queue, spec.owner.user, spec.account, spec.qos)


class State:
    """All that the head knows of what is not over, in three parts.

    The **durable** part is what facts have made of it. `gschedd.core.apply` alone writes it, the
    database holds it, and a head that starts reads it back. **Indices** follow from it and are kept
    in step by `gschedd.core.state.indexing` and `gschedd.core.state.ledger`; the simulator checks
    at each step that they say what the jobs say. What is **transient** has a class of its own each,
    in `gschedd.core.state.transient`.

    Attributes:
        queue_priorities: added to a job's own, by queue. Configuration.
        plans_training: the policy plans training jobs one by one, by their deadlines.
            Configuration.
        plans_adaptive: it chooses batch sizes of adaptive training jobs, too. Configuration.
        sharing: how jobs share GPUs. Configuration.
        defers_predictions: those of attempts are worked out when they are read, as none is stored.
            Configuration.
        priorities: by priority terms; None: jobs are ordered by their own priority with the
            queue's, then by submission.
        epoch_id: of the start of the head that works on this state; the shell sets it.

        jobs: jobs that are not done, by id.
        nodes: by name.
        keys: of clients, so that a retried submission finds its job.
        next_job: the id the next job gets.
        damaged: jobs whose records could not be read when the head started, with the attempt that
            may run on each node. What nodes run of them is left alone.
        damaged_nodes: nodes whose records could not be read, until they register.
        reached: how far the training jobs that run have said to be. Nodes say it again.
        startups: how long training jobs have taken until their first steps.
        move_costs: how long moves have kept training jobs from working.
        step_times: how long steps of training jobs have taken where.
        goodputs: what is known of the goodput of adaptive training jobs.
        usage: what users have used for projects. What runs is an index of it.
        reservations: of nodes and GPUs for users and projects, by name.

        spaces: an index, as all below: free resources of each node.
        counts: how many jobs there are, by queue and state.
        groups: waiting jobs by class.
        classes_of: classes of ``groups`` by their request.
        apart: unfinished jobs that are in no group: they run, are held or delayed, or are arrays.
        delayed: jobs in state waiting, sorted by (time, job).
        running: jobs with an attempt that is not over.
        by_node: the same by node.
        targets: jobs that move, until they are where they go to.
        targets_on: the same by the nodes that they go to.
        claims: waiting jobs for which an allocation is kept that others vacate.
        claims_on: the same by the nodes of these allocations.
        training jobs: jobs that are planned by what is known of their run time and deadline.
        vacating: nodes that jobs are to leave.
        windowed: nodes with windows of maintenance.
        names_of: of nodes, by their identities.
        powered: nodes that are powered down, or on their way there or back.
        on_probation: nodes of which a probe is planned.
        reserved_jobs: numbers of the running jobs in each reservation.
        ports: master ports in use.
        jobs_of: unfinished jobs by the name of their user.
        jobs_by_user, argument_bytes_by_user: what limits per user count.
        dependants: jobs that depend on a job, by that job.
        limits: what limits of users and queues count, by their rules; the rules are configuration.
        arrays: unfinished arrays by number, with their elements that are jobs.
        reruns: unfinished jobs and arrays that are reruns of a finished one, by that one.

        dirty: marks of what has changed, for the next scheduling cycle.
        caches: what follows from the state and is slow to work out.
        volatile: what may be lost.
        unstored: what the shell has to store.
    """

    def __init__(
        self,
        queue_priorities: Mapping[str, int] | None = None,
        *,
        plans_training: bool = False,
        plans_adaptive: bool = False,
        sharing: SharingRules = DEFAULT_RULES,
        limits: LimitRules = NO_LIMITS,
        defers_predictions: bool = False,
    ) -> None:
        self.sharing = sharing
        self.defers_predictions = defers_predictions
        self.queue_priorities = dict(queue_priorities or {})
        self.plans_training = plans_training
        self.plans_adaptive = plans_adaptive
        self.epoch_id = ""
        self.priorities: Priorities | None = None
        self.limits = LimitBook(limits)
        self._init_durable()
        self._init_indices()
        self.dirty = Dirty()
        self.caches = Caches()
        self.volatile = Volatile()
        self.unstored = Unstored()

    def _init_durable(self) -> None:
        self.jobs: dict[int, Job] = {}
        self.nodes: dict[str, Node] = {}
        self.keys = ClientKeys()
        self.next_job = 1
        self.damaged: dict[int, dict[str, int]] = {}
        self.damaged_nodes: set[str] = set()
        self.reached: dict[int, Reached] = {}
        self.startups = Startups()
        self.move_costs = Startups()
        self.step_times = StepTimes()
        self.goodputs = GoodputKnowledge()
        self.usage = UsageLedger()
        self.reservations: dict[str, Reservation] = {}

    def _init_indices(self) -> None:
        self.spaces = SortedSpaces()
        self.counts: dict[tuple[str, JobState], int] = {}
        self.groups: dict[JobClass, WaitingGroup] = {}
        self.classes_of: dict[Request, dict[JobClass, None]] = {}
        self.apart: dict[int, Job] = {}
        self.delayed: list[tuple[float, int]] = []
        self.running: dict[int, Job] = {}
        self.by_node: dict[str, dict[int, Job]] = {}
        self.targets: dict[int, Job] = {}
        self.targets_on: dict[str, dict[int, Job]] = {}
        self.claims: dict[int, Job] = {}
        self.claims_on: dict[str, dict[int, Job]] = {}
        self.training_jobs: dict[int, Job] = {}
        self.vacating: set[str] = set()
        self.on_probation: set[str] = set()
        self.windowed = WindowedNodes()
        self.names_of: dict[str, str] = {}
        self.powered: set[str] = set()
        self.reserved_jobs: dict[str, set[int]] = {}
        self.ports: set[int] = set()
        self.jobs_of: dict[str, dict[int, Job]] = {}
        self.jobs_by_user: dict[int, int] = {}
        self.argument_bytes_by_user: dict[int, int] = {}
        self.reruns: dict[int, set[int]] = {}
        self.dependants: dict[int, set[int]] = {}
        self.arrays: dict[int, ArrayIndex] = {}

    def windows(self, now_s: float, resume_s: float = 1.0) -> dict[str, tuple[NodeWindow, ...]]:
        """Return the windows that keep jobs from nodes; nodes without one are missing.

        They are of maintenance, of power (until a node that is powered down can be up again), and
        of reservations, for the jobs that are not in them.

        Args:
            resume_s: how long it takes at most to power one up; only plans ahead need it.
        """
        found = {name: self.nodes[name].windows for name in self.windowed}
        for name in with_rests(self.powered):
            power = self.nodes[name].power
            up_s = max(power.due_s, now_s)
            if power.state is not PowerState.POWERING_UP:
                up_s += resume_s
            up_s = max(up_s, now_s + 1.0)  # it may be late
            closed = NodeWindow(number=0, from_s=0.0, to_s=up_s, reason=power.state.words)
            found[name] = (closed, *found.get(name, ()))
        for reservation in self.reservations.values():
            for share in with_rests(reservation.shares):
                of_node = found.get(share.node, ())
                found[share.node] = (*of_node, *self._reserved_windows(reservation, share))
        return {name: found[name] for name in sorted(found)}

    def windows_for(self, attempt: Attempt, now_s: float) -> dict[str, tuple[NodeWindow, ...]]:
        """Return the windows that an attempt must not reach on its nodes.

        Not those of its own reservation, nor those that keep parts of nodes which it does not have.
        """
        windows = self.windows(now_s)
        found: dict[str, tuple[NodeWindow, ...]] = {}
        for name, part in attempt.parts.items():
            mine = {each.index for each in part.share.gpus_held}
            found[name] = tuple(
                window
                for window in windows.get(name, ())
                if window.reservation != attempt.reservation or not window.reservation
                if window.share is None or mine.intersection(window.share.gpu_indices)
            )
        return found

    def _reserved_windows(self, reservation: Reservation, share: Share) -> Iterator[NodeWindow]:
        """Yield in which windows a reservation keeps a share for its own jobs."""
        is_now = reservation.begun
        for window in islice(reservation.windows(), PLANNED_WINDOWS):
            left = self._unused(reservation, share) if is_now else share
            is_now = False
            yield NodeWindow(
                number=0,
                from_s=window.from_s,
                to_s=window.to_s,
                reason=reservation.reason,
                reservation=reservation.name,
                share=None if share.exclusive else left,
            )

    def _unused(self, reservation: Reservation, share: Share) -> Share:
        """Return what of a share of a reservation its own jobs do not use."""
        cpus, memory_bytes = share.cpus, share.memory_bytes
        for number in self.reserved_jobs.get(reservation.name, ()):
            part = self.running[number].current_attempt.parts.get(share.node)
            if part is not None:
                used = part.share
                cpus, memory_bytes = cpus - used.cpus, memory_bytes - used.memory_bytes
        return structs.replace(share, cpus=max(0, cpus), memory_bytes=max(0, memory_bytes))

    def usable_reservations(self, spec: JobSpec) -> tuple[str, ...]:
        """Return the reservations in which a job may run: that it names, or magnetic ones."""
        if spec.reservation:
            named = self.reservations.get(spec.reservation)
            found = [] if named is None else [named]
        elif self.plans_training and spec.is_training:
            found = []  # those are planned all over the cluster
        else:
            found = [each for each in self.reservations.values() if each.magnetic]
        user, project = spec.owner.user, spec.account
        return tuple(sorted(each.name for each in found if each.permits(user, project)))

    def reservation_on(self, spec: JobSpec, allocation: Allocation) -> str:
        """Return the reservation in which a job would run there; empty: in none."""
        for name in self.usable_reservations(spec):
            reservation = self.reservations[name]
            if reservation.begun and all(reservation.share_on(each.node) for each in allocation):
                return name
        return ""

    def jobs_in(self, queue: str) -> int:
        """Return how many unfinished jobs a queue has; an array is one."""
        return sum(count for (name, _), count in self.counts.items() if name == queue)

    def damaged_on(self, node: str) -> int:
        """Return a job with a damaged record that may own something on a node; 0: none."""
        return next((job for job, nodes in self.damaged.items() if node in nodes), 0)

    def note_moved(self, job: int) -> None:
        """Note that a job runs, does not run any more, or has got another end."""
        self.dirty.ends.moved.add(job)
        running = self.running.get(job)
        if running is not None and running.attempt is not None:
            for node in running.attempt.parts:
                self.spaces.touch(node)

    def order_key(self, job: Job) -> OrderKey:
        """Return by what waiting jobs are ordered: priority, submission, id."""
        return self.place_of(job) if self.priorities is None else self.priorities.key(job)

    def ordered(self, group: WaitingGroup) -> Sequence[OrderKey]:
        """Return the order keys of a group's jobs."""
        priorities = self.priorities
        if priorities is None:
            return group.lanes[NO_LANE]
        return group.merged(priorities.keys_of(self.jobs))

    def place_of(self, job: Job) -> OrderKey:
        """Return by what jobs of a group are ordered: priority with the queue's, submission, id.

        The first number holds priority and submission: an element has the place of its array.
        """
        priority = job.spec.priority + self.queue_priorities.get(job.spec.queue, 0)
        number = job.order_number  # mostly the same object as the id
        return (number - priority * ELEMENT_BASE if priority else number, job.id)

    def class_of(self, job: Job) -> JobClass:
        """Return what decides about the job together with others."""
        spec = job.spec
        training = job.id if self.plans_training and spec.is_training else 0
        return JobClass(
            queue=spec.queue,
            request=spec.request,
            walltime_s=spec.walltime_s,
            training=training,
            party=self.limits.rules.party(party_of(spec)) if self.limits.rules.is_on else None,
            reservation=spec.reservation,
            may_use=self.usable_reservations(spec) if self.reservations else (),
        )

    def fronts(self, group: WaitingGroup, most: int) -> list[OrderKey]:
        """Return the order keys of the first jobs of a group's lanes, at most so many."""
        self.ordered(group)
        return group.fronts(most)

    def lane_of(self, job: Job) -> Lane:
        """Return in which lane of its class a job waits."""
        spec = job.spec
        return NO_LANE if self.priorities is None else (spec.owner.user, spec.account, spec.qos)

    def generic_names(self) -> frozenset[str]:
        """Return the consumable resources that some node declares."""
        if self.caches.generic_names is None:
            self.caches.generic_names = frozenset(
                name for node in self.nodes.values() for name, _ in node.inventory.generic
            )
        return self.caches.generic_names

    def gpus_of(self, node: str) -> tuple[Gpu, ...]:
        """Return all GPUs of a node; none of one that is not known, as its record is damaged."""
        known = self.nodes.get(node)
        return known.inventory.gpus if known is not None else ()

    def total_gpus(self) -> int:
        """Return how many GPUs all nodes have, whether they take work now or not."""
        if self.caches.total_gpus is None:
            self.caches.total_gpus = sum(len(node.inventory.gpus) for node in self.nodes.values())
        return self.caches.total_gpus

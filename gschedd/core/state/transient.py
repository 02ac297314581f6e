"""What the head's state holds that no database does: marks, caches, and what may be forgotten.

A head that starts begins with all of it empty, and decides the same. Anybody in the core may write
it; the durable part is written by `gschedd.core.apply` alone.
"""

from abc import abstractmethod
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable
from typing import Final, Protocol

from msgspec import Struct

from gsched.model.configuration import ConfigRow
from gsched.model.gpu_outside import GpuUse
from gsched.model.gpu_tokens import GpuSharing
from gsched.model.health import HealthResult
from gsched.model.ids import short_job_id
from gsched.model.machine import Machine
from gsched.model.passages import Passage
from gsched.model.reservation import Reservation
from gsched.model.resources import LiveUse, Load, Request
from gschedd.core.state.facts import CheckpointTaken
from gschedd.core.state.records import Attempt, Job, Node
from gschedd.plan.lanes import Front, LaneOrder
from gschedd.plan.snapshot import JobClass, KeptByJob, KeptFrom, OrderKey, RunningJob
from gschedd.plan.training import Size
from gschedd.shares.ledger import LedgerRow
from gschedd.shares.tree import Association


class KeptOfState(KeptFrom, Protocol):
    """What is kept by the state as it is."""

    @abstractmethod
    def detach(self, jobs: Iterable[Job]) -> KeptByJob:
        """Return what is kept from some waiting jobs, as a value."""


class Ends:
    """What runs in order of planned ends; see `gschedd.core.attempts.running.Running`.

    Attributes:
        known: jobs as policies see them, by id.
        order: `end_order` of each of them, sorted.
        moved: jobs of which something has changed since.
    """

    __slots__ = ("known", "moved", "order")

    def __init__(self) -> None:
        self.known: dict[int, RunningJob] = {}
        self.order: list[tuple[bool, float, int]] = []
        self.moved: set[int] = set()


#: The user, project and QOS of jobs that are ordered by them; ("", "", ""): by none of them.
Lane = tuple[str, str, str]
NO_LANE: Final = ("", "", "")


class WaitingGroup:
    """Jobs of one class that may start now.

    Attributes:
        lanes: their places, sorted; see `gschedd.plan.lanes`.
        count: of all jobs.
    """

    __slots__ = ("_fronts", "_key_of", "_keys", "count", "job_class", "lanes")

    def __init__(self, job_class: JobClass) -> None:
        self.job_class = job_class
        self.lanes: dict[Lane, list[OrderKey]] = {}
        self.count = 0
        self._keys: dict[Lane, OrderKey] = {}  # of the first job of each lane
        self._fronts: list[Front] = []  # sorted
        self._key_of: Callable[[OrderKey], OrderKey] | None = None

    def add(self, lane: Lane, place: OrderKey) -> None:
        """Put a job in its place; new jobs mostly belong at the end, where that is cheap."""
        order = self.lanes.get(lane)
        if order is None:
            order = self.lanes[lane] = []
        self.count += 1
        if not order or order[-1] < place:
            order.append(place)
        else:
            insort(order, place)
        if order[0] == place:
            self._put_front(lane)

    def remove(self, lane: Lane, place: OrderKey) -> None:
        """Take a job out."""
        order = self.lanes[lane]
        index = bisect_left(order, place)
        assert order[index] == place, f"job {short_job_id(place[1])} is not waiting in its group"
        del order[index]
        self.count -= 1
        if not order:
            del self.lanes[lane]
        if not index:
            self._put_front(lane)

    def _put_front(self, lane: Lane) -> None:
        """Note that a lane has another first job, or none."""
        if self._key_of is None:
            return
        before = self._keys.pop(lane, None)
        if before is not None:
            del self._fronts[bisect_left(self._fronts, (before,))]
        order = self.lanes.get(lane)
        if order:
            key = self._keys[lane] = self._key_of(order[0])
            insort(self._fronts, (key, 0, order))

    def fronts(self, most: int) -> list[OrderKey]:
        """Return the keys of the first jobs of the lanes, at most so many, as merged last."""
        if self._key_of is None:
            return [order[0] for order in self.lanes.values()]
        return [key for key, _, _ in self._fronts[:most]]

    def merged(self, key_of: Callable[[OrderKey], OrderKey]) -> LaneOrder:
        """Return the order of all jobs, by the keys of places."""
        if self._key_of is not key_of:
            self._key_of = key_of
            self._keys = {lane: key_of(order[0]) for lane, order in self.lanes.items()}
            self._fronts = sorted((key, 0, self.lanes[lane]) for lane, key in self._keys.items())
        return LaneOrder(self._fronts, key_of, self.count)


class Rival(Struct, frozen=True, kw_only=True):
    """A gnode that was refused. Not durable: it comes again.

    Attributes:
        name: that it gave; another one than the node's whose identity it has.
        why: in words, for its log and the head's.
    """

    name: str
    identity: str
    machine: Machine
    address: str
    why: str
    at_s: float


class PreparedThere(Struct, kw_only=True):
    """An attempt that is prepared for a move, and on which nodes; ``missing`` have not said so."""

    attempt: int
    nodes: tuple[str, ...]
    missing: set[str]


class UnhandledSignal(Struct, kw_only=True):
    """The nodes on which no process of a job handles the signal of the migration ``request``."""

    request: int
    nodes: set[str]


class LiveParts:
    """What the parts of an attempt use at the moment.

    Attributes:
        attempt: its number.
        parts: what was told last, and when, by node.
    """

    __slots__ = ("attempt", "parts")

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt
        self.parts: dict[str, tuple[LiveUse, float]] = {}


class Dirty:
    """Marks of what has changed since the last scheduling cycle, which takes them away.

    Attributes:
        any: something has changed that a cycle should look at: one of the next three.
        every: every waiting job is to be looked at.
        job_classes: job_classes with a job that has come.
        nodes: nodes on which something was given back.
        arrays: arrays of which elements may become jobs.
        ends: what runs, by planned end; brought up to date when a policy looks.
    """

    def __init__(self) -> None:
        self.any = True
        self.every = True
        self.job_classes: set[JobClass] = set()
        self.nodes: set[str] = set()
        self.arrays: set[int] = set()
        self.ends = Ends()

    def mark_all(self) -> None:
        """Let the next cycle look at every waiting job."""
        self.any = self.every = True

    def mark_class(self, job_class: JobClass) -> None:
        """Let the next cycle look at the jobs of a class."""
        self.job_classes.add(job_class)
        self.any = True

    def mark_array(self, array: int) -> None:
        """Let the next cycle make jobs of elements of an array, if more of them may be."""
        self.arrays.add(array)
        self.any = True

    def mark_nodes(self, nodes: Iterable[str]) -> None:
        """Let the next cycle look at the jobs that these nodes may help: they have more room."""
        self.nodes.update(nodes)
        self.any = True

    def take(self) -> tuple[bool, set[JobClass], set[str]]:
        """Take the marks away, and return ``every``, ``job_classes`` and ``nodes`` as they were."""
        taken = (self.every, self.job_classes, self.nodes)
        self.any = self.every = False
        self.job_classes, self.nodes = set(), set()
        return taken


class Caches:
    """What follows from the durable state and is kept only because working it out is slow.

    Attributes:
        possible: requests that some idle hardware here can hold.
        submissions: the latest, by name: see `gschedd.core.requests.alike`.
        sizes: how much work training jobs are, by job; worked out when a policy first asks.
        generic_names: the consumable resources that some node declares; None: not worked out.
        total_gpus: of all nodes, whether they take work now or not; None: not worked out.
        rows: of jobs that run, the parts of their lines in lists that only a fact changes, encoded.
    """

    def __init__(self) -> None:
        self.possible: set[Request] = set()
        self.submissions: dict[Hashable, object] = {}
        self.sizes: dict[int, Size | None] = {}
        self.generic_names: frozenset[str] | None = None
        self.total_gpus: int | None = None
        self.rows: dict[int, bytes] = {}

    def forget_hardware(self) -> None:
        """Forget what follows from the nodes' inventories: one of them has changed."""
        self.possible.clear()
        self.submissions.clear()
        self.generic_names = None
        self.total_gpus = None


class Followed(Struct, frozen=True, kw_only=True):
    """A job has ended, and whether it succeeded, or (None) has started.

    Attributes:
        after: its dependants up to this number have been told.
    """

    job: int
    at_s: float
    succeeded: bool | None = None
    after: int = 0


class Coming:
    """Starts and ends of jobs of which not all dependants have been told.

    Attributes:
        room: so many dependants the present step may still take.
    """

    def __init__(self) -> None:
        self.events: deque[Followed] = deque()
        self.room = 0

    def __bool__(self) -> bool:
        """Return whether any is left."""
        return bool(self.events)


class Volatile:
    """What a head may lose: it comes again, or only tells who is next.

    Attributes:
        turns: how many jobs of each user have left nodes that are vacated, or are about to.
        stuck: until when jobs that could not be moved are left alone, seconds since the epoch.
        refusals: how often in a row that was so.
        unhandled: parts of migrating jobs that do not handle their signal, by job.
        unwritten: checkpoints for which nobody has asked, and when they become facts, by job.
        paces: since when, and how many, checkpoints of a job have become facts.
        rivals: gnodes that were refused, by the node whose place they wanted.
        prepared: attempts that nodes prepare for moves, by job; they end with the connection.
        moves_left: moves of the last plan with any had to wait for others, and are to be planned
            again as soon as one can be made.
        kept: nodes that are kept for waiting jobs from those that would give way for them.
        quarantined: why a node is refused that claims to know more than the database, by node; the
            shell fills it.
        live: what running jobs use at the moment, by job.
        passages: which of their files pass the head, likewise.
        loads: how busy nodes are and when they said so, by node; policies see heartbeats alone.
        cpu_bindings: how nodes bind jobs to CPUs, by node, in their words.
        gpu_fences: what keeps jobs from the GPUs of others, by node, likewise.
        gpu_sharing: how jobs share GPUs on nodes, by node, as these have told last.
        health: the last results of their health checks, likewise.
        node_configs: how they have read their configuration files, likewise.
        gpu_use: who is on their GPUs beside the jobs, likewise.
        coming: what jobs have not been told yet of those that they depend on.
        reservations_changed: reservations, or nodes that they may hold, have changed.
        reservations_look_s: when a node has been away for long enough to be replaced in one; 0: no
            matter.
        ended: whether jobs that have ended lately succeeded, by number; the oldest first.
    """

    def __init__(self) -> None:
        self.turns: Counter[int] = Counter()
        self.stuck: dict[int, float] = {}
        self.refusals: Counter[int] = Counter()
        self.unhandled: dict[int, UnhandledSignal] = {}
        self.unwritten: dict[int, tuple[float, CheckpointTaken]] = {}
        self.paces: dict[int, tuple[float, int]] = {}
        self.rivals: dict[str, dict[object, Rival]] = {}
        self.prepared: dict[int, PreparedThere] = {}
        self.moves_left = False
        self.kept: KeptOfState | None = None
        self.quarantined: dict[str, str] = {}
        self.live: dict[int, LiveParts] = {}
        self.passages: dict[int, Passage] = {}
        self.loads: dict[str, tuple[Load, float]] = {}
        self.cpu_bindings: dict[str, str] = {}
        self.gpu_fences: dict[str, str] = {}
        self.gpu_sharing: dict[str, GpuSharing] = {}
        self.health: dict[str, tuple[HealthResult, ...]] = {}
        self.node_configs: dict[str, ConfigRow] = {}
        self.gpu_use: dict[str, GpuUse] = {}
        self.coming = Coming()
        self.reservations_changed = True
        self.reservations_look_s = 0.0
        self.ended: dict[int, bool] = {}


class Unstored:
    """What has changed since the shell last stored the state; it takes all of it when it does.

    Attributes:
        jobs, attempts, nodes: changed, by id, by job and number, by name.
        removed_nodes: names of nodes that are forgotten.
        usage: changed rows of the usage ledger, by project and user.
        reservations: changed ones, by name; None: it is no more.
        finished: jobs that became done; the shell takes them by themselves.
    """

    def __init__(self) -> None:
        self.finished: dict[int, Job] = {}
        self.forget_records()

    @property
    def is_empty(self) -> bool:
        """Return whether all of the state is stored, or is being stored."""
        return not (
            self.jobs
            or self.attempts
            or self.nodes
            or self.removed_nodes
            or self.usage
            or self.reservations
            or self.finished
        )

    def forget_records(self) -> None:
        """Forget all but the finished jobs: they are stored."""
        self.jobs: dict[int, Job] = {}
        self.attempts: dict[tuple[int, int], Attempt] = {}
        self.nodes: dict[str, Node] = {}
        self.removed_nodes: set[str] = set()
        self.usage: dict[Association, LedgerRow] = {}
        self.reservations: dict[str, Reservation | None] = {}

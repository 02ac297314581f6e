"""What a policy sees, and what it answers."""

from abc import abstractmethod
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from itertools import chain
from typing import Protocol

import msgspec
from msgspec import Struct, field, structs

from gsched.model.resources import Allocation, Request
from gsched.model.training import Batching
from gschedd.plan.forecast import Forecast
from gschedd.plan.limits import LimitRoom, Party
from gschedd.plan.load import Kind, Learning, NodeLoad, Predictor, Use, predict_all
from gschedd.plan.space import FreeNode
from gschedd.plan.training import Fabric, TrainingProfile
from gschedd.plan.windows import ReservedWindow, Windows
from gschedd.plan.words import Lack


class JobClass(Struct, frozen=True, kw_only=True, cache_hash=True):
    """What waiting jobs may have in common, so that they are decided once: request and limit.

    A training job that is planned by its deadline is a class of its own: ``training`` is its id; 0
    for all other jobs. ``party``: by what its jobs are limited together when they start; None:
    there are no limits for them.
    ``reservation``: they start in it only; ``may_use``: they may start in each of these.
    """

    queue: str
    request: Request
    walltime_s: float | None
    training: int = 0
    party: Party | None = None
    reservation: str = ""
    may_use: tuple[str, ...] = ()


#: How waiting jobs are ordered: (priority and submission, job id); the lower goes first. See
#: `gschedd.core.state.state.State.order_key`.
OrderKey = tuple[int, int]


class Group(Struct, frozen=True, kw_only=True):
    """Waiting jobs of one class that may start now, in order. ``order`` is never empty."""

    job_class: JobClass
    order: Sequence[OrderKey]


class RunningJob(Struct, frozen=True, kw_only=True):
    """An attempt that owns resources.

    ``end_s`` is when it is planned to end (see `gschedd.plan.times`), seconds since the epoch; None
    if nothing limits it. It may end later, unless that is its walltime.
    ``limit_s``: when its walltime ends, where that may be later than planned; None: it has none.
    ``leaving``: it is being stopped, to migrate or for good, so it cannot be moved.
    ``starting``: it does not run yet, so it cannot be moved either.
    ``uses``: what it was predicted to use on its nodes when it was assigned, as far as that was.
    ``reservation``: in which it runs; empty: in none.
    """

    job: int
    allocation: Allocation
    started_s: float
    end_s: float | None
    limit_s: float | None = None
    leaving: bool = False
    starting: bool = False
    uses: Mapping[str, Use] = field(default_factory=dict)
    reservation: str = ""

    @property
    def has_all_uses(self) -> bool:
        """Return whether its usage was predicted on each of its nodes."""
        return all(share.node in self.uses for share in self.allocation)


def end_order(running: RunningJob) -> tuple[bool, float, int]:
    """Return by what running jobs are ordered: planned ends; those without end last, oldest first.

    Ties go to the lower job id.
    """
    end_s = running.end_s
    return (end_s is None, running.started_s if end_s is None else end_s, running.job)


class RunningJobs(tuple[RunningJob, ...]):
    """Running jobs as a value; 10,000 of them are pickled in 2 ms instead of 60."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Callable[[bytes], "RunningJobs"], tuple[bytes]]:
        """Return how they are made again."""
        return _running_jobs, (_encode(tuple(self)),)


_encode = msgspec.msgpack.Encoder(enc_hook=dict).encode  # uses may be any mapping
_decode = msgspec.msgpack.Decoder(tuple[RunningJob, ...]).decode


def _running_jobs(encoded: bytes) -> RunningJobs:
    return RunningJobs(_decode(encoded))


class ByEnd(Collection[RunningJob]):
    """Running jobs that iterate by `end_order`, and can tell those of one node."""

    @abstractmethod
    def on(self, node: str) -> Sequence[RunningJob]:
        """Return the jobs that own something on a node, by id."""


class KeptFrom(Protocol):
    """What is kept for waiting jobs that others give way for."""

    @property
    @abstractmethod
    def nodes(self) -> Mapping[int, frozenset[str]]:
        """Return the nodes that are kept for each job."""

    @abstractmethod
    def from_job(self, job: int) -> frozenset[str]:
        """Return the nodes on which a waiting job does not start, as it would give way there."""


class KeptByJob(Struct, frozen=True, kw_only=True):
    """`KeptFrom` of some jobs, as a value.

    Attributes:
        until_s: of the jobs for which nodes are kept: how long, seconds since the epoch.
        jobs: of a waiting job: the jobs for which it would give way.
    """

    nodes: Mapping[int, frozenset[str]]
    until_s: Mapping[int, float]
    jobs: Mapping[int, frozenset[int]]

    def from_job(self, job: int) -> frozenset[str]:
        """Return the nodes on which a waiting job does not start, as it would give way there."""
        found = (self.nodes.get(each, frozenset()) for each in self.jobs.get(job, ()))
        return frozenset(chain.from_iterable(found))

    def at(self, now_s: float, started: Container[int]) -> "KeptByJob | None":
        """Return what is still kept at a later time, when some jobs have started; None: nothing."""
        left = {
            job: nodes
            for job, nodes in self.nodes.items()
            if self.until_s[job] > now_s and job not in started
        }
        return structs.replace(self, nodes=left) if left else None


class Snapshot(Struct, frozen=True, kw_only=True):
    """All that a policy may know, at one moment. A policy changes nothing of it.

    What the head hands out looks into its state, and holds until that changes; `detach` makes a
    value of it.

    Attributes:
        loads: nodes as their last reports have them, by name; those without a report are missing.
        kinds: of waiting and running jobs, by id; those of which none is known are missing.
        predictor: says what a job will cost; None where nothing is learned.
        profiles: what is known of training jobs, waiting or running, by job id.
        fabric: how nodes are connected.
        default_walltime_s: what is assumed of jobs that state no walltime; None: that they never
            end.
        predicted_times: whether jobs are planned to run as long as their kind is predicted to.
        moves_max: so many running jobs can be moved now; of more some have to wait. None: all.
        moves_left: moves of an earlier plan had to wait for others, and some can be made now.
        windows: that keep jobs from nodes, by node: see `gschedd.plan.windows`.
        reserved: windows of reservations: see `gschedd.plan.reserved`.
        limits: what limits of users and queues leave; None: there are none.
        kept: what is kept for waiting jobs that others give way for; None: nothing.
        starts_max: a plan may end after so many starts (`Plan.more`), so that a cycle takes a short
            time. None: it goes through the whole queue.
    """

    now_s: float
    nodes: Mapping[str, FreeNode]
    groups: Sequence[Group]
    running: Collection[RunningJob]
    loads: Mapping[str, NodeLoad] = field(default_factory=dict)
    kinds: Mapping[int, Kind] = field(default_factory=dict)
    predictor: Predictor | None = None
    profiles: Mapping[int, TrainingProfile] = field(default_factory=dict)
    fabric: Fabric = Fabric()
    default_walltime_s: float | None = None
    predicted_times: bool = True
    moves_max: int | None = None
    moves_left: bool = False
    starts_max: int | None = None
    windows: Windows = field(default_factory=dict)
    reserved: tuple[ReservedWindow, ...] = ()
    limits: LimitRoom | None = None
    kept: KeptFrom | None = None

    def still(self) -> "Snapshot":
        """Return the same with all jobs and nodes as values, which do not change with the state.

        Kinds and the predictor go on with the state.
        """
        return structs.replace(
            self,
            nodes=dict(self.nodes),
            groups=tuple(
                Group(job_class=group.job_class, order=tuple(group.order)) for group in self.groups
            ),
            running=RunningJobs(self.running),
            loads=dict(self.loads),
            profiles=dict(self.profiles),
            windows=dict(self.windows),
            limits=None if self.limits is None else self.limits.detach(),
            kept=None,
        )

    def detach(self) -> "Snapshot":
        """Return the same as a value, which can be pickled and does not change with the state.

        Policies plan the same on it. Kinds are kept of jobs whose usage has not been predicted yet:
        of those that wait, and of running ones that started when nothing was learned.
        """
        still = self.still()
        jobs = [job for group in still.groups for _, job in group.order]
        jobs += [each.job for each in still.running if not each.has_all_uses]
        kinds = {job: kind for job in jobs if (kind := self.kinds.get(job)) is not None}
        distinct = dict.fromkeys(kinds.values()).keys()
        predictor = _detached(self.predictor, distinct, still)
        return structs.replace(still, kinds=kinds, predictor=predictor)


def _detached(
    predictor: Predictor | None, kinds: Collection[Kind], seen: Snapshot
) -> Predictor | None:
    if predictor is None:
        return None
    if isinstance(predictor, Learning):
        return predictor.detach(kinds)
    return predict_all(predictor, kinds, seen.loads, seen.now_s)


class Start(Struct, frozen=True, kw_only=True):
    """Start a waiting job there; ``why`` is kept in its history.

    ``batching`` is how an adaptive training splits its samples there; None: it decides.
    ``reservation`` is the one in which it starts; empty: in none.
    """

    job: int
    job_class: JobClass
    allocation: Allocation
    why: str
    batching: Batching | None = None
    reservation: str = ""


class Wait(Struct, frozen=True, kw_only=True):
    """Why the jobs of one class that were not started go on waiting, in words.

    Attributes:
        first: the job of the class that is next.
        predicted_start_s: when ``first`` starts if all runs as planned, where that can be said.
        reserved: ``first`` holds the reservation.
        reserved_on: on which nodes.
        lacking: there is no room for it, so that it need not be looked at again before something is
            given back that could help; of the others nothing is assumed.
        gives_way: which running jobs will give way for ``first``, and when, in words.
    """

    job_class: JobClass
    first: int
    reason: Lack | str
    predicted_start_s: float | None = None
    reserved: bool = False
    reserved_on: tuple[str, ...] = ()
    lacking: bool = False
    gives_way: str = ""


class Move(Struct, frozen=True, kw_only=True):
    """Stop a running training at a checkpoint and go on there; ``why`` is kept in its history.

    The allocation may be larger, smaller or elsewhere, and may overlap the one it has. An empty one
    lets it wait in its queue again. ``batching`` is how an adaptive training splits its samples
    there; None: it decides.
    """

    job: int
    allocation: Allocation
    why: str
    batching: Batching | None = None


class Tune(Struct, frozen=True, kw_only=True):
    """Let a running adaptive training split its samples otherwise, where it is."""

    job: int
    batching: Batching


class Plan(Struct, frozen=True, kw_only=True):
    """What a policy proposes: starts in order, and a reason for every class left waiting.

    Attributes:
        moves: of running training jobs, all at once: what they leave may be what others of them
            take. A start may use only what is free before that; what is vacated is decided about
            later.
        tunes: of adaptive training jobs that stay where they are.
        verdicts: what is expected of training jobs, waiting or running; the first firm one about a
            job that says ``meets`` is kept as a guarantee (`TrainingProfile.guaranteed`), as is the
            first firm one that does not.
        again_s: when to ask again although nothing else has happened, seconds since the epoch;
            None: there is no need.
        more: the plan ends after `Snapshot.starts_max` starts; a further one is to follow at once.
    """

    starts: tuple[Start, ...] = ()
    waits: tuple[Wait, ...] = ()
    moves: tuple[Move, ...] = ()
    tunes: tuple[Tune, ...] = ()
    verdicts: tuple[Forecast, ...] = ()
    again_s: float | None = None
    more: bool = False


class Policy(Protocol):
    """A function of a snapshot: equal snapshots give equal plans."""

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Return what to start, and why the rest waits."""

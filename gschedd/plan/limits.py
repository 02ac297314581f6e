"""Limits of what users and queues may have: the kinds, the rules, and what is used and left.

Each job belongs to some *scopes*, such as all jobs of queue gpu, or those of alice in it. The rules
bound counters of each scope; the head keeps the counters in step with what runs, and a plan takes
of what they leave. All counters are whole numbers, so that they are exact: GPUs count in percent of
one, their time in percent times milliseconds.
"""

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple, Protocol, Self

from msgspec import Struct, structs

from gsched.config.limits import LimitTables, ResourceLimits, SharedLimitTables
from gsched.config.shares import ProjectConfig, ancestry
from gsched.model.resources import WHOLE_PERCENT, Allocation
from gsched.model.units import format_duration, format_size
from gschedd.plan.amounts import OF, Amounts, Nodes, amounts_of, most_of
from gschedd.plan.budgets import PERIODS, Budgets, Spending, by_day, day_of, next_s, next_words
from gschedd.plan.words import Reason

#: ``("all",)``, ``("queue", "gpu")``, ``("user", "alice")``, ``("queue", "gpu", "user", "alice")``.
Scope = tuple[str, ...]

#: Of one GPU for an hour, in the unit of its counter: percent times milliseconds.
GPU_HOUR: Final = WHOLE_PERCENT * 3_600_000


class LimitKind(NamedTuple):
    """One kind of limit.

    Attributes:
        key: of `ResourceLimits`.
        counter: what it bounds.
        scale: units of the counter in one unit of the key.
        noun: what is counted, in words.
        at_start: it counts when a job starts; else when it is submitted.
    """

    key: str
    counter: str
    scale: int
    noun: str
    at_start: bool = True


KINDS: Final = (
    LimitKind("max_running", "running", 1, "running jobs"),
    LimitKind("max_cpus", "cpus", 1, "CPUs"),
    LimitKind("max_gpus", "gpus", WHOLE_PERCENT, "GPUs"),
    LimitKind("max_gpus_of", "gpus", WHOLE_PERCENT, "GPUs"),
    LimitKind("max_memory_bytes", "memory", 1, "memory"),
    LimitKind("max_running_gpu_hours", "gpu_time", GPU_HOUR, "GPU-hours in running jobs"),
    *(
        LimitKind(f"max_gpu_hours_{each}", f"gpu_time {words}", GPU_HOUR, f"GPU-hours {words}")
        for each in ("per_day", "per_week", "per_month", "per_30_days")
        for words in [each.replace("_", " ")]
    ),
    LimitKind("max_queued", "queued", 1, "unfinished jobs", at_start=False),
    LimitKind("max_walltime_s", "walltime", 1, "walltime", at_start=False),
)


class Party(NamedTuple):
    """Whose limits a job is subject to; what is empty limits nothing."""

    queue: str
    user: str = ""
    project: str = ""
    qos: str = ""


class Limited(Protocol):
    """A class of jobs, as far as limits are concerned; see `gschedd.plan.snapshot.JobClass`."""

    @property
    def party(self) -> Party | None:
        """Return by what its jobs are limited."""

    @property
    def walltime_s(self) -> float | None:
        """Return the walltime of each."""


class Bound(Struct, frozen=True, kw_only=True):
    """The limit of one counter of a scope; ``named``: it is stated for its user alone."""

    scope: Scope
    kind: LimitKind
    counter: str
    most: int
    named: bool = False

    @property
    def takes(self) -> str:
        """Return what of a job counts: for budgets its GPU time."""
        return "gpu_time" if self.counter in PERIODS else self.counter

    @property
    def gpu_type(self) -> str:
        """Return the type of the GPUs that it counts; empty: all types, or something else."""
        return self.counter.partition(OF)[2]

    @property
    def noun(self) -> str:
        """Return what is counted, in words."""
        return f"{self.gpu_type} GPUs" if self.gpu_type else self.kind.noun

    def words(self, amount: float) -> str:
        """Return an amount without its noun."""
        if self.counter == "walltime":
            return format_duration(amount)
        if self.counter == "memory":
            return format_size(int(amount))
        return f"{amount / self.kind.scale:.10g}" if math.isfinite(amount) else "unlimited"

    @property
    def holder(self) -> str:
        """Return whose jobs count, in words: ``alice``, ``queue gpu``."""
        if self.scope == ("all",):
            return "all users"
        return self.scope[-1] if self.scope[-2] == "user" else " ".join(self.scope[-2:])

    @property
    def limit_of(self) -> str:
        """Return whose limit it is, in words: ``each user in queue gpu``."""
        if self.scope == ("all",):
            return "all jobs"
        kind, name = self.scope[-2:]
        is_each = kind in {"user", "project"} and not self.named
        who = f"each {kind}" if is_each else f"{kind} {name}"
        return f"{who} in {' '.join(self.scope[:-2])}" if len(self.scope) > 2 else who


class LimitRules:
    """The limits of site and queues, and which of them bound a job."""

    def __init__(
        self,
        site: LimitTables,
        queues: Mapping[str, LimitTables],
        projects: Mapping[str, ProjectConfig] | None = None,
        qos: Mapping[str, LimitTables] | None = None,
        *,
        refuses_over_budget: bool = False,
    ) -> None:
        self.refuses_over_budget = refuses_over_budget
        self._projects = dict(projects or {})
        named = {"queue": queues, "project": self._projects, "qos": qos or {}}
        self._tables: dict[Scope, SharedLimitTables] = {(): _tables_of(site)}
        for kind, tables in named.items():
            self._tables |= {(kind, name): _tables_of(each) for name, each in tables.items()}
        stated = [each for each in self._tables.values() if each != SharedLimitTables()]
        limits = [each for one in stated for each in _limits_of(one)]
        #: Whether there is any limit, one of GPUs by type, and one of the time of running jobs.
        self.is_on = any(each != ResourceLimits() for each in limits)
        self.by_type = any(each.max_gpus_of for each in limits)
        budgets = [kind for kind in KINDS if kind.counter in PERIODS]
        self.budgets = tuple(
            kind.counter
            for kind in budgets
            if any(getattr(each, kind.key) is not None for each in limits)
        )
        self.by_time = bool(self.budgets) or any(
            each.max_running_gpu_hours is not None for each in limits
        )
        self._of: dict[Party, tuple[Bound, ...]] = {}
        self._parties: dict[Party, Party | None] = {}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LimitRules):
            return False
        both_off = not self.is_on and not other.is_on
        return both_off or self._content == other._content

    @property
    def _content(self) -> tuple[object, ...]:
        return self._tables, self._projects, self.refuses_over_budget

    def __hash__(self) -> int:
        return hash(self.is_on)

    def bounds(self, party: Party) -> tuple[Bound, ...]:
        """Return all limits of a party's jobs, of the site first."""
        found = self._of.get(party)
        if found is None:
            found = self._of[party] = tuple(self._bounds(party))
        return found

    def _bounds(self, party: Party) -> Iterator[Bound]:
        projects = self._above(party.project)
        of_all = self._tables[()]
        yield from _bounds_of(("all",), of_all.total)
        yield from _user_bounds((), of_all, party.user)
        for scope in (("queue", party.queue), ("qos", party.qos)):
            if scope in self._tables:
                tables = self._tables[scope]
                yield from _bounds_of(scope, tables.total)
                yield from _user_bounds(scope, tables, party.user)
                for project in projects:
                    yield from _bounds_of((*scope, "project", project), tables.each_project)
        for project in projects:
            scope = ("project", project)
            tables = self._tables.get(scope, SharedLimitTables())
            yield from _own_bounds(scope, of_all.each_project, tables.total)
            yield from _user_bounds(scope, tables, party.user)

    def _above(self, project: str) -> tuple[str, ...]:
        """Return a project and those that it is a part of."""
        if project not in self._projects:
            return (project,) if project else ()
        return tuple(each.name for each in ancestry(self._projects, project))

    def party(self, full: Party) -> Party | None:
        """Return by what jobs are limited together when they start; None: by nothing."""
        if not self.is_on:
            return None
        if full not in self._parties:
            scopes = {each.scope for each in self.bounds(full) if each.kind.at_start}
            kinds = {kind for scope in scopes for kind in scope[::2]}
            self._parties[full] = Party(
                full.queue,
                full.user if "user" in kinds else "",
                full.project if "project" in kinds else "",
                full.qos if "qos" in kinds else "",
            )
            if not scopes:
                self._parties[full] = None
        return self._parties[full]

    def stated_scopes(self, user: str, projects: Iterable[str]) -> Iterator[Scope]:
        """Yield the scopes of limits that are stated for one, and those of a user."""
        for scope, tables in self._tables.items():
            yield scope or ("all",)
            yield from ((*scope, "user", each) for each in {*tables.user, *filter(None, (user,))})
            if tables.each_project != ResourceLimits():
                yield from ((*scope, "project", each) for each in projects)

    def scopes(self, party: Party) -> frozenset[Scope]:
        """Return the scopes with limits of a party's jobs."""
        return frozenset(bound.scope for bound in self.bounds(party))


def _tables_of(config: LimitTables) -> SharedLimitTables:
    """Return the tables alone of what has other keys, too."""
    names = [name for name in SharedLimitTables.__struct_fields__ if hasattr(config, name)]
    return SharedLimitTables(**{name: getattr(config, name) for name in names})


def _limits_of(tables: SharedLimitTables) -> tuple[ResourceLimits, ...]:
    return (tables.total, tables.each_user, tables.each_project, *tables.user.values())


def _user_bounds(scope: Scope, tables: LimitTables, user: str) -> Iterator[Bound]:
    if user:
        own = tables.user.get(user, ResourceLimits())
        yield from _own_bounds((*scope, "user", user), tables.each_user, own)


def _own_bounds(scope: Scope, usual: ResourceLimits, own: ResourceLimits) -> Iterator[Bound]:
    stated = {key: value for key, value in structs.asdict(own).items() if value is not None}
    yield from _bounds_of(scope, structs.replace(usual, **stated), stated)


def _bounds_of(
    scope: Scope, limits: ResourceLimits, named: Mapping[str, object] | None = None
) -> Iterator[Bound]:
    for kind in KINDS:
        value = getattr(limits, kind.key)
        many = value.items() if isinstance(value, dict) else ((None, value),)
        for name, most in many:
            if most is None or most < 0:
                continue
            counter = kind.counter if name is None else f"{kind.counter}{OF}{name}"
            amount = round(most * kind.scale)
            is_named = bool(named) and kind.key in (named or ())
            yield Bound(scope=scope, kind=kind, counter=counter, most=amount, named=is_named)


NO_LIMITS: Final = LimitRules(LimitTables(), {})


class AtLimit(Reason):
    """A job waits for a limit; ``bound`` tells which, ``left`` what it leaves of ``needed``."""

    __slots__ = ("bound", "left", "needed")
    bound: Bound
    left: float
    needed: float

    @classmethod
    def of(cls, bound: Bound, used: float, needed: float, now_s: float) -> Self:
        """Return the words."""
        most = bound.words(bound.most)
        if not math.isfinite(needed):
            words = f"has no walltime: {bound.limit_of} may have {most} {bound.noun}"
        elif needed > bound.most:
            words = (
                f"needs {bound.words(needed)} {bound.noun}; "
                f"the limit of {bound.limit_of} is {most}: it cannot start"
            )
        else:
            has = "has" if bound.counter == "running" else "uses"
            more = f"; this job needs {bound.words(needed)}" if used < bound.most else ""
            words = (
                f"{bound.holder} {has} {bound.words(used)} of {most} {bound.noun}, "
                f"the limit of {bound.limit_of}{more}{next_words(bound.counter, now_s)}"
            )
        self = cls(words, f"limit: {most} {bound.noun.removesuffix(' in running jobs')}")
        self.bound, self.left, self.needed = bound, max(0, bound.most - used), needed
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return _at_limit, (str(self), self.short, self.bound, self.left, self.needed)


def _at_limit(words: str, short: str, bound: Bound, left: float, needed: float) -> AtLimit:
    found = AtLimit(words, short)
    found.bound, found.left, found.needed = bound, left, needed
    return found


class CountedUse(Struct, frozen=True, kw_only=True):
    """What a running job counts.

    Attributes:
        walltime_ms: that it may still run, if it has not started; None: without end.
        end_ms: when its walltime ends, if it has; milliseconds since the epoch.
        since_ms: when it started, likewise; 0: it has not.
    """

    party: Party
    amounts: Amounts
    walltime_ms: int | None = None
    end_ms: int = 0
    since_ms: int = 0

    @property
    def spending(self) -> Spending:
        """Return what counts for budgets."""
        return Spending(
            percent=self.amounts.get("gpus", 0),
            since_ms=self.since_ms,
            end_ms=self.end_ms,
            walltime_ms=self.walltime_ms or 0,
        )

    @property
    def counted(self) -> Amounts:
        """Return the amounts, with those of its time."""
        gpus = self.amounts.get("gpus", 0)
        if not gpus:
            return self.amounts
        if self.end_ms:
            return {**self.amounts, "rate": gpus, "ends": gpus * self.end_ms}
        if self.walltime_ms is None:
            return {**self.amounts, "endless": gpus}
        return {**self.amounts, "still": gpus * self.walltime_ms}


class LimitBook:
    """What each scope has now: an index of what runs."""

    def __init__(self, rules: LimitRules) -> None:
        self.rules = rules
        self.held: dict[int, CountedUse] = {}
        self.queued: dict[int, tuple[frozenset[Scope], int]] = {}
        self.counts: dict[Scope, Counter[str]] = {}
        self.budgets = Budgets(rules.budgets)
        self._ends: list[tuple[int, int]] = []

    def copy(self) -> "LimitBook":
        """Return the same with a life of its own."""
        other = LimitBook(self.rules)
        other.held = dict(self.held)
        other.queued = self.queued  # nobody submits in a forecast
        other.counts = {scope: Counter(counts) for scope, counts in self.counts.items()}
        other.budgets = self.budgets.copy()
        other._ends = list(self._ends)
        return other

    def count(self, job: int, held: CountedUse | None) -> None:
        """Let a job count what it has now; None: nothing."""
        before = self.held.pop(job, None)
        if before is not None:
            self._add_job(before, -1)
        if held is not None:
            self.held[job] = held
            self._add_job(held, 1)
            if held.end_ms and self.rules.by_time:
                heapq.heappush(self._ends, (held.end_ms, job))

    def start(
        self,
        job: int,
        job_class: Limited,
        allocation: Allocation,
        nodes: Nodes,
        now_s: float,
    ) -> None:
        """Let a job of a class count that starts now."""
        party, walltime_s = job_class.party, job_class.walltime_s
        if party is not None:
            left_ms = None if walltime_s is None else round(walltime_s * 1000)
            end_ms = 0 if left_ms is None else round(now_s * 1000) + left_ms
            held = CountedUse(
                party=party,
                amounts=amounts_of(allocation, nodes),
                walltime_ms=left_ms,
                end_ms=end_ms,
                since_ms=round(now_s * 1000),
            )
            self.count(job, held)

    def finish(self, job: int, now_s: float) -> None:
        """Let a running job end in a forecast; what it has used counts for budgets."""
        held = self.held.get(job)
        self.count(job, None)
        if held is not None and held.since_ms:
            percent = held.amounts.get("gpus", 0)
            self.spend(held.party, by_day(percent, held.since_ms / 1000, now_s))

    def spend(self, party: Party, days: Mapping[int, int]) -> None:
        """Let GPU time by day count that an attempt has used which has ended."""
        if self.rules.budgets:
            self.budgets.spend(self.rules.scopes(party), days)

    def begin_day(self, now_s: float) -> None:
        """Let budgets count in the periods in which a day is, if it is another one."""
        day = day_of(now_s)
        if not self.rules.budgets or self.budgets.day == day:
            return
        for held in self.held.values():
            self._add_job(held, -1)
        self.budgets.begin_day(day)
        for held in self.held.values():
            self._add_job(held, 1)

    def resize(self, job: int, allocation: Allocation, nodes: Nodes) -> None:
        """Let a running job have another allocation."""
        if job in self.held:
            amounts = amounts_of(allocation, nodes)
            self.count(job, structs.replace(self.held[job], amounts=amounts))

    def count_queued(self, job: int, party: Party, jobs: int) -> None:
        """Let a submission count as so many unfinished jobs."""
        scopes, before = self.queued.pop(job, (frozenset[Scope](), 0))
        self._add(scopes, {"queued": before}, -1)
        if jobs:
            scopes = self.rules.scopes(party)
            self.queued[job] = (scopes, jobs)
            self._add(scopes, {"queued": jobs}, 1)

    def _add_job(self, held: CountedUse, sign: int) -> None:
        scopes = self._scopes(held.party)
        self._add(scopes, held.counted, sign)
        if self.rules.budgets:
            self._add(scopes, self.budgets.amounts(held.spending), sign)

    def _scopes(self, party: Party) -> Iterable[Scope]:
        return self.rules.scopes(party)

    def _add(self, scopes: Iterable[Scope], amounts: Amounts, sign: int) -> None:
        for scope in scopes:
            counts = self.counts.setdefault(scope, Counter())
            for counter, amount in amounts.items():
                counts[counter] += sign * amount
                if not counts[counter]:
                    del counts[counter]
            if not counts:
                del self.counts[scope]

    def amount_of(self, held: CountedUse, counter: str, now_s: float) -> int:
        """Return what a running job counts of a counter."""
        now_ms = math.floor(now_s * 1000)
        counted = Counter({**held.counted, **self.budgets.amounts(held.spending)})
        if counter in PERIODS:
            return self.budgets.used((), counter, counted, now_ms)
        if counter == "gpu_time":
            return counted["still"] + counted["ends"] - counted["rate"] * now_ms
        return counted[counter]

    def jobs_of(self, scope: Scope) -> list[int]:
        """Return the running jobs that count in a scope."""
        return [job for job, held in self.held.items() if scope in self._scopes(held.party)]

    def pass_ends(self, now_s: float) -> None:
        """Let jobs beyond the end of their walltime count no time any more."""
        now_ms = math.floor(now_s * 1000)
        while self._ends and self._ends[0][0] <= now_ms:
            end_ms, job = heapq.heappop(self._ends)
            held = self.held.get(job)
            if held is not None and held.end_ms == end_ms:
                self.count(job, structs.replace(held, end_ms=0, walltime_ms=0))

    def used(self, scope: Scope, counter: str, now_s: float) -> float:
        """Return what of a counter is used; infinite where a job has no end."""
        counts = self.counts.get(scope)
        if counter in PERIODS:
            now_ms = math.floor(now_s * 1000)
            return self.budgets.used(scope, counter, counts or Counter(), now_ms)
        if counts is None:
            return 0
        if counter != "gpu_time":
            return counts[counter]
        if counts["endless"]:
            return math.inf
        return counts["still"] + counts["ends"] - counts["rate"] * math.floor(now_s * 1000)


class LimitRoom:
    """What limits leave at one moment; a plan takes of it, and the book stays as it is."""

    def __init__(self, book: LimitBook, now_s: float) -> None:
        self.book = book
        self.rules = book.rules
        self.now_s = now_s
        self._taken: dict[Scope, Counter[str]] = {}
        self._moved: dict[int, CountedUse] = {}
        if self.rules.by_time:
            book.begin_day(now_s)
            book.pass_ends(now_s)

    def copy(self) -> "LimitRoom":
        """Return the same, to take of it for another plan."""
        other = LimitRoom(self.book, self.now_s)
        other._taken = {scope: Counter(taken) for scope, taken in self._taken.items()}
        other._moved = dict(self._moved)
        return other

    def detach(self) -> "LimitRoom":
        """Return the same as a value, which does not change with the state."""
        other = self.copy()
        other.book = self.book.copy()
        other.book.queued = {}
        return other

    def used(self, bound: Bound) -> float:
        """Return what is used of a limit."""
        taken = self._taken[bound.scope][bound.takes] if bound.scope in self._taken else 0
        return self.book.used(bound.scope, bound.counter, self.now_s) + taken

    def lack(self, party: Party | None, needed: Mapping[str, float]) -> AtLimit | None:
        """Return which limit keeps a job from starting; None: none does.

        Args:
            party: of its class.
            needed: what it would count.
        """
        if party is None:
            return None
        for bound in self.rules.bounds(party):
            amount = needed.get(bound.takes, 0)
            if amount and bound.kind.at_start:
                used = self.used(bound)
                if used + amount > bound.most:
                    return AtLimit.of(bound, used, amount, self.now_s)
        return None

    def take(self, party: Party | None, amounts: Mapping[str, float]) -> None:
        """Let a job that starts count."""
        if party is None:
            return
        for scope in self.rules.scopes(party):
            taken = self._taken.setdefault(scope, Counter())
            for counter, amount in amounts.items():
                if math.isfinite(amount):
                    taken[counter] += int(amount)

    def frees_s(self, party: Party, needed: Mapping[str, float]) -> float | None:
        """Return when a job may not lack GPU time any more if nothing else happens; else None.

        Jobs that have not started are assumed to start now.
        """
        times_s = []
        for bound in self.rules.bounds(party):
            if bound.counter in PERIODS:
                amount = needed.get(bound.takes, 0)
                if amount <= bound.most < self.used(bound) + amount:
                    times_s.append(next_s(bound.counter, self.now_s))
                continue
            rate = self.book.counts.get(bound.scope, Counter())["gpus"]
            excess = self.used(bound) + needed.get(bound.counter, 0) - bound.most
            can_start = bound.counter == "gpu_time" and needed.get("gpu_time", 0) <= bound.most
            if can_start and excess > 0 and rate and math.isfinite(excess):
                times_s.append(self.now_s + excess / rate / 1000 + 1e-3)
        return max(times_s, default=None)

    def grown(self, job: int, allocation: Allocation, nodes: Nodes) -> AtLimit | None:
        """Return which limit keeps a running job from an allocation beside what it has; or None.

        What it leaves counts until it has left.
        """
        held = self._moved.get(job) or self.book.held.get(job)
        if held is None:
            return None
        more = self._more(held, allocation, nodes)
        return self.lack(held.party, more)

    def move(self, job: int, allocation: Allocation, nodes: Nodes) -> None:
        """Let a running job count an allocation beside what it has."""
        held = self._moved.get(job) or self.book.held.get(job)
        if held is not None:
            more = self._more(held, allocation, nodes)
            self.take(held.party, more)
            amounts = most_of(held.amounts, amounts_of(allocation, nodes))
            self._moved[job] = structs.replace(held, amounts=amounts)

    def _more(self, held: CountedUse, allocation: Allocation, nodes: Nodes) -> Mapping[str, float]:
        after = amounts_of(allocation, nodes)
        more: dict[str, float] = {
            counter: amount - held.amounts.get(counter, 0)
            for counter, amount in after.items()
            if amount > held.amounts.get(counter, 0)
        }
        if "gpus" in more and self.rules.by_time:
            now_ms = math.floor(self.now_s * 1000)
            left_ms = max(0, held.end_ms - now_ms) if held.end_ms else held.walltime_ms
            more["gpu_time"] = math.inf if left_ms is None else more["gpus"] * left_ms
        return more

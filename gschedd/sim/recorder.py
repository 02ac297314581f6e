"""Sees what a simulated cluster does, and adds it up: one line a job, averages, series."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from gsched.model.states import OutcomeKind
from gschedd.core.state import facts as f
from gschedd.core.state.records import Job
from gschedd.sim.agenda import Agenda
from gschedd.sim.cluster import ClusterNode
from gschedd.sim.machine import SimMachine
from gschedd.sim.measure import Gauge, Means, jain, quantile
from gschedd.sim.savings import Savings
from gschedd.sim.workload import TraceJob

#: Jobs shorter than this count as if they took it, or a moment's wait would dominate; seconds.
#: Source: Feitelson & Rudolph, Metrics and benchmarking for parallel job scheduling, 1998.
SLOWDOWN_BOUND_S: Final = 10.0
#: By which a deadline may be missed through the digits that seconds since the epoch have left.
ROUNDING_S: Final = 1e-3
DIGITS: Final = 6  # of every figure in a report: microseconds, millionths


class JobResult(Struct, frozen=True, kw_only=True):
    """What became of one job; times in seconds since the trace begins.

    Attributes:
        start_s: of its first attempt; empty if it never started.
        slowdown: bounded: (waiting + running) / max(running, 10 s), at least 1.
        deadline_met: 1 or 0; empty if it has no deadline.
        guaranteed: whether it was guaranteed to meet it, 1 or 0; empty if nothing was.
    """

    job: int
    user: str
    name: str
    kind: str
    cpus: int
    gpus: int
    nodes: str
    submit_s: float
    start_s: float | None
    end_s: float
    wait_s: float
    run_s: float
    slowdown: float
    outcome: str
    exit_code: int | None
    attempts: int
    deadline_met: int | None
    guaranteed: int | None


class Distribution(Struct, frozen=True, kw_only=True):
    """How a figure is distributed over jobs."""

    mean: float
    median: float
    p90: float
    p99: float
    maximum: float


class Resource(Struct, frozen=True, kw_only=True):
    """The use of one resource, averaged over time.

    Attributes:
        utilisation: mean of the nodes, 0 to 1, from the first submission to the last end.
        imbalance: standard deviation over mean of the nodes' utilisation, while anything is used.
    """

    utilisation: float
    imbalance: float


class OverTime(Struct, frozen=True, kw_only=True):
    """Values over time, each the mean of ``step_s`` seconds."""

    step_s: float
    cpu: list[float]
    memory: list[float]
    gpu: list[float]
    cpu_imbalance: list[float]
    waiting: list[float]
    running: list[float]


class Summary(Struct, frozen=True, kw_only=True):
    """What one policy made of a trace; all times in seconds.

    Attributes:
        jobs: that were submitted and not refused.
        refused: of which the head said that they can never run here, by its words.
        unfinished: left when the run was interrupted.
        makespan_s: from the first submission to the last end.
        fairness: Jain's index over the users' mean slowdowns.
        deadline_rate: share of the jobs with a deadline that met it; None if no job has one.
        migrations: jobs moved while they ran.
        requeues: attempts that did not count.
        oddities: counted by the head: plans refused, messages that did not fit.
        savings: what power saving and the ends of jobs with idle GPUs gave; None: not modelled.
    """

    policy: str
    jobs: int
    done: int
    unfinished: int
    refused: dict[str, int]
    outcomes: dict[str, int]
    makespan_s: float
    waiting_s: Distribution
    completion_s: Distribution
    slowdown: Distribution
    cpu: Resource
    memory: Resource
    gpu: Resource
    fairness: float
    users: int
    deadline_rate: float | None
    migrations: int
    requeues: int
    events: int
    cycles: int
    oddities: dict[str, int]
    over_time: OverTime
    savings: Savings | None = None


#: What is followed over time, in the order in which `Recorder` tells it.
_MEASURED: Final = (
    *("cpu", "memory", "gpu"),
    *("cpu_imbalance", "memory_imbalance", "gpu_imbalance"),
    *("waiting", "running"),
)


class Recorder:
    """The `Watcher` of a run.

    Args:
        on_result: told of each job that is done, in order of their ends.

    Attributes:
        last_end_s: of a job that is done, seconds since the epoch.
        on_change: told of each machine on which something else is in use from now on.
        on_facts: told of all that has become durable.
    """

    def __init__(
        self,
        agenda: Agenda,
        nodes: Sequence[ClusterNode],
        *,
        on_result: Callable[[JobResult], None] | None = None,
    ) -> None:
        self._agenda = agenda
        self._on_result = on_result
        self._begin_s = agenda.now_s
        self._seen_s = agenda.now_s
        self.last_end_s = agenda.now_s
        self._cpus = Gauge([node.inventory.cores for node in nodes])
        self._memory = Gauge([node.inventory.memory_bytes for node in nodes])
        self._gpus = Gauge([len(node.inventory.gpus) for node in nodes])
        self._index = {node.name: index for index, node in enumerate(nodes)}
        self._means = Means(_MEASURED)
        self._idle: set[int] = set()
        self._running = 0
        self._waits: list[float] = []
        self._completions: list[float] = []
        self._slowdowns: list[float] = []
        self._of_user: dict[str, tuple[float, int]] = {}
        self._outcomes: Counter[str] = Counter()
        self._deadlines: Counter[bool] = Counter()
        self._requeues = 0
        self._migrations = 0
        self.on_change: Callable[[SimMachine], None] | None = None
        self.on_facts: Callable[[Sequence[f.AnyFact]], None] | None = None
        self.traced: dict[int, TraceJob] = {}
        self.submitted = 0
        self.done = 0

    # --- while it runs ---

    def committed(self, facts: Sequence[f.AnyFact], done: Iterable[Job]) -> None:
        """Take in what has become durable."""
        self._pass_time()
        if self.on_facts is not None:
            self.on_facts(facts)
        for fact in facts:
            self._note(fact)
        for job in done:
            self._take(job)

    def _note(self, fact: f.AnyFact) -> None:
        match fact:
            case f.JobSubmitted():
                self.submitted += 1
                self._idle.add(fact.job)
            case f.AttemptAssigned():
                self._idle.discard(fact.job)
                self._running += 1
            case f.MigrationRequested():
                self._migrations += 1
            case f.AttemptEnded():
                self._running -= 1
                if fact.outcome.kind in {OutcomeKind.MOVED, OutcomeKind.RERUN}:
                    self._idle.add(fact.job)
            case f.JobRequeued():
                self._idle.add(fact.job)
                self._requeues += 1
            case f.JobEnded():
                self._idle.discard(fact.job)
            case _:
                pass

    def changed(self, machine: SimMachine) -> None:
        """Take in that something else is in use on a machine now."""
        self._pass_time()
        if self.on_change is not None:
            self.on_change(machine)
        index = self._index[machine.name]
        self._cpus.set(index, machine.work.cpus_used)
        self._memory.set(index, machine.work.memory_bytes)
        self._gpus.set(index, machine.gpus_used)

    def _pass_time(self) -> None:
        passed_s = self._agenda.now_s - self._seen_s
        if passed_s <= 0:
            return
        self._seen_s = self._agenda.now_s
        cpu, memory, gpu = self._cpus.mean, self._memory.mean, self._gpus.mean
        self._means.add(
            (
                *(cpu, memory, gpu),
                *(self._cpus.imbalance, self._memory.imbalance, self._gpus.imbalance),
                *(len(self._idle), self._running),
            ),
            passed_s,
            (True, True, True, cpu > 0, memory > 0, gpu > 0, True, True),
        )

    def _take(self, job: Job) -> None:
        assert job.ended_s is not None, "a job that is done has ended"
        assert job.outcome is not None, "a job that is done has its outcome"
        traced = self.traced.pop(job.id)
        started_s = job.started_s
        self.done += 1
        self.last_end_s = max(self.last_end_s, job.ended_s)
        wait_s = (started_s if started_s is not None else job.ended_s) - job.submitted_s
        run_s = 0.0 if started_s is None else job.ended_s - started_s
        slowdown = max(1.0, (wait_s + run_s) / max(run_s, SLOWDOWN_BOUND_S))
        self._waits.append(wait_s)
        self._completions.append(wait_s + run_s)
        self._slowdowns.append(slowdown)
        total, count = self._of_user.get(traced.user, (0.0, 0))
        self._of_user[traced.user] = (total + slowdown, count + 1)
        self._outcomes[job.outcome.kind.value] += 1
        met = None
        if traced.deadline_s is not None:
            met = job.outcome.succeeded and wait_s + run_s <= traced.deadline_s + ROUNDING_S
            self._deadlines[met] += 1
        if self._on_result is not None:
            self._on_result(self._result(job, traced, (wait_s, run_s, slowdown), met=met))

    def _result(
        self, job: Job, traced: TraceJob, times: tuple[float, float, float], *, met: bool | None
    ) -> JobResult:
        assert job.ended_s is not None, "a job that is done has ended"
        assert job.outcome is not None, "a job that is done has its outcome"
        request = job.spec.request
        begin_s = self._begin_s
        return JobResult(
            job=job.id,
            user=traced.user,
            name=traced.name,
            kind=traced.kind,
            cpus=request.cpus,
            gpus=request.gpus,
            nodes=" ".join(job.attempt.parts) if job.attempt is not None else "",
            submit_s=round(job.submitted_s - begin_s, DIGITS),
            start_s=None if job.started_s is None else round(job.started_s - begin_s, DIGITS),
            end_s=round(job.ended_s - begin_s, DIGITS),
            wait_s=round(times[0], DIGITS),
            run_s=round(times[1], DIGITS),
            slowdown=round(times[2], DIGITS),
            outcome=job.outcome.kind.value,
            exit_code=job.outcome.exit_code,
            attempts=job.attempts,
            deadline_met=None if met is None else int(met),
            guaranteed=None if job.guaranteed is None else int(job.guaranteed),
        )

    # --- at the end ---

    def summary(
        self,
        policy: str,
        *,
        refused: Mapping[str, int],
        cycles: int,
        oddities: Mapping[str, int],
        savings: Savings | None = None,
    ) -> Summary:
        """Return the results so far."""
        self._pass_time()
        means = self._means
        slowdowns = [total / count for total, count in self._of_user.values()]
        with_deadline = self._deadlines.total()
        return Summary(
            policy=policy,
            jobs=self.submitted,
            done=self.done,
            unfinished=self.submitted - self.done,
            refused=dict(sorted(refused.items())),
            outcomes=dict(sorted(self._outcomes.items())),
            makespan_s=round(self.last_end_s - self._begin_s, DIGITS),
            waiting_s=_spread(self._waits),
            completion_s=_spread(self._completions),
            slowdown=_spread(self._slowdowns),
            cpu=self._resource("cpu"),
            memory=self._resource("memory"),
            gpu=self._resource("gpu"),
            fairness=round(jain(slowdowns), DIGITS),
            users=len(slowdowns),
            deadline_rate=(
                round(self._deadlines[True] / with_deadline, DIGITS) if with_deadline else None
            ),
            migrations=self._migrations,
            requeues=self._requeues,
            events=self._agenda.events,
            cycles=cycles,
            oddities=dict(sorted(oddities.items())),
            savings=savings,
            over_time=OverTime(
                step_s=means.series.width_s,
                **{
                    name: [round(value, DIGITS) for value in means.over_time(name)]
                    for name in OverTime.__struct_fields__
                    if name != "step_s"
                },
            ),
        )

    def _resource(self, name: str) -> Resource:
        return Resource(
            utilisation=round(self._means.average(name), DIGITS),
            imbalance=round(self._means.average(f"{name}_imbalance"), DIGITS),
        )


def _spread(values: Sequence[float]) -> Distribution:
    ordered = sorted(values)
    return Distribution(
        mean=round(sum(ordered) / len(ordered), DIGITS) if ordered else 0.0,
        median=round(quantile(ordered, 0.5), DIGITS),
        p90=round(quantile(ordered, 0.9), DIGITS),
        p99=round(quantile(ordered, 0.99), DIGITS),
        maximum=round(ordered[-1], DIGITS) if ordered else 0.0,
    )

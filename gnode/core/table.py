"""The attempts a node knows, what they own, and the marks by which old orders are recognised."""

from collections import deque
from dataclasses import dataclass, field

from msgspec import structs

from gnode.core.cpus import CpuMap
from gnode.core.effects import Effect, EndSharing, SendToHead, Warn
from gnode.core.leases import NodeLeases
from gnode.core.mark import HeadMark
from gnode.core.site import Site
from gnode.core.task import AcceptedTask, Account, AttemptKey, Command
from gnode.core.transitions import LIVE, OVER, PART_STATES, Happening, Phase, next_phase
from gnode.task import STDERR, SupervisorInfo
from gsched.model.configuration import ConfigRow
from gsched.model.gpu_outside import GpuUse
from gsched.model.gpu_tokens import GpuSharing
from gsched.model.health import HealthResult, health_problem
from gsched.model.ids import submitted_number
from gsched.model.job import ExitRecord
from gsched.model.origin import Origin
from gsched.model.resources import GpuShare, Inventory, Load, Usage
from gsched.model.states import Join, PartState, StopReason
from gsched.protocol.node import (
    AttemptReport,
    Checkpointed,
    Exited,
    KnownAttempt,
    Launch,
    Started,
    TrainingProgress,
)

LATEST_MAX = 100_000  # jobs whose last attempt is remembered after its spool is gone (~10 MB)
LEAST_TAIL_S = 1.0  # from the last sample to the end, or its busy cores are noise


@dataclass(slots=True, kw_only=True)
class NodeAttempt:
    """What the agent knows of one attempt.

    Attributes:
        task: that it runs; None: nothing of it is on disk, or its task cannot be read.
        has_spool: false for a refused launch or a tombstone: there is nothing on disk.
        deferred: not launched before an older attempt of the same job is over.
        admitting: not launched before the runtime for shared GPUs has admitted it.
        abuse: why processes of it were killed: it broke the rules of a shared GPU.
        launch_requested: the launcher was requested it.
        info: of its supervisor, once seen.
        waiting: commands for a supervisor that was not seen yet.
        origin: where it comes from, also if it has no task because its launch was refused.
        buried: its record lies in the log of ended attempts already.
        saved, reached: what a training has said last of its checkpoints and its steps.
        prepared: it was started behind a closed gate, and is not launched.
        waits: its processes have come to the gate.
        warm: it was launched by opening its gate.
        ended: its exit record while the epilog runs: it is reported after that.
        epilog: what went wrong in its epilog, empty: nothing; None: it has not ended.
        delivery: the path of output that could not be delivered; empty: delivered; None: not over.
        launch: that waits for the end of an older attempt here; ``account``: its owner's.
        told_wall_s: its run time when the head was last told, before a heartbeat, what it uses.
        kill_at_s: when gnode kills it itself, since the supervisor did not obey a stop.
        shell_bytes: what the orders to start its shells take in the spool.
        renewed_s: when its lease was renewed last.
    """

    key: AttemptKey
    phase: Phase = Phase.ACCEPTED
    task: AcceptedTask | None = None
    has_spool: bool = True
    deferred: bool = False
    admitting: bool = False
    abuse: str = ""
    launch_requested: bool = False
    pid: int = 0
    start_ticks: int = 0
    info: SupervisorInfo | None = None
    record: ExitRecord | None = None
    ended: ExitRecord | None = None
    epilog: str | None = None
    delivery: str | None = None
    usage: Usage | None = None
    reported_wall_s: float = 0.0
    waiting: list[Command] = field(default_factory=list)
    stop_reason: StopReason | None = None
    kill_at_s: float | None = None
    shell_bytes: int = 0
    renewed_s: float = 0.0
    origin: Origin | None = None
    buried: bool = False
    saved: Checkpointed | None = None
    reached: TrainingProgress | None = None
    prepared: bool = False
    waits: bool = False
    warm: bool = False
    launch: Launch | None = None
    account: Account | None = None

    @property
    def unasked(self) -> bool:
        """Return whether something is in the way of asking the launcher for it."""
        return self.deferred or self.admitting

    @property
    def live(self) -> bool:
        """Return whether processes of it may exist."""
        return self.phase in LIVE

    @property
    def is_over(self) -> bool:
        """Return whether there is an exit record, and its node still works on the rest."""
        return self.phase in OVER

    @property
    def state(self) -> PartState:
        """Return where it is for the head: its epilog runs also after a start that failed."""
        if self.phase is Phase.EPILOG and self.info is None:
            return PartState.PENDING
        return PART_STATES[self.phase]

    @property
    def awaits_epilog(self) -> bool:
        """Return whether its resources are not free before an epilog has ended."""
        programs = self.task.programs if self.task is not None else None
        return programs is not None and bool(programs.epilog) and self.epilog is None

    @property
    def awaits_delivery(self) -> bool:
        """Return whether output is here that is to return to the host of submission first."""
        is_away = self.info is not None and self.info.away
        return is_away and self.delivery is None and bool(self.task and self.task.away)

    @property
    def lease_s(self) -> float:
        """Return the length of its lease, seconds; 0: it has none."""
        return self.task.lease_s if self.task is not None else 0.0

    @property
    def lease_over_s(self) -> float:
        """Return when it is killed at the latest, unless its lease is renewed before."""
        grace_s = self.task.lease_grace_s if self.task is not None else 0.0
        return self.renewed_s + self.lease_s + grace_s

    @property
    def gpu_shares(self) -> tuple[GpuShare, ...]:
        """Return the parts of GPUs that it owns."""
        return self.task.gpu_shares if self.task is not None else ()

    @property
    def gpu_indices(self) -> tuple[int, ...]:
        """Return the whole GPUs that it owns."""
        return self.task.gpu_indices if self.task is not None else ()

    def output_path(self, *, error: bool) -> str:
        """Return the path of standard output or error: the real one, once it is known."""
        info, task = self.info, self.task
        real = (info.stderr_path if error else info.stdout_path) if info is not None else ""
        if real or task is None:
            return real
        if task.join == (Join.INTO_OUT if error else Join.INTO_ERR):
            error = not error
        return task.stderr_path if error else task.stdout_path

    def stated_path(self, *, error: bool) -> str:
        """Return the path for the head: ``HOST:PATH`` of output that returns to there."""
        real, task = self.output_path(error=error), self.task
        away = task.away if task is not None else None
        if task is None or away is None or not real.startswith(f"{away.outbox}/"):
            return real
        path, name = task.stdout_path, task.stdout_name
        if real.endswith(f"/{STDERR}"):
            path, name = task.stderr_path, task.stderr_name
        return f"{away.host}:{path}{name if path.endswith('/') else ''}"

    def report(self) -> AttemptReport:
        """Return what the head hears of it at a registration."""
        return AttemptReport(
            job=self.key.job,
            attempt=self.key.attempt,
            state=self.state,
            pid=self.info.job_pid if self.info else 0,
            started_s=self.info.started_s if self.info else 0.0,
            exit=self.record,
            usage=self.total_usage(),
            token=self.token,
        )

    @property
    def token(self) -> str:
        """Return what tells it from an attempt of the same number in a lost history."""
        return self.origin.token if self.origin is not None else ""

    def is_of(self, token: str) -> bool:
        """Return whether a message with this token is about this very attempt."""
        return not token or not self.token or token == self.token

    def known(self) -> KnownAttempt:
        """Return all that is known of it."""
        info = self.info
        return KnownAttempt(
            job=self.key.job,
            attempt=self.key.attempt,
            state=self.state,
            pid=info.job_pid if info else 0,
            started_s=info.started_s if info else 0.0,
            stdout_path=self.stated_path(error=False),
            stderr_path=self.stated_path(error=True),
            exit=self.record,
            usage=self.total_usage(),
            origin=self.origin,
        )

    def started(self) -> Started:
        """Return the report of its start; its supervisor must have been seen."""
        assert self.info is not None
        return Started(
            job=self.key.job,
            attempt=self.key.attempt,
            pid=self.info.job_pid,
            started_s=self.info.started_s,
            stdout_path=self.stated_path(error=False),
            stderr_path=self.stated_path(error=True),
            token=self.token,
            warm=self.warm,
        )

    def busy_cores_at_end(self, record: ExitRecord) -> float:
        """Return how many cores it kept busy from its last sample to its end.

        Where that is too short to tell, or there was no sample, it is the mean over the whole run.
        """
        usage = self.usage or Usage()
        cpu_s, wall_s = record.cpu_s - usage.cpu_s, record.wall_s - usage.wall_s
        if wall_s <= LEAST_TAIL_S:
            cpu_s, wall_s = max(record.cpu_s, usage.cpu_s), record.wall_s
        return max(0.0, cpu_s / wall_s) if wall_s > 0 else 0.0

    def total_usage(self) -> Usage:
        """Return what it used: exact figures of its record over those of the samples."""
        usage = self.usage or Usage()
        record = self.record
        if record is None:
            return usage
        cpu_s = max(record.cpu_s, usage.cpu_s)
        mean_cores = cpu_s / record.wall_s if record.wall_s > 0 else 0.0
        return Usage(
            wall_s=record.wall_s,
            cpu_s=cpu_s,
            cpu_peak_cores=max(usage.cpu_peak_cores, mean_cores, self.busy_cores_at_end(record)),
            memory_peak_bytes=max(record.memory_peak_bytes, usage.memory_peak_bytes),
            memory_mean_bytes=usage.memory_mean_bytes,
            gpu_util_mean_percent=usage.gpu_util_mean_percent,
            gpu_memory_peak_bytes=usage.gpu_memory_peak_bytes,
            gpu_memory_mean_bytes=usage.gpu_memory_mean_bytes,
            read_bytes=usage.read_bytes,
            write_bytes=usage.write_bytes,
            samples=usage.samples,
            gpu_idle_s=usage.gpu_idle_s,
        )


@dataclass(slots=True, kw_only=True)
class Table:
    """The state of a node's agent; only the agent's parts change it.

    Attributes:
        gpu_owner: which live attempt owns a whole GPU, by index.
        sharers: the live attempts that share GPUs.
        cpu_map: which live attempt owns which CPU.
        unbound: why new attempts are not bound to CPUs, in words; empty: they are.
        live_of_job: the live attempts of each job, in order of their numbers.
        latest: the highest attempt known of each job, oldest entries first.
        mark: of the heads that were obeyed; ``saved_mark`` is what of it is durable.
        removals: when which spool is removed, in order of time.
        problem: why the machine takes no new jobs; empty: it does.
        health: the last results of its health checks, of which one that failed is a problem, too.
        config: how the configuration file was read; None: not yet.
        gpu_sharing: how jobs share GPUs here; None: nothing is known of it.
        gpu_use: who is on the GPUs beside the jobs; None: likewise.
        leases: how far the leases of attempts reach.
        out: effects of the step that is going on.
        launches: prepared attempts whose launch has waited for an end that has just come.
        dropped: counted warnings, by name: messages that did not fit.
    """

    site: Site
    inventory: Inventory
    attempts: dict[AttemptKey, NodeAttempt] = field(default_factory=dict)
    gpu_owner: dict[int, AttemptKey] = field(default_factory=dict)
    sharers: dict[AttemptKey, NodeAttempt] = field(default_factory=dict)
    cpu_map: CpuMap = field(default_factory=CpuMap)
    unbound: str = ""
    live_of_job: dict[int, list[AttemptKey]] = field(default_factory=dict)
    latest: dict[int, int] = field(default_factory=dict)
    removals: deque[tuple[float, AttemptKey]] = field(default_factory=deque)
    stopping: dict[AttemptKey, NodeAttempt] = field(default_factory=dict)
    mark: HeadMark = field(default_factory=HeadMark)
    saved_mark: HeadMark = field(default_factory=HeadMark)
    welcomed: bool = False
    launcher_up: bool = False
    ending: StopReason | None = None
    load: Load = field(default_factory=Load)
    problem: str = ""
    health: tuple[HealthResult, ...] = ()
    config: ConfigRow | None = None
    gpu_sharing: GpuSharing | None = None
    gpu_use: GpuUse | None = None
    leases: NodeLeases[NodeAttempt] = field(default_factory=NodeLeases)
    out: list[Effect] = field(default_factory=list)
    launches: list[AttemptKey] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)

    def add(self, attempt: NodeAttempt) -> None:
        """Take up an attempt that was not known."""
        key = attempt.key
        assert key not in self.attempts
        self.attempts[key] = attempt
        self.remember(key)
        if attempt.live:
            self.live_of_job.setdefault(key.job, []).append(key)
            self.own(attempt)

    def own(self, attempt: NodeAttempt) -> None:
        """Note what an attempt that lives owns, and that its lease is to be renewed."""
        task = attempt.task
        if task is None:
            return
        for index in task.gpu_indices:
            self.gpu_owner[index] = attempt.key
        self.cpu_map.own(attempt.key, task.cpus)
        if task.gpu_shares:
            self.sharers[attempt.key] = attempt
        if task.lease_s:
            self.leases.attempts[attempt.key] = attempt

    def choose_cpus(self, launch: Launch) -> tuple[int, ...]:
        """Return the CPUs of a launch, none of which another job owns; empty: it is not bound."""
        numbers = self.cpu_map.numbers
        if not numbers or self.unbound or not launch.share.cpus:
            return ()
        count = len(numbers) if launch.share.exclusive else launch.share.cpus
        chosen = self.cpu_map.choose(launch.job, count)
        if not chosen:
            name = AttemptKey(launch.job, launch.attempt).name
            text = (
                f"attempt {name} is not bound to CPUs: it needs {count}, and fewer are free of "
                "other attempts; it runs on all CPUs of the node"
            )
            self.out.append(Warn(text=text))
        return chosen

    @property
    def cpu_binding(self) -> str:
        """Return how new attempts are bound to CPUs, for the head."""
        return f"none: {self.unbound}" if self.unbound else self.site.cpu_binding

    @property
    def closed(self) -> str:
        """Return why the node takes no new jobs, for the head; empty: it does."""
        settings = self.config.settings if self.config is not None else None
        unusable = settings.problem if settings is not None and settings.closed else ""
        return "; ".join(filter(None, (self.problem, unusable, health_problem(self.health))))

    def live(self) -> list[NodeAttempt]:
        """Return the attempts that may have processes; ended ones can be thousands beside them."""
        return [self.attempts[key] for keys in self.live_of_job.values() for key in keys]

    def remember(self, key: AttemptKey) -> None:
        """Note that this attempt exists, so that orders about earlier ones are recognised."""
        number = submitted_number(key.job)
        if number > self.mark.highest_job:
            self.mark = structs.replace(self.mark, highest_job=number)
        self.latest[key.job] = max(key.attempt, self.latest.pop(key.job, 0))
        if len(self.latest) > LATEST_MAX:
            del self.latest[next(iter(self.latest))]

    def move(self, attempt: NodeAttempt, happening: Happening) -> bool:
        """Move an attempt on; return False, with a counted warning, if that cannot follow."""
        phase = next_phase(attempt.phase, happening)
        if phase is None:
            self.drop(f"{happening} while {attempt.phase}", attempt.key)
            return False
        was_live = attempt.live
        attempt.phase = phase
        if was_live and not attempt.live:
            self._release(attempt)
        return True

    def _release(self, attempt: NodeAttempt) -> None:
        key = attempt.key
        self.stopping.pop(key, None)
        self.leases.attempts.pop(key, None)
        attempt.kill_at_s = None
        for index in attempt.gpu_indices:
            if self.gpu_owner.get(index) == key:
                del self.gpu_owner[index]
        if attempt.task is not None:
            self.cpu_map.release(key, attempt.task.cpus)
        if self.sharers.pop(key, None) is not None:
            self.out.append(EndSharing(key=key, shares=attempt.gpu_shares))
        live = self.live_of_job[key.job]
        live.remove(key)
        if not live:
            del self.live_of_job[key.job]

    def forget(self, key: AttemptKey) -> None:
        """Drop an attempt whose spool is gone; `latest` still knows its number."""
        del self.attempts[key]

    def drop(self, name: str, key: AttemptKey | None = None) -> None:
        """Count something that did not fit and was ignored."""
        self.dropped[name] = self.dropped.get(name, 0) + 1
        about = f"attempt {key.name}: " if key else ""
        self.out.append(Warn(text=f"{about}ignored: {name}"))

    def tell(self, message: Started | Exited) -> None:
        """Send a report, if a head listens; what is not sent now is sent at the next welcome."""
        if self.welcomed:
            self.out.append(SendToHead(message=message))

    def tell_exit(self, attempt: NodeAttempt) -> None:
        """Report the end of an attempt."""
        assert attempt.record is not None
        if self.welcomed:
            self.out.append(
                SendToHead(
                    message=Exited(
                        record=attempt.record,
                        usage=attempt.total_usage(),
                        load=self.load,
                        token=attempt.token,
                    )
                )
            )

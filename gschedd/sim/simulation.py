"""One run of a trace under one policy: nothing fails, messages take no time."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from msgspec import Struct, structs

from gsched.config.idle_gpus import IdleGpusConfig
from gsched.config.limits import SharedLimitTables
from gsched.config.nodes import SharingRules
from gsched.config.policies import BalanceConfig, TrainingConfig
from gsched.config.tables import (
    Config,
    HeadConfig,
    LimitsConfig,
    MovesConfig,
    PowerConfig,
    QueueConfig,
)
from gsched.errors import UsageError
from gsched.model.reports import made_of
from gsched.protocol import node as n
from gsched.protocol.reservations import ReservationChange
from gschedd.core.head import Head
from gschedd.core.requests import commands as c
from gschedd.core.requests.schedule import PRIORITY_RANGE
from gschedd.core.state.settings import Caller, Settings
from gschedd.core.state.state import State
from gschedd.core.state.step import Step
from gschedd.models.deferred import LazyModel
from gschedd.models.predict import Model
from gschedd.models.robust import RobustModel
from gschedd.plan.compose import Composed
from gschedd.plan.sharing import DEFAULT_RULES
from gschedd.plan.snapshot import Policy
from gschedd.plan.training import Fabric
from gschedd.sim.adaptive import Truth
from gschedd.sim.agenda import FOREVER, Agenda
from gschedd.sim.cluster import ClusterNode
from gschedd.sim.gpu_costs import SharingCosts
from gschedd.sim.gpu_work import GpuWork
from gschedd.sim.head import HeadProcess
from gschedd.sim.livelock import LivelockGuard
from gschedd.sim.machine import SimMachine
from gschedd.sim.node import NodeProcess
from gschedd.sim.program import Program
from gschedd.sim.recorder import JobResult, Recorder, Summary
from gschedd.sim.reservations import OPERATOR
from gschedd.sim.savings import DOWN_S, IdleGpuModel, PowerModel, Savings
from gschedd.sim.training_jobs import TrainingWork
from gschedd.sim.work import WORK_MODELS, Work
from gschedd.sim.workload import Classifier, TraceJob, Users

#: When simulated time begins, seconds since the epoch: any moment that is not 0, which records
#: take for "unknown".
BEGIN_S: Final = 1_000_000_000.0
QUEUE: Final = "batch"
#: As good as no limit: what others have published of their policies knows none.
MANY_MOVES: Final = 1_000_000
#: A policy that failed so often in a row is taken to fail for ever: the head would go on asking it.
MAX_FAILURES: Final = 20


class Options(Struct, frozen=True, kw_only=True):
    """How a run is modelled.

    Attributes:
        policy: the name of the policy, for errors.
        work: the model of how jobs progress, by its name in `WORK_MODELS`.
        make_model: makes the predictor that learns from jobs; None: nothing is learned.
        heartbeats: nodes tell how busy they are, as some policies need: these alone read what jobs
            are predicted to use.
        plans_training: the policy plans training jobs one by one, by their deadlines.
        plans_adaptive: it chooses batch sizes of adaptive training jobs, too.
        fabric: how nodes are connected.
        move_s: from the order to move a training to its first further step, seconds.
        max_moves: so many jobs move at once.
        predicted_times: jobs are planned to run as long as their kind did before.
        planning_s: training jobs are planned beside the head, so long for each plan, seconds; None:
            in the head's cycle, in no time.
        savings: the site's power saving and its rules for idle GPUs are modelled.
        boot_s: from the order to power a node up to its registration, seconds.
        site: of which projects, QOS, shares, priority terms, limits, pre-emption and priorities of
            queues are in force.
        sharing: how jobs share GPUs.
        sharing_costs: with the work ``gpus``: what that costs them; None: nothing.
        reservations: created when all nodes have registered.
        truth_of: how a job really behaves that is an adaptive training, whatever it is planned as;
            None where it is none. As its trace says, unless something else is named here.
    """

    policy: str = ""
    work: str = "fixed"
    make_model: Callable[[], Model] | None = None
    heartbeats: bool = False
    plans_training: bool = False
    plans_adaptive: bool = False
    fabric: Fabric = Fabric()
    move_s: float = 30.0
    max_moves: int = MANY_MOVES
    predicted_times: bool = True
    planning_s: float | None = None
    site: Config = Config()
    savings: bool = False
    boot_s: float = 180.0
    sharing: SharingRules = DEFAULT_RULES
    sharing_costs: SharingCosts | None = None
    reservations: tuple[ReservationChange, ...] = ()
    truth_of: Callable[[TraceJob], Truth | None] = lambda job: job.behaviour


class DirectLink:
    """A connection that never fails and takes no time."""

    def __init__(self, agenda: Agenda, head: HeadProcess, node: NodeProcess) -> None:
        self.name = node.name
        self.boot_id = ""
        self.call = 0
        self._agenda = agenda
        self._head = head
        self._node = node

    def to_head(self, message: n.NodeMessage) -> None:
        """Send a message to the head."""
        self._agenda.soon(self._head.hear, self, message)

    def to_node(self, message: n.HeadMessage) -> None:
        """Send a message to the node."""
        self._agenda.soon(self._node.hear, message)

    def hang_up(self) -> None:
        """Never happens: there is one head."""
        raise AssertionError(f"{self.name} refuses the only head there is")

    def cut_off(self) -> None:
        """Never happens: a node has one connection."""
        raise AssertionError(f"the head cuts {self.name} off")


class Simulation:
    """A cluster, a trace and a policy; `run` turns the clock until all is done.

    Args:
        jobs: sorted by the time of their submission.
    """

    def __init__(
        self,
        nodes: Sequence[ClusterNode],
        jobs: Sequence[TraceJob],
        policy: Policy,
        *,
        options: Options | None = None,
        on_result: Callable[[JobResult], None] | None = None,
    ) -> None:
        options = options or Options()
        self.agenda = Agenda(BEGIN_S)
        self.recorder = Recorder(self.agenda, nodes, on_result=on_result)
        self.refused: Counter[str] = Counter()
        self._jobs = jobs
        self._next = 0
        self._users = Users()
        self._classifier = Classifier(nodes)
        self._programs: dict[int, Program] = {}
        names = dict.fromkeys((QUEUE, *sorted({job.queue for job in jobs if job.queue})))
        queues = {name: _queue(name, options.site) for name in names}
        settings = Settings(
            server="sim",
            config=Config(
                head=HeadConfig(max_user_priority=PRIORITY_RANGE[1]),
                balance=BalanceConfig(predicted_times=options.predicted_times),
                training=TrainingConfig(
                    move_s=options.move_s,
                    refuse_impossible=False,  # it counts as missed
                ),
                moves=MovesConfig(at_once=options.max_moves, warm=False),
                limits=made_of(LimitsConfig, made_of(SharedLimitTables, options.site.limits)),
                shares=options.site.shares,
                priority=options.site.priority,
                power=options.site.power if options.savings else PowerConfig(),
                idle_gpus=options.site.idle_gpus if options.savings else IdleGpusConfig(),
                preemption=options.site.preemption,
            ),
            projects={each.name: each for each in options.site.project},
            qos={each.name: each for each in options.site.qos},
            queues=queues,
            fabric=options.fabric,
        )
        self.head = Head(
            state=State(
                {name: queue.priority for name, queue in queues.items()},
                plans_training=options.plans_training,
                plans_adaptive=options.plans_adaptive,
                sharing=options.sharing,
                limits=settings.limit_rules(),
                defers_predictions=True,
            ),
            settings=settings,
            policy=policy,
            model=_model(options),
            apart=(
                policy if options.planning_s is not None and isinstance(policy, Composed) else None
            ),
        )
        self._truth_of = options.truth_of
        self._truths: dict[int, Truth] = {}
        self._idle_gpus = IdleGpuModel(
            self.agenda, settings.config, caller_of=self._caller_of, next_watcher=self.recorder
        )
        training_jobs = TrainingWork(
            self.head,
            self._programs,
            self._truths,
            agenda=self.agenda,
            next_watcher=self._idle_gpus,
        )
        self.daemon = HeadProcess(
            agenda=self.agenda,
            watcher=training_jobs,
            plan_s=lambda: options.planning_s,
            livelock=LivelockGuard(options.policy or _name_of(policy), BEGIN_S),
        )
        self._savings = options.savings
        self._idle_gpus.daemon = self.daemon
        down_s = min(DOWN_S, options.site.power.suspend_timeout_s)
        self._power = PowerModel(
            self.agenda, self.daemon, nodes, down_s=down_s, boot_s=options.boot_s
        )
        self.daemon.on_switch = self._power.switch
        self.daemon.start(self.head)
        self.machines: list[SimMachine] = []
        for node in nodes:
            self._connect(node, options)
        self._settle()
        for change in options.reservations:
            command = c.ChangeReservation(caller=OPERATOR, action=change)
            self.daemon.ask(command, partial(_reserved, change.name))
        self._settle()

    def _connect(self, node: ClusterNode, options: Options) -> None:
        machine = SimMachine(
            node.name,
            node.inventory,
            agenda=self.agenda,
            work=_work(options, node),
            programs=self._programs,
        )
        machine.on_change = self.recorder.changed
        if any(gpu.memory_bytes for gpu in node.inventory.gpus):
            machine.sharing = "modelled"
        self.machines.append(machine)
        heartbeat_s = n.HEARTBEAT_S if options.heartbeats else FOREVER
        daemon = NodeProcess(machine, agenda=self.agenda, heartbeat_s=heartbeat_s, undisturbed=True)
        link = DirectLink(self.agenda, self.daemon, daemon)
        daemon.link = link
        if options.savings:
            self._power.connected(daemon, link)
            self._idle_gpus.connected(machine, link)
        daemon.start()
        challenge = self.daemon.offer(link)
        assert challenge is not None, "the head runs"
        daemon.offer(challenge.cluster, challenge.epoch)

    def run(self, *, turns: int | None = None) -> bool:
        """Turn the clock from moment to moment; return whether something is left to do.

        Args:
            turns: how many moments at most; None: until all jobs are done.
        """
        while turns is None or turns > 0:
            if self._next == len(self._jobs) and self.recorder.done == self.recorder.submitted:
                return False
            time_s = self.next_s()
            if time_s == FOREVER or self.head.retry.failures > MAX_FAILURES:
                return False  # what waits now waits for ever
            self.agenda.turn_to(time_s)
            self._arrive()
            self._settle()
            if turns is not None:
                turns -= 1
        return True

    def next_s(self) -> float:
        """Return the next moment at which anything happens, seconds since the epoch."""
        return min(self.agenda.next_s(), self._arrival_s(), self._alarm_s())

    def _arrival_s(self) -> float:
        if self._next == len(self._jobs):
            return FOREVER
        return BEGIN_S + self._jobs[self._next].submit_s

    def _alarm_s(self) -> float:
        alarm_s = self.daemon.next_alarm_s()
        return FOREVER if alarm_s is None else alarm_s

    def _settle(self) -> None:
        self.agenda.settle()
        while self.daemon.pump():
            self.agenda.settle()

    def _arrive(self) -> None:
        """Submit every job whose time has come."""
        while self._arrival_s() <= self.agenda.now_s:
            job = self._jobs[self._next]
            self._next += 1
            self.agenda.events += 1
            submission = self._classifier.submission(job)
            command = c.Submit(
                caller=self._users.caller(job.user), submitted=submission, digests=("", "")
            )
            self.daemon.ask(command, partial(self._answered, job))

    def _answered(self, job: TraceJob, step: Step) -> None:
        if step.error is not None:
            self.refused[step.error.message] += 1
            return
        self.recorder.traced[step.job] = job
        truth = self._truth_of(job)
        if truth is not None:
            self._truths[step.job] = truth
        elif job.training is None:
            self._programs[step.job] = self._classifier.program(job)

    def _caller_of(self, job: int) -> Caller:
        return self._users.caller(self.recorder.traced[job].user)

    def summary(self, policy: str) -> Summary:
        """Return the results so far."""
        savings = None
        if self._savings:
            savings = Savings()
            self._power.add_to(savings, self.recorder.last_end_s)
            self._idle_gpus.add_to(savings)
        return self.recorder.summary(
            policy,
            refused=self.refused,
            cycles=self.head.cycles,
            oddities=self.head.oddities,
            savings=savings,
        )


def _reserved(name: str, step: Step) -> None:
    """Take in whether a reservation was created.

    Raises:
        UsageError: it cannot be.
    """
    if step.error is not None:
        raise UsageError(f"reservation {name}: {step.error.message}", hint=step.error.hint)


def _model(options: Options) -> Model | None:
    """Return what predicts, and works out what is read alone; None if nothing predicts."""
    if options.make_model is None:
        return None
    reads_uses = options.heartbeats or options.savings
    if options.make_model is RobustModel and not reads_uses:
        return LazyModel(RobustModel(run_times_only=True))
    return LazyModel(options.make_model())


def _name_of(policy: Policy) -> str:
    return str(getattr(policy, "__name__", type(policy).__name__))


def _work(options: Options, node: ClusterNode) -> Work:
    """Return the model of how the jobs of a node progress."""
    cores, speed = node.inventory.cores, node.speed
    if options.sharing_costs is not None:
        assert options.work == "gpus", "only that model knows costs of sharing"
        return GpuWork(cores, speed, options.sharing_costs)
    return WORK_MODELS[options.work](cores, speed)


def _queue(name: str, site: Config) -> QueueConfig:
    """Return a queue with the limits, priority and pre-emption that the site's has."""
    known = next((each for each in site.queue if each.name == name), QueueConfig(name=name))
    return structs.replace(
        made_of(QueueConfig, made_of(SharedLimitTables, known), name=name),
        priority=known.priority,
        preempt_mode=known.preempt_mode,
        preempt_min_run_s=known.preempt_min_run_s,
    )

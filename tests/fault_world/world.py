"""The fault world: the same simulator with everything failing, all of it drawn from one seed.

First a phase in which processes are killed, machines lose power, the network is cut and lies,
clocks are wrong and people change their minds; then a healed phase in which everything must end.
The invariants are checked at every step. The same seed always gives the same story.
"""

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Final

from msgspec import Struct

from gsched.model.resources import Gpu, Inventory
from gschedd.core.apply.jobs import apply
from gschedd.core.head import Head
from gschedd.core.state import facts as f
from gschedd.core.state.records import Job
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State
from gschedd.plan.snapshot import Policy
from gschedd.policies.queue import fifo
from gschedd.sim.agenda import FOREVER, Agenda
from gschedd.sim.head import HeadProcess
from gschedd.sim.machine import SimMachine
from gschedd.sim.node import NodeProcess
from gschedd.sim.work import FixedWork
from tests.fault_world.bookkeeping import InvariantError, check_head, demand
from tests.fault_world.checks import History, Truth, check_rest
from tests.fault_world.network import Way, Weather, Wire
from tests.fault_world.users import CALLERS, Intent, Users, draw_intent
from tests.support.billed import wrong_bills
from tests.support.site import PLAIN, changed

BEGIN_S: Final = 1_000_000_000.0
GIB: Final = 1024**3
FAULTS_S: Final = 600.0  # how long faults go on
HEALED_S: Final = 6 * 3600.0  # by when everything must be over after that; a guard, not a goal
TIDY_S: Final = 30.0  # between two rounds of the operator in the healed phase
LINGER_S: Final = 120.0  # after the last end, until the nodes have forgotten all
COMMIT_S: Final = (0.001, 0.05)
FORK_S: Final = (0.001, 0.05)
FLUSH_S: Final = (0.001, 0.05)
MAX_PLANNED: Final = 20_000  # events on the agenda: far more than such a world needs (I14)

HeadFactory = Callable[[State, Settings, Policy], Head]


class Story(Struct, frozen=True, kw_only=True):
    """What happened in one world, for people who look at the seeds."""

    seed: int
    jobs: int
    attempts: int
    events: int
    faults: dict[str, int]
    oddities: dict[str, int]
    ended_s: float


def plain_head(state: State, settings: Settings, policy: Policy) -> Head:
    """Return the real head."""
    return Head(state=state, settings=settings, policy=policy)


class FaultWorld:
    """One world of one seed.

    Args:
        make_head: makes a head on a state; a broken one must be caught.
        policy: what it schedules by.
        daemon, node: the modelled daemons; broken ones must be caught, too.
        plan_s: how long the planner of a head that has one takes; see `HeadProcess`.
    """

    def __init__(
        self,
        seed: int,
        *,
        make_head: HeadFactory = plain_head,
        policy: Policy = fifo.plan,
        daemon: type[HeadProcess] = HeadProcess,
        node: type[NodeProcess] = NodeProcess,
        plan_s: Callable[[], float | None] | None = None,
    ) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.agenda = Agenda(BEGIN_S)
        self.history = History(caller.user for caller in CALLERS)
        self.faults: Counter[str] = Counter()
        self.oddities: Counter[str] = Counter()
        self._make_head = make_head
        self._policy = policy
        self._head_trap = self._node_trap = self._end_trap = False
        self._settings = self._make_settings()
        self.weather = Weather(ghosts=0.5, repeats=0.05)
        self.daemon = daemon(
            agenda=self.agenda, watcher=self, commit_s=self._commit_delay_s, plan_s=plan_s
        )
        self.users = self._make_users()
        self.nodes = [
            self._make_node(number, node) for number in range(1, self.chance.randint(3, 6))
        ]
        self.machines = [node.machine for node in self.nodes]
        self.wires = {
            node.name: Wire(
                agenda=self.agenda,
                chance=self.chance,
                daemon=self.daemon,
                node=node,
                weather=self.weather,
            )
            for node in self.nodes
        }
        self.truth = Truth(self.machines, self.history)
        self.agenda.watch = self._check_world

    # --- what another world may have otherwise ---

    def _make_settings(self) -> Settings:
        return changed(PLAIN, server="sim")

    def _make_state(self) -> State:
        return State({"batch": 0})

    def _make_users(self) -> Users:
        return Users(
            agenda=self.agenda,
            chance=self.chance,
            daemon=self.daemon,
            delay_s=lambda: self.chance.uniform(*self.weather.delay_s),
        )

    def _draw(self, number: int) -> Intent:
        return draw_intent(self.chance, number)

    def _gpus_and_cpus(self, number: int) -> tuple[int, int]:
        """Return what a node has; two like the first hold every request: none is refused."""
        if number < 3:
            return 2, 4
        return self.chance.randint(0, 2), self.chance.randint(1, 8)

    def _make_node(self, number: int, make: type[NodeProcess]) -> NodeProcess:
        gpus, cpus = self._gpus_and_cpus(number)
        machine = SimMachine(
            f"n{number}",
            Inventory(
                cpus=cpus,
                memory_bytes=8 * GIB,
                gpus=tuple(Gpu(index=index) for index in range(gpus)),
            ),
            agenda=self.agenda,
            work=FixedWork(cpus, 1.0),
            programs=self.users.programs,
            start_s=0.02,
        )
        return make(
            machine,
            agenda=self.agenda,
            heartbeat_s=60.0,
            fork_s=partial(self._fork_delay_s, number - 1),
            flush_s=partial(self._flush_delay_s, number - 1),
        )

    # --- what it is told ---

    def committed(self, facts: Sequence[f.AnyFact], done: Iterable[Job]) -> None:
        """Take in what is durable now, and hold it against what was and what is."""
        del done
        for fact in facts:
            self.history.add(fact)
            self.truth.check_fact(fact)
            if isinstance(fact, f.JobSubmitted):
                self.users.learn(fact.job, fact.spec.client_key)
            elif isinstance(fact, f.ElementsMade):
                self.users.learn_elements(fact.job, fact.elements)

    def _check_world(self) -> None:
        self.truth.check()
        demand(len(self.agenda) < MAX_PLANNED, "I14", f"{len(self.agenda)} events are planned")

    def _check_head(self) -> None:
        head = self.daemon.head
        if head is not None:
            check_head(head)
            known = {*head.state.jobs, *self.history.done, *self.daemon.pending_done}
            lost = sorted(set(self.users.acked.values()) - known)
            demand(not lost, "I1", f"jobs {lost} were acknowledged, the head does not know them")

    # --- time ---

    def run(self) -> Story:
        """Live through faults and healing; return what happened.

        Raises:
            InvariantError: a guarantee was broken.
        """
        self._begin()
        self._run_until(BEGIN_S + FAULTS_S, lambda: False)
        self._heal()
        limit_s = self.agenda.now_s + HEALED_S
        self._run_until(limit_s, self._is_over)
        ended_s = self.agenda.now_s
        self._run_until(ended_s + LINGER_S, lambda: False)
        self._check_end()
        return Story(
            seed=self.seed,
            jobs=len(self.history.submitted),
            attempts=len(self.history.assigned),
            events=self.agenda.events,
            faults=dict(sorted(self.faults.items())),
            oddities=dict(sorted(self.oddities.items())),
            ended_s=ended_s - BEGIN_S,
        )

    def _run_until(self, end_s: float, is_over: Callable[[], bool]) -> None:
        while not is_over():
            alarm_s = self.daemon.next_alarm_s()
            next_s = min(self.agenda.next_s(), FOREVER if alarm_s is None else alarm_s)
            if next_s > end_s:
                break
            self.agenda.turn_to(next_s)
            self.agenda.settle()
            while self.daemon.pump():
                self._check_head()
                self.agenda.settle()
        else:
            return
        self.agenda.turn_to(end_s)

    def _is_over(self) -> bool:
        return len(self.history.done) == len(self.history.submitted) and all(
            key in self.users.acked for key in self._keys
        )

    def _begin(self) -> None:
        chance = self.chance
        self._start_head()
        for node in self.nodes:
            node.machine.skew_s = chance.choice((0.0, 0.0, chance.uniform(-600, 600)))
            node.start()
            self.wires[node.name].dial()
        count = chance.randint(15, 40)
        self._keys = [f"intent-{number}" for number in range(count)]
        for number in range(count):
            intent = self._draw(number)
            self.agenda.after(chance.uniform(5, FAULTS_S * 0.8), self.users.submit, intent)
        for action, rate in self._mishaps():
            at_s = chance.expovariate(rate)
            while at_s < FAULTS_S:
                self.agenda.after(at_s, self._mishap, action)
                at_s += chance.expovariate(rate)

    def _mishap(self, action: Callable[[], None]) -> None:
        self.faults[action.__name__.removeprefix("_")] += 1
        action()

    # --- the head ---

    def _start_head(self) -> None:
        if self.daemon.head is not None:
            return
        state = self._make_state()
        for fact in self.history.facts:
            apply(state, fact)
        state.unstored.finished.clear()
        self.daemon.start(self._make_head(state, self._settings, self._policy))

    def _stop_head(self) -> None:
        head = self.daemon.head
        if head is None:
            return
        self.oddities.update(head.oddities)
        self.daemon.kill(commit_kept=self.chance.random() < 0.5)
        for wire in self.wires.values():
            wire.head_died()

    # --- mishaps ---

    def _mishaps(self) -> list[tuple[Callable[[], None], float]]:
        """Return what may happen, with how often in a second; each world has its own climate."""
        kinds = (
            (self._kill_head, 90),
            (self._kill_head_in_commit, 90),
            (self._kill_gnode, 60),
            (self._kill_at_launch, 60),
            (self._kill_at_end, 60),
            (self._kill_launcher, 150),
            (self._lose_power, 200),
            (self._cut_both, 100),
            (self._cut_one_way, 100),
            (self._break_connection, 40),
            (self._slow_network, 150),
            (self._jump_clock, 200),
            (self._meddle, 10),
        )
        return [(kind, self.chance.choice((0.0, 0.5, 1.0, 3.0)) / every_s or 1e-9)
                for kind, every_s in kinds]  # fmt: skip

    def _a_node(self) -> NodeProcess:
        return self.chance.choice(self.nodes)

    def _kill_head(self) -> None:
        self._stop_head()
        self.agenda.after(self.chance.choice((0.0, 1.0, 20.0, 100.0)), self._start_head)

    def _kill_head_in_commit(self) -> None:
        self._head_trap = True

    def _commit_delay_s(self) -> float:
        delay_s = self.chance.uniform(*COMMIT_S)
        if self._head_trap:
            self._head_trap = False
            self.agenda.after(delay_s * self.chance.uniform(0, 1.2), self._kill_head)
        return delay_s

    def _kill_at_launch(self) -> None:
        self._node_trap = True

    def _fork_delay_s(self, index: int) -> float:
        delay_s = self.chance.uniform(*FORK_S)
        if self._node_trap:
            self._node_trap = False
            action = self.chance.choice((self._kill_gnode, self._kill_launcher, self._lose_power))
            self.agenda.after(delay_s * self.chance.uniform(0, 2), action, self.nodes[index])
        return delay_s

    def _kill_at_end(self) -> None:
        self._end_trap = True

    def _flush_delay_s(self, index: int) -> float:
        delay_s = self.chance.uniform(*FLUSH_S)
        if self._end_trap:
            self._end_trap = False
            action = self.chance.choice((self._kill_gnode, self._kill_launcher, self._lose_power))
            self.agenda.after(delay_s * self.chance.uniform(0, 1.2), action, self.nodes[index])
        return delay_s

    def _kill_gnode(self, node: NodeProcess | None = None) -> None:
        node = node or self._a_node()
        if node.agent is None:
            return
        node.kill()
        self.wires[node.name].node_died(with_machine=False)
        self.agenda.after(self.chance.choice((0.0, 1.0, 20.0, 100.0)), self._start_gnode, node)

    def _start_gnode(self, node: NodeProcess) -> None:
        if node.agent is None:
            node.start()
            self.wires[node.name].dial()

    def _kill_launcher(self, node: NodeProcess | None = None) -> None:
        (node or self._a_node()).restart_launcher()

    def _lose_power(self, node: NodeProcess | None = None) -> None:
        node = node or self._a_node()
        spool = node.machine.spool
        node.lose_power()
        self.wires[node.name].node_died(with_machine=True)
        for key in sorted(spool.unflushed):
            if self.chance.random() < 0.5:
                del spool.records[key]
        spool.unflushed.clear()
        for key in [key for key in spool.tasks if key not in spool.records]:
            if self.chance.random() < 0.5:  # not flushed, unlike an exit record
                spool.remove(key)
        self.agenda.after(self.chance.choice((1.0, 30.0, 200.0)), self._start_gnode, node)

    def _cut_both(self) -> None:
        self._cut(Way.UP, Way.DOWN)

    def _cut_one_way(self) -> None:
        self._cut(self.chance.choice((Way.UP, Way.DOWN)))

    def _cut(self, *ways: Way) -> None:
        wire = self.wires[self._a_node().name]
        wire.cut(*ways)
        self.agenda.after(self.chance.choice((1.0, 15.0, 60.0, 300.0)), wire.mend, *ways)

    def _break_connection(self) -> None:
        link = self._a_node().link
        if link is not None:
            link.hang_up()

    def _slow_network(self) -> None:
        self.weather.delay_s = self.chance.choice(((0.0005, 0.02), (0.05, 3.0), (0.0, 0.0)))

    def _jump_clock(self) -> None:
        if self.chance.random() < 0.3:
            self.daemon.skew_s = self.chance.uniform(-30, 30)
        else:
            self._a_node().machine.skew_s += self.chance.uniform(-600, 600)

    def _meddle(self) -> None:
        self.users.meddle()

    # --- healing ---

    def _heal(self) -> None:
        """End all faults: from now on everything works, and operators look after the rest."""
        self._head_trap = self._node_trap = self._end_trap = False
        self.users.healed = True
        self.weather.ghosts = self.weather.repeats = 0.0
        self.weather.delay_s = (0.0005, 0.02)
        for wire in self.wires.values():
            for way in Way:
                while wire.is_cut(way):
                    wire.mend(way)
        self._start_head()
        for node in self.nodes:
            self._start_gnode(node)
        self._tidy_up()

    def _tidy_up(self) -> None:
        self.users.tidy_up()
        self.agenda.after(TIDY_S, self._tidy_up)

    def _check_end(self) -> None:
        head = self.daemon.head
        assert head is not None, "it was started in the healed phase"
        self.oddities.update(head.oddities)
        unacked = [key for key in self._keys if key not in self.users.acked]
        demand(not unacked, "I11", f"never acknowledged: {unacked}")
        down = [node.name for node in head.state.nodes.values() if node.state != "up"]
        demand(not down, "I11", f"{down} are not up again")
        check_rest(self.history, self.machines, self.users.acked)
        wrong = wrong_bills(head.state.usage.rows.values(), self.history.facts)
        demand(not wrong, "I13", f"usage is not what attempts held: {wrong}")
        demand(not head.state.jobs, "I11", f"the head still has {list(head.state.jobs)}")
        for node in self.nodes:
            known = list(node.agent.attempts) if node.agent is not None else []
            demand(not known, "I14", f"the agent of {node.name} still knows {known}")


def is_caught(
    make: Callable[[int], FaultWorld], seeds: Iterable[int], numbers: Collection[str]
) -> bool:
    """Whether one of these guarantees is found broken in the world of one of the seeds."""
    for seed in seeds:
        try:
            make(seed).run()
        except InvariantError as error:
            if error.number in numbers:
                return True
    return False

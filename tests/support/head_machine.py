"""The head under everything at once: people, nodes, bad networks, bad policies, restarts.

Messages from nodes go into a bag and come out in any order, late, twice or never; orders to nodes
may be lost. After every rule the invariants hold; replaying the facts gives the live state, and so
does the database.
"""

import os
import random
import shutil
import tempfile

from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    precondition,
    rule,
)
from msgspec import Struct, structs

from gsched.config.tables import QueueConfig
from gsched.errors import InvalidTransitionError
from gsched.model.job import ExitRecord, LaunchFailure
from gsched.model.resources import Inventory, Load, Share, Usage
from gsched.model.states import HoldKind, JobState, OutcomeKind, PartState, StopReason
from gsched.protocol import actions as a
from gsched.protocol import node as n
from gsched.protocol.actions import Alteration
from gschedd.core.head import Head
from gschedd.core.requests import commands as c
from gschedd.core.state import effects as e
from gschedd.core.state import facts as f
from gschedd.core.state.settings import Caller
from gschedd.core.state.state import State
from gschedd.core.state.step import Step
from gschedd.plan.snapshot import Plan, Snapshot, Start
from gschedd.policies.queue import fifo
from gschedd.store.reader import Reader
from gschedd.store.rows import Batch
from gschedd.store.sqlite import Store
from tests.fault_world.bookkeeping import check_head
from tests.support.dependent_jobs import DependentJobs
from tests.support.evidence import FORK, LEASE, NO_DIRECTORY, UNKNOWN_USER
from tests.support.head_wishes import callers, holds, moments, numbers, resource_texts, walltimes
from tests.support.idle_jobs import IdleJobs
from tests.support.invariants import check_history, content, replayed
from tests.support.orders import order_of
from tests.support.sharing_jobs import SharingJobs, sharing_of, wild_share
from tests.support.world import (
    ADMIN,
    ALICE,
    BEGIN_S,
    GIB,
    inventory,
    settings,
    submission,
)

NODES = {
    "n1": inventory(
        cpus=4, gpu_types=("a", "a"), gpu_memory_bytes=16 * GIB, generic={"licence": 1}
    ),
    "n2": inventory(cpus=2, gpu_types=("b",), features=("red",)),
    "n3": inventory(cpus=4),
}
SMALLER = inventory(cpus=1)
CONFIG = settings(
    queues={
        "batch": QueueConfig(name="batch"),
        "fast": QueueConfig(name="fast", priority=10, max_walltime_s=50.0, default_walltime_s=20.0),
        "stopped": QueueConfig(name="stopped", started=False),
    },
    max_queued_per_user=30,
    master_port_first=20000,
    master_port_last=20500,
)
Key = tuple[int, int]


class Sent(Struct, frozen=True):
    """A report that is somewhere between a node and the head."""

    node: str
    message: n.Started | n.Exited | n.Probed


class Body:
    """What is physically on a machine."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.boots = 1
        self.connected = False
        self.has: Inventory = NODES[name]
        self.alive: dict[Key, float] = {}
        self.ended: dict[Key, n.Exited] = {}
        self.seen: dict[int, int] = {}


class HeadMachine(DependentJobs, SharingJobs, IdleJobs):
    """Drives a `Head` and keeps a database beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = BEGIN_S
        self.plan_random: random.Random | None = None
        self.directory = tempfile.mkdtemp(prefix="gsched-head-machine-")
        self.store = Store(self.directory)
        self.store.open()
        self.head = Head(state=self.fresh(), settings=CONFIG, policy=self.policy)
        self.bodies = {name: Body(name) for name in NODES}
        self.bag: list[Sent] = []
        self.facts: list[f.AnyFact] = []
        self.shrunk: set[str] = set()
        self.terminal: dict[int, OutcomeKind] = {}

    def teardown(self) -> None:
        self.the_database_holds_the_state()
        self.store.close()
        shutil.rmtree(self.directory)

    def fresh(self) -> State:
        return State({name: queue.priority for name, queue in CONFIG.queues.items()})

    # --- the policy: fifo, or anything at all ---

    def policy(self, snapshot: Snapshot) -> Plan:
        chance = self.plan_random
        if chance is None:
            return fifo.plan(snapshot)
        if chance.random() < 0.1:
            raise RuntimeError("a policy that fails")
        sound = list(fifo.plan(snapshot).starts)
        wild = [self.wild_start(snapshot, chance) for _ in range(chance.randrange(4))]
        starts = [*sound, *wild]
        chance.shuffle(starts)
        return Plan(starts=tuple(starts[: chance.randrange(len(starts) + 1)]))

    def wild_start(self, snapshot: Snapshot, chance: random.Random) -> Start:
        group = chance.choice(snapshot.groups)
        names = chance.sample(sorted(NODES), chance.randint(1, 3))
        shares = tuple(
            Share(
                node=name,
                cpus=chance.choice([-1, 0, 1, 1, 2, 4]),
                slots=chance.choice([0, 1, 1, 2]),
                gpu_indices=tuple(chance.choices(range(3), k=chance.choice([0, 0, 1, 2]))),
                memory_bytes=chance.choice([0, 0, 1]),
                exclusive=chance.random() < 0.1,
            )
            for name in names
        )
        asked = group.job_class.request.gpu_share
        if asked is not None:
            shares = (wild_share(asked, chance),)
        job = chance.choice([chance.choice(group.order)[1], 1, 99])
        return Start(job=job, job_class=group.job_class, allocation=shares, why="wild")

    @rule(seed=st.one_of(st.none(), st.integers(0, 2**16)))
    def change_policy(self, seed: int | None) -> None:
        self.plan_random = None if seed is None else random.Random(seed)

    # --- carrying out ---

    def take(self, step: Step, *, lose: bool = False) -> None:
        state = self.head.state
        if step.error is not None:
            assert not step.facts
            assert str(step.error)
            assert not isinstance(step.error, InvalidTransitionError), step.error
        self.facts.extend(step.facts)
        for job in state.unstored.finished.values():
            assert job.id not in self.terminal, f"job {job.id} ended twice"
            assert job.outcome is not None
            self.terminal[job.id] = job.outcome.kind
        if step.facts:
            self.commit(step.facts)
        state.unstored.finished.clear()
        for effect in step.effects:
            if not lose:
                self.obey(effect)

    def commit(self, facts: tuple[f.AnyFact, ...]) -> None:
        state = self.head.state
        self.store.commit(
            Batch(
                facts=list(facts),
                jobs=list(state.unstored.jobs.values()),
                attempts=[(job, each) for (job, _), each in state.unstored.attempts.items()],
                nodes=list(state.unstored.nodes.values()),
                blobs={},
                next_job=state.next_job,
                usage=list(state.unstored.usage.values()),
            )
        )
        state.unstored.forget_records()

    # --- people ---

    @rule(
        caller=callers,
        resources=resource_texts,
        walltime=walltimes,
        priority=st.integers(-2, 2),
        queue=st.sampled_from(["", "", "", "", "", "fast", "fast", "stopped", "nowhere"]),
        launch=st.sampled_from(["command", "torchrun"]),
        start_after_s=moments,
        rerunnable=st.booleans(),
        asked_holds=holds,
        key=st.sampled_from(["", "", "k1", "k2"]),
    )
    def submit(
        self,
        caller: Caller,
        resources: tuple[str, ...],
        walltime: tuple[str, ...],
        asked_holds: tuple[str, ...],
        **changes: object,
    ) -> None:
        asked = submission(resources=(*resources, *walltime), holds=asked_holds, **changes)
        self.take(self.command(c.Submit(caller=caller, submitted=asked, digests=("", ""))))

    def job(self, number: int) -> int:
        live = sorted(self.head.state.jobs)
        return live[number % len(live)] if live and number < 12 else 99

    def command(self, command: c.AnyCommand) -> Step:
        return self.head.command(command, self.now_s)

    def act(self, caller: Caller, job: int, asked: a.AnyJobAction, *, lose: bool = False) -> None:
        command = c.ActOnJob(caller=caller, job=self.job(job), action=asked)
        self.take(self.command(command), lose=lose)

    def operated(self, caller: Caller, node: str, asked: a.AnyNodeAction) -> None:
        self.take(self.command(c.ActOnNode(caller=caller, node=node, action=asked)))

    @rule(caller=callers, job=numbers, lose=st.booleans())
    def delete(self, caller: Caller, job: int, *, lose: bool) -> None:
        self.act(caller, job, a.DeleteJob(), lose=lose)

    @rule(caller=callers, job=numbers, kind=st.sampled_from(HoldKind))
    def hold(self, caller: Caller, job: int, kind: HoldKind) -> None:
        self.act(caller, job, a.HoldJob(holds=(kind,)))

    @rule(caller=callers, job=numbers, kind=st.sampled_from(HoldKind))
    def release(self, caller: Caller, job: int, kind: HoldKind) -> None:
        self.act(caller, job, a.ReleaseJob(holds=(kind,)))

    @rule(caller=callers, job=numbers, force=st.booleans(), lose=st.booleans())
    def rerun(self, caller: Caller, job: int, *, force: bool, lose: bool) -> None:
        self.act(caller, job, a.RerunJob(force=force), lose=lose)

    @rule(caller=callers, job=numbers, number=st.integers(0, 70))
    def signal(self, caller: Caller, job: int, number: int) -> None:
        self.act(caller, job, a.SignalJob(signal=number))

    @rule(
        caller=callers,
        job=numbers,
        changes=st.fixed_dictionaries(
            {},
            optional={
                "resources": st.one_of(resource_texts, walltimes, st.just(("walltime=+5",))),
                "priority": st.integers(-2, 2),
                "queue": st.sampled_from(["batch", "fast", "stopped"]),
                "start_after_s": moments,
                "rerunnable": st.booleans(),
                "holds": holds,
            },
        ),
    )
    def alter(self, caller: Caller, job: int, changes: dict[str, object]) -> None:
        alteration = structs.replace(Alteration(), **changes)
        self.act(caller, job, a.AlterJob(alteration=alteration))

    @rule(
        caller=st.sampled_from([ADMIN, ADMIN, ADMIN, ALICE]),
        node=st.sampled_from([*NODES, "n9"]),
        what=st.integers(0, 2),
    )
    def operate(self, caller: Caller, node: str, what: int) -> None:
        if what == 0:
            self.operated(caller, node, a.DrainNode(reason="test"))
        elif what == 1:
            self.operated(caller, node, a.ResumeNode())
        elif node in self.bodies and not self.bodies[node].alive:  # operators tell the truth
            self.operated(caller, node, a.ConfirmDead())

    # --- time and scheduling ---

    @rule(seconds=st.sampled_from([0.5, 1.0, 4.0, 30.0, 200.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        self.take(self.head.tick(self.now_s))
        alarm_s = self.head.next_alarm_s()
        assert alarm_s is None or alarm_s > self.now_s

    @rule(lose=st.sampled_from([False, False, True]))
    def schedule(self, *, lose: bool) -> None:
        self.take(self.head.cycle(self.now_s), lose=lose)

    @rule(count=st.integers(1, 3), launch=st.sampled_from(["command", "torchrun"]))
    def some_jobs_start(self, count: int, launch: str) -> None:
        """Plain jobs and a cycle at once, so that the other rules find something that runs."""
        for number in range(count):
            asked = submission(resources=(f"nodes={1 + number % 2}",), launch=launch)
            self.take(self.command(c.Submit(caller=ALICE, submitted=asked, digests=("", ""))))
        self.take(self.head.cycle(self.now_s))

    # --- nodes ---

    @initialize(launches=st.lists(st.sampled_from(["command", "torchrun"]), max_size=4))
    def begin(self, launches: list[str]) -> None:
        self.register("n1")
        self.register("n2")
        for launch in launches:
            self.some_jobs_start(1, launch)

    def register(self, name: str) -> None:
        body = self.bodies[name]
        body.connected = True
        reports = [
            n.AttemptReport(
                job=job, attempt=attempt, state=PartState.RUNNING, pid=7, started_s=started_s
            )
            for (job, attempt), started_s in body.alive.items()
        ]
        reports += [
            n.AttemptReport(
                job=job, attempt=attempt, state=PartState.ENDED, exit=said.record, usage=said.usage
            )
            for (job, attempt), said in body.ended.items()
        ]
        said = n.Register(
            boot_id=f"{name}-{body.boots}",
            incarnation="x",
            address="a",
            gnode_version="t",
            inventory=body.has,
            attempts=tuple(reports),
            load=Load(),
            probes=True,
            sharing=sharing_of(name),
        )
        self.take(self.head.registered(name, said, self.now_s))

    @rule(
        name=st.sampled_from(sorted(NODES)),
        what=st.sampled_from(
            ["connect", "connect", "connect", "disconnect", "power", "reboot", "swap"]
        ),
    )
    def node_changes(self, name: str, what: str) -> None:
        match what:
            case "connect":
                self.register(name)
            case "disconnect":
                self.disconnect(name)
            case "swap":
                self.swap_hardware(name)
            case _:
                self.lose_power(name, back=what == "reboot")

    def disconnect(self, name: str) -> None:
        self.bodies[name].connected = False
        self.take(self.head.disconnected(name, "test", self.now_s))

    def lose_power(self, name: str, *, back: bool) -> None:
        body = self.bodies[name]
        body.boots += 1
        body.alive.clear()
        body.seen.clear()
        self.bag = [sent for sent in self.bag if sent.node != name]  # one connection: it is gone
        self.disconnect(name)
        if back:
            self.register(name)

    def swap_hardware(self, name: str) -> None:
        body = self.bodies[name]
        body.has = NODES[name] if body.has is SMALLER else SMALLER
        self.shrunk.add(name)
        self.disconnect(name)
        self.register(name)

    def obey(self, effect: e.AnyEffect) -> None:
        if isinstance(effect, e.SwitchPower):
            return
        body = self.bodies[effect.node]
        if not body.connected:
            return
        match order_of(effect):
            case n.Probe(request=request):
                passed = request % 3 != 0
                self.bag.append(Sent(body.name, n.Probed(request=request, passed=passed)))
            case e.SendLaunch(job=job, attempt=attempt):
                self.launch(body, (job, attempt))
            case n.StopAttempt(job=job, attempt=attempt, reason=reason):
                key = (job, attempt)
                if key in body.alive:
                    self.end(body, key, OutcomeKind.SIGNALLED, reason=reason)
                elif key not in body.ended and attempt > body.seen.get(job, 0):
                    body.seen[job] = attempt
                    self.end(body, key, OutcomeKind.CANCELLED, reason=reason)
            case n.ExitAck(job=job, attempt=attempt):
                body.ended.pop((job, attempt), None)
            case _:
                pass

    def launch(self, body: Body, key: Key) -> None:
        if key in body.alive or key in body.ended or key[1] <= body.seen.get(key[0], 0):
            return
        job = self.head.state.jobs[key[0]]
        assert job.attempt is not None
        assert job.attempt.number == key[1], "an attempt that is over is launched"
        body.seen[key[0]] = key[1]
        body.alive[key] = self.now_s
        self.bag.append(
            Sent(body.name, n.Started(job=key[0], attempt=key[1], pid=7, started_s=self.now_s))
        )

    def end(
        self,
        body: Body,
        key: Key,
        kind: OutcomeKind,
        *,
        reason: StopReason | None = None,
        failure: LaunchFailure | None = None,
        exit_code: int = 0,
    ) -> None:
        started_s = body.alive.pop(key, 0.0)
        exited = kind is OutcomeKind.EXITED
        record = ExitRecord(
            job=key[0],
            attempt=key[1],
            kind=kind,
            exit_code=exit_code if exited else None,
            signal=15 if kind is OutcomeKind.SIGNALLED else None,
            stop_reason=reason,
            failure=failure,
            started_s=started_s,
            ended_s=self.now_s,
        )
        wall_s = self.now_s - started_s if started_s else 0.0
        said = n.Exited(record=record, usage=Usage(wall_s=wall_s, cpu_s=wall_s), load=Load())
        body.ended[key] = said
        self.bag.append(Sent(body.name, said))

    def living(self) -> list[tuple[Body, Key]]:
        return [(body, key) for body in self.bodies.values() for key in sorted(body.alive)]

    @precondition(lambda self: self.living())
    @rule(
        data=st.data(),
        kind=st.sampled_from(
            [
                OutcomeKind.EXITED,
                OutcomeKind.EXITED,
                OutcomeKind.SIGNALLED,
                OutcomeKind.OOM,
                OutcomeKind.SUPERVISOR_LOST,
                OutcomeKind.LAUNCH_FAILED,
            ]
        ),
        reason=st.sampled_from([None, None, None, StopReason.WALLTIME, StopReason.NODE_STOP]),
        failure=st.sampled_from([None, NO_DIRECTORY, FORK, LEASE, UNKNOWN_USER]),
        exit_code=st.sampled_from([0, 0, 1]),
    )
    def program_ends(
        self,
        data: st.DataObject,
        kind: OutcomeKind,
        reason: StopReason | None,
        *,
        failure: LaunchFailure | None,
        exit_code: int,
    ) -> None:
        body, key = data.draw(st.sampled_from(self.living()))
        if kind is OutcomeKind.EXITED:
            reason = None
        self.end(body, key, kind, reason=reason, failure=failure, exit_code=exit_code)

    # --- the bag: late, reordered, doubled, dropped ---

    @precondition(lambda self: self.bag)
    @rule()
    def all_reports_arrive(self) -> None:
        while self.bag:
            self.deliver(self.bag.pop(0))

    @precondition(lambda self: self.bag)
    @rule(data=st.data(), keep=st.booleans())
    def report_arrives(self, data: st.DataObject, *, keep: bool) -> None:
        index = data.draw(st.integers(0, len(self.bag) - 1))
        sent = self.bag[index] if keep else self.bag.pop(index)
        self.deliver(sent)

    def deliver(self, sent: Sent) -> None:
        if isinstance(sent.message, n.Started):
            self.take(self.head.reported(sent.node, sent.message, self.now_s))
        elif isinstance(sent.message, n.Probed):
            self.take(self.head.probed(sent.node, sent.message, self.now_s))
        else:
            self.take(self.head.reported(sent.node, sent.message, self.now_s))

    @precondition(lambda self: self.bag)
    @rule(data=st.data())
    def report_is_lost(self, data: st.DataObject) -> None:
        self.bag.pop(data.draw(st.integers(0, len(self.bag) - 1)))

    @precondition(lambda self: any(body.ended for body in self.bodies.values()))
    @rule()
    def exits_are_told_again(self) -> None:
        for body in self.bodies.values():
            self.bag.extend(Sent(body.name, said) for said in body.ended.values())
        del self.bag[:-50]

    @rule(job=numbers, attempt=st.integers(1, 3), node=st.sampled_from(sorted(NODES)))
    def nonsense_arrives(self, job: int, attempt: int, node: str) -> None:
        """A report about what may never have been there."""
        if (job, attempt) not in self.bodies[node].alive:
            live = self.head.state.jobs.get(job)
            if live is None or live.attempt is None or live.attempt.number != attempt:
                message = n.Started(job=job, attempt=attempt, pid=1, started_s=self.now_s)
                self.take(self.head.reported(node, message, self.now_s))

    # --- the head dies ---

    @rule()
    def restart_head(self) -> None:
        """Another head starts from the database, and the nodes that are there register."""
        before = content(self.head.state)
        self.store.close()
        self.store = Store(self.directory)
        opened = self.store.open()
        assert opened.behind == ""
        state = self.fresh()
        self.store.load(state)
        assert content(state) == before
        self.head = Head(state=state, settings=CONFIG, policy=self.policy)
        for step in self.head.begin(self.now_s):
            self.take(step)
        for name, body in self.bodies.items():
            if body.connected:
                self.register(name)

    # --- what holds at every moment ---

    @invariant()
    def all_is_well(self) -> None:
        check_head(self.head, shrunk=self.shrunk)

    @invariant()
    def done_is_done(self) -> None:
        assert not set(self.terminal) & set(self.head.state.jobs)

    @invariant()
    def one_attempt_lives(self) -> None:
        """Physically, over all machines (I3)."""
        attempts: dict[int, int] = {}
        for _, (job, attempt) in self.living():
            assert attempts.setdefault(job, attempt) == attempt, f"job {job} lives twice"

    @rule()
    def replay_gives_the_live_state(self) -> None:
        check_history(self.facts)
        assert content(replayed(self.facts, self.head.state)) == content(self.head.state)

    def the_database_holds_the_state(self) -> None:
        self.replay_gives_the_live_state()
        state = self.fresh()
        self.store.load(state)
        assert content(state) == content(self.head.state)
        reader = Reader(os.path.join(self.directory, "gsched.db"))
        assert reader.all_facts() == self.facts
        done = reader.jobs(sorted(self.terminal))
        assert [job.state for job in done] == [JobState.DONE] * len(self.terminal)
        for job in done:
            assert job.outcome is not None
            assert job.outcome.kind is self.terminal[job.id]
            attempts = reader.attempts(job.id)
            assert len(attempts) == job.attempts
            assert all(attempt.outcome is not None for attempt in attempts)
            assert job.wall_s == sum(a.usage.wall_s for a in attempts if a.usage is not None)
        reader.close()

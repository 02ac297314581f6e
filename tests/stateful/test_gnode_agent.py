"""The node's agent in a world that loses, repeats, delays and crashes: nothing runs twice.

The machine models what surrounds the agent: a head that repeats and reorders, a launcher and
supervisors that keep their own guarantees, and a spool. A crash of gnode at any effect keeps the
spool and the processes and forgets the agent.
"""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gnode.core import effects as do
from gnode.core.agent import Agent
from gnode.core.inputs import (
    AlarmRang,
    Disconnected,
    HeadOffered,
    HeadOrder,
    Input,
    Launched,
    LauncherDown,
    LauncherUp,
    LaunchOrder,
    SpoolEntry,
    SpoolFound,
    SupervisorEnded,
    SupervisorSeen,
    Welcomed,
)
from gnode.core.mark import HeadMark
from gnode.core.task import AcceptedTask, AttemptKey
from gnode.task import SupervisorInfo
from gsched.model.job import ExitRecord
from gsched.model.resources import Gpu, Inventory
from gsched.model.states import OutcomeKind, StopReason
from gsched.protocol.node import ExitAck, Exited, HeadMessage, Launch, Started, StopAttempt
from tests.support.agent_driver import ALICE, info, order, site

JOBS = st.integers(1, 3)
ATTEMPTS = st.integers(1, 3)
GPUS = st.sampled_from([(), (0,), (1,), (0, 1)])


class NodeMachine(RuleBasedStateMachine):
    """One node; the head of the model sends whatever it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.effects_until_crash: int | None = None
        self.tasks: dict[AttemptKey, AcceptedTask] = {}
        self.infos: dict[AttemptKey, SupervisorInfo] = {}
        self.records: dict[AttemptKey, ExitRecord] = {}
        self.forks: dict[AttemptKey, int] = {}
        self.running: set[AttemptKey] = set()
        self.requests: list[AttemptKey] = []  # on their way to the launcher
        self.answers: list[Input] = []  # on their way back
        self.sent: dict[AttemptKey, ExitRecord] = {}
        self.acked: set[AttemptKey] = set()
        self.orders: list[HeadMessage] = []  # of this connection, to be repeated at any time
        self.launches: dict[AttemptKey, tuple[int, Launch]] = {}  # connection, what was said
        self.replaced: dict[int, int] = {}  # the highest attempt launched of each job
        self.connection = 0
        self.mark = HeadMark()
        self.connected = self.launcher = False
        self.start()

    # --- gnode's surroundings ---

    def start(self) -> None:
        inventory = Inventory(cpus=4, memory_bytes=1, gpus=(Gpu(index=0), Gpu(index=1)))
        self.agent = Agent(site(), inventory, mark=self.mark)
        self.connected = self.launcher = False
        self.answers.clear()
        self.effects_until_crash = None
        self.feed(SpoolFound(found=tuple(self.lying(key) for key in self.tasks)))

    def lying(self, key: AttemptKey) -> SpoolEntry:
        return SpoolEntry(
            key=key,
            task=self.tasks.get(key),
            info=self.infos.get(key),
            record=self.records.get(key),
        )

    def feed(self, event: Input) -> None:
        for effect in self.agent.step(event, self.now_s, self.now_s):
            if self.effects_until_crash == 0:
                self.start()
                return
            if self.effects_until_crash is not None:
                self.effects_until_crash -= 1
            self.obey(effect)

    def obey(self, effect: do.Effect) -> None:
        match effect:
            case do.AcceptTask():
                assert effect.task.key not in self.tasks, "task.json is written once"
                self.tasks[effect.task.key] = effect.task
            case do.AskLaunch():
                self.requests.append(effect.key)
            case do.LookAtSpool():
                self.answers.append(SpoolFound(found=tuple(self.lying(key) for key in effect.keys)))
            case do.WriteExit():
                key = AttemptKey(effect.record.job, effect.record.attempt)
                assert key not in self.running, "an end is written while it runs"
                self.records[key] = effect.record
            case do.RemoveSpool():
                assert effect.key in self.acked, "what the head has not is removed"
                for book in (self.tasks, self.infos, self.records):
                    book.pop(effect.key, None)
            case do.SaveMark():
                self.mark = effect.mark
            case do.SendToHead():
                self.hear(effect)
            case _:
                self.obey_about_processes(effect)

    def obey_about_processes(self, effect: do.Effect) -> None:
        """Do what concerns processes; the model's supervisors end by themselves."""
        match effect:
            case do.KillLeftover():
                assert effect.key in self.forks
                if effect.key in self.running:  # it did not obey; the launcher takes over
                    self.finish(effect.key, 9)
            case do.SetAside():
                raise AssertionError(f"nothing was broken, but: {effect}")
            case _:
                pass  # commands, looks for a start, warnings

    def hear(self, effect: do.SendToHead) -> None:
        assert self.connected, "sent without a connection"
        if isinstance(effect.message, Exited):
            record = effect.message.record
            key = AttemptKey(record.job, record.attempt)
            assert key not in self.running, "an exit is told while it runs"
            first = self.sent.setdefault(key, record)
            assert first == record, f"an outcome changes from {first} to {record}"
        elif isinstance(effect.message, Started):
            key = AttemptKey(effect.message.job, effect.message.attempt)
            assert key in self.forks, "a start is told of what never started"

    # --- the head ---

    @precondition(lambda self: not self.connected)
    @rule()
    def connect(self) -> None:
        self.feed(HeadOffered(cluster="c", epoch=1))
        self.connected = True
        self.connection += 1
        self.orders.clear()
        self.feed(Welcomed(cluster="c", epoch=1))

    @precondition(lambda self: self.connected)
    @rule()
    def disconnect(self) -> None:
        self.connected = False
        self.feed(Disconnected())

    def say(self, message: HeadMessage) -> None:
        if not self.connected:
            return
        match message:
            case Launch():
                self.feed(LaunchOrder(launch=message, account=ALICE))
            case StopAttempt() | ExitAck():
                self.feed(HeadOrder(message=message))
            case _:
                raise AssertionError(f"this model says no {message}")

    @precondition(lambda self: self.connected)
    @rule(job=JOBS, attempt=ATTEMPTS, gpus=GPUS)
    def launch(self, job: int, attempt: int, gpus: tuple[int, ...]) -> None:
        """Launch what may be launched, or repeat what was said on this connection.

        A head that comes back compares its books first: it launches nothing of which it has heard
        the end, and no attempt that it has replaced.
        """
        key = AttemptKey(job, attempt)
        said = self.launches.get(key)
        if said is None or said[0] != self.connection:
            if key in self.sent or self.replaced.get(job, 0) > attempt:
                return
            message = said[1] if said else order(job, attempt, gpus=gpus)
            self.launches[key] = (self.connection, message)
            self.replaced[job] = max(attempt, self.replaced.get(job, 0))
        self.orders.append(self.launches[key][1])
        self.say(self.orders[-1])

    @precondition(lambda self: self.connected)
    @rule(job=JOBS, attempt=ATTEMPTS)
    def stop(self, job: int, attempt: int) -> None:
        if AttemptKey(job, attempt) in self.sent or self.replaced.get(job, 0) > attempt:
            return
        self.orders.append(
            StopAttempt(job=job, attempt=attempt, reason=StopReason.DELETE, grace_s=1.0)
        )
        self.say(self.orders[-1])

    @precondition(lambda self: self.connected and self.orders)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """Repeat an order of this connection, in whatever order."""
        self.say(self.orders[data.draw(st.integers(0, len(self.orders) - 1))])

    @precondition(lambda self: self.connected and self.sent)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.sent)))
        self.acked.add(key)
        self.orders.append(ExitAck(job=key.job, attempt=key.attempt))
        self.say(self.orders[-1])

    # --- the launcher and its supervisors: each attempt is forked once at most ---

    @precondition(lambda self: not self.launcher)
    @rule()
    def launcher_comes(self) -> None:
        self.launcher = True
        self.feed(LauncherUp())

    @precondition(lambda self: self.launcher)
    @rule()
    def launcher_goes(self) -> None:
        self.launcher = False
        self.answers = [a for a in self.answers if isinstance(a, SpoolFound)]
        self.feed(LauncherDown())

    @precondition(lambda self: self.requests)
    @rule(lost=st.booleans())
    def fork(self, *, lost: bool) -> None:
        key = self.requests.pop(0)
        if key not in self.tasks:
            return  # removed long ago: a request that was very late
        if key not in self.forks and key not in self.records:
            self.forks[key] = self.forks.get(key, 0) + 1
            self.running.add(key)
        if lost and self.launcher:  # an answer is lost only with the connection
            self.launcher_goes()
        if self.launcher:
            self.answers.append(Launched(key=key, pid=50, start_ticks=500))
            if key in self.records:  # the new supervisor finds it over, and the launcher says so
                self.answers.append(
                    SupervisorEnded(key=key, record=self.records[key], info=self.infos.get(key))
                )

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def show_start(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.running)))
        self.infos[key] = info()
        self.answers.append(SupervisorSeen(key=key, info=info()))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), code=st.integers(0, 3))
    def end(self, data: st.DataObject, code: int) -> None:
        self.finish(data.draw(st.sampled_from(sorted(self.running))), code)

    def finish(self, key: AttemptKey, code: int) -> None:
        self.running.discard(key)
        self.infos.setdefault(key, info())
        record = ExitRecord(
            job=key.job, attempt=key.attempt, kind=OutcomeKind.EXITED, exit_code=code
        )
        self.records[key] = record
        if self.launcher:
            self.answers.append(SupervisorEnded(key=key, record=record, info=self.infos[key]))

    @precondition(lambda self: self.answers)
    @rule()
    def answer(self) -> None:
        self.feed(self.answers.pop(0))

    # --- gnode ---

    @rule()
    def crash(self) -> None:
        self.start()

    @rule(effects=st.integers(0, 3))
    def crash_soon(self, effects: int) -> None:
        self.effects_until_crash = effects

    @rule(seconds=st.sampled_from([0.1, 10.0, 100.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        self.feed(AlarmRang())

    # --- what always holds ---

    @invariant()
    def no_two_attempts_of_a_job_run(self) -> None:
        jobs = [key.job for key in self.running]
        assert len(jobs) == len(set(jobs))

    @invariant()
    def no_gpu_has_two_owners(self) -> None:
        owned = [gpu for key in self.running for gpu in self.tasks[key].gpu_indices]
        assert len(owned) == len(set(owned))

    @invariant()
    def nothing_starts_twice(self) -> None:
        assert all(count == 1 for count in self.forks.values())

    def teardown(self) -> None:
        """Heal the world: every attempt that was accepted ends, and the head hears of it."""
        self.effects_until_crash = None
        for _ in range(50):
            if not self.connected:
                self.connect()
            if not self.launcher:
                self.launcher_comes()
            while self.requests:
                self.fork(lost=False)
            for key in sorted(self.running):
                self.finish(key, 0)
            while self.answers:
                self.answer()
        left = [attempt for attempt in self.agent.attempts.values() if attempt.live]
        assert left == [], left
        assert self.tasks.keys() <= self.sent.keys()
        assert self.forks.keys() <= self.sent.keys()


TestNode = NodeMachine.TestCase

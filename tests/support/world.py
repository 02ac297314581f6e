"""A hand-turned world: the real head, modelled nodes, a virtual clock; no I/O, no real time.

A `World` turns the clock from event to event. Machines do what a node daemon does with the head's
orders: start a modelled program, end it, repeat its exit until that is acknowledged, refuse an
attempt that was stopped before it came. After every input the invariants are checked.

Times in stories are seconds since the world began: ``world.run_until(60)``.
"""

import heapq
from collections.abc import Callable
from functools import partial

from msgspec import structs

from gsched.errors import GschedError
from gsched.model.ids import submitted_number
from gsched.model.job import ExitRecord, LaunchFailure
from gsched.model.resources import Inventory, Load, Usage
from gsched.model.states import (
    HoldKind,
    LaunchKind,
    OutcomeKind,
    StopReason,
)
from gsched.protocol import actions as a
from gsched.protocol import node as n
from gsched.protocol import submissions
from gsched.protocol.job_steps import LoginAnswer, StepOrder, StepRefused
from gsched.protocol.uses import Uses
from gschedd.core.apply.jobs import apply
from gschedd.core.attempts.idle_gpus import concerned
from gschedd.core.head import Head
from gschedd.core.nodes.live import note_uses
from gschedd.core.requests import commands as c
from gschedd.core.requests.followers import awaited, recall
from gschedd.core.state import effects as e
from gschedd.core.state import facts as f
from gschedd.core.state.records import Job, Node
from gschedd.core.state.settings import Caller, Settings
from gschedd.core.state.state import State
from gschedd.core.state.step import Step
from gschedd.core.state.walltime import walltime_left_s
from gschedd.core.views.reasons import Reasons
from gschedd.plan.snapshot import Policy, Wait
from gschedd.policies.queue import fifo
from tests.fault_world.bookkeeping import check_head
from tests.support.evidence import NO_DIRECTORY
from tests.support.invariants import check_bills, check_history
from tests.support.machines import GIB, Machine, inventory, node
from tests.support.orders import Order, order_of
from tests.support.saving import Program, Running, save_state
from tests.support.site import PLAIN, changed

__all__ = ["GIB", "Machine", "Program", "inventory", "node"]  # beside what is made here

BEGIN_S = 1_700_000_000.0
REPEAT_S = 5.0  # between two tries of a node to tell of an exit
TERM = 15
KILL = 9
MANY_JOBS = 100  # with more jobs than this, the invariants are checked after every hundredth step

ALICE = Caller(user="alice", uid=1001, gid=100)
BOB = Caller(user="bob", uid=1002, gid=100)
ADMIN = Caller(user="admin", uid=1, gid=1, operator=True)

Message = n.AttemptMessage
Report = Message | Order


def settings(**changes: object) -> Settings:
    """Return the settings of a cluster with one queue, ``batch``, with changes."""
    return changed(PLAIN, **changes)


def submission(**changes: object) -> submissions.SubmitJob:
    """Return a job that requests one CPU, with changes."""
    plain = submissions.SubmitJob(
        key="", name="job", workdir="/home/alice", launch="command", arguments=("true",)
    )
    return structs.replace(plain, **changes)


class World:
    """The head, its machines and the clock.

    Attributes:
        facts: everything that has happened, in order.
        lost, doubled, delayed_s: how many of the next messages of a kind get lost, come twice, or
            come late, by class.
        switched: what the site's programs were run for: when, which node, ``up`` or ``down``.
    """

    def __init__(
        self,
        *machines: Machine,
        policy: Policy = fifo.plan,
        config: Settings | None = None,
        connect: bool = True,
    ) -> None:
        self.settings = config or settings()
        self.policy = policy
        self.head = Head(state=self._fresh_state(), settings=self.settings, policy=policy)
        self.machines = {machine.name: machine for machine in machines}
        self.programs: dict[int, Program] = {}
        self.facts: list[f.AnyFact] = []
        self.done: dict[int, Job] = {}
        self.lost: dict[type[Report], int] = {}
        self.doubled: dict[type[Report], int] = {}
        self.delayed_s: dict[type[Report], float] = {}
        self.now_s = BEGIN_S
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._steps = 0
        self.shrunk: set[str] = set()
        self.switched: list[tuple[float, str, str]] = []
        if connect:
            for name in self.machines:
                self.connect(name)

    def _fresh_state(self) -> State:
        priorities = {name: queue.priority for name, queue in self.settings.queues.items()}
        return State(priorities, limits=self.settings.limit_rules())

    # --- what people do ---

    def submit(
        self,
        resources: str = "",
        *,
        by: Caller = ALICE,
        program: Program | None = None,
        runs_s: float = 10.0,
        **changes: object,
    ) -> int:
        """Submit a job and return its id; raises what the head refuses it with."""
        asked = submission(resources=(resources,) if resources else (), **changes)
        number = self.head.state.next_job
        self.programs[number] = program or Program(runs_s=runs_s)
        step = self.do(c.Submit(caller=by, submitted=asked, digests=("", "")))
        return step.job

    def torchrun(self, resources: str, *, program: Program | None = None) -> int:
        """Submit a job that runs on every node of its allocation."""
        return self.submit(resources, program=program, launch=LaunchKind.TORCHRUN.value)

    def do(self, command: c.AnyCommand) -> Step:
        """Carry out a command, then let the head schedule; raises a refusal."""
        step = self.head.command(command, self.now_s)
        if step.error is not None:
            raise step.error
        self._take(step)
        self.settle()
        return step

    def refusal(self, command: c.AnyCommand) -> GschedError:
        """Return why a command is refused; nothing may have happened."""
        step = self.head.command(command, self.now_s)
        assert step.error is not None, f"{command} was not refused"
        assert not step.facts
        return step.error

    def delete(self, job: int, *, by: Caller = ALICE, **how: object) -> Step:
        """Delete a job (gdel)."""
        return self.do(c.ActOnJob(caller=by, job=job, action=structs.replace(a.DeleteJob(), **how)))

    def hold(self, job: int, *, by: Caller = ALICE, kind: HoldKind = HoldKind.USER) -> Step:
        """Hold a job (ghold)."""
        return self.do(c.ActOnJob(caller=by, job=job, action=a.HoldJob(holds=(kind,))))

    def release(self, job: int, *, by: Caller = ALICE, kind: HoldKind = HoldKind.USER) -> Step:
        """Release a job (grls)."""
        return self.do(c.ActOnJob(caller=by, job=job, action=a.ReleaseJob(holds=(kind,))))

    def rerun(self, job: int, *, by: Caller = ALICE, **how: object) -> Step:
        """Stop a job and queue it again (grerun)."""
        return self.do(c.ActOnJob(caller=by, job=job, action=structs.replace(a.RerunJob(), **how)))

    def alter(self, job: int, *, by: Caller = ALICE, **changes: object) -> Step:
        """Alter a job (galter)."""
        alteration = structs.replace(a.Alteration(), **changes)
        return self.do(c.ActOnJob(caller=by, job=job, action=a.AlterJob(alteration=alteration)))

    # --- what befalls machines and the network ---

    def connect(self, name: str) -> None:
        """A machine's daemon dials the head and tells all it has."""
        machine = self.machines[name]
        machine.connected, machine.dead = True, False
        said = n.Register(
            boot_id=machine.boot_id,
            incarnation=f"{machine.boot_id}-daemon",
            address="10.0.0.1",
            gnode_version="test",
            inventory=machine.has,
            attempts=machine.reports(),
            load=Load(),
            probes=machine.can_probe,
            sharing=machine.sharing,
            identity=machine.identity,
            machine=machine.marks,
        )
        for part in machine.running.values():
            part.reported = True
        self._take(self.head.registered(name, said, self.now_s))
        self.settle()

    def disconnect(self, name: str) -> None:
        """The connection breaks; what runs there runs on."""
        self.machines[name].connected = False
        self._take(self.head.disconnected(name, "connection closed", self.now_s))
        self.settle()

    def kill(self, name: str, job: int, attempt: int, signal: int = KILL) -> None:
        """Somebody kills a job's processes on a machine."""
        self._end(self.machines[name], (job, attempt), signal=signal)

    def replace_hardware(self, name: str, has: Inventory) -> None:
        """A machine's daemon is started anew and finds other hardware; its jobs run on."""
        self.shrunk.add(name)
        self.disconnect(name)
        self.machines[name].has = has
        self.connect(name)

    def lose_power(self, name: str) -> None:
        """A machine dies with all that runs on it, and what its spool had not told yet stays."""
        machine = self.machines[name]
        machine.dead = True
        machine.boots += 1
        machine.running.clear()
        machine.seen.clear()
        self.disconnect(name)

    def reboot(self, name: str) -> None:
        """A machine dies and comes back with another boot id."""
        self.lose_power(name)
        self.connect(name)

    def hear_uses(self, name: str, message: Uses) -> None:
        """A machine's daemon tells what jobs use, and the head does what its channel does."""
        head = self.head
        note_uses(head.state, name, message, self.now_s)
        jobs = concerned(head.state, self.settings, message)
        self._take(head.answer_idle_gpus(jobs, self.now_s))
        self.settle()

    def restart_head(self) -> None:
        """The head dies; another one starts from what was durable, and the machines come back."""
        state = self._fresh_state()
        for fact in self.facts:
            apply(state, fact)
        state.unstored.finished.clear()
        self.head = Head(state=state, settings=self.settings, policy=self.policy)
        past = [(each, self.done[each].outcome) for each in awaited(state) if each in self.done]
        known = {number: outcome.succeeded for number, outcome in past if outcome}
        recall(state, known, self.now_s)
        for step in self.head.begin(self.now_s):
            self._take(step)
        for name in [each.name for each in self.machines.values() if each.connected]:
            self.connect(name)

    # --- time ---

    def run_until(self, elapsed_s: float) -> None:
        """Turn the clock to ``elapsed_s`` after the beginning, event by event."""
        end_s = BEGIN_S + elapsed_s
        while True:
            due_s = self._agenda[0][0] if self._agenda else None
            times = (self.head.next_alarm_s(), self.head.next_expiry_s(), due_s)
            next_s = min((s for s in times if s is not None), default=None)
            if next_s is None or next_s > end_s:
                break
            self.now_s = max(self.now_s, next_s)
            if self._agenda and self._agenda[0][0] <= self.now_s:
                heapq.heappop(self._agenda)[2]()
            self._take(self.head.tick(self.now_s))
            self._take(self.head.expire_leases(self.now_s, self.now_s))
            self.settle()
        self.now_s = end_s

    def run_for(self, delay_s: float) -> None:
        """Turn the clock by ``delay_s``; 0 delivers what is under way."""
        self.run_until(self.elapsed_s + delay_s)

    @property
    def elapsed_s(self) -> float:
        """Return the time since the beginning, seconds."""
        return self.now_s - BEGIN_S

    def settle(self) -> None:
        """Let the head schedule until nothing is left to decide now."""
        self._take(self.head.cycle(self.now_s))
        while self.head.unfinished:
            self._take(self.head.cycle(self.now_s))

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something after a while."""
        self._count += 1
        heapq.heappush(self._agenda, (self.now_s + delay_s, self._count, action))

    # --- what one sees ---

    def program_of(self, number: int) -> Program:
        """Return what a job does; of an element its own program, or that of all elements."""
        return self.programs.get(number) or self.programs[submitted_number(number)]

    def job(self, number: int) -> Job:
        """Return a job, done or not."""
        return self.done.get(number) or self.head.state.jobs[number]

    def state(self, number: int) -> str:
        """Return a job's state, in a word."""
        return self.job(number).state.value

    def machine_of(self, number: int) -> tuple[str, ...]:
        """Return the nodes of a job's present attempt, in rank order."""
        attempt = self.job(number).attempt
        return tuple(attempt.parts) if attempt is not None else ()

    def seen_node(self, name: str) -> Node:
        """Return a node as the head knows it."""
        return self.head.state.nodes[name]

    def started_s(self, number: int) -> float | None:
        """Return when a job's last attempt started, in seconds since the beginning."""
        times = [
            fact.at_s - BEGIN_S
            for fact in self.facts
            if isinstance(fact, f.AttemptAssigned) and fact.job == number
        ]
        return times[-1] if times else None

    def why(self, number: int) -> str:
        """Return why a job waits."""
        head = self.head
        reasons = Reasons(head.state, head.settings, head.waits, head.safe_mode)
        return reasons.of(head.state.jobs[number])

    def wait_of(self, number: int) -> Wait:
        """Return what the last plan said of a job's class."""
        return self.head.waits[self.head.state.class_of(self.head.state.jobs[number])]

    def told(self, kind: type[f.Fact], number: int) -> list[f.Fact]:
        """Return the facts of a kind about a job."""
        return [
            fact
            for fact in self.facts
            if isinstance(fact, kind) and getattr(fact, "job", None) == number
        ]

    # --- the network ---

    def _take(self, step: Step) -> None:
        """Make a step's facts durable, then carry its effects out."""
        self.facts.extend(step.facts)
        self.done.update(self.head.state.unstored.finished)
        self.head.state.unstored.finished.clear()
        self._steps += 1
        if len(self.head.state.jobs) < MANY_JOBS or not self._steps % MANY_JOBS:
            check_head(self.head, shrunk=self.shrunk)
            self._check_machines()
        for effect in step.effects:
            if isinstance(effect, e.SwitchPower):
                self.switched.append((self.elapsed_s, effect.node, "up" if effect.up else "down"))
                continue
            order = order_of(effect)
            deliver = partial(self._obey, effect.node, order)
            self._post(order, deliver)

    def _check_machines(self) -> None:
        """Physically: one job lives in one attempt, one GPU belongs to one process group (I3)."""
        attempts: dict[int, int] = {}
        for machine in self.machines.values():
            gpus: set[int] = set()
            for (job, attempt), part in machine.running.items():
                assert attempts.setdefault(job, attempt) == attempt, f"job {job} lives twice"
                assert gpus.isdisjoint(part.share_gpus), f"a GPU of {machine.name} is used twice"
                gpus.update(part.share_gpus)

    def check_history(self) -> None:
        """Check all facts so far against each other, and what users were billed for."""
        check_history(self.facts)
        check_bills(self.head.state, self.facts)

    def _post(self, message: Report, deliver: Callable[[], None]) -> None:
        kind = type(message)
        if self.lost.get(kind, 0):
            self.lost[kind] -= 1
            return
        times = 1
        if self.doubled.get(kind, 0):
            self.doubled[kind] -= 1
            times = 2
        for _ in range(times):
            self.later(self.delayed_s.get(kind, 0.0), deliver)

    def tell(self, machine: Machine, message: Message) -> None:
        """Let a machine tell the head, as the network lets it."""

        def deliver() -> None:
            if machine.connected:
                self._take(self.head.reported(machine.name, message, self.now_s))

        self._post(message, deliver)

    # --- what machines do with orders ---

    def _obey(self, node: str, order: Order) -> None:  # noqa: C901 # one line an order
        machine = self.machines[node]
        if not machine.connected:
            return
        match order:
            case e.SendLaunch():
                self._launch(machine, order)
            case n.StopAttempt():
                self._stop(machine, order)
            case n.Signal():
                machine.signals.append((order.job, order.signal))
            case n.Retime():
                self._plan_end(machine, (order.job, order.attempt), order.walltime_s)
            case n.ExitAck():
                machine.ended.pop((order.job, order.attempt), None)
            case n.TakeCheckpoint():
                save_state(self, machine, order)
            case n.GoOn():
                machine.going_on.append(order.request)
            case n.TuneTraining() | n.Probe() | e.SendPrepare():
                self._told(machine, order)
            case StepOrder() | StepRefused():
                machine.steps.append(order)
            case n.ReadOutput():
                machine.messages.append((order.job, order.append.decode()))
            case LoginAnswer():
                pass
            case _:
                raise AssertionError(f"no effect is a {order!r}")

    def _told(self, machine: Machine, order: n.TuneTraining | n.Probe | e.SendPrepare) -> None:
        match order:
            case n.TuneTraining():
                machine.tunes.append((order.job, order.batching))
            case e.SendPrepare():
                machine.preparing.append((order.job, order.attempt))
                machine.yielding |= {(order.job, order.attempt)} if order.yields else set()
            case n.Probe():
                self._probe(machine, order)

    def _probe(self, machine: Machine, order: n.Probe) -> None:
        machine.probes.append(self.elapsed_s)
        fault = machine.probe_fault if machine.probe_fault is not None else machine.launch_fault
        failure = machine.fault if fault else None
        said = n.Probed(request=order.request, passed=not fault, message=fault, failure=failure)

        def deliver() -> None:
            if machine.connected:
                self._take(self.head.probed(machine.name, said, self.now_s))

        self._post(order, deliver)

    def _launch(self, machine: Machine, order: e.SendLaunch) -> None:
        key = (order.job, order.attempt)
        if key in machine.running:
            self.tell(machine, self._started(key, machine.running[key]))
            return
        if key in machine.ended:
            self.tell(machine, machine.ended[key])
            return
        if order.attempt <= machine.seen.get(order.job, 0):
            return
        machine.seen[order.job] = order.attempt
        machine.launches.append(key)
        job = self.head.state.jobs[order.job]
        assert job.attempt is not None
        share = job.attempt.parts[machine.name].share
        program = self.program_of(order.job)
        if machine.launch_fault or program.user_error:
            message = machine.launch_fault or "no such directory"
            self._end(
                machine,
                key,
                kind=OutcomeKind.LAUNCH_FAILED,
                message=message,
                failure=NO_DIRECTORY if program.user_error else machine.fault,
            )
            return
        part = Running(share_gpus=share.gpu_indices, cpus=share.cpus, started_s=self.now_s)
        machine.running[key] = part
        self.tell(machine, self._started(key, part))
        self._plan_end(machine, key, walltime_left_s(job))

    def _started(self, key: tuple[int, int], part: Running) -> n.Started:
        warm = any(key in machine.preparing for machine in self.machines.values())
        said = n.Started(job=key[0], attempt=key[1], pid=1000 + key[0], started_s=part.started_s)
        return structs.replace(said, warm=warm)

    def _plan_end(self, machine: Machine, key: tuple[int, int], walltime_s: float | None) -> None:
        part = machine.running.get(key)
        if part is None or part.stopping:
            return
        part.turn += 1
        turn = part.turn
        program = self.program_of(key[0])
        runs_s = program.runs_on_s.get(machine.name, program.runs_s)
        over = walltime_s is not None and walltime_s < runs_s
        lasts_s = walltime_s if over and walltime_s is not None else runs_s

        def end() -> None:
            if machine.running.get(key) is not part or part.turn != turn:
                return
            if over:
                self._end(machine, key, signal=TERM, reason=StopReason.WALLTIME)
            elif program.oom:
                self._end(machine, key, kind=OutcomeKind.OOM, signal=KILL)
            else:
                code = program.exit_codes.get(machine.name, program.exit_code)
                self._end(machine, key, exit_code=code)

        self.later(max(0.0, part.started_s + lasts_s - self.now_s), end)

    def leave(self, machine: Machine, key: tuple[int, int], part: Running) -> None:
        """Let a part end by itself, as it was asked to by its signal."""
        if machine.running.get(key) is part and not part.stopping:
            program = self.program_of(key[0])
            code = program.exit_codes.get(machine.name, program.exit_code)
            self._end(
                machine,
                key,
                exit_code=None if program.killed_by else code,
                signal=program.killed_by,
            )

    def _stop(self, machine: Machine, order: n.StopAttempt) -> None:
        key = (order.job, order.attempt)
        part = machine.running.get(key)
        if part is None:
            if key in machine.ended:
                self.tell(machine, machine.ended[key])
            elif order.attempt > machine.seen.get(order.job, 0):
                machine.seen[order.job] = order.attempt
                self._end(machine, key, kind=OutcomeKind.CANCELLED, reason=order.reason)
            return
        part.stopping = True
        part.turn += 1
        turn = part.turn
        stubborn = self.program_of(order.job).ignores_term

        def end() -> None:
            if machine.running.get(key) is part and part.turn == turn:
                self._end(machine, key, signal=KILL if stubborn else TERM, reason=order.reason)

        self.later(order.grace_s if stubborn else 0.0, end)

    def _end(
        self,
        machine: Machine,
        key: tuple[int, int],
        *,
        kind: OutcomeKind | None = None,
        exit_code: int | None = None,
        signal: int | None = None,
        reason: StopReason | None = None,
        message: str = "",
        failure: LaunchFailure | None = None,
    ) -> None:
        part = machine.running.pop(key, None)
        started_s = part.started_s if part is not None else 0.0
        wall_s = self.now_s - started_s if part is not None else 0.0
        if kind is None:
            kind = OutcomeKind.SIGNALLED if signal is not None else OutcomeKind.EXITED
        record = ExitRecord(
            job=key[0],
            attempt=key[1],
            kind=kind,
            exit_code=exit_code,
            signal=signal,
            stop_reason=reason,
            message=message,
            failure=failure,
            failed_s=self.now_s if exit_code or signal else None,
            started_s=started_s,
            ended_s=self.now_s,
            wall_s=wall_s,
            cpu_s=wall_s * (part.cpus if part is not None else 0),
            requested=part.asked if part is not None else 0,
            requested_s=part.requested_s if part is not None else 0.0,
            unhandled=part.unhandled if part is not None else 0,
        )
        usage = Usage(wall_s=wall_s, cpu_s=record.cpu_s)
        machine.ended[key] = n.Exited(record=record, usage=usage, load=Load())
        self._repeat(machine, key)

    def _repeat(self, machine: Machine, key: tuple[int, int]) -> None:
        """Tell of an exit until it is acknowledged."""
        said = machine.ended.get(key)
        if said is None or machine.dead:
            return
        if machine.connected:
            self.tell(machine, said)
            self.later(REPEAT_S, lambda: self._repeat(machine, key))

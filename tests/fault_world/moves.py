"""The fault world with training jobs that are moved, resized and sent back.

Most jobs are training jobs that save their state when asked, or say that they cannot, or say
nothing for too long; a policy moves them about. So guarantees are checked through every phase of a
move, and I12 with them: what a checkpoint has saved is never done again.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from msgspec import structs

from baselines.registry import ALL
from gnode.core import effects as do
from gnode.core.inputs import TrainingMessage
from gnode.core.task import AttemptKey
from gsched.model.resources import Allocation
from gsched.model.training import Training
from gsched.protocol import actions as a
from gsched.protocol import node as n
from gsched.protocol.actions import Alteration
from gschedd.core.requests import commands as c
from gschedd.core.state import facts as f
from gschedd.core.state.records import Job
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State
from gschedd.plan.elastic import allocate, is_elastic
from gschedd.plan.snapshot import Move, Plan, Policy, RunningJob, Snapshot
from gschedd.plan.space import Spaces
from gschedd.policies.queue import fifo
from gschedd.sim.head import HeadProcess
from gschedd.sim.node import NodeProcess
from gschedd.sim.program import Program
from tests.fault_world.bookkeeping import demand
from tests.fault_world.users import ALICE, BOB, Intent, Users, draw_intent
from tests.fault_world.world import FaultWorld, HeadFactory, plain_head
from tests.support.site import changed

TRAININGS: Final = 0.7  # of the jobs
MOVED: Final = 0.5  # probability that a training which could be moved is, in one look
CHECKPOINT_TIMEOUT_S: Final = 20.0
AGAIN_S: Final = 7.0
#: Policies for training jobs that a site may choose.
NAMED: Final = ("drs", "deadline", "elasticflow", "themis", "edf", "fifowhole")
#: What a GPU does in a second.
UNIT_RATE: Final = 1.0


class Restless:
    """First come first served, and moves at random: to other places, other numbers, the queue.

    Everybody who can be moved may be, all at once: so places are exchanged, too.
    """

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Return starts by fifo, and moves into what is left and what is vacated."""
        plan = fifo.plan(snapshot)
        free = Spaces(snapshot.nodes)
        for start in plan.starts:
            free.take(start.allocation)
        chosen = [
            running
            for running in sorted(snapshot.running, key=lambda running: running.job)
            if self._may_move(running, snapshot) and self._chance.random() < MOVED
        ]
        for running in chosen:
            free.give(running.allocation)
        self._chance.shuffle(chosen)
        moves = [
            Move(job=running.job, allocation=self._place(running, snapshot, free), why="unrest")
            for running in chosen
        ]
        return structs.replace(plan, moves=tuple(moves), again_s=snapshot.now_s + AGAIN_S)

    def _may_move(self, running: RunningJob, snapshot: Snapshot) -> bool:
        profile = snapshot.profiles.get(running.job)
        if profile is None or not profile.movable or profile.request is None:
            return False
        return not running.leaving and not running.starting

    def _place(self, running: RunningJob, snapshot: Snapshot, free: Spaces) -> Allocation:
        request = snapshot.profiles[running.job].request
        assert request is not None, "it may be moved"
        places = request.places
        if is_elastic(request):
            places = self._chance.randint(request.places, request.places_max)
        found = allocate(request, free, places) if self._chance.random() < 0.9 else None
        if found is None:
            return ()
        free.take(found)
        return found


class TrainingNode(NodeProcess):
    """A node whose jobs answer late, never, or that they cannot; and say how far they are."""

    chance: random.Random

    def _tell_job(self, effect: do.TellJob) -> None:
        dice = self.chance.random()
        if not isinstance(effect.message, n.TakeCheckpoint) or dice < 0.1:
            return
        if dice < 0.2:
            order = effect.message
            failed = n.CheckpointFailed(
                job=order.job, attempt=order.attempt, request=order.request, message="no room"
            )
            self.post(TrainingMessage(message=failed))
        elif dice < 0.6:
            super()._tell_job(effect)
        else:
            delay_s = self.chance.uniform(0, 1.5 * CHECKPOINT_TIMEOUT_S)
            self._agenda.after(delay_s, self._answer_late, effect, self.incarnation)

    def _answer_late(self, effect: do.TellJob, incarnation: int) -> None:
        if incarnation == self.incarnation and effect.message.job:
            super()._tell_job(effect)

    def _see(self, key: AttemptKey) -> None:
        super()._see(key)
        self._agenda.after(self.chance.uniform(0, 5), self._progress, key, self.incarnation)

    def _progress(self, key: AttemptKey, incarnation: int) -> None:
        done = self.machine.work_done(key)
        if incarnation != self.incarnation or done is None:
            return
        said = n.TrainingProgress(
            job=key.job,
            attempt=key.attempt,
            step=1,
            work_done=done,
            work_total=0.0,
            at_s=self.machine.wall_s(),
            restored_step=0,
            restore_s=self.machine.processes[key].program.restore_s,
        )
        self.post(TrainingMessage(message=said))


def draw_training(chance: random.Random, number: int) -> Intent:
    """Return a random wish: mostly training jobs, most of which can be moved and resized."""
    plain = draw_intent(chance, number)
    if chance.random() > TRAININGS:
        return plain
    least, more = chance.choice((1, 1, 2)), chance.choice((0, 1, 2))
    work_s = chance.choice((5.0, 50.0, 200.0, 400.0)) * (0.1 + chance.random())
    most = least + more
    rates = tuple((gpus, UNIT_RATE * gpus) for gpus in range(1, most + 1))
    limit = chance.choice(("", "", ",walltime=2000"))
    asked = structs.replace(
        plain.asked,
        resources=(f"select={least}:ncpus=1:ngpus=1,place=free{limit}",),
        places_max=most if more else 0,
        training=Training(iterations=max(1.0, work_s), rates=rates),
        deadline_after_s=chance.choice((0.0, 100.0, 1000.0, 1e5)),
        movable=chance.random() < 0.9,
        requeue_on=chance.choice(("", "", "node-failure")),
    )
    program = structs.replace(plain.program, work_s=max(1.0, work_s), user_error=False)
    return Intent(key=plain.key, caller=plain.caller, asked=asked, program=program)


class MovingUsers(Users):
    """They also want other deadlines and walltimes of what runs and moves."""

    def meddle(self) -> None:
        """Do something to some job or node; the head may refuse it."""
        head = self._daemon.head
        chance = self._chance
        if head is None or not head.state.training_jobs or chance.random() < 0.7:
            super().meddle()
            return
        job = head.state.training_jobs[chance.choice(list(head.state.training_jobs))]
        caller = ALICE if job.spec.owner.uid == ALICE.uid else BOB
        wishes: Mapping[str, Alteration] = MappingProxyType(
            {
                "later": Alteration(deadline_after_s=chance.choice((1.0, 300.0, 1e6))),
                "never": Alteration(deadline_s=0.0),
                "other": Alteration(resources=("select=1:ncpus=2:ngpus=1,place=free",)),
                "longer": Alteration(resources=("walltime=+100",)),
            }
        )
        wish = wishes[chance.choice(list(wishes))]
        self._daemon.ask(c.ActOnJob(caller=caller, job=job.id, action=a.AlterJob(alteration=wish)))


class MovingWorld(FaultWorld):
    """One world of one seed in which training jobs are moved.

    Args:
        policy: a name of `NAMED`, or empty: moves at random.
    """

    def __init__(
        self,
        seed: int,
        *,
        policy: str = "",
        make_head: HeadFactory = plain_head,
        daemon: type[HeadProcess] = HeadProcess,
        node: type[TrainingNode] = TrainingNode,
        plan_s: Callable[[], float | None] | None = None,
    ) -> None:
        plan: Policy = Restless(random.Random(seed)) if not policy else ALL.choose(policy).plan
        super().__init__(
            seed, make_head=make_head, policy=plan, daemon=daemon, node=node, plan_s=plan_s
        )
        for process in self.nodes:
            assert isinstance(process, TrainingNode), "made by the class that was named"
            process.chance = self.chance
        self._works: dict[int, float] = {}
        self._saved: dict[int, float] = {}

    def _make_users(self) -> Users:
        return MovingUsers(
            agenda=self.agenda,
            chance=self.chance,
            daemon=self.daemon,
            delay_s=lambda: self.chance.uniform(*self.weather.delay_s),
        )

    def _make_settings(self) -> Settings:
        return changed(
            super()._make_settings(),
            move_s=2.0,
            checkpoint_timeout_s=CHECKPOINT_TIMEOUT_S,
            refuse_impossible=False,
        )

    def _make_state(self) -> State:
        return State({"batch": 0}, plans_training=True)

    def _draw(self, number: int) -> Intent:
        return draw_training(self.chance, number)

    def _gpus_and_cpus(self, number: int) -> tuple[int, int]:
        return (4, 8) if number < 3 else (self.chance.randint(0, 4), self.chance.randint(1, 8))

    def committed(self, facts: Sequence[f.AnyFact], done: Iterable[Job]) -> None:
        """Also tell the machines how far a training is that goes on."""
        super().committed(facts, done)
        for fact in facts:
            match fact:
                case f.JobSubmitted() if fact.spec.training is not None:
                    self._works[fact.job] = self.users.programs[fact.job].work_s
                case f.CheckpointTaken():
                    self._saved[fact.job] = max(self._saved.get(fact.job, 0.0), fact.work_done)
                case f.AttemptEnded():
                    if fact.work_done:
                        self._saved[fact.job] = max(self._saved.get(fact.job, 0.0), fact.work_done)
                case f.AttemptAssigned() if fact.job in self._works:
                    self.users.programs[fact.job] = self._program(fact)
                case _:
                    pass

    def _program(self, fact: f.AttemptAssigned) -> Program:
        head = self.daemon.head
        assert head is not None, "it has just assigned"
        saved = self._saved.get(fact.job, 0.0)
        job = head.state.jobs.get(fact.job)  # None: it has ended by facts that are under way
        known = saved if job is None else job.work_done
        demand(known >= saved, "I12", f"job {fact.job} goes on from {known}, {saved} was saved")
        gpus = sum(len(share.gpu_indices) for share in fact.allocation)
        rate = UNIT_RATE * gpus
        restore_s = 2.0 if saved else 0.0
        left = max(0.0, self._works[fact.job] - saved)
        return structs.replace(
            self.users.programs[fact.job],
            work_s=restore_s + left / rate,
            work_done=saved,
            work_rate=rate,
            restore_s=restore_s,
        )

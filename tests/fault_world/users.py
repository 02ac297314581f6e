"""Modelled users and operators of a fault world: they submit, change their minds, and try again."""

import random
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from gsched.model.arrays import Span, Spans, indices
from gsched.model.ids import array_of, element_number
from gsched.model.states import HoldKind, JobState
from gsched.protocol import actions as a
from gsched.protocol.actions import Alteration
from gsched.protocol.submissions import SubmitJob
from gschedd.core.requests import commands as c
from gschedd.core.state.settings import Caller
from gschedd.core.state.step import Step
from gschedd.sim.agenda import Agenda
from gschedd.sim.head import HeadProcess
from gschedd.sim.program import Program
from tests.fault_world.bookkeeping import demand

ALICE: Final = Caller(user="alice", uid=1001, gid=100)
BOB: Final = Caller(user="bob", uid=1002, gid=100)
ADMIN: Final = Caller(user="admin", uid=1, gid=1, operator=True)
CALLERS: Final = (ALICE, BOB, ADMIN)
RETRY_S: Final = (2.0, 30.0)  # after which a client without an answer asks again
LOST_REQUESTS: Final = 0.05  # probability that a request, or its answer, is lost
RESOURCES: Final = (
    "nodes=1",
    "nodes=1:ppn=2",
    "nodes=1:ppn=4,mem=2gb",
    "nodes=1:ppn=1:gpus=1",
    "nodes=1:ppn=2:gpus=2",
    "nodes=2:ppn=2",
    "nodes=2:ppn=1:gpus=1",
    "procs=5",
    "nodes=1:ppn=1,mem=6gb",
)


#: Elements of arrays: few, with a limit, scattered, with steps, and more than a node runs at once.
ARRAYS: Final = ("0-3", "0-9%2", "1,3,7-9", "0-30:5%3", "5", "0-15%1")


class Intent(Struct, frozen=True, kw_only=True):
    """What a user wants run; ``key`` makes a repeated submission the same one."""

    key: str
    caller: Caller
    asked: SubmitJob
    program: Program


def draw_intent(chance: random.Random, number: int) -> Intent:
    """Return a random wish: mostly plain jobs, some that fail, resist, or may not run again."""
    walltime_s = chance.choice((None, None, 60, 200))
    limit = f",walltime={walltime_s}" if walltime_s else ""
    key = f"intent-{number}"
    return Intent(
        key=key,
        caller=chance.choice((ALICE, BOB)),
        asked=SubmitJob(
            key=key,
            name=f"j{number}",
            workdir="/",
            resources=(chance.choice(RESOURCES) + limit,),
            launch="command",
            arguments=("run",),
            every_node=chance.random() < 0.7,
            rerunnable=chance.random() < 0.8,
            priority=chance.choice((0, 0, 0, 5)),
            grace_s=chance.choice((0.0, 5.0, 30.0)),
            holds=("user",) if chance.random() < 0.05 else (),
            array=chance.choice(ARRAYS) if chance.random() < 0.15 else "",
        ),
        program=Program(
            work_s=chance.choice((0.0, 1.0, 10.0, 30.0, 100.0, 300.0)) * chance.random(),
            exit_code=chance.choice((0, 0, 0, 0, 7)),
            ignores_term=chance.random() < 0.1,
            user_error=chance.random() < 0.05,
        ),
    )


class Users:
    """Everybody who asks something of the head.

    Attributes:
        acked: the id that each submission was told, by its key.
        programs: what each job does, by its id.
    """

    def __init__(
        self,
        *,
        agenda: Agenda,
        chance: random.Random,
        daemon: HeadProcess,
        delay_s: Callable[[], float],
    ) -> None:
        self.acked: dict[str, int] = {}
        self.programs: dict[int, Program] = {}
        self.healed = False
        self._agenda = agenda
        self._chance = chance
        self._daemon = daemon
        self._delay_s = delay_s
        self._by_key: dict[str, Program] = {}

    # --- submitting ---

    def submit(self, intent: Intent) -> None:
        """Ask for a job until the answer comes."""
        self._by_key[intent.key] = intent.program
        if intent.key in self.acked:
            return
        if not self._lost():
            self._agenda.after(self._delay_s(), self._ask, intent)
        self._agenda.after(self._chance.uniform(*RETRY_S), self.submit, intent)

    def _ask(self, intent: Intent) -> None:
        command = c.Submit(caller=intent.caller, submitted=intent.asked, digests=("", ""))
        self._daemon.ask(command, lambda step: self._answer(intent.key, step))

    def _answer(self, key: str, step: Step) -> None:
        if step.error is not None:
            return  # too few nodes have registered yet: the user tries again
        if not self._lost():
            self._agenda.after(self._delay_s(), self._told, key, step.job)

    def _told(self, key: str, job: int) -> None:
        known = self.acked.setdefault(key, job)
        demand(known == job, "I2", f"{key} is job {known}, and now job {job}")

    def _lost(self) -> bool:
        return not self.healed and self._chance.random() < LOST_REQUESTS

    def learn(self, job: int, key: str) -> None:
        """Note which job a submission became: nodes must know what it does."""
        self.programs[job] = self._by_key[key]

    def learn_elements(self, array: int, elements: Spans) -> None:
        """Note that elements of an array are jobs: each does what the array does."""
        for index in indices(elements):
            self.programs[element_number(array, index)] = self.programs[array]

    # --- changing their minds ---

    def meddle(self) -> None:
        """Do something to some job or node; the head may refuse it."""
        head = self._daemon.head
        if head is None or not head.state.jobs or not head.state.nodes:
            return
        chance = self._chance
        job = chance.choice(list(head.state.jobs))
        node = chance.choice(list(head.state.nodes))
        owner = head.state.jobs[job].spec.owner
        caller = ALICE if owner.uid == ALICE.uid else BOB
        wishes: Mapping[str, tuple[c.AnyCommand, int]] = {
            "delete": (c.ActOnJob(caller=caller, job=job, action=a.DeleteJob()), 3),
            "rerun": (c.ActOnJob(caller=caller, job=job, action=a.RerunJob()), 3),
            "hold": (
                c.ActOnJob(caller=caller, job=job, action=a.HoldJob(holds=(HoldKind.USER,))),
                2,
            ),
            "release": (
                c.ActOnJob(caller=caller, job=job, action=a.ReleaseJob(holds=(HoldKind.USER,))),
                3,
            ),
            "signal": (
                c.ActOnJob(
                    caller=caller, job=job, action=a.SignalJob(signal=chance.choice((10, 15, 9)))
                ),
                2,
            ),
            "retime": (_retime(caller, job, chance.choice((50, 500))), 1),
            "delete elements": (self._on_elements(caller, job, a.DeleteJob()), 2),
            "hold elements": (self._on_elements(caller, job, a.HoldJob()), 2),
            "release elements": (self._on_elements(caller, job, a.ReleaseJob()), 2),
            "alter elements": (
                self._on_elements(caller, job, a.AlterJob(alteration=Alteration(comment="more"))),
                1,
            ),
            "drain": (c.ActOnNode(caller=ADMIN, node=node, action=a.DrainNode(reason="a look")), 1),
            "resume": (c.ActOnNode(caller=ADMIN, node=node, action=a.ResumeNode()), 3),
        }
        weights = [weight for _, weight in wishes.values()]
        (name,) = chance.choices(list(wishes), weights)
        self._daemon.ask(wishes[name][0])

    def _on_elements(self, caller: Caller, job: int, asked: a.AnyJobAction) -> c.ActOnJob:
        """Return an action on some elements of a job's array, or on the job if it has none."""
        array = array_of(job) or job
        head = self._daemon.head
        if head is None or array not in head.state.arrays:
            return c.ActOnJob(caller=caller, job=job, action=asked)
        first = self._chance.randint(0, 12)
        elements = (Span(first, first + self._chance.randint(0, 4)),)
        return c.ActOnJob(caller=caller, job=array, action=asked, elements=elements)

    def tidy_up(self) -> None:
        """Release every job and resume every node, as operators do once all is well."""
        head = self._daemon.head
        if head is None:
            return
        for node in head.state.nodes.values():
            if node.drained:
                self._daemon.ask(c.ActOnNode(caller=ADMIN, node=node.name, action=a.ResumeNode()))
        for job in head.state.jobs.values():
            if job.state is JobState.HELD:
                self._daemon.ask(
                    c.ActOnJob(caller=ADMIN, job=job.id, action=a.ReleaseJob(holds=job.holds))
                )
        for index in head.state.arrays.values():
            if index.job.elements is not None and index.job.elements.held:
                held = index.job.elements.held
                released = c.ActOnJob(
                    caller=ADMIN, job=index.job.id, action=a.ReleaseJob(), elements=held
                )
                self._daemon.ask(released)


def _retime(caller: Caller, job: int, walltime_s: int) -> c.ActOnJob:
    alteration = Alteration(resources=(f"walltime={walltime_s}",))
    return c.ActOnJob(caller=caller, job=job, action=a.AlterJob(alteration=alteration))

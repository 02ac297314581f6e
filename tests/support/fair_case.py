"""Two projects on two nodes: one above its share, one below it, its limit, and a reservation.

The same acts are done on a real cluster and in the simulator; what the head decided is read from
the facts of both.

On n1 (3 GPUs, 5 CPUs) run `elastic` with 2 GPUs, and `plain`. On n2 (4 GPUs, 4 CPUs) run `second`,
`early` and `late`, which save their state, and `loses`, which does not. All are of project `over`.
"""

import tomllib
from collections.abc import Iterable
from typing import Final, Literal

import msgspec
from msgspec import Struct, structs

from gsched.config.tables import Config
from gsched.model.training import Training
from gsched.protocol.actions import DeleteJob
from gsched.protocol.reservations import ReservationChange, ReservationTerms
from gschedd.core.requests import commands as c
from gschedd.core.state import facts as f
from gschedd.core.state.step import Step
from gschedd.policies.registry import INSTALLED
from gschedd.sim.cluster import read_cluster
from gschedd.sim.reservations import OPERATOR
from gschedd.sim.simulation import BEGIN_S, Options, Simulation
from gschedd.sim.workload import TraceJob

#: CPUs and GPUs of each node.
NODES: Final = {"n1": (5, 3), "n2": (4, 4)}
#: GPUs that the project below its share may have.
MOST_GPUS: Final = 5
#: More than any run takes.
LONG: Final = 10**9
#: Between two acts in the simulator, seconds: less than `again_s` in all.
EACH_S: Final = 100.0
Does = Literal["submit", "cancel", "reserve", "kill head"]


def settings(user: str) -> str:
    """Return the head's configuration of queues, projects and pre-emption, as TOML text."""
    shares = {"over": (1, ""), "under": (5, f"total = {{ max_gpus = {MOST_GPUS} }}\n")}
    shares["taught"] = (1, "")
    projects = "".join(
        f'[[project]]\nname = "{name}"\nshares = {number}\nusers = ["{user}"]\n{limits}'
        for name, (number, limits) in shares.items()
    )
    queue = '[[queue]]\nname = "batch"\npolicy = "fifo"\n'
    return f'{queue}{projects}[preemption]\nby = ["share"]\nmin_run_s = 0\n'


def rigid(name: str, project: str, *, cpus: int = 1, gpus: int = 1, walltime: str = "") -> TraceJob:
    """Return a job that cannot save its state."""
    words = f"select=1:ncpus={cpus}:ngpus={gpus}" + (walltime and f",walltime={walltime}")
    return TraceJob(
        submit_s=0, duration_s=LONG, name=name, project=project, gpus=gpus, resources=words
    )


def saves(name: str, *, cpus: int = 1, most: int = 1) -> TraceJob:
    """Return a job that saves its state, on one GPU or up to several of one node."""
    return TraceJob(
        submit_s=0,
        duration_s=LONG,
        name=name,
        project="over",
        gpus=1,
        gpus_max=most,
        resources=f"select=1:ncpus={cpus}:ngpus=1,place=pack",
        training=Training(iterations=LONG, rates=tuple((n, float(n)) for n in range(1, most + 1))),
    )


class Act(Struct, frozen=True, kw_only=True):
    """What is done next.

    Attributes:
        job: that is submitted or cancelled. For ``reserve`` n1 is reserved for its project, too.
        then: the jobs that run in the end.
    """

    does: Does
    job: TraceJob | None = None
    then: frozenset[str]


FIRST: Final = (
    saves("elastic", cpus=2, most=2),
    rigid("plain", "over"),
    rigid("second", "over"),
    saves("early"),
    saves("late"),
    rigid("loses", "over"),
)
_JOBS: Final = {
    job.name: job
    for job in (
        *FIRST,
        rigid("first", "under", cpus=2),
        rigid("both", "under", cpus=2, gpus=2),
        rigid("third", "under"),
        rigid("fourth", "under"),
        rigid("fifth", "under"),
        rigid("lesson", "taught", walltime="0:10:00"),
    )
}


def _acts() -> Iterable[Act]:
    running: list[str] = []
    for job in FIRST:
        running.append(job.name)
        yield Act(does="submit", job=job, then=frozenset(running))
    after: tuple[tuple[Does, str, str], ...] = (
        ("submit", "first", "elastic plain second early late loses first"),
        ("cancel", "plain", "elastic second early late loses first"),
        ("cancel", "second", "elastic early late loses first"),
        ("submit", "both", "elastic early late loses first both"),
        ("submit", "third", "elastic late loses first both third"),
        ("submit", "fourth", "elastic late first both third fourth"),
        ("submit", "fifth", "elastic late first both third fourth"),
        ("kill head", "", "elastic late first both third fourth"),
        ("cancel", "late", "elastic early first both third fourth"),
        ("reserve", "lesson", "both third fourth lesson"),
    )
    for does, name, then in after:
        yield Act(does=does, job=_JOBS.get(name), then=frozenset(then.split()))


ACTS: Final = tuple(_acts())
NUMBERS: Final = {name: number for number, name in enumerate(_JOBS, 1)}


def course(from_s: float) -> ReservationChange:
    """Return a reservation of n1 for the project `taught`."""
    terms = ReservationTerms(
        from_s=from_s, duration_s=3600, node_names=("n1",), projects=("taught",), magnetic=True
    )
    return ReservationChange(verb="create", name="course", terms=terms)


def decisions(facts: Iterable[f.AnyFact]) -> list[str]:
    """Return what was decided: starts, and who gave way how, for whom and where to.

    The start that ends a migration is not among them.
    """
    names = {number: name for name, number in NUMBERS.items()}
    found: list[str] = []
    moving: set[int] = set()
    for fact in facts:
        if isinstance(fact, f.JobPreempted):
            reason = names[fact.job_for] if fact.job_for else fact.why
            found.append(f"{names[fact.job]}: {fact.way} for {reason}")
        elif isinstance(fact, f.MigrationRequested):
            where = " ".join(f"{each.node}:{len(each.gpu_indices)}" for each in fact.allocation)
            found.append(f"{names[fact.job]}: to {where or 'the queue'}")
            if fact.allocation:
                moving.add(fact.job)
        elif isinstance(fact, f.AttemptAssigned):
            if fact.job not in moving:
                where = " ".join(f"{each.node}:{len(each.gpu_indices)}" for each in fact.allocation)
                found.append(f"{names[fact.job]}: on {where}")
            moving.discard(fact.job)
    return found


def simulated(planning_s: float | None = None) -> list[f.AnyFact]:
    """Return the facts of the acts in the simulator.

    Args:
        planning_s: training jobs are planned beside the head, so long for each plan; None: in its
            cycle.

    Raises:
        AssertionError: a request was refused, or other jobs run after an act than it says.
    """
    site = msgspec.convert(tomllib.loads(settings("user")), Config)
    submitted = [(at, act.job) for at, act in enumerate(ACTS) if act.does in {"submit", "reserve"}]
    simulation = Simulation(
        read_cluster("+".join(f"1xcpus={cpus},gpus={gpus}" for cpus, gpus in NODES.values())),
        [structs.replace(job, submit_s=at * EACH_S) for at, job in submitted if job is not None],
        INSTALLED.choose("fifo").plan,
        options=Options(site=site, plans_training=True, planning_s=planning_s),
    )
    facts: list[f.AnyFact] = []
    simulation.recorder.on_facts = facts.extend

    def accepted(step: Step) -> None:
        assert step.error is None, step.error

    def ask(command: c.AnyCommand) -> None:
        simulation.daemon.ask(command, accepted)
        simulation.agenda.settle()
        while simulation.daemon.pump():
            simulation.agenda.settle()

    for at, act in enumerate(ACTS):
        now_s = BEGIN_S + at * EACH_S
        while simulation.next_s() < now_s and simulation.run(turns=1):
            pass
        if act.does == "cancel" and act.job is not None:
            number = NUMBERS[act.job.name]
            ask(c.ActOnJob(caller=OPERATOR, job=number, action=DeleteJob()))
        if act.does == "reserve":
            ask(c.ChangeReservation(caller=OPERATOR, action=course(now_s + EACH_S / 2)))
        while simulation.next_s() < now_s + EACH_S and simulation.run(turns=1):
            pass
        assert simulation.head is not None
        running = {job.spec.name for job in simulation.head.state.running.values()}
        assert running == act.then, f"{act.does} {act.job and act.job.name}: {running} run"
    return facts

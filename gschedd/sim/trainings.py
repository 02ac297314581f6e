"""What trainings do on what they get: as fast as their layout lets them, over all their moves."""

import math
from collections.abc import Iterable, Sequence
from typing import Protocol

from gschedd.core import facts as f
from gschedd.core.head import Head
from gschedd.core.state import Job
from gschedd.models.sizes import size_of
from gschedd.plan.layouts import layout_of
from gschedd.sim.program import Program
from gschedd.sim.workload import STARTUP


class Watcher(Protocol):
    """Is told of what has become durable."""

    def committed(self, facts: Sequence[f.AnyFact], done: Iterable[Job]) -> None:
        """Take in facts, and the jobs that are done by them."""


class Trainings:
    """Says how long each attempt of a training will run, before its nodes hear of it.

    A training takes its time until its first step each time that it starts. One that goes on from a
    checkpoint loses the time of a move, if that is more, and nothing else: modelled jobs save their
    state at the very moment of their stop. One that cannot run on what it was given runs for ever,
    as it would.

    Args:
        programs: what each job does, by number; those of trainings are put there.
        next_watcher: is told after this one.
    """

    def __init__(self, head: Head, programs: dict[int, Program], *, next_watcher: Watcher) -> None:
        self._head = head
        self._programs = programs
        self._next = next_watcher

    def committed(self, facts: Sequence[f.AnyFact], done: Iterable[Job]) -> None:
        """Take in facts, and the jobs that are done by them."""
        for fact in facts:
            if isinstance(fact, f.AttemptAssigned):
                job = self._head.state.trainings.get(fact.job)
                if job is not None and job.spec.training is not None:
                    self._programs[job.id] = self._program(job, fact)
        self._next.committed(facts, done)

    def _program(self, job: Job, fact: f.AttemptAssigned) -> Program:
        size, settings = size_of(job.spec), self._head.settings
        assert size is not None, "the head has looked at what was said of it"
        layout = layout_of(fact.allocation, self._head.state.gpus_of, settings.fabric)
        rate = size.speed.rate(layout)
        left = size.work - job.work_done
        said = (each for each in job.spec.arguments if each.startswith(STARTUP))
        startup_s = max((float(each.removeprefix(STARTUP)) for each in said), default=0.0)
        restore_s = max(startup_s, settings.move_s if job.work_done > 0 else 0.0)
        return Program(
            work_s=restore_s + left / rate if rate > 0 else math.inf,
            cpus=fact.allocation[0].cpus,
            work_done=job.work_done,
            work_rate=rate,
            restore_s=restore_s,
        )

"""Training jobs on their allocations: as fast as the layout lets them, over all migrations."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from gnode.core.task import AttemptKey
from gsched.model.reports import StepSample
from gsched.model.resources import Allocation
from gschedd.core.head import Head
from gschedd.core.state import facts as f
from gschedd.core.state.records import Job
from gschedd.models.sizes import size_of
from gschedd.plan.layouts import held_gpus, layout_of
from gschedd.sim.adaptive import AdaptiveRun, Outset, Places, Truth
from gschedd.sim.agenda import Agenda
from gschedd.sim.course import AdaptiveAttempt
from gschedd.sim.head import Watcher
from gschedd.sim.program import Program
from gschedd.sim.workload import STARTUP

#: Measuring several batch sizes takes at most so long, seconds.
#: Source: Jayaram Subramanya et al., "Sia", SOSP 2023.
PROFILE_S: Final = 20.0
#: Steps that are timed at each batch size.
PROFILE_STEPS: Final = 10


class TrainingWork:
    """Says how long each attempt of a training will run, before its nodes hear of it.

    A training takes its time until its first step each time that it starts. One that goes on from a
    checkpoint loses the time of a move, if that is more, and nothing else: modelled jobs save their
    state at the very moment of their stop. One that cannot run on what it was given runs for ever,
    as it would.

    Args:
        programs: what each job does, by number; those of training jobs are put there.
        truths: how adaptive training jobs really behave, by number.
        next_watcher: is told after this one.
    """

    def __init__(
        self,
        head: Head,
        programs: dict[int, Program],
        truths: Mapping[int, Truth],
        *,
        agenda: Agenda,
        next_watcher: Watcher,
    ) -> None:
        self._head = head
        self._programs = programs
        self._truths = truths
        self._agenda = agenda
        self._next = next_watcher
        self._steps: dict[int, int] = {}

    def committed(self, facts: Sequence[f.AnyFact], done: Iterable[Job]) -> None:
        """Take in facts, and the jobs that are done by them."""
        for fact in facts if self._truths or self._head.state.training_jobs else ():
            if isinstance(fact, f.AttemptAssigned):
                truth = self._truths.get(fact.job)
                job = self._head.state.training_jobs.get(fact.job)
                if truth is not None:
                    job = self._head.state.jobs[fact.job]
                    self._programs[job.id] = self._adaptive(job, fact, truth)
                elif job is not None and job.spec.training is not None:
                    self._programs[job.id] = self._program(job, fact)
        self._next.committed(facts, done)

    def _program(self, job: Job, fact: f.AttemptAssigned) -> Program:
        size, settings = size_of(job.spec), self._head.settings
        assert size is not None, "the head has looked at what was said of it"
        layout = layout_of(fact.allocation, self._head.state.gpus_of, settings.fabric)
        rate = size.speed.rate(layout)
        left = size.work - job.work_done
        startups = (each for each in job.spec.arguments if each.startswith(STARTUP))
        startup_s = max((float(each.removeprefix(STARTUP)) for each in startups), default=0.0)
        restore_s = max(startup_s, settings.config.training.move_s if job.work_done > 0 else 0.0)
        return Program(
            work_s=restore_s + left / rate if rate > 0 else math.inf,
            cpus=fact.allocation[0].cpus,
            work_done=job.work_done,
            work_rate=rate,
            restore_s=restore_s,
        )

    def _adaptive(self, job: Job, fact: f.AttemptAssigned, truth: Truth) -> Program:
        """Return what an adaptive training does on what it was given, with the batch it was told.

        Where it is to measure several batch sizes, it does so before its first step.
        """
        places = self._places(fact.allocation)
        startup_s = truth.restart_s
        profile: tuple[StepSample, ...] = ()
        if fact.profile_batches and len({gpu_type for gpu_type, _ in places}) == 1:
            profile = truth.profile(places[0][0])
            startup_s += min(sum(PROFILE_STEPS * each.step_s for each in profile), PROFILE_S)
        outset = Outset(
            done=job.work_done,
            steps=self._steps.get(job.id, 0) if job.work_done > 0 else 0,
            startup_s=startup_s,
            profile=profile,
        )
        course = AdaptiveAttempt(
            AdaptiveRun(truth, places, fact.batching, outset),
            AttemptKey(job.id, fact.attempt),
            fact.active,
            agenda=self._agenda,
            on_over=partial(self._over, job.id),
        )
        return Program(work_s=math.inf, cpus=fact.allocation[0].cpus, course=course)

    def _over(self, job: int, steps: float) -> None:
        self._steps[job] = int(steps)

    def _places(self, allocation: Allocation) -> Places:
        held = held_gpus(allocation, self._head.state.gpus_of)
        return tuple((min(gpu.type for gpu in gpus), len(gpus)) for gpus in held.values())

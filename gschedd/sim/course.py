"""Modelled adaptive training jobs on modelled machines: when they begin, report and end."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from gnode.core.task import AttemptKey
from gsched.model.reports import StepSample
from gsched.model.training import Batching
from gsched.protocol import node as n
from gschedd.sim.adaptive import AdaptiveRun
from gschedd.sim.agenda import FOREVER, Agenda

#: How often a training tells how far it is, seconds.
REPORT_S: Final = 30.0


class SimTask(Protocol):
    """The machine on which a part of an attempt runs.

    Attributes:
        name: of its node.
    """

    name: str

    def finish(self, key: AttemptKey) -> None:
        """Let the part end by itself: all its work is done."""

    def say(self, message: n.TrainingProgress) -> None:
        """Let the training tell its node something."""

    def wall_s(self) -> float:
        """Return the time as this machine's clock shows it, seconds since the epoch."""


class AdaptiveAttempt:
    """One attempt of an adaptive training, from its first part to its last.

    Args:
        run: what it does.
        nodes: on which it is to run; that of rank 0, the first one, reports.
        on_over: told of the steps done over all attempts when its first part has left.
    """

    def __init__(
        self,
        run: AdaptiveRun,
        key: AttemptKey,
        nodes: Sequence[str],
        *,
        agenda: Agenda,
        report_s: float = REPORT_S,
        on_over: Callable[[float], None] | None = None,
    ) -> None:
        self.run = run
        self._key = key
        self._nodes = tuple(nodes)
        self._agenda = agenda
        self._report_s = report_s
        self._on_over = on_over
        self._parts: dict[str, SimTask] = {}
        self._left_s: float | None = None
        self._profile: tuple[StepSample, ...] = run.outset.profile

    def joined(self, part: SimTask) -> None:
        """Take in that a part runs; with the last one the training begins."""
        self._parts[part.name] = part
        if self._left_s is None and len(self._parts) == len(self._nodes):
            self.run.begin(self._agenda.now_s)
            self._plan_end()
            step = self.run.step
            if step is not None:
                self._agenda.at(self.run.first_s + step.step_s, self._report)

    def left(self, part: SimTask) -> None:
        """Take in that a part is gone; nothing is done without it."""
        self._parts.pop(part.name, None)
        if self._left_s is None:
            self._left_s = self._agenda.now_s
            if self._on_over is not None:
                self._on_over(self.run.steps_done(self._left_s))

    def tune(self, batching: Batching) -> None:
        """Split the samples otherwise from now on."""
        if self._left_s is None:
            self.run.tune(batching, self._agenda.now_s)
            self._plan_end()

    def work_done(self, now_s: float) -> float:
        """Return the progress over all attempts, in samples at the tuned batch."""
        return self.run.done(now_s if self._left_s is None else min(now_s, self._left_s))

    def _plan_end(self) -> None:
        end_s = self.run.end_s
        if end_s < FOREVER:
            self._agenda.at(end_s, self._end, end_s)

    def _end(self, planned_s: float) -> None:
        if self._left_s is None and planned_s == self.run.end_s:
            for part in list(self._parts.values()):
                part.finish(self._key)

    def _report(self) -> None:
        """Tell how far it is, as the training's client does."""
        now_s, leader = self._agenda.now_s, self._parts.get(self._nodes[0])
        report = self.run.report(now_s) if self._left_s is None else None
        if leader is None or report is None:
            return
        truth, profile, batching = self.run.truth, self._profile, report.batching
        passes_s = (batching.accumulation + 1) * report.gradient_s
        fitted = profile[-1].batch_per_gpu if profile else batching.per_gpu
        leader.say(
            n.TrainingProgress(
                job=self._key.job,
                attempt=self._key.attempt,
                at_s=leader.wall_s(),
                step=report.step,
                work_done=report.work_done,
                work_total=truth.work,
                step_s=report.step_s,
                communication_s=max(0.0, report.step_s - passes_s),
                gpus=self.run.gpus,
                gradient_bytes=truth.gradient_bytes,
                restored_step=self.run.outset.steps or -1,
                batch_per_gpu=batching.per_gpu,
                accumulation=batching.accumulation,
                gradient_s=report.gradient_s,
                gradient_sqr=report.gradient_sqr,
                gradient_var=report.gradient_var,
                profile=profile,
                batch_per_gpu_max=0 if report.fits and not profile else fitted,
            )
        )
        self._profile = ()
        self._agenda.after(self._report_s, self._report)

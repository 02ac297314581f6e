"""Modelled adaptive training jobs: how far they get on their GPUs, and what they say of it.

How fast one really is says its *truth*, which is pluggable: measured traces, or the parameters of a
throughput model (`gschedd.sim.ground_truth`). The head sees of it only what a training would tell.
"""

from bisect import bisect_right
from typing import NamedTuple, Protocol

from msgspec import Struct

from gsched.model.reports import StepSample
from gsched.model.training import Batching

#: GPUs of an attempt on each of its nodes: pairs (GPU type, count); none is empty.
Places = tuple[tuple[str, int], ...]


class StepTruth(Struct, frozen=True, kw_only=True):
    """One optimiser step of a training where it runs.

    Attributes:
        batching: how it really splits its samples; smaller ones than it was told if they would not
            fit in memory, or would be more than its largest global batch.
        fits: the samples per GPU that it was told fit in memory.
        samples: the global batch (count).
        step_s: the whole step, seconds.
        gradient_s: one forward and backward pass without synchronisation, seconds.
    """

    batching: Batching
    samples: int
    step_s: float
    gradient_s: float
    fits: bool = True


class Stretch(NamedTuple):
    """A part of a training in which a step at one batch counts the same.

    Attributes:
        until: progress at its end, in samples at the efficiency of the tuned batch.
        efficiency: progress of a sample, 0 to 1 and more below the tuned batch.
        gradient_sqr, gradient_var: what is measured of the gradients.
    """

    until: float
    efficiency: float
    gradient_sqr: float
    gradient_var: float


class Truth(Protocol):
    """How an adaptive training really behaves. Progress counts samples at the tuned batch.

    Attributes:
        work: the whole training, in samples at the efficiency of the tuned batch.
        restart_s: from the start of an attempt to its first step, seconds.
        gradient_bytes: that each GPU shares with the others in a step; 0: it does not say.
    """

    @property
    def work(self) -> float:
        """Return the whole training, in samples at the efficiency of the tuned batch."""

    @property
    def restart_s(self) -> float:
        """Return the time from the start of an attempt to its first step, seconds."""

    @property
    def gradient_bytes(self) -> float:
        """Return what each GPU shares with the others in a step; 0: the training does not say."""

    def step(self, places: Places, batching: Batching | None) -> StepTruth | None:
        """Return a step on some GPUs; None where it cannot run.

        Args:
            places: GPUs by node.
            batching: as the head has told it; None: the training decides.
        """

    def stretch(self, done: float, samples: int) -> Stretch:
        """Return the part of the training that begins after some progress, at a global batch."""

    def profile(self, gpu_type: str) -> tuple[StepSample, ...]:
        """Return steps on one GPU over batch sizes, as they are profiled before the first step."""


class AdaptiveReport(Struct, frozen=True, kw_only=True):
    """What a training can say of itself at a moment; see `gsched.model.reports`."""

    step: int
    work_done: float
    step_s: float
    gradient_s: float
    batching: Batching
    gradient_sqr: float
    gradient_var: float
    fits: bool


class Outset(Struct, frozen=True, kw_only=True):
    """With what an attempt begins.

    Attributes:
        done: progress of earlier attempts, in samples at the efficiency of the tuned batch.
        steps: that were done then (count).
        startup_s: from the start of its last part to its first step, seconds.
        profile: what it tells with its first report; empty: nothing.
    """

    done: float = 0.0
    steps: int = 0
    startup_s: float = 0.0
    profile: tuple[StepSample, ...] = ()


class AdaptiveRun:
    """One attempt of a modelled adaptive training, over all its nodes.

    It begins when its last part does; before, nothing is done.

    Attributes:
        places: its GPUs by node.
        outset: with what it begins.
    """

    def __init__(
        self, truth: Truth, places: Places, batching: Batching | None, outset: Outset
    ) -> None:
        self.truth = truth
        self.places = places
        self.outset = outset
        self._step = truth.step(places, batching)
        self._first_s: float | None = None
        self._times: list[float] = []  # ends of stretches, seconds since the epoch
        self._works: list[float] = []  # progress at each
        self._counted: tuple[float, float] = (0.0, float(outset.steps))  # steps at a moment

    @property
    def gpus(self) -> int:
        """Return the number of GPUs."""
        return sum(count for _, count in self.places)

    @property
    def step(self) -> StepTruth | None:
        """Return a step as it is now; None where the training cannot run here."""
        return self._step

    @property
    def first_s(self) -> float:
        """Return when the first step begins, seconds since the epoch; infinite before the start."""
        return float("inf") if self._first_s is None else self._first_s

    @property
    def end_s(self) -> float:
        """Return when all is done, seconds since the epoch; infinite where it never is."""
        return self._times[-1] if self._times else float("inf")

    def begin(self, now_s: float) -> None:
        """Start; the last part runs."""
        self._first_s = now_s + self.outset.startup_s
        self._lay_out(self._first_s, self.outset.done)
        self._counted = (self._first_s, self._counted[1])

    def tune(self, batching: Batching, now_s: float) -> None:
        """Split the samples otherwise from now on."""
        steps, done = self.steps_done(now_s), self.done(now_s)
        self._step = self.truth.step(self.places, batching)
        if self._first_s is not None:
            at_s = max(now_s, self._first_s)
            self._counted = (at_s, steps)
            self._lay_out(at_s, done)

    def _lay_out(self, from_s: float, done: float) -> None:
        """Work out when each further stretch will be over."""
        self._times, self._works = [from_s], [done]
        step, work = self._step, self.truth.work
        if step is None:
            self._times.append(float("inf"))
            self._works.append(done)
            return
        while done < work:
            stretch = self.truth.stretch(done, step.samples)
            until = min(stretch.until, work)
            assert until > done, f"a stretch from {done} has no end"
            from_s += (until - done) / (stretch.efficiency * step.samples / step.step_s)
            done = until
            self._times.append(from_s)
            self._works.append(done)

    def done(self, now_s: float) -> float:
        """Return the progress over all attempts, in samples at the tuned batch."""
        times, works = self._times, self._works
        if not times or now_s <= times[0]:
            return works[0] if works else self.outset.done
        place = bisect_right(times, now_s)
        if place == len(times):
            return works[-1]
        part = (now_s - times[place - 1]) / (times[place] - times[place - 1])
        return works[place - 1] + part * (works[place] - works[place - 1])

    def steps_done(self, now_s: float) -> float:
        """Return the number of optimiser steps over all attempts."""
        at_s, steps = self._counted
        if self._step is None or self._first_s is None:
            return steps
        return steps + max(0.0, min(now_s, self.end_s) - at_s) / self._step.step_s

    def report(self, now_s: float) -> AdaptiveReport | None:
        """Return what it can say of itself; None before its first step is done."""
        step = self._step
        if step is None or now_s < self.first_s:
            return None
        done = self.done(now_s)
        stretch = self.truth.stretch(min(done, self.truth.work), step.samples)
        return AdaptiveReport(
            step=max(self.outset.steps + 1, round(self.steps_done(now_s))),
            work_done=done,
            step_s=step.step_s,
            gradient_s=step.gradient_s,
            batching=step.batching,
            gradient_sqr=stretch.gradient_sqr,
            gradient_var=stretch.gradient_var,
            fits=step.fits,
        )

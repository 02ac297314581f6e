"""A training whose batch follows its GPUs: what a script holds in its hands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gsched.elastic.adaptive.adaptation import Adaptation
from gsched.elastic.adaptive.noise import Noise
from gsched.elastic.adaptive.options import Rule, Until
from gsched.elastic.adaptive.plans import StepPlan, StepPlanner, is_due
from gsched.elastic.adaptive.profiler import PROFILED_STEP, Profiler, ProfilerPhase
from gsched.elastic.adaptive.rates import Rates, factor, rule_for
from gsched.elastic.adaptive.watch import GradientNorms, Marks, StepRecord
from gsched.elastic.conversation import Body
from gsched.elastic.errors import StepError
from gsched.elastic.keeper import CheckpointKeeper, Restored
from gsched.elastic.plain import distributed_parts, is_plain
from gsched.elastic.ranks import Ranks
from gsched.elastic.reporter import Reporter
from gsched.elastic.training import Settings, Training

if TYPE_CHECKING:
    from torch import nn
    from torch.utils.data import Dataset

#: Norms are read from the device, and exchanged between ranks, so often: both wait for something.
EXCHANGE_EVERY = 10


@dataclass(frozen=True, slots=True)
class _UnreadStep:
    """A step whose norms were not read yet."""

    record: StepRecord
    ratio: float


class AdaptiveTraining(Training):
    """The loop of an adaptive training, as `start` returns it for ``adaptive``.

    Each step of the optimiser has one or more micro-batches, of which only the last one
    synchronises the gradients of the ranks:

        for epoch in training.epochs():
            for parts in training.steps(data):
                optimizer.zero_grad()
                for images, classes in parts:
                    loss = ...
                    (training.weight * loss).backward()
                optimizer.step()
                training.step()

    Args:
        model, ranks, reporter, settings: see `Training`.
        adaptation: that has followed the allocation.
    """

    def __init__(
        self,
        model: nn.Module,
        adaptation: Adaptation,
        ranks: Ranks,
        reporter: Reporter,
        settings: Settings,
    ) -> None:
        samples, learned = adaptation.samples, adaptation.learned
        optimizers, adaptive = adaptation.optimizers, adaptation.options
        super().__init__(model, samples, ranks, reporter, settings)
        self._adaptation = adaptation
        self._plan = samples
        self._per_gpu = adaptation.per_gpu
        self._tuning: tuple[int, int] | None = None
        self._learned = learned
        self._adaptive = adaptive
        self._rule = adaptive.rule or rule_for(optimizers)
        self._rates = Rates(optimizers, lambda: factor(self._rule, self._ratio, learned.noise))
        self._distributed = distributed_parts(model)
        self._marks = Marks(next(model.parameters()).device)
        self._norms = (
            GradientNorms(model, self._loss_scale, self._marks)
            if is_plain(model) and not adaptive.inference
            else None
        )
        alone = adaptive.alone if self._norms is not None else None
        replica_ranks = adaptive.replica_ranks
        self._replicas = max(1, ranks.world_size // replica_ranks)
        self._planner = StepPlanner(ranks.rank // replica_ranks, self._replicas, alone)
        self._profiler = Profiler(model, adaptation, ranks)
        # passes of a part of a model need those of the others: they are not timed alone
        self._may_profile = replica_ranks == 1
        self._is_new = adaptation.profiles and self._may_profile
        self._seen: list[_UnreadStep] = []
        self._waits_s: list[float] = []  # for other ranks, of steps since the last report
        self._ratio = 1.0  # of the current step's batch to the tuned one
        self._left = 0  # micro-batches of the current step that were not asked for
        self._is_unweighted = False
        self._has_reported = False
        learned.world_size = ranks.world_size
        learned.settle = self._read_norms
        if adaptive.until is Until.PROGRESS:
            reporter.work_done = lambda _: learned.progress * samples.tuned_batch

    # --- what a script uses ---

    @property
    def global_batch(self) -> int:
        """Return the samples of a step over all ranks in this attempt."""
        return self._plan.global_batch

    @property
    def accumulation(self) -> int:
        """Return the micro-batches of a step before the last one."""
        per_gpu = min(self._per_gpu, self._profiler.limit or self._per_gpu)
        return -(-self._plan.global_batch // (per_gpu * self._replicas)) - 1

    @property
    def batch_per_gpu(self) -> int:
        """Return the samples of a micro-batch on each replica of the model: a rank, or several."""
        return -(-self._plan.global_batch // (self._replicas * (self.accumulation + 1)))

    @property
    def rule(self) -> Rule:
        """Return how the learning rate follows the batch."""
        return self._rule

    @property
    def noise(self) -> Noise | None:
        """Return the smoothed statistics of the gradients; None: not known yet."""
        return self._learned.noise

    @property
    def scale_invariant_steps(self) -> float:
        """Return the tuned steps that all steps so far are worth: the sum of their gains."""
        return self._learned.progress

    @property
    def weight(self) -> float:
        """Return what to multiply the mean loss of the current micro-batch with.

        With it, the sum over the micro-batches of a step, of which DistributedDataParallel takes
        the mean over the ranks, is the mean over the samples of the global batch.
        """
        self._is_unweighted = False
        return self._weight

    def steps(self, dataset: Dataset[object] | None = None, **options: object) -> Iterator[Any]:
        """Yield, for each step left of the epoch, this rank's micro-batches, an iterator.

        Args:
            dataset: has `Samples.count` samples, found by index; None: a micro-batch is a list of
                the numbers of its samples.
            options: of ``torch.utils.data.DataLoader``, but for what chooses the samples.

        Raises:
            StepError: `step` was not called since the last micro-batches, some of these were not
                used, `weight` was not, or this is no epoch's loop.
            ValueError: the data set has another number of samples.
        """
        if dataset is not None:
            self._check_size(dataset)
        self._begin()
        while plans := self._plans():
            bounds = [(part.begin, part.end) for plan in plans for part in plan.parts]
            batches = iter(self._batches_of(bounds, dataset, options))
            for plan in plans:
                if self._is_complete():
                    return
                self._open(plan)
                yield self._yielded(plan, batches)
                self._expect_step(plan.offset)
                if self._is_replanned():
                    break

    def batches(self) -> Iterator[list[int]]:
        """Refuse: a step may have several micro-batches.

        Raises:
            StepError: always.
        """
        raise StepError("an adaptive training takes its batches from training.steps()")

    def loader(self, dataset: Dataset[object], **options: object) -> Iterator[Any]:
        """Refuse: a step may have several micro-batches.

        Raises:
            StepError: always.
        """
        del options
        raise StepError(
            f"an adaptive training takes its batches from training.steps(…): a step of "
            f"{type(dataset).__name__} may have several of them"
        )

    def step(self) -> None:
        """Say that a step is done: the optimiser has used the gradients of its micro-batches.

        Raises:
            StepError: micro-batches of the step are left, or were not weighed.
        """
        if self._left:
            raise StepError(
                f"{self._left} micro-batches of this step were not used: call training.step() "
                "after the loop over all of them"
            )
        self._check_weighed()
        record = self._norms.end() if self._norms is not None else None
        if record is not None:
            self._seen.append(_UnreadStep(record, self._ratio))
        noise = self._learned.noise
        self._learned.progress += (
            noise.gain(self._ratio) if noise is not None and self._ratio > 1.0 else 1.0
        )
        step = self._position.step + 1
        self._profiler.enter(step, ProfilerPhase.NONE)
        if is_due(step, EXCHANGE_EVERY):
            self._exchange()
        super().step()

    def profile(self) -> None:
        """Let the times of other batch sizes be measured on this device, after the next whole step.

        It takes at most about 15 GPU-seconds, and changes nothing of the training. gsched asks new
        adaptive training jobs for it. Called by all ranks at the same step. A model that is split
        over several ranks is not profiled.
        """
        if not self._may_profile:
            return
        self._profiler.ask(self._position.step + 2, is_careful=False)

    def advance(self, schedule: Any) -> None:
        """Let a schedule of the learning rate do the steps that are due, after `step`.

        The schedule counts steps with the tuned batch; a larger batch is worth several of them.

        Args:
            schedule: of ``torch.optim.lr_scheduler``; each of its steps is one of the optimiser.
        """
        for _ in range(int(self._learned.progress) - schedule.last_epoch):
            schedule.step()

    # --- the steps ---

    def begin_with(self, keeper: CheckpointKeeper | None, restored: Restored | None) -> None:
        """Take over the position of a checkpoint; called by `start`."""
        super().begin_with(keeper, restored)
        if self._is_new:
            self._profiler.ask(self._position.step + PROFILED_STEP, is_careful=True)

    def _has_epochs(self) -> bool:
        return not self._is_complete() and super()._has_epochs()

    def _is_complete(self) -> bool:
        if self._adaptive.until is Until.EPOCHS:
            return False
        return self._learned.progress >= self._plan.steps_tuned

    def _plans(self) -> list[StepPlan]:
        """Return the steps left of the epoch."""
        found = []
        for step, (offset, _) in enumerate(self._parts(), self._position.step + 1):
            size, per_gpu = self._plan.batch_at(offset), self._profiler.per_gpu(step, self._per_gpu)
            found.append(self._planner.plan(step, offset, size, per_gpu))
        if self._adaptive.inference:  # no rank takes part in what it has no sample of
            found = [
                replace(plan, parts=[part for part in plan.parts if part.weight > 0])
                for plan in found
            ]
        return found

    def _is_replanned(self) -> bool:
        """Do what is due between two steps; return whether micro-batches are others now."""
        tuning, self._tuning = self._tuning, None
        if tuning is not None:
            self._plan = self._adaptation.tune(*tuning, self._replicas)
            self._samples, self._per_gpu = self._plan, self._adaptation.per_gpu
            self._forget_times()
        is_other = self._profiler.ended(self._position.step)
        if is_other is not None:
            self._reporter.tell_soon()
            self._forget_times()
        return tuning is not None or bool(is_other)

    def _forget_times(self) -> None:
        """Leave the steps so far out of what is told."""
        self._read_norms()
        self._waits_s.clear()
        self._timer.mean_since_report()
        self._timer.begin()

    def _batches_of(
        self,
        bounds: Sequence[tuple[int, int]],
        dataset: Dataset[object] | None,
        options: dict[str, object],
    ) -> Iterable[Any]:
        if dataset is not None:
            return self._loader(dataset, bounds, dict(options))
        epoch = self._position.epoch
        return (self._order.part(epoch, begin, end) for begin, end in bounds)

    def _open(self, plan: StepPlan) -> None:
        self._ratio = self._plan.batch_at(plan.offset) / self._plan.tuned_batch
        self._left = len(plan.parts)
        self._is_unweighted = False
        if self._norms is not None and plan.stands_for:
            self._norms.begin(steps=plan.stands_for)

    def _yielded(self, plan: StepPlan, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the micro-batches of a step; ranks synchronise in the last one."""
        step = self._position.step + 1
        is_only = len(plan.parts) * self._replicas == 1
        try:
            for part in plan.parts:
                self._check_weighed()
                self._profiler.enter(step, ProfilerPhase.FETCH)
                batch = next(batches)
                self._left -= 1
                self._weight, self._is_unweighted = part.weight, not self._adaptive.inference
                self._synchronise(wanted=self._left == 0)
                self._profiler.enter(step, ProfilerPhase.PASS, part.end - part.begin)
                if self._norms is not None:
                    self._norms.next_part(part.weight, is_last=self._left == 0, is_only=is_only)
                yield batch
            self._profiler.enter(step, ProfilerPhase.REST)
        finally:
            self._synchronise(wanted=True)

    def _synchronise(self, *, wanted: bool) -> None:
        """Let the next backward pass share the gradients, or add them up on each rank."""
        for part in self._distributed:
            if part.require_backward_grad_sync != wanted:
                part.require_backward_grad_sync = wanted

    def _check_weighed(self) -> None:
        if self._is_unweighted:
            raise StepError(
                "multiply the loss of each micro-batch with training.weight: "
                "(training.weight * loss).backward()"
            )

    # --- what is learned ---

    def _exchange(self) -> None:
        """Share the gradient statistics with the other ranks, and the batch that rank 0 was told.

        A batch size comes from one rank, so that of the sum over the ranks is known what it is.
        """
        self._read_norms()
        tuned = self._reporter.take_tuning()
        tuning = (0, 0) if tuned is None else (tuned.per_gpu, tuned.accumulation)
        means = self._ranks.mean((*self._learned.averages.sums(), *tuning))
        self._learned.shared = (means[0], means[1], means[2])
        per_gpu, accumulation = (round(mean * self.world_size) for mean in means[3:])
        if per_gpu:
            self._tuning = (per_gpu, accumulation)

    def _loss_scale(self) -> float:
        scaler = self._adaptive.scaler
        return 1.0 if scaler is None else float(scaler.get_scale())

    def _read_norms(self) -> None:
        """Take the norms of all steps so far into the averages."""
        seen, self._seen = self._seen, []
        for each in seen:
            norms = each.record.norms(self._replicas)
            if norms is not None:
                self._learned.averages.add(norms, each.ratio)
            if each.record.synchronised is not None:
                self._waits_s.append(
                    self._marks.between_s(each.record.computed, each.record.synchronised)
                )

    def _more_progress(self, step_s: float) -> Body:
        """Return what the goodput of this training is estimated from; only what is known.

        Steps that are not like those to come say nothing of their batch: the first of an attempt,
        which takes longer, and those before batch sizes are profiled.
        """
        self._read_norms()
        waits_s, self._waits_s = self._waits_s, []
        is_first, self._has_reported = not self._has_reported, True
        body = self._profiler.body()
        body |= {"batch": self._plan.tuned_batch, "batch_max": self._adaptive.batch_max}
        noise = self._learned.noise
        if noise is not None:
            body |= {"gradient_sqr": noise.sqr, "gradient_var": noise.var}
        if is_first or self._profiler.is_careful or step_s <= 0:
            return body
        body |= {"batch_per_gpu": self.batch_per_gpu, "accumulation": self.accumulation}
        if self._replicas == 1 or waits_s or self._adaptive.inference:
            wait_s = sum(waits_s) / len(waits_s) if waits_s and self._replicas > 1 else 0.0
            body["gradient_s"] = self._gradient_s(step_s, wait_s)
        return body

    def _gradient_s(self, step_s: float, wait_s: float) -> float:
        """Return the time of a micro-batch without the other ranks, seconds.

        It is a step's time, without what this rank waits for gradients after its own backward pass,
        divided among the micro-batches: with one rank a step is the sum of its micro-batches. It
        includes what the optimiser and the loader take.
        """
        return max(0.0, step_s - wait_s) / (self.accumulation + 1)

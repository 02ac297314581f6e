"""What a job tells of its steps and its gradients, bounded in memory, and the model made from it.

Source of the bootstrapping rules: Jayaram Subramanya et al., SOSP 2023, section 3.2. A job is
profiled on one GPU of each type; scaling counts as perfect until it was seen; a type on which only
single replicas were seen borrows the scaling of another.
"""

from collections.abc import Iterable
from math import exp, isfinite, log
from statistics import median
from typing import Final

from msgspec import Struct, field

from gsched.model.reports import StepSample
from gsched.model.training import Adaptive, Scaling
from gschedd.models.goodput.lines import on_line
from gschedd.models.goodput.model import GoodputModel
from gschedd.models.goodput.records import (
    BatchLimits,
    GradientNoise,
    Observation,
    ThroughputParameters,
    TypeModel,
)

#: GPU types of one job that are remembered; further ones are ignored.
MAX_TYPES: Final = 32
#: Configurations with their batches of one job and type that are remembered.
MAX_CELLS: Final = 64
#: A mean counts so many of the latest reports, so that it follows a change within minutes.
LATEST: Final = 10
#: Steps that are shorter or longer than that are mistakes.
STEP_LEAST_S: Final = 1e-6
STEP_MOST_S: Final = 1e6
#: Parameters are fitted again when a mean has changed by so much since (a logarithm: about 3 %).
CHANGE: Final = 0.03


class Cell(Struct, kw_only=True):
    """Means of what was reported with one batch on one configuration; of logarithms of seconds.

    Attributes:
        profiled: of a profile, and not of steps of the training.
        gradient_count, step_count: reports that count in the means, at most `LATEST`.
        fitted_gradient, fitted_step: the means when parameters were last fitted to them.
    """

    nodes: int
    replicas: int
    per_gpu: int
    accumulation: int
    profiled: bool = False
    gradient: float = 0.0
    gradient_count: int = 0
    step: float = 0.0
    step_count: int = 0
    fitted_gradient: float = 0.0
    fitted_step: float = 0.0

    def add(self, gradient_s: float, step_s: float) -> None:
        """Take a report into the means.

        A pass takes no more than its part of the step, however the two were measured.
        """
        self.step_count = min(self.step_count + 1, LATEST)
        self.step += (log(step_s) - self.step) / self.step_count
        if gradient_s > STEP_LEAST_S:
            gradient_s = min(gradient_s, step_s / (self.accumulation + 1))
            self.gradient_count = min(self.gradient_count + 1, LATEST)
            self.gradient += (log(gradient_s) - self.gradient) / self.gradient_count

    def has_changed(self) -> bool:
        """Return whether the parameters no longer rest on these means."""
        if abs(self.step - self.fitted_step) > CHANGE:
            return True
        return self.gradient_count > 0 and abs(self.gradient - self.fitted_gradient) > CHANGE

    def observation(self, shift: float = 0.0) -> Observation:
        """Return the means as an observation, whose GPUs are replicas.

        Args:
            shift: is added to the logarithms.
        """
        return Observation(
            gpu_type="",
            nodes=self.nodes,
            gpus=self.replicas,
            batch_per_gpu=self.per_gpu,
            accumulation=self.accumulation,
            gradient_s=exp(self.gradient + shift) if self.gradient_count else 0.0,
            step_s=exp(self.step + shift),
        )


class TypeRecord(Struct, kw_only=True):
    """What was reported on one GPU type.

    Attributes:
        cells: by configuration and batch, the longest untouched first.
        per_gpu_max: largest batch of a replica that was found to fit into memory; 0: not known.
        parameters: last fitted; None: none yet.
        is_stale: whether something new was reported since.
    """

    cells: dict[str, Cell] = field(default_factory=dict)
    per_gpu_max: int = 0
    parameters: ThroughputParameters | None = None
    is_stale: bool = False

    def add(self, seen: Observation, replicas: int) -> bool:
        """Take an observation into account; return whether it says something new."""
        kind = " profiled" if seen.profiled else ""
        key = f"{seen.nodes} {replicas} {seen.batch_per_gpu} {seen.accumulation}{kind}"
        cell = self.cells.pop(key, None)
        is_new = cell is None
        if cell is None:
            if len(self.cells) >= MAX_CELLS:
                self._forget_one()
            cell = Cell(
                nodes=seen.nodes,
                replicas=replicas,
                per_gpu=seen.batch_per_gpu,
                accumulation=seen.accumulation,
                profiled=seen.profiled,
            )
        self.cells[key] = cell
        cell.add(seen.gradient_s, seen.step_s)
        is_news = is_new or cell.has_changed()
        self.is_stale = self.is_stale or is_news
        return is_news

    def refit(self) -> None:
        """Fit the parameters if something new was reported."""
        if not self.is_stale:
            return
        from gschedd.models.goodput.fitting import fit  # NumPy, only where there is a model

        cells, shift = self.cells.values(), self._shift()
        seen = [cell.observation(shift if cell.profiled else 0.0) for cell in cells]
        self.parameters = fit(seen, self.parameters).parameters
        self.is_stale = False
        for cell in cells:
            cell.fitted_gradient, cell.fitted_step = cell.gradient, cell.step

    def _shift(self) -> float:
        """Return by how much the logarithms of real passes exceed those of the profile.

        A profile tells how passes depend on the batch, steps of the training how long they take:
        with its data, its optimiser and its neighbours. Passes of single replicas count, if any
        were reported; of all of them the median.
        """
        profile = {
            cell.per_gpu: exp(cell.gradient)
            for cell in self.cells.values()
            if cell.profiled and cell.gradient_count
        }
        real = [
            cell for cell in self.cells.values() if not cell.profiled and cell.gradient_count > 0
        ]
        alone = [cell for cell in real if cell.replicas == 1]
        if not profile or not real:
            return 0.0
        return median(cell.gradient - log(on_line(profile, cell.per_gpu)) for cell in alone or real)

    def spread(self) -> tuple[bool, int]:
        """Return whether several nodes, and in how many cells several replicas, were seen."""
        several = [cell for cell in self.cells.values() if cell.replicas > 1]
        return any(cell.nodes > 1 for cell in several), len(several)

    def largest(self) -> int:
        """Return the largest batch of a replica that was seen to fit into memory."""
        return max((cell.per_gpu for cell in self.cells.values()), default=0)

    def _forget_one(self) -> None:
        """Forget the longest untouched cell of the configuration that has most of them.

        So the profile on one GPU, which is never repeated, outlives reports that say the same.
        """
        counts: dict[tuple[int, int], int] = {}
        for cell in self.cells.values():
            at = cell.nodes, cell.replicas
            counts[at] = counts.get(at, 0) + 1
        most = max(counts.values())
        oldest = next(
            key for key, cell in self.cells.items() if counts[cell.nodes, cell.replicas] == most
        )
        del self.cells[oldest]


class GoodputLearner(Struct, kw_only=True):
    """What is known of one job; a record that grows no further than its bounds, and can be saved.

    Attributes:
        limits: of its batches, as its user gave them.
        replica_gpus: GPUs of one replica by type; 1 where missing.
        noise: of its gradients, as last reported.
        records: by GPU type.
    """

    limits: BatchLimits
    replica_gpus: tuple[tuple[str, int], ...] = ()
    noise: GradientNoise = GradientNoise()
    records: dict[str, TypeRecord] = field(default_factory=dict)

    def add(self, observation: Observation) -> bool:
        """Take an observation into account.

        Returns:
            Whether it says something new, so that the next model differs. Observations that cannot
            be (steps of no time or of weeks, replicas that are not whole) are ignored.
        """
        gpus = dict(self.replica_gpus).get(observation.gpu_type, 1)
        replicas, rest = divmod(observation.gpus, gpus)
        counts = (replicas, observation.nodes, observation.batch_per_gpu)
        if rest or min(counts) < 1 or observation.accumulation < 0:
            return False
        if not STEP_LEAST_S < observation.step_s < STEP_MOST_S:
            return False
        record = self._record(observation.gpu_type)
        return record is not None and record.add(observation, replicas)

    def profile(self, gpu_type: str, samples: Iterable[StepSample], per_gpu_max: int = 0) -> bool:
        """Take steps on a single replica into account; return whether they say something new.

        Args:
            per_gpu_max: largest batch that fits into the memory of the type; 0: not known.
        """
        is_news = False
        gpus = dict(self.replica_gpus).get(gpu_type, 1)
        for sample in samples:
            seen = Observation(
                gpu_type=gpu_type,
                nodes=1,
                gpus=gpus,
                batch_per_gpu=sample.batch_per_gpu,
                gradient_s=sample.gradient_s,
                step_s=sample.step_s,
                profiled=True,
            )
            is_news = self.add(seen) or is_news
        record = self._record(gpu_type) if per_gpu_max > 0 else None
        if record is not None and record.per_gpu_max != per_gpu_max:
            record.per_gpu_max, is_news = per_gpu_max, True
        return is_news

    def measure_noise(self, square_norm: float, variance: float) -> None:
        """Take smoothed statistics of the gradient into account; both 0: nothing was measured."""
        if isfinite(square_norm) and isfinite(variance) and max(square_norm, variance) > 0:
            self.noise = GradientNoise(square_norm=square_norm, variance=variance)

    def model(self) -> GoodputModel:
        """Return the model of what is known now; types of which something is new are fitted."""
        for record in self.records.values():
            record.refit()
        known = {name: record for name, record in self.records.items() if record.parameters}
        lender = max(known, key=lambda name: (*known[name].spread(), name), default="")
        lent = known[lender].parameters if known and known[lender].spread()[1] else None
        models = []
        for name in sorted(known):
            record = known[name]
            assert record.parameters is not None, "it was chosen for that"
            models.append(
                TypeModel(
                    gpu_type=name,
                    parameters=record.parameters,
                    scaling=lent if record.spread()[1] == 0 else None,
                    per_gpu_max=self._per_gpu_max(record),
                )
            )
        return GoodputModel(
            limits=self.limits,
            noise=self.noise,
            models=tuple(models),
            replica_gpus=self.replica_gpus,
        )

    def _record(self, gpu_type: str) -> TypeRecord | None:
        record = self.records.get(gpu_type)
        if record is None and len(self.records) < MAX_TYPES:
            record = self.records[gpu_type] = TypeRecord()
        return record

    def _per_gpu_max(self, record: TypeRecord) -> int:
        """Return the limit of memory on a type: found, given, or the largest batch seen on it."""
        given = [limit for limit in (record.per_gpu_max, self.limits.per_gpu_max) if limit > 0]
        return min(given, default=record.largest())


def learner_of(adaptive: Adaptive) -> GoodputLearner:
    """Return a learner of a job of which nothing was reported yet."""
    return GoodputLearner(
        limits=BatchLimits(
            batch=adaptive.batch,
            batch_max=adaptive.batch_max,
            per_gpu_max=adaptive.batch_per_gpu_max,
            fixed=adaptive.scaling is not Scaling.ADAPTIVE,
        ),
        replica_gpus=adaptive.replica_gpus,
    )

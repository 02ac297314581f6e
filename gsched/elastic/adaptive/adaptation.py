"""From a script's samples and its allocation to the batch of an attempt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gsched.elastic.adaptive.batches import AdaptiveSamples, adaptive_samples, batching
from gsched.elastic.adaptive.options import Adaptive, Until
from gsched.elastic.environment import Environment
from gsched.elastic.ranks import Ranks
from gsched.elastic.samples import Samples
from gsched.elastic.stateful import Stateful

if TYPE_CHECKING:
    from torch.optim import Optimizer

from collections.abc import Callable
from typing import Any

from gsched.elastic.adaptive.noise import Averages, Noise, noise_of

State = dict[str, Any]
LEARNED_NAME = "adaptive"  # of the state in checkpoints


class Learned:
    """The state of an adaptive training beside model, optimiser and position.

    Attributes:
        averages: gradient statistics, as this rank sees them.
        shared: sums of ``averages``, mean over the ranks when they were last exchanged.
        progress: scale-invariant steps done.
        limits: the most samples that fitted on a GPU, by its name; of those that have a limit.
        world_size: ranks that learn it.
        settle: called before the state is taken: takes in what is under way.
    """

    def __init__(self) -> None:
        self.world_size = 1
        self.averages = Averages()
        self.shared = self.averages.sums()
        self.progress = 0.0
        self.limits: dict[str, int] = {}
        self.settle: Callable[[], None] = _nothing

    @property
    def noise(self) -> Noise | None:
        """Return the gradient statistics of all ranks; None: not known yet."""
        return noise_of(self.shared)

    def state_dict(self) -> State:
        """Return the state of this rank."""
        self.settle()
        return {
            "averages": self.averages.sums(),
            "shared": self.shared,
            "progress": self.progress,
            "limits": dict(self.limits),
            "world_size": self.world_size,
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from a state; on another number of ranks with what they had in common."""
        alike = state["world_size"] == self.world_size
        self.shared = tuple(state["shared"])
        self.averages.restore(state["averages"] if alike else self.shared)
        self.progress = float(state["progress"])
        self.limits = dict(state["limits"])


def _nothing() -> None:
    """Settle nothing."""


@dataclass(slots=True)
class Adaptation:
    """How a training adapts.

    Attributes:
        options: what its script says.
        optimizers: whose learning rates follow the batch.
        generators: random number generators of the script.
        learned: what it has learned so far.
        samples: with the global batch of this attempt, after `follow`.
        per_gpu: the most samples of a micro-batch, after `follow`.
        profiles: measure steps of several batch sizes, after `follow`.
    """

    options: Adaptive
    optimizers: Sequence[Optimizer]
    generators: Sequence[Stateful] = ()
    learned: Learned = field(default_factory=Learned)
    samples: AdaptiveSamples = field(init=False)
    per_gpu: int = field(init=False, default=1)
    profiles: bool = field(init=False, default=False)

    @property
    def _batch_max(self) -> int:
        """Return the most samples of a step over all ranks; 0: any number."""
        return 0 if self.options.inference else self.options.batch_max

    def follow(self, samples: Samples, environment: Environment, ranks: Ranks) -> AdaptiveSamples:
        """Take the batch from the environment of rank 0; return the samples with it.

        Args:
            samples: as the script has made them, with the tuned batch.
            environment: of this rank.
            ranks: all of them call it.
        """
        options = self.options
        batch, self.per_gpu, self.profiles = ranks.share(
            (
                *batching(
                    samples.global_batch,
                    self._batch_max,
                    environment.batch_per_gpu,
                    environment.accumulation,
                    max(1, ranks.world_size // options.replica_ranks),
                ),
                environment.profile_batches,
            )
        )
        self.samples = adaptive_samples(
            samples,
            batch,
            options.batch_max,
            endless=options.until is Until.PROGRESS,
            replica_ranks=options.replica_ranks,
        )
        return self.samples

    def tune(self, per_gpu: int, accumulation: int, replicas: int) -> AdaptiveSamples:
        """Take another batch, while the training runs; return the samples with it.

        Args:
            per_gpu: samples of a micro-batch.
            accumulation: micro-batches of a step before the last one.
            replicas: of the model.
        """
        tuned, most = self.samples.tuned_batch, self._batch_max
        batch, self.per_gpu = batching(tuned, most, per_gpu, accumulation, replicas)
        self.samples = replace(self.samples, global_batch=batch)
        return self.samples

"""What an adaptive training has learned: it goes on with it in the next attempt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gsched.elastic.adaptive.noise import Averages, Noise, noise_of

State = dict[str, Any]


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

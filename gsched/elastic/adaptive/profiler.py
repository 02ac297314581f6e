"""When batch sizes are profiled, and what is told and remembered of it."""

from __future__ import annotations

import sys
import time
from bisect import insort
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING

from gsched.elastic.adaptive.adaptation import Adaptation
from gsched.elastic.adaptive.profiling import (
    BUDGET_S,
    BatchProfile,
    Calls,
    profile,
    sizes_between,
    wait_for_device,
)
from gsched.elastic.conversation import Body
from gsched.elastic.ranks import Ranks

if TYPE_CHECKING:
    from torch import nn

#: A new training is profiled in this step of its attempt: the first ones take longer, and make what
#: the optimiser keeps in memory.
PROFILED_STEP = 3
#: Until then micro-batches are so much smaller, since the largest that fits is not known.
_CAREFUL_SHARE = 16
#: For so long a profile is told with the progress: a message may be lost, or be replaced by a newer
#: one.
_TELL_FOR_S = 60.0


class ProfilerPhase(Enum):
    """What a training does in a step."""

    NONE = "none"  # nothing of a step
    FETCH = "fetch"  # it waits for a micro-batch
    PASS = "pass"  # noqa: S105 - forward and backward pass, with all that the script does to them
    REST = "rest"  # the optimiser, and what else comes after the last pass


class Profiler:
    """Profiles batch sizes between two steps of the training, each on one of the ranks' devices.

    Args:
        model: what is trained.
        adaptation: of the training; what it learns gets the limit of this device.
        ranks: all of them profile at the same step.

    Attributes:
        is_careful: steps are done in small micro-batches, since the largest is not known yet.
    """

    def __init__(self, model: nn.Module, adaptation: Adaptation, ranks: Ranks) -> None:
        self._model = model
        self._plan = adaptation.samples
        self._learned = adaptation.learned
        self._generators = adaptation.generators
        self._infers = adaptation.options.inference
        self._ranks = ranks
        self._device = _device_name(next(model.parameters()).device)
        self._calls: Calls | None = None
        self._at = 0
        self.is_careful = False
        self._phase = ProfilerPhase.NONE
        self._entered_s = 0.0
        self._spent_s = dict.fromkeys(ProfilerPhase, 0.0)
        self._fetched = 0  # samples
        self._reported_from_s = float("-inf")
        self._samples: list[Body] = []

    @property
    def limit(self) -> int:
        """Return the most samples that fit on this device; 0: not known."""
        return self._learned.limits.get(self._device, 0)

    def ask(self, step: int, *, is_careful: bool) -> None:
        """Profile after a step.

        Args:
            step: number of it.
            is_careful: the model may not fit into memory with the batch that it was given.
        """
        self._at, self.is_careful = step, is_careful
        self._spent_s, self._fetched = dict.fromkeys(ProfilerPhase, 0.0), 0
        self._calls = Calls(self._model, infers=self._infers)

    def per_gpu(self, step: int, wanted: int) -> int:
        """Return the most samples of a micro-batch in a step, where ``wanted`` would be best."""
        if self.is_careful and step <= self._at:
            wanted = min(wanted, max(2, -(-wanted // _CAREFUL_SHARE)))
        return min(wanted, self.limit) if self.limit else wanted

    def enter(self, step: int, phase: ProfilerPhase, size: int = 0) -> None:
        """Note what the training does from now on, in the step that is profiled.

        Args:
            step: which is being done.
            phase: what is being done in it.
            size: samples of the micro-batch, with `Phase.PASS`.
        """
        if step != self._at or self._calls is None:
            return
        wait_for_device()
        now_s = time.perf_counter()
        self._spent_s[self._phase] += now_s - self._entered_s
        self._phase, self._entered_s = phase, now_s
        if size:
            self._calls.begin(size)
            self._fetched += size

    def ended(self, step: int) -> bool | None:
        """Profile if it is time, after a step.

        Returns:
            Whether later steps are split otherwise now; None: it is not time.
        """
        if step != self._at or self._calls is None:
            return None
        self.enter(step, ProfilerPhase.NONE)
        calls, self._calls = self._calls, None
        known, was_careful, self.is_careful = self.limit, self.is_careful, False
        sizes = sizes_between(self._plan.tuned_batch, self._plan.batch_max)
        if calls.size and calls.size not in sizes:
            insort(sizes, calls.size)
        rank, ranks = self._ranks.rank, self._ranks.world_size
        budget_s = BUDGET_S / ranks
        found = profile(self._model, calls, sizes[rank::ranks], self._generators, budget_s)
        if found.fault is not None and rank == 0:
            sys.stderr.write(f"gsched.elastic: batch sizes are not profiled: {found.fault}\n")
        everybodys = self._ranks.gather(found)
        limits = [each.limit for each in everybodys if each.limit]
        if limits:
            self._learned.limits[self._device] = min(limits)
        self._take(everybodys)
        return was_careful or self.limit != known

    def _take(self, found: Sequence[BatchProfile]) -> None:
        """Turn times of passes into times of steps: with the loader's and the optimiser's."""
        fetch_s = self._spent_s[ProfilerPhase.FETCH] / max(1, self._fetched)
        rest_s = self._spent_s[ProfilerPhase.REST]
        self._samples = []
        times = {each.size: each for part in found for each in part.times}
        for _, each in sorted(times.items()):
            step_s = each.gradient_s + rest_s + fetch_s * each.size
            self._samples.append(
                {"batch_per_gpu": each.size, "step_s": step_s, "gradient_s": step_s}
            )
        self._reported_from_s = time.perf_counter()

    def body(self) -> Body:
        """Return what is told of it."""
        body: Body = {}
        if self._samples and time.perf_counter() - self._reported_from_s < _TELL_FOR_S:
            body["profile"] = self._samples
        if self.limit:
            body["batch_per_gpu_max"] = self.limit
        return body


def _device_name(device: object) -> str:
    import torch

    kind = getattr(device, "type", "cpu")
    return str(torch.cuda.get_device_name(device)) if kind == "cuda" else str(kind)

"""Rank 0's side of the talk with gnode: requests in, answers and progress out."""

from __future__ import annotations

import time
from collections.abc import Callable

from gsched.elastic.conversation import (
    PROTOCOL_VERSION,
    Body,
    CheckpointRequest,
    Conversation,
    Tuning,
)
from gsched.elastic.environment import Environment
from gsched.elastic.gate import is_called
from gsched.elastic.keeper import Restored, SavedCheckpoint
from gsched.elastic.link import NodeLink
from gsched.elastic.samples import Position, Samples
from gsched.elastic.timing import MeasuredSteps

PROGRESS_PERIOD_S = 10.0
#: To the second report of a training whose throughput is being learned: the first has no step in it
#: that is like the others.
SECOND_PERIOD_S = 3.0


class Reporter:
    """What rank 0 tells and is asked. Without a socket in the environment it does nothing.

    Attributes:
        work_done: returns how much of ``Samples.total`` is done at a position.
    """

    def __init__(self, environment: Environment, samples: Samples, world_size: int) -> None:
        self._samples = samples
        self.work_done: Callable[[Position], float] = _samples_done
        self._world_size = world_size
        self._restored: Restored | None = None
        self._reported_s = float("-inf")
        self._periods_s = [PROGRESS_PERIOD_S, 0.0]  # the next one last
        self._offset = 0  # samples used of the epoch when this attempt came to it
        self._sizes = samples.accepted()
        self._link: NodeLink | None = None
        self._conversation: Conversation | None = None
        if environment.socket is not None:
            hello: Body = {
                "version": PROTOCOL_VERSION,
                "job": environment.job,
                "attempt": environment.attempt,
                "world_size": world_size,
                "world_sizes": self._sizes,
            }
            self._link = NodeLink(environment.socket)
            self._conversation = Conversation(hello, wake=self._link.wake, refuse=self._fault)

    def start(self, restored: Restored | None) -> None:
        """Connect in the background."""
        self._restored = restored
        if restored is not None:
            self.begin_at(restored.position.offset)
        if self._link is not None and self._conversation is not None:
            self._link.start(self._conversation)

    def _fault(self, world_size: int) -> str | None:
        return self._samples.fault_from(world_size, self._offset)

    def begin_at(self, offset: int) -> None:
        """Note how far the epoch is that begins or goes on: it may end with an uneven batch.

        Steps within it change nothing. If other numbers of ranks will do, gnode hears it with the
        next progress.
        """
        self._offset = offset
        sizes = self._samples.accepted_from(offset)
        if sizes != self._sizes:
            self._sizes = sizes
            self._reported_s = float("-inf")
            if self._conversation is not None:
                self._conversation.hello_with(world_sizes=sizes)

    def has_request(self) -> bool:
        """Return whether gnode waits for a checkpoint."""
        return self._conversation is not None and self._conversation.pending() is not None

    def is_awaited(self) -> bool:
        """Return whether processes wait already for the checkpoint that gnode waits for."""
        order = self._conversation.pending() if self._conversation is not None else None
        return order is not None and order.prepared

    def take_up(self) -> CheckpointRequest | None:
        """Return what gnode asks for; from now on it is being done."""
        return self._conversation.take_up() if self._conversation is not None else None

    def saved(
        self, order: CheckpointRequest | None, position: Position, saved: SavedCheckpoint
    ) -> bool:
        """Tell of a checkpoint; return whether the training has to wait now."""
        if self._conversation is None:
            return False
        request = order.request if order is not None else 0
        waits = order is not None and order.wait and not self._conversation.may_go_on(request)
        if waits:
            self._conversation.begin_to_wait(request)
        self._conversation.saved(
            {
                "request": request,
                "step": position.step,
                "work_done": self.work_done(position),
                "work_total": float(self._samples.total),
                "path": saved.path,
                "size_bytes": saved.size_bytes,
                "wall_s": saved.wall_s,
                "waits": waits,
            }
        )
        return waits

    def failed(self, order: CheckpointRequest | None, message: str) -> None:
        """Tell that the checkpoint that was requested could not be saved."""
        if self._conversation is not None and order is not None:
            self._conversation.failed(order.request, message)

    def wait_to_go_on(self, request: int, timeout_s: float) -> bool:
        """Return True as soon as gnode says so, False after ``timeout_s``."""
        assert self._conversation is not None
        return self._conversation.wait_to_go_on(request, timeout_s)

    def end_to_wait(self) -> None:
        """Note that the training does steps again."""
        if self._conversation is not None:
            self._conversation.end_to_wait()

    def over(self, message: str) -> None:
        """Refuse what is requested from now on with these words."""
        if self._conversation is not None:
            self._conversation.over(message)

    def second_after(self, period_s: float) -> None:
        """Let the second report come so long after the first."""
        self._periods_s = [PROGRESS_PERIOD_S, period_s, 0.0]

    def take_tuning(self) -> Tuning | None:
        """Return the batch size that gnode has told last; it is taken. None: nothing new."""
        return self._conversation.take_tuning() if self._conversation is not None else None

    def tell_soon(self) -> None:
        """Let the next step be told."""
        self._reported_s = float("-inf")

    def is_due(self, now_s: float) -> bool:
        """Return whether gnode should hear how far the training is; ``now_s`` of perf_counter."""
        return self._conversation is not None and now_s - self._reported_s >= self._periods_s[-1]

    def progress(self, position: Position, steps: MeasuredSteps, more: Body | None = None) -> None:
        """Tell how far the training is, and how long steps took since this was told last.

        Args:
            position: how far it is.
            steps: how long they took.
            more: is told with it, and takes the place of what is told otherwise.
        """
        if self._conversation is None:
            return
        self._reported_s = time.perf_counter()
        if len(self._periods_s) > 1:
            self._periods_s.pop()
        restored = self._restored
        self._conversation.progress(
            {
                "step": position.step,
                "work_done": self.work_done(position),
                "work_total": float(self._samples.total),
                "at_s": time.time(),
                "step_s": steps.step_s,
                "communication_s": steps.communication_s,
                "gradient_bytes": steps.gradient_bytes,
                "gpus": self._world_size,
                "world_sizes": self._sizes,
                "ready": is_called(),
                "restored_step": restored.position.step if restored is not None else -1,
                "restore_s": restored.wall_s if restored is not None else 0.0,
                **(more or {}),
            }
        )

    def close(self) -> None:
        """Send what waits and disconnect."""
        if self._link is not None:
            self._link.close()


def _samples_done(position: Position) -> float:
    return float(position.samples_done)

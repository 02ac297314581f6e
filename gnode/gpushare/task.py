"""What a runtime for GPU sharing is told about a task, and what it offers to the node."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from gnode.gpushare.tokens import Tokens
from gsched.model.states import ShareClass


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedTask:
    """One attempt of a job that shares one GPU.

    Attributes:
        job: id of the job.
        attempt: number of the attempt.
        gpu_index: of the GPU on this node, in the order of PCI addresses.
        gpu_uuid: as NVML tells it; empty for a declared GPU.
        percent: share of the GPU, 1 to 100.
        memory_bytes: limit of GPU memory, of all processes of the job together.
        share_class: priority on this GPU.
        visible: the device that it has already, as an earlier gnode has chosen it; empty: none.
    """

    job: str
    attempt: int
    gpu_index: int
    gpu_uuid: str
    percent: int
    memory_bytes: int
    share_class: ShareClass
    visible: str = ""

    @property
    def gpu_name(self) -> str:
        """Return the name of the GPU for CUDA_VISIBLE_DEVICES: its UUID, else its index."""
        return self.gpu_uuid or str(self.gpu_index)


class Runtime(Protocol):
    """Isolation of the jobs that share GPUs of this node; its methods may block for a second."""

    def missing(self) -> str | None:
        """Return None if jobs can share GPUs here, else the reason and the remedy in words.

        It is quick: nothing is compiled or started.
        """

    def prepare(self) -> None:
        """Make what is needed before the first task; it may take many seconds.

        Raises:
            ShareRefusedError: jobs cannot share GPUs here.
        """

    def admit(self, task: SharedTask) -> Mapping[str, str]:
        """Register a task before its launch; repeated calls for one task are harmless.

        Returns:
            Environment variables of its processes. ``LD_PRELOAD`` and ``LD_LIBRARY_PATH`` are to
            be put before values that the job has itself, with a colon.

        Raises:
            ShareRefusedError: the task cannot share this GPU here.
        """

    def release(self, task: SharedTask) -> None:
        """Forget a task whose processes have ended; unknown tasks are ignored."""

    def attend(self, task: SharedTask, seconds: float) -> None:
        """A task was sent a signal: what makes its processes wait must not do so for that time."""

    def keep(self, tasks: Iterable[SharedTask]) -> None:
        """Forget all tasks but these, which are admitted again later."""

    def held_s(self) -> Mapping[str, float]:
        """Return how long each task, by ``JOB.ATTEMPT``, has held its GPU's token, seconds.

        Empty where there are no tokens.
        """

    def look(self) -> Tokens | None:
        """Return how the jobs take turns; None: that cannot be told. It starts nothing."""

    def notify(self, call: Callable[[str, str], None]) -> None:
        """Have a task's name (``JOB.ATTEMPT``) and the reason told before it is killed.

        The call may come from any thread.
        """

    def punish(self, tokens: Tokens) -> None:
        """Kill jobs that do not keep to their turns, where the site wants that."""

    def close(self) -> None:
        """Let go of what gnode holds; admitted tasks keep running without it."""

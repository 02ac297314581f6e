"""What a runtime for GPU sharing offers to the node; sites add their own ones (`runtimes`)."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gnode.gpushare.task import SharedTask
from gnode.gpushare.tokens import Tokens
from gnode.hw.nvml import Nvml
from gsched.config.nodes import GpuShareConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeSite:
    """What a runtime is made from.

    Attributes:
        config: ``[gpu_share]``.
        directory: for the runtime's own files, in gnode's state directory; it may not exist yet.
        nvml: the library for measurements.
        tracking: the control group below which all attempts of this node are, as /proc/PID/cgroup
            names it; empty: there is none.
    """

    config: GpuShareConfig
    directory: Path
    nvml: Nvml
    tracking: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contained:
    """What a task needs beside its environment if it runs in a container.

    Attributes:
        mounts: files and directories of the node, as ``SRC:DST:ro``.
        env: variables that have other values in the container.
    """

    mounts: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


class Runtime(ABC):
    """Isolation of the jobs that share GPUs of this node; its methods may block for a second.

    A runtime has `missing` and `admit`, and `prepare` and `release` where it keeps anything; the
    other methods are for runtimes with tokens, or whose instances have to be made.

    Attributes:
        containers: tasks in containers can share GPUs, too: `contained` says what they need.
    """

    containers: bool = False

    @abstractmethod
    def missing(self) -> str | None:
        """Return None if jobs can share GPUs here, else the reason and the remedy in words.

        It is quick: nothing is compiled or started.
        """

    def prepare(self, busy: Collection[int] = ()) -> None:  # noqa: B027 - most need nothing
        """Make what is needed before the first task; it may take many seconds.

        Args:
            busy: GPUs that jobs have, by index; they are not to be changed.

        Raises:
            ShareRefusedError: jobs cannot share GPUs here.
        """

    @abstractmethod
    def admit(self, task: SharedTask) -> Mapping[str, str]:
        """Register a task before its launch; repeated calls for one task are harmless.

        Returns:
            Environment variables of its processes. ``LD_PRELOAD`` and ``LD_LIBRARY_PATH`` are to
            be put before values that the job has itself, with a colon.

        Raises:
            ShareRefusedError: the task cannot share this GPU here.
        """

    def contained(self, task: SharedTask, env: Mapping[str, str]) -> Contained:  # noqa: ARG002 - what others need
        """Return what an admitted task needs in a container; called where `containers` is true.

        Args:
            task: that was admitted.
            env: what `admit` has returned.
        """
        return Contained()

    def release(self, task: SharedTask) -> None:  # noqa: B027 - most need nothing
        """Forget a task whose processes have ended; unknown tasks are ignored."""

    def attend(self, task: SharedTask, seconds: float) -> None:  # noqa: B027 - most need nothing
        """A task was sent a signal: what makes its processes wait must not do so for that time."""

    def keep(self, tasks: Iterable[SharedTask]) -> None:  # noqa: B027 - most need nothing
        """Forget all tasks but these, which are admitted again later."""

    def held_s(self) -> Mapping[str, float]:
        """Return how long each task, by ``JOB.ATTEMPT``, has held its GPU's token, seconds.

        Empty where there are no tokens.
        """
        return {}

    def look(self) -> Tokens | None:
        """Return how the jobs take turns; None: that cannot be told. It starts nothing."""
        return None

    def notify(self, call: Callable[[str, str], None]) -> None:  # noqa: B027 - most need nothing
        """Have a task's name (``JOB.ATTEMPT``) and the reason told before it is killed.

        The call may come from any thread.
        """

    def punish(self, tokens: Tokens) -> None:  # noqa: B027 - most need nothing
        """Kill jobs that do not keep to their turns, where the site wants that."""

    def close(self) -> None:  # noqa: B027 - most need nothing
        """Let go of what gnode holds; admitted tasks keep running without it."""

    def largest_shares(self) -> Mapping[str, int] | None:
        """Return the memory of the largest share of each GPU, by UUID, 0 for all others.

        None: a share may be as large as its GPU.
        """
        return None

    @property
    def changes_gpus(self) -> bool:
        """Return whether `prepare` changes GPUs, so that no job may come to this node meanwhile."""
        return False

    def waits(self) -> bool:
        """Return whether `prepare` is to be called again once GPUs are not in use any more."""
        return False

    def words(self) -> str:
        """Return what people are to know of it beside its name; empty: nothing."""
        return ""

    def problem(self) -> str:
        """Return what is wrong although jobs can share GPUs; empty: nothing."""
        return ""

"""The GPUs of this node that jobs share: admission of tasks to the runtime that isolates them."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from msgspec import structs

from gnode.core.effects import EndSharing
from gnode.core.task import AttemptKey, Task
from gnode.gpushare import Runtime, SharedTask, ShareRefusedError
from gsched.model.resources import Gpu, GpuShare

log = logging.getLogger(__name__)

#: Search paths: what a runtime sets goes before what the job has itself.
_PATHS: Final = frozenset({"LD_PRELOAD", "LD_LIBRARY_PATH"})


class Sharing:
    """Who shares which GPU here.

    Args:
        name: of the runtime, as the configuration has it.
        runtime: isolates the jobs; None: no GPU is shared.
        gpus: of this node.
    """

    def __init__(self, name: str, runtime: Runtime | None, gpus: Iterable[Gpu]) -> None:
        self._runtime = runtime
        self._gpus = {gpu.index: gpu for gpu in gpus}
        missing = runtime.missing() if runtime is not None else None
        if missing is not None:
            log.warning("jobs cannot share GPUs here (runtime %s): %s", name, missing)
        self._offered = name if runtime is not None and missing is None and self._gpus else ""

    @property
    def offered(self) -> str:
        """Return the runtime that the head is told of; empty: jobs share no GPU here."""
        return self._offered

    def admitted(self, task: Task) -> Task:
        """Return a task with the environment that the runtime gives its processes.

        Raises:
            ShareRefusedError: it cannot share its GPU.
        """
        for shared in self._tasks(task.key, task.gpu_shares):
            if self._runtime is None:
                raise ShareRefusedError("this node has no runtime for shared GPUs")
            environment = _merged(task.env, self._runtime.admit(shared))
            task = structs.replace(task, env=environment)
        return task

    def admit_again(self, task: Task) -> None:
        """Let the runtime know of a task that was admitted before gnode was started."""
        try:
            self.admitted(task)
        except ShareRefusedError as error:
            log.warning("attempt %s shares a GPU without its runtime: %s", task.key.name, error)

    def ended(self, effect: EndSharing) -> None:
        """Let the runtime forget a task; it may block for a second."""
        if self._runtime is not None:
            for shared in self._tasks(effect.key, effect.shares):
                self._runtime.release(shared)

    def close(self) -> None:
        """Let go of what this process holds."""
        if self._runtime is not None:
            self._runtime.close()

    def _tasks(self, key: AttemptKey, shares: Iterable[GpuShare]) -> Iterator[SharedTask]:
        for share in shares:
            gpu = self._gpus.get(share.index)
            yield SharedTask(
                job=str(key.job),
                attempt=key.attempt,
                gpu_index=share.index,
                gpu_uuid=gpu.uuid if gpu is not None else "",
                percent=share.percent,
                memory_bytes=share.memory_bytes,
                share_class=share.share_class,
            )


def _merged(own: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return the job's environment with what the runtime gives."""
    merged = dict(own)
    for name, value in given.items():
        before = own.get(name, "") if name in _PATHS else ""
        merged[name] = f"{value}:{before}" if before else value
    return merged

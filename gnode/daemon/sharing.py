"""The GPUs of this node that jobs share: admission of tasks to the runtime that isolates them."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from msgspec import structs

from gnode.core.effects import AttendSharing, EndSharing
from gnode.core.gpu_access import OPEN_ACCESS, GpuAccess
from gnode.core.task import AttemptKey, Task, parse_key
from gnode.gpushare import Runtime, SharedTask, ShareRefusedError
from gsched.model.gpu_tokens import MAX_WORDS, UNSHARED, GpuSharing
from gsched.model.resources import Gpu, GpuShare

log = logging.getLogger(__name__)

#: Search paths: what a runtime sets goes before what the job has itself.
_PATHS: Final = frozenset({"LD_PRELOAD", "LD_LIBRARY_PATH"})


class Sharing:
    """Who shares which GPU here. Its methods block: they are called in order, in a thread.

    Args:
        name: of the runtime, as the configuration has it.
        runtime: isolates the jobs; None: no GPU is shared.
        gpus: of this node.
        access: asks what keeps jobs from the GPUs of others: MIG instances come and go.

    Attributes:
        offered: the runtime that the head is told of; empty: jobs share no GPU here.
        words: how jobs share GPUs here, for people; empty: they do not, and nobody wants them to.
    """

    def __init__(
        self,
        name: str,
        runtime: Runtime | None,
        gpus: Iterable[Gpu],
        access: Callable[[], GpuAccess] = lambda: OPEN_ACCESS,
    ) -> None:
        self._name = name
        self._access = access
        self._runtime = runtime
        self._gpus = {gpu.index: gpu for gpu in gpus}
        self.offered = self.words = ""
        if runtime is None or not self._gpus:
            return
        missing = runtime.missing()
        if missing is None:
            self.offered, self.words = name, f"{name}: it is being prepared"
        else:
            self._refuse(missing)

    def prepare(self, tasks: Iterable[Task] = ()) -> None:
        """Make what the runtime needs, and let it know of the tasks that an earlier gnode admitted.

        Where that fails, `offered` becomes empty.
        """
        if self._runtime is None:
            for task in tasks:
                self.admit_again(task)
            return
        try:
            if self.offered:
                self._runtime.prepare()
                self.words = self._name
        except ShareRefusedError as error:
            self._refuse(str(error))
        before = [(task, tuple(self._again(task))) for task in tasks]
        self._runtime.keep(each for _, shared in before for each in shared)
        for task, _ in before:
            self.admit_again(task)

    def _refuse(self, why: str) -> None:
        log.warning("jobs cannot share GPUs here (runtime %s): %s", self._name, why)
        self.offered, self.words = "", f"{UNSHARED}{' '.join(why.split())}"[:MAX_WORDS]

    def admitted(self, task: Task) -> Task:
        """Return a task with the environment that the runtime gives its processes.

        Raises:
            ShareRefusedError: it cannot share its GPU.
        """
        for shared in self._tasks(task.key, task.gpu_shares):
            environment = merged(task.env, self._admit(shared))
            visible = environment["CUDA_VISIBLE_DEVICES"]
            fence = self._access().fence(task.key, task.gpu_indices, task.gpu_shares, visible)
            task = structs.replace(task, env=environment, fence=fence)
        return task

    def admit_again(self, task: Task) -> None:
        """Let the runtime know of a task that was admitted before gnode was started."""
        try:
            for shared in self._again(task):
                self._admit(shared)
        except ShareRefusedError as error:
            log.warning("attempt %s shares a GPU without its runtime: %s", task.key.name, error)

    def _admit(self, shared: SharedTask) -> Mapping[str, str]:
        if self._runtime is None:
            raise ShareRefusedError("this node has no runtime for shared GPUs")
        return self._runtime.admit(shared)

    def _again(self, task: Task) -> Iterator[SharedTask]:
        for shared in self._tasks(task.key, task.gpu_shares):
            yield replace(shared, visible=task.env.get("CUDA_VISIBLE_DEVICES", ""))

    def ended(self, effect: EndSharing) -> None:
        """Let the runtime forget a task."""
        if self._runtime is not None:
            for shared in self._tasks(effect.key, effect.shares):
                self._runtime.release(shared)

    def attend(self, effect: AttendSharing) -> None:
        """Let an attempt launch that was sent a signal."""
        if self._runtime is not None:
            for shared in self._tasks(effect.key, effect.shares):
                self._runtime.attend(shared, effect.seconds)

    def held_s(self) -> dict[AttemptKey, float]:
        """Return for how long attempts have held the token of their GPU; it may block a second."""
        if self._runtime is None:
            return {}
        return {parse_key(name): held_s for name, held_s in self._runtime.held_s().items()}

    def notify(self, call: Callable[[str, str], None]) -> None:
        """Have each attempt that is about to be killed told, with the reason, from any thread."""
        if self._runtime is not None:
            self._runtime.notify(call)

    def look(self) -> GpuSharing | None:
        """Return how jobs share GPUs here, and end those that do not keep to their turns."""
        if self._runtime is None:
            return None
        tokens = self._runtime.look()
        if tokens is None:
            return GpuSharing(words=self.words) if self.words else None
        self._runtime.punish(tokens)
        indices = {gpu.uuid or str(gpu.index): gpu.index for gpu in self._gpus.values()}
        return tokens.report(self.words, indices)

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


def merged(own: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return the job's environment with what the runtime gives: search paths go before its own."""
    merged = dict(own)
    for name, value in given.items():
        before = own.get(name, "") if name in _PATHS else ""
        merged[name] = f"{value}:{before}" if before else value
    return merged

"""The GPUs of this node that jobs share: admission of tasks to the runtime that isolates them."""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from msgspec import structs

from gnode.core.contained import ContainerPlan
from gnode.core.effects import AttendSharing, EndSharing
from gnode.core.gpu_access import OPEN_ACCESS, GpuAccess
from gnode.core.task import AcceptedTask, AttemptKey, parse_key
from gnode.gpushare import Runtime, SharedTask, ShareRefusedError
from gsched.model.gpu_tokens import MAX_WORDS, UNSHARED, GpuSharing
from gsched.model.resources import Gpu, GpuShare, Inventory

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
        largest: memory of the largest share of each GPU, by UUID, 0 for all others; None: all.
        words: how jobs share GPUs here, for people; empty: they do not, and nobody wants them to.
        problem: what is wrong although they share GPUs; empty: nothing.
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
        self.offered = self.words = self.problem = ""
        self.largest: Mapping[str, int] | None = None
        if runtime is None or not self._gpus:
            return
        missing = runtime.missing()
        if missing is None:
            self.offered, self.words = name, f"{name}: it is being prepared"
            self.largest = None if runtime.changes_gpus else runtime.largest_shares()
        else:
            self._refuse(missing)

    def prepare(self, tasks: Iterable[AcceptedTask] = (), busy: Collection[int] = ()) -> None:
        """Make what the runtime needs, and let it know of the tasks that an earlier gnode admitted.

        Where that fails, `offered` becomes empty.

        Args:
            tasks: that share GPUs.
            busy: GPUs of all tasks, by index.
        """
        if self._runtime is None:
            for task in tasks:
                self.admit_again(task)
            return
        if self.offered:
            self._prepare(self._runtime, busy)
        before = [(task, tuple(self._again(task))) for task in tasks]
        self._runtime.keep(each for _, shared in before for each in shared)
        for task, _ in before:
            self.admit_again(task)

    @property
    def changes_gpus(self) -> bool:
        """Return whether `prepare` changes GPUs, so that no job may come meanwhile."""
        return bool(self.offered) and self._runtime is not None and self._runtime.changes_gpus

    @property
    def waits(self) -> bool:
        """Return whether something is to be made once GPUs are not in use any more: see `retry`."""
        return self._runtime is not None and self._runtime.waits()

    def retry(self, busy: Collection[int]) -> bool:
        """Make what had to wait for GPUs that were in use; return whether anything is new.

        Args:
            busy: GPUs of all tasks, by index.
        """
        if self._runtime is None or not self._runtime.waits():
            return False
        before = self.offered, self.words, self.problem
        self._prepare(self._runtime, busy)
        return (self.offered, self.words, self.problem) != before

    def shareable(self, inventory: Inventory) -> Inventory:
        """Return what the node has, with the largest share of each GPU."""
        largest = self.largest
        if largest is None:
            return inventory
        gpus = tuple(
            structs.replace(gpu, share_bytes_max=largest.get(gpu.uuid, 0)) for gpu in inventory.gpus
        )
        return structs.replace(inventory, gpus=gpus)

    def access(self) -> GpuAccess:
        """Return what keeps jobs from the GPUs of others, as it is now."""
        return self._access()

    def _prepare(self, runtime: Runtime, busy: Collection[int]) -> None:
        try:
            runtime.prepare(busy)
            self._offer(runtime)
        except ShareRefusedError as error:
            self._refuse(str(error))

    def _offer(self, runtime: Runtime) -> None:
        description, wrong = runtime.words(), runtime.problem()
        words = ": ".join(filter(None, (self._name, " ".join(description.split()))))
        self.offered, self.words = self._name, words[:MAX_WORDS]
        self.largest = runtime.largest_shares()
        wrong = " ".join(wrong.split())[:MAX_WORDS]
        if wrong and wrong != self.problem:
            log.warning("jobs share GPUs here (runtime %s), but: %s", self._name, wrong)
        self.problem = wrong

    def _refuse(self, why: str) -> None:
        words = f"{UNSHARED}{' '.join(why.split())}"[:MAX_WORDS]
        if words != self.words:  # not at each retry
            log.warning("jobs cannot share GPUs here (runtime %s): %s", self._name, why)
        self.offered, self.words, self.problem = "", words, ""
        self.largest = None

    @property
    def containers(self) -> bool:
        """Return whether jobs in containers can share GPUs here."""
        return bool(self.offered) and self._runtime is not None and self._runtime.containers

    def admitted(self, task: AcceptedTask, container: ContainerPlan | None = None) -> AcceptedTask:
        """Return a task with the environment that the runtime gives its processes.

        Args:
            task: as it is without the runtime.
            container: in which it runs; it gets what the runtime needs there.

        Raises:
            ShareRefusedError: it cannot share its GPU.
        """
        for shared in self._tasks(task.key, task.gpu_shares, task.user_dir):
            given = self._admit(shared)
            environment = merged(task.env, given)
            visible = environment["CUDA_VISIBLE_DEVICES"]
            fence = self._access().fence(task.key, task.gpu_indices, task.gpu_shares, visible)
            task = replace(task, env=environment, fence=fence)
            if container is not None:
                task = self._in_container(container, shared, given).task(task)
        return task

    def _in_container(
        self, plan: ContainerPlan, shared: SharedTask, given: Mapping[str, str]
    ) -> ContainerPlan:
        if self._runtime is None or not self._runtime.containers:
            raise ShareRefusedError(
                f"the runtime {self._name} cannot share a GPU with a container",
                hint="run the job without a container, or request whole GPUs with gpus=N",
            )
        needs = self._runtime.contained(shared, given)
        return plan.sharing(given, needs.mounts, needs.env)

    def admit_again(self, task: AcceptedTask) -> None:
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

    def _again(self, task: AcceptedTask) -> Iterator[SharedTask]:
        for shared in self._tasks(task.key, task.gpu_shares, task.user_dir):
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
            status = GpuSharing(words=self.words, problem=self.problem)
            return status if self.words else None
        self._runtime.punish(tokens)
        indices = {gpu.uuid or str(gpu.index): gpu.index for gpu in self._gpus.values()}
        return tokens.report(self.words, indices)

    def close(self) -> None:
        """Let go of what this process holds."""
        if self._runtime is not None:
            self._runtime.close()

    def _tasks(
        self, key: AttemptKey, shares: Iterable[GpuShare], directory: str = ""
    ) -> Iterator[SharedTask]:
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
                directory=directory,
            )


def merged(own: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return the job's environment with what the runtime gives: search paths go before its own."""
    merged = dict(own)
    for name, value in given.items():
        before = own.get(name, "") if name in _PATHS else ""
        merged[name] = f"{value}:{before}" if before else value
    return merged

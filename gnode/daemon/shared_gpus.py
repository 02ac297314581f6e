"""Jobs that share GPUs of this node: what has to be done for them in order, beside the loop."""

import asyncio
import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from gnode.core import effects as do
from gnode.core.inputs import Admitted, Input, LaunchFailed, ShareAbused, SharingChanged
from gnode.core.table import NodeAttempt
from gnode.core.task import AcceptedTask, parse_key
from gnode.daemon.measuring import look_at_sharing
from gnode.daemon.sharing import Sharing
from gnode.gpushare import GpuFullError, ShareRefusedError
from gsched.model.job import LaunchFailure
from gsched.model.states import LaunchStage, Subject

LOOK_S = 5.0

T = TypeVar("T")


class SharedGpus:
    """Calls the runtime of shared GPUs, one call after the other, and posts what comes of it.

    Args:
        node: name of this node.
        sharing: who shares which GPU.
        post: takes inputs of the agent.
        renew: has the node register again, for a reason.
        live: returns the attempts that may have processes.
    """

    def __init__(
        self,
        *,
        node: str,
        sharing: Sharing,
        post: Callable[[Input], None],
        renew: Callable[[str], None],
        live: Callable[[], Iterable[NodeAttempt]],
    ) -> None:
        self._node = node
        self._sharing = sharing
        self._post = post
        self._renew = renew
        self._live = live
        self._in_order = InOrder("gpu-sharing")

    def notify(self) -> None:
        """Have attempts whose processes are about to be killed told, in the running loop."""
        loop = asyncio.get_running_loop()

        def note(name: str, why: str) -> None:  # called in another thread
            event = ShareAbused(key=parse_key(name), why=why)
            loop.call_soon_threadsafe(self._post, event)

        self._sharing.notify(note)

    async def prepare(self, tasks: list[AcceptedTask]) -> None:
        """Prepare the runtime, which may take a compiler's time; launches that need it wait.

        Args:
            tasks: all that may still run.
        """
        before = self._sharing.offered, self._sharing.largest
        shared = [task for task in tasks if task.gpu_shares]
        busy = _gpus_of(tasks)
        await self._in_order.put(lambda: self._sharing.prepare(shared, busy))
        await self._tell(*before)

    async def watch(self) -> None:
        """Make MIG instances that had to wait, once nobody uses their GPUs."""
        while True:
            await asyncio.sleep(LOOK_S)
            if self._sharing.waits:
                await self._retry()

    async def _retry(self) -> None:
        before, busy = (self._sharing.offered, self._sharing.largest), _gpus_of(self._live())
        if await self._in_order.put(lambda: self._sharing.retry(busy)):
            await self._tell(*before)

    async def _tell(self, offered: str, largest: Mapping[str, int] | None) -> None:
        """Let agent and head know how jobs share GPUs now.

        Args:
            offered, largest: as it was before.
        """
        await look_at_sharing(self._sharing, self._post)
        now = self._sharing.offered
        if now != offered or self._sharing.changes_gpus:
            access = await asyncio.to_thread(self._sharing.access)
            self._post(SharingChanged(sharing=now, access=access))
        if now != offered:
            self._renew(f"jobs can{'' if now else 'not'} share GPUs here")
        elif self._sharing.largest != largest:
            self._renew("the MIG instances are others")

    async def admit(self, effect: do.AdmitSharing) -> None:
        """Admit a task to its GPU."""
        task = effect.task
        try:
            admitted = await self._in_order.put(
                lambda: self._sharing.admitted(task, effect.container)
            )
        except ShareRefusedError as error:
            message = f"node {self._node} cannot share its GPU: {error.message}"
            has_room = not isinstance(error, GpuFullError)
            stage = LaunchStage.DEVICE if has_room else LaunchStage.ORDER
            failure = LaunchFailure(stage=stage, subject=Subject.NODE)
            self._post(LaunchFailed(key=task.key, message=message, failure=failure))
        else:
            self._post(Admitted(task=admitted))

    async def end(self, effect: do.EndSharing) -> None:
        """Let the runtime forget a task."""
        await self._in_order.put(lambda: self._sharing.ended(effect))

    async def attend(self, effect: do.AttendSharing) -> None:
        """Let an attempt launch that was sent a signal."""
        await self._in_order.put(lambda: self._sharing.attend(effect))


def _gpus_of(tasks: Iterable[AcceptedTask | NodeAttempt]) -> frozenset[int]:
    return frozenset(
        index
        for task in tasks
        for index in (*task.gpu_indices, *(share.index for share in task.gpu_shares))
    )


class InOrder:
    """Runs blocking calls in the order in which they come.

    The thread starts with the first call, and does not delay the end of the program.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def put(self, call: Callable[[], T]) -> "asyncio.Future[T]":
        """Queue a call behind the earlier ones; return its result or raise its error."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            if future.cancelled():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type] # of T where no error came

        def run() -> None:
            result, error = None, None
            try:
                result = call()
            except Exception as raised:  # noqa: BLE001 - whoever awaits the call gets it
                error = raised
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, result, error)

        self._calls.put(run)
        if not self._thread.is_alive():
            self._thread.start()
        return future

    def _run(self) -> None:
        while True:
            self._calls.get()()

"""How the task that sends to a node ends."""

import asyncio

import pytest

from gsched.model.resources import Inventory, Load
from gsched.protocol.deliveries import StagedRead
from gsched.protocol.node import Register
from gschedd.http.handshake import Introduced, Peer
from gschedd.http.links import Link, stop


def test_a_task_that_is_cancelled_while_it_stops_another_one_is_cancelled() -> None:
    """Both cancellations meet where the head stops while a node disconnects."""

    async def run() -> bool:
        ending = asyncio.Event()

        async def send() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ending.set()
                await asyncio.sleep(0.05)

        async def serve() -> None:
            sender = asyncio.create_task(send())
            await asyncio.sleep(0)
            await stop(sender)
            await asyncio.Event().wait()  # for an engine that has ended

        serving = asyncio.create_task(serve())
        await ending.wait()
        serving.cancel()
        await asyncio.wait({serving}, timeout=10)
        return serving.cancelled()

    assert asyncio.run(run())


@pytest.mark.parametrize(("error", "passes"), [(ConnectionError, True), (RuntimeError, False)])
def test_only_a_lost_connection_is_no_error_of_the_sender(
    error: type[Exception], *, passes: bool
) -> None:
    async def run() -> None:
        async def send() -> None:
            raise error

        sender = asyncio.create_task(send())
        await asyncio.sleep(0)
        await stop(sender)

    if passes:
        asyncio.run(run())
    else:
        with pytest.raises(error):
            asyncio.run(run())


class Slow:
    """A connection whose other end reads when it is let."""

    def __init__(self) -> None:
        self.reads = asyncio.Semaphore(0)

    async def send_bytes(self, _: bytes) -> None:
        await self.reads.acquire()


def test_who_passes_a_piece_on_waits_until_it_has_gone() -> None:
    """So that the head holds a bounded number of them for a node that does not read."""

    async def run() -> list[int]:
        registration = Register(
            boot_id="b", incarnation="i", address="a", gnode_version="1", attempts=(), load=Load(),
            inventory=Inventory(cpus=1, memory_bytes=1), packs=True,
        )  # fmt: skip
        who = Introduced(
            node="n1", peer=Peer(role="node", name="n1"), registration=registration, incomplete=()
        )
        socket = Slow()
        link = Link(who, socket, call=1)  # type: ignore[arg-type]  # a part of it is enough
        sender = asyncio.create_task(link.sender(lambda *_: None))
        tasks = [
            asyncio.create_task(link.pass_on(StagedRead(request=number, data=b"x")))
            for number in range(3)
        ]
        found = []
        for _ in range(2):
            await asyncio.sleep(0.02)
            found += [sum(task.done() for task in tasks)]
            socket.reads.release()
        await asyncio.sleep(0.02)
        link.end()
        await asyncio.wait_for(asyncio.gather(*tasks, link.pass_on(StagedRead(request=9))), 5)
        sender.cancel()
        return found

    assert asyncio.run(run()) == [0, 1]

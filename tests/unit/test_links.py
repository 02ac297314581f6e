"""How the task that sends to a node ends."""

import asyncio

import pytest

from gschedd.http.links import stop


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

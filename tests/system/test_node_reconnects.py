"""A node's connections that overtake each other: what the newest one said stands."""

import asyncio

import aiohttp

from gsched.protocol import node as n
from tests.support.cluster import Cluster
from tests.support.dialler import Dialler


def test_a_registration_that_was_held_up_does_not_replace_a_newer_one(cluster: Cluster) -> None:
    """It tells what the node had before it dialled again: jobs started since would seem lost."""
    cluster.start_head()
    key = cluster.key_file.read_bytes().strip()

    async def story() -> tuple[n.HeadMessage, n.HeadMessage]:
        url = f"ws://127.0.0.1:{cluster.node_port}/v1/node"
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(url) as first,
            session.ws_connect(url) as second,
        ):
            old, new = Dialler(first, key), Dialler(second, key)
            await old.call()
            await new.call()
            welcome = await new.register()
            refusal = await old.register()
            assert not new.is_closed
            return welcome, refusal

    welcome, refusal = asyncio.run(story())

    assert isinstance(welcome, n.Welcome)
    assert isinstance(refusal, n.Refused)
    assert not refusal.fatal
    assert "since" in refusal.message

"""A node's connections that overtake each other: what the newest one said stands."""

import asyncio

from gsched.protocol import node as n
from tests.support.cluster import Cluster
from tests.support.dialler import dialled


def test_a_registration_that_was_held_up_does_not_replace_a_newer_one(cluster: Cluster) -> None:
    """It tells what the node had before it dialled again: jobs started since would seem lost."""
    cluster.start_head()

    async def story() -> tuple[n.HeadMessage, n.HeadMessage]:
        async with dialled(cluster) as old, dialled(cluster) as new:
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

"""Malformed messages are refused, before and after the handshake (T16).

`scripts/reproduce/malformed` sends a million of them and looks at the head's memory.
"""

import asyncio

import pytest

from tests.support.cluster import Cluster
from tests.support.malformed import Attack


@pytest.mark.parametrize("seed", [1, 2])
def test_t16_malformed_messages_are_refused_and_the_head_goes_on(
    cluster: Cluster, seed: int
) -> None:
    cluster.start_head()
    attack = Attack(cluster, seed)

    asyncio.run(attack.run(300))
    asyncio.run(attack.run_many(4000))

    assert cluster.head_process.poll() is None
    assert cluster.head.status().jobs == {}
    assert "Traceback" not in cluster.log("head.log")
    assert attack.counts["bodies: refused"] == attack.counts["frames: read"] == 2000
    assert sum(attack.counts.values()) == 4300

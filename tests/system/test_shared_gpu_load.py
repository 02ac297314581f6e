"""A node's report that a shared GPU is less busy lets a waiting job start."""

import asyncio
from pathlib import Path

from gsched.client import new_job
from gsched.model.resources import Gpu, Inventory, Load
from gsched.protocol import node as n
from tests.support.cluster import Cluster
from tests.support.dialler import Dialler, dialled

GIB = 2**30


def test_a_heartbeat_starts_a_job_that_waits_for_a_less_busy_gpu(cluster: Cluster) -> None:
    """The first report says 95 %, the second one 10 %; nobody asks the head anything meanwhile."""
    cluster.start_head()
    gpus = (Gpu(index=0, memory_bytes=16 * GIB),)
    inventory = Inventory(cpus=8, memory_bytes=8 * GIB, gpus=gpus)

    async def story() -> tuple[int, list[int]]:
        async with dialled(cluster) as node:
            await node.call()
            await node.register(inventory=inventory, sharing="colocate")
            first = await asyncio.to_thread(submit, cluster)
            assert [launch.job for launch in await launches(node)] == [first]
            await node.say(heartbeat(95.0))
            second = await asyncio.to_thread(submit, cluster)
            assert await launches(node, timeout_s=1.0) == []
            await node.say(heartbeat(10.0))
            return second, [launch.job for launch in await launches(node)]

    second, launched = asyncio.run(story())

    assert launched == [second]


def heartbeat(percent: float) -> n.Heartbeat:
    return n.Heartbeat(load=Load(gpu_minute_percent=(percent,)), usage=())


def submit(cluster: Cluster) -> int:
    """Submit a job that shares a GPU."""
    job = new_job(
        name="shares",
        workdir=str(Path("/tmp")),
        script="#!/bin/sh\nsleep 100\n",
        resources=("gpu_share=10%:1gb",),
    )
    (result,) = cluster.head.submit([job]).results
    assert result.error is None, result.error
    return int(result.id)


async def launches(node: Dialler, timeout_s: float = 20.0) -> list[n.Launch]:
    """Return the launches of the next frame that has any; none after a time."""
    end_s = asyncio.get_running_loop().time() + timeout_s
    while (left_s := end_s - asyncio.get_running_loop().time()) > 0:
        messages = await node.hear_all(left_s)
        found = [each for each in messages if isinstance(each, n.Launch)]
        if found:
            return found
    return []

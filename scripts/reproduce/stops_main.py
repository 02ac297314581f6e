"""Stops of a head (SIGTERM) in the moment in which its nodes disconnect: each ends in order.

Simulated nodes are connected on the head's Unix socket. In each round each of them is cut off at a
moment of its own before or after the signal, some while messages are under way. A head that has not
ended after --patience seconds counts as hung; its log is shown.
"""

import argparse
import asyncio
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from gsched.protocol import node as n
from tests.support.cluster import Cluster
from tests.support.dialler import Dialler, dialled


def main(arguments: Sequence[str] | None = None) -> int:
    """Stop a head again and again, and print how long it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100, help="[100]")
    parser.add_argument("--nodes", type=int, default=20, help="[20]")
    parser.add_argument("--seed", type=int, default=1, help="of the moments [1]")
    parser.add_argument(
        "--around", type=float, default=0.1, help="seconds before and after the signal [0.1]"
    )
    parser.add_argument("--patience", type=float, default=60.0, help="seconds [60]")
    given = parser.parse_args(arguments)
    chance, times, hung = random.Random(given.seed), [], 0
    with tempfile.TemporaryDirectory() as directory:
        cluster = Cluster(Path(directory), f"stops-{given.seed}")
        try:
            for number in range(given.rounds):
                cluster.start_head()
                taken_s = asyncio.run(_stop(cluster, chance, given))
                if taken_s is None:
                    hung += 1
                    print(f"round {number}: hung\n{cluster.log('head.log')[-1500:]}", flush=True)
                    cluster.kill_head()
                else:
                    times.append(taken_s)
        finally:
            cluster.stop()
    times.sort()
    most = f"; the others took {times[len(times) // 2]:.2f} s, {times[-1]:.2f} s at most"
    print(f"{hung} of {given.rounds} stops hung{most if times else ''}")
    return 1 if hung else 0


async def _stop(cluster: Cluster, chance: random.Random, given: argparse.Namespace) -> float | None:
    """Return how long a head took to end; None: it has not."""
    async with AsyncExitStack() as stack:
        peers = []
        for number in range(given.nodes):
            name = f"n{number}"
            peer = await stack.enter_async_context(dialled(cluster, node=name))
            await peer.call()
            await peer.register(identity=f"{name:0>32}")
            peers.append(peer)
        begun_s = time.monotonic()
        await asyncio.gather(
            _signal(cluster, given.around),
            *(_go(peer, chance.uniform(0.0, 2 * given.around)) for peer in peers),
        )
        try:
            await asyncio.to_thread(cluster.head_process.wait, given.patience)
        except subprocess.TimeoutExpired:
            return None
        return time.monotonic() - begun_s


async def _signal(cluster: Cluster, after_s: float) -> None:
    await asyncio.sleep(after_s)
    cluster.head_process.send_signal(signal.SIGTERM)


async def _go(peer: Dialler, after_s: float) -> None:
    """Cut a node off, half of them in the middle of what they say."""
    await asyncio.sleep(after_s)
    response = peer.socket._response  # noqa: SLF001 - aiohttp has no other way to cut it off
    assert response.connection is not None
    transport = response.connection.transport
    if int(after_s * 1e6) % 2:
        await peer.say(*(n.Renew(number=each) for each in range(200)))
    if transport is not None:
        transport.abort()


if __name__ == "__main__":
    sys.exit(main())

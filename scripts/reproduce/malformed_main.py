"""Malformed messages to a real head, before and after the handshake (T16).

Of those with a connection of their own (``--single``, 1 in 20) a third is sent to the port for
nodes in clear text, a third within TLS without a certificate, a third by a peer that has shaken
hands on the Unix socket of nodes. Of the others 2,000 share a connection: half are requests to
join within TLS, half are frames of a registered node. The head's memory is printed after each
twentieth. Fails if the head ends, logs a fault of its own, or has grown since the first
one.
"""

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.support.cluster import Cluster
from tests.support.malformed import Attack, rss_bytes

ROUNDS: Final = 20
GROWTH_MOST_BYTES: Final = 16 * 1024 * 1024


def main(arguments: Sequence[str] | None = None) -> int:
    """Send them, and print what became of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000, help="in all [1000000]")
    parser.add_argument(
        "--single", type=float, default=0.05, help="share with a connection of their own [0.05]"
    )
    parser.add_argument("--seed", type=int, default=1, help="of what is sent [1]")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory:
        cluster = Cluster(Path(directory), f"malformed-{given.seed}")
        cluster.start_head()
        try:
            return _run(cluster, given.messages, given.single, given.seed)
        finally:
            cluster.stop()


def _run(cluster: Cluster, messages: int, single: float, seed: int) -> int:
    attack, pid = Attack(cluster, seed), cluster.head_process.pid
    sizes, count = [], messages // ROUNDS
    for number in range(ROUNDS):
        asyncio.run(attack.run(round(count * single)))
        asyncio.run(attack.run_many(count - round(count * single)))
        sizes.append(rss_bytes(pid))
        log_bytes = (cluster.directory / "head.log").stat().st_size
        print(
            f"{(number + 1) * count} messages: {sizes[-1] // 1024} KiB, "
            f"log {log_bytes // 1024} KiB, load {os.getloadavg()[0]:.0f}",
            flush=True,
        )
    for words, count in sorted(attack.counts.items()):
        print(f"{words}: {count}")
    faults = []
    if cluster.head_process.poll() is not None:
        faults.append("the head has ended")
    elif cluster.head.status().jobs:
        faults.append("the head has jobs")
    if "Traceback" in cluster.log("head.log"):
        faults.append("the head has logged a fault of its own")
    if sizes[-1] - sizes[0] > GROWTH_MOST_BYTES:
        faults.append(f"the head has grown by {(sizes[-1] - sizes[0]) // 1024} KiB")
    for fault in faults:
        print(f"malformed: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

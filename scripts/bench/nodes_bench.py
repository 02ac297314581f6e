"""Simulated nodes, to drive a real head at the size of a large cluster on one machine.

Each node registers over the node channel, accepts launches, and reports starts and ends; there is
no process behind a job, which takes --seconds and exits with 0. So what is measured is the head.

Example, in two shells:

  gsched up --dir /tmp/bench
  scripts/bench/nodes 200 --config /tmp/bench/gsched.toml --cpus 16 --gpus 8 --seconds 5

  export GSCHED_HEAD=/tmp/bench/head.sock
  gnodes drain vm-1 --reason benchmark      # the real node of gsched up, as gnodes shows it
  for i in $(seq 100); do gsub -l nodes=1:ppn=1 true; done
  gnodes

Every second a line says how many nodes are connected, how many parts were launched and have ended,
and how long a node's free place stayed empty: from the report of an end to the next launch on that
node (median and 99th percentile of that second, ms). With --reports it also says how many loads
and uses of jobs the nodes have told, and with --head-pid the CPU time of the head (ms, all of it).
SIGTERM or SIGINT ends it; the head then
counts the nodes as unreachable, and when they come back they say that the machine was started anew.
"""

import argparse
import asyncio
import contextlib
import json
import signal
import sys
import time
from pathlib import Path

import aiohttp
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from figures import quantile

from gsched.config.load import load_config
from gsched.config.words import node_socket_of
from gsched.model.resources import Gpu, Inventory
from gsched.protocol.node import KEEPALIVE_S, MAX_FRAME_BYTES
from tests.support.simulated_nodes import (
    RefusedError,
    SimulatedNode,
    Tally,
    serve,
)

URL = "http://head/v1/node"
GIGABYTE = 1 << 30


def inventory(given: argparse.Namespace) -> Inventory:
    """Return what each node has."""
    return Inventory(
        cpus=given.cpus,
        memory_bytes=given.memory_gb * GIGABYTE,
        gpus=tuple(
            Gpu(index=index, type=given.gpu_type, memory_bytes=80 * GIGABYTE)
            for index in range(given.gpus)
        ),
    )


def head_cpu_s(pid: int) -> float:
    """Return the CPU seconds of the head, 0 where it is not named."""
    if not pid:
        return 0.0
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


async def report(tally: Tally, given: argparse.Namespace) -> None:
    """Print a line each second."""
    cpu_s, reports = head_cpu_s(given.head_pid), 0
    while True:
        await asyncio.sleep(1.0)
        before_s, cpu_s = cpu_s, head_cpu_s(given.head_pid)
        told, reports = tally.reports - reports, tally.reports
        gaps_s, tally.gaps_s = tally.gaps_s, []
        values = {
            "nodes": len(tally.connected),
            "launches": tally.launches,
            "ends": tally.ends,
            "gap_ms_p50": round(quantile(gaps_s, 0.5) * 1000, 1),
            "gap_ms_p99": round(quantile(gaps_s, 0.99) * 1000, 1),
        }
        if given.reports:
            values["reports"] = told
        if given.head_pid:
            values["head_cpu_ms"] = round((cpu_s - before_s) * 1000)
        if given.json:
            print(json.dumps(values | {"gaps_s": gaps_s}), flush=True)
        else:
            print("  ".join(f"{name} {value}" for name, value in values.items()), flush=True)


async def simulate(given: argparse.Namespace, path: str) -> None:
    """Serve all nodes until one of them is refused."""
    tally = Tally()
    connector = aiohttp.UnixConnector(path, limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def connect() -> aiohttp.ClientWebSocketResponse:
            return await session.ws_connect(
                URL, compress=0, heartbeat=2 * KEEPALIVE_S, max_msg_size=MAX_FRAME_BYTES
            )

        nodes = [
            SimulatedNode(
                f"{given.prefix}{number:04d}",
                inventory=inventory(given),
                job_s=given.seconds,
                tally=tally,
                reports=given.reports,
                every_s=given.every,
            )
            for number in range(given.nodes)
        ]
        async with asyncio.TaskGroup() as group:
            group.create_task(report(tally, given))
            for node in nodes:
                group.create_task(serve(node, connect, time.time))


def main() -> None:
    """Run until a signal."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("nodes", type=int, metavar="N", help="number of nodes")
    parser.add_argument("--config", required=True, metavar="FILE", help="the head's configuration")
    parser.add_argument("--prefix", default="sim", help="of the nodes' names (default sim)")
    parser.add_argument("--cpus", type=int, default=16, help="of each node (default 16)")
    parser.add_argument("--gpus", type=int, default=0, help="of each node (default 0)")
    parser.add_argument("--gpu-type", default="", metavar="NAME")
    parser.add_argument("--memory-gb", type=int, default=256, help="of each node (default 256)")
    parser.add_argument(
        "--seconds", type=float, default=0.0, help="run time of each job (default 0: ends at once)"
    )
    parser.add_argument(
        "--reports", choices=("heartbeat", "uses"), default="",
        help="what each node tells every --every seconds (default: nothing)",
    )  # fmt: skip
    parser.add_argument("--every", type=float, default=5.0, metavar="S", help="(default 5)")
    parser.add_argument("--head-pid", type=int, default=0, help="also print the head's CPU time")
    parser.add_argument("--json", action="store_true", help="one JSON object a second, with gaps")
    given = parser.parse_args()
    config = load_config(given.config).head
    path = config.node_socket or node_socket_of(config.socket)
    # As Ctrl-C: asyncio then cancels the task, instead of an exception in whatever it does.
    # Jobs of a shell in the background ignore SIGINT, and asyncio leaves it so.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    with contextlib.suppress(KeyboardInterrupt):
        try:
            asyncio.run(simulate(given, path))
        except* RefusedError as refused:
            sys.exit(f"nodes: the head refuses: {refused.exceptions[0]}")


if __name__ == "__main__":
    main()

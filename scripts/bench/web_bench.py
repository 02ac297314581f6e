"""The page with a long queue: how soon it is there, how large it is, and what it costs the head.

A head with simulated nodes: on half of them all GPUs and CPUs are taken by jobs that do not end,
and short jobs run on the others. --jobs jobs are in the queue: a half is held, the others wait for
GPUs. Each page is loaded --loads times, beside an idle head and beside one that runs short jobs.
Then rounds of --batch short jobs alternate without and with a viewer, who loads the queue every
second and has a stream of updates open.

first byte  from the request to the status line (ms; aim: 100)
page        from the request to the last byte (ms; aim: p99 300)
HTML        size of the page (kB; aim: 80)
CPU         of the monitor and of the head for a page (ms; beside an idle head, above its own use)
jobs/s      of short jobs, from their submission to their end (with a viewer at least 95 %)
CPU/job     of the head for a short job (ms), and of the monitor beside it

The load average of the machine stands beside the figures.
"""

import argparse
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import psutil
from msgspec import Struct

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from figures import quantile  # noqa: E402 - the path comes first
from respond_bench import World, plain, world  # noqa: E402 - as above

from gsched.client import new_job  # noqa: E402 - as above
from gsched.model.ids import short_job_id  # noqa: E402 - as above
from tests.support.cluster import wait_until  # noqa: E402 - as above
from tests.support.monitor import UnixConnection, is_ready, socket_of  # noqa: E402 - as above

BATCH = 2000
GPUS, CPUS = 8, 16
REST_S, BUSY_REST_S = 0.03, 0.2  # between two pages, beside an idle head and beside a busy one
QUIET_S = 2.0  # without pages, to know what the daemons use by themselves
SAMPLES_S = 20.0  # until the monitor has samples of all nodes
PATHS = {
    "queue": "/",
    "queue, page 500": "/?number=500",
    "queue by name": "/?sort=-name",
    "queue, one name": "/?name=job-77",
    "waiting": "/?state=waiting&number=20",
    "running": "/?state=running",
    "nodes": "/nodes",
    "node": "/nodes/gpu0001",
    "GPUs": "/gpus",
    "users": "/users",
    "deadlines": "/deadlines",
}
HOST = {"Host": "localhost"}


class Figures(Struct):
    """What loads of one page have taken; CPU time is that of a load."""

    first_ms: list[float] = []
    page_ms: list[float] = []
    size_bytes: int = 0
    monitor_cpu_ms: float = 0.0
    head_cpu_ms: float = 0.0


class Round(Struct):
    """A round of short jobs; CPU time is that for a job."""

    jobs_per_s: float
    monitor_cpu_ms: float
    head_cpu_ms: float


class CpuMeter:
    """CPU time of the head and of its monitor."""

    def __init__(self, made: World) -> None:
        self.head = psutil.Process(made.cluster.head_process.pid)
        self.monitor = next(
            each
            for each in self.head.children(recursive=True)
            if "gschedd.monitor.worker" in " ".join(each.cmdline())
        )

    def now_s(self) -> tuple[float, float]:
        """Return the seconds of the monitor and of the head."""
        times = (each.cpu_times() for each in (self.monitor, self.head))
        monitor_s, head_s = (float(each.user + each.system) for each in times)
        return monitor_s, head_s


def load_page(made: World, path: str, figures: Figures) -> None:
    """Load a page and note what that takes."""
    begun_s = time.perf_counter()
    connection = UnixConnection(socket_of(made.cluster))
    connection.request("GET", path, headers=HOST)
    response = connection.getresponse()
    first_s = time.perf_counter()
    body = response.read()
    ended_s = time.perf_counter()
    connection.close()
    if response.status != 200:
        sys.exit(f"{path}: status {response.status}: {body[:2000].decode()}")
    figures.first_ms.append((first_s - begun_s) * 1000)
    figures.page_ms.append((ended_s - begun_s) * 1000)
    figures.size_bytes = max(figures.size_bytes, len(body))


def fill(made: World, nodes: int, jobs: int) -> list[int]:
    """Take the nodes with GPUs, and queue jobs; return an id of each kind."""
    head, ids = made.head, []
    full = f"nodes=1:ppn={CPUS}:gpus={GPUS},walltime=24:0:0"
    taking = [
        new_job(name=f"train-{at}", workdir="/", script=":\n", resources=(full,))
        for at in range(nodes)
    ]
    ids.append(head.submit(taking).results[0].id)
    wait_until(lambda: head.status().jobs.get("running", 0) == nodes, 60.0, what="jobs to run")
    for first in range(0, jobs, BATCH):
        queued = [
            new_job(
                name=f"job-{at}",
                workdir="/",
                script=":\n",
                holds=("user",) if at % 2 else (),
                resources=(f"nodes=1:ppn={at % 8 + 1}:gpus={at % 4 + 1},walltime=1:0:0",),
            )
            for at in range(first, min(jobs, first + BATCH))
        ]
        ids.append(head.submit(queued).results[0].id)
    return [ids[0], ids[len(ids) // 2]]


def run_short(made: World, count: int) -> float:
    """Run so many short jobs and return how many ended a second."""
    head = made.head
    begun_s = time.perf_counter()
    running = head.status().jobs.get("running", 0)
    last = head.submit([plain() for _ in range(count)]).results[-1].id
    head.wait([last])
    wait_until(lambda: head.status().jobs.get("running", 0) <= running, what="all to end")
    return count / (time.perf_counter() - begun_s)


@contextmanager
def working(made: World, count: int) -> Iterator[None]:
    """Run short jobs until the end of the block."""
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            run_short(made, count)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def viewer(made: World) -> Iterator[Figures]:
    """Load the queue every second, with a stream of updates beside it."""
    figures, ended = Figures(), threading.Event()
    stream = UnixConnection(socket_of(made.cluster))
    stream.request("GET", "/updates", headers=HOST)
    updates = stream.getresponse()

    def read() -> None:
        with suppress(OSError, ValueError, AttributeError):
            while updates.readline():
                pass

    def browse() -> None:
        while not ended.wait(1.0):
            load_page(made, "/", figures)

    threads = [threading.Thread(target=each, daemon=True) for each in (read, browse)]
    for thread in threads:
        thread.start()
    try:
        yield figures
    finally:
        ended.set()
        threads[1].join()
        stream.sock.shutdown(2)


def load_all(
    made: World, meter: CpuMeter, paths: dict[str, str], loads: int, *, is_idle: bool
) -> dict[str, Figures]:
    """Load each page so many times; beside an idle head note the CPU time."""
    found = {}
    for name, path in paths.items():
        figures = found[name] = Figures()
        load_page(made, path, Figures())
        quiet_s, quiet_begun_s = meter.now_s(), time.perf_counter()
        time.sleep(QUIET_S if is_idle else 0.0)
        before_s, begun_s = meter.now_s(), time.perf_counter()
        for _ in range(loads):
            time.sleep(REST_S if is_idle else BUSY_REST_S)
            load_page(made, path, figures)
        after_s, wall_s = meter.now_s(), time.perf_counter() - begun_s
        if is_idle:
            passed = wall_s / (begun_s - quiet_begun_s)
            every = zip(quiet_s, before_s, after_s, strict=True)
            used_ms = [
                1000 * (after - before - passed * (before - quiet)) / loads
                for quiet, before, after in every
            ]
            figures.monitor_cpu_ms, figures.head_cpu_ms = used_ms
    return found


def measure_round(made: World, meter: CpuMeter, batch: int) -> Round:
    """Run short jobs and return what each takes."""
    before_s = meter.now_s()
    rate = run_short(made, batch)
    used = zip(before_s, meter.now_s(), strict=True)
    return Round(rate, *(1000 * (after - before) / batch for before, after in used))


def print_pages(kind: str, pages: dict[str, Figures], load: float) -> None:
    """Print a line for each page."""
    print(f"\nbeside a head that is {kind}, load {load:.1f}")
    print("                 first byte p50/p99    page p50/p99     HTML   CPU monitor/head")
    for name, each in pages.items():
        first = [quantile(each.first_ms, part) for part in (0.5, 0.99)]
        whole = [quantile(each.page_ms, part) for part in (0.5, 0.99)]
        cpu = f"{each.monitor_cpu_ms:6.1f} {each.head_cpu_ms:6.1f} ms" if kind == "idle" else ""
        print(
            f"{name:16} {first[0]:7.0f} {first[1]:7.0f} ms {whole[0]:7.0f} {whole[1]:6.0f} ms"
            f" {each.size_bytes / 1000:6.1f} kB {cpu}".rstrip()
        )


def print_rounds(rounds: dict[str, list[Round]], beside: Figures, load: float) -> None:
    """Print what a viewer costs."""
    print(
        f"\na viewer beside short jobs, {len(rounds['with'])} rounds of each kind, load {load:.1f}"
    )
    for name, words in (
        ("jobs_per_s", "jobs/s"),
        ("head_cpu_ms", "CPU/job, head, ms"),
        ("monitor_cpu_ms", "CPU/job, monitor, ms"),
    ):
        values = {kind: [getattr(each, name) for each in rounds[kind]] for kind in rounds}
        without, beside_it = (statistics.median(values[kind]) for kind in ("without", "with"))
        print(
            f"{words:21} {without:7.2f} without, {beside_it:7.2f} with: "
            f"{100 * beside_it / without:5.1f} %"
        )
        for kind, each in values.items():
            print(f"    {kind:8} {', '.join(f'{value:.2f}' for value in each)}")
    pages_ms = [quantile(beside.page_ms, part) for part in (0.5, 0.99)]
    print(f"its page              p50 {pages_ms[0]:.0f} ms, p99 {pages_ms[1]:.0f} ms")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=100_000, help="in the queue (default 100000)")
    parser.add_argument("--nodes", type=int, default=200, help="simulated (default 200)")
    parser.add_argument("--loads", type=int, default=100, help="of each page (default 100)")
    parser.add_argument("--batch", type=int, default=1000, help="short jobs a round (default 1000)")
    parser.add_argument("--rounds", type=int, default=6, help="of each kind (default 6)")
    parser.add_argument("--json", metavar="FILE", help="write all values there, too")
    given = parser.parse_args()
    with world() as made:
        made.cluster.has_monitor = True
        made.cluster.start_head()
        taken = given.nodes // 2
        made.start_nodes("gpu", taken, seconds=1e6, gpus=GPUS, cpus=CPUS)
        train, queued = fill(made, taken, given.jobs)
        made.start_nodes("cpu", given.nodes - taken, seconds=0.0, cpus=CPUS)
        wait_until(lambda: is_ready(made.cluster), 120.0, what="the monitor to be ready")
        meter = CpuMeter(made)
        paths = PATHS | {
            "job": f"/jobs/{short_job_id(queued)}",
            "running job": f"/jobs/{short_job_id(train)}",
        }
        time.sleep(SAMPLES_S)
        print(f"{given.jobs} jobs, {given.nodes} nodes, {given.loads} loads of each page")
        idle = load_all(made, meter, paths, given.loads, is_idle=True)
        print_pages("idle", idle, os.getloadavg()[0])
        run_short(made, given.batch)
        with working(made, given.batch):
            time.sleep(QUIET_S)
            busy = load_all(made, meter, paths, given.loads, is_idle=False)
        print_pages("busy", busy, os.getloadavg()[0])
        rounds: dict[str, list[Round]] = {"without": [], "with": []}
        beside = Figures()
        for at in range(2 * given.rounds):
            if at % 4 in {1, 2}:
                with viewer(made) as figures:
                    rounds["with"].append(measure_round(made, meter, given.batch))
                beside.page_ms += figures.page_ms
            else:
                rounds["without"].append(measure_round(made, meter, given.batch))
        print_rounds(rounds, beside, os.getloadavg()[0])
    if given.json:
        values = {"idle": idle, "busy": busy, "rounds": rounds, "viewer": beside}
        Path(given.json).write_bytes(msgspec.json.encode(values))


if __name__ == "__main__":
    main()

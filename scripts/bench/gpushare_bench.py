"""The cost of GPU sharing by interception, with the fake CUDA driver of the tests.

`launch`: CPU time of one launch: the empty driver itself, a library that only forwards, the
interception library in a process that shares nothing, and the same with an open gate.
`memory`: wall time of one allocation and its free, with and without the library: a small one in a
block of others, one that takes memory of the GPU, and one of a pool that keeps what is freed.
`priority`: a high job (22 kernels of 1 ms, then 8 ms of its host) beside a low one (endless kernels
of 0.2 ms, a wait after each 50), for several windows; 0 is the adapted window. The baseline is the
high job alone without the library. Slow-down: medians of its iterations; share: busy time of the
low job on the device. Packed: both without the library. The device is a queue without a context
switch and without time-slicing: this measures the protocol.
`pipeline`: high jobs whose hosts run ahead of the GPU, beside the same low job: 20 ms of kernels
and 2 ms of the host an iteration, 100 ms in every tenth, 6 iterations ahead; the same with polling
instead of waiting; and one with 20 ms of kernels and 28 ms of the host, 2 ahead, which leaves the
GPU idle. Slow-down: of the mean iteration against the same job alone without the library. Idle: the
part of the time in which the high job alone uses no GPU; low: busy time of the low job.
`flood`: wall time of a question of a high job to the token daemon and its answer, alone and while
processes of one low job send it messages as fast as they can, and what the daemon uses of a CPU.
"""

import argparse
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from gnode.compiling import find_compiler
from gnode.gpushare import ShareClass, wire
from gnode.gpushare.build import build
from gnode.gpushare.wire import Message, MessageKind
from tests.support.gpu_device import SharedGpu, build_driver

SOURCE = Path(__file__).with_name("gpushare_launch.c")
PARTS = ("launch", "memory", "priority", "pipeline", "flood")
FLOODS = (1, 4, 16)  # processes
PAUSE_S = 0.0005  # between two questions
SETTLE_S = 3.0  # until what a job may send at once is sent
HIGH_WORK = "cuda.train(1000, 22, 8, {seconds})"
PIPELINES = {
    "runs ahead": "cuda.pipeline(1000, 20, 2, {seconds}, depth=6, long_ms=100)",
    "polls": "cuda.pipeline(1000, 20, 2, {seconds}, depth=6, long_ms=100, polls=True)",
    "is idle": "cuda.pipeline(1000, 20, 28, {seconds}, depth=2)",
}
PIPELINE_BUSY_MS = 20.0
LOW_WORK = "len(cuda.train(200, 50, 0, {seconds}))"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each run of `priority`")
    parser.add_argument("--windows", default="1,2,4,8,32,0", metavar="W,W,…")
    given = parser.parse_args()
    parts = given.parts or PARTS
    if unknown := set(parts) - set(PARTS):
        parser.error(f"unknown part {min(unknown)}: one of {', '.join(PARTS)}")
    compiler = find_compiler()
    if compiler is None:
        sys.exit("no C compiler: nothing can be measured")
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs, {given.rounds} rounds")
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), compiler, given.rounds)
        if "launch" in parts:
            bench.launch()
        if "memory" in parts:
            bench.memory()
        if "priority" in parts:
            bench.priority([int(one) for one in given.windows.split(",")], given.seconds)
        if "pipeline" in parts:
            bench.pipeline(given.seconds)
        if "flood" in parts:
            bench.flood(given.seconds)


class Bench:
    """Builds everything once in a directory."""

    def __init__(self, folder: Path, compiler: str, rounds: int) -> None:
        self.folder, self.compiler, self.rounds = folder, compiler, rounds
        (folder / "driver").mkdir()
        self.driver = build_driver(folder / "driver")
        self.library = build(folder / "lib", compiler)
        self._nodes = 0

    @contextmanager
    def node(self, *options: str) -> Iterator[SharedGpu]:
        """Yield a node with a shared GPU."""
        self._nodes += 1
        folder = self.folder / f"node{self._nodes}"
        folder.mkdir()
        gpu = SharedGpu(folder, self.driver, self.folder / "lib", options=options)
        try:
            yield gpu
        finally:
            gpu.close()

    def launch(self) -> None:
        """Print the cost of one launch."""
        built = {}
        for name, flags in (
            ("driver", ("-DDRIVER", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1")),
            ("forward", ("-DFORWARD", "-shared", "-fPIC")),
            ("program", ()),
        ):
            built[name] = self.folder / f"launch-{name}"
            command = [
                self.compiler,
                "-O2",
                "-w",
                str(SOURCE),
                *flags,
                "-ldl",
                "-o",
                str(built[name]),
            ]
            subprocess.run(command, check=True)
        alone = {**os.environ, "GSCHED_REAL_LIBCUDA": str(built["driver"])}
        library = str(self.library / "libcuda.so.1")
        with self.node() as gpu:
            shared = {**alone, **gpu.admit(gpu.task("1"))}
            shared.update(alone | {"GSCHED_SHARE_SOCKET": shared["GSCHED_SHARE_SOCKET"]})
            ways = {
                "driver itself": (str(built["driver"]), alone),
                "forwarded only": (str(built["forward"]), alone),
                "library, nothing shared": (library, alone),
                "library, gate open": (library, shared),
            }
            figures: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(self.rounds):
                for way, (path, environment) in ways.items():
                    ran = subprocess.run(
                        [str(built["program"]), path],
                        env=environment,
                        check=True,
                        capture_output=True,
                        text=True,
                    )
                    figures[way].append(float(ran.stdout))
        print("launch: ns of CPU time for one call, median (minimum, maximum)")
        for way, values in figures.items():
            spread = f"({min(values):.2f}, {max(values):.2f})"
            print(f"  {way:24} {statistics.median(values):6.2f} {spread}")

    def memory(self) -> None:
        """Print the cost of an allocation."""
        ways = {
            "4 KiB in a block of others": "cuda.free('plain', cuda.alloc('plain', 4096)[1])",
            "4 MiB": "cuda.free('plain', cuda.alloc('plain', 4 << 20)[1])",
            "4 MiB of a pool": "cuda.free_async(cuda.alloc('async', 4 << 20)[1])",
        }
        print("memory: µs of wall time for one allocation and its free, from Python")
        print("  median (minimum, maximum)       without the library      with the library")
        with self.node() as gpu:
            jobs = [gpu.start({"LD_LIBRARY_PATH": str(self.driver.parent)}), gpu.run(gpu.task("1"))]
            jobs[0].call("cuda.start()")
            for job in jobs:
                job.call("cuda.keep_freed() and cuda.alloc('plain', 4096)")
            for way, code in ways.items():
                work = (
                    f"(lambda t: [{code} for _ in range(2000)] "
                    "and (time.perf_counter() - t) / 2000 * 1e6)(time.perf_counter())"
                )
                figures: list[list[float]] = [[], []]
                for _ in range(self.rounds):
                    for job, values in zip(jobs, figures, strict=True):
                        values.append(float(job.call(work)))
                columns = (
                    f"{statistics.median(values):7.1f} ({min(values):.1f}, {max(values):.1f})"
                    for values in figures
                )
                print(f"  {way:28} " + " ".join(f"{column:>24}" for column in columns))

    def priority(self, windows: list[int], seconds: float) -> None:
        """Print the slow-down of the high job and the share of the low one."""
        work = HIGH_WORK.format(seconds=seconds)
        baseline, overhead = [], []
        packed: list[tuple[float, float]] = []
        results: dict[int, list[tuple[float, float]]] = {window: [] for window in windows}
        for _ in range(self.rounds):
            with self.node() as gpu:
                job = gpu.start({"LD_LIBRARY_PATH": str(self.driver.parent)})
                job.call("cuda.start()")
                baseline.append(statistics.median(job.call(work)))
            with self.node() as gpu:
                job = gpu.run(gpu.task("1", ShareClass.HIGH))
                overhead.append(statistics.median(job.call(work)))
            packed.append(self._beside(None, seconds))
            for window in windows:
                results[window].append(self._beside(window, seconds))
        alone_s = statistics.median(baseline)
        print(f"priority: high job alone {alone_s * 1e3:.2f} ms an iteration,")
        print(f"  with the library {statistics.median(overhead) * 1e3:.2f} ms")
        print("  window   slow-down of high, %        share of low, %")
        rows = {str(window or "adapted"): runs for window, runs in results.items()}
        for name, runs in {**rows, "packed": packed}.items():
            slow = " ".join(f"{(one / alone_s - 1) * 100:6.1f}" for one, _ in runs)
            share = " ".join(f"{part * 100:6.1f}" for _, part in runs)
            print(f"  {name:>7}   {slow:24}   {share}")

    def pipeline(self, seconds: float) -> None:
        """Print what jobs lose whose hosts run ahead of the GPU, and what the low one gets."""
        print("pipeline: medians of all rounds, and each round")
        print("  high job     alone, ms   idle, %   slow-down, %             low, %")
        for name, template in PIPELINES.items():
            work = template.format(seconds=seconds)
            alone, slow, share = [], [], []
            for _ in range(self.rounds):
                with self.node() as gpu:
                    job = gpu.start({"LD_LIBRARY_PATH": str(self.driver.parent)})
                    job.call("cuda.start()")
                    count, took_s = job.call(work)
                    alone.append(took_s / count)
                with self.node() as gpu:
                    high = gpu.run(gpu.task("1", ShareClass.HIGH))
                    low = gpu.run(gpu.task("2", ShareClass.LOW))
                    high.call("cuda.launch(1) or cuda.synchronize()")
                    low.send(LOW_WORK.format(seconds=seconds + 0.5))
                    count, took_s = high.call(work)
                    low.receive()
                    slow.append(took_s / count / alone[-1] - 1)
                    share.append(_busy(gpu, high.pid, low.pid))
            each = " ".join(f"{one * 100:6.1f}" for one in slow)
            shares = " ".join(f"{one * 100:6.1f}" for one in share)
            alone_ms = statistics.median(alone) * 1e3
            print(
                f"  {name:12} {alone_ms:8.2f} {100 - 100 * PIPELINE_BUSY_MS / alone_ms:9.1f}"
                f"   {statistics.median(slow) * 100:6.1f} ({each})"
                f"   {statistics.median(share) * 100:6.1f} ({shares})"
            )

    def _beside(self, window: int | None, seconds: float) -> tuple[float, float]:
        """Return the median of the high job's iterations, s, and the share of the low job.

        Args:
            window: 0: the adapted one; None: packed, without the library.
        """
        with self.node(*(("--window", str(window)) if window else ())) as gpu:
            if window is None:
                plain = {
                    "LD_LIBRARY_PATH": str(self.driver.parent),
                    "GSCHED_FAKE_STATE": str(gpu.device.path),
                }
                high, low = gpu.start(plain), gpu.start(plain)
                for job in (high, low):
                    job.call("cuda.start()")
            else:
                high = gpu.run(gpu.task("1", ShareClass.HIGH))
                low = gpu.run(gpu.task("2", ShareClass.LOW))
            high.call("cuda.launch(1) or cuda.synchronize()")
            low.send(LOW_WORK.format(seconds=seconds + 0.5))
            durations = high.call(HIGH_WORK.format(seconds=seconds))
            low.receive()
            share = _busy(gpu, high.pid, low.pid)
        return statistics.median(durations), share

    def flood(self, seconds: float) -> None:
        """Print the round trip of a question beside floods of another job."""
        print("flood: µs of wall time for a question and its answer: medians of 50 %, 90 %, 99 %")
        for processes in (0, *FLOODS):
            rows = [self._questions(processes, seconds) for _ in range(self.rounds)]
            middle = [statistics.median(column) for column in zip(*rows, strict=True)]
            figures = " ".join(f"{value:8.0f}" for value in middle[:3])
            print(
                f"  {processes:>3} processes send {middle[3]:8.0f} messages/s:{figures}"
                f"   daemon {middle[4]:5.1f} % of a CPU"
            )

    def _questions(self, processes: int, seconds: float) -> tuple[float, ...]:
        """Return quantiles of the round trip, µs, messages of the flood a second, CPU, %."""
        with self.node() as gpu:
            asking = connected(gpu.admit(gpu.task("1", ShareClass.HIGH)), wire.CHANNEL_MEMORY)
            low = gpu.admit(gpu.task("2"))
            daemon = psutil.Process(gpu.daemon_pid())
            read, write = os.pipe()
            children = [flooding(low, write) for _ in range(processes)]
            time.sleep(SETTLE_S if processes else 0.5)
            question = wire.pack(Message(kind=MessageKind.RESERVE))
            trips = []
            cpu_s, began_s = sum(daemon.cpu_times()[:2]), time.perf_counter()
            while time.perf_counter() < began_s + seconds:
                start_s = time.perf_counter()
                asking.send(question)
                asking.recv(wire.MESSAGE_BYTES)
                trips.append((time.perf_counter() - start_s) * 1e6)
                time.sleep(PAUSE_S)
            took_s = time.perf_counter() - began_s
            cpu_s = sum(daemon.cpu_times()[:2]) - cpu_s
            for child in children:
                os.kill(child, signal.SIGTERM)
                os.waitpid(child, 0)
            os.close(write)
            with os.fdopen(read) as told:
                rates = [float(line) for line in told]
            asking.close()
        cut = statistics.quantiles(trips, n=100)
        return cut[49], cut[89], cut[98], sum(rates), 100 * cpu_s / took_s


def _busy(gpu: SharedGpu, high: int, low: int) -> float:
    """Return the part of the high job's time in which the device ran kernels of the low one."""
    log = gpu.device.log()
    own = [one for one in log if one.pid == high]
    begin, end = own[1].called_ns, own[-1].ended_ns
    busy = sum(
        one.ended_ns - one.started_ns
        for one in log
        if one.pid == low and begin <= one.started_ns <= end
    )
    return busy / (end - begin)


def connected(environment: Mapping[str, str], channel: int) -> socket.socket:
    """Return a connection of a job's process to the token daemon."""
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.connect(environment["GSCHED_SHARE_SOCKET"])
    hello = wire.pack(Message(kind=MessageKind.HELLO, b=channel))
    one.send(hello + environment["GSCHED_SHARE_SECRET"].encode())
    _, descriptors, _, _ = socket.recv_fds(one, wire.MESSAGE_BYTES, 1)
    for descriptor in descriptors:
        os.close(descriptor)
    return one


def flooding(environment: Mapping[str, str], told: int) -> int:
    """Fork a process that requests the token until SIGTERM, and then tells how often a second."""
    child = os.fork()
    if child:
        return child
    sent, began_s = 0, time.perf_counter()

    def end(_number: int, _frame: object) -> None:
        os.write(told, b"%f\n" % (sent / (time.perf_counter() - began_s)))
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    data = wire.pack(Message(kind=MessageKind.REQUEST))
    while True:
        with suppress(OSError), connected(environment, wire.CHANNEL_LAUNCH) as one:
            while True:  # until the daemon hangs up on who does not read fast enough
                one.send(data)
                sent += 1
                with suppress(BlockingIOError):
                    while sent % 20 == 0:
                        one.recv(wire.MESSAGE_BYTES, socket.MSG_DONTWAIT)


if __name__ == "__main__":
    main()

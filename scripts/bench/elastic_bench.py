"""What gsched.elastic costs a training that nobody disturbs, and what a move costs at least.

Overhead: one torchrun of --ranks ranks trains one network, in turn for --steps steps with a
DistributedSampler and a DataLoader and for as many with elastic's loader and step(), in each of
--rounds rounds.
Checkpoints are on, with the default interval, and something listens on the socket. Told are the
medians of the rounds' mean step times, on the clock and in CPU time of rank 0, all its threads
included, which depends less on what else the machine does; the median and the middle half of the
rounds' ratios; and step() alone.

Floor (--floor MB,MB,...): plain torch in one process saves that much state and flushes it; a new
process starts and imports torch; it reads the state. Nothing that moves a training can be faster.
"""

import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from elastic_floor import floor_of_move


class Figures:
    """Times on the clock and of the processor, by what took them, a value for each round."""

    def __init__(self) -> None:
        self.values: dict[str, list[float]] = {}

    def note(self, name: str, times_s: Sequence[float]) -> None:
        """Add a round's mean times of a step, clock and processor."""
        for key, time_s in zip((f"{name}_s", f"{name}_cpu_s"), times_s, strict=True):
            self.values.setdefault(key, []).append(time_s)


def options() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20, help="in a round")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--width", type=int, default=512, help="of the network: wider is slower")
    parser.add_argument("--batch", type=int, default=32, help="samples per step, all ranks")
    parser.add_argument("--floor", default="", metavar="MB,MB", help="measure this instead")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    parser.add_argument("--worker", type=pathlib.Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def worker(args: argparse.Namespace) -> None:
    """Train as one rank, and let rank 0 write what it measured."""
    import torch
    from torch import nn
    from torch.distributed import init_process_group
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    from gsched import elastic

    torch.set_num_threads(1)
    init_process_group("gloo")
    torch.manual_seed(1)
    width, count = args.width, args.steps * args.batch
    model = DistributedDataParallel(nn.Sequential(*(nn.Linear(width, width) for _ in range(4))))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    data = TensorDataset(torch.randn(count, width))
    samples = elastic.Samples(count, global_batch=args.batch, epochs=args.rounds + 1)
    training = elastic.start(model, optimizer, samples)
    sampler = DistributedSampler(data, seed=1)
    inside: list[tuple[float, float]] = []

    def work(
        batches: Iterable[Sequence[torch.Tensor]], after: Callable[[], None]
    ) -> tuple[float, float]:
        began_s, cpu_began_s = time.perf_counter(), time.process_time()
        for (batch,) in batches:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            after()
        used_s, cpu_used_s = time.perf_counter() - began_s, time.process_time() - cpu_began_s
        return used_s / args.steps, cpu_used_s / args.steps

    def timed_step() -> None:
        before_s, cpu_before_s = time.perf_counter(), time.thread_time()
        training.step()
        inside.append((time.perf_counter() - before_s, time.thread_time() - cpu_before_s))

    figures = Figures()

    for epoch in training.epochs():
        sampler.set_epoch(epoch)
        plain = DataLoader(data, batch_size=args.batch // training.world_size, sampler=sampler)
        ways = [("elastic", training.loader(data), timed_step), ("plain", plain, lambda: None)]
        # What comes second may find warmer caches, or a machine that others now use.
        for name, batches, after in reversed(ways) if epoch % 2 else ways:
            figures.note(name, work(batches, after))
        figures.note("inside", [statistics.mean(times_s) for times_s in zip(*inside, strict=True)])
        inside.clear()
    if training.rank == 0:
        args.worker.write_text(json.dumps(figures.values))
    training.finish(end_process=True)


def overhead(args: argparse.Namespace) -> dict[str, float]:
    """Run torchrun and return the medians, seconds, and what follows from them."""
    listener = socket.socket(socket.AF_UNIX)
    name = f"@gsched-bench-{os.getpid()}"
    listener.bind("\0" + name[1:])
    listener.listen()

    def listen() -> None:
        channel, _ = listener.accept()
        while channel.recv(1 << 16):
            pass

    threading.Thread(target=listen, daemon=True).start()
    with tempfile.TemporaryDirectory() as directory:
        result = pathlib.Path(directory) / "result.json"
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "GSCHED_CHECKPOINT_DIR": f"{directory}/checkpoints",
            "GSCHED_ELASTIC_SOCKET": name,
        }
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={args.ranks}", __file__, *sys.argv[1:]]
        subprocess.run([*command, f"--worker={result}"], env=environment, check=True)
        # The first round warms up.
        figures = {name: values[1:] for name, values in json.loads(result.read_text()).items()}
    medians = {name: statistics.median(values) for name, values in figures.items()}
    return {
        **medians,
        **quartiles("ratio", figures["elastic_s"], figures["plain_s"]),
        **quartiles("ratio_cpu", figures["elastic_cpu_s"], figures["plain_cpu_s"]),
        "share_inside": medians["inside_s"] / medians["elastic_s"],
        "share_inside_cpu": medians["inside_cpu_s"] / medians["elastic_s"],
    }


def quartiles(name: str, of: Sequence[float], to: Sequence[float]) -> dict[str, float]:
    """Return the median and the middle half of the rounds' ratios."""
    low, middle, high = statistics.quantiles([a / b for a, b in zip(of, to, strict=True)], n=4)
    return {name: middle, f"{name}_low": low, f"{name}_high": high}


def main() -> None:
    """Measure and print."""
    args = options()
    if args.worker:
        worker(args)
        return
    if args.floor:
        floors = {
            size: floor_of_move(int(float(size) * 1e6), sys.executable)
            for size in args.floor.split(",")
        }
        if args.json:
            print(json.dumps(floors))
            return
        print("   MB     save    start     load    floor, seconds")
        for size, floor in floors.items():
            parts = "".join(f"{floor[name]:9.2f}" for name in ("save_s", "start_s", "load_s"))
            print(f"{size:>5}{parts}{floor['floor_s']:9.2f}")
        return
    figures = overhead(args)
    if args.json:
        print(json.dumps(figures))
        return
    print(f"a step, median of {args.rounds} rounds of {args.steps} on {args.ranks} ranks:")
    print("                                       ms    CPU ms")
    for name, what in (
        ("plain", "DataLoader, DistributedSampler"),
        ("elastic", "gsched.elastic"),
        ("inside", "step() alone"),
    ):
        wall_ms, cpu_ms = figures[f"{name}_s"] * 1e3, figures[f"{name}_cpu_s"] * 1e3
        print(f"  {what:32}{wall_ms:9.3f} {cpu_ms:9.3f}")
    for key, what in (("", "ratio"), ("_low", "  a quarter is below"), ("_high", "  or above")):
        print(f"  {what:32}{figures['ratio' + key]:9.3f} {figures['ratio_cpu' + key]:9.3f}")
    shares = figures["share_inside"] * 100, figures["share_inside_cpu"] * 100
    print(f"  {'step() alone, % of a step':32}{shares[0]:9.2f} {shares[1]:9.2f}")


if __name__ == "__main__":
    main()

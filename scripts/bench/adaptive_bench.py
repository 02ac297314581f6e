"""What it costs a training to be adaptive: gradient statistics, micro-batches, learning rate.

One torchrun of --ranks ranks trains one network, in turn for --steps steps with a DataLoader and a
DistributedSampler, and for as many as an adaptive training with the same batch, in each of --rounds
rounds. Told are the medians of the rounds' mean step times, on the clock and in CPU time of rank 0,
all its threads included, and the median and the middle half of the rounds' ratios; and what a step
whose gradients are measured takes of its main thread more than others (every fifth is).
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from elastic_bench import Figures, quartiles

Single = dict[str, list[float]]  # times of single steps, seconds


def options() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20, help="in a round")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--width", type=int, default=512, help="of the network: wider is slower")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=64, help="samples per step, all ranks")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    parser.add_argument("--worker", type=pathlib.Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def made(args: argparse.Namespace) -> tuple[Any, Any]:
    """Return a network under DistributedDataParallel, and its optimiser."""
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(1)
    width = args.width
    layers = (nn.Linear(width, width) for _ in range(args.layers))
    model = DistributedDataParallel(nn.Sequential(*layers))
    return model, torch.optim.SGD(model.parameters(), lr=1e-6)


def adaptive_steps(
    training: Any, steps: Iterable[Any], model: Any, optimizer: Any, single: Single
) -> None:
    """Do the steps of an epoch; note what each takes of this thread, seconds."""
    from gsched.elastic.adaptive.plans import MEASURED_EVERY, is_due

    began_s = time.thread_time()
    for parts in steps:
        optimizer.zero_grad()
        for (batch,) in parts:
            (training.weight * model(batch).square().mean()).backward()
        optimizer.step()
        training.step()
        now_s = time.thread_time()
        is_measured = is_due(training.step_count, MEASURED_EVERY)
        single["measured" if is_measured else "unmeasured"].append(now_s - began_s)
        began_s = now_s


def worker(args: argparse.Namespace) -> None:
    """Train as one rank, and let rank 0 write what it measured."""
    import torch
    from torch.distributed import init_process_group
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    from gsched import elastic

    torch.set_num_threads(1)
    init_process_group("gloo")
    count = args.steps * args.batch
    data = TensorDataset(torch.randn(count, args.width))
    plain, plain_optimizer = made(args)
    model, optimizer = made(args)
    training = elastic.start(
        model,
        optimizer,
        elastic.Samples(count, global_batch=args.batch, epochs=args.rounds + 1),
        adaptive=elastic.Adaptive(),
    )
    sampler = DistributedSampler(data, seed=1)
    per_gpu = args.batch // training.world_size
    figures = Figures()

    single: Single = {"measured": [], "unmeasured": []}

    def adaptive_round() -> None:
        adaptive_steps(training, training.steps(data), model, optimizer, single)

    def plain_round() -> None:
        for (batch,) in DataLoader(data, batch_size=per_gpu, sampler=sampler):
            plain_optimizer.zero_grad()
            plain(batch).square().mean().backward()
            plain_optimizer.step()

    def note(name: str, work: Callable[[], None]) -> None:
        began_s, cpu_began_s = time.perf_counter(), time.process_time()
        work()
        used_s, cpu_used_s = time.perf_counter() - began_s, time.process_time() - cpu_began_s
        figures.note(name, (used_s / args.steps, cpu_used_s / args.steps))

    for epoch in training.epochs():
        sampler.set_epoch(epoch)
        ways = [("adaptive", adaptive_round), ("plain", plain_round)]
        # What comes second may find warmer caches, or a machine that others now use.
        for name, work in reversed(ways) if epoch % 2 else ways:
            note(name, work)
    figures.values |= {f"{name}_cpu_s": times_s for name, times_s in single.items()}
    if training.rank == 0:
        args.worker.write_text(json.dumps(figures.values))
    training.finish(end_process=True)


def overhead(args: argparse.Namespace) -> dict[str, float]:
    """Run torchrun and return the medians, seconds, and what follows from them."""
    with tempfile.TemporaryDirectory() as directory:
        result = pathlib.Path(directory) / "result.json"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={args.ranks}", __file__, *sys.argv[1:]]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([*command, f"--worker={result}"], env=environment, check=True)
        # The first round warms up.
        figures = {name: values[1:] for name, values in json.loads(result.read_text()).items()}
    return {
        **{name: statistics.median(values) for name, values in figures.items()},
        **quartiles("ratio", figures["adaptive_s"], figures["plain_s"]),
        **quartiles("ratio_cpu", figures["adaptive_cpu_s"], figures["plain_cpu_s"]),
    }


def main() -> None:
    """Measure and print."""
    args = options()
    if args.worker:
        worker(args)
        return
    figures = overhead(args)
    if args.json:
        print(json.dumps(figures))
        return
    print(f"a step, median of {args.rounds} rounds of {args.steps} on {args.ranks} ranks:")
    print("                                       ms    CPU ms")
    for name, what in (("plain", "DataLoader, DistributedSampler"), ("adaptive", "adaptive")):
        wall_ms, cpu_ms = figures[f"{name}_s"] * 1e3, figures[f"{name}_cpu_s"] * 1e3
        print(f"  {what:32}{wall_ms:9.3f} {cpu_ms:9.3f}")
    for key, what in (("", "ratio"), ("_low", "  a quarter is below"), ("_high", "  or above")):
        print(f"  {what:32}{figures['ratio' + key]:9.3f} {figures['ratio_cpu' + key]:9.3f}")
    measured_ms, other_ms = figures["measured_cpu_s"] * 1e3, figures["unmeasured_cpu_s"] * 1e3
    print(f"  {'measured step, main thread':32}{'':9} {measured_ms:9.3f}")
    print(f"  {'other step, main thread':32}{'':9} {other_ms:9.3f}")


if __name__ == "__main__":
    main()

"""A training with a state of a given size that writes down when it does what; see migrate_bench.

Runs as a rank of torchrun. Rank 0 appends a line of JSON to --events for each thing: its attempt,
what it was, and when, seconds since the epoch.
"""

import argparse
import json
import os
import pathlib
import time

_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
_STEPS_A_SECOND = 20.0


def started_s() -> float:
    """Return when this process was started, to a hundredth of a second."""
    with open("/proc/self/stat", encoding="ascii") as file:
        ticks = int(file.read().rpartition(") ")[2].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / _CLOCK_TICKS
    return time.time() - age_s


def resident_bytes() -> int:
    """Return how much memory this process has to itself or shares."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Events:
    """What has happened when in this attempt; only rank 0 writes it down."""

    def __init__(self, path: pathlib.Path) -> None:
        self._attempt = int(os.environ["GSCHED_ATTEMPT"])
        self._log = path.open("a", encoding="ascii") if os.environ["RANK"] == "0" else None

    def note(self, what: str, at_s: float | None = None, **more: float) -> None:
        """Write that ``what`` was at a moment; None: now."""
        if self._log is not None:
            event = {"attempt": self._attempt, "what": what, "at_s": at_s or time.time(), **more}
            self._log.write(json.dumps(event) + "\n")
            self._log.flush()


def options() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, required=True, help="of the network")
    parser.add_argument("--width", type=int, required=True, help="of each layer")
    parser.add_argument("--frozen", type=int, default=0, help="of the layers, the first ones")
    parser.add_argument("--events", type=pathlib.Path, required=True)
    parser.add_argument("--warm", action="store_true", help="wait where a warm start can")
    return parser.parse_args()


def main() -> None:
    """Train until ended."""
    process_s = started_s()
    import torch

    imported_s = time.time()
    from torch import nn
    from torch.distributed import init_process_group
    from torch.nn.parallel import DistributedDataParallel

    from gsched import elastic

    args = options()

    torch.manual_seed(1)
    width = args.width
    network = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(args.layers)))
    for layer in network[: args.frozen]:
        layer.requires_grad_(False)  # noqa: FBT003 - torch's own signature
    trained = [each for each in network.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-6)
    samples = elastic.Samples(1 << 20, global_batch=8)
    gate = {"at_s": time.time(), "cpu_s": time.process_time(), "resident_bytes": resident_bytes()}
    if args.warm:
        elastic.ready()
    events = Events(args.events)
    events.note("process", process_s)
    events.note("imported", imported_s)
    events.note("gate", **gate)
    events.note("launched")
    init_process_group("gloo")
    model = DistributedDataParallel(network)
    events.note("ready")
    training = elastic.start(model, optimizer, samples, settings=elastic.Settings(interval_s=0.0))
    events.note("restored")
    inputs = torch.randn(8 // training.world_size, width)
    for _ in training.epochs():
        for _batch in training.batches():
            began_s = time.time()
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
            busy_s = time.time() - began_s
            time.sleep(max(0.0, 1 / _STEPS_A_SECOND - busy_s))
            events.note("step", busy_s=busy_s)
            training.step()
    training.finish(end_process=True)


if __name__ == "__main__":
    main()

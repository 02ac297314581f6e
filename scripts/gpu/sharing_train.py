"""One training of `sharing.py`: prints a line of JSON with the begin and the end of each iteration.

It waits for a line of input before it measures, so that several begin together.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))
from sharing_models import CLASSES, MODELS


def main() -> None:
    """Train on random images that stay on the device."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=sorted(MODELS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--warm-up", type=int, default=50)
    parser.add_argument("--stall-ms", type=float, default=10.0, help="of a data loader")
    given = parser.parse_args()
    torch.manual_seed(1)
    model = MODELS[given.model]().to(given.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(given.batch, 3, 32, 32, device=given.device)
    labels = torch.randint(CLASSES, (given.batch,), device=given.device)
    synchronize = torch.cuda.synchronize if given.device == "cuda" else lambda: None

    def iterate() -> tuple[float, float]:
        begun = time.monotonic()
        time.sleep(given.stall_ms / 1000)
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        synchronize()
        return begun, time.monotonic()

    for _ in range(given.warm_up):
        iterate()
    print(json.dumps("ready"), flush=True)
    sys.stdin.readline()
    print(json.dumps([iterate() for _ in range(given.iterations)]), flush=True)


if __name__ == "__main__":
    main()

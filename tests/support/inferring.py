"""An inference job whose model takes a fixed time for each sample; notes which samples it has seen.

    inferring.py DIRECTORY COUNT SECONDS_PER_SAMPLE

Each rank adds lines with the numbers of its samples to ``DIRECTORY/seen-ATTEMPT-RANK``.
"""

import os
import pathlib
import sys
import time

import torch
from torch import Tensor, nn
from torch.distributed import init_process_group

from gsched import elastic


class Timed(nn.Module):  # type: ignore[misc]  # torch is Any here
    """A layer that takes so long for each sample."""

    def __init__(self, each_s: float) -> None:
        super().__init__()
        self._each_s = each_s
        self.layer = nn.Linear(4, 2)

    def forward(self, points: Tensor) -> Tensor:
        time.sleep(self._each_s * len(points))
        found: Tensor = self.layer(points)
        return found


def main() -> None:
    """Go through all samples once."""
    directory, count = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    elastic.ready()
    init_process_group("gloo")
    points = torch.randn(count, 4, generator=torch.Generator().manual_seed(1))
    model = Timed(float(sys.argv[3]))
    job = elastic.start(
        model,
        [],
        elastic.Samples(count, global_batch=8, drop_last=False, shuffle=False),
        adaptive=elastic.Adaptive(batch_max=64, inference=True),
    )
    path = directory / f"seen-{os.environ['GSCHED_ATTEMPT']}-{os.environ['RANK']}"
    with path.open("a", encoding="utf-8", buffering=1) as seen:
        for _ in job.epochs():
            for parts in job.steps():
                for indices in parts:
                    with torch.no_grad():
                        model(points[indices])
                    seen.write(" ".join(map(str, indices)) + "\n")
                job.step()
    job.finish(end_process=True)


if __name__ == "__main__":
    main()

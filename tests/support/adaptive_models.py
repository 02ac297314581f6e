"""Modules of networks whose batch sizes are profiled."""

import random
import time
from collections.abc import Callable

import torch
from torch import nn


class Noisy(nn.Module):  # type: ignore[misc]  # torch is Any here
    """Draws from the process's generators and its own, and notes the sizes that it saw."""

    def __init__(self, own: torch.Generator) -> None:
        super().__init__()
        self.own = own
        self.sizes: list[int] = []

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        self.sizes.append(len(points))
        noise = torch.randn_like(points) + torch.randn(points.shape, generator=self.own)
        return points * (1 + 0.1 * random.random()) + 0.1 * noise


class Bounded(nn.Module):  # type: ignore[misc]  # torch is Any here
    """Fits so many samples into its memory, and says so as a GPU does."""

    def __init__(self, limit: int, error: Callable[[], Exception]) -> None:
        super().__init__()
        self.limit, self.error = limit, error

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        if len(points) > self.limit:
            raise self.error()
        return points


class Slow(nn.Module):  # type: ignore[misc]  # torch is Any here
    """Takes 3 ms for each sample, and 20 ms."""

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        time.sleep(0.02 + 0.003 * len(points))
        return points

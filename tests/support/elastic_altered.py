"""Loads a checkpoint whose file of tensors was altered at random, again and again.

    elastic_altered.py DIRECTORY TIMES SEED

Prints how many alterations were refused; ends with the traceback of the first that was loaded, or
of whatever else came of it than a refusal.
"""

import contextlib
import io
import pathlib
import random
import sys

import torch
from torch import nn

from gsched.elastic.errors import CheckpointUnusableError
from gsched.elastic.keeper import CheckpointKeeper
from gsched.elastic.ranks import Ranks
from gsched.elastic.samples import Position, Samples
from gsched.elastic.shelf import Shelf
from gsched.elastic.state import TrainingState

SAMPLES = Samples(64, global_batch=8, epochs=2)


def keeper(directory: pathlib.Path, width: int) -> CheckpointKeeper:
    """Return what saves and loads a training of one rank that has done a step."""
    network = nn.Sequential(nn.Linear(8, width), nn.Linear(width, 4))
    optimizer = torch.optim.AdamW(network.parameters())
    network(torch.ones(8, 8)).sum().backward()
    optimizer.step()
    state = TrainingState(network, [optimizer], {}, {})
    return CheckpointKeeper(Shelf(str(directory)), Ranks(), state, SAMPLES, job=1, attempt=1)


def altered(content: bytes, numbers: random.Random) -> bytes:
    """Return some bytes with one to 64 of them, one after the other, changed."""
    begin, length = numbers.randrange(len(content)), numbers.choice((1, 1, 8, 64))
    old = content[begin : begin + length]
    new = bytes(byte ^ numbers.randrange(1, 256) for byte in old)
    return content[:begin] + new + content[begin + length :]


def refused(loading: CheckpointKeeper) -> str:
    """Return the words with which the checkpoint is refused."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            loading.restore()
        except CheckpointUnusableError:
            return said.getvalue()
    raise AssertionError("it was loaded")


def main() -> None:
    """Save, alter and load."""
    directory, times, numbers = (
        pathlib.Path(sys.argv[1]),
        int(sys.argv[2]),
        random.Random(sys.argv[3]),
    )
    saved = keeper(directory, 8).save(Position().after_step(SAMPLES))
    print(refused(keeper(directory, 9)), end="")  # of another network
    (data,) = pathlib.Path(saved.path).glob("*.distcp")
    content = data.read_bytes()
    loading = keeper(directory, 8)
    for _ in range(times):
        data.write_bytes(altered(content, numbers))
        words = refused(loading)
        assert "was altered: its digest is wrong" in words, words
    data.write_bytes(content)
    assert loading.restore() is not None
    print(f"{times} refused")


if __name__ == "__main__":
    main()

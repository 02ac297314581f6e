"""What the command lines of several experiments share."""

import argparse
import math
from pathlib import Path


def count_of(text: str) -> int:
    """Return a number of things, one or more."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def positive_of(text: str) -> float:
    """Return a finite number above 0."""
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{number} is not above 0")
    return number


def seeds_of(text: str) -> range:
    """Return the seeds of ``A-B`` or ``N``."""
    first, _, last = text.partition("-")
    try:
        found = range(int(first), int(last or first) + 1)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no range: write A-B or N") from None
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} holds no seed: write A-B with A <= B")
    return found


def shared_data(name: str) -> Path:
    """Return the folder of traces of a name: ``shared/data/NAME`` beside or above this repository.

    A worktree may lie deeper than the repository does. Where there is no such folder, its place
    beside the repository is returned.
    """
    above = Path(__file__).resolve().parents[3:]
    places = [directory / "shared" / "data" / name for directory in above]
    return next((place for place in places if place.is_dir()), places[0])

"""What the command lines of several experiments share."""

import argparse
from pathlib import Path


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

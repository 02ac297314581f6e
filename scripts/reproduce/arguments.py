"""What the command lines of several experiments share."""

import argparse


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

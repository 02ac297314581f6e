"""Counts of each node in Slurm's short form. Pure."""

import itertools
from collections.abc import Iterable


def repeated(counts: Iterable[int]) -> str:
    """Return ``2(x2),1`` for 2, 2, 1."""
    groups = ((count, len(list(group))) for count, group in itertools.groupby(counts))
    return ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in groups)

"""Quantiles of measured values."""

from collections.abc import Sequence


def quantile(values: Sequence[float], part: float) -> float:
    """Return the value below which ``part`` (0 to 1) of all values are; 0 of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] if ordered else 0.0

"""Times by size, with straight lines between the sizes that were measured."""

from collections.abc import Mapping


def on_line(times_s: Mapping[int, float], size: int) -> float:
    """Return the time at a size, seconds: on the line of the two sizes beside it.

    Below the smallest size it is the time of that, above the largest in proportion to the size.

    Args:
        times_s: by size, at least one.
    """
    if size in times_s:
        return times_s[size]
    low = max((each for each in times_s if each < size), default=0)
    high = min((each for each in times_s if each > size), default=0)
    if not low:
        return times_s[high]
    if not high:
        return times_s[low] * size / low
    share = (size - low) / (high - low)
    return times_s[low] + share * (times_s[high] - times_s[low])

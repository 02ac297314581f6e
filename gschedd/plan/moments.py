"""Moments as the head writes them in what it tells people."""

from datetime import UTC, datetime
from typing import Final

LATEST_S: Final = 7_258_118_400.0  # 2200-01-01: what is later is a typing error, or far from real


def moment(at_s: float) -> str:
    """Return a moment as the head writes it: commands show it in local time.

    Args:
        at_s: seconds since the epoch.
    """
    if at_s > LATEST_S:
        return "after the year 2200"  # a calendar ends somewhere, and a training's numbers do not
    whole_s = int(at_s)  # with this and isoformat it takes half as long: plans tell thousands
    return datetime.fromtimestamp(whole_s, tz=UTC).isoformat(" ", "seconds")[:19] + " UTC"

"""How fast jobs run on a GPU that they share: by a token with priority, or packed without one.

An iteration of a job is a burst of kernels and a gap of its host. Jobs that are served alike wait
for each other's bursts: a closed queueing network with one server, processor sharing, and one
customer of each job, solved exactly by mean value analysis. With two jobs that keep a GPU of their
own busy for the parts u and v of the time, the first one is slower by u v.

A high job beside low ones waits after each gap until the low job has drained. Low jobs beside it
wait for its gaps: for them the GPU is slower.

Source: M. Reiser and S. S. Lavenberg, "Mean-value analysis of closed multichain queuing networks",
Journal of the ACM 27(2), 1980.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

#: A GPU of which less is left for low jobs is not used by them.
LEAST_FREE: Final = 1e-9


class SharingCosts(Struct, frozen=True, kw_only=True):
    """What sharing a GPU costs its jobs.

    Attributes:
        period_s: of an iteration of a job that is alone on a GPU.
        wait_s: for so long a high job waits after each of its gaps: until the low job has drained,
            for messages, for a switch of contexts.
        lost_s: so much of each gap of a high job is used by nobody: until it counts as idle, for
            messages and the switch.
        usable: part of the time in gaps of a high job that are long enough to be used, 0 to 1.
        turn_s: a turn of the token among low jobs takes so long.
        packed: there is no token: the GPU serves all jobs alike.
    """

    period_s: float = 0.030
    wait_s: float = 0.0
    lost_s: float = 0.0
    usable: float = 1.0
    turn_s: float = 0.0
    packed: bool = False


def queueing_rates(uses: Sequence[float], *, free: float = 1.0, turn: float = 0.0) -> list[float]:
    """Return how fast jobs run that a GPU serves alike, each of its speed alone.

    Args:
        uses: for which part of the time each job keeps a GPU of its own busy, 0 to 1.
        free: part of the GPU's speed that they have together, above 0.
        turn: time of a turn, in iterations of a job that is alone.
    """
    served = [(use + (turn if len(uses) > 1 and use else 0.0)) / free for use in uses]
    gaps = [1.0 - use for use in uses]
    known: dict[frozenset[int], float] = {frozenset(): 0.0}

    def stay(job: int, others: frozenset[int]) -> float:
        """Return how long a burst takes beside others."""
        return served[job] * (1.0 + length(others))

    def length(jobs: frozenset[int]) -> float:
        """Return the mean number of these jobs at the GPU while nobody else is there."""
        found = known.get(jobs)
        if found is None:
            stays = {job: stay(job, jobs - {job}) for job in jobs}
            found = known[jobs] = sum(stays[job] / (gaps[job] + stays[job]) for job in jobs)
        return found

    every = frozenset(range(len(uses)))
    return [1.0 / (gaps[job] + stay(job, every - {job})) for job in range(len(uses))]


def shared_rates(
    high: Sequence[float], low: Sequence[float], costs: SharingCosts
) -> tuple[list[float], list[float]]:
    """Return how fast the high and the low jobs of a GPU run, each of its speed alone.

    Args:
        high, low: for which part of the time each job keeps a GPU of its own busy, 0 to 1.
    """
    if costs.packed:
        rates = queueing_rates([*high, *low])
        return rates[: len(high)], rates[len(high) :]
    turn = costs.turn_s / costs.period_s
    if not high:
        return [], queueing_rates(low, turn=turn)
    rivals = any(low)
    slow = 1.0 / (1.0 + costs.wait_s / costs.period_s) if rivals else 1.0
    used = min(1.0, sum(high))
    free = (costs.usable * (1.0 - used) - costs.lost_s / costs.period_s) * slow
    if not rivals:
        return [1.0] * len(high), [1.0] * len(low)
    if free < LEAST_FREE:
        return [slow] * len(high), [0.0 if use else 1.0 for use in low]
    return [slow] * len(high), queueing_rates(low, free=free, turn=turn)

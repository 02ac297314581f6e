"""Which of several plans suits a training best, by how much time is left for its work.

Source: equations 9 and 12 of Fu Maozhong et al., doi 10.7544/issn1000-1239.202220149. A plan's
performance is ``(T_dl - T_end) / N_GPU``: of the plans that meet the deadline the best one is early
for the GPUs that it takes, which mostly is the one with the fewest.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Final

from gschedd.plan.training import Layout
from gschedd.policies.training.drs.options import PlacementOption

#: Times are floating-point numbers: an end that is so little late is on time. Seconds.
ROUNDING_S: Final = 1e-3

Paced = tuple[PlacementOption, float]  # a plan, and the seconds that a unit of work takes on it
#: The best plan that meets a deadline, and the fastest one.
BestAndFastest = tuple[Paced | None, Paced | None]


class Curve:
    """The plans worth having, for training jobs of one speed.

    For a training with ``x`` seconds left for each unit of its work, a plan on N GPUs that takes u
    seconds for a unit performs in proportion to ``(x - u) / N``: a line over x. The best plan is
    the highest line, so that it is found by bisection.

    Args:
        options: plans and their paces, by GPUs, the fewest first; those with an infinite pace are
            left out.
    """

    __slots__ = ("_best", "_breaks", "fastest")

    def __init__(self, options: Iterable[Paced]) -> None:
        worth: list[Paced] = []
        least, gpus = float("inf"), 0
        for each in options:
            if each[1] < least:
                least = each[1]
                if each[0].gpus == gpus:
                    worth[-1] = each
                else:
                    gpus = each[0].gpus
                    worth.append(each)
        #: The plan that ends first, on as few GPUs as that takes; None: there is no plan.
        self.fastest: Paced | None = worth[-1] if worth else None
        # From the fewest GPUs, best where much time is left, to the most: the upper hull of lines.
        hull: list[Paced] = []
        limits: list[float] = []  # from which x on each but the last is better than its successor
        for each in worth:
            while limits and _meet(hull[-1], each) >= limits[-1]:
                hull.pop()
                limits.pop()
            if hull:
                limits.append(_meet(hull[-1], each))
            hull.append(each)
        self._best = hull[::-1]
        self._breaks = limits[::-1]

    def choices(self, work: float, slack_s: float) -> BestAndFastest:
        """Return the plan that performs best of those that meet the deadline, and the fastest.

        Args:
            work: what is left, in the unit of the paces.
            slack_s: seconds until the deadline; minus infinity where there is none.
        """
        if not self._best or slack_s < -ROUNDING_S:
            return None, self.fastest
        if work <= 0:
            return self._best[-1], self.fastest
        found = self._best[bisect_right(self._breaks, slack_s / work)]
        return (found if work * found[1] <= slack_s + ROUNDING_S else None), self.fastest


def best_of(
    options: Iterable[PlacementOption],
    paces: Mapping[Layout, float],
    *,
    work: float,
    slack_s: float,
) -> BestAndFastest:
    """Return what `Curve` would call the best plan and the fastest: for one training it is quicker.

    Args:
        options: plans by GPUs, the fewest first.
        paces: by layout.
        work: what is left, in the unit of the paces; above 0.
        slack_s: seconds until the deadline; minus infinity where there is none.
    """
    x, least, top = slack_s / work, float("inf"), float("-inf")
    best = fastest = None
    for option in options:
        pace = paces[option.layout]
        if pace < least:  # else more GPUs are of no use
            least = pace
            fastest = (option, pace)
            height = (x - pace) / option.gpus
            if height > top:
                top, best = height, fastest
    if best is None or slack_s < -ROUNDING_S or work * best[1] > slack_s + ROUNDING_S:
        return None, fastest
    return best, fastest


def _meet(fewer: Paced, more: Paced) -> float:
    """Return from how many seconds for a unit of work on the plan on fewer GPUs is better."""
    few, many = fewer[0].gpus, more[0].gpus
    return (fewer[1] * many - more[1] * few) / (many - few)


def choose(
    inside: BestAndFastest, across: BestAndFastest, fewest: int
) -> tuple[Paced, bool] | None:
    """Return the plan for a training job, and whether it meets the deadline; None: there is none.

    A plan across nodes is taken if some node has free GPUs, but fewer than the plan takes: then it
    uses up a fragment and keeps whole nodes whole.

    Args:
        inside, across: of its plans on one node and across nodes.
        fewest: free GPUs of the node that has the fewest, but some.
    """
    expected = _either(inside[0], across[0], fewest)
    if expected is not None:
        return expected, True
    late = _either(inside[1], across[1], fewest)
    return None if late is None else (late, False)


def _either(inside: Paced | None, across: Paced | None, fewest: int) -> Paced | None:
    if across is None or inside is None:
        return inside or across
    return across if 0 < fewest < across[0].gpus else inside

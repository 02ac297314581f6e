"""Who is kept in time: the most training jobs that can be, those first that need least."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

from msgspec import Struct

from gsched.config.policies import DeadlineConfig
from gschedd.allocation.fluid import Grid
from gschedd.allocation.shares import MinimumShare
from gschedd.policies.training.deadline.needs import Candidate

#: How many can be in time is looked for to one part in so many.
PRECISION: Final = 50
#: So many orders are tried in which all guaranteed deadlines may be met.
ORDERS: Final = 16


class PlanAhead(Struct, frozen=True, kw_only=True):
    """The plan ahead.

    Attributes:
        shares: of those that are kept in time, by job, in the order in which they were looked at.
        given_up: those that could be in time, but not beside the others; who needs least first.
        broken: jobs whose guaranteed deadlines cannot be met in these steps, whoever gives way.
    """

    shares: dict[int, MinimumShare]
    given_up: tuple[Candidate, ...]
    broken: frozenset[int]


def keep(candidates: Sequence[Candidate], grid: Grid, settings: DeadlineConfig) -> PlanAhead:
    """Return who is kept in time.

    Args:
        candidates: in the order in which they are kept.
        grid: what is free; not changed.
        settings: how much is kept for those to come, if not all can be in time.
    """
    after_s = grid.starts_s[0] + settings.reserve_after_s
    guaranteed = _guaranteed(candidates, grid)
    left, shares = grid.copy(), dict[int, MinimumShare]()
    if not _fill(candidates, left, shares, guaranteed):
        reserved = grid.kept_back(settings.reserve_share, after_s)
        beside = _guaranteed(candidates, reserved)
        if beside.broken != guaranteed.broken:
            reserved, beside = grid, guaranteed  # nothing is kept back where a guarantee needs it
        count = _largest_prefix(candidates, reserved, beside)
        left, shares = reserved.copy(), {}
        _fill(candidates[:count], left, shares, beside)
        left = grid.without(reserved, left)
    grid = left
    given_up: list[Candidate] = []
    for each in candidates:
        if each.need.job in shares:
            continue
        share = grid.take_share(each.need)
        if share is None:
            given_up.append(each)
        else:
            shares[each.need.job] = share
    return PlanAhead(shares=shares, given_up=tuple(given_up), broken=guaranteed.broken)


class _Guaranteed(Struct, frozen=True, kw_only=True):
    """How the jobs are planned whose deadlines were guaranteed.

    Attributes:
        ahead: those that take their shares before all others, in this order; empty where all of
            them can be in time by deadline.
        broken: those that cannot be in time, whoever gives way.
    """

    ahead: tuple[Candidate, ...] = ()
    broken: frozenset[int] = frozenset()

    def order(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the order in which jobs take their shares."""
        jobs = {each.need.job for each in self.ahead}
        return [
            *self.ahead,
            *_by_deadline(each for each in candidates if each.need.job not in jobs),
        ]


def _guaranteed(candidates: Sequence[Candidate], grid: Grid) -> _Guaranteed:
    """Return how those are planned that were guaranteed their deadlines.

    By deadline, a job on few GPUs can leave too few for a wider one that is due later. Then the one
    that is late takes its share earlier, and so on.

    Source: D. E. Joslin & D. P. Clements, "Squeaky wheel" optimization, JAIR 10:353-373, 1999.
    """
    order = _by_deadline(each for each in candidates if each.guaranteed)
    ahead: tuple[Candidate, ...] = ()
    for _ in range(ORDERS):
        failed = _first_late(order, grid)
        if failed is None:
            return _Guaranteed(ahead=ahead)
        if not failed:
            break
        order.insert(failed // 2, order.pop(failed))
        ahead = tuple(order)
    guaranteed = _by_deadline(each for each in candidates if each.guaranteed)
    shares: dict[int, MinimumShare] = {}
    all_of_them = _Guaranteed(broken=frozenset(each.need.job for each in guaranteed))
    _fill(guaranteed, grid.copy(), shares, all_of_them)
    return _Guaranteed(broken=all_of_them.broken - shares.keys())


def _first_late(ordered: Sequence[Candidate], grid: Grid) -> int | None:
    """Return the index of the first job that cannot be in time after those before it, if any."""
    left = grid.copy()
    late = (index for index, each in enumerate(ordered) if left.take_share(each.need) is None)
    return next(late, None)


def _largest_prefix(candidates: Sequence[Candidate], grid: Grid, guaranteed: _Guaranteed) -> int:
    """Return how many of the first candidates can all be in time; those guaranteed always count.

    Of many it is told to one part in `PRECISION` only: who is missed is looked at one by one later.
    """
    least = sum(each.guaranteed for each in candidates)
    most = max(_by_gpu_time(candidates, grid), least)
    enough = most // PRECISION
    while most - least > enough:
        middle = (least + most + 1) // 2
        if _fill(candidates[:middle], grid.copy(), {}, guaranteed):
            least = middle
        else:
            most = middle - 1
    return least


def _by_gpu_time(candidates: Sequence[Candidate], grid: Grid) -> int:
    """Return how many of the first candidates are not too many if only GPU time is counted.

    All that must be done by a deadline must fit before it: a cheap bound on how many fit.
    """
    ends_s = [start + lasts for start, lasts in zip(grid.starts_s, grid.lasts_s, strict=True)]
    free = [gpus * lasts for gpus, lasts in zip(grid.free, grid.lasts_s, strict=True)]
    capacity = list(accumulate(free))
    due = [min(bisect_left(ends_s, each.need.deadline_s), len(ends_s) - 1) for each in candidates]

    def fits(count: int) -> bool:
        due_gpu_s = [0.0] * len(ends_s)
        for step, each in zip(due[:count], candidates, strict=False):
            due_gpu_s[step] += each.gpu_s
        return all(
            sum_s <= space_s for sum_s, space_s in zip(accumulate(due_gpu_s), capacity, strict=True)
        )

    return bisect_left(range(1, len(candidates) + 1), 1, key=lambda count: not fits(count))


def _fill(
    candidates: Sequence[Candidate],
    grid: Grid,
    shares: dict[int, MinimumShare],
    guaranteed: _Guaranteed,
) -> bool:
    """Let training jobs take their shares, by deadline; stop at the first that cannot be in time.

    Args:
        candidates: who takes them.
        grid: what is free; the shares are taken from it.
        shares: what each has taken is added to it.
        guaranteed: who takes a share before the others, and who is passed over without one.

    Returns:
        Whether all others are in time.
    """
    for each in guaranteed.order(candidates):
        share = grid.take_share(each.need)
        if share is not None:
            shares[each.need.job] = share
        elif each.need.job not in guaranteed.broken:
            return False
    return True


def _by_deadline(candidates: Iterable[Candidate]) -> list[Candidate]:
    return sorted(candidates, key=lambda each: (each.need.deadline_s, each.need.job))

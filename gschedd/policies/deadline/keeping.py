"""Who is kept in time: the most trainings that can be, those first that need least."""

from collections.abc import Sequence

from msgspec import Struct

from gschedd.policies.deadline.needs import Candidate
from gschedd.policies.deadline.settings import Settings
from gschedd.policies.kit.fluid import Grid, Share


class Kept(Struct, frozen=True, kw_only=True):
    """The plan ahead.

    Attributes:
        shares: of those that are kept in time, by job, in the order in which they were looked at.
        given_up: those that could be in time, but not beside the others; who needs least first.
    """

    shares: dict[int, Share]
    given_up: tuple[Candidate, ...]


def keep(candidates: Sequence[Candidate], grid: Grid, settings: Settings) -> Kept:
    """Return who is kept in time.

    Args:
        candidates: in the order in which they are kept.
        grid: what is free; what is kept takes its share of it.
        settings: how much is kept for those to come, if not all can be in time.
    """
    count = len(candidates)
    if not _all_fit(candidates, grid.copy()):
        after_s = grid.starts_s[0] + settings.reserve_after_s
        left = grid.kept_back(settings.reserve, after_s)
        count = _largest_prefix(candidates, left)
    shares: dict[int, Share] = {}
    for each in _by_deadline(candidates[:count]):
        share = grid.take_share(each.need)
        if share is not None:
            shares[each.need.job] = share
    given_up: list[Candidate] = []
    for each in candidates:
        if each.need.job in shares:
            continue
        share = grid.take_share(each.need)
        if share is None:
            given_up.append(each)
        else:
            shares[each.need.job] = share
    return Kept(shares=shares, given_up=tuple(given_up))


def _largest_prefix(candidates: Sequence[Candidate], grid: Grid) -> int:
    """Return how many of the first candidates can all be in time; those promised always count."""
    least = sum(each.promised for each in candidates)
    most = max(len(candidates) - 1, least)
    while least < most:
        middle = (least + most + 1) // 2
        if _all_fit(candidates[:middle], grid.copy()):
            least = middle
        else:
            most = middle - 1
    return least


def _all_fit(candidates: Sequence[Candidate], grid: Grid) -> bool:
    return all(grid.take_share(each.need) is not None for each in _by_deadline(candidates))


def _by_deadline(candidates: Sequence[Candidate]) -> list[Candidate]:
    return sorted(candidates, key=lambda each: (each.need.deadline_s, each.need.job))

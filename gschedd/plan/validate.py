"""The head disposes: each start of a plan is checked against the state as it is by now."""

from collections.abc import Callable

from msgspec import Struct

from gschedd.plan.fit import covers
from gschedd.plan.snapshot import Plan, Shape, Start
from gschedd.plan.space import Spaces


class Refusal(Struct, frozen=True, kw_only=True):
    """A start that was not accepted, and why."""

    start: Start
    reason: str


class Validated(Struct, frozen=True, kw_only=True):
    """What of a plan may be carried out."""

    accepted: tuple[Start, ...]
    refused: tuple[Refusal, ...]


def validate(plan: Plan, spaces: Spaces, waiting_shape: Callable[[int], Shape | None]) -> Validated:
    """Accept what is still possible, item by item, in the plan's order.

    Args:
        plan: a proposal, possibly stale or wrong.
        spaces: free resources now; not changed.
        waiting_shape: the shape of a job that may start now, else None.
    """
    work = spaces.copy()
    accepted: list[Start] = []
    refused: list[Refusal] = []
    seen: set[int] = set()
    for start in plan.starts:
        reason = _objection(start, work, waiting_shape(start.job), seen)
        if reason:
            refused.append(Refusal(start=start, reason=reason))
            continue
        work.take(start.allocation)
        seen.add(start.job)
        accepted.append(start)
    return Validated(accepted=tuple(accepted), refused=tuple(refused))


def _objection(start: Start, work: Spaces, shape: Shape | None, seen: set[int]) -> str:
    if start.job in seen:
        return f"job {start.job} is started twice in one plan"
    if shape is None:
        return f"job {start.job} is not waiting to start"
    reason = covers(shape.request, start.allocation, work)
    return f"job {start.job}: {reason}" if reason else ""

"""How a head on an older database takes back what its nodes know: the steps, in their order.

`gschedd.core.recovery.adopt` says what each case is and which facts come of it.
"""

from collections.abc import Iterable
from typing import Protocol

from msgspec import structs

from gsched.model.states import HoldKind
from gschedd.core.recovery.adopt import (
    Case,
    CaseKind,
    Hold,
    Survey,
    adoption_of,
    blocked_jobs,
    cases_of,
    earlier_end,
    earlier_parts,
    ends_of,
    held_jobs,
    is_adoptable,
)
from gschedd.core.state import facts as f
from gschedd.core.state.state import State
from gschedd.core.state.step import Step, together


class Advance(Protocol):
    """Applies facts and, unless they are of the past, all that follows from them."""

    def __call__(self, facts: Iterable[f.AnyFact], *, follows: bool = True) -> Step:
        """Return what is now to be made durable."""


def adopted(state: State, survey: Survey, now_s: float, hold: Hold, advance: Advance) -> Step:
    """Take back what nodes know: the ends of what is known here, then what is not.

    Args:
        state: of the head.
        survey: what all nodes have said.
        now_s: the time, seconds since the epoch.
        hold: which adopted jobs wait for an operator.
        advance: changes the state.
    """
    cases = cases_of(state, survey)
    steps = [advance(ends_of(state, cases, now_s))]
    waiting = [case for case in cases if is_adoptable(case)]
    blocked = _adopt_cases(state, waiting, steps, now_s, advance)
    held = [*held_jobs(state, cases, hold), *blocked_jobs(state, blocked)]
    steps.append(
        advance(
            f.JobHeld(
                at_s=now_s,
                job=case.job,
                holds=(HoldKind.OPERATOR,),
                by="gsched",
                reason=case.why,
            )
            for case in held
        )
    )
    state.dirty.mark_all()
    # Nothing is sent: the nodes register anew, and that says what is missing.
    return structs.replace(together(steps), effects=())


def _adopt_cases(
    state: State, cases: list[Case], steps: list[Step], now_s: float, advance: Advance
) -> list[Case]:
    """Adopt attempts, and return those that cannot be adopted.

    An attempt that has ended frees its GPUs, so it comes before those that run. One that finds
    its GPUs owned is tried again as long as other adoptions free some.
    """
    waiting = sorted(cases, key=lambda case: case.kind is not CaseKind.FINISHED)
    before = len(waiting) + 1
    while len(waiting) < before:
        before, tried, waiting = len(waiting), waiting, []
        for case in tried:
            if not adoption_of(state, case, now_s):
                waiting.append(case)
                continue
            _adopt_earlier(state, case, steps, now_s, advance)
            steps.append(advance(adoption_of(state, case, now_s)))
    return waiting


def _adopt_earlier(
    state: State, case: Case, steps: list[Step], now_s: float, advance: Advance
) -> None:
    """Take back the attempts before the newest one; nothing follows from their ends."""
    for earlier in case.earlier:
        parts = earlier_parts(state, earlier, now_s)
        steps.append(advance(parts, follows=False))
        over = earlier_end(state, earlier, case.attempt, now_s)
        steps.append(advance(over, follows=False))

"""The failpoints of a commit."""

from collections.abc import Callable, Sequence
from typing import Final

from gsched.failpoint import failpoint, is_armed
from gsched.model.states import OutcomeKind, StopReason
from gschedd.core.state import facts as f


def pass_failpoints(facts: Sequence[f.AnyFact], when: str) -> None:
    """Pass the failpoints of what is in a batch."""
    for kind, is_of in _PASSED:
        point = f"head.{kind}.{when}"
        if is_armed(point) and any(map(is_of, facts)):
            failpoint(point)


def _is_of_move(fact: f.AnyFact) -> bool:
    """Return whether a fact is a step of a move."""
    match fact:
        case f.MigrationRequested() | f.TrainingResumed():
            return True
        case f.CheckpointTaken():
            return fact.request > 0
        case f.AttemptEnded():
            return fact.outcome.kind is OutcomeKind.MOVED
        case _:
            return False


def _is_deletion(fact: f.AnyFact) -> bool:
    return isinstance(fact, f.StopRequested) and fact.reason is StopReason.DELETE


#: Failpoints of a commit: each is passed if the commit has such a fact.
_PASSED: Final[tuple[tuple[str, Callable[[f.AnyFact], bool]], ...]] = (
    ("submit", lambda fact: isinstance(fact, f.JobSubmitted)),
    ("exit", lambda fact: isinstance(fact, f.PartEnded)),
    ("move", _is_of_move),
    ("delete", _is_deletion),
)

"""What one input to the head came to."""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from gsched.errors import GschedError
from gschedd.core.state import effects as e
from gschedd.core.state import facts as f
from gschedd.models.records import Record
from gschedd.plan.load import Prediction


class Run(Struct, frozen=True, kw_only=True):
    """What an attempt has cost on one node, beside what had been predicted: a row of the history.

    Attributes:
        prediction: made when it was assigned; None if nothing was learned then.
    """

    job: int
    attempt: int
    record: Record
    prediction: Prediction | None = None


class Step(Struct, frozen=True, kw_only=True):
    """What one input came to.

    Attributes:
        facts: to be made durable, in order.
        effects: to be carried out after that, in order.
        job: the id that a submission got.
        warnings: for the submitter.
        error: why a command was refused; then there are no facts.
        runs: what the attempts that ended have cost, to be made durable with the facts; only where
            the head learns.
    """

    facts: tuple[f.AnyFact, ...] = ()
    effects: tuple[e.AnyEffect, ...] = ()
    job: int = 0
    warnings: tuple[str, ...] = ()
    error: GschedError | None = None
    runs: tuple[Run, ...] = ()


#: What most ticks and many cycles come to.
NOTHING: Final = Step()


def refused_step(error: GschedError) -> Step:
    """Return a refusal without the frames that it was raised in: 10,000 had 100,000 objects."""
    return Step(error=error.with_traceback(None))


def together(steps: Iterable[Step]) -> Step:
    """Return several steps as one."""
    every = [step for step in steps if step is not NOTHING]
    if len(every) <= 1:
        return every[0] if every else NOTHING
    return Step(
        facts=tuple(fact for step in every for fact in step.facts),
        effects=tuple(effect for step in every for effect in step.effects),
        runs=tuple(run for step in every for run in step.runs),
    )

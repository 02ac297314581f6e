"""Results of pure functions that are kept while questions use them."""

from collections.abc import Callable
from functools import wraps
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

#: A result is dropped that none of the last 16 to 32 questions has used.
QUESTIONS_KEPT: Final = 16
#: The same without questions: the results of a function are at most twice as many.
RESULTS_KEPT: Final = 1024


class ResultCache:
    """Keeps the results of functions, by their positional arguments, while questions use them.

    A bound by count alone keeps the fits of kinds that have run again since: memory grows with the
    number of runs until the bound is reached.
    """

    def __init__(self) -> None:
        self._turns: list[Callable[[], None]] = []
        self._answered = 0

    def keep(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return ``function`` with its results kept; it never returns None."""
        young: dict[tuple[object, ...], R] = {}
        old: dict[tuple[object, ...], R] = {}

        @wraps(function)
        def kept(*args: P.args, **kwargs: P.kwargs) -> R:
            found = young.get(args)
            if found is None:
                found = old.get(args)
                found = function(*args, **kwargs) if found is None else found
                if len(young) >= RESULTS_KEPT:
                    turn()
                young[args] = found
            return found

        def turn() -> None:
            nonlocal young, old
            young, old = {}, young

        self._turns.append(turn)
        return kept

    def question_answered(self) -> None:
        """Count a question; after so many of them drop what none of the last ones has used."""
        self._answered += 1
        if self._answered % QUESTIONS_KEPT == 0:
            for turn in self._turns:
                turn()


RECENT: Final = ResultCache()

"""Predictions that are made when they are first read: in a simulation most of them never are."""

from collections.abc import Callable
from typing import cast

from gschedd.plan.load import Prediction


class _Deferred:
    """Stands for a prediction: it is made, once, when a field of it is first read."""

    __slots__ = ("_made", "_make")

    def __init__(self, make: Callable[[], Prediction]) -> None:
        self._make: Callable[[], Prediction] | None = make
        self._made: Prediction | None = None

    def made(self) -> Prediction:
        """Return the prediction itself; what it stood on is not needed any more."""
        if self._make is not None:
            self._made, self._make = self._make(), None
        assert self._made is not None, "it is made by now"
        return self._made

    def __getattr__(self, name: str) -> object:
        return getattr(self.made(), name)

    def __reduce__(self) -> tuple[Callable[[Prediction], Prediction], tuple[Prediction]]:
        return _itself, (self.made(),)


def when_read(make: Callable[[], Prediction]) -> Prediction:
    """Return what reads like the prediction that ``make`` returns."""
    return cast("Prediction", _Deferred(make))


def _itself(prediction: Prediction) -> Prediction:
    return prediction

"""Predictions that are made when they are first read: in a simulation most of them never are."""

from collections.abc import Callable
from typing import cast

from gschedd.plan.load import PredictedTime, Prediction


class _Deferred:
    """Stands for a prediction: it is made, once, when a field of it is first read."""

    __slots__ = ("_made", "_make", "_run_time")

    def __init__(
        self, make: Callable[[], Prediction], run_time: Callable[[], PredictedTime]
    ) -> None:
        self._make: Callable[[], Prediction] | None = make
        self._made: Prediction | None = None
        self._run_time = run_time

    def made(self) -> Prediction:
        """Return the prediction itself; what it stood on is not needed any more."""
        if self._make is not None:
            self._made, self._make = self._make(), None
        assert self._made is not None, "it is made by now"
        return self._made

    @property
    def run_time(self) -> PredictedTime:
        """Return what it says of the run time: plans go by that alone."""
        return self._run_time()

    def __getattr__(self, name: str) -> object:
        return getattr(self.made(), name)

    def __reduce__(self) -> tuple[Callable[[Prediction], Prediction], tuple[Prediction]]:
        return _itself, (self.made(),)


def when_read(make: Callable[[], Prediction], run_time: Callable[[], PredictedTime]) -> Prediction:
    """Return what reads like the prediction that ``make`` returns."""
    return cast("Prediction", _Deferred(make, run_time))


def _itself(prediction: Prediction) -> Prediction:
    return prediction

"""Predictions that are made when they are first read: in a simulation most of them never are."""

from collections import deque
from collections.abc import Callable, Collection
from typing import Final, cast
from weakref import ref

from gschedd.models.predict import Model
from gschedd.models.records import Record
from gschedd.plan.load import Kind, NodeLoad, PastRuns, PredictedTime, Prediction, Predictor

#: Runs and predictions that wait to be worked out, at most: some 30 MB.
MAX_PENDING: Final = 65_536


class _Wanted:
    """Stands for a prediction that a `LazyModel` was asked for."""

    __slots__ = ("__weakref__", "_answer", "_catch_up", "of")

    def __init__(
        self, of: tuple[Kind, NodeLoad, float], catch_up: Callable[["_Wanted"], None]
    ) -> None:
        self.of = of
        self._catch_up = catch_up
        self._answer: Prediction | None = None

    def answer(self, prediction: Prediction) -> None:
        """Take what the model says, now that it knows what it knew then."""
        self._answer = prediction

    def __getattr__(self, name: str) -> object:
        if self._answer is None:
            self._catch_up(self)
        return getattr(self._answer, name)

    def __reduce__(self) -> tuple[object, ...]:
        if self._answer is None:
            self._catch_up(self)
        return _itself, (self._answer,)


class LazyModel:
    """A model that learns when it is next asked, and predicts when that is read.

    What it says is what the model would have said at that moment: runs and predictions wait in
    their order. Of what nobody can read any more nothing is worked out.

    Args:
        model: it; nobody else uses it.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._pending: deque[Record | ref[_Wanted]] = deque()

    def learn(self, record: Record) -> None:
        """Take a run into account."""
        self._add(record)

    def deferred(self, kind: Kind, node: NodeLoad, now_s: float) -> Prediction:
        """Return what `predict` returns, which is worked out when it is first read."""
        wanted = _Wanted((kind, node, now_s), self._catch_up)
        self._add(ref(wanted))
        return cast("Prediction", wanted)

    def _add(self, each: Record | ref[_Wanted]) -> None:
        self._pending.append(each)
        if len(self._pending) > MAX_PENDING:
            self._catch_up()

    def _catch_up(self, until: _Wanted | None = None) -> None:
        """Work out what waits, up to a prediction."""
        pending, model = self._pending, self._model
        while pending:
            each = pending.popleft()
            if isinstance(each, Record):
                model.learn(each)
                continue
            wanted = each()
            if wanted is not None:
                wanted.answer(model.predict(*wanted.of))
                if wanted is until:
                    break

    def predict(self, kind: Kind, node: NodeLoad, now_s: float) -> Prediction:
        """Return what a job of a kind will cost on a node."""
        self._catch_up()
        return self._model.predict(kind, node, now_s)

    def run_time(self, kind: Kind, node: NodeLoad, now_s: float) -> PredictedTime:
        """Return how long a job of a kind will run on a node."""
        self._catch_up()
        return self._model.run_time(kind, node, now_s)

    def spread(self, kind: Kind) -> float | None:
        """Return by how much run times of a kind are missed."""
        self._catch_up()
        return self._model.spread(kind)

    def runs(self, kind: Kind, node: NodeLoad) -> PastRuns:
        """Return the latest runs of a kind as they would have been on a node."""
        self._catch_up()
        return self._model.runs(kind, node)

    def detach(self, kinds: Collection[Kind], before: Predictor | None = None) -> Predictor:
        """Return what is known of some kinds now."""
        self._catch_up()
        return self._model.detach(kinds, before)


def _itself(prediction: Prediction) -> Prediction:
    return prediction

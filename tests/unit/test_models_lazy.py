"""What a simulation puts off, and what it does not learn, changes nothing of what is read."""

import pickle
import random
from collections.abc import Callable

import pytest
from msgspec import structs

from gschedd.models import deferred
from gschedd.models.deferred import LazyModel
from gschedd.models.records import Record
from gschedd.models.robust import RobustModel
from gschedd.plan.load import Kind, NodeLoad, Prediction
from tests.support.runs import kind, node, run
from tests.unit.test_models_plain import cluster, past

NOW_S = 0.0


def fields(prediction: Prediction) -> dict[str, object]:
    """Return what is read of a prediction, whatever stands for it."""
    return {name: getattr(prediction, name) for name in Prediction.__struct_fields__}


class Counting(RobustModel):
    """Counts what it has learned and predicted."""

    def __init__(self) -> None:
        super().__init__()
        self.learned = 0
        self.predicted = 0

    def learn(self, record: Record) -> None:
        self.learned += 1
        super().learn(record)

    def predict(self, kind: Kind, node: NodeLoad, now_s: float) -> Prediction:
        self.predicted += 1
        return super().predict(kind, node, now_s)


Read = Callable[[RobustModel | LazyModel, Kind, NodeLoad], object]
READS: dict[str, Read] = {
    "predict": lambda model, of, on: model.predict(of, on, NOW_S),
    "run_time": lambda model, of, on: model.run_time(of, on, NOW_S),
    "spread": lambda model, of, _: model.spread(of),
    "runs": lambda model, of, on: model.runs(of, on),
    "detach": lambda model, of, on: model.detach([of]).predict(of, on, NOW_S),
}


@pytest.mark.parametrize("seed", range(4))
def test_a_lazy_model_predicts_what_an_eager_one_did_at_that_time(seed: int) -> None:
    chance = random.Random(seed)
    nodes, kinds = cluster(chance, gpus=True)
    eager, lazy = RobustModel(), LazyModel(RobustModel())
    unread: list[tuple[Prediction, Prediction]] = []
    for record in past(chance, nodes, kinds, 600):
        eager.learn(record)
        lazy.learn(record)
        of, on = chance.choice(kinds), chance.choice(nodes)
        unread.append((lazy.deferred(of, on, NOW_S), eager.predict(of, on, NOW_S)))
        if chance.random() < 0.3:  # the job has ended
            unread.pop(chance.randrange(len(unread)))
        if chance.random() < 0.05 and unread:
            found, expected = unread.pop(chance.randrange(len(unread)))
            assert fields(found) == structs.asdict(expected)
        if chance.random() < 0.02:
            read = READS[chance.choice(list(READS))]
            assert read(lazy, of, on) == read(eager, of, on)
    for found, expected in unread:
        assert found.run_time == expected.run_time
        assert pickle.loads(pickle.dumps(found)) == expected


def test_what_nobody_reads_is_not_worked_out() -> None:
    model = Counting()
    lazy = LazyModel(model)
    kept: list[Prediction] = []
    for number in range(20):
        lazy.learn(run("k", wall_s=100.0 + number, ended_s=1000.0 * number))
        predictions = [lazy.deferred(kind("k"), node("n1"), NOW_S)]
        kept += predictions if number % 5 == 0 else []
        predictions.clear()
    assert (model.learned, model.predicted) == (0, 0)

    assert kept[1].records == 6
    assert (model.learned, model.predicted) == (6, 2)  # kept[0] is still there, and was before it
    assert kept[0].records == 1
    assert (model.learned, model.predicted) == (6, 2)
    lazy.run_time(kind("k"), node("n1"), NOW_S)
    assert (model.learned, model.predicted) == (20, 4)


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred, "MAX_PENDING", 10)
    model = Counting()
    lazy = LazyModel(model)
    for number in range(25):
        lazy.learn(run("k", wall_s=100.0, ended_s=1000.0 * number))
    assert model.learned == 22


@pytest.mark.parametrize("gpus", [False, True])
def test_run_times_are_the_same_where_nothing_else_is_learned(*, gpus: bool) -> None:
    chance = random.Random(1)
    nodes, kinds = cluster(chance, gpus=gpus)
    whole, alone = RobustModel(), RobustModel(run_times_only=True)
    for number, record in enumerate(past(chance, nodes, kinds, 900)):
        whole.learn(record)
        alone.learn(record)
        if number % 10:
            continue
        of, on = chance.choice(kinds), chance.choice(nodes)
        expected, nothing = whole.predict(of, on, NOW_S), RobustModel().predict(of, on, NOW_S)
        found = [
            alone.predict(of, on, NOW_S),
            alone.detach([of]).predict(of, on, NOW_S),
        ]
        for each in found:
            assert fields(each) == structs.asdict(
                structs.replace(expected, use=nothing.use, high=nothing.high)
            )
        assert alone.run_time(of, on, NOW_S) == whole.run_time(of, on, NOW_S)
        assert alone.spread(of) == whole.spread(of)
        assert alone.runs(of, on) == whole.runs(of, on)

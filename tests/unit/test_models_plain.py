"""The predictor puts off what may never be requested; what it says is what the plain rule says."""

import math
import random
from collections.abc import Iterator

import pytest

from gschedd.models.records import Record
from gschedd.models.robust import RobustModel
from gschedd.plan.load import Kind, NodeLoad, Prediction, Use
from tests.support.plain_predictor import PlainModel
from tests.support.runs import GB, kind, node, rates

NOW_S = 0.0
#: Sums in another order, and errors of what is always nothing multiplied at once, differ by that.
ROUNDING = 1e-12


def cluster(chance: random.Random, *, gpus: bool) -> tuple[list[NodeLoad], list[Kind]]:
    """Return unequal nodes, and kinds of several owners that share programs."""
    speeds = (0.7, 1.0, 1.0, 1.5)
    nodes = [
        node(f"n{number}", rates(core_rate=chance.choice(speeds), gpus=2 if gpus else 0))
        for number in range(6)
    ]
    kinds = [
        kind(
            f"k{number}",
            program=f"p{number // 2}",
            owner_uid=1000 + number % 3,
            cpus=chance.choice((0, 1, 4)),
            gpus=chance.choice((0, 0, 1, 2)) if gpus else 0,
            memory_bytes=chance.choice((0, GB)),
            walltime_s=chance.choice((0.0, 3600.0)),
        )
        for number in range(12)
    ]
    return nodes, kinds


def past(
    chance: random.Random, nodes: list[NodeLoad], kinds: list[Kind], runs: int
) -> Iterator[Record]:
    """Yield runs, some of which fail, do nothing or take far longer than the others."""
    usual_s = {each.key: 10 ** chance.uniform(0, 4) for each in kinds}
    ended_s = 1e6
    for number in range(runs):
        of, at = kinds[int(chance.random() ** 2 * len(kinds))], chance.choice(nodes)
        wall_s = usual_s[of.key] * 10 ** chance.gauss(0, 0.2) / at.rates.core_rate
        wall_s *= (1 + 0.3 * math.sin(number / 50)) * (100 if chance.random() < 0.01 else 1)
        ended_s += chance.expovariate(0.1)
        busy = chance.random() > 0.05
        on_gpus = of.gpus and number > runs / 3  # what never was on GPUs begins to be
        yield Record(
            kind=of,
            node=at.name,
            rates=at.rates,
            wall_s=wall_s,
            used=Use(
                cpu_cores=chance.uniform(0, 2) if busy else 0.0,
                memory_bytes=chance.uniform(0, GB),
                gpus=chance.uniform(0, 1) if on_gpus else 0.0,
                gpu_memory_bytes=chance.choice((0.0, GB)) if on_gpus else 0.0,
            ),
            ended_s=ended_s,
            succeeded=chance.random() > 0.1,
        )


def numbers(said: Prediction) -> list[float]:
    """Return all that a prediction says."""
    uses = [
        value
        for use in (said.use, said.high)
        for value in (use.cpu_cores, use.memory_bytes, use.gpus, use.gpu_memory_bytes)
    ]
    return [*uses, said.wall_s or -1.0, said.wall_high_s or -1.0]


@pytest.mark.parametrize("gpus", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_predictions_are_those_of_the_plain_rule(seed: int, *, gpus: bool) -> None:
    """Whenever it is asked, often or seldom, of kinds known and new, some of them forgotten."""
    chance = random.Random(seed)
    nodes, kinds = cluster(chance, gpus=gpus)
    model, plain = RobustModel(max_kinds=9), PlainModel(max_kinds=9)
    for record in past(chance, nodes, kinds, 500):
        model.learn(record)
        plain.learn(record)
        while chance.random() < 0.5:
            of, at = chance.choice([*kinds, kind("never seen")]), chance.choice(nodes)
            found, meant = model.predict(of, at, NOW_S), plain.predict(of, at, NOW_S)
            assert (found.basis, found.records) == (meant.basis, meant.records)
            assert numbers(found) == pytest.approx(numbers(meant), rel=ROUNDING, abs=ROUNDING)


def test_what_was_said_is_said_anew_once_something_is_learned() -> None:
    """Of one node and of others, with other rates."""
    chance = random.Random(7)
    nodes, kinds = cluster(chance, gpus=False)
    model = RobustModel()
    for record in past(chance, nodes, kinds, 60):
        model.learn(record)
        for at in nodes:
            first, again = (model.predict(record.kind, at, NOW_S) for _ in range(2))
            assert first is again
    slow, fast = (node("other", rates(core_rate=rate)) for rate in (0.5, 2.0))
    assert model.predict(kinds[0], slow, NOW_S) != model.predict(kinds[0], fast, NOW_S)

"""How long jobs are planned to run: predicted, stated or assumed; never a limit by itself."""

import pytest

from gsched.model.resources import Chunk, Request, Share
from gschedd.plan.load import Basis, Kind, NodeLoad, Prediction, Predictor, Use
from gschedd.plan.snapshot import JobClass, Snapshot
from gschedd.plan.times import ENOUGH_RUNS, JobPredictions, planned_end_s, predicted_s
from tests.support.runs import kind, node
from tests.support.spaces import space

NOW_S = 1000.0


def said(
    high_s: float | None = 30.0, *, basis: Basis = Basis.KIND, records: int = ENOUGH_RUNS
) -> Prediction:
    return Prediction(
        use=Use(), high=Use(), basis=basis, wall_s=1.0, wall_high_s=high_s, records=records
    )


@pytest.mark.parametrize(
    ("predictions", "expected_s"),
    [
        ([said()], 30.0),
        ([said(20), said(50), said(30)], 50.0),
        ([said(0)], 0.0),
        ([], None),
        ([said(), None], None),
        ([said(None)], None),
        ([said(records=ENOUGH_RUNS - 1)], None),
        ([said(basis=Basis.PROGRAM)], None),
    ],
)
def test_a_time_is_predicted_by_enough_runs_of_the_kind_on_every_node(
    predictions: list[Prediction | None], expected_s: float | None
) -> None:
    """The high value of the slowest node, or nothing."""
    assert predicted_s(each.run_time if each else None for each in predictions) == expected_s


@pytest.mark.parametrize(
    ("expected_s", "walltime_s", "age_s", "planned_s"),
    [
        (None, None, 50, None),
        (None, 200.0, 50, 200),
        (None, 200.0, 300, 200),
        (80.0, None, 50, 80),
        (80.0, 200.0, 50, 80),
        (80.0, 60.0, 50, 60),
        (80.0, None, 80, 160),
        (80.0, None, 500, 1000),
        (80.0, 200.0, 90, 180),
        (80.0, 200.0, 150, 200),
        (80.0, None, -5, 80),
    ],
)
def test_what_outlives_its_time_is_taken_to_be_half_done(
    expected_s: float | None, walltime_s: float | None, age_s: float, planned_s: float | None
) -> None:
    """Up to its walltime; a clock that was turned back does no harm."""
    end_s = planned_end_s(
        started_s=100, expected_s=expected_s, walltime_s=walltime_s, now_s=100 + age_s
    )

    assert end_s == (None if planned_s is None else 100 + planned_s)


class Counting(Predictor):
    """A predictor that says the same of all, and how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def predict(self, kind: Kind, node: NodeLoad, now_s: float) -> Prediction:
        """Answer."""
        self.asked += 1
        return said(300)


def told_s(walltime_s: float | None, **changes: object) -> float | None:
    """Return the planned time of job 1 on a known node, with changes to the snapshot."""
    fields: dict[str, object] = {
        "now_s": NOW_S,
        "nodes": {"n1": space("n1")},
        "groups": (),
        "running": (),
        "loads": {"n1": node("n1")},
        "kinds": {1: kind()},
        "predictor": Counting(),
        **changes,
    }
    job_class = JobClass(queue="q", request=Request(chunks=(Chunk(),)), walltime_s=walltime_s)
    snapshot = Snapshot(**fields)  # type: ignore[arg-type] # its fields
    return JobPredictions(snapshot).run_time_s(1, job_class, (Share(node="n1", cpus=1),))


def test_the_predicted_time_counts_up_to_the_walltime() -> None:
    """And by itself where none was stated."""
    assert [told_s(wall) for wall in (None, 200.0, 400.0)] == [300, 200, 300]


@pytest.mark.parametrize(
    "changes",
    [
        {"predicted_times": False},
        {"predictor": None},
        {"kinds": {}},
        {"loads": {}},
    ],
)
def test_where_nothing_is_predicted_the_walltime_counts_or_what_the_site_assumes(
    changes: dict[str, object],
) -> None:
    """Nobody learns, the job is unknown, or its node has not reported."""
    assert told_s(400, **changes) == 400
    assert told_s(None, **changes) is None
    assert told_s(None, default_walltime_s=60.0, **changes) == 60
    assert told_s(400, default_walltime_s=60.0, **changes) == 400


def test_jobs_of_a_kind_are_predicted_once() -> None:
    """However many of them there are."""
    predictor = Counting()
    jobs = range(1, 6)
    snapshot = Snapshot(
        now_s=NOW_S,
        nodes={},
        groups=(),
        running=(),
        loads={name: node(name) for name in ("n1", "n2")},
        kinds=dict.fromkeys(jobs, kind()),
        predictor=predictor,
    )
    predictions = JobPredictions(snapshot)

    for job in jobs:
        for name in ("n1", "n2"):
            predictions.prediction(job, name)

    assert predictor.asked == 2

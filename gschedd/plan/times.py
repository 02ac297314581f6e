"""How long jobs are planned to run: as long as their kind did before, else up to their limits.

Users pad walltimes, so a planned time is the run time that nine in ten jobs of the kind did not
exceed, once enough of them were seen. It is a plan and no limit: no job is stopped for outliving
it, only for reaching its walltime.
"""

from collections.abc import Iterable
from typing import Final

from gsched.model.resources import Allocation
from gschedd.plan.load import Basis, Kind, PastRuns, PredictedTime, Prediction
from gschedd.plan.snapshot import JobClass, Snapshot

#: Runs of the very kind that a predicted run time must stand on, to count instead of the walltime.
ENOUGH_RUNS: Final = 5


def predicted_s(predictions: Iterable[PredictedTime | None]) -> float | None:
    """Return a run time that is seldom exceeded, if enough runs of the kind are known.

    Args:
        predictions: what was predicted for each of the job's nodes; the slowest one counts.

    Returns:
        Seconds; None if of any node nothing is known that could be relied upon.
    """
    longest_s: float | None = None
    for prediction in predictions:
        if (
            prediction is None
            or prediction.basis is not Basis.KIND
            or prediction.records < ENOUGH_RUNS
            or prediction.wall_high_s is None
        ):
            return None
        longest_s = max(longest_s or 0.0, prediction.wall_high_s)
    return longest_s


def planned_end_s(
    *,
    started_s: float,
    expected_s: float | None,
    walltime_s: float | None,
    now_s: float,
) -> float | None:
    """Return when a running job is planned to end, seconds since the epoch; None for never.

    One that has outlived what was expected is taken to be half done, again and again, until its
    walltime: the longer it has run, the longer it is likely to go on.

    Args:
        started_s: when it started, seconds since the epoch.
        expected_s: its run time as predicted, or as the site assumes it; None where neither is.
        walltime_s: its limit; None for none.
        now_s: seconds since the epoch.
    """
    if expected_s is None:
        return None if walltime_s is None else started_s + walltime_s
    age_s = max(now_s - started_s, 0.0)
    run_time_s = expected_s if age_s < expected_s else 2 * age_s
    return started_s + (run_time_s if walltime_s is None else min(run_time_s, walltime_s))


class JobPredictions:
    """What is predicted of jobs at one moment; the predictor is asked once for a kind and node."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._predictions: dict[tuple[Kind, str], Prediction] = {}
        self._run_times: dict[tuple[Kind, str], PredictedTime] = {}

    def prediction(self, job: int, node: str) -> Prediction | None:
        """Return what a job will cost on a node, if job and node are known and anything learns."""
        snapshot = self._snapshot
        predictor = snapshot.predictor
        if predictor is None:
            return None
        kind = snapshot.kinds.get(job)
        if kind is None:
            return None
        found = self._predictions.get((kind, node))
        if found is None:
            load = snapshot.loads.get(node)
            if load is None:
                return None
            found = self._predictions[kind, node] = predictor.predict(kind, load, snapshot.now_s)
        return found

    def _run_time(self, job: int, node: str) -> PredictedTime | None:
        """Return the same of the run time alone."""
        snapshot = self._snapshot
        predictor = snapshot.predictor
        if predictor is None:
            return None
        kind = snapshot.kinds.get(job)
        if kind is None:
            return None
        found = self._run_times.get((kind, node))
        if found is None:
            load = snapshot.loads.get(node)
            if load is None:
                return None
            found = self._run_times[kind, node] = predictor.run_time(kind, load, snapshot.now_s)
        return found

    def spread(self, job: int) -> float | None:
        """Return by how much run times of a job's kind are missed, as far as that is known."""
        kind, predictor = self._snapshot.kinds.get(job), self._snapshot.predictor
        return None if kind is None or predictor is None else predictor.spread(kind)

    def runs(self, job: int, node: str) -> PastRuns:
        """Return the past runs of a job's kind as they would have been on a node, if known."""
        kind, load = self._snapshot.kinds.get(job), self._snapshot.loads.get(node)
        predictor = self._snapshot.predictor
        if kind is None or load is None or predictor is None:
            return ()
        return predictor.runs(kind, load)

    def run_time_s(self, job: int, job_class: JobClass, allocation: Allocation) -> float | None:
        """Return how long a waiting job is planned to run there, seconds; None for no end."""
        walltime_s = job_class.walltime_s
        if self._snapshot.predicted_times:
            expected_s = predicted_s(self._run_time(job, share.node) for share in allocation)
            if expected_s is not None:
                return expected_s if walltime_s is None else min(expected_s, walltime_s)
        return self._snapshot.default_walltime_s if walltime_s is None else walltime_s

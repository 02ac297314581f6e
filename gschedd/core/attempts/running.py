"""Running jobs as policies see them, by their planned ends."""

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from itertools import islice

from gsched.model.states import AttemptState, JobState, PartState
from gschedd.core.state.records import Job
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State
from gschedd.core.state.transient import Ends
from gschedd.core.state.walltime import walltime_left_s
from gschedd.plan.load import Prediction, Use
from gschedd.plan.rests import may_rest
from gschedd.plan.snapshot import ByEnd, RunningJob, end_order
from gschedd.plan.times import planned_end_s, predicted_s


class PredictedUses(Mapping[str, Use]):
    """What a job was predicted to use, by node: few policies read it, so it is not copied."""

    __slots__ = ("_predictions",)

    def __init__(self, predictions: Mapping[str, Prediction]) -> None:
        self._predictions = predictions

    def __getitem__(self, node: str) -> Use:
        return self._predictions[node].use

    def __iter__(self) -> Iterator[str]:
        return iter(self._predictions)

    def __len__(self) -> int:
        return len(self._predictions)


class Running(ByEnd):
    """What runs, brought up to date when a policy first looks: most cycles have no need of it.

    What a job was predicted when it was assigned decides when it is planned to end; only those that
    have outlived that are planned anew.
    """

    def __init__(self, state: State, settings: Settings, now_s: float) -> None:
        self._state = state
        self._settings = settings
        self._now_s = now_s
        self._has_looked = False

    def _ends(self) -> Ends:
        ends = self._state.dirty.ends
        if not self._has_looked:  # once: jobs beyond their walltimes are planned to end by now
            self._has_looked = True
            for never, end_s, number in ends.order:
                if never or end_s > self._now_s:
                    break
                ends.moved.add(number)
        if ends.moved:
            replan(self._state, self._settings, self._now_s)
        return ends

    def __contains__(self, job: object) -> bool:
        return job in self._ends().known.values()

    def __iter__(self) -> Iterator[RunningJob]:
        ends = self._ends()
        order = ends.order.copy() if may_rest() else ends.order
        return (ends.known[number] for _, _, number in order)

    def __len__(self) -> int:
        return len(self._state.running)

    def on(self, node: str) -> list[RunningJob]:
        """Return the jobs that own something on a node, by id."""
        ends = self._ends()
        return [ends.known[number] for number in sorted(self._state.by_node.get(node, ()))]


def replan(state: State, settings: Settings, now_s: float, *, most: int | None = None) -> None:
    """Work out the planned ends of jobs that have begun, ended or changed; of so many at most."""
    ends = state.dirty.ends
    numbers = list(islice(ends.moved, most))
    for number in numbers:
        before = ends.known.pop(number, None)
        if before is not None:
            del ends.order[bisect_left(ends.order, end_order(before))]
        job = state.running.get(number)
        if job is not None:
            seen = ends.known[number] = _running(job, settings, now_s)
            insort(ends.order, end_order(seen))
    ends.moved.difference_update(numbers)


def _running(job: Job, settings: Settings, now_s: float) -> RunningJob:
    attempt = job.current_attempt
    started_s = attempt.started_s or attempt.assigned_s
    expected_s = None
    if settings.config.balance.predicted_times:
        parts = attempt.parts.values()
        expected_s = predicted_s(
            None if p.prediction is None else p.prediction.run_time
            for p in parts
            if p.state is not PartState.PASSIVE
        )
    if expected_s is None and job.spec.walltime_s is None:
        expected_s = settings.config.head.default_walltime_s or None
    left_s = walltime_left_s(job)
    return RunningJob(
        job=job.id,
        allocation=attempt.allocation,
        started_s=started_s,
        leaving=job.state is not JobState.RUNNING,
        reservation=attempt.reservation,
        starting=attempt.state in (AttemptState.ASSIGNED, AttemptState.STARTING),
        uses=PredictedUses(
            {
                name: part.prediction
                for name, part in attempt.parts.items()
                if part.prediction is not None
            }
        ),
        end_s=planned_end_s(
            started_s=started_s,
            expected_s=expected_s,
            walltime_s=left_s,
            now_s=now_s,
        ),
        limit_s=None if left_s is None else started_s + left_s,
    )

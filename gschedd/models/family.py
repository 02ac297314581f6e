"""The runs of jobs that are alike, and what has been learned about predicting them.

Several ways to predict compete: weighted medians under three half-lives, the median of all runs
that there ever were, and what wider families say. Each is scored on every run before that is added,
and the one that was off the least is believed, for each quantity by itself.

Every run of every job goes through here, five times: what need not be known at once is worked out
when it is.
"""

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from operator import mul
from typing import Final

from msgspec import Struct

from gschedd.models.measures import CPU, GPU, LOG_FLOORS, MEMORY, PLACES, WALL, Logs, Sample
from gschedd.models.medians import LongMedian
from gschedd.models.view import OWN_WAYS, WINDOW, PredictionTarget, SpeedsOf, View, gains

#: Moments remembered of what would have been said then; the older, the fewer.
MAX_MOMENTS: Final = 64
#: Wider families that may be believed instead, at most.
WIDER: Final = 4
#: Error that each way is taken to have before it was ever scored: own ones are believed first.
FIRST_ERRORS: Final = (0.3, 0.25, 0.26, 0.3) + (0.4,) * WIDER
#: By how much better than the median of all runs the others must be: it cannot be led astray.
HANDICAPS: Final = (1.25, 1.2, 1.15, 1.0) + (1.25,) * WIDER
#: The same of the own ways and of so many wider families.
HANDICAPS_WITH: Final = tuple([HANDICAPS[: OWN_WAYS + wider] for wider in range(WIDER + 1)])
#: Runs that this first belief is worth, and the share forgotten with each run later on.
FIRST_RUNS: Final = 3
FORGET: Final = 0.02
#: A family that is well known thinks anew after this many runs only: learning is to be cheap.
EVERY: Final = 4
#: Runs from which on a family is well known.
WELL_KNOWN: Final = 64
#: Of a well-known kind one run of so many is told to wider families: it hardly needs them, and
#: they hold the runs of others besides.
TELL_EVERY: Final = 4
#: An error beyond a factor of e says "wrong", whatever its size: one outlier decides nothing.
MAX_ERROR: Final = 1.0
#: Part of the run time expected to scale with a node's speed, before anything shows it.
PRIOR_BOUND: Final = 0.8
#: How much spread of speeds (sum of squared logarithms) outweighs that.
PRIOR_SPREAD: Final = 0.3
#: Runs remembered that stand for all runs of a kind: the more there were, the fewer of them.
MAX_KEPT_RUNS: Final = 64
#: By how much more the busy cores tell about it than the run time, which the input moves, too.
CPU_TELLS: Final = 4.0


class Moment:
    """What a family said from some time on, by each own way, of a job on a node of speed 0.

    Most moments are never looked back at, so what was said is worked out when one is.
    """

    __slots__ = ("_predicted", "_view", "at_s", "on_gpu", "requested")

    def __init__(self, sample: Sample, view: View) -> None:
        self.at_s = sample.ended_s
        self.requested = sample.requested
        self.on_gpu = sample.on_gpu
        self._view: View | None = view
        self._predicted: tuple[tuple[float, ...], ...] = ()

    @property
    def predicted_logs(self) -> tuple[tuple[float, ...], ...]:
        """Return each quantity by each own way."""
        if self._view is not None:
            anywhere = PredictionTarget(speed=0.0, requested=self.requested, on_gpu=self.on_gpu)
            self._predicted, self._view = self._view.by_all(anywhere), None
        return self._predicted


class Lesson(Struct, frozen=True, kw_only=True):
    """What a run taught a family.

    Attributes:
        own: what the family's own ways had predicted, the best of them for each quantity.
        missed: by how much what would have been said was off; None if the run scores nothing.
    """

    own: Logs | None
    missed: Logs | None


NOTHING: Final = Lesson(own=None, missed=None)


def _best_way(errors: Sequence[float], wider: int) -> int:
    ranks = list(map(mul, errors, HANDICAPS_WITH[wider]))
    return ranks.index(min(ranks))


class StillFamily(Struct, frozen=True, kw_only=True, eq=False):
    """What a `Family` knew at one moment: as it predicts then, and with nothing that learns.

    Attributes:
        runs: how many are looked at.
        seen: the family, with the runs that stand for all.
    """

    errors: tuple[tuple[float, ...], ...]
    misses: Sequence[Logs]
    runs: int
    seen: View

    def __len__(self) -> int:
        return self.runs

    def best_way(self, q: int, wider: int) -> int:
        """Return the same as `Family.best_way`."""
        return _best_way(self.errors[q], wider)

    def view(self, speeds_of: SpeedsOf, *, kept: bool = False) -> View:  # noqa: ARG002 -- as of a family
        """Return what the family was."""
        return self.seen


class Family:
    """The latest runs of jobs that are alike, and how well each way has predicted them.

    Args:
        uses_request: what was requested tells the sizes of jobs apart.
        wider: how many wider families there may be.
        places: the quantities that are learned; of all others nothing is ever said.

    Attributes:
        samples: the latest runs, oldest first.
        bound: part of the run time that scales with the node's speed: 1 for what computes all the
            time, 0 for what waits for a clock, a disk or a network.
        misses: by how much all quantities were missed lately, logarithms.
        kept: every so many-th of all runs of a kind, oldest first. The latest ones alone are long
            ones where a wide array has just begun, as its short elements have ended before.
    """

    __slots__ = (
        "_apart",
        "_best",
        "_cut",
        "_errors",
        "_ever",
        "_fading",
        "_in_order",
        "_live",
        "_moments",
        "_places",
        "_scored",
        "_seen",
        "_shown",
        "_times_s",
        "_wider",
        "bound",
        "kept",
        "misses",
        "samples",
        "uses_request",
    )

    def __init__(
        self,
        *,
        uses_request: bool = False,
        wider: int = WIDER,
        places: tuple[int, ...] = PLACES,
    ) -> None:
        self._places = places
        self.samples: deque[Sample] = deque(maxlen=WINDOW)
        self.bound = PRIOR_BOUND
        self.uses_request = uses_request
        self.misses: deque[Logs] = deque(maxlen=WINDOW)
        self._errors = [list(FIRST_ERRORS) for _ in PLACES]
        self._fading = [1.0 for _ in PLACES]  # by this all errors of a quantity are less than noted
        self._ever = tuple(LongMedian() for _ in PLACES)
        self._live = [q in {CPU, MEMORY, WALL} and q in places for q in PLACES]
        self._moments: list[Moment] = []
        self._times_s: list[float] = []  # of the moments
        self._in_order = True  # the later the moment, the later its time
        self._cut = 0  # samples that did not do all their work
        self._scored = 0
        self._seen = 0
        self._wider = wider
        self.kept: list[Sample] = []
        self._apart = 1  # runs from one of the kept ones to the next
        self._best: dict[tuple[int, int], int] = {}  # ways to believe, until the next run
        #: Samples and medians as views have them, until the next run.
        self._shown: tuple[tuple[Sample, ...], tuple[float | None, ...]] | None = None

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def tells_others(self) -> bool:
        """Return whether the next run of a kind is one that wider families learn of, too."""
        return self._seen < WELL_KNOWN or self._seen % TELL_EVERY == 0

    def best_way(self, q: int, wider: int) -> int:
        """Return which way to believe: below OWN_WAYS an own one, else a wider family's place."""
        best = self._best.get((q, wider))
        if best is None:
            best = self._best[q, wider] = _best_way(self._errors[q], wider)
        return best

    def still(self, speeds_of: SpeedsOf) -> StillFamily:
        """Return what the family knows now."""
        return StillFamily(
            errors=tuple(map(tuple, self._errors)),
            misses=tuple(self.misses),
            runs=len(self.samples),
            seen=self.view(speeds_of, kept=True).detach(speeds_of),
        )

    def view(
        self,
        speeds_of: SpeedsOf | None = None,
        speeds: Sequence[float] = (),
        *,
        kept: bool = False,
    ) -> View:
        """Return what the family is now.

        Args:
            speeds_of: gives the speeds of samples' nodes when they are needed, if they ever are.
            speeds: else the speeds, as they are now.
            kept: with the runs that stand for all.
        """
        if self._shown is None:
            pairs = zip(self._live, self._ever, strict=True)
            medians = tuple([ever.value() if live else None for live, ever in pairs])
            self._shown = tuple(self.samples), medians
        samples, ever = self._shown
        return View(
            samples=samples,
            bound=self.bound,
            ever=ever,
            uses_request=self.uses_request,
            all_whole=not self._cut,
            kept=tuple(self.kept) if kept else (),
            speeds_of=speeds_of,
            speeds=speeds,
        )

    def learn(
        self,
        sample: Sample,
        target: PredictionTarget,
        speeds_of: SpeedsOf,
        wider: Sequence[Logs] | None,
    ) -> Lesson:
        """Score what would have been predicted for a run, then add the run.

        Args:
            wider: what the own ways of wider families predict, the nearest family first; None if
                they are not asked.

        Returns:
            Nothing is scored for a run before which none had ended, nor for one cut short by a
            failure: nobody wants to predict that.
        """
        self._best.clear()
        self._shown = None
        gain = gains(self.bound, target)
        moment = self._moment(sample.started_s)
        lesson = NOTHING if moment is None else self._score(sample, target, gain, moment, wider)
        if lesson.missed is not None:
            self.misses.append(lesson.missed)
        self._add(sample, gain)
        if not self.uses_request and self._seen % self._apart == 0:
            self._keep(sample)
        if self._seen < WINDOW or self._seen % EVERY == 0:
            speeds = speeds_of(self.samples)
            self.bound = self._bound(speeds)
            self._note(Moment(sample, self.view(speeds=array("d", speeds))))
        self._seen += 1
        return lesson

    def _score(
        self,
        sample: Sample,
        target: PredictionTarget,
        gain: Logs,
        moment: Moment,
        wider: Sequence[Logs] | None,
    ) -> Lesson:
        """Return what would have been said of a run, and score each way by it."""
        step = max(FORGET, 1 / (self._scored + FIRST_RUNS + 1))
        whole, predicted_logs = sample.whole, moment.predicted_logs
        self._scored += whole
        own = [0.0] * len(PLACES)
        missed = [0.0] * len(PLACES)
        for q in self._places:
            log, shift = sample.logs[q], gain[q]
            if self.uses_request:
                requested, then_requested = target.requested[q], moment.requested[q]
                if requested is not None and then_requested is not None:
                    shift += requested - then_requested
            if not shift and self._is_nothing(q, log, wider):
                own[q] = log
                if whole:
                    self._fading[q] *= 1 - step
                continue
            predicted = [value + shift for value in predicted_logs[q]]
            for logs in wider or ():
                predicted.append(logs[q])  # noqa: PERF401 -- one or two: a comprehension costs more
            errors = self._errors[q]
            ranks = list(map(mul, errors[: len(predicted)], HANDICAPS))
            best = ranks.index(min(ranks))
            missed[q] = log - predicted[best]
            if best >= OWN_WAYS:
                best = ranks.index(min(ranks[:OWN_WAYS]))
            own[q] = predicted[best]
            if whole:
                self._take_errors(q, log, predicted, step)
        return Lesson(own=tuple(own), missed=tuple(missed) if whole else None)

    def _is_nothing(self, q: int, log: float, wider: Sequence[Logs] | None) -> bool:
        """Return whether a quantity was none, as it always was, and as all would have said.

        On a cluster without GPUs that is so for each of their quantities.
        """
        floor = LOG_FLOORS[q]
        if self._live[q] or log > floor:
            return False
        if wider is None:
            return True
        if len(wider) < self._wider:
            return False
        for logs in wider:  # noqa: SIM110 -- a plain loop, as it runs for every job
            if logs[q] != floor:
                return False
        return True

    def _take_errors(self, q: int, log: float, predicted: Sequence[float], step: float) -> None:
        errors = self._errors[q]
        if self._fading[q] != 1:
            errors = [error * self._fading[q] for error in errors]
            self._fading[q] = 1.0
        new = [
            error + step * ((miss if (miss := abs(log - value)) < MAX_ERROR else MAX_ERROR) - error)
            for error, value in zip(errors, predicted, strict=False)
        ]
        if len(new) < len(errors):
            new += errors[len(new) :]
        self._errors[q] = new

    def _add(self, sample: Sample, gain: Logs) -> None:
        samples, live = self.samples, self._live
        if len(samples) == WINDOW and not samples[0].whole:
            self._cut -= 1
        samples.append(sample)
        self._cut += not sample.whole
        counts = sample.whole or len(samples) == 1
        for q in self._places:
            log = sample.logs[q]
            if not live[q] and log > LOG_FLOORS[q]:
                live[q] = True
            if counts and live[q]:
                self._ever[q].add(log - gain[q])

    def _keep(self, sample: Sample) -> None:
        """Keep a run; when there are too many, every second is forgotten."""
        self.kept.append(sample)
        if len(self.kept) > MAX_KEPT_RUNS:
            self.kept = self.kept[::2]
            self._apart *= 2

    def _note(self, moment: Moment) -> None:
        """Add a moment; of the older ones every second is forgotten when they become too many."""
        moments, times_s = self._moments, self._times_s
        if times_s and moment.at_s < times_s[-1]:
            self._in_order = False  # clocks of nodes differ
        moments.append(moment)
        times_s.append(moment.at_s)
        if len(moments) > MAX_MOMENTS:
            half = MAX_MOMENTS // 2
            moments[:half], times_s[:half] = moments[:half:2], times_s[:half:2]
            self._in_order = times_s == sorted(times_s)

    def _moment(self, at_s: float) -> Moment | None:
        """Return what was said at some time.

        A run is scored by what could be said when it started: runs that ended beside it often
        began beside it, too, and would make the last value look better than it is.
        """
        if self._in_order:
            place = bisect_right(self._times_s, at_s)
            return self._moments[place - 1] if place else None
        for moment in reversed(self._moments):
            if moment.at_s <= at_s:
                return moment
        return None

    def _bound(self, speeds: Sequence[float]) -> float:
        """Return by how much run time and busy cores have followed the speeds: a regression."""
        samples: Sequence[Sample] = self.samples
        if self._cut:
            pairs = zip(samples, speeds, strict=True)
            whole = [(sample, speed) for sample, speed in pairs if sample.whole]
            samples, speeds = [sample for sample, _ in whole], [speed for _, speed in whole]
        count = len(samples)
        if count < 2:
            return self.bound
        mean = sum(speeds) / count
        off = [speed - mean for speed in speeds]
        spread = sum(map(mul, off, off))
        walls = [sample.logs[WALL] for sample in samples]
        busys = [sample.logs[GPU if sample.on_gpu else CPU] for sample in samples]
        mean_wall, mean_busy = sum(walls) / count, sum(busys) / count
        slope_wall = sum(map(mul, off, [wall - mean_wall for wall in walls]))
        slope_busy = sum(map(mul, off, [busy - mean_busy for busy in busys]))
        evidence = -slope_wall + CPU_TELLS * (spread + slope_busy)
        total = (1 + CPU_TELLS) * spread
        bound = (evidence + PRIOR_SPREAD * PRIOR_BOUND) / (total + PRIOR_SPREAD)
        return float(min(max(bound, 0.0), 1.0))

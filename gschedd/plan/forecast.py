"""Forecasts of jobs: when they start and end, and whether they meet their deadlines."""

from msgspec import Struct


class RunTimeEvidence(Struct, frozen=True, kw_only=True):
    """On what the run times of those jobs stand that run or are ahead.

    Attributes:
        counted: how many these are.
        learned: of so many enough runs of their kind are known.
        blended: of so many only some are, or runs of other jobs: walltimes count as well.
        runs: past runs of the kinds of the learned ones.
        other_runs: past runs for the blended ones, at most.
    """

    counted: int = 0
    learned: int = 0
    blended: int = 0
    runs: int = 0
    other_runs: int = 0


class StartInterval(Struct, frozen=True, kw_only=True):
    """When a job starts over all scenarios, seconds since the epoch.

    Attributes:
        expected_s: the median; None: it starts in fewer than half of them while they are played.
        early_s, late_s: the 10th and the 90th percentile; None for late: it is beyond what was
            played.
        not_before_s: where a percentile is unknown: it is later than this.
        scenarios: how many were played.
        known: on what the run times of the jobs that matter stand.
    """

    early_s: float
    expected_s: float | None = None
    late_s: float | None = None
    not_before_s: float | None = None
    scenarios: int = 0
    known: RunTimeEvidence = RunTimeEvidence()


class Forecast(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is expected of one job: by a policy, or by the queue played forward.

    Attributes:
        job: 0 where it is known from the context, or was not submitted.
        start_s: by when it starts if all jobs run as planned, seconds since the epoch; None:
            unknown.
        interval: of its start, over scenarios; None: it was not requested, or is unknown.
        not_before_s: it starts later than this, where that is all that is known.
        start_unknown: in words, why the start is unknown.
        end_s: when it ends, seconds since the epoch; None: unknown.
        meets: it will meet its deadline; None: unknown, or it has none.
        gpus: on how many GPUs at first; 0: unknown.
        firm: the policy stays with that, so it may be kept as a guarantee; else it is only expected
            so far.
        can_guarantee: the policy would keep the deadline if it were guaranteed now, although it
            does not guarantee it by itself.
        why: in words, why it will be late, or why nothing can be predicted.
        lacks_room: it is late, as something else than GPUs keeps it from starting in time.
        unsure_until_s: until then it is unknown whether it will be in time, although nothing may
            count on it (``meets`` is False); after that it cannot be. None: it is known.
    """

    job: int = 0
    start_s: float | None = None
    interval: StartInterval | None = None
    not_before_s: float | None = None
    start_unknown: str = ""
    end_s: float | None = None
    meets: bool | None = None
    gpus: int = 0
    firm: bool = True
    can_guarantee: bool = False
    why: str = ""
    lacks_room: bool = False
    unsure_until_s: float | None = None

"""Schema of predicted starts, and of what is ahead of a job, in `gsched.protocol.api`."""

from msgspec import Struct


class StartRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When a job that waits is predicted to start; moments are seconds since the epoch.

    The queue is played forward in ``scenarios`` scenarios, in which jobs run as long as jobs like
    them did. New jobs are not expected.

    Attributes:
        expected_s: the median of the starts; None: unknown.
        early_s, late_s: four in five starts lie between them; None for late: it is unknown.
        not_before_s: it starts later than this, where that is all that is known.
        planned_s: by when it starts if every job runs as long as is planned for it: its limit, or
            what nine in ten jobs of its kind do not exceed.
        unknown: why nothing better can be said, in words.
        counted: jobs that run or are ahead, elements of arrays included.
        learned: of so many of them run times are learned: enough jobs of their kind have finished.
        blended: of so many only some jobs of their kind have finished, or other jobs: their
            walltimes count as well. Of the others only walltimes are known.
        runs: past runs from which run times are learned.
        other_runs: past runs that count beside walltimes.
    """

    expected_s: float | None = None
    early_s: float | None = None
    late_s: float | None = None
    not_before_s: float | None = None
    planned_s: float | None = None
    unknown: str = ""
    scenarios: int = 0
    counted: int = 0
    learned: int = 0
    blended: int = 0
    runs: int = 0
    other_runs: int = 0


class AheadRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job that is ahead of another one in its queue."""

    id: int
    name: str
    user: str
    cpus: int
    gpus: int = 0
    places: int = 1
    priority: int = 0
    walltime_s: float | None = None


class AheadRows(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The jobs that are ahead of one in its queue: the first of them, and what all request."""

    jobs: int
    cpus: int
    gpus: int = 0
    first: tuple[AheadRow, ...] = ()

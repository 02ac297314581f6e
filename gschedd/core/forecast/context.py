"""What is known beside a snapshot of its jobs: how long they run, and which ones come later."""

from collections.abc import Mapping, Sequence
from itertools import chain

import msgspec
from msgspec import Struct, structs

from gschedd.core.forecast.runtimes import RunTime, RunTimeQuery, run_times
from gschedd.core.forecast.unmade import UnmadeElements
from gschedd.plan.load import Kind
from gschedd.plan.snapshot import JobClass, OrderKey, Snapshot


class Arrival(Struct, frozen=True, kw_only=True):
    """A job that is not in the queue yet.

    Attributes:
        at_s: it comes no earlier, seconds since the epoch.
        ends, starts: jobs that must have ended, or started, before.
    """

    job: int
    job_class: JobClass
    key: OrderKey
    at_s: float = 0.0
    ends: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()


class QueueContext(Struct, frozen=True, kw_only=True):
    """What is known beside a snapshot of the jobs in it.

    Attributes:
        queries: from which the run times of running jobs are worked out, encoded in pieces.
        kinds: of which these are.
        runs: how long running jobs run, by job: what comes of ``queries``.
        classes: of running jobs, as far as some of the same class wait, by job.
        coming: jobs that are not in the queue yet, in its order.
        unmade: elements of arrays that are no jobs yet.
        arrays: those that are not over.
        ends_s: when reservations end running jobs at the latest, by job.
    """

    queries: tuple[bytes, ...] = ()
    kinds: tuple[Kind, ...] = ()
    runs: Mapping[int, RunTime] = {}
    classes: Mapping[int, JobClass] = {}
    coming: tuple[Arrival, ...] = ()
    unmade: tuple[UnmadeElements, ...] = ()
    arrays: frozenset[int] = frozenset()
    ends_s: Mapping[int, float] = {}

    def with_runs(self, seen: Snapshot) -> "QueueContext":
        """Return the same with the run times of running jobs."""
        queries = chain.from_iterable(map(_queries, self.queries))
        return structs.replace(self, runs=run_times(queries, self.kinds, seen), queries=())


_encode = msgspec.msgpack.Encoder().encode
_queries = msgspec.msgpack.Decoder(list[RunTimeQuery]).decode


def encoded(queries: Sequence[RunTimeQuery]) -> bytes:
    """Return some queries of a `QueueContext`: 10,000 of them are 0.4 MB and 2 ms."""
    return _encode(queries)

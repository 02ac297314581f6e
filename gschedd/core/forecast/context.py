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
        queries: from which the run times of running jobs are worked out, in pieces (`encoded`).
        runs: how long running jobs run, by job: what comes of ``queries``.
        classes: of running jobs, as far as some of the same class wait, by job.
        coming: jobs that are not in the queue yet, in its order.
        unmade: elements of arrays that are no jobs yet.
        arrays: those that are not over.
        ends_s: when reservations end running jobs at the latest, by job.
    """

    queries: tuple[bytes, ...] = ()
    runs: Mapping[int, RunTime] = {}
    classes: Mapping[int, JobClass] = {}
    coming: tuple[Arrival, ...] = ()
    unmade: tuple[UnmadeElements, ...] = ()
    arrays: frozenset[int] = frozenset()
    ends_s: Mapping[int, float] = {}

    def with_runs(self, seen: Snapshot) -> "QueueContext":
        """Return the same with the run times of running jobs."""
        pieces = [_decode(piece) for piece in self.queries]
        queries = chain.from_iterable(queries for queries, _ in pieces)
        kinds = list(chain.from_iterable(kinds for _, kinds in pieces))
        return structs.replace(self, runs=run_times(queries, kinds, seen), queries=())


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[list[RunTimeQuery], list[Kind]]).decode


def encoded(queries: Sequence[RunTimeQuery], kinds: Sequence[Kind]) -> bytes:
    """Return a piece of the queries of a `QueueContext`, with the kinds that are new in it.

    Pickled as they are, 10,000 queries would take 60 ms at once.
    """
    return _encode((queries, kinds))

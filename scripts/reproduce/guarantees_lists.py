"""Generated lists of training jobs with deadlines: the distributions of ElasticFlow's traces.

Arrivals come in bursts, as in the traces: pieces of their sequences of intervals, each over the
mean of its trace. The requested number of GPUs and the run time on it are those of one job of the
traces, the model and its batch those of another, and the deadline is 0.5 to 1.5 run times after the
arrival, as the traces have it. Equal seeds give equal lists.
"""

import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from msgspec import Struct, structs

from gsched.errors import UsageError
from gschedd.models.runtime_table import TableSpeed
from scripts.reproduce.elasticflow_traces import Row, Tables, asked_load, read_trace

#: So many intervals in a row are taken from a trace, so that bursts stay bursts.
PIECE: Final = 40
#: Deadlines are so many run times after the arrival, at least and at most.
SLACK: Final = (0.5, 1.5)


class Pool(Struct, frozen=True, kw_only=True):
    """What lists are drawn from.

    Attributes:
        traces: rows of each trace, by submission.
        rows: of all traces whose run time is above 0.
    """

    traces: tuple[Sequence[Row], ...]
    rows: tuple[Row, ...]


def pool_of(paths: Sequence[Path]) -> Pool:
    """Return the traces of some files.

    Raises:
        UsageError: there is none with two jobs at different times, or a file is no trace.
    """
    traces = [read_trace(path) for path in sorted(paths)]
    traces = [rows for rows in traces if rows and rows[0].submit_s < rows[-1].submit_s]
    rows = tuple(row for trace in traces for row in trace if row.duration_s > 0)
    if not rows:
        raise UsageError("no traces to draw lists from", hint="--traces DIR, with ElasticFlow's")
    return Pool(traces=tuple(traces), rows=rows)


def draw(pool: Pool, tables: Tables, *, seed: int, jobs: int, gpus: int, load: float) -> list[Row]:
    """Return a list of training jobs.

    Args:
        pool: that it is drawn from.
        tables: throughputs of all models of the pool.
        seed: equal seeds give equal lists.
        jobs: how many.
        gpus: of the cluster; no job requests more.
        load: GPU time that users request, over that of the cluster while jobs arrive.
    """
    arrivals, sizes, models, slacks = (random.Random(f"{seed} {name}") for name in "asml")
    rows: list[Row] = []
    submit_s = 0.0
    gaps = _gaps(pool, arrivals, jobs)
    for gap in gaps:
        submit_s += gap
        size = sizes.choice(pool.rows)
        kind = models.choice(pool.rows)
        asked = min(size.asked, gpus)
        rates = tables[kind.model, kind.batch]
        asked = max(count for count, _ in rates if count <= asked)
        rows.append(
            Row(
                submit_s=submit_s,
                iterations=size.duration_s * TableSpeed(rates=rates).at(asked),
                deadline_s=size.duration_s * slacks.uniform(*SLACK),
                model=kind.model,
                batch=kind.batch,
                asked=asked,
                duration_s=size.duration_s,
            )
        )
    stretch = asked_load(rows, gpus) / load
    return [
        structs.replace(
            row, submit_s=row.submit_s * stretch, deadline_s=row.submit_s * stretch + row.deadline_s
        )
        for row in rows
    ]


def _gaps(pool: Pool, chance: random.Random, count: int) -> list[float]:
    """Return so many intervals between arrivals, 1 on average over a whole trace."""
    gaps: list[float] = []
    while len(gaps) < count:
        trace = chance.choice(pool.traces)
        first = chance.randrange(max(1, len(trace) - PIECE))
        mean_s = (trace[-1].submit_s - trace[0].submit_s) / (len(trace) - 1)
        piece = trace[first : first + PIECE + 1]
        gaps += [(later.submit_s - row.submit_s) / mean_s for row, later in pairwise(piece)]
    return gaps[:count]

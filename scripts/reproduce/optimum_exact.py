"""The most deadlines that could be met: exactly, on small cases, by HiGHS.

The optimum knows every training before it arrives. It may stop, resize and move any of them at any
moment at no cost, to any number of GPUs that it may have, and each number is always as close
together as it can be. No policy may do more, so none meets more deadlines; most of what it may do
no policy can, as none knows the future and moves cost something.

Between two neighbouring moments at which a training arrives or must be done, any order of
configurations (how many GPUs each training has) is as good as any other. So it is enough to choose
how long each lasts: a linear programme, with one whole number for each training: is it in time?
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from msgspec import Struct

#: Sets of training jobs that are looked at by one solver; more need too many configurations.
MOST_JOBS = 6


class Task(Struct, frozen=True, kw_only=True):
    """A training as the optimum sees it.

    Attributes:
        arrives_s, deadline_s: between them it must be done.
        work: in the unit of the rates; above 0.
        rates: work a second on 0, 1, 2, ... GPUs; 0 where it cannot run on that number.
    """

    arrives_s: float
    deadline_s: float
    work: float
    rates: tuple[float, ...]


def most_in_time(tasks: Sequence[Task], gpus: int) -> int:
    """Return how many training jobs could be in time on so many GPUs.

    Raises:
        ValueError: there are too many training jobs for it.
        RuntimeError: the solver found no optimum.
    """
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    if len(tasks) > MOST_JOBS:
        raise ValueError(f"{len(tasks)} training jobs are more than {MOST_JOBS}")
    moments_s = sorted({each for task in tasks for each in (task.arrives_s, task.deadline_s)})
    spans = list(pairwise(moments_s))
    columns: list[tuple[int, tuple[int, ...]]] = []
    for index, (start_s, _) in enumerate(spans):
        open_now = [task.arrives_s <= start_s < task.deadline_s for task in tasks]
        columns += [(index, each) for each in configurations(tasks, open_now, gpus)]
    count, whole = len(tasks), len(columns)
    rows, places, values = [], [], []
    for column, (index, configuration) in enumerate(columns):
        for job, taken in enumerate(configuration):
            if taken:
                rows.append(job)
                places.append(column)
                values.append(tasks[job].rates[taken] / tasks[job].work)
        rows.append(count + index)
        places.append(column)
        values.append(1.0)
    for job in range(count):  # what is in time has all of its work done
        rows.append(job)
        places.append(whole + job)
        values.append(-1.0)
    shape = (count + len(spans), whole + count)
    matrix = csr_array((values, (rows, places)), shape=shape)
    low = np.concatenate([np.zeros(count), np.full(len(spans), -np.inf)])
    high = np.concatenate([np.full(count, np.inf), [stop_s - start_s for start_s, stop_s in spans]])
    found = milp(
        c=np.concatenate([np.zeros(whole), -np.ones(count)]),
        constraints=LinearConstraint(matrix, low, high),
        integrality=np.concatenate([np.zeros(whole), np.ones(count)]),
        bounds=Bounds(0, np.concatenate([np.full(whole, np.inf), np.ones(count)])),
    )
    if not found.success:
        raise RuntimeError(f"no optimum: {found.message}")
    return round(-found.fun)


def configurations(
    tasks: Sequence[Task], open_now: Sequence[bool], gpus: int
) -> Iterator[tuple[int, ...]]:
    """Yield how many GPUs each training may have at once, in every way that can be of use.

    Only numbers that are faster than all smaller ones are of use.
    """
    choices = [
        useful(task.rates) if may else (0,) for task, may in zip(tasks, open_now, strict=True)
    ]

    def extend(chosen: tuple[int, ...], left: int) -> Iterator[tuple[int, ...]]:
        if len(chosen) == len(choices):
            yield chosen
            return
        for taken in choices[len(chosen)]:
            if taken <= left:
                yield from extend((*chosen, taken), left - taken)

    for each in extend((), gpus):
        if any(each):
            yield each


def useful(rates: Sequence[float]) -> tuple[int, ...]:
    """Return 0 and the numbers of GPUs that are faster than all smaller ones."""
    found, fastest = [0], 0.0
    for gpus, rate in enumerate(rates):
        if rate > fastest:
            found.append(gpus)
            fastest = rate
    return tuple(found)

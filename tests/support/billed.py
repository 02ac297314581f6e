"""What users have to be billed, counted from the facts alone, attempt by attempt."""

from collections.abc import Iterable
from typing import NamedTuple

from gsched.model.arrays import indices
from gsched.model.ids import element_number
from gsched.model.job import JobSpec
from gsched.model.resources import Allocation, percent_held
from gschedd.core.state import facts as f
from gschedd.shares.ledger import LedgerRow

Bill = tuple[float, float, int]
Bills = dict[tuple[str, str], Bill]


class _Run(NamedTuple):
    """An attempt that has not ended."""

    allocation: Allocation
    attempt: int
    assigned_s: float
    started_s: float | None = None


def bills_of(facts: Iterable[f.AnyFact]) -> Bills:
    """Return CPU-seconds, GPU-seconds and attempts by account and user, of ended attempts."""
    count = _Count()
    for fact in facts:
        count.take(fact)
    return count.bills


def walls_of(facts: Iterable[f.AnyFact]) -> dict[tuple[int, int], float]:
    """Return for how long each attempt that has started and ended is billed, seconds."""
    count = _Count()
    for fact in facts:
        count.take(fact)
    return count.walls


class _Count:
    """The attempts that have not ended, and the bills and times of those that have."""

    def __init__(self) -> None:
        self.walls: dict[tuple[int, int], float] = {}
        self.specs: dict[int, JobSpec] = {}
        self.runs: dict[int, _Run] = {}
        self.bills: Bills = {}

    def take(self, fact: f.AnyFact) -> None:
        match fact:
            case f.JobSubmitted() | f.JobAltered():
                self.specs[fact.job] = fact.spec
            case f.ElementsMade():
                made = (element_number(fact.job, index) for index in indices(fact.elements))
                self.specs.update(dict.fromkeys(made, self.specs[fact.job]))
            case f.AttemptAssigned():
                self.runs[fact.job] = _Run(fact.allocation, fact.attempt, fact.at_s)
            case f.AttemptRecovered():
                self._replace(fact)
            case f.PartStarted():
                self._start(fact, fact.started_s)
            case f.PartEnded():
                self._start(fact, fact.record.started_s)
            case f.AttemptEnded():
                self._end(fact.job, fact.ended_s)
            case _:
                pass

    def _replace(self, fact: f.AttemptRecovered) -> None:
        older = self.runs.get(fact.job)
        if older is not None:
            began_s = older.started_s or older.assigned_s
            self._end(fact.job, min(fact.at_s, max(fact.assigned_s, began_s)))
        first_s = min(fact.started_s.values(), default=None)
        self.runs[fact.job] = _Run(fact.allocation, fact.attempt, fact.assigned_s, first_s)

    def _start(self, fact: f.PartStarted | f.PartEnded, started_s: float) -> None:
        run = self.runs[fact.job]
        if run.started_s is None and started_s:
            bounded_s = min(max(started_s, run.assigned_s), fact.at_s)
            self.runs[fact.job] = run._replace(started_s=bounded_s)

    def _end(self, job: int, ended_s: float) -> None:
        run = self.runs.pop(job)
        if run.started_s is None:
            return
        wall_s = max(0.0, ended_s - run.started_s)
        self.walls[job, run.attempt] = wall_s
        whose = (self.specs[job].account, self.specs[job].owner.user)
        cpu_s, gpu_s, attempts = self.bills.get(whose, (0.0, 0.0, 0))
        self.bills[whose] = (
            cpu_s + wall_s * sum(share.cpus for share in run.allocation),
            gpu_s + wall_s * percent_held(run.allocation) / 100,
            attempts + 1,
        )


def wrong_bills(rows: Iterable[LedgerRow], facts: Iterable[f.AnyFact]) -> list[str]:
    """Return where the ledger has not billed what attempts have held, to the microsecond."""
    wanted = bills_of(facts)
    found = {
        (row.project, row.user): (row.cpu_s, sum(row.gpu_s.values()), row.attempts) for row in rows
    }
    return [
        f"{whose}: billed {found.get(whose)}, held {wanted.get(whose)}"
        for whose in sorted(found.keys() | wanted.keys())
        if not _is_close(found.get(whose), wanted.get(whose))
    ]


def _is_close(one: Bill | None, other: Bill | None) -> bool:
    if one is None or other is None:
        return False
    pairs = zip(one, other, strict=True)
    return all(abs(left - right) <= 1e-6 + 1e-12 * right for left, right in pairs)

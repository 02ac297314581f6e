"""What the jobs themselves wrote, held against what the head recorded.

Jobs append lines to one file with O_APPEND, so neither a daemon's death nor a lost message can
change what it says. `verdict` compares it with the head's database, whose facts are also applied
again from the first one on: what cannot have followed is found there.
"""

import os
import sqlite3
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from gsched.errors import InvalidTransitionError
from gsched.model.states import JobState, OutcomeKind
from gschedd.core.apply.jobs import apply
from gschedd.core.state import facts as f
from gschedd.core.state.state import State
from gschedd.shares.ledger import LedgerRow
from gschedd.store import rows
from gschedd.store.reader import Reader
from tests.support.billed import wrong_bills
from tests.support.usage import wrong_reports


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of the judge's file: ``start`` or ``end`` of an attempt's part.

    Attributes:
        at_s: when, by the kernel's clock, which begins with the boot.
    """

    what: str
    job: int
    attempt: int
    node: str
    at_s: float


class Judge:
    """The file that jobs write, and the gates at which they can be made to wait."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "judge"
        self._directory = directory
        self.path.touch()

    def script(self, body: str = "", *, code: int | str = 0) -> str:
        """Return a job's script that writes ``start``, runs ``body`` and writes ``end``."""

        def note(what: str) -> str:
            fields = "$GSCHED_JOB_NUMBER $GSCHED_ATTEMPT $GSCHED_NODE"
            return f'read up _ < /proc/uptime; echo "{what} {fields} $up" >> "{self.path}"'

        return f"#!/bin/sh\n{note('start')}\n{body}\n{note('end')}\nexit {code}\n"

    def gate(self, name: str = "gate") -> str:
        """Return a line for a script that waits, without using the CPU, for `open_gate`."""
        path = self._directory / name
        if not path.exists():
            os.mkfifo(path)
        return f'read _ < "{path}"'

    def open_gate(self, name: str = "gate") -> bool:
        """Let those go on that wait now; call it again until all have. Always true."""
        try:
            os.close(os.open(self._directory / name, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:  # ENXIO: nobody waits
            return True
        return True

    def lines(self) -> list[Line]:
        """Return all lines that were written so far."""
        found = []
        for text in self.path.read_text(encoding="ascii").splitlines():
            what, job, attempt, node, up = text.split()
            found.append(
                Line(what=what, job=int(job), attempt=int(attempt), node=node, at_s=float(up))
            )
        return found

    def count(self, what: str, job: int) -> int:
        """Return how often a job has written ``start`` or ``end``, over all attempts and nodes."""
        return sum(line.what == what and line.job == job for line in self.lines())


#: What makes an attempt: an assignment, or a node that knew it when the database did not.
ATTEMPTS = (f.AttemptAssigned, f.AttemptRecovered)


def facts_of(database: Path) -> list[f.AnyFact]:
    """Return every fact of a head's database."""
    reader = Reader(str(database))
    try:
        return reader.all_facts()
    finally:
        reader.close()


def verdict(
    judge: Judge, database: Path, acknowledged: Iterable[int], *, attempts_max: int | None = None
) -> list[str]:
    """Return all that is wrong, in words; nothing if every guarantee was kept.

    Args:
        judge: what the jobs wrote.
        database: of the head, all of whose jobs should be over.
        acknowledged: ids that a submitter was told.
        attempts_max: how many attempts a job may have had; None: any number.
    """
    facts = facts_of(database)
    acknowledged = list(acknowledged)
    submitted = Counter(fact.job for fact in facts if isinstance(fact, f.JobSubmitted))
    problems = [f"job {job} acknowledged twice" for job in _twice(acknowledged)]
    problems += [f"job {job} lost" for job in sorted(set(acknowledged) - set(submitted))]
    problems += [f"job {job} submitted {n} times" for job, n in submitted.items() if n != 1]
    problems += _replay(facts)
    problems += _outcomes(facts, submitted)
    problems += _rows(database, submitted)
    problems += wrong_bills(_usage(database), facts)
    problems += wrong_reports(_usage(database), database)
    problems += _lines(judge, facts)
    if attempts_max is not None:
        counts = Counter(fact.job for fact in facts if isinstance(fact, f.AttemptAssigned))
        problems += [f"job {job} had {n} attempts" for job, n in counts.items() if n > attempts_max]
    return problems


def _twice(ids: Iterable[int]) -> list[int]:
    return [job for job, count in Counter(ids).items() if count > 1]


def _replay(facts: list[f.AnyFact]) -> list[str]:
    """Apply everything again: a fact that cannot follow, or a job or GPU left over, is a fault."""
    state = State({"batch": 0})
    for number, fact in enumerate(facts, 1):
        try:
            apply(state, fact)
        except (InvalidTransitionError, AssertionError, KeyError) as error:
            return [f"fact {number} cannot follow: {fact}: {error!r}"]
    return [f"job {job.id} is not over but {job.state}" for job in state.jobs.values()]


def _outcomes(facts: list[f.AnyFact], submitted: Iterable[int]) -> list[str]:
    ends = Counter(fact.job for fact in facts if isinstance(fact, f.JobEnded))
    problems = [f"job {job} has {ends[job]} outcomes" for job in submitted if ends[job] != 1]
    assigned = Counter(_key(fact) for fact in facts if isinstance(fact, ATTEMPTS))
    over = Counter(_key(fact) for fact in facts if isinstance(fact, f.AttemptEnded))
    problems += [f"attempt {key} assigned {n} times" for key, n in assigned.items() if n != 1]
    problems += [f"attempt {key} has {over[key]} outcomes" for key in assigned if over[key] != 1]
    parts = Counter((*_key(fact), fact.node) for fact in facts if isinstance(fact, f.PartEnded))
    problems += [f"part {key} ended {n} times" for key, n in parts.items() if n != 1]
    return problems


def _key(fact: f.AttemptFact) -> tuple[int, int]:
    return fact.job, fact.attempt


def _rows(database: Path, submitted: Iterable[int]) -> list[str]:
    """Compare the tables with the facts, and look at what must be empty once all is over."""
    reader = Reader(str(database))
    try:
        jobs = {job.id: job for job in reader.jobs(sorted(submitted))}
    finally:
        reader.close()
    problems = [f"job {job} has no row" for job in submitted if job not in jobs]
    problems += [
        f"the row of job {job.id} says {job.state}, outcome {job.outcome}"
        for job in jobs.values()
        if job.state is not JobState.DONE or job.outcome is None
    ]
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        owned = connection.execute("SELECT node, gpu, job FROM gpu_owners").fetchall()
    connection.close()
    return problems + [
        f"GPU {gpu} of {node} is still owned by job {job}" for node, gpu, job in owned
    ]


def _usage(database: Path) -> list[LedgerRow]:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return [rows.read_usage(row) for row in connection.execute(rows.SELECT_USAGE)]


def _lines(judge: Judge, facts: list[f.AnyFact]) -> list[str]:
    """Compare what the jobs wrote: no part ran twice, and what succeeded ran to its end."""
    written = Counter((line.what, line.job, line.attempt, line.node) for line in judge.lines())
    problems = [f"{key} written {count} times" for key, count in written.items() if count > 1]
    active = {_key(fact): fact.active for fact in facts if isinstance(fact, ATTEMPTS)}
    problems += [
        f"{key} was never assigned"
        for key in written
        if key[3] not in active.get((key[1], key[2]), ())
    ]
    for fact in facts:
        if not isinstance(fact, f.AttemptEnded) or fact.outcome.kind is not OutcomeKind.EXITED:
            continue
        problems += [
            f"{what} {_key(fact)} on {node} is missing, outcome {fact.outcome.exit_code}"
            for node in active[_key(fact)]
            for what in ("start", "end")
            if not written[what, fact.job, fact.attempt, node]
        ]
    return problems

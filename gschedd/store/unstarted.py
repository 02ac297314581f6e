"""Elements of arrays that were cancelled before they started: ranges of them, each as one entry.

Most have never been jobs, and the event that dropped them is all that is stored of them. Some had
become jobs and waited for their first start: they have rows. Users see no difference.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Final, cast

from msgspec import Struct

from gsched.model.arrays import Span, Spans, common, compressed, count, indices, merged, without
from gsched.model.ids import ELEMENT_BASE, INDICES, array_of, element_number, index_of
from gschedd.core.state import facts as f
from gschedd.core.state.elements import dropped_element, element_spec
from gschedd.core.state.records import Job
from gschedd.store import rows
from gschedd.store.seals import Damaged, DamagedRowError, SqlValue

#: Of rows of elements; the index ``unstarted_elements`` has the same words.
_CANCELLED: Final = (
    f"jobs.outcome = 'cancelled' AND jobs.attempts = 0 AND jobs.id >= {ELEMENT_BASE}"
)
#: What selects all other jobs.
STARTED: Final = f" AND NOT ({_CANCELLED})"
#: Elements of one array that were cancelled at one moment and request the same, newest first. Those
#: that were altered by themselves do not.
_GROUPS: Final = (
    f"SELECT group_concat(jobs.id % {INDICES}), min(jobs.id), jobs.ended_s, specs.spec "  # noqa: S608 # constants
    "FROM jobs INDEXED BY unstarted_elements LEFT JOIN specs ON specs.job = jobs.id "
    f"{{where}} AND {_CANCELLED} "
    f"GROUP BY (jobs.id - {ELEMENT_BASE}) / {INDICES}, jobs.ended_s, specs.spec "
    "ORDER BY jobs.ended_s DESC LIMIT ?"
)
_DROPPED: Final = rows.SELECT_EVENTS + "WHERE kind = 'ElementsDropped' AND "


#: When elements were cancelled, of which array, and what they request, as it is stored.
_Key = tuple[float, int, bytes]


class Unstarted(Struct, frozen=True, kw_only=True):
    """Elements of an array that were cancelled together before any of them started.

    Attributes:
        job: the first of them.
        elements: all of them.
    """

    job: Job
    elements: Spans

    @property
    def count(self) -> int:
        """Return how many elements there are."""
        return count(self.elements)


class Dropped(Struct, frozen=True, kw_only=True):
    """Elements that were never jobs, by an event; ``elements``: those of them that are wanted."""

    fact: f.ElementsDropped
    elements: Spans


def dropped_between(
    db: sqlite3.Connection, since_s: float | None, until_s: float | None, where: str,
    values: Sequence[SqlValue], named: Sequence[tuple[int, int]] | None,
) -> Iterator[Dropped]:  # fmt: skip
    """Yield the elements that were dropped in a span of time, newest first.

    Args:
        where, values: a condition for the row of their array.
        named: first and last numbers of the elements that are wanted; None: all.
    """
    terms = [f"EXISTS (SELECT 1 FROM jobs WHERE jobs.id = events.job{where})"]  # noqa: S608 # bound
    given = [*values]
    if since_s is not None:
        terms.append("events.at_s >= ?")
        given.append(since_s)
    if until_s is not None:
        terms.append("events.at_s < ?")
        given.append(until_s)
    wanted: dict[int, Spans] = {}
    for first, last in named or ():
        before = wanted.get(array_of(first), ())  # each index once, however often it is named
        span = Span(index_of(first), index_of(last))
        wanted[array_of(first)] = (*before, *without((span,), before))
    if named is not None:
        terms.append(f"events.job IN ({', '.join('?' * len(wanted))})")
        given.extend(wanted)
    query = f"{_DROPPED}{' AND '.join(terms)} ORDER BY events.at_s DESC, events.seq DESC"
    for row in db.execute(query, given):
        try:
            fact = cast("f.ElementsDropped", rows.read_event(row))
        except DamagedRowError:
            continue  # the array is still there, and says how many of its elements are gone
        spans = fact.elements if named is None else common(fact.elements, wanted[fact.job])
        if spans:
            yield Dropped(fact=fact, elements=spans)


class Ranges:
    """Puts together what was cancelled at one moment: rows of elements, and what was dropped.

    Args:
        db: the database.
        read: reads the job of a row of `rows.SELECT_JOBS`.
        damaged: takes what cannot be read.
    """

    def __init__(
        self, db: sqlite3.Connection, read: Callable[[rows.Row], Job], damaged: list[Damaged]
    ) -> None:
        self._db = db
        self._read = read
        self._damaged = damaged

    def newest(
        self, where: str, values: Sequence[SqlValue], dropped: Sequence[Dropped], most: int
    ) -> list[Unstarted]:
        """Return the newest ranges, newest first.

        Args:
            where, values: a condition for the rows of elements.
            dropped: elements that were never jobs, newest first.
        """
        spans: dict[_Key, Spans] = {}
        facts: dict[_Key, tuple[Job, f.ElementsDropped]] = {}
        rows_found = self._db.execute(_GROUPS.format(where=where), (*values, most))
        for listed, first, ended_s, spec in rows_found:
            single = (Span(index, index) for index in map(int, listed.split(",")))
            spans[(ended_s, array_of(first), spec or b"")] = _joined(tuple(single))
        arrays = {each.fact.job: self._job(each.fact.job) for each in dropped[:most]}
        for each in dropped[:most]:
            array = arrays[each.fact.job]
            if array is not None:
                spec = rows.spec_blob(element_spec(array.spec))
                key = (each.fact.at_s, array.id, spec)
                facts[key] = (array, each.fact)
                spans[key] = _joined((*spans.get(key, ()), *each.elements))
        newest = sorted(spans, reverse=True)[:most]
        found = (self._range(key, spans[key], facts.get(key)) for key in newest)
        return [each for each in found if each is not None]

    def _range(
        self, key: _Key, spans: Spans, dropped: tuple[Job, f.ElementsDropped] | None
    ) -> Unstarted | None:
        first = min(span.first for span in spans)
        if dropped is not None:
            array, fact = dropped
            return Unstarted(job=dropped_element(array, first, fact), elements=spans)
        job = self._job(element_number(key[1], first))
        return None if job is None else Unstarted(job=job, elements=spans)

    def _job(self, number: int) -> Job | None:
        row = self._db.execute(rows.SELECT_JOBS + "WHERE jobs.id = ?", (number,)).fetchone()
        try:
            return None if row is None else self._read(row)
        except DamagedRowError as error:
            self._damaged.append(error.damaged)
            return None


def _joined(spans: Spans) -> Spans:
    """Return the same indices in ascending order, in few spans."""
    runs = merged((), spans)
    if len(runs) == 1:
        return runs
    return min(runs, compressed(sorted(indices(spans))), key=len)

"""Indices of the elements of an array, kept as spans: 100,000 elements take as much as ten."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct

from gsched.errors import InvalidRequestError
from gsched.model.ids import INDICES
from gsched.model.limits import MAX_ARRAY_SPANS, shown
from gsched.model.numbers import Count
from gsched.model.patterns import pattern

_TERM = pattern(r"(?P<first>[0-9]{1,18})(?:-(?P<last>[0-9]{1,18})(?::(?P<step>[0-9]{1,9}))?)?")
_EXAMPLES: Final = "write 0-99, 1,10,50-100, 0-99:2, or 0-99%5 for at most 5 at once"


class Span(Struct, frozen=True, array_like=True):
    """The indices ``first``, ``first + step``, ... up to ``last``, which is one of them."""

    first: Count
    last: Count
    step: Count = 1

    def __len__(self) -> int:
        """Return how many indices there are."""
        return (self.last - self.first) // self.step + 1

    def __contains__(self, index: object) -> bool:
        """Return whether an index is one of them."""
        if not isinstance(index, int) or not self.first <= index <= self.last:
            return False
        return (index - self.first) % self.step == 0

    def indices(self) -> range:
        """Return the indices."""
        return range(self.first, self.last + 1, self.step)


Spans = tuple[Span, ...]


class Array(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The elements of an array as its user stated them.

    Attributes:
        at_once: so many elements may be unfinished jobs at once; 0: any number.
    """

    spans: Spans
    at_once: Count = 0

    def __str__(self) -> str:
        """Return ``0-99:2%5``."""
        return format_spans(self.spans) + (f"%{self.at_once}" if self.at_once else "")


def read_array(text: str, *, most: int) -> Array:
    """Return what ``0-99``, ``1,10,50-100``, ``0-99:2`` or ``0-99%5`` says.

    Args:
        text: as users write it.
        most: elements that an array may have.

    Raises:
        InvalidRequestError: it says nothing, too much, something twice, or something impossible.
    """
    listed, percent, limit = text.partition("%")
    at_once = 0
    if percent:
        if not limit.isascii() or not limit.isdecimal() or not int(limit[:9]) > 0 or limit[9:]:
            raise InvalidRequestError(
                f"array {shown(text)}: %{limit[:9]} is not a number of elements at once, at "
                "least 1",
                hint=_EXAMPLES,
            )
        at_once = int(limit)
    spans = read_spans(listed)
    total = count(spans)
    if total > most:
        raise InvalidRequestError(
            f"array {shown(text)} has {total} elements, and {most} are the limit here",
            hint="submit several arrays, or ask for a higher head.max_array_elements",
        )
    twice = _stated_twice(spans)
    if twice is not None:
        raise InvalidRequestError(
            f"array {shown(text)} has the index {twice} twice", hint="state each index once"
        )
    return Array(spans=spans, at_once=at_once)


def read_spans(text: str) -> Spans:
    """Return the spans of ``1,10,50-100:2``, in the order in which they are written.

    Raises:
        InvalidRequestError: one is empty, reversed or beyond the highest index; or too many.
    """
    terms = text.split(",")
    if len(terms) > MAX_ARRAY_SPANS:
        raise InvalidRequestError(
            f"{len(terms)} ranges of indices; the limit is {MAX_ARRAY_SPANS}",
            hint="write adjacent indices as one range: 1-3 for 1,2,3",
        )
    return tuple(_read_span(term, text) for term in terms)


def _read_span(term: str, text: str) -> Span:
    match = _TERM.fullmatch(term) if term.isascii() else None
    if match is None:
        what = f"invalid range of indices {shown(term)}" if term else "a range of indices is empty"
        raise InvalidRequestError(f"array {shown(text)}: {what}", hint=_EXAMPLES)
    first = int(match["first"])
    last = first if match["last"] is None else int(match["last"])
    step = 1 if match["step"] is None else int(match["step"])
    if last < first:
        raise InvalidRequestError(
            f"array {shown(text)}: the range {term} is reversed", hint=f"write {last}-{first}"
        )
    if not step:
        raise InvalidRequestError(
            f"array {shown(text)}: the step of {term} is 0", hint="give a step of at least 1"
        )
    if last >= INDICES:
        raise InvalidRequestError(
            f"array {shown(text)}: index {last} is beyond the highest one, {INDICES - 1}",
            hint="number the elements from 0 or 1 on",
        )
    return _span(first, last, step)


def _span(first: int, last: int, step: int) -> Span:
    """Return a span whose last index is one of it; one of a single index has the step 1."""
    last = first + (last - first) // step * step
    return Span(first, last, step if last > first else 1)


def _stated_twice(spans: Spans) -> int | None:
    """Return an index that is in two of the spans; None: there is none."""
    ordered = sorted(spans, key=lambda span: span.first)
    if all(a.last < b.first for a, b in itertools.pairwise(ordered)):
        return None
    seen: set[int] = set()
    for span in spans:
        common = seen.intersection(span.indices())
        if common:
            return min(common)
        seen.update(span.indices())
    return None


def count(spans: Spans) -> int:
    """Return how many indices there are."""
    return sum(map(len, spans))


def place_of(spans: Spans, index: int) -> int | None:
    """Return how many indices come before an index; None: there is no such index."""
    before = 0
    for span in spans:
        if index in span:
            return before + (index - span.first) // span.step
        before += len(span)
    return None


def index_at(spans: Spans, place: int) -> int | None:
    """Return the index that so many come before; None: there are not so many."""
    for span in spans:
        if place < len(span):
            return span.first + place * span.step
        place -= len(span)
    return None


def holds(spans: Spans, index: int) -> bool:
    """Return whether an index is one of them."""
    return any(index in span for span in spans)


def indices(spans: Spans) -> Iterator[int]:
    """Yield the indices, span by span."""
    for span in spans:
        yield from span.indices()


def take(spans: Spans, most: int) -> tuple[Spans, Spans]:
    """Return the first indices, at most so many, and all that follow."""
    taken: list[Span] = []
    for at, span in enumerate(spans):
        if most <= 0:
            return tuple(taken), spans[at:]
        if len(span) <= most:
            taken.append(span)
            most -= len(span)
            continue
        middle = span.first + most * span.step
        taken.append(_span(span.first, middle - 1, span.step))
        return tuple(taken), (_span(middle, span.last, span.step), *spans[at + 1 :])
    return tuple(taken), ()


def without(spans: Spans, others: Spans) -> Spans:
    """Return the indices that are not in the others, in the same order."""
    left = spans
    for other in others:
        left = tuple(part for span in left for part in _cut(span, other))
    return left


def common(spans: Spans, others: Spans) -> Spans:
    """Return the indices that are in both, in the order of the first."""
    found: list[Span] = []
    for span in spans:
        for other in others:
            found.extend(_both(span, other))
    return tuple(found)


def merged(spans: Spans, others: Spans) -> Spans:
    """Return the indices of both, which have none in common, in ascending order."""
    ordered = sorted((*spans, *others), key=lambda span: span.first)
    if any(a.last >= b.first for a, b in itertools.pairwise(ordered)):
        return compressed(sorted((*indices(spans), *indices(others))))
    found: list[Span] = []
    for span in ordered:
        before = found[-1] if found else None
        if before is not None and before.step == span.step == 1 and before.last + 1 == span.first:
            found[-1] = Span(before.first, span.last)
        else:
            found.append(span)
    return tuple(found)


def compressed(ascending: Iterable[int]) -> Spans:
    """Return spans of indices that are given in ascending order."""
    found: list[Span] = []
    for index in ascending:
        if found:
            last = found[-1]
            if len(last) == 1:
                found[-1] = Span(last.first, index, index - last.first)
                continue
            if len(last) > 1 and index - last.last == last.step:
                found[-1] = Span(last.first, index, last.step)
                continue
        found.append(Span(index, index))
    return tuple(found)


def shortest(ascending: Iterable[int]) -> Spans:
    """Return spans of indices that are given in ascending order, as few words as possible.

    Of ``3,7-9`` no step is read out, of ``1-99:2`` it is.
    """
    singles = tuple(Span(index, index) for index in ascending)
    plain, stepped = merged((), singles), compressed(span.first for span in singles)
    if len(plain) > MAX_ARRAY_SPANS:
        return stepped
    return min(plain, stepped, key=lambda spans: len(format_spans(spans)))


def format_spans(spans: Spans) -> str:
    """Return ``0-9,20,30-40:2``."""
    return ",".join(
        str(span.first)
        if len(span) == 1
        else f"{span.first}-{span.last}" + (f":{span.step}" if span.step > 1 else "")
        for span in spans
    )


def _both(span: Span, other: Span) -> Spans:
    """Return the indices that two spans have in common."""
    low, high = max(span.first, other.first), min(span.last, other.last)
    if low > high:
        return ()
    if other.step == 1:
        first = span.first + -(-(low - span.first) // span.step) * span.step
        return (_span(first, high, span.step),) if first <= high else ()
    if span.step == 1:
        first = other.first + -(-(low - other.first) // other.step) * other.step
        return (_span(first, high, other.step),) if first <= high else ()
    return compressed(index for index in span.indices() if index in other)


def _cut(span: Span, other: Span) -> Spans:
    """Return the indices of a span that are not in another one."""
    both = _both(span, other)
    if not both:
        return (span,)
    if len(both) > 1 or (len(both[0]) > 1 and both[0].step != span.step):
        return compressed(index for index in span.indices() if index not in other)
    gone = both[0]
    parts: list[Span] = []
    if gone.first > span.first:
        parts.append(_span(span.first, gone.first - 1, span.step))
    if gone.last < span.last:
        parts.append(_span(gone.last + span.step, span.last, span.step))
    return tuple(parts)

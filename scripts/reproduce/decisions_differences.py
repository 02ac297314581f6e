"""What differs between two records of one part: where, the old value, the new one, by how much."""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
from msgspec import Struct

#: Characters of a value in the table; whole values stand in the records.
MAX_SHOWN: Final = 60
#: Of them, those before the place where two texts begin to differ.
BEFORE: Final = 20
#: Stands for what one of the two lacks.
MISSING: Final = "(none)"


class Difference(Struct, frozen=True, kw_only=True):
    """One value that is not the same.

    Attributes:
        case: of the part.
        field: the way to it in what the case came to; empty: all of it.
        old, new: as JSON, shortened; `MISSING` where there is none.
        by: the new number minus the old one; empty where they are no numbers.
    """

    case: str
    field: str
    old: str
    new: str
    by: str = ""


def differences(old: Mapping[str, object], new: Mapping[str, object]) -> list[Difference]:
    """Return all that differs between two runs of a part, case by case.

    Both are as JSON gives them.
    """
    return [
        difference
        for case in dict.fromkeys((*old, *new))
        for difference in _compared(case, "", old.get(case, _ABSENT), new.get(case, _ABSENT))
    ]


class _Absent:
    """What is not there; None is a value."""


_ABSENT: Final = _Absent()


def _compared(case: str, way: str, old: object, new: object) -> Iterator[Difference]:
    """Yield what differs between two values; 1 and 1.0 do, as programs may tell them apart."""
    if type(old) is type(new) and old == new and _encoded(old) == _encoded(new):
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for name in dict.fromkeys((*old, *new)):
            inner = f"{way}.{name}" if way else str(name)
            yield from _compared(case, inner, old.get(name, _ABSENT), new.get(name, _ABSENT))
    elif isinstance(old, list) and isinstance(new, list):
        for place in range(max(len(old), len(new))):
            before = old[place] if place < len(old) else _ABSENT
            after = new[place] if place < len(new) else _ABSENT
            yield from _compared(case, f"{way}[{place}]", before, after)
    elif isinstance(old, str) and isinstance(new, str):
        yield from _compared_texts(case, way, old, new)
    else:
        by = f"{new - old:+g}" if _is_number(old) and _is_number(new) else ""  # type: ignore[operator]  # both are numbers
        yield Difference(case=case, field=way, old=_shown(old), new=_shown(new), by=by)


def _compared_texts(case: str, way: str, old: str, new: str) -> Iterator[Difference]:
    """Yield what differs between two texts: if both are documents in JSON, between those."""
    documents = _documents(old), _documents(new)
    inner = list(_compared(case, way, *documents)) if documents[0] and documents[1] else []
    if inner:
        yield from inner
        return
    pairs = enumerate(zip(old, new, strict=False))
    alike = next((at for at, (one, other) in pairs if one != other), min(len(old), len(new)))
    begin = max(0, alike - BEFORE)
    yield Difference(case=case, field=way, old=_shown(old[begin:]), new=_shown(new[begin:]))


def _documents(text: str) -> list[object]:
    """Return the documents of a text with one in each line; nothing if it is something else."""
    try:
        return [msgspec.json.decode(line) for line in text.splitlines()]
    except msgspec.DecodeError:
        return []


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _encoded(value: object) -> bytes:
    """Return a value as JSON, whatever the order of its fields."""
    return b"" if value is _ABSENT else msgspec.json.encode(value, order="deterministic")


def _shown(value: object) -> str:
    if value is _ABSENT:
        return MISSING
    text = _encoded(value).decode()
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."

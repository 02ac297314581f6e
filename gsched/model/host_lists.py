"""Lists of nodes in Slurm's short form, ``n[1-3,7],x``. Pure."""

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Final

from gsched.errors import UsageError
from gsched.model.patterns import pattern

HOSTS_MOST: Final = 65_536  # that one list may name
_NAME: Final = pattern(r"(.*?)([0-9]{1,18})", re.DOTALL)
_ITEM: Final = pattern(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_BRACKETS: Final = pattern(r"\[([^\]]*)\]")
_RANGE: Final = pattern(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", re.ASCII)


def compact(names: Iterable[str]) -> str:
    """Return names in their order: neighbours that differ in their last number are joined.

    ``n1 n2 n3 n7 x`` is ``n[1-3,7],x``, and ``n2 n1`` is ``n[2,1]``: a program that reads the list
    gets the nodes in the order of their ranks.
    """
    groups: list[tuple[str, list[list[str]]]] = []
    for name in names:
        match = _NAME.fullmatch(name)
        if match is None:
            groups.append((name, []))
            continue
        prefix, digits = match.groups()
        if not groups or groups[-1][0] != prefix or not groups[-1][1]:
            groups.append((prefix, []))
        ranges = groups[-1][1]
        if ranges and digits == _next(ranges[-1][-1]):
            ranges[-1][1:] = [digits]
        else:
            ranges.append([digits])
    return ",".join(_written(prefix, ranges) for prefix, ranges in groups)


def _next(digits: str) -> str:
    """Return the number behind another one, as wide: ``10`` behind ``09`` and behind ``9``."""
    return f"{int(digits) + 1:0{len(digits)}d}"


def _written(prefix: str, ranges: Sequence[Sequence[str]]) -> str:
    parts = ",".join("-".join(each) for each in ranges)
    return f"{prefix}[{parts}]" if len(ranges) > 1 or "-" in parts else f"{prefix}{parts}"


def in_order(names: Iterable[str]) -> list[str]:
    """Return names without repetitions, in the order of their prefixes and numbers."""
    return sorted(set(names), key=natural_key)


def natural_key(name: str) -> tuple[str, int, int]:
    """Return the key of a name's order: ``n2`` is before ``n10``."""
    match = _NAME.fullmatch(name)
    return (match[1], int(match[2]), len(match[2])) if match else (name, -1, 0)


def expanded(text: str, *, option: str) -> tuple[str, ...]:
    """Return the names in ``n1,n[2-4,07],r[1-2]n[1-2]``.

    Args:
        text: the list.
        option: which has it as its value, for messages.

    Raises:
        UsageError: brackets or a range that cannot be read, or too many names.
    """
    found: list[str] = []
    for item in _items(text, option):
        parts = [
            [piece] if at % 2 == 0 else _numbers(piece, item, option)
            for at, piece in enumerate(_BRACKETS.split(item))
        ]
        names = itertools.islice(itertools.product(*parts), HOSTS_MOST + 1)
        found += ["".join(each) for each in names]
        if len(found) > HOSTS_MOST:
            raise UsageError(f"{option}: {item!r} names too many nodes")
    return tuple(found)


def _items(text: str, option: str) -> list[str]:
    items = _ITEM.findall(text)
    if sum(map(len, items)) + text.count(",") - sum(each.count(",") for each in items) != len(text):
        raise UsageError(f"{option}: invalid list of nodes {text!r}", hint="write n1 or n[1-3,7]")
    return items


def _numbers(text: str, item: str, option: str) -> list[str]:
    found: list[str] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if match is None or last < first:
            raise UsageError(f"{option}: invalid range {item!r}")
        if last - first >= HOSTS_MOST:
            raise UsageError(f"{option}: {item!r} names too many nodes")
        found += [f"{number:0{len(match[1])}d}" for number in range(first, last + 1)]
    return found

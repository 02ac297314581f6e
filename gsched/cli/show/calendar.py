"""A calendar of reservations and maintenance: a timeline for each day, a line for each node."""

import time
from collections.abc import Iterator, Sequence
from itertools import pairwise, takewhile
from typing import Final, NamedTuple

from gsched.cli.common import printable
from gsched.cli.show.reservations import for_words
from gsched.model.host_lists import compact, natural_key
from gsched.model.reservation import Reservation
from gsched.protocol.node_rows import NodeRow
from gsched.protocol.reservations import ReservationRow

_DAY_HOURS: Final = 24
_LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
MAINTENANCE: Final = "#"
FREE: Final = "."
#: The longest name of a node that is not cut.
_NAME_MOST: Final = 16
#: Windows of a recurring reservation that are looked at.
_WINDOWS_MOST: Final = 1000


class _Bar(NamedTuple):
    """A time in which a node is not for everybody."""

    node: str
    from_s: float
    to_s: float
    mark: str


def calendar_lines(
    rows: Sequence[ReservationRow],
    nodes: Sequence[NodeRow],
    *,
    now_s: float,
    days: int,
    width: int,
) -> Iterator[str]:
    """Yield the lines of a calendar, from today on.

    A capital letter stands for a reservation of the whole node, a small one for one of a part.

    Args:
        rows: the reservations.
        nodes: of the cluster.
        days: how many.
        width: of a line, in characters.
    """
    begin_s = [_midnight_s(now_s, day) for day in range(days + 1)]
    marks = {
        row.reservation.name: _LETTERS[number % len(_LETTERS)] for number, row in enumerate(rows)
    }
    bars = [bar for row in rows for bar in _bars(row.reservation, marks, begin_s[-1])]
    bars += [
        _Bar(node.name, window.from_s, window.to_s, MAINTENANCE)
        for node in nodes
        for window in node.windows
    ]
    names = max((len(bar.node) for bar in bars), default=0)
    name_width = min(max(names, 4), _NAME_MOST)
    each = max(1, (width - name_width - 2) // _DAY_HOURS)
    idle: list[str] = []
    for from_s, to_s in pairwise(begin_s):
        today = [bar for bar in bars if bar.from_s < to_s and from_s < bar.to_s]
        title = time.strftime("%a %Y-%m-%d", time.localtime(from_s))
        if not today:
            idle.append(title)
            continue
        yield from _idle_lines(idle)
        yield title
        scale = "".join(f"{hour:<{each}}" for hour in _hours(each))
        yield (" " * (name_width + 2) + scale).rstrip()
        for node in sorted({bar.node for bar in today}, key=natural_key):
            line = _line([bar for bar in today if bar.node == node], from_s, to_s, each)
            yield printable(f"{node[:name_width]:<{name_width}}  {line}")
        yield ""
    yield from _idle_lines(idle)
    yield from _legend(rows, marks, width=width, has_maintenance=any(n.windows for n in nodes))


def _hours(each: int) -> list[str]:
    """Return the hours above the cells of a day, as many as fit."""
    step = 1 if each > 2 else 2 if each > 1 else 3
    return [str(hour) if hour % step == 0 else "" for hour in range(_DAY_HOURS)]


def _bars(kept: Reservation, marks: dict[str, str], until_s: float) -> Iterator[_Bar]:
    windows = takewhile(lambda window: window.from_s < until_s, kept.windows())
    for _, window in zip(range(_WINDOWS_MOST), windows, strict=False):
        for share in kept.shares:
            mark = marks[kept.name] if share.exclusive else marks[kept.name].lower()
            yield _Bar(share.node, window.from_s, window.to_s, mark)


def _line(bars: Sequence[_Bar], from_s: float, to_s: float, each: int) -> str:
    """Return the cells of a node on one day: each has the mark of what takes some of its time."""
    cells = _DAY_HOURS * each
    cell_s = (to_s - from_s) / cells
    line = ""
    for cell in range(cells):
        cell_from_s = from_s + cell * cell_s
        found = [
            bar.mark
            for bar in bars
            if bar.from_s < cell_from_s + cell_s - 1 and cell_from_s + 1 < bar.to_s
        ]
        line += found[-1] if found else FREE
    return line


def _idle_lines(idle: list[str]) -> Iterator[str]:
    """Yield one line for days on which everything is for everybody, and forget them."""
    if idle:
        yield f"{idle[0]}  nothing" if len(idle) == 1 else f"{idle[0]} to {idle[-1]}  nothing"
        yield ""
        idle.clear()


def _legend(
    rows: Sequence[ReservationRow], marks: dict[str, str], *, width: int, has_maintenance: bool
) -> Iterator[str]:
    for row in rows:
        kept = row.reservation
        whole = all(share.exclusive for share in kept.shares)
        mark = marks[kept.name] if whole else marks[kept.name].lower()
        times = f"{_clock(kept.from_s)} to {_clock(kept.to_s)}"
        recurs = f", {kept.recur.value}" if kept.recur else ""
        nodes = compact([share.node for share in kept.shares])
        text = f"{mark}  {kept.name}  {times}{recurs}  {nodes}  {for_words(kept)}"
        yield printable(text if len(text) <= width else text[: width - 1] + "…")
    if has_maintenance:
        yield f"{MAINTENANCE}  maintenance: gnodes maintenance lists it"
    if not rows and not has_maintenance:
        yield "no reservations"


def _clock(at_s: float) -> str:
    return time.strftime("%m-%d %H:%M", time.localtime(at_s))


def _midnight_s(now_s: float, day: int) -> float:
    there = time.localtime(now_s)
    return time.mktime((there.tm_year, there.tm_mon, there.tm_mday + day, 0, 0, 0, 0, 0, -1))

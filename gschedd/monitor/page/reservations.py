"""Reservations: a calendar of their windows and of maintenance, and a list of all."""

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile
from typing import Final

from aiohttp import web
from msgspec import Struct, structs

from gsched.cli.show.reservations import COLUMNS, for_words, held_words, reservation_cells
from gsched.cli.times import format_moment
from gsched.errors import HeadUnreachableError
from gsched.model.host_lists import compact
from gsched.model.reservation import Window
from gsched.model.wording import counted
from gsched.protocol.node_rows import NodeRow
from gsched.protocol.reservations import ReservationRow, ReservationsReply
from gschedd.monitor.model import ReadModel
from gschedd.monitor.page.nodes import FRESH_S, NodePages, away, old_words, windows_of
from gschedd.monitor.page.shown import AWAY_S, PAGE_ROWS, VIEWERS_MOST, page_number
from gschedd.monitor.page.site import Pages
from gschedd.monitor.viewers import Viewer

#: Days of the calendar, from today on, and the width of each in its drawing.
DAYS: Final = 14
DAY_WIDTH: Final = 100
#: The shortest bar that can be seen.
_BAR_LEAST: Final = 6.0
_SATURDAY: Final = 5
#: Windows that the words of a line name.
_NAMED: Final = 3


class Bar(Struct, frozen=True, kw_only=True):
    """A window in the drawing: where it begins, how long it is, whether it is now, and words."""

    left: float
    width: float
    is_now: bool
    words: str


class CalendarLine(Struct, frozen=True, kw_only=True):
    """A line of the calendar.

    Attributes:
        name: of the reservation; empty: maintenance of nodes.
        holds: which nodes or GPUs.
        users: who may use it.
        words: the same as the bars, for who does not see them.
    """

    name: str
    holds: str
    users: str
    bars: list[Bar]
    words: str


class Calendar(Struct, frozen=True, kw_only=True):
    """What a template draws: days, where now is, and the lines."""

    days: list[tuple[str, str]]
    weekends: list[int]
    now: float
    lines: list[CalendarLine]


class ReservationPage:
    """The page of reservations."""

    def __init__(self, site: Pages, model: ReadModel, nodes: NodePages) -> None:
        self._site = site
        self._model = model
        self._nodes = nodes
        self._kept: dict[int, tuple[float, ReservationsReply]] = {}

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [self._site.shows("/reservations", self.show)]

    async def show(self, request: web.Request, viewer: Viewer) -> web.StreamResponse:
        """``GET /reservations``."""
        reply = await self._reservations(viewer)
        nodes = await self._nodes.listed(viewer)
        number = page_number(request)
        rows = reply.rows[PAGE_ROWS * (number - 1) :][:PAGE_ROWS]
        return self._site.page(
            "reservations.html",
            viewer,
            title="Reservations",
            here="/reservations",
            calendar=calendar(rows, nodes.nodes, now_s=reply.now_s),
            columns=COLUMNS,
            lines=[
                list(zip(COLUMNS, reservation_cells(row, reply.now_s), strict=True)) for row in rows
            ],
            total=len(reply.rows),
            number=number,
            page_count=-(-len(reply.rows) // PAGE_ROWS),
            warning=nodes.warning or reply.warning,
        )

    async def _reservations(self, viewer: Viewer) -> ReservationsReply:
        """Return the reservations that a viewer may see; where the head is away those of before.

        Raises:
            HeadUnreachableError: the head does not answer, and the viewer has not seen them before.
        """
        now_s = self._model.clock.monotonic_s()
        kept_s, kept = self._kept.get(viewer.uid, (0.0, None))
        if kept is not None and now_s - kept_s < FRESH_S:
            return kept
        try:
            async with asyncio.timeout(AWAY_S):
                found = await self._model.head.get(
                    "/v1/reservations", ReservationsReply, viewer=viewer
                )
        except (HeadUnreachableError, TimeoutError):
            if kept is None:
                raise away(self._model) from None
            return structs.replace(kept, warning=old_words(now_s - kept_s))
        if len(self._kept) >= VIEWERS_MOST:
            self._kept.clear()
        self._kept[viewer.uid] = (now_s, found)
        return found


def calendar(rows: Sequence[ReservationRow], nodes: Sequence[NodeRow], *, now_s: float) -> Calendar:
    """Return the calendar of the next days, in the server's local time."""
    begins = [_midnight_s(now_s, day) for day in range(DAYS + 1)]

    def line(name: str, holds: str, users: str, windows: Iterable[Window]) -> CalendarLine:
        seen = [each for each in windows if each.to_s > begins[0] and each.from_s < begins[-1]]
        return CalendarLine(
            name=name,
            holds=holds,
            users=users,
            bars=[_bar(each, begins, now_s) for each in seen],
            words=_words(seen),
        )

    lines = [
        line(kept.name, held_words(kept), for_words(kept), _until(kept.windows(), begins[-1]))
        for kept in (row.reservation for row in rows)
    ]
    lines += [
        line(
            "",
            f"{counted(len(names), 'node')}: {compact(names)}",
            window.reason,
            [Window(window.from_s, window.to_s)],
        )
        for window, names in windows_of(nodes)
    ]
    days = [time.localtime(begin_s) for begin_s in begins[:-1]]
    return Calendar(
        days=[(time.strftime("%a", day), time.strftime("%b %-d", day)) for day in days],
        weekends=[at for at, day in enumerate(days) if day.tm_wday >= _SATURDAY],
        now=round(_place(now_s, begins), 1),
        lines=[line for line in lines if line.bars],
    )


def _until(windows: Iterator[Window], end_s: float) -> list[Window]:
    """Return the windows that begin before a moment; one that recurs has one a day at most."""
    return list(islice(takewhile(lambda window: window.from_s < end_s, windows), DAYS + 2))


def _bar(window: Window, begins: Sequence[float], now_s: float) -> Bar:
    left = _place(window.from_s, begins)
    return Bar(
        left=round(left, 1),
        width=round(max(_place(window.to_s, begins) - left, _BAR_LEAST), 1),
        is_now=window.from_s <= now_s < window.to_s,
        words=_words([window]),
    )


def _words(windows: Sequence[Window]) -> str:
    words = [
        f"{format_moment(each.from_s)} to {format_moment(each.to_s)}" for each in windows[:_NAMED]
    ]
    if len(windows) > _NAMED:
        words.append(f"and {len(windows) - _NAMED} more")
    return ", ".join(words)


def _place(at_s: float, begins: Sequence[float]) -> float:
    """Return where a moment is in the drawing: days are equally wide, also those of 23 hours."""
    at_s = min(max(at_s, begins[0]), begins[-1])
    day = max(at for at in range(DAYS) if begins[at] <= at_s)
    return DAY_WIDTH * (day + (at_s - begins[day]) / (begins[day + 1] - begins[day]))


def _midnight_s(now_s: float, day: int) -> float:
    there = time.localtime(now_s)
    return time.mktime((there.tm_year, there.tm_mon, there.tm_mday + day, 0, 0, 0, 0, 0, -1))

"""Charts as SVG, drawn by the server: lines over time with gaps, a scale, and words."""

import time
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

WIDTH: Final = 440
HEIGHT: Final = 120
#: Space at the left for the texts of the scale: at least, for each letter, and between text and
#: line. Space for times below, and on both sides of the middle of each.
LEFT_LEAST: Final = 52
LETTER: Final = 7
AIR: Final = 4
BOTTOM: Final = 20
HALF_TIME: Final = 21
TOP: Final = 8
#: Points of a line at most: means of the samples in between.
POINTS_MOST: Final = 180
#: Samples may come so many periods after each other; a longer time is a gap.
GAP_PERIODS: Final = 2.5
_STEPS_S: Final = (60, 300, 900, 1800, 3600, 3 * 3600, 6 * 3600, 86400, 2 * 86400, 7 * 86400)

_SCALE: Final = (0.0, 0.5, 1.0)

Point = tuple[float, float]


class Chart(Struct, frozen=True, kw_only=True):
    """A chart that a template draws.

    Attributes:
        title: what is shown.
        words: the same as the line, for who does not see it.
        lines: points of each unbroken piece, as SVG has them.
        areas: the same, closed along the bottom.
        limit: where the line of what was requested is; None: there is none.
        left: where the lines begin.
        scale: heights and texts of the scale; ``times``: places and texts below.
    """

    title: str
    words: str
    lines: list[str]
    areas: list[str]
    limit: float | None
    limit_words: str
    left: int
    scale: list[tuple[float, str]]
    times: list[tuple[float, str]]


def chart(  # noqa: PLR0913 # what a chart is made of
    title: str,
    points: Sequence[Point],
    *,
    since_s: float,
    until_s: float,
    period_s: float,
    unit: str,
    most: float = 0.0,
    limit: float | None = None,
) -> Chart:
    """Return the chart of some figures over time.

    Args:
        title: what they are.
        points: moments and figures, by time.
        since_s: where the chart begins; it ends at ``until_s``.
        period_s: usual time between two points.
        unit: of the figures, for the words and the scale.
        most: the top of the scale; 0: the largest figure, or the limit.
        limit: what was requested; None: that does not matter here.
    """
    figures = [figure for _, figure in points]
    top = most or 1.1 * max([*figures, limit or 0.0], default=0.0) or 1.0
    span_s = max(1.0, until_s - since_s)
    texts = [(part, f"{_figure(part * top)} {unit}") for part in _SCALE]
    left = max(LEFT_LEAST, LETTER * max(len(text) for _, text in texts) + 2 * AIR)

    def x(at_s: float) -> float:
        return left + (at_s - since_s) / span_s * (WIDTH - left - AIR)

    def y(figure: float) -> float:
        return TOP + (1.0 - min(1.0, figure / top)) * (HEIGHT - TOP - BOTTOM)

    lines, areas = [], []
    pieces = list(_pieces(_thinned(points, span_s), max(period_s, span_s / POINTS_MOST)))
    for piece in pieces:
        places = [(x(at_s), y(figure)) for at_s, figure in piece]
        if len(places) == 1:
            places.append((places[0][0] + 1.5, places[0][1]))
        text = " ".join(f"{place:.1f},{height:.1f}" for place, height in places)
        lines.append(text)
        base = HEIGHT - BOTTOM
        areas.append(f"{places[0][0]:.1f},{base} {text} {places[-1][0]:.1f},{base}")
    return Chart(
        title=title,
        words=_words(title, figures, len(pieces) - 1, unit, limit),
        lines=lines,
        areas=areas,
        limit=None if limit is None else round(y(limit), 1),
        limit_words="" if limit is None else f"requested: {_figure(limit)} {unit}",
        left=left,
        scale=[(round(y(part * top), 1), text) for part, text in texts],
        times=[
            (round(x(at_s), 1), text)
            for at_s, text in _times(since_s, until_s)
            if left <= x(at_s) <= WIDTH - HALF_TIME
        ],
    )


def _thinned(points: Sequence[Point], span_s: float) -> Iterator[Point]:
    """Yield points, of several within one place of the chart their mean."""
    width_s = span_s / POINTS_MOST
    group: list[Point] = []
    for point in points:
        if group and int(point[0] // width_s) != int(group[0][0] // width_s):
            yield _mean(group)
            group = []
        group.append(point)
    if group:
        yield _mean(group)


def _mean(group: Sequence[Point]) -> Point:
    count = len(group)
    return sum(at_s for at_s, _ in group) / count, sum(figure for _, figure in group) / count


def _pieces(points: Iterator[Point], period_s: float) -> Iterator[list[Point]]:
    """Yield the points without a gap between them."""
    piece: list[Point] = []
    for point in points:
        if piece and point[0] - piece[-1][0] > GAP_PERIODS * period_s:
            yield piece
            piece = []
        piece.append(point)
    if piece:
        yield piece


def _words(title: str, figures: Sequence[float], gaps: int, unit: str, limit: float | None) -> str:
    if not figures:
        return f"{title}: nothing was recorded in this time."
    mean = sum(figures) / len(figures)
    least, most = _figure(min(figures)), _figure(max(figures))
    words = f"{title}: {_figure(mean)} {unit} on average, between {least} and {most} {unit}"
    if limit is not None:
        words += f"; requested: {_figure(limit)} {unit}"
    if gaps > 0:
        words += f"; {gaps} {'gap' if gaps == 1 else 'gaps'} without records"
    return words + "."


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def _times(since_s: float, until_s: float) -> Iterator[tuple[float, str]]:
    """Yield moments for the scale: at most seven."""
    step_s = next((each for each in _STEPS_S if (until_s - since_s) / each <= 7), _STEPS_S[-1])
    offset_s = time.localtime(until_s).tm_gmtoff
    at_s = ((since_s + offset_s) // step_s + 1) * step_s - offset_s
    form = "%b %d" if step_s >= 86400 else "%H:%M"
    while at_s < until_s:
        yield at_s, time.strftime(form, time.localtime(at_s))
        at_s += step_s

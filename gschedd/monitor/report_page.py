"""A report as one HTML file with figures: no script, and nothing that is loaded."""

import email.message
import email.policy
import email.utils
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from typing import Final, NamedTuple

from jinja2 import Environment, StrictUndefined

from gsched.cli.common import printable
from gsched.cli.show.report_sections import (
    ReportSection,
    closing_words,
    sections_of,
    text_of,
    title_of,
)
from gsched.logs import one_line
from gsched.protocol.reports import PeriodReport, UsePart

#: Of the figure of use, in pixels: its width and height, and what is left of and below it.
WIDTH: Final = 960
HEIGHT: Final = 220
LEFT: Final = 48
BELOW: Final = 24
ABOVE: Final = 20
#: The longest bar, in pixels, and how many bars there are.
BAR: Final = 620
BARS_MOST: Final = 10
LABELS_MOST: Final = 8
SHORT_S: Final = 2 * 86400.0
NAME_MOST: Final = 18


class DrawnCurve(NamedTuple):
    """A line of the figure; ``points`` as SVG writes them."""

    name: str
    style: str
    points: str


class DrawnBar(NamedTuple):
    """A bar with its name, its value in words, and its length in pixels."""

    name: str
    text: str
    style: str
    length: int


class DrawnSection(NamedTuple):
    """A section with its figures."""

    table: ReportSection
    curves: Sequence[DrawnCurve] = ()
    bars: Sequence[DrawnBar] = ()


def page_of(report: PeriodReport) -> str:
    """Return the file."""
    source = files("gschedd.monitor").joinpath("report.html").read_text(encoding="utf-8")
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    return environment.from_string(source).render(
        title=title_of(report),
        sections=[_drawn(section, report) for section in sections_of(report)],
        closing=closing_words(report),
        width=WIDTH,
        height=HEIGHT,
        left=LEFT,
        lines=[(_y(part), f"{part:.0%}") for part in (0.0, 0.5, 1.0)],
        days=list(_labels(report)),
    )


def message_of(report: PeriodReport, *, sender: str, recipients: Sequence[str]) -> bytes:
    """Return a report as a message: its text, with the page as an attachment."""
    message = email.message.EmailMessage(policy=email.policy.SMTP)
    message["From"] = sender
    message["To"] = ", ".join(recipients)
    message["Subject"] = one_line(title_of(report))
    message["Date"] = email.utils.format_datetime(datetime.fromtimestamp(report.now_s, UTC))
    message["Message-ID"] = email.utils.make_msgid(domain=report.server)
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(text_of(report))
    day = time.strftime("%Y-%m-%d", time.localtime(report.since_s))
    name = f"{report.server}-{report.form}-{day}.html"
    message.add_attachment(page_of(report), subtype="html", filename=name)
    return message.as_bytes()


def _drawn(section: ReportSection, report: PeriodReport) -> DrawnSection:
    shares = {"Use by user": report.users, "Use by account": report.accounts}
    if section.title == "Utilisation":
        return DrawnSection(section, curves=list(_curves(report)))
    if section.title in shares:
        return DrawnSection(section, bars=_share_bars(shares[section.title]))
    if section.title == "Failed attempts by cause":
        counts = [(row.cause, str(row.attempts), float(row.attempts)) for row in report.failures]
        return DrawnSection(section, bars=_bars(counts, "cpu-fill"))
    return DrawnSection(section)


def _y(part: float) -> float:
    return round(ABOVE + (1.0 - part) * (HEIGHT - BELOW - ABOVE), 1)


def _x(report: PeriodReport, at_s: float) -> float:
    part = (at_s - report.since_s) / (report.until_s - report.since_s)
    return round(LEFT + part * (WIDTH - LEFT), 1)


def _curves(report: PeriodReport) -> Iterator[DrawnCurve]:
    """Yield the parts of CPUs and GPUs in use, as steps."""
    points = [point for point in report.busy if point.at_s < report.now_s]
    ends = [point.at_s for point in points[1:]] + [min(report.until_s, report.now_s)]
    for name, style in (("CPUs", "cpu"), ("GPUs", "gpu")):
        drawn = [
            f"{_x(report, at_s)},{_y(part)}"
            for point, end_s in zip(points, ends, strict=False)
            for part in [getattr(point, name.lower())]
            if part is not None
            for at_s in (point.at_s, end_s)
        ]
        if drawn:
            yield DrawnCurve(name, style, " ".join(drawn))


def _labels(report: PeriodReport) -> Iterator[tuple[float, str]]:
    """Yield where words stand below the figure: hours of one day or two, else days."""
    is_short = report.until_s - report.since_s <= SHORT_S
    form = "%H:%M" if is_short else "%d %b" if report.form == "monthly" else "%a %d"
    every = max(1, len(report.busy) // LABELS_MOST)
    if report.form == "weekly":
        every = max(1, len(report.busy) // 7)
    for point in report.busy[::every]:
        yield _x(report, point.at_s), time.strftime(form, time.localtime(point.at_s))


def _share_bars(rows: Sequence[UsePart]) -> Sequence[DrawnBar]:
    """Return bars of GPU-hours, where there are any, else of CPU-hours."""
    has_gpus = any(row.gpu_hours for row in rows)
    unit = "GPU" if has_gpus else "CPU"
    hours = [(row.group, row.gpu_hours if has_gpus else row.cpu_hours) for row in rows]
    values = [(name, f"{value:,.1f} {unit}-hours", value) for name, value in hours]
    return _bars(values, "gpu-fill" if has_gpus else "cpu-fill")


def _bars(values: Sequence[tuple[str, str, float]], style: str) -> Sequence[DrawnBar]:
    most = max((value for _, _, value in values), default=0.0)
    return [
        DrawnBar(name[:NAME_MOST], text, style, round(BAR * value / most))
        for name, text, value in values[:BARS_MOST]
        if value > 0
    ]

"""The queue: waiting and running jobs, with the reason and the predicted start of each."""

from collections.abc import Iterator
from typing import Final

from aiohttp import web
from msgspec import Struct, structs

from gsched.cli.show.columns import Column
from gsched.cli.show.jobfields import cells_of
from gsched.cli.show.joblist import equal_jobs, ids_words, list_lines
from gsched.model.ids import short_job_id
from gsched.model.limits import MAX_PATTERN_WILDCARDS, MAX_WORD
from gsched.protocol.job_rows import JobList
from gschedd.monitor.page.shown import PAGE_ROWS, SORTS, STATES, JobFilter, ShownJobs, page_number
from gschedd.monitor.page.site import Pages
from gschedd.monitor.viewers import Viewer

#: The fields of a line, after the id; as gstat names them.
_FIELDS: Final = (
    *("id", "name", "user", "queue", "state", "any_gpu", "cpus", "elapsed", "limit", "expected"),
    "nodes_or_reason",
)
#: By which column of the database a field is sorted, where one of them is it.
_SORTED_BY: Final = {name: name for name in SORTS} | {"elapsed": "started_s"}


class Line(Struct, frozen=True, kw_only=True):
    """A line of the table: one job, or several that are equal.

    Attributes:
        cells: texts, each with its column's name and title.
        id: of the job, for its address.
        jobs: how many it stands for.
        shows: which jobs, in words.
    """

    id: str
    shows: str
    jobs: int
    letter: str
    cells: list[tuple[str, Column, str]]


class JobTable(Struct, frozen=True, kw_only=True):
    """A list of jobs.

    Attributes:
        columns: field, title, and by which column of the database it sorts.
        lines: equal jobs that wait are one line, as in gstat.
    """

    columns: list[tuple[str, Column, str]]
    lines: list[Line]


def table_of(reply: JobList) -> JobTable:
    """Return the table of a list, without the columns in which no job has anything."""
    lines = list(_lines_of(reply))
    used = {field for line in lines for field, _, text in line.cells if text}
    shown = [name for name in _FIELDS if name in {"id", *used} or name in _SORTED_BY]
    columns, _ = cells_of(_FIELDS, (), reply)
    return JobTable(
        columns=[
            (name, column, _SORTED_BY.get(name, ""))
            for name, column in zip(_FIELDS, columns, strict=True)
            if name in shown
        ],
        lines=[
            structs.replace(line, cells=[cell for cell in line.cells if cell[0] in shown])
            for line in lines
        ],
    )


def _lines_of(reply: JobList) -> Iterator[Line]:
    columns, lines = list_lines(_FIELDS, reply)
    named = list(zip(_FIELDS, columns, strict=True))[1:]
    rows = {row.id: row for row in reply.jobs}
    for group in equal_jobs(lines):
        number, _, texts = group[0]
        row = rows[number]
        name = short_job_id(row.id) + ("[]" if row.array is not None else "")
        yield Line(
            id=name,
            shows=ids_words([each for each, _, _ in group]) if len(group) > 1 else name,
            jobs=len(group),
            letter=row.letter,
            cells=[
                (field, column, "" if text == "--" or (field == "cpus" and text == "0") else text)
                for (field, column), text in zip(named, texts[1:], strict=True)
            ],
        )


class QueuePage:
    """The page of the queue."""

    def __init__(self, site: Pages, shown: ShownJobs) -> None:
        self._site = site
        self._shown = shown

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [self._site.shows("/", self.show)]

    async def show(self, request: web.Request, viewer: Viewer) -> web.StreamResponse:
        """``GET /``."""
        wanted = filter_of(request, viewer)
        reply, counts = await self._shown.list(wanted, viewer)
        total = counts[wanted.state]
        return self._site.page(
            "queue.html",
            viewer,
            title="Queue",
            here="/",
            wanted=wanted,
            given={**structs.asdict(wanted), "number": ""},
            mine=wanted.user == viewer.user,
            states=[(key, words, counts[key]) for key, (words, _) in STATES.items()],
            table=table_of(reply),
            warning=reply.warning,
            total=total,
            first=PAGE_ROWS * (wanted.number - 1) + 1,
            last=PAGE_ROWS * (wanted.number - 1) + len(reply.jobs),
            page_count=-(-total // PAGE_ROWS),
        )


def filter_of(request: web.Request, viewer: Viewer) -> JobFilter:
    """Return which jobs an address names; what it does not understand does not count."""
    query = request.query
    state, sort = query.get("state", ""), query.get("sort", "")
    name = query.get("name", "").strip()
    if name and not set(name) & set("*?["):
        name = f"*{name}*"
    wildcards = sum(name.count(each) for each in "*[")
    too_much = len(name) > MAX_WORD or wildcards > MAX_PATTERN_WILDCARDS
    return JobFilter(
        user=viewer.user if query.get("mine") else query.get("user", "").strip(),
        queue=query.get("queue", "").strip(),
        name="" if too_much else name,
        state=state if state in STATES else "",
        sort=sort if sort.removeprefix("-") in SORTS else "",
        number=page_number(request),
    )

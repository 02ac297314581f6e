"""Users, accounts, deadlines and reports."""

import sqlite3
from collections import defaultdict
from copy import copy
from typing import Final

from aiohttp import web
from msgspec import Struct

from gsched.cli.show.jobfields import cells_of
from gsched.model.ids import short_job_id
from gschedd.monitor.model import ReadModel
from gschedd.monitor.page.shown import ShownJobs
from gschedd.monitor.page.site import Pages
from gschedd.monitor.viewers import Viewer

DAYS: Final = 30
DAY_S: Final = 86400.0
#: How long the sums of these days are shown again, seconds.
USED_FRESH_S: Final = 20.0
#: Jobs with a deadline that are shown.
DEADLINES_MOST: Final = 100
_DEADLINE_FIELDS: Final = (
    *("id", "name", "user", "queue", "state", "any_gpu", "deadline", "ends_by", "marked_slack"),
    "nodes_or_reason",
)
_USED: Final = (
    "SELECT {0}, sum(jobs), sum(gpus * wall_s) / 3600, sum(cpus * wall_s) / 3600, "
    "sum(jobs > 0 AND outcome <> 'cancelled' AND exit_status <> 0) "
    "FROM usage WHERE ended_s >= ? GROUP BY {0} ORDER BY 3 DESC, 4 DESC LIMIT 500"
)
#: Reports by form: their name, and the days that they cover.
_REPORTS: Final = (
    ("weekly", "last 7 days", 7),
    ("monthly", "last 30 days", 30),
    ("daily", "last day", 1),
)


class UserLine(Struct, kw_only=True):
    """A user: unfinished jobs, what they have now, and what was used in the last days."""

    name: str
    running: int = 0
    waiting: int = 0
    gpus: int = 0
    cpus: int = 0
    jobs: int = 0
    gpu_hours: float = 0.0
    cpu_hours: float = 0.0
    failed: int = 0


class PeoplePages:
    """The pages of users and accounts, of deadlines, and of reports."""

    def __init__(self, site: Pages, model: ReadModel, shown: ShownJobs) -> None:
        self._site = site
        self._model = model
        self._shown = shown
        self._read_s = -USED_FRESH_S
        self._used: tuple[list[UserLine], list[UserLine]] = ([], [])

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            self._site.shows("/users", self.users),
            self._site.shows("/deadlines", self.deadlines),
            self._site.shows("/reports", self.reports),
        ]

    async def users(self, _request: web.Request, viewer: Viewer) -> web.StreamResponse:
        """``GET /users``: users and accounts, by what they have used in the last 30 days."""
        only = self._model.only(viewer)
        used, accounts = await self._used_lately()
        if only:
            accounts = []  # small ones tell of their users
        users = defaultdict(lambda: UserLine(name=""), {each.name: copy(each) for each in used})
        counts = await self._model.unfinished.read(
            lambda db: db.execute(  # of arrays that run, their elements
                "SELECT user, state, jobs FROM counts WHERE jobs AND inside <> 2"
            ).fetchall()
        )
        for name, state, count in counts:
            line = users[name]
            line.name = name
            if state in {"running", "migrating", "exiting"}:
                line.running += count
            else:
                line.waiting += count
        samples = self._model.samples
        for each in samples.jobs if samples is not None else ():
            line = users[each.user]
            line.name = each.user
            line.gpus += each.gpus
            line.cpus += each.cpus
        seen = [line for line in users.values() if not only or line.name == only]
        lines = sorted(seen, key=lambda each: (-each.gpus, -each.gpu_hours, each.name))
        return self._site.page(
            "users.html", viewer, title="Users and accounts", here="/users", users=lines,
            accounts=accounts, days=DAYS,
        )  # fmt: skip

    async def _used_lately(self) -> tuple[list[UserLine], list[UserLine]]:
        """Return what users and accounts have used; the sums of a month hold for a while."""
        model, now_s = self._model, self._model.clock.monotonic_s()
        if now_s - self._read_s >= USED_FRESH_S:
            since_s = model.clock.wall_s() - DAYS * DAY_S
            self._used = await model.database.read(lambda db: _used(db, since_s))
            self._read_s = now_s
        return self._used

    async def deadlines(self, _request: web.Request, viewer: Viewer) -> web.StreamResponse:
        """``GET /deadlines``: unfinished jobs with a deadline, the next one first."""
        numbers = await self._model.unfinished.read(_with_deadline)
        reply = await self._shown.rows(numbers[:DEADLINES_MOST], viewer)
        jobs = sorted(reply.jobs, key=lambda row: row.deadline_s or 0.0)
        columns, cells = cells_of(_DEADLINE_FIELDS, jobs, reply)
        return self._site.page(
            "deadlines.html",
            viewer,
            title="Deadlines",
            here="/deadlines",
            total=len(numbers),
            late=sum(row.meets_deadline is False for row in jobs),
            columns=list(zip(_DEADLINE_FIELDS, columns, strict=True)),
            lines=[
                (
                    short_job_id(row.id),
                    row,
                    list(zip(columns, _DEADLINE_FIELDS, texts, strict=True)),
                )
                for row, texts in zip(jobs, cells, strict=True)
            ],
            warning=reply.warning,
        )

    async def reports(self, _request: web.Request, viewer: Viewer) -> web.StreamResponse:
        """``GET /reports``: addresses of the reports of greport."""
        now_s = self._model.clock.wall_s()
        links = [
            (
                f"{form.capitalize()} report, {words}",
                self._site.url(
                    "/v1/report.html", since=int(now_s - days * DAY_S), until=int(now_s), form=form
                ),
            )
            for form, words, days in _REPORTS
        ]
        return self._site.page(
            "reports.html", viewer, title="Reports", here="/reports", links=links
        )


def _used(db: sqlite3.Connection, since_s: float) -> tuple[list[UserLine], list[UserLine]]:
    """Return what users and accounts have used since a moment."""
    users, accounts = (
        [_line(name, figures) for name, *figures in db.execute(_USED.format(column), (since_s,))]
        for column in ("user", "account")
    )
    for line in accounts:
        line.name = line.name or "(none)"
    return users, accounts


def _line(name: str, figures: list[float]) -> UserLine:
    jobs, gpu_hours, cpu_hours, failed = figures
    return UserLine(
        name=name,
        jobs=int(jobs or 0),
        gpu_hours=gpu_hours or 0.0,
        cpu_hours=cpu_hours or 0.0,
        failed=int(failed or 0),
    )


def _with_deadline(db: sqlite3.Connection) -> list[int]:
    """Return the unfinished jobs with a deadline, the next one first."""
    query = "SELECT id FROM unfinished WHERE deadline_s > 0 ORDER BY deadline_s LIMIT 1000"
    return [number for (number,) in db.execute(query)]

"""The routes of reports: who may see the history with ghist may see them."""

import asyncio
import math
import tempfile
from typing import Final

from aiohttp import web

from gsched.errors import InvalidRequestError, NotPermittedError, TryAgainError
from gsched.protocol.reports import HeldReply, MailReply, PeriodReport, UsageReply
from gschedd.core.requests.notify import allowed_recipients
from gschedd.http.answers import answer
from gschedd.http.filters import check_pattern
from gschedd.monitor.model import ReadModel
from gschedd.monitor.report_page import message_of, page_of
from gschedd.monitor.reports import STEPS, report_of
from gschedd.monitor.swf import write_swf
from gschedd.monitor.usage_queries import Wanted, held, usage_of
from gschedd.notify.letters import letters_in, put_letter

#: What has just ended is waited for, seconds, if it is no more than so many events.
CATCH_UP_S: Final = 5.0
CATCH_UP_EVENTS: Final = 20_000
PAUSE_S: Final = 0.1
#: Of a long answer, sent at once.
PART_BYTES: Final = 1 << 18
_BEHIND: Final = (
    "SELECT coalesce((SELECT max(seq) FROM head.events), 0) - coalesce((SELECT seq FROM cursor), 0)"
)


class ReportRoutes:
    """``/v1/usage``, ``/v1/held``, ``/v1/report`` and ``/v1/swf``."""

    def __init__(self, model: ReadModel) -> None:
        self._model = model

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.get("/v1/usage", self.usage),
            web.get("/v1/held", self.held),
            web.get("/v1/report", self.report),
            web.get("/v1/report.html", self.page),
            web.get("/v1/swf", self.swf),
            web.post("/v1/report/mail", self.mail),
        ]

    async def usage(self, request: web.Request) -> web.StreamResponse:
        """``GET /v1/usage``: jobs that ended in a period, in groups."""
        wanted, behind = await self._wanted(request), await self._behind()
        by = request.query.get("by", "user")
        rows = await self._model.database.read(lambda db: usage_of(db, wanted, by))
        return answer(
            UsageReply(
                server=self._model.server,
                since_s=wanted.since_s,
                until_s=wanted.until_s,
                by=by,
                rows=rows,
                behind=behind,
            )
        )

    async def held(self, request: web.Request) -> web.StreamResponse:
        """``GET /v1/held``: who had CPUs and GPUs within a period."""
        wanted, behind = await self._wanted(request), await self._behind()
        now_s = self._model.clock.wall_s()
        found = await self._model.database.read(lambda db: held(db, wanted, now_s))
        return answer(
            HeldReply(
                server=self._model.server,
                since_s=wanted.since_s,
                until_s=wanted.until_s,
                rows=found.rows,
                offered=found.offered,
                behind=behind,
            )
        )

    async def report(self, request: web.Request) -> web.StreamResponse:
        """``GET /v1/report``: all figures of a period."""
        return answer(await self._report(request))

    async def page(self, request: web.Request) -> web.StreamResponse:
        """``GET /v1/report.html``: the same with figures, in one file."""
        return web.Response(text=page_of(await self._report(request)), content_type="text/html")

    async def mail(self, request: web.Request) -> web.StreamResponse:
        """``POST /v1/report/mail``: send a report by mail, for operators on the Unix socket."""
        model, viewer = self._model, await self._model.viewers.of(request)
        if viewer.session or viewer.uid not in model.operators:
            raise NotPermittedError(
                "only operators may mail reports", hint="print the report and send it yourself"
            )
        if not model.notify.config.sends_mail:
            raise InvalidRequestError(
                "this site sends no mail",
                hint="set sendmail or smtp_host in [notify] of gsched.toml, or print the report",
            )
        stated = request.query.get("to", "")
        recipients = allowed_recipients(stated, model.notify.config, option="--mail")
        if not recipients:
            raise InvalidRequestError("--mail: no recipient", hint="write USER or USER@HOST")
        domain = model.notify.config.mail_domain
        named = [
            name if "@" in name or not domain else f"{name}@{domain}"
            for name in recipients.split(",")
        ]
        message = message_of(
            await self._report(request), sender=model.notify.sender, recipients=named
        )
        directory = letters_in(model.state_dir)
        if not await asyncio.to_thread(put_letter, directory, message, uid=viewer.uid):
            raise TryAgainError(
                "too many messages wait for the mail server", hint="see gsched doctor"
            )
        return answer(MailReply(recipients=",".join(named)))

    async def swf(self, request: web.Request) -> web.StreamResponse:
        """``GET /v1/swf``: jobs that ended in a period, in the Standard Workload Format."""
        wanted, server = await self._wanted(request), self._model.server
        await self._behind()
        with tempfile.TemporaryFile() as file:
            await self._model.database.read(lambda db: write_swf(db, wanted, server, file))
            size = file.tell()
            file.seek(0)
            response = web.StreamResponse(headers={"Content-Type": "text/plain"})
            response.content_length = size
            await response.prepare(request)
            while part := file.read(PART_BYTES):
                await response.write(part)
            await response.write_eof()
        return response

    async def _report(self, request: web.Request) -> PeriodReport:
        wanted, behind = await self._wanted(request), await self._behind()
        form = request.query.get("form", "weekly")
        if form not in STEPS:
            raise InvalidRequestError(f"unknown report {form!r}", hint=f"valid: {', '.join(STEPS)}")
        server, now_s = self._model.server, self._model.clock.wall_s()
        return await self._model.database.read(
            lambda db: report_of(db, wanted, form=form, server=server, now_s=now_s, behind=behind)
        )

    async def _behind(self) -> int:
        """Return how many events are not counted, after a while in which they may be."""
        clock = self._model.clock
        end_s = clock.monotonic_s() + CATCH_UP_S
        while True:
            behind = int(
                await self._model.database.read(lambda db: db.execute(_BEHIND).fetchone()[0])
            )
            if not 0 < behind <= CATCH_UP_EVENTS or clock.monotonic_s() >= end_s:
                return max(0, behind)
            await asyncio.sleep(PAUSE_S)

    async def _wanted(self, request: web.Request) -> Wanted:
        """Return which rows are wanted.

        Raises:
            NotPermittedError: nobody has logged in there.
            InvalidRequestError: the period is none, or the pattern of a name is refused.
        """
        viewer = await self._model.viewers.of(request)
        texts = {name: request.query.get(name, "") for name in ("user", "queue", "name")}
        check_pattern(texts["name"])
        texts["user"] = self._model.user_for(viewer, texts["user"])
        since_s, until_s = (_moment(request, name) for name in ("since", "until"))
        if until_s <= since_s:
            raise InvalidRequestError("the period is empty", hint="give a later end")
        return Wanted(since_s=since_s, until_s=until_s, **texts)


def _moment(request: web.Request, name: str) -> float:
    try:
        moment_s = float(request.query[name])
    except (KeyError, ValueError):
        moment_s = math.nan
    if not 0 <= moment_s < 1e12:
        raise InvalidRequestError(
            f"{name} is missing or no time", hint="give seconds since the epoch"
        )
    return moment_s

"""Fair shares, limits, and the objects that have them.

The usage is copied at one moment, and rows of it are made in a thread.
"""

import asyncio
from functools import partial

from aiohttp import web

from gsched.clock import Clock
from gsched.model.limits import MAX_WORD
from gsched.protocol.queues import ObjectsReply
from gsched.protocol.shares import LimitsReply, SharesReply
from gschedd.core.requests.authorize import Verb, may
from gschedd.core.requests.objects import shown_objects
from gschedd.core.state.settings import Caller
from gschedd.core.views.limits import limit_rows
from gschedd.core.views.shares import UsageNow, share_rows, used_now
from gschedd.http.answers import answer
from gschedd.http.callers import Callers
from gschedd.http.pace import Turns
from gschedd.http.shown import ShownHead
from gschedd.plan.limits import Party


class ShareQueries:
    """Gives shares."""

    def __init__(self, engine: ShownHead, callers: Callers, clock: Clock) -> None:
        self._engine = engine
        self._callers = callers
        self._clock = clock
        self._turns = Turns(1, rests=True)

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.get("/v1/shares", self.give),
            web.get("/v1/objects", self.give_objects),
            web.get("/v1/limits", self.give_limits),
        ]

    async def give_limits(self, request: web.Request) -> web.StreamResponse:
        """``GET /v1/limits``: all limits, or those of jobs of a user, project, queue and QOS."""
        caller = self._callers.of(request)
        wanted = Party(**{name: request.query.get(name, "")[:MAX_WORD] for name in Party._fields})
        async with self._turns.turn(caller.uid):
            warning = await self._engine.shown()
            head, now_s = self._engine.head, self._clock.wall_s()
            rows = limit_rows(head.state, head.settings, now_s, wanted, self._only(caller))
            return answer(LimitsReply(now_s=now_s, rows=rows, warning=warning))

    async def give_objects(self, request: web.Request) -> web.StreamResponse:
        """``GET /v1/objects``: attributes of all objects that differ from the defaults."""
        only = self._only(self._callers.of(request))
        return answer(ObjectsReply(objects=shown_objects(self._engine.head.settings, only)))

    async def give(self, request: web.Request) -> web.StreamResponse:
        """``GET /v1/shares``: of all projects and users, or of those that are named."""
        caller = self._callers.of(request)
        named = {name: request.query.get(name, "")[:MAX_WORD] for name in ("project", "user")}
        async with self._turns.turn(caller.uid):
            warning = await self._engine.shown()
            head, now_s = self._engine.head, self._clock.wall_s()
            used = used_now(head.state, head.settings, now_s)
            if only := self._only(caller):
                named["only"] = only
            return await asyncio.to_thread(partial(_reply, used, now_s, warning, named))

    def _only(self, caller: Caller) -> str:
        """Return the only user of whom the caller may see anything; empty: all."""
        return caller.user if caller.is_private and not may(caller, Verb.READ_JOB) else ""


def _reply(used: UsageNow, now_s: float, warning: str, named: dict[str, str]) -> web.Response:
    return answer(
        SharesReply(
            now_s=now_s,
            half_life_s=used.settings.config.shares.half_life_s,
            orders=used.settings.orders_by_terms,
            rows=share_rows(used, **named),
            warning=warning,
        )
    )

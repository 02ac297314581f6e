"""Reservations: operators change them, everybody sees those that they may use."""

import asyncio
import pwd
from collections.abc import Iterable

from aiohttp import web

from gsched.clock import Clock
from gsched.errors import InvalidRequestError
from gsched.model.limits import MAX_WORD, check_texts, shown, texts_of
from gsched.protocol.reservations import ReservationChange, ReservationsReply, ReservationTerms
from gschedd.core.requests.authorize import Verb, authorize
from gschedd.core.requests.commands import ChangeReservation
from gschedd.core.state import facts as f
from gschedd.core.state.step import Step
from gschedd.core.views.reservations import reservation_row, reservation_rows
from gschedd.engine.loop import Engine
from gschedd.http.answers import answer
from gschedd.http.audit import note_results, note_verb
from gschedd.http.bodies import Bodies, read_body
from gschedd.http.callers import Callers

_TEXTS = (texts_of(ReservationChange), texts_of(ReservationTerms))


class Reservations:
    """Handlers of the routes."""

    def __init__(self, engine: Engine, callers: Callers, bodies: Bodies, clock: Clock) -> None:
        self._engine = engine
        self._callers = callers
        self._bodies = bodies
        self._clock = clock

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.get("/v1/reservations", self.give),
            web.post("/v1/reservations", self.change),
        ]

    async def give(self, request: web.Request) -> web.StreamResponse:
        """``GET /v1/reservations``: all that the caller may see, or the one of a name."""
        caller = self._callers.of(request)
        name = request.query.get("name", "")[:MAX_WORD]
        warning = await self._engine.shown()
        head = self._engine.head
        rows = reservation_rows(head.state, head.settings, caller, name)
        return answer(ReservationsReply(now_s=self._clock.wall_s(), rows=rows, warning=warning))

    async def change(self, request: web.Request) -> web.StreamResponse:
        """``POST /v1/reservations``: create, alter or delete one."""
        caller = self._callers.of(request)
        change = await read_body(request, self._bodies, ReservationChange)
        note_verb(request, f"{change.verb} reservation")
        authorize(caller, Verb.CHANGE_RESERVATIONS)
        check_texts(change, _TEXTS[0])
        check_texts(change.terms, _TEXTS[1])
        await asyncio.to_thread(_check_users, change.terms.users or ())
        command = ChangeReservation(caller=caller, action=change)

        def carry_out(now_s: float) -> list[Step]:
            head = self._engine.head
            return [(head.preview if change.dry_run else head.command)(command, now_s)]

        (step,) = await self._engine.ask(carry_out, is_request=True)
        if step.error is not None:
            raise step.error
        note_results(request, f"{change.verb} reservation", [(change.name, None)])
        head = self._engine.head
        changed = (f.ReservationCreated, f.ReservationChanged)
        rows = tuple(
            reservation_row(head.state, fact.reservation)
            for fact in step.facts
            if isinstance(fact, changed)
        )
        if not change.dry_run:
            rows = reservation_rows(head.state, head.settings, caller, change.name)
        return answer(ReservationsReply(now_s=self._clock.wall_s(), rows=rows))


def _check_users(users: Iterable[str]) -> None:
    """Check that the head's machine knows users.

    Raises:
        InvalidRequestError: it does not know one of them.
    """
    for user in users:
        try:
            pwd.getpwnam(user)
        except (KeyError, ValueError):
            raise InvalidRequestError(
                f"unknown user {shown(user)}", hint="the head's machine knows no such user"
            ) from None

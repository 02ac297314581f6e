"""Changes of queues, projects, users and QOS, and of scheduling, on a running head."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from aiohttp import web

from gsched.config.rules import check_queues
from gsched.config.units import BadValueError
from gsched.errors import GschedError, InvalidRequestError, StorageError
from gsched.protocol import api
from gsched.protocol.queues import QueueChange, QueueRequest
from gschedd.core.requests.authorize import Verb, may
from gschedd.core.requests.objects import check_coordinator
from gschedd.core.requests.queues import (
    Overrides,
    changed,
    hidden_changes,
    in_force,
)
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State
from gschedd.engine.loop import Engine
from gschedd.http.answers import answer
from gschedd.http.audit import note_verb
from gschedd.http.bodies import Bodies, read_body
from gschedd.http.callers import Callers

log = logging.getLogger("gschedd.queues")


class Queues:
    """Handler of the route.

    Args:
        engine: of this head.
        callers: who asks.
        bodies: of requests.
        configured: the settings without what operators have changed.
        overrides: what they have changed so far.
        keep: makes it durable; raises OSError where it cannot.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        callers: Callers,
        bodies: Bodies,
        configured: Settings,
        overrides: Overrides,
        keep: Callable[[Overrides], Awaitable[None]],
    ) -> None:
        self._engine = engine
        self._callers = callers
        self._bodies = bodies
        self._configured = configured
        self._overrides = overrides
        self._keep = keep
        self._turn = asyncio.Lock()

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [web.post("/v1/queues", self.change)]

    async def configure(self, configured: Settings, take: Callable[[], None]) -> tuple[str, ...]:
        """Take in the settings of a configuration that was read again.

        Args:
            take: is called with them, between two inputs of the engine.

        Returns:
            Keys of queues that stay as an operator has set them.

        Raises:
            GschedError: they are refused; nothing has changed.
        """
        async with self._turn:
            await self._engine.settled()
            await self._engine.configure(in_force(configured, self._overrides), take)
            before, self._configured = self._configured, configured
        return tuple(hidden_changes(before, configured, self._overrides))

    async def change(self, request: web.Request) -> web.StreamResponse:
        """``POST /v1/queues``: all changes are durable before any of them counts.

        They count when it answers: the next request of the caller sees them.
        """
        caller = self._callers.of(request)
        wanted = await read_body(request, self._bodies, QueueRequest)
        note_verb(request, Verb.CHANGE_QUEUES.value, *(each.queue for each in wanted.changes))
        head = self._engine.head
        async with self._turn:
            await self._engine.settled()
            if not may(caller, Verb.CHANGE_QUEUES):
                for each in wanted.changes or (QueueChange(verb="set"),):
                    check_coordinator(each, caller.user, head.settings)
            overrides = self._overrides
            for each in wanted.changes:
                overrides = _changed_by(each, overrides, self._configured, head.state)
            settings = in_force(self._configured, overrides)
            _check_together(settings)
            if wanted.dry_run:
                return _answer(wanted.changes, "could be done")
            try:
                await self._keep(overrides)
            except OSError as error:
                raise StorageError(f"the change cannot be written: {error.strerror}") from None
            try:
                await self._engine.configure(settings)
            except GschedError:  # a job came meanwhile
                await self._keep(self._overrides)
                raise
            self._overrides = overrides
        for each in wanted.changes:
            log.info("%s by %s: %s", each.verb, caller.user, each)
        return _answer(wanted.changes, "done")


def _answer(changes: Iterable[QueueChange], words: str) -> web.Response:
    results = (
        api.ActionResult(id=each.queue or each.kind, text=f"{each.verb}: {words}")
        for each in changes
    )
    return answer(api.ActionReply(results=tuple(results)))


def _changed_by(
    change: QueueChange, overrides: Overrides, configured: Settings, state: State
) -> Overrides:
    """Return what operators have changed, with one change more.

    Raises:
        GschedError: it is refused; the message says where the change is stated.
    """
    try:
        return changed(overrides, change, configured=configured, state=state)
    except GschedError as error:
        if not change.where:
            raise
        raise type(error)(f"{change.where}: {error.message}", hint=error.hint) from None


def _check_together(settings: Settings) -> None:
    """Check that the attributes of each queue agree, as those of a configuration must.

    Raises:
        InvalidRequestError: they do not.
    """
    queues = tuple(settings.queues.values())
    try:
        check_queues(queues)
    except BadValueError as error:
        at, key = error.keys[1], error.keys[-1]
        name = queues[at].name if isinstance(at, int) else ""
        blank = "" if error.message.startswith(":") else " "
        raise InvalidRequestError(
            f"queue {name}: {key}{blank}{error.message}", hint=error.hint
        ) from None

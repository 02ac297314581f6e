"""The head's periodic tasks: a list for all, and a start by operators."""

from typing import Protocol

from aiohttp import web

from gsched.clock import Clock
from gsched.protocol.tasks import RunTask, TaskList, TaskRow
from gschedd.core.requests.authorize import Verb
from gschedd.http.answers import answer
from gschedd.http.audit import note_verb
from gschedd.http.bodies import Bodies, read_body
from gschedd.http.callers import Callers


class HeadTasks(Protocol):
    """The tasks, as far as they are needed here."""

    def rows(self) -> tuple[TaskRow, ...]:
        """Return how they are."""

    def start(self, name: str, by: str) -> None:
        """Start one for somebody."""


class TaskRoutes:
    """Handler of the routes.

    Args:
        tasks: of this head.
    """

    def __init__(
        self,
        *,
        tasks: HeadTasks,
        callers: Callers,
        bodies: Bodies,
        clock: Clock,
    ) -> None:
        self._tasks = tasks
        self._callers = callers
        self._bodies = bodies
        self._clock = clock

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [web.get("/v1/tasks", self.list), web.post("/v1/tasks", self.run)]

    async def list(self, request: web.Request) -> web.StreamResponse:
        """``GET /v1/tasks``."""
        self._callers.of(request)
        return answer(TaskList(now_s=self._clock.wall_s(), tasks=self._tasks.rows()))

    async def run(self, request: web.Request) -> web.StreamResponse:
        """``POST /v1/tasks``: start a task; the answer does not wait for its end."""
        caller = self._callers.allowed(request, Verb.RUN_TASK)
        wanted = await read_body(request, self._bodies, RunTask)
        note_verb(request, Verb.RUN_TASK.value, wanted.name)
        self._tasks.start(wanted.name, caller.user)
        return answer(TaskList(now_s=self._clock.wall_s(), tasks=self._tasks.rows()))

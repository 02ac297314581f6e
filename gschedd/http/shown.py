"""What queries read: the state of the head that rules, or of one that stands by."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol

from aiohttp import web
from aiohttp.typedefs import Middleware

from gsched.errors import StandsByError
from gsched.protocol.headers import STANDBY_HEADER, WARNING_HEADER
from gschedd.core.head import Head
from gschedd.engine.watches import Watch, Watches
from gschedd.http.door import Handler
from gschedd.plan.forecast import Forecast

#: What to do where a head does not take a change.
OTHER_HEAD: Final = (
    "run the command on the head that rules, a node or a login host; with both heads in "
    "GSCHED_HEAD commands find the one that rules"
)


class ShownHead(Protocol):
    """A head's state, and how far it may be shown."""

    head: Head
    watches: Watches

    async def settled(self) -> None:
        """Wait until everything in the state is durable, so that it may be shown.

        Raises:
            TryAgainError: that may take a while.
        """

    async def shown(self) -> str:
        """Wait as `settled` does; return a warning instead of the error, or the empty string."""

    async def ended(self, watch: Watch, timeout_s: float) -> None:
        """Wait until a job that is watched may have ended, or the time is over."""


class StartForecasts(Protocol):
    """When jobs start that wait."""

    def start_of(self, job: int, *, uid: int) -> Awaitable[Forecast]:
        """Return when a job starts, to a user."""

    def starts_of(self, jobs: Sequence[int], *, uid: int) -> Awaitable[Mapping[int, Forecast]]:
        """Return when jobs start, to a user."""


def reads_only_if(refusal: Callable[[], str]) -> Middleware:
    """Return what refuses all but reads while ``refusal`` returns why."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method != "GET" and (why := refusal()):
            raise StandsByError(f"nothing can be changed here: {why}", hint=OTHER_HEAD)
        return await handler(request)

    return middleware


def warn_in_headers(
    app: web.Application, warning: Callable[[], str], ruler: Callable[[], str] = lambda: ""
) -> None:
    """Have answers tell what counts for what they show.

    Args:
        warning: returns why it may be old, or not durable; else empty.
        ruler: returns the head that rules where this one stands by; else empty.
    """

    async def prepare(request: web.Request, response: web.StreamResponse) -> None:
        text = warning() if request.method == "GET" else ""
        for name, value in ((WARNING_HEADER, text), (STANDBY_HEADER, ruler())):
            if value:
                response.headers[name] = value.encode("ascii", "replace").decode()

    app.on_response_prepare.append(prepare)

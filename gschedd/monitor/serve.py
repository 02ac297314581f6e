"""The monitor's sockets and routes."""

import logging
import socket
from collections.abc import Callable, Sequence
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Middleware
from msgspec import Struct

from gsched.protocol.web import WebAddress
from gschedd.http.answers import answer, errors
from gschedd.http.door import Doors, Rules, Source, watched
from gschedd.http.listening import (
    USERS_MODE,
    UserSource,
    address_source,
    listen_on_address,
    listen_on_path,
)
from gschedd.monitor.hosts import HostNames
from gschedd.monitor.model import ReadModel

log = logging.getLogger("gschedd.monitor")

#: How long requests under way may take at the end, seconds; streams of events last longer.
SHUTDOWN_S: Final = 1.0
#: A reverse proxy, and all tunnels of ssh, are one source.
RULES: Final = Rules(of_source=224, in_all=256, reserved=16)


class Listening(Struct, kw_only=True):
    """What is listened on; ``address`` is that of the TCP socket, empty if there is none."""

    doors: Doors
    address: str = ""

    async def close(self) -> None:
        """Close all sockets and connections."""
        self.doors.close()
        await self.doors.cleanup()


class Login:
    """Gives addresses with a token to users on the Unix socket, and sessions for them."""

    def __init__(self, model: ReadModel, address: Callable[[], str]) -> None:
        self._model = model
        self._address = address

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [web.post("/v1/web-address", self.new_address)]

    async def new_address(self, request: web.Request) -> web.StreamResponse:
        """``POST /v1/web-address``: the page's address for the caller, with a token."""
        viewer = await self._model.viewers.of(request)
        token = self._model.viewers.new_token(viewer)
        config = self._model.config
        return answer(
            WebAddress(
                address=self._address(),
                base_path=config.base_path,
                origin=config.origin,
                token=token,
            )
        )


async def listen(
    routes: Sequence[web.RouteDef],
    *,
    model: ReadModel,
    pages: Middleware,
    path: str,
    port: int,
) -> Listening:
    """Serve routes on the Unix socket and, if so configured, on a TCP socket.

    Args:
        pages: gets refusals as answers, and makes pages of them for browsers.

    Raises:
        ConfigError: one of them cannot be had.
    """
    listening = Listening(doors=Doors(model.clock, shutdown_s=SHUTDOWN_S))
    login = Login(model, lambda: listening.address)
    middlewares: list[Middleware] = [watched, pages, errors]
    at_path = listen_on_path(path, mode=USERS_MODE, key="socket")
    listeners: list[tuple[socket.socket, Callable[[socket.socket], Source], list[Middleware]]] = [
        (at_path, UserSource(lambda: model.operators), middlewares)
    ]
    if model.config.listen:
        tcp = listen_on_address(model.config.listen, port)
        host = model.config.listen.rpartition(":")[0]
        listening.address = f"{host}:{tcp.getsockname()[1]}"
        names = HostNames(model.config.origin)
        listeners.append((tcp, address_source, [*middlewares, names.of_api]))
    for listener, source_of, around in listeners:
        app = web.Application(middlewares=around, logger=log)
        app.add_routes([*routes, *login.routes()])
        await listening.doors.serve(app, listener, source_of, RULES)
    return listening

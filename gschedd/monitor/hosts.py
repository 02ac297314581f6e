"""The names under which browsers may reach the monitor.

A foreign name that leads to this machine (DNS rebinding) is an attempt to read from it through
somebody's browser.
"""

import socket
from ipaddress import ip_address

from aiohttp import web
from aiohttp.typedefs import Handler

from gsched.errors import InvalidRequestError
from gschedd.http.listening import host_in


class HostNames:
    """The names of this machine, and that of the reverse proxy.

    Args:
        origin: of the reverse proxy, as ``[web] origin`` states it; empty: there is none.
    """

    def __init__(self, origin: str) -> None:
        self.proxy = origin.partition("://")[2]
        self._names = {"localhost", socket.gethostname().lower(), socket.getfqdn().lower()}
        if self.proxy:
            self._names.add(host_in(self.proxy))

    def check(self, request: web.Request) -> None:
        """Check the name to which a request was sent.

        Raises:
            InvalidRequestError: it is a name of another site.
        """
        name = host_in(request.host)
        if name not in self._names and not _is_address(name):
            raise InvalidRequestError(
                f"this page is not known as {name[:100]!r}",
                hint="an operator sets the name of a reverse proxy with [web] origin",
            )

    @web.middleware
    async def of_api(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check the requests of the API; pages check their own, and metrics have a token."""
        if request.path.startswith("/v1/"):
            self.check(request)
        return await handler(request)


def _is_address(name: str) -> bool:
    """Return whether a name is an address in figures, which nobody can make lead elsewhere."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True

"""The API for programs: HTTPS, with a token of a user in each request.

The routes are those of the commands' socket, but for terminals. A request without a token that
counts is answered with 401 before anything else of it is looked at. A browser gets nothing here: a
request with the ``Origin`` of another site, or sent to a name that is not this host's, is refused.
"""

import logging
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Middleware

from gsched.clock import Clock
from gsched.config.tls import HttpsConfig
from gsched.errors import ConfigError, GschedError, NotPermittedError
from gsched.model.limits import shown
from gsched.pki.contexts import web_context
from gsched.pki.files import check_file
from gschedd.core.requests.authorize import check_scope
from gschedd.core.state.settings import Caller
from gschedd.http.answers import BusyError, refusal
from gschedd.http.audit import note_caller
from gschedd.http.authority import HeadAuthority
from gschedd.http.callers import of_token
from gschedd.http.door import Doors, Rules, Source, Visitor
from gschedd.http.handshake import refuse_clear_text
from gschedd.http.joining import ANYWHERE
from gschedd.http.listening import address_source, host_in, listen_on_address
from gschedd.http.user_tokens import TokenBook

log = logging.getLogger("gschedd.https")

#: Of one address before its requests have shown a token, and of one user; of all.
RULES: Final = Rules(of_source=64, in_all=512, evict=True)
#: Ends of paths that are served on sockets only: a request to open a terminal is a GET.
_ON_SOCKETS: Final = ("/session",)
_READING: Final = frozenset({"GET", "HEAD"})


class _NotServedError(NotPermittedError):
    """A request that HTTPS does not serve, as those of pages of other sites."""

    def __init__(self, message: str, status: int, *, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.status = status


class _NoTokenError(NotPermittedError):
    """The request has no token that counts."""

    status = 401


class WebCertificate:
    """The certificate for programs: of the site, or of the cluster's authority.

    Args:
        names: of this host; `names_of` returns them.

    Raises:
        ConfigError: the files cannot be used.
    """

    def __init__(
        self, config: HttpsConfig, authority: HeadAuthority, names: Collection[str], clock: Clock
    ) -> None:
        self._authority, self._names, self._clock = authority, tuple(names), clock
        self._is_of_site = bool(config.certificate)
        own = authority.web_certificate_path
        self._certificate = config.certificate or own
        self._key = config.key or own
        self._renew_s = 0.0
        self._version: tuple[int, ...] = ()
        self._context = self._load()

    def context(self) -> ssl.SSLContext:
        """Return the context for the next connection; files that cannot be read change nothing."""
        try:
            is_due = not self._is_of_site and self._clock.wall_s() >= self._renew_s
            if is_due or self._stamp() != self._version:
                self._context = self._load()
        except (ConfigError, OSError) as error:
            log.error("the certificate for HTTPS is not renewed: %s", error)
        return self._context

    def _stamp(self) -> tuple[int, ...]:
        paths = [self._certificate, self._key]
        if not self._is_of_site:
            paths.append(self._authority.files.trusted)  # it changes with the authority
        return tuple(os.stat(path).st_mtime_ns for path in paths)

    def _load(self) -> ssl.SSLContext:
        if not self._is_of_site:
            self._renew_s = self._authority.issue_for_web(self._names)
        try:
            check_file(self._certificate, is_secret=False)
            check_file(self._key, is_secret=True)
            self._version = self._stamp()
            return web_context(self._certificate, self._key)
        except (OSError, ssl.SSLError) as error:
            why = getattr(error, "reason", None) or error.strerror or error
            raise ConfigError(
                f"certificate {self._certificate} with key {self._key} cannot be used: {why}",
                hint="see [https] in gsched.toml(5)",
            ) from error


class TokenGate:
    """Lets requests in that have a token, as its user.

    Args:
        names: of this host.
        stands_by: whether the head that rules checks the scope for changes, and records who tried.
    """

    def __init__(self, tokens: TokenBook, names: Collection[str], *, stands_by: bool) -> None:
        self._tokens, self._names = tokens, frozenset(names)
        self._stands_by = stands_by

    def middleware(self) -> Middleware:
        """Return the middleware."""

        @web.middleware
        async def middleware(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            try:
                if request.path.endswith(_ON_SOCKETS):
                    raise _NotServedError(
                        "terminals are served on the socket only",
                        404,
                        hint="use ssh://HOST, or run the command on a host of the cluster",
                    )
                self._check_names(request)
                self._admit(request)
            except GschedError as error:
                response = refusal(error)
                response.force_close()
                if response.status == 401:
                    response.headers["WWW-Authenticate"] = 'Bearer realm="gsched"'
                if isinstance(request.protocol, Visitor):
                    request.protocol.complain(f"refused: {error.message}")
                return response
            return await handler(request)

        return middleware

    def _check_names(self, request: web.Request) -> None:
        """Refuse what a page of another site makes a browser send (T54, T55)."""
        name = host_in(request.headers.get("Host", ""))
        if name not in self._names:
            raise _NotServedError(
                f"this head is not known as {shown(name)}",
                421,
                hint="use a name of its host; an administrator adds others to names in [https]",
            )
        origin = request.headers.get("Origin")
        if origin is not None and host_in(origin.partition("://")[2]) not in self._names:
            raise _NotServedError(
                f"pages of {shown(origin)} may not use this head",
                403,
                hint="programs send no Origin",
            )
        if request.can_read_body and request.content_type != "application/json":
            raise _NotServedError(
                f"a body of the type {shown(request.content_type)}",
                415,
                hint="send JSON, with Content-Type: application/json",
            )

    def _admit(self, request: web.Request) -> None:
        scheme, _, text = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not text:
            raise _NoTokenError(
                "this request has no token",
                hint="send the header Authorization: Bearer TOKEN; gsched token create --role user "
                "makes one, on a host of the cluster",
            )
        try:
            row = self._tokens.check(text.strip(), acts=request.method not in _READING)
        except NotPermittedError as error:
            raise _NoTokenError(error.message, hint=error.hint) from None
        source = Source(
            name=f"uid {row.uid} by token", uid=row.uid, gid=row.gid, token=row.id, scope=row.scope
        )
        caller = of_token(Caller(user=row.user, uid=row.uid, gid=row.gid), source)
        note_caller(request, caller)
        if request.method not in _READING and not self._stands_by:
            check_scope(caller, "submit", "change anything")
        visitor = request.protocol
        assert isinstance(visitor, Visitor), "the door makes no other connections"
        if not visitor.become(source):
            raise BusyError(f"{row.user} has {RULES.of_source} open connections here", status=429)


def names_of(config: HttpsConfig) -> tuple[str, ...]:
    """Return the names and addresses by which programs reach this host."""
    host = host_in(config.listen)
    own = (socket.getfqdn().lower(), socket.gethostname().lower(), "localhost", "127.0.0.1", "::1")
    names = [name.lower() for name in config.names]
    if host not in ANYWHERE:
        names.append(host)
    return tuple(dict.fromkeys(filter(None, (*names, *own))))


async def serve_programs(
    doors: Doors,
    config: HttpsConfig,
    served: Callable[..., web.Application],
    tokens: TokenBook,
    authority: HeadAuthority,
    *,
    stands_by: bool = False,
) -> str:
    """Let programs in; return the address, ``https://HOST:PORT``.

    Args:
        served: returns what is served, behind these middlewares.
        stands_by: whether another head takes the changes.

    Raises:
        ConfigError: the address cannot be had.
    """
    listener = listen_on_address(config.listen, 0, keys="[https] listen")
    names = names_of(config)
    certificate = WebCertificate(config, authority, names, tokens.clock)
    gate = TokenGate(tokens, names, stands_by=stands_by)
    app = served(refuse_clear_text, gate.middleware())
    await doors.serve(app, listener, address_source, RULES, certificate.context)
    name, port = names[0], listener.getsockname()[1]
    return f"https://[{name}]:{port}" if ":" in name else f"https://{name}:{port}"

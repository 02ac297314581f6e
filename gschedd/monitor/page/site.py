"""What all pages share: templates, headers, who may look, and refusals in words."""

import hashlib
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any, Final
from urllib.parse import quote, urlencode
from uuid import uuid4

from aiohttp import web
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from gsched.cli.common import printable
from gsched.cli.times import local_times
from gsched.errors import (
    GschedError,
    HeadUnreachableError,
    InvalidRequestError,
    NotPermittedError,
)
from gsched.model import limits
from gschedd.http.answers import OTHER_FORMS, refusal
from gschedd.monitor.hosts import HostNames
from gschedd.monitor.link import refusal_of
from gschedd.monitor.model import ReadModel
from gschedd.monitor.viewers import COOKIE, Viewer

log = logging.getLogger("gschedd.monitor")

_PACKAGE: Final = "gschedd.monitor.page"
_STATIC: Final = {"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    # without a referrer browsers send no Origin with forms either
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
#: With these a reverse proxy tells for whom it sends a request.
_PASSED_ON: Final = ("Forwarded", "X-Forwarded-For", "X-Forwarded-Proto", "X-Real-IP", "Via")
#: Of a form: the text of a script is part of it.
MAX_FORM_BYTES: Final = 1 << 20
FORM_FIELD: Final = "form_token"
#: The pages of the navigation, by path.
PAGES: Final = (
    ("/", "Queue"),
    ("/nodes", "Nodes"),
    ("/gpus", "GPUs"),
    ("/users", "Users"),
    ("/deadlines", "Deadlines"),
    ("/reservations", "Reservations"),
    ("/reports", "Reports"),
    ("/submit", "Submit"),
)

#: Requests to these addresses are answered with JSON, whoever sends them.
_OF_PROGRAMS: Final = ("/v1/", *OTHER_FORMS)

Form = Mapping[str, str]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Shown = Callable[[web.Request, Viewer], Awaitable[web.StreamResponse]]
Done = Callable[[web.Request, Viewer, Form], Awaitable[web.StreamResponse]]


class UnknownPageError(InvalidRequestError):
    """There is no page of this address (HTTP status 404)."""

    status = 404


class Pages:
    """Answers requests of browsers with the head's name, the viewer and safe headers around."""

    def __init__(self, model: ReadModel) -> None:
        self._model = model
        self._base = model.config.base_path
        self._hosts = HostNames(model.config.origin)
        self._static = {
            name: files(_PACKAGE).joinpath("static", name).read_bytes() for name in _STATIC
        }
        self._pages = Environment(
            loader=PackageLoader(_PACKAGE),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_shown,
        )
        self._pages.filters["verbatim"] = escape
        self._pages.filters["breaks"] = with_breaks
        self._pages.filters["local"] = local_times
        self._pages.filters["sentence"] = lambda text: f"{text[:1].upper()}{text[1:]}."
        self._pages.filters["urlencode"] = lambda text: quote(str(text), safe="")
        self._pages.globals.update(
            key=lambda: str(uuid4()),
            limits=limits,
            url=self.url,
            static=self._static_url,
            server=model.server,
            pages=PAGES,
            moment=_moment,
        )

    # --- addresses ---

    def url(self, path: str, **query: object) -> str:
        """Return the address of a page, as the browser has it behind a proxy."""
        given = {name: str(value) for name, value in query.items() if value not in {None, ""}}
        return f"{self._base}{path}" + (f"?{urlencode(given)}" if given else "")

    def _static_url(self, name: str) -> str:
        """Return the address of a file, which is another one when it changes."""
        return self.url(f"/static/{name}", v=hashlib.sha256(self._static[name]).hexdigest()[:12])

    # --- routes ---

    def shows(self, path: str, handler: Shown) -> web.RouteDef:
        """Return the route of a page that changes nothing."""

        async def show(request: web.Request) -> web.StreamResponse:
            return await self._guarded(request, handler)

        return web.get(path, show)

    def does(self, path: str, handler: Done) -> web.RouteDef:
        """Return the route of a form that changes something."""

        async def act(request: web.Request, viewer: Viewer) -> web.StreamResponse:
            self._check_origin(request)
            form = await _form(request)
            self._model.viewers.check_form(viewer, form.get(FORM_FIELD, ""))
            return await handler(request, viewer, form)

        async def do(request: web.Request) -> web.StreamResponse:
            return await self._guarded(request, act)

        return web.post(path, do)

    def own_routes(self) -> list[web.RouteDef]:
        """Return the routes of files, and of the begin and end of a session."""
        return [
            web.get("/static/{name}", self._file),
            web.get("/login", self._offer_login, allow_head=False),
            web.post("/login", self._login),
            self.does("/logout", self._logout),
        ]

    def last_route(self) -> web.RouteDef:
        """Return the route of all other addresses."""
        return web.get("/{path:.*}", self._other)

    @web.middleware
    async def for_browsers(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse what no page refuses itself, as an unknown address, with a page, too."""
        response = await handler(request)
        is_json = response.status >= 400 and response.content_type == "application/json"
        if not is_json or not _is_of_browser(request) or not isinstance(response, web.Response):
            return response
        error = refusal_of((response.text or "").encode(), response.status)

        async def refuse(_: web.Request, __: Viewer) -> web.StreamResponse:
            raise error

        return await self._guarded(request, refuse)

    async def _guarded(self, request: web.Request, handler: Shown) -> web.StreamResponse:
        viewer: Viewer | None = None
        try:
            self._hosts.check(request)
            found = await self._model.viewers.of(request)
            self._check_direct(request, found)
            viewer = found
            response = await handler(request, viewer)
        except GschedError as error:
            acted_on = request.match_info.get("id", "") if request.method == "POST" else ""
            response = self._refusal(error, viewer, job=acted_on)
        if not response.prepared:
            response.headers.update(HEADERS)
            response.headers.setdefault("Cache-Control", "no-store")
        return response

    def _refusal(self, error: GschedError, viewer: Viewer | None, *, job: str = "") -> web.Response:
        status = status_of(error)
        if viewer is None and isinstance(error, NotPermittedError):
            status = 401 if status == 403 else status
        return self.page(
            "error.html",
            viewer,
            status=status,
            error=error,
            job=job,
            is_stranger=status == 401,
            title="Not possible",
            here="",
        )

    def page(
        self, template: str, viewer: Viewer | None, *, status: int = 200, **values: object
    ) -> web.Response:
        """Return a page."""
        token = "" if viewer is None else self._model.viewers.form_token(viewer)
        text = self._pages.get_template(template).render(
            viewer=viewer,
            form_token=token,
            zone=time.strftime("%Z"),
            now_s=self._model.clock.wall_s(),
            trouble=self._model.pulse.trouble or self._model.trouble,
            advice=self._model.pulse.advice,
            **values,
        )
        return web.Response(text=text, status=status, content_type="text/html")

    def sent_to(self, path: str, **query: object) -> web.Response:
        """Return the answer to a form: the browser shows another page."""
        return web.Response(status=303, headers={"Location": self.url(quote(path), **query)})

    def may_act(self, viewer: Viewer, owner: str) -> bool:
        """Return whether somebody may act on the jobs of a user."""
        return viewer.user == owner or viewer.uid in self._model.operators

    # --- checks ---

    def _check_direct(self, request: web.Request, viewer: Viewer) -> None:
        """Check that who is on the Unix socket is no proxy, which is not who looks.

        Raises:
            NotPermittedError: it is one, and nobody has logged in.
        """
        passed_on = any(name in request.headers for name in _PASSED_ON)
        if not viewer.session and (passed_on or request.host == self._hosts.proxy):
            raise NotPermittedError("nobody is logged in here", hint="run: gsched web")

    def _check_origin(self, request: web.Request) -> None:
        """Check which page a form is on; a program that is no browser does not say.

        Raises:
            NotPermittedError: it is on a page of somebody else.
        """
        origin = request.headers.get("Origin")
        _, _, host = (origin or "").partition("://")
        if origin is not None and host != request.host and origin != self._model.config.origin:
            raise NotPermittedError(
                f"the form is on another page, {origin[:100]!r}",
                hint="an operator sets the name of a reverse proxy with [web] origin",
            )

    # --- handlers ---

    async def _file(self, request: web.Request) -> web.StreamResponse:
        """``GET /static/NAME``."""
        name = request.match_info["name"]
        if name not in _STATIC:
            raise web.HTTPNotFound
        kept = {"Cache-Control": "public, max-age=31536000, immutable"}
        return web.Response(
            body=self._static[name], content_type=_STATIC[name], headers=HEADERS | kept
        )

    async def _other(self, request: web.Request) -> web.StreamResponse:
        """Refuse an address that is of no page: with a page for browsers, JSON for programs."""
        if not _is_of_browser(request):
            raise web.HTTPNotFound
        return await self._guarded(request, self._no_page)

    async def _no_page(self, request: web.Request, _: Viewer) -> web.StreamResponse:
        raise UnknownPageError(
            f"there is no page {request.path[:100]!r}", hint="see the pages that are listed above"
        )

    async def _offer_login(self, request: web.Request) -> web.StreamResponse:
        """``GET /login?token=TOKEN``: shows whose session the token begins, and a form for it.

        A link in a mail or on another page begins no session, and a preview of it uses no token.
        """
        viewers, token = self._model.viewers, request.query.get("token", "")
        try:
            self._hosts.check(request)
            user = viewers.user_of_token(token)
            before = ""
            with suppress(NotPermittedError):
                before = (await viewers.of(request)).user
            response = self.page(
                "login.html", None, title="Log in", here="", user=user, before=before, token=token
            )
        except GschedError as error:
            response = self._refusal(error, None)
        response.headers.update(HEADERS | {"Cache-Control": "no-store"})
        return response

    async def _login(self, request: web.Request) -> web.StreamResponse:
        """``POST /login``: begins the session of a token, from the form of this page only."""
        try:
            self._hosts.check(request)
            self._check_origin(request)
            form = await _form(request)
            session = self._model.viewers.begin_session(form.get("token", ""))
        except GschedError as error:
            response = self._refusal(error, None)
        else:
            response = self.sent_to("/")
            response.set_cookie(
                COOKIE,
                session,
                max_age=int(self._model.config.session_hours * 3600),
                path=self._base or "/",
                secure=self._is_secure(request),
                httponly=True,
                samesite="Lax",  # or a link in a mail would lead to the refusal of a stranger
            )
        response.headers.update(HEADERS | {"Cache-Control": "no-store"})
        return response

    async def _logout(self, _request: web.Request, viewer: Viewer, _: Form) -> web.StreamResponse:
        """``POST /logout``: ends the session."""
        unwritten = await self._model.viewers.end_session(viewer)
        if unwritten:
            log.error("a session has ended, which could not be written: %s", unwritten)
        response = self.page("goodbye.html", None, title="Logged out", here="", unwritten=unwritten)
        response.del_cookie(COOKIE, path=self._base or "/")
        return response

    def _is_secure(self, request: web.Request) -> bool:
        """Return whether the browser came by TLS, as the proxy tells."""
        if request.headers.get("X-Forwarded-Proto", "").lower() == "https":
            return True
        return self._model.config.origin.startswith("https:") and request.host == self._hosts.proxy


def _is_of_browser(request: web.Request) -> bool:
    """Return whether a request comes from a browser's page, and not from a program."""
    accepts = "text/html" in request.headers.get("Accept", "")
    return accepts and not request.path.startswith(_OF_PROGRAMS)


async def _form(request: web.Request) -> Form:
    """Return the fields of a form.

    Raises:
        InvalidRequestError: it is too large, or no form.
    """
    length = request.content_length
    if length is None and not request.can_read_body:
        return {}
    if length is None or length > MAX_FORM_BYTES:
        raise InvalidRequestError(
            f"a form of more than {MAX_FORM_BYTES} bytes", hint="submit large scripts with gsub"
        )
    try:
        fields = await request.post()
    except web.HTTPRequestEntityTooLarge:
        raise InvalidRequestError(
            "a form with too many fields", hint="submit large jobs with gsub"
        ) from None
    except (ValueError, LookupError):  # no form, or of a character set that is unknown
        raise InvalidRequestError(
            "this form cannot be read", hint="load the page again, and try again"
        ) from None
    return {name: value for name, value in fields.items() if isinstance(value, str)}


def status_of(error: GschedError) -> int:
    """Return the HTTP status of a refusal: that of the head, where it has refused."""
    return 503 if isinstance(error, HeadUnreachableError) else refusal(error).status


def form_key(form: Form) -> str:
    """Return the key of a form that submits a job: sent twice, it submits one job.

    Raises:
        InvalidRequestError: it has none.
    """
    key = form.get("key", "")
    if not key:
        raise InvalidRequestError(
            "the form has no key, by which one that is sent twice submits one job",
            hint="load the page again, and try again",
        )
    return key


def _shown(value: Any) -> Any:
    """Return a value as a page shows it: texts come from other users."""
    if isinstance(value, str) and not isinstance(value, Markup) and not value.isprintable():
        return printable(value)
    return value


def with_breaks(text: object) -> Markup:
    """Return a text that may be broken behind the separators of requests and paths."""
    escaped = str(escape(_shown(str(text))))  # else the substitution would escape what it inserts
    return Markup(re.sub(r"(?<=\S)([,/])(?=\S)", r"\1<wbr>", escaped))  # noqa: S704 # escaped


def _moment(at_s: float) -> str:
    """Return a moment as programs read it, for ``<time>``."""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds")

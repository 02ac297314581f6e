"""A head that stands by: it follows the replicated log, and answers reads from its database."""

import asyncio
import logging
import os
import signal
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web
from aiohttp.typedefs import Middleware

from gsched.clock import Clock
from gsched.config.tables import Config
from gsched.errors import ConfigError, StandsByError
from gsched.model.units import format_duration
from gsched.protocol import api
from gsched.protocol.tokens import UserTokenRow
from gsched.version import VERSION
from gschedd.core.cycle.epoch import begin_epoch
from gschedd.core.cycle.run import snapshot
from gschedd.core.head import Head
from gschedd.core.requests.queues import overridden
from gschedd.core.state.settings import Settings
from gschedd.core.views.jobs import jobs_by_state, queue_rows
from gschedd.daemon.setup import empty_state
from gschedd.engine.watches import Watch, Watches
from gschedd.http.answers import BusyError, errors, refusal
from gschedd.http.authority import HeadAuthority
from gschedd.http.bodies import Bodies, counted
from gschedd.http.callers import Callers, UserNames
from gschedd.http.door import Doors, Handler, watched
from gschedd.http.https import serve_programs
from gschedd.http.internals import LIVEZ
from gschedd.http.listening import USERS_MODE, listen_on_path, raise_open_files, serve_users
from gschedd.http.predictions import Predictions
from gschedd.http.queries import Queries, up_nodes
from gschedd.http.ruling import StandbyCheck
from gschedd.http.schema import OPENAPI
from gschedd.http.shown import OTHER_HEAD, warn_in_headers
from gschedd.http.user_tokens import TokenBook
from gschedd.plan.forecast import Forecast
from gschedd.policies.registry import Chosen
from gschedd.store.journal import HeadLease
from gschedd.store.loading import load
from gschedd.store.queues import noted_overrides, notes_in
from gschedd.store.reader import Reader
from gschedd.store.seals import text_of
from gschedd.store.sqlite import DATABASE
from gschedd.store.standby import Follower

log = logging.getLogger("gschedd")

#: The state is loaded again at most so often, as a multiple of what it takes.
REST_RATIO: Final = 4
LOOK_S: Final = 0.5
SHUTDOWN_S: Final = 0.2
NO_FORECAST: Final = "not known: this head stands by"


class FollowedState:
    """The state in the database that follows the log, loaded again when somebody reads it.

    Attributes:
        head: with the state that was loaded last; no input ever reaches it.
    """

    def __init__(
        self, path: str, follower: Follower, *, settings: Settings, chosen: Chosen, clock: Clock
    ) -> None:
        self._path = path
        self._follower = follower
        self._configured = settings
        self._chosen = chosen
        self._clock = clock
        self._turn = asyncio.Lock()
        self._loaded: tuple[int, int] = (-1, 0)
        self._looked_s = self._rested_s = -1e9
        self._takes_over = False
        self.head = self._empty(settings)
        self.watches = Watches()

    def _empty(self, settings: Settings) -> Head:
        plan = self._chosen.plan
        return Head(state=empty_state(settings, self._chosen), settings=settings, policy=plan)

    def takes_over(self) -> bool:
        """Return whether this head has taken the lease: nothing is answered any more."""
        self._takes_over = self._follower.has_lease  # changes here, not while answers are made
        return self._takes_over

    @property
    def ruler(self) -> str:
        """Return the head that rules; empty: this one does, which `takes_over` has found."""
        return "" if self._takes_over else shown_holder(self._follower.ruler.holder)

    @property
    def warning(self) -> str:
        """Return how old the state is that is shown; empty: none is, as this head takes over."""
        if self._takes_over:
            return ""
        is_newest = self._loaded == (self._follower.position, self._follower.copies)
        looked_s = self._follower.looked_s if is_newest else self._looked_s
        age_s = max(0.0, self._clock.monotonic_s() - looked_s)
        age = "less than a second" if age_s < 1.0 else format_duration(age_s)
        return f"{self.head.settings.server} stands by, {self.ruler} rules: state of {age} ago"

    async def settled(self) -> None:
        """Load what has been taken in since, unless that was done a moment ago."""
        async with self._turn:
            begun_s = self._clock.monotonic_s()
            at = (self._follower.position, self._follower.copies)
            if at == self._loaded or begun_s < self._rested_s:
                return
            looked_s = begun_s
            self.head = await asyncio.to_thread(self._load)
            self._loaded, self._looked_s = at, looked_s
            now_s = self._clock.monotonic_s()
            self._rested_s = now_s + REST_RATIO * (now_s - begun_s)

    async def shown(self) -> str:
        """Load as `settled` does, and return how old the state is."""
        await self.settled()
        return self.warning

    async def ended(self, watch: Watch, timeout_s: float) -> None:
        """Wait until it is worth to look again: what is loaded tells nobody who has ended."""
        del watch
        await asyncio.sleep(min(timeout_s, LOOK_S))

    def _load(self) -> Head:
        with closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True)) as db:
            db.isolation_level = None
            db.text_factory = text_of
            db.execute("BEGIN")  # all of it at one moment
            head = self._empty(overridden(self._configured, noted_overrides(db)))
            load(db, head.state)
        now_s = self._clock.wall_s()
        begin_epoch(head.state, head.settings, now_s)
        try:
            plan = head.policy(snapshot(head.state, head.settings, now_s))
            head.waits = {wait.job_class: wait for wait in plan.waits}
        except Exception:  # a policy's fault costs the reasons of waiting jobs
            log.exception("the policy failed")
        return head

    # --- forecasts: they need the predictor of the head that rules ---

    async def start_of(self, job: int, *, uid: int) -> Forecast:
        """Return that it is not known."""
        return (await self.starts_of([job], uid=uid))[job]

    async def starts_of(self, jobs: Sequence[int], *, uid: int) -> dict[int, Forecast]:
        """Return that they are not known."""
        del uid
        return dict.fromkeys(jobs, Forecast(start_unknown=NO_FORECAST))


class FollowedTokens(TokenBook):
    """The tokens of users in the database that follows the log."""

    def __init__(self, path: str, follower: Follower, names: UserNames, clock: Clock) -> None:
        self._path = path
        self._follower = follower
        self._loaded: tuple[int, int] = (-1, 0)
        super().__init__(self._notes_of, names, clock)

    def _notes_of(self, kind: str) -> dict[str, str]:
        with closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True)) as db:
            return notes_in(db, kind)

    def check(self, text: str, *, acts: bool) -> UserTokenRow:
        """Return the token as `TokenBook.check`, of those that count now."""
        at = (self._follower.position, self._follower.copies)
        if at != self._loaded:
            self.load()
            self._loaded = at
        return super().check(text, acts=acts)


class StandbyHead:
    """Serves users until this head rules: reads are answered, changes are refused.

    Programs that change something by HTTPS are sent to the head that rules.

    Attributes:
        listener: the socket of users, which listens on when this head rules: who comes while it
            starts waits instead of being refused. None: there has been nothing to serve.
    """

    def __init__(
        self,
        config: Config,
        follower: Follower,
        check: StandbyCheck,
        *,
        settings: Settings,
        chosen: Chosen,
        clock: Clock,
    ) -> None:
        self._config = config
        self._follower = follower
        self._check = check
        self._clock = clock
        self._web_address = ""
        self._started_s = clock.wall_s()
        self._policy = chosen.name
        self._path = os.path.join(config.head.state_dir, DATABASE)
        self._state = FollowedState(
            self._path, follower, settings=settings, chosen=chosen, clock=clock
        )
        self._bodies = Bodies()
        self.listener: socket.socket | None = None

    async def run(self, pause: Callable[[], object]) -> HeadLease | None:
        """Return the lease when this head rules; None: it was ended.

        Args:
            pause: waits a moment, in a thread, until the log is looked at again.

        Raises:
            ConfigError, StorageError: this head cannot follow.
        """
        loop = asyncio.get_running_loop()
        over: asyncio.Future[HeadLease | None] = loop.create_future()

        def end(lease: HeadLease | None, error: Exception | None = None) -> None:
            if over.done():
                return
            if error is None:
                over.set_result(lease)
            else:
                over.set_exception(error)

        def follow() -> None:
            try:
                lease, error = self._follower.rule(pause), None
            except Exception as fault:  # noqa: BLE001 - it is raised where it is waited for
                lease, error = None, fault
            loop.call_soon_threadsafe(end, lease, error)

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end, None)
        threading.Thread(target=follow, name="follower", daemon=True).start()
        serving = asyncio.create_task(self._serve())
        try:
            work: list[asyncio.Future[Any]] = [over, serving]
            await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()  # it has failed
            return await over
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    async def _serve(self) -> None:
        """Serve what the database has, from the moment that there is one."""
        while not (self._follower.position and self._follower.ruler.holder):  # noqa: ASYNC110 # of a thread
            await asyncio.sleep(LOOK_S / 5)
        open_files, state = raise_open_files(), self._state
        callers = Callers(settings=lambda: state.head.settings, names=UserNames(self._clock))
        while True:
            readers = [Reader(self._path) for _ in range(3)]
            queries = Queries(
                engine=state,
                callers=callers,
                reader=readers[0],
                long_reader=readers[1],
                clock=self._clock,
                bodies=self._bodies,
                forecasts=state,
                status=self._status,
            )
            predictions = Predictions(
                engine=state, callers=callers, reader=readers[2], clock=self._clock
            )
            doors = Doors(self._clock, shutdown_s=SHUTDOWN_S)
            before = self._served
            try:
                served = partial(
                    self._app, [OPENAPI, LIVEZ, *predictions.routes(), *queries.routes()]
                )
                path = self._config.head.socket
                if self.listener is None:
                    self.listener = listen_on_path(path, mode=USERS_MODE, key="socket")
                await serve_users(
                    doors,
                    served(),
                    path,
                    operator_uids=lambda: state.head.settings.operators.uids,
                    open_files=open_files,
                    listener=self.listener.dup(),
                )
                if self._config.https.listen:
                    await self._serve_programs(doors, served, callers.names)
                while self._served == before:  # noqa: ASYNC110 # a thread changes it
                    await asyncio.sleep(LOOK_S)
            finally:
                doors.close()
                await doors.cleanup()
                queries.close()
                predictions.close()

    async def _serve_programs(
        self, doors: Doors, served: Callable[..., web.Application], names: UserNames
    ) -> None:
        """Let programs in, if this host has the address: it may move to the head that rules."""
        tokens = FollowedTokens(self._path, self._follower, names, self._clock)
        try:
            self._web_address = await serve_programs(
                doors, self._config.https, served, tokens, self._authority(), stands_by=True
            )
        except ConfigError as error:
            log.warning("HTTPS is not served while this head stands by: %s", error)

    @property
    def _served(self) -> tuple[int, int]:
        """Return what changes with the database and the authority, which a thread follows."""
        return self._follower.copies, self._check.changes

    def _authority(self) -> HeadAuthority:
        with closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True)) as db:
            (cluster,) = db.execute("SELECT value FROM meta WHERE key = 'cluster'").fetchone()
        server = self._state.head.settings.server
        return HeadAuthority(self._config, str(cluster), server, self._clock)

    def _app(self, routes: Iterable[web.RouteDef], *gates: Middleware) -> web.Application:
        @web.middleware
        async def until_it_rules(request: web.Request, handler: Handler) -> web.StreamResponse:
            response = None if self._state.takes_over() else await handler(request)
            if response is None or (self._state.takes_over() and not response.prepared):
                server = self._state.head.settings.server
                error = BusyError(f"{server} takes over as the ruling head", status=503)
                return refusal(error)
            return response

        @web.middleware
        async def refreshed(request: web.Request, handler: Handler) -> web.StreamResponse:
            await self._state.settled()
            return await handler(request)

        handlers = [watched, *gates, until_it_rules, counted(self._bodies), errors, refreshed]
        app = web.Application(middlewares=handlers, logger=log)
        app.add_routes(routes)
        app.router.add_route("*", "/{other:.*}", self._refuse)
        warn_in_headers(app, lambda: self._state.warning, lambda: self._state.ruler)
        return app

    async def _refuse(self, request: web.Request) -> web.StreamResponse:
        own, other = self._state.head.settings.server, self._check.ruling.https
        is_here = other == self._web_address or request.path == "/readyz"
        is_sent_on = request.secure and other and not is_here
        error = StandsByError(
            f"{own} stands by, {self._state.ruler} rules: this head answers gstat, gnodes, ghist "
            "and gshare only",
            hint=f"send the request to {other}" if is_sent_on else OTHER_HEAD,
        )
        if not is_sent_on:
            raise error
        response = refusal(error)
        response.set_status(HTTPStatus.TEMPORARY_REDIRECT)
        response.headers["Location"] = f"{other}{request.rel_url}"
        return response

    def _status(self) -> api.StatusReply:
        head = self._state.head
        return api.StatusReply(
            server=head.settings.server,
            version=VERSION,
            api_version=api.API_VERSION,
            cluster="",
            epoch=0,
            pid=os.getpid(),
            started_s=self._started_s,
            now_s=self._clock.wall_s(),
            jobs=jobs_by_state(head.state),
            nodes_up=up_nodes(head),
            nodes=len(head.state.nodes),
            cycles=0,
            policy=self._policy,
            socket=self._config.head.socket,
            database=self._path,
            scheduling=head.settings.scheduling,
            queues=tuple(head.settings.queues),
            queue_rows=queue_rows(head.state, head.settings.queues),
            ruler=self._state.ruler,
        )


def shown_holder(holder: str) -> str:
    """Return a head as people name it: its host, with its directory where that is this one."""
    host, _, _ = holder.partition(":")
    return holder if host == socket.gethostname() else host

"""Metrics, and whether the head works.

The monitor makes all metrics; those of the head itself it requests here. A scrape on the head's own
socket is passed to the monitor.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Final

import aiohttp
from aiohttp import web
from aiohttp.typedefs import Middleware
from msgspec import Struct
from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gsched.config.words import monitor_socket_of
from gsched.errors import InvalidRequestError, TryAgainError
from gsched.protocol.api import NotifyRow
from gsched.version import VERSION
from gschedd.engine.loop import Engine
from gschedd.engine.measures import Measures
from gschedd.engine.space import DiskSpace
from gschedd.http.callers import Callers

TEXT: Final = "text/plain; version=0.0.4"
#: The monitor waits 5 s for the head's part of a scrape.
MONITOR_TIMEOUT_S: Final = 10.0
#: Scrapes that are passed to the monitor at a time; others wait.
SCRAPES_AT_ONCE: Final = 4


def measured(measures: Measures) -> Middleware:
    """Return the middleware that counts requests by the status of their answer."""

    @web.middleware
    async def middleware(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        with measures.in_flight.track_inprogress():
            response = await handler(request)
        measures.requests.labels(str(response.status)).inc()
        return response

    return middleware


async def _live(_: web.Request) -> web.StreamResponse:
    """``GET /livez``: the event loop runs."""
    return web.Response(text="ok\n")


#: Also of a head that stands by, which is not ready.
LIVEZ: Final = web.get("/livez", _live)


def gauge(name: str, text: str, value: float) -> Metric:
    """Return a gauge without labels."""
    return GaugeMetricFamily(name, text, value=value)


class Condition(Struct, frozen=True, kw_only=True):
    """What the daemon knows of its parts.

    Attributes:
        started_s: when the head started, seconds since the epoch.
        database_bytes: size of its database.
        damaged: number of rows of the database that cannot be read.
        troubles: why a process of the head fails, by its name; empty: it works.
        notify: how mail and hooks work; None: the site has none.
    """

    started_s: float
    database_bytes: int
    damaged: int
    troubles: Mapping[str, str]
    notify: NotifyRow | None


class Internals(Collector):
    """Serves the head's metrics, and whether it works."""

    def __init__(
        self,
        *,
        engine: Engine,
        callers: Callers,
        space: DiskSpace,
        condition: Callable[[], Condition],
    ) -> None:
        self._engine = engine
        self._callers = callers
        self._space = space
        self._condition = condition
        self._scrapes = asyncio.Semaphore(SCRAPES_AT_ONCE)
        registry = engine.measures.registry
        ProcessCollector(namespace="gsched_head", registry=registry)
        registry.register(self)

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            LIVEZ,
            web.get("/readyz", self.ready),
            web.get("/metrics", self.scrape),
            web.get("/metrics/{group:[a-z]+}", self.scrape),
            web.get("/v1/metrics", self.metrics),
        ]

    async def ready(self, _: web.Request) -> web.StreamResponse:
        """``GET /readyz``: the head decides and records; else 503 with the reason."""
        head = self._engine.head
        reasons = [text for text in (head.safe_mode, self._engine.trouble()) if text]
        if self._space.is_low():
            reasons.append("the head's disk is full: no new jobs are accepted")
        trouble = self._condition().troubles.get("planner", "")
        if trouble:
            reasons.append(f"the planner of training jobs {trouble}")
        if reasons:
            return web.Response(text="".join(f"{text}\n" for text in reasons), status=503)
        return web.Response(text="ok\n")

    async def scrape(self, request: web.Request) -> web.StreamResponse:
        """``GET /metrics`` and ``GET /metrics/GROUP``: the answer of the monitor.

        Raises:
            InvalidRequestError: the site has no monitor.
            TryAgainError: it does not answer.
        """
        config = self._engine.head.settings.config
        if not config.web.enabled:
            raise InvalidRequestError(
                f"{request.path}: this head has no metrics, as its monitor is off",
                hint="set enabled in [web] to true",
            )
        connector = aiohttp.UnixConnector(monitor_socket_of(config.head.socket))
        given = {"Accept": request.headers.get("Accept", "*/*")}
        try:
            async with (
                asyncio.timeout(MONITOR_TIMEOUT_S),
                self._scrapes,
                aiohttp.ClientSession(connector=connector, headers=given) as session,
                session.get(f"http://monitor{request.path}") as response,
            ):
                body, kind = await response.read(), response.headers["Content-Type"]
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is one of the latter
            trouble = self._condition().troubles.get("monitor", "")
            raise TryAgainError(
                f"no metrics: the monitor {trouble or 'does not answer'}",
                hint="it is started again; the log of gschedd says more",
            ) from error
        return web.Response(body=body, status=response.status, headers={"Content-Type": kind})

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        """``GET /v1/metrics``: of the head alone, for its monitor.

        Raises:
            NotPermittedError: it is not the head's own account that requests them.
        """
        self._callers.check_own(request)
        text = generate_latest(self._engine.measures.registry)
        return web.Response(body=text, headers={"Content-Type": TEXT})

    def collect(self) -> Iterable[Metric]:
        """Yield what is read at the moment of a scrape."""
        engine, head, condition = self._engine, self._engine.head, self._condition()
        info = GaugeMetricFamily("gsched_head_info", "Version of the head.", labels=["version"])
        info.add_metric([VERSION], 1)
        yield info
        yield gauge("gsched_head_start_time_seconds", "When the head started.", condition.started_s)
        yield CounterMetricFamily("gsched_cycles", "Scheduling cycles.", value=head.cycles)
        yield gauge("gsched_inputs_waiting", "Inputs of the engine.", engine.inputs_waiting)
        yield gauge("gsched_safe_mode", "1: the head is in safe mode.", bool(head.safe_mode))
        yield gauge(
            "gsched_scheduling_enabled", "0: an operator stopped it.", head.settings.scheduling
        )
        yield gauge("gsched_head_stalled", "1: the head does not work.", bool(engine.trouble()))
        yield gauge("gsched_damaged_rows", "Unreadable rows of the database.", condition.damaged)
        disk = self._space.row()
        yield gauge("gsched_disk_free_bytes", "Of the head's file system.", disk.free_bytes)
        yield gauge("gsched_disk_total_bytes", "Of the head's file system.", disk.total_bytes)
        yield gauge("gsched_disk_low", "1: submissions are refused.", disk.is_low)
        yield gauge("gsched_database_bytes", "Size of the database.", condition.database_bytes)
        dropped = CounterMetricFamily(
            "gsched_messages_dropped", "Messages that did not fit.", labels=["reason"]
        )
        for reason, count in head.oddities.items():
            dropped.add_metric([reason], count)
        yield dropped
        working = GaugeMetricFamily(
            "gsched_worker_up", "0: a process of the head fails.", labels=["worker"]
        )
        for worker, trouble in condition.troubles.items():
            working.add_metric([worker], not trouble)
        yield working
        yield from self._notifications(condition.notify or NotifyRow())

    @staticmethod
    def _notifications(row: NotifyRow) -> Iterator[Metric]:
        waiting = GaugeMetricFamily(
            "gsched_notifications_waiting", "Mail and hooks to be delivered.", labels=["way"]
        )
        for way, count in row.waiting.items():
            waiting.add_metric([way], count)
        yield waiting
        ended = CounterMetricFamily(
            "gsched_notifications", "Mail and hooks by result.", labels=["way", "result"]
        )
        for result, counts in (("sent", row.sent), ("dropped", row.dropped)):
            for way, count in counts.items():
                ended.add_metric([way, result], count)
        yield ended

"""``/metrics``: what Prometheus scrapes, split as Slurm splits its own."""

import asyncio
import hmac
import os
import secrets
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Final

from aiohttp import web
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

from gsched.errors import GschedError, InvalidRequestError, NotPermittedError
from gsched.files import replace_file
from gschedd.monitor.metrics.counts import MetricGroup, counters
from gschedd.monitor.metrics.gauges import gauges
from gschedd.monitor.model import ReadModel
from gschedd.monitor.viewers import peer_of

#: Scrapes within this time share one answer, seconds.
FRESH_S: Final = 1.0
#: The head's part of a scrape is left out where it takes longer, seconds.
HEAD_TIMEOUT_S: Final = 5.0
TOKEN_FILE: Final = "metrics.token"  # noqa: S105 # its name
_ALL: Final = tuple(group for group in MetricGroup if group is not MetricGroup.USERS)


class _Families:
    """Metrics that are there already, as an encoder wants them."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Return them."""
        return self._families


class MetricsRoutes:
    """Serves metrics.

    Args:
        model: of which they are.
        token: that a scrape over TCP sends.
    """

    def __init__(self, model: ReadModel, token: str) -> None:
        self._model = model
        self._token = token
        self._turn = asyncio.Lock()
        self._kept: dict[tuple[MetricGroup, ...], tuple[float, Sequence[Metric]]] = {}

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [web.get("/metrics", self.every), web.get("/metrics/{group}", self.one)]

    async def every(self, request: web.Request) -> web.StreamResponse:
        """``GET /metrics``: all but those of users."""
        return await self._give(request, _ALL)

    async def one(self, request: web.Request) -> web.StreamResponse:
        """``GET /metrics/GROUP``: of jobs, nodes, partitions (queues), scheduler or users.

        Raises:
            InvalidRequestError: there is no such group, or the site wants no metrics of users.
        """
        name = request.match_info["group"]
        if name not in set(MetricGroup):
            raise InvalidRequestError(
                f"/metrics/{name[:40]}: unknown", hint=f"use one of: {', '.join(MetricGroup)}"
            )
        group = MetricGroup(name)
        if group is MetricGroup.USERS and not self._model.config.user_metrics:
            raise InvalidRequestError(
                "/metrics/users: metrics of users are off", hint="set user_metrics in [web] to true"
            )
        return await self._give(request, (group,))

    async def _give(
        self, request: web.Request, groups: tuple[MetricGroup, ...]
    ) -> web.StreamResponse:
        self._check(request)
        async with self._turn:
            made_s, families = self._kept.get(groups, (0.0, ()))
            if not families or self._model.clock.monotonic_s() - made_s > FRESH_S:
                families = await self._families(groups)
                self._kept[groups] = (self._model.clock.monotonic_s(), families)
        encode, kind = choose_encoder(request.headers.get("Accept", ""))
        text = await asyncio.to_thread(encode, _Families(families))
        return web.Response(body=text, headers={"Content-Type": kind})

    def _check(self, request: web.Request) -> None:
        """Check that a request is of this machine, has the token, or is of somebody logged in.

        Raises:
            NotPermittedError: it is not, and needs it.
        """
        access = self._model.config.metrics_access
        word, _, given = request.headers.get("Authorization", "").partition(" ")
        has_token = word.lower() == "bearer" and hmac.compare_digest(
            given.strip().encode(), self._token.encode()
        )
        if access == "everyone" or (access == "token" and has_token):
            return
        try:
            peer_of(request)
        except NotPermittedError:
            hint = (
                "send the token of metrics.token as 'Authorization: Bearer TOKEN'; see gschedd(8)"
            )
            if access == "none":
                hint = "use the Unix socket, or set metrics_access in [web]"
            raise NotPermittedError("metrics are not open on this address", hint=hint) from None

    async def _families(self, groups: tuple[MetricGroup, ...]) -> Sequence[Metric]:
        model = self._model

        def query(db: sqlite3.Connection) -> list[Metric]:
            return [
                *gauges(db, model.samples, model.clock.wall_s(), groups),
                *counters(db, groups),
            ]

        found = await model.database.read(query)
        return [*found, *await self._scheduler()] if MetricGroup.SCHEDULER in groups else found

    async def _scheduler(self) -> list[Metric]:
        """Return metrics of the head, as it gives them, and of the monitor."""
        model = self._model
        found: list[Metric] = []
        try:
            text = await model.head.text("/v1/metrics", timeout_s=HEAD_TIMEOUT_S)
        except GschedError:
            text = ""
        found += text_string_to_metric_families(text)
        values = (
            ("gsched_up", "1: the head answers.", float(bool(text))),
            ("gsched_monitor_events_behind", "Events still to be read.", model.behind),
            ("gsched_monitor_sample_age_seconds", "Age of the newest samples.", model.sample_age_s),
        )
        for name, help_text, value in values:
            if value is not None:
                found.append(GaugeMetricFamily(name, help_text, value=value))
        return found


def token_of(state_dir: str) -> str:
    """Return the token of scrapes over TCP, which is made at the first start."""
    path = os.path.join(state_dir, TOKEN_FILE)
    try:
        with open(path, encoding="ascii") as file:
            token = file.read(256).strip()
    except FileNotFoundError:
        token = ""
    if not token:
        token = secrets.token_urlsafe(32)
        replace_file(path, f"{token}\n".encode(), mode=0o600)
    return token

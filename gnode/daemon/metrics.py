"""Metrics of one node for Prometheus, on a Unix socket or a port of this machine."""

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterable, Iterator
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gnode.core.agent import Agent
from gnode.core.table import NodeAttempt
from gnode.daemon.measuring import Meters
from gsched.model.ids import short_job_id
from gsched.model.resources import LiveUse

log = logging.getLogger(__name__)

SOCKET_MODE: Final = 0o660
AGAIN_S: Final = 30.0
_JOB_GAUGES: Final = (
    ("gsched_job_cpu_cores", "Busy cores of a job here.", "cpu_cores"),
    ("gsched_job_memory_bytes", "Memory of a job here.", "memory_bytes"),
    ("gsched_job_gpus_busy", "Sum of the utilisations of a job's GPUs here.", "gpus"),
    ("gsched_job_gpu_memory_bytes", "Memory of a job on its GPUs here.", "gpu_memory_bytes"),
)


class NodeMetrics(Collector):
    """Serves ``/metrics``, ``/livez`` and ``/readyz``.

    Args:
        listen: an absolute path of a Unix socket, or ``HOST:PORT``.
        labels: of jobs: ``job``, ``user``; without ``job`` there are no metrics of jobs.
        agent: what it knows of its attempts.
        meters: what they have measured last.
    """

    def __init__(self, listen: str, labels: tuple[str, ...], agent: Agent, meters: Meters) -> None:
        self._listen = listen
        self._labels = labels
        self._agent = agent
        self._meters = meters
        self._registry = CollectorRegistry()
        ProcessCollector(namespace="gsched_gnode", registry=self._registry)
        self._registry.register(self)

    async def run(self) -> None:
        """Serve until cancelled; a place that cannot be had is tried again."""
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/livez", self._live)
        app.router.add_get("/readyz", self._ready)
        runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await runner.setup()
        try:
            listens = False
            while not listens:
                listens = await self._listens(runner)
                await asyncio.sleep(0.0 if listens else AGAIN_S)
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()

    async def _listens(self, runner: web.AppRunner) -> bool:
        try:
            await self._site(runner).start()
            if self._listen.startswith("/"):
                os.chmod(self._listen, SOCKET_MODE)
        except OSError as error:
            log.error("no metrics on %s: %s", self._listen, error)
            return False
        return True

    def _site(self, runner: web.AppRunner) -> web.BaseSite:
        if self._listen.startswith("/"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._listen)
            return web.UnixSite(runner, self._listen)
        host, _, port = self._listen.rpartition(":")
        return web.TCPSite(runner, host.strip("[]"), int(port))

    async def _live(self, _: web.Request) -> web.StreamResponse:
        return web.Response(text="ok\n")

    async def _ready(self, _: web.Request) -> web.StreamResponse:
        problem = self._agent.closed
        if not self._agent.welcomed:
            problem = "not connected to the head"
        return web.Response(text=f"{problem or 'ok'}\n", status=503 if problem else 200)

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        encode, kind = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(self._registry), headers={"Content-Type": kind})

    def collect(self) -> Iterable[Metric]:
        """Yield the node, its GPUs, and its jobs where the site wants them."""
        agent, load = self._agent, self._meters.load.load()
        values = (
            ("gsched_gnode_connected", "1: a head is being obeyed.", agent.welcomed),
            ("gsched_gnode_accepts_jobs", "0: the node has a problem.", not agent.closed),
            ("gsched_gnode_attempts", "Attempts on this node.", len(agent.live())),
            ("gsched_gnode_load1", "Load average.", load.load1),
            ("gsched_gnode_cpu_busy_ratio", "CPU time in use, 0 to 1.", load.cpu_percent / 100),
            ("gsched_gnode_memory_used_bytes", "Memory in use.", load.memory_used_bytes),
        )
        for name, text, value in values:
            yield GaugeMetricFamily(name, text, value=value)
        dropped = CounterMetricFamily(
            "gsched_gnode_messages_dropped", "Messages that did not fit.", labels=["reason"]
        )
        for reason, count in agent.dropped.items():
            dropped.add_metric([reason], count)
        yield dropped
        gpus = GaugeMetricFamily(
            "gsched_gpu_busy_ratio", "Utilisation of a GPU, 0 to 1.", labels=["gpu"]
        )
        memory = GaugeMetricFamily(
            "gsched_gpu_memory_used_bytes", "Memory of a GPU in use.", labels=["gpu"]
        )
        for index, percent in enumerate(load.gpu_util_percent):
            gpus.add_metric([str(index)], percent / 100)
        for index, used in enumerate(load.gpu_memory_used_bytes):
            memory.add_metric([str(index)], used)
        yield from (gpus, memory)
        if "job" in self._labels:
            yield from self._jobs(load.gpu_util_percent)

    def _jobs(self, busy_percent: tuple[float, ...]) -> Iterator[Metric]:
        uses = self._meters.attempts.live
        names = [name for name in ("job", "user") if name in self._labels]
        live = [(each, self._values(each)) for each in self._agent.live()]
        for name, text, field in _JOB_GAUGES:
            family = GaugeMetricFamily(name, text, labels=names)
            for attempt, labels in live:
                use: LiveUse | None = uses.get(attempt.key)
                if use is not None:
                    family.add_metric(labels, getattr(use, field))
            yield family
        of_gpus = GaugeMetricFamily(
            "gsched_job_gpu_busy_ratio", "Utilisation of a job's GPU.", labels=[*names, "gpu"]
        )
        for attempt, labels in live:
            for index in attempt.gpu_indices:
                if index < len(busy_percent):
                    of_gpus.add_metric([*labels, str(index)], busy_percent[index] / 100)
        yield of_gpus

    def _values(self, attempt: NodeAttempt) -> list[str]:
        user = attempt.task.user if attempt.task is not None else ""
        values = {"job": short_job_id(attempt.key.job), "user": user}
        return [values[name] for name in ("job", "user") if name in self._labels]

"""Predictions beside what was measured: of past jobs, and of what runs now."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from aiohttp import web

from gsched.clock import Clock
from gsched.model.job import Owner
from gsched.protocol import predictions as p
from gschedd.core.requests.authorize import Verb, may
from gschedd.core.state.learning import expected_use, load_of, rates_of
from gschedd.core.state.records import Node
from gschedd.core.state.settings import Caller
from gschedd.http.answers import answer
from gschedd.http.callers import Callers
from gschedd.http.filters import history_filter, own_history
from gschedd.http.shown import ShownHead
from gschedd.models.measures import Q
from gschedd.plan.load import NodeRates, Use
from gschedd.store.history import Scored, Spread, Spreads
from gschedd.store.reader import Reader

T = TypeVar("T")


class Predictions:
    """Handlers of the routes; with a thread of their own, so that no short query waits for them."""

    def __init__(
        self, *, engine: ShownHead, callers: Callers, reader: Reader, clock: Clock
    ) -> None:
        self._engine = engine
        self._callers = callers
        self._reader = reader
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="predictions")

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.get("/v1/history/predictions", self.past),
            web.get("/v1/nodes/predictions", self.nodes),
        ]

    async def _read(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    @property
    def _learns(self) -> bool:
        return self._engine.head.model is not None

    async def past(self, request: web.Request) -> web.StreamResponse:
        """``GET /v1/history/predictions``: filters as of ``GET /v1/history``."""
        caller = self._callers.of(request)
        server = self._engine.head.settings.server
        wanted = own_history(history_filter(request.query, server=server), caller)
        await self._engine.shown()
        found, total, spreads = await self._read(lambda: self._reader.scored(wanted))
        return answer(
            p.PredictionsReply(
                server=self._engine.head.settings.server,
                now_s=self._clock.wall_s(),
                learns=self._learns,
                rows=tuple(prediction_row(each, caller) for each in found),
                total_runs=total,
                errors=_spreads_row(spreads),
                more=total > len(found),
            )
        )

    async def nodes(self, request: web.Request) -> web.StreamResponse:
        """``GET /v1/nodes/predictions``."""
        self._callers.of(request)
        await self._engine.shown()
        nodes = self._engine.head.state.nodes
        names = sorted(nodes)
        errors = await self._read(lambda: self._reader.node_spreads(names))
        return answer(
            p.NodePredictions(
                server=self._engine.head.settings.server,
                now_s=self._clock.wall_s(),
                learns=self._learns,
                nodes=tuple(self._node_row(nodes[name], errors[name]) for name in names),
            )
        )

    def _node_row(self, node: Node, errors: Spreads) -> p.NodePredictionRow:
        state = self._engine.head.state
        jobs = len(state.by_node.get(node.name, ()))
        expected, unpredicted = expected_use(state, node.name)
        load = load_of(node, jobs)
        return p.NodePredictionRow(
            name=node.name,
            has=_capacity_row(rates_of(node.inventory)),
            jobs=jobs,
            unpredicted=unpredicted,
            predicted=_use_row(expected),
            measured=None if load is None else _use_row(load.used),
            heartbeat_s=node.heartbeat_s,
            errors=_spreads_row(errors),
        )

    def close(self) -> None:
        """Wait for the thread and close its connection."""
        self._thread.shutdown(wait=True)
        self._reader.close()


def prediction_row(scored: Scored, caller: Caller) -> p.PredictionRow:
    """Return a past run as a caller sees it; a kind names programs, its owner's own business."""
    run = scored.run
    record, predicted = run.record, run.prediction
    owner = Owner(user=scored.user, uid=record.kind.owner_uid, gid=0)
    allowed = may(caller, Verb.READ_DETAILS, owner)
    cpu, memory, gpu, gpu_memory, wall = scored.errors
    return p.PredictionRow(
        job=run.job,
        attempt=run.attempt,
        node=record.node,
        name=scored.name,
        user=scored.user,
        ended_s=record.ended_s,
        measured=p.CostRow(use=_use_row(record.used), wall_s=record.wall_s),
        succeeded=record.succeeded,
        kind=record.kind.key if allowed else "",
        basis="" if predicted is None else predicted.basis.value,
        records=0 if predicted is None else predicted.records,
        predicted=None
        if predicted is None
        else p.CostRow(use=_use_row(predicted.use), wall_s=predicted.wall_s),
        high=None
        if predicted is None
        else p.CostRow(use=_use_row(predicted.high), wall_s=predicted.wall_high_s),
        errors=p.ErrorsRow(cpu=cpu, memory=memory, gpu=gpu, gpu_memory=gpu_memory, wall=wall),
    )


def _use_row(use: Use) -> p.UseRow:
    return p.UseRow(
        cpu_cores=use.cpu_cores,
        memory_bytes=use.memory_bytes,
        gpus=use.gpus,
        gpu_memory_bytes=use.gpu_memory_bytes,
    )


def _capacity_row(rates: NodeRates) -> p.UseRow:
    return p.UseRow(
        cpu_cores=rates.cores,
        memory_bytes=rates.memory_bytes,
        gpus=rates.gpus,
        gpu_memory_bytes=rates.gpu_memory_bytes,
    )


def _spreads_row(spreads: Spreads) -> p.SpreadsRow:
    return p.SpreadsRow(
        cpu=_spread_row(spreads[Q.CPU]),
        memory=_spread_row(spreads[Q.MEMORY]),
        gpu=_spread_row(spreads[Q.GPU]),
        gpu_memory=_spread_row(spreads[Q.GPU_MEMORY]),
        wall=_spread_row(spreads[Q.WALL]),
    )


def _spread_row(spread: Spread | None) -> p.SpreadRow | None:
    if spread is None:
        return None
    return p.SpreadRow(runs=spread.runs, median=spread.median, p90=spread.p90)

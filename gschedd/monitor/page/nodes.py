"""Nodes and GPUs: how they are, who has them, and their use over time."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from aiohttp import web
from msgspec import Struct, structs

from gsched.cli.show.nodelist import node_words, shown_reason, shown_state
from gsched.cli.times import format_moment
from gsched.errors import HeadUnreachableError, UnknownNodeError
from gsched.model.host_lists import compact
from gsched.model.ids import short_job_id
from gsched.model.units import format_duration, format_size
from gsched.model.window import NodeWindow
from gsched.protocol.node_rows import NodeList, NodeRow
from gsched.protocol.samples import GpuUseSample, NodeUseSample
from gschedd.monitor.history import NodePoint, node_points, period_s
from gschedd.monitor.link import HINT
from gschedd.monitor.model import ReadModel
from gschedd.monitor.page.charts import Chart, chart
from gschedd.monitor.page.queue import table_of
from gschedd.monitor.page.shown import (
    AWAY_S,
    KEPT_S,
    PAGE_ROWS,
    PATIENCE_S,
    ShownJobs,
    page_number,
    take_note,
)
from gschedd.monitor.page.site import Pages
from gschedd.monitor.viewers import Viewer

#: Nodes of a page.
NODES: Final = 60
#: How long the list of nodes is shown again, seconds.
FRESH_S: Final = 3.0
#: Periods of charts: seconds, by name.
SPANS: Final[Mapping[str, float]] = {"hour": 3600, "day": 86400, "week": 604800, "month": 2592000}
_MEGABYTE: Final = 1 << 20


def away(model: ReadModel) -> HeadUnreachableError:
    """Return that the head does not answer, where a page has nothing to show without it."""
    head = model.head
    return HeadUnreachableError(head.silence or "the head does not answer", hint=head.hint or HINT)


def old_words(age_s: float) -> str:
    """Return the warning of a page that shows what it has kept, while the head does not answer."""
    return f"the head does not answer; this list is {format_duration(age_s)} old"


class GpuLine(Struct, frozen=True, kw_only=True):
    """A GPU as a line of a list; ``busy`` is None where it is not measured."""

    node: str
    index: int
    type: str
    busy: float | None
    memory: str
    jobs: tuple[int, ...]
    users: str
    state: str


class NodePages:
    """The lists of nodes and GPUs, and the page of each node and GPU."""

    def __init__(self, site: Pages, model: ReadModel, shown: ShownJobs) -> None:
        self._site = site
        self._model = model
        self._shown = shown
        self._kept: tuple[float, NodeList | None] = (0.0, None)
        self._reading: asyncio.Task[NodeList] | None = None

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            self._site.shows("/nodes", self.nodes),
            self._site.shows("/nodes/{name}", self.node),
            self._site.shows("/nodes/{name}/gpus/{index:[0-9]{1,4}}", self.gpu),
            self._site.shows("/gpus", self.gpus),
        ]

    async def listed(self, viewer: Viewer) -> NodeList:
        """Return all nodes, the same for every viewer; where the head is busy those of before.

        Raises:
            HeadUnreachableError: the head does not answer, and never has.
        """
        kept_s, kept = self._kept
        age_s = self._model.clock.monotonic_s() - kept_s
        if kept is not None and age_s < FRESH_S:
            return kept
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_nodes(viewer))
            self._reading.add_done_callback(take_note)
        if kept is not None and age_s < KEPT_S:
            done, _ = await asyncio.wait({self._reading}, timeout=PATIENCE_S)
            if not done:
                return kept
        try:
            async with asyncio.timeout(AWAY_S):
                return await asyncio.shield(self._reading)
        except (HeadUnreachableError, TimeoutError):
            if kept is None:
                raise away(self._model) from None
            return structs.replace(kept, warning=old_words(age_s))

    async def _read_nodes(self, viewer: Viewer) -> NodeList:
        found = await self._model.head.get("/v1/nodes", NodeList, viewer=viewer)
        self._kept = (self._model.clock.monotonic_s(), found)
        return found

    def _node_samples(self) -> dict[str, NodeUseSample]:
        samples = self._model.samples
        return {} if samples is None else {each.name: each for each in samples.nodes}

    async def nodes(self, request: web.Request, viewer: Viewer) -> web.StreamResponse:
        """``GET /nodes``."""
        reply = await self.listed(viewer)
        closed = request.query.get("closed", "")
        name = request.query.get("name", "").strip()
        rows = [
            each
            for each in reply.nodes
            if name in each.name and (not closed or shown_state(each) != "up")
        ]
        number = page_number(request)
        first = NODES * (number - 1)
        samples = self._node_samples()
        return self._site.page(
            "nodes.html",
            viewer,
            title="Nodes",
            here="/nodes",
            rows=[
                (each, shown_state(each), shown_reason(each), _busy_gpus(samples.get(each.name)))
                for each in rows[first : first + NODES]
            ],
            total=len(rows),
            name=name,
            closed=closed,
            number=number,
            page_count=-(-len(rows) // NODES),
            sums=_sums(reply.nodes),
            windows=[
                (window, format_moment(window.from_s), format_moment(window.to_s), compact(names))
                for window, names in windows_of(reply.nodes)
            ],
            warning=reply.warning,
            size=format_size,
        )

    async def node(self, request: web.Request, viewer: Viewer) -> web.StreamResponse:
        """``GET /nodes/NAME``: what it has, its jobs, and the use of each of its GPUs."""
        name = request.match_info["name"]
        reply = await self.listed(viewer)
        row = next((each for each in reply.nodes if each.name == name), None)
        if row is None:
            raise UnknownNodeError(f"unknown node {name[:100]!r}", hint="see the list of nodes")
        jobs = await self._shown.rows(list(row.jobs[:PAGE_ROWS]), viewer)
        span, since_s, until_s = self._span(request)
        points = await self._model.database.read(lambda db: node_points(db, name, since_s, until_s))
        return self._site.page(
            "node.html",
            viewer,
            title=f"Node {name}",
            here="/nodes",
            row=row,
            state=shown_state(row),
            reason=shown_reason(row),
            words=node_words(row, reply.now_s),
            job_id=short_job_id,
            table=table_of(jobs),
            warning=jobs.warning,
            spans=SPANS,
            span=span,
            cpu=self._chart("CPUs", [(at, each.cpu) for at, each in points], since_s, until_s),
            memory=self._chart(
                "Memory in use",
                [(at, each.memory_mb / 1024) for at, each in points],
                since_s,
                until_s,
                unit="GiB",
                most=row.memory_bytes / _MEGABYTE / 1024,
            ),
            gpus=[
                (index, self._busy_chart(index, points, since_s, until_s))
                for index in sorted({index for _, each in points for index in each.gpus})
            ],
        )

    async def gpu(self, request: web.Request, viewer: Viewer) -> web.StreamResponse:
        """``GET /nodes/NAME/gpus/INDEX``: its use over time, and by whom."""
        name, index = request.match_info["name"], int(request.match_info["index"])
        sample = self._node_samples().get(name)
        gpu = next((each for each in sample.gpus if each.index == index), None) if sample else None
        if sample is None or gpu is None:
            raise UnknownNodeError(
                f"node {name[:100]!r} has no GPU {index}", hint="see the list of GPUs"
            )
        span, since_s, until_s = self._span(request)
        points = await self._model.database.read(lambda db: node_points(db, name, since_s, until_s))
        used = [(at, each.gpus[index]) for at, each in points if index in each.gpus]
        numbers = list(dict.fromkeys(job for _, each in used for job in each.jobs))
        jobs = await self._shown.rows(numbers[-1 : -PAGE_ROWS - 1 : -1], viewer)
        return self._site.page(
            "gpu.html",
            viewer,
            title=f"GPU {index} of {name}",
            here="/gpus",
            node=name,
            index=index,
            line=gpu_line(sample, index, gpu, self._users(viewer)),
            busy=self._busy_chart(index, points, since_s, until_s),
            memory=self._chart(
                "Memory in use",
                [(at, each.memory_mb / 1024) for at, each in used],
                since_s,
                until_s,
                unit="GiB",
                most=gpu.memory_bytes / _MEGABYTE / 1024,
            ),
            spans=SPANS,
            span=span,
            table=table_of(jobs),
            warning=jobs.warning,
        )

    async def gpus(self, request: web.Request, viewer: Viewer) -> web.StreamResponse:
        """``GET /gpus``: each GPU with its use at the moment and who has it."""
        users = self._users(viewer)
        lines = [
            gpu_line(sample, at, gpu, users)
            for _, sample in sorted(self._node_samples().items())
            for at, gpu in enumerate(sample.gpus)
        ]
        name, user = (request.query.get(field, "").strip() for field in ("name", "user"))
        lines = [
            each for each in lines if name in each.node and user in {"", *each.users.split(", ")}
        ]
        counts = {name: sum(each.state == name for each in lines) for name in GPU_STATES}
        wanted = request.query.get("state", "")
        if wanted in GPU_STATES:
            lines = [each for each in lines if each.state == wanted]
        number = page_number(request)
        first = PAGE_ROWS * (number - 1)
        return self._site.page(
            "gpus.html",
            viewer,
            title="GPUs",
            here="/gpus",
            lines=lines[first : first + PAGE_ROWS],
            counts={"": sum(counts.values()), **counts},
            wanted=wanted if wanted in GPU_STATES else "",
            given={"name": name, "user": user},
            total=len(lines),
            number=number,
            page_count=-(-len(lines) // PAGE_ROWS),
            job_id=short_job_id,
        )

    def _users(self, viewer: Viewer) -> dict[int, str]:
        """Return the owners of running jobs, as far as a viewer sees them."""
        samples, only = self._model.samples, self._model.only(viewer)
        jobs = () if samples is None else samples.jobs
        return {each.id: each.user for each in jobs if not only or each.user == only}

    def _span(self, request: web.Request) -> tuple[str, float, float]:
        """Return the period of charts: its name, its begin and its end."""
        name = request.query.get("span", "hour")
        name = name if name in SPANS else "hour"
        until_s = self._model.clock.wall_s()
        return name, until_s - SPANS[name], until_s

    def _busy_chart(
        self, index: int, points: Sequence[tuple[int, NodePoint]], since_s: float, until_s: float
    ) -> Chart:
        figures = [
            (float(at_s), each.gpus[index].busy) for at_s, each in points if index in each.gpus
        ]
        return self._chart(
            f"GPU {index} busy",
            [(at_s, busy) for at_s, busy in figures if busy is not None],
            since_s,
            until_s,
        )

    def _chart(
        self,
        title: str,
        points: Sequence[tuple[float, float]],
        since_s: float,
        until_s: float,
        *,
        unit: str = "%",
        most: float = 100.0,
    ) -> Chart:
        sample_s = self._model.config.sample_period_s
        return chart(
            title,
            points,
            since_s=since_s,
            until_s=until_s,
            period_s=period_s(since_s, until_s, sample_s),
            unit=unit,
            most=most,
        )


#: States of GPUs in lists: whose filter they are.
_BUSY, _UNUSED, _FREE, _OUTSIDE = "busy", "held, idle", "free", "outside"
GPU_STATES: Final = (_BUSY, _UNUSED, _FREE, _OUTSIDE)


def gpu_line(node: NodeUseSample, at: int, gpu: GpuUseSample, users: Mapping[int, str]) -> GpuLine:
    """Return the line of a GPU: the one at a place of its node's sample."""
    load = node.load
    busy = load.gpu_util_percent if load is not None else ()
    memory = load.gpu_memory_used_bytes if load is not None else ()
    used = format_size(memory[at]) if at < len(memory) and memory[at] else "0"
    has_size = gpu.memory_bytes > 0
    state = _OUTSIDE if gpu.outside else _FREE if not gpu.jobs else _UNUSED if gpu.unused else _BUSY
    return GpuLine(
        node=node.name,
        index=gpu.index,
        type=gpu.type,
        busy=busy[at] if at < len(busy) else None,
        memory=f"{used} of {format_size(gpu.memory_bytes)}" if has_size else "",
        jobs=gpu.jobs,
        users=", ".join(sorted({users[job] for job in gpu.jobs if job in users})),
        state=state,
    )


def windows_of(rows: Sequence[NodeRow]) -> list[tuple[NodeWindow, list[str]]]:
    """Return windows of maintenance in order of time, each with its nodes.

    Nodes of one order may have been given other times since: they are windows of their own.
    """
    found: dict[NodeWindow, list[str]] = {}
    for row in rows:
        for window in row.windows:
            found.setdefault(window, []).append(row.name)
    return sorted(found.items(), key=lambda pair: (pair[0].from_s, pair[0].number))


def _busy_gpus(sample: NodeUseSample | None) -> float | None:
    """Return the mean use of a node's GPUs, percent; None: it is not measured."""
    busy = sample.load.gpu_util_percent if sample is not None and sample.load is not None else ()
    return sum(busy) / len(busy) if busy else None


def _sums(rows: Sequence[NodeRow]) -> dict[str, int]:
    return {
        "cpus": sum(each.cpus for each in rows),
        "cpus_used": sum(each.cpus - each.cpus_free for each in rows),
        "gpus": sum(each.gpus for each in rows),
        "gpus_used": sum(each.gpus - each.gpus_free for each in rows),
        "closed": sum(shown_state(each) != "up" for each in rows),
    }

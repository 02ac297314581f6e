"""The monitor's process: ``python -m gschedd.monitor.worker``, a child of the head.

It reads the head's database and writes its own, so it can neither block nor harm the head, and
another one goes on where it was killed.
"""

import gsched.start  # isort: skip - before all that it speeds up

import asyncio
import contextlib
import logging
import os
import sqlite3
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from aiohttp import web

from gsched.clock import Clock, SystemClock
from gsched.errors import ConfigError, GschedError
from gsched.files import replace_file
from gsched.logs import Complaints
from gsched.model.ids import short_job_id
from gsched.protocol.stories import JobStories
from gschedd.http.listening import web_port, web_port_path
from gschedd.monitor.accounting import Accounting
from gschedd.monitor.database import Database
from gschedd.monitor.ended_sessions import DamagedListError, EndedSessions
from gschedd.monitor.feed import Feed, ModelPart
from gschedd.monitor.health import HealthRoutes
from gschedd.monitor.history import UseHistory
from gschedd.monitor.link import HeadLink
from gschedd.monitor.metrics.counts import MetricCounts, note_forecasts, without_forecast
from gschedd.monitor.metrics.routes import MetricsRoutes, token_of
from gschedd.monitor.model import MonitorBegin, MonitorReport, ReadModel
from gschedd.monitor.page.routes import page_routes
from gschedd.monitor.page.site import Pages
from gschedd.monitor.pulse import PERIOD_S as PULSE_PERIOD_S
from gschedd.monitor.pulse import HeadPulse
from gschedd.monitor.report_routes import ReportRoutes
from gschedd.monitor.serve import listen
from gschedd.monitor.slurm.routes import SlurmRoutes
from gschedd.monitor.store import MonitorStore
from gschedd.monitor.stories import Stories
from gschedd.monitor.unfinished import UnfinishedJobs
from gschedd.monitor.usage import UsageModel
from gschedd.monitor.viewers import Viewers
from gschedd.store.reader import Reader
from gschedd.workers import inside

log = logging.getLogger("gschedd.monitor")

#: How often new events are looked for, seconds.
PERIOD_S: Final = 0.5
#: How often lists of jobs are brought up to date where nobody looks at them.
FOLLOW_PERIOD_S: Final = 10.0
#: How often the starts of some waiting jobs are forecast.
FORECAST_PERIOD_S: Final = 300.0
#: After an error of a database, as a full disk.
PAUSE_S: Final = 5.0
KEY_FILE: Final = "monitor.key"
KEY_BYTES: Final = 32
#: The parts of the read model, in the order in which they take events in.
PARTS: Final[Sequence[Callable[[MonitorBegin], ModelPart]]] = (
    Accounting,  # it needs the usage of the events before
    UsageModel,
    MetricCounts,
    UseHistory,
)


def routes_of(model: ReadModel, site: Pages, state_dir: str) -> Sequence[web.RouteDef]:
    """Return the routes of all that the monitor serves."""
    metrics = MetricsRoutes(model, token_of(state_dir))
    parts = (HealthRoutes(model), metrics, ReportRoutes(model), SlurmRoutes(model))
    return [*(route for part in parts for route in part.routes()), *page_routes(model, site)]


async def work(begin: MonitorBegin, clock: Clock) -> None:
    """Serve until the head has ended."""
    ended = asyncio.Event()
    watching = asyncio.create_task(inside.watch_input(ended))
    path = os.path.join(begin.state_dir, "monitor.db")
    with contextlib.ExitStack() as opened:
        lock = opened.enter_context(open(f"{path}.lock", "ab"))  # noqa: ASYNC230 - a local file
        if not await inside.locked(lock.fileno(), ended):
            return
        complaints = Complaints(log, clock)
        parts = [part(begin) for part in PARTS]
        store = await _opened(begin, path, parts, ended, complaints)
        if store is None:
            return
        opened.callback(store.close)
        reader = Reader(begin.database)
        opened.callback(reader.close)
        await _run(begin, Feed(reader, store, parts), store.path, clock, ended, complaints)
    watching.cancel()


async def _run(
    begin: MonitorBegin,
    feed: Feed,
    path: str,
    clock: Clock,
    ended: asyncio.Event,
    complaints: Complaints,
) -> None:
    config = begin.config
    ended_sessions = _ended_sessions(begin.state_dir)
    key = _key(begin.state_dir)
    head = HeadLink(begin.head_socket)
    async with contextlib.AsyncExitStack() as opened:
        model = ReadModel(
            server=begin.server,
            config=config,
            database=Database(path, begin.database),
            unfinished=UnfinishedJobs(begin.database),
            stories=Stories(begin.database, begin.server, head, clock),
            head=head,
            pulse=HeadPulse(head, clock),
            viewers=Viewers(
                key, ended_sessions, session_s=config.session_hours * 3600, clock=clock
            ),
            clock=clock,
            notify=begin.notify,
            state_dir=begin.state_dir,
            operators=frozenset(begin.operators),
            private=begin.private,
        )
        opened.callback(model.database.close)
        opened.callback(model.unfinished.close)
        opened.callback(model.stories.close)
        opened.push_async_callback(model.head.close)
        address = await _listen(begin, model, opened)
        watching = asyncio.create_task(_watch_head(model, ended))
        opened.callback(watching.cancel)
        await asyncio.to_thread(feed.begin)
        await _feed(model, feed, address, ended, complaints)


async def _listen(begin: MonitorBegin, model: ReadModel, opened: contextlib.AsyncExitStack) -> str:
    """Listen until the end; return the address of the TCP socket, empty if there is none."""
    site = Pages(model)
    try:
        listening = await listen(
            routes_of(model, site, begin.state_dir),
            model=model,
            pages=site.for_browsers,
            path=begin.socket,
            port=web_port(begin.state_dir),
        )
    except ConfigError as error:
        inside.write_report(MonitorReport(trouble=str(error)))
        raise
    opened.push_async_callback(listening.close)
    if listening.address and model.config.listen.endswith(":0"):
        port = listening.address.rpartition(":")[2]
        replace_file(web_port_path(begin.state_dir), port.encode(), mode=0o644)
    return listening.address


async def _feed(
    model: ReadModel, feed: Feed, address: str, ended: asyncio.Event, complaints: Complaints
) -> None:
    """Take events and samples in until the head has ended."""
    last: MonitorReport | None = None
    next_sample_s = next_follow_s = model.clock.monotonic_s()
    next_forecast_s = next_sample_s + FORECAST_PERIOD_S
    while not ended.is_set():
        more, trouble, newest = False, "", feed.newest
        try:
            more = await asyncio.to_thread(feed.step)
            model.behind = feed.behind
            model.version += feed.newest != newest
            if model.clock.monotonic_s() >= next_follow_s:
                next_follow_s = model.clock.monotonic_s() + FOLLOW_PERIOD_S
                await model.unfinished.follow()
            if model.clock.monotonic_s() >= next_sample_s:
                next_sample_s = model.clock.monotonic_s() + model.config.sample_period_s
                await _sample(model, feed)
            if model.clock.monotonic_s() >= next_forecast_s and not model.trouble:
                next_forecast_s = model.clock.monotonic_s() + FORECAST_PERIOD_S
                await _forecast(model, feed)
        except sqlite3.OperationalError as error:
            trouble = str(error)
            complaints.say("records wait", trouble, level=logging.ERROR)
        report = MonitorReport(
            address=address, behind=model.behind, trouble=trouble or model.trouble
        )
        if report != last:
            inside.write_report(report)
            last = report
        await inside.pause(ended, PAUSE_S if trouble else 0.0 if more else PERIOD_S)


async def _watch_head(model: ReadModel, ended: asyncio.Event) -> None:
    """Let pages tell soon that the head does not answer, and that it does again."""
    while not ended.is_set():
        before = model.pulse.trouble
        model.version += await model.pulse.look() != before
        await inside.pause(ended, PULSE_PERIOD_S)


async def _sample(model: ReadModel, feed: Feed) -> None:
    try:
        model.samples = await model.head.samples()
    except GschedError as error:
        model.trouble = error.message
    else:
        model.trouble = ""
        model.version += 1
        await asyncio.to_thread(feed.sample, model.samples)


async def _forecast(model: ReadModel, feed: Feed) -> None:
    """Let the head forecast starts, which metrics compare with the real ones."""
    jobs = await model.database.read(without_forecast)
    if not jobs:
        return
    ids = ",".join(map(short_job_id, jobs))
    try:
        stories = await model.head.get("/v1/stories", JobStories, ids=ids, forecast="1")
    except GschedError:
        return
    await asyncio.to_thread(feed.write, partial(note_forecasts, stories=stories.jobs))


async def _opened(
    begin: MonitorBegin,
    path: str,
    parts: Sequence[ModelPart],
    ended: asyncio.Event,
    complaints: Complaints,
) -> MonitorStore | None:
    """Open the database as soon as the disk has room; None: the head has ended."""
    tables = [table for part in parts for table in part.tables]
    while not ended.is_set():
        try:
            return MonitorStore(path, tables, head=begin.database)
        except sqlite3.DatabaseError as error:
            if not isinstance(error, sqlite3.OperationalError):  # no database, or a damaged one
                log.error("%s: %s; it is set aside and made anew", path, error)
                os.replace(path, f"{path}.damaged")
                continue
            complaints.say("the monitor waits", str(error), level=logging.ERROR)
        except OSError as error:
            complaints.say("the monitor waits", str(error), level=logging.ERROR)
        await inside.pause(ended, PAUSE_S)
    return None


def _ended_sessions(state_dir: str) -> EndedSessions:
    """Return the sessions that are over; where nobody knows which these are, all are."""
    path = os.path.join(state_dir, "monitor.ended")
    try:
        return EndedSessions(path)
    except DamagedListError as error:
        log.error("%s; all sessions of the page are over", error)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(state_dir, KEY_FILE))
        os.unlink(path)
        return EndedSessions(path)


def _key(state_dir: str) -> bytes:
    """Return the secret of sessions, made at the first start."""
    path = os.path.join(state_dir, KEY_FILE)
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        key = file.read(KEY_BYTES + 1)
        if len(key) == KEY_BYTES:
            return key
    key = os.urandom(KEY_BYTES)
    replace_file(path, key, mode=0o600)
    return key


def main() -> None:
    """Run the process."""
    gsched.start.imported()
    try:
        asyncio.run(work(inside.begin(MonitorBegin), SystemClock()))
    except ConfigError as error:
        log.error("%s: %s", error.message, error.hint)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()

"""The head daemon: opens the store, loads the state, serves commands and nodes, stops cleanly."""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware

from gsched import file_systems, watchdog
from gsched.clock import SystemClock
from gsched.config.load import ConfigFile
from gsched.config.tables import Config
from gsched.config.units import BadValueError
from gsched.errors import FencedError, StorageError
from gsched.hangup import OnHangup
from gsched.protocol import api
from gsched.protocol.api import NotifyRow
from gsched.version import VERSION
from gschedd.core.head import Head
from gschedd.core.requests.followers import awaited, recall
from gschedd.core.requests.queues import in_force
from gschedd.core.views.jobs import jobs_by_state, queue_rows
from gschedd.daemon.head_lease import wait_to_rule
from gschedd.daemon.housekeeping import Check, Housekeeping
from gschedd.daemon.lock import HeadLock
from gschedd.daemon.power import PowerSwitches
from gschedd.daemon.reloading import Reloading
from gschedd.daemon.setup import (
    begin_monitoring,
    begin_notifying,
    empty_state,
    keep_from,
    log_odd_jobs,
    make_state_dir,
    privileges,
    relearn,
    settings_from,
    tune_interpreter,
)
from gschedd.daemon.tasks import PeriodicTask, PeriodicTasks
from gschedd.engine.loop import Engine
from gschedd.engine.space import DiskSpace
from gschedd.http.answers import errors
from gschedd.http.audit import AuditLog, audit_path
from gschedd.http.authority import HeadAuthority
from gschedd.http.bodies import Bodies, counted
from gschedd.http.callers import Callers, UserNames
from gschedd.http.channel import NodeChannel
from gschedd.http.code import CodeSnapshots
from gschedd.http.commands import Commands, Parts
from gschedd.http.contents import TextQuota
from gschedd.http.deliveries import Deliveries
from gschedd.http.door import Doors, watched
from gschedd.http.forecasts import Forecasts
from gschedd.http.handover import take_authority
from gschedd.http.handshake import Handshake, Peers
from gschedd.http.host_files import HostFiles
from gschedd.http.hosts import Hosts
from gschedd.http.https import serve_programs
from gschedd.http.internals import Condition, Internals, measured
from gschedd.http.joining import Joining
from gschedd.http.launches import BlobCache, Launches
from gschedd.http.legs import NodeLegs
from gschedd.http.links import Links
from gschedd.http.listening import raise_open_files, serve_nodes, serve_users
from gschedd.http.members import Members
from gschedd.http.node_settings import NodeSettings
from gschedd.http.outputs import Outputs
from gschedd.http.predictions import Predictions
from gschedd.http.queries import Queries, up_nodes
from gschedd.http.queues import Queues
from gschedd.http.resubmit import Resubmissions
from gschedd.http.running import Running
from gschedd.http.safemode import SafeMode
from gschedd.http.samples import SampleQueries
from gschedd.http.schema import OPENAPI
from gschedd.http.sessions import Sessions
from gschedd.http.shown import reads_only_if, warn_in_headers
from gschedd.http.snapshots import Snapshots
from gschedd.http.tasks import TaskRoutes
from gschedd.http.user_tokens import UserTokens
from gschedd.http.witnesses import Witnesses
from gschedd.monitor.model import MonitorBegin, MonitorReport
from gschedd.notify.worker import NotifierBegin, NotifierReport
from gschedd.plan.compose import Composed
from gschedd.planner.process import Worker
from gschedd.policies.registry import Chosen
from gschedd.store.code import CodeStore
from gschedd.store.lineage import Opened
from gschedd.store.queues import begin_overrides, keep_overrides
from gschedd.store.reader import Reader
from gschedd.store.sqlite import Store
from gschedd.workers.kept import KeptWorker

log = logging.getLogger("gschedd")

SHUTDOWN_S = 2.0


class Service:
    """Everything of one running head."""

    def __init__(self, file: ConfigFile, *, chosen: Chosen, given: str | None = None) -> None:
        self._config = config = file.config
        self._file, self._given, self._chosen = file, given, chosen
        self._clock = SystemClock()
        self._started_s = self._clock.wall_s()
        try:
            self._configured = settings_from(config)
        except BadValueError as bad:
            raise file.error(bad) from None
        make_state_dir(config.head.state_dir)
        objection = file_systems.objection(Path(config.head.state_dir))
        if objection:
            log.error("%s: jobs may be lost; choose a state directory on a local disk", objection)
        self._lock = HeadLock(config.head.state_dir)
        self._lock.take()
        self._space = DiskSpace(config.head.state_dir)
        self._space.make_way()
        self._lock.note_pid()
        self._lease = wait_to_rule(config, self._configured, chosen)
        self._store = Store(config.head.state_dir, self._lease.held)
        self._opened: Opened = self._store.open()
        self._overrides = begin_overrides(
            self._store, config.head.state_dir, replicated=self._lease.held is not None
        )
        settings = in_force(self._configured, self._overrides)
        take_authority(self._store.notes, config.head.state_dir)
        self._authority = HeadAuthority(config, self._opened.cluster, settings.server, self._clock)
        state = empty_state(settings, chosen)
        self._damaged = self._store.load(state)
        self._set_aside = frozenset(state.damaged)
        log_odd_jobs(state, settings)
        model = chosen.make_model() if config.history.learn else None
        if model is not None:
            relearn(model, self._store, config.history.learn_rows)
        self._head = Head(
            state=state,
            settings=settings,
            policy=chosen.plan,
            model=model,
            apart=chosen.plan if isinstance(chosen.plan, Composed) else None,
        )
        state.epoch_id = self._opened.epoch_id
        self._doors, self._bodies = Doors(self._clock), Bodies()
        self._node_port, self._web_address = 0, ""
        self._fenced, self._stop = "", asyncio.Event()

    async def _on_successor(self, why: str) -> None:
        """Stop at once: another head orders the nodes now."""
        self._fenced = why
        self._stop.set()

    async def run(self) -> int:
        """Serve until SIGTERM or SIGINT; return the exit code."""
        self._build()
        tune_interpreter()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        self._lease.on_lost(loop, self._on_successor)
        OnHangup(self._reloading.for_signal).install()
        head = self._engine.head
        state = head.state
        recall(state, await self._queries.ended_well(awaited(state)), self._clock.wall_s())
        switches = PowerSwitches(self._links, lambda: head.settings.config.power)
        engine = asyncio.create_task(self._engine.run(switches), name="engine")
        open_files = raise_open_files()
        await self._listen_for_users(open_files)
        stopping = asyncio.create_task(self._stop.wait())
        alive = asyncio.create_task(watchdog.feed(), name="watchdog")
        begun = asyncio.create_task(self._engine.begun.wait())
        await asyncio.wait({engine, stopping, begun}, return_when=asyncio.FIRST_COMPLETED)
        if not begun.done():  # stopped while the disk is full, or the store failed
            code = self._why_stopped({engine})
            await self._shut(engine, stopping, alive, begun)
            return code
        self._node_port = await serve_nodes(  # they learn of this start when it is durable
            self._doors,
            self._config.head,
            routes=self._channel.routes(),
            open_files=open_files,
            tls=self._authority.context,
        )
        self._space.is_low()  # the ballast is there before anything can fill the disk
        log.info(
            "gschedd %s serves %s: cluster %s, epoch %d, %d jobs, nodes connect to port %d",
            VERSION,
            self._config.head.socket,
            self._opened.cluster,
            self._opened.epoch,
            len(self._head.state.jobs),
            self._node_port,
        )
        keeping = asyncio.create_task(self._tasks.run(), name="tasks")
        telling = asyncio.create_task(self._links.keep_witnesses(), name="high water")
        waiting = asyncio.create_task(self._sessions.waiting.run(), name="interactive jobs")
        work = {engine, keeping, telling, waiting}
        leases = (self._lease.watch(self._doors), self._joining.ruling.keep())
        for part in (self._notifier.run(), self._monitor.run(), *leases):
            work.add(asyncio.create_task(part, name="worker process or lease"))
        await asyncio.wait({*work, stopping}, return_when=asyncio.FIRST_COMPLETED)
        code = self._why_stopped(work)
        await self._shut(*work, stopping, alive)
        return code

    def _build(self) -> None:  # noqa: PLR0915 # one statement a part
        head = self._head
        self._planner = self._worker("planner")
        self._engine = Engine(
            head=head,
            store=self._store,
            clock=self._clock,
            space=self._space,
            planner=self._planner,
            books_of=self._chosen.books_of,
        )
        self._code_store = CodeStore(
            os.path.join(self._config.head.state_dir, "code"),
            limits=self._config.limits,
            shared=self._lease.files,
        )
        self._housekeeping = Housekeeping(
            store=self._store,
            in_writer=self._engine.in_writer,
            clock=self._clock,
            keep=keep_from(self._config),
            code=self._code_store,
        )
        self._audit = AuditLog(audit_path(self._config.head), self._clock)
        self._make_workers()
        self._check_reader = Reader(self._store.path)
        self._check = Check(self._check_reader, self._clock, self._damaged)
        self._tasks = self._make_tasks()
        self._blob_reader, self._text_reader = Reader(self._store.path), Reader(self._store.path)
        blobs = BlobCache(self._blob_reader.blob)
        launches = Launches(
            state=head.state, blobs=blobs, server=head.settings.server, cluster=self._opened.cluster
        )
        self._witnesses = Witnesses(
            self._opened.cluster, self._opened.lineage, head.state.volatile.quarantined
        )
        members = Members(self._store, in_writer=self._engine.in_writer, clock=self._clock)
        peers = Peers(self._opened.cluster, members.is_revoked)
        handshake = Handshake(peers=peers, witnesses=self._witnesses, refusal=self._lease.refusal)
        self._legs = NodeLegs(handshake, self._clock, head.oddities)
        self._links = Links(engine=self._engine, launches=launches, clock=self._clock)
        self._links.reached(self._store.reached)
        self._forecasts = Forecasts(
            head=head,
            worker=self._worker("forecaster"),
            time_limit_s=self._config.training.planning_limit_s,
            clock=self._clock,
        )
        callers = Callers(settings=lambda: head.settings, names=UserNames(self._clock))
        self._queries = Queries(
            engine=self._engine,
            callers=callers,
            reader=Reader(self._store.path),
            long_reader=Reader(self._store.path),
            clock=self._clock,
            bodies=self._bodies,
            forecasts=self._forecasts,
            status=self._status,
        )
        self._samples = SampleQueries(state=head.state, callers=callers, clock=self._clock)
        self._internals = Internals(
            engine=self._engine, callers=callers, space=self._space, condition=self._condition
        )
        self._sessions = Sessions(
            engine=self._engine,
            callers=callers,
            links=self._links,
            legs=self._legs,
            find=self._queries.find,
            clock=self._clock,
        )
        self._hosts = Hosts(head, callers, self._legs, self._witnesses, self._clock)
        self._safe_mode = SafeMode(
            engine=self._engine,
            store=self._store,
            links=self._links,
            witnesses=self._witnesses,
            opened=self._opened,
            was_there=self._queries.was_there,
        )
        self._predictions = Predictions(
            engine=self._engine, callers=callers, reader=Reader(self._store.path), clock=self._clock
        )
        self._snapshots = Snapshots(
            engine=self._engine, callers=callers, clock=self._clock, policy=self._chosen.name
        )
        self._queues = Queues(
            engine=self._engine,
            callers=callers,
            bodies=self._bodies,
            configured=self._configured,
            overrides=self._overrides,
            keep=lambda changes: self._engine.in_writer(
                partial(keep_overrides, self._store, self._config.head.state_dir, changes)
            ),
        )
        self._task_routes = TaskRoutes(
            tasks=self._tasks, callers=callers, bodies=self._bodies, clock=self._clock
        )
        self._reloading = Reloading(
            self._given,
            self._file,
            queues=self._queues,
            take=self._take,
            settled=self._monitor.settled,
            node_port=lambda: self._node_port,
            nodes=NodeSettings(self._file, self._links, head.state, callers),
            clock=self._clock,
        )
        self._running = Running(
            callers=callers,
            config=lambda: self._reloading.config,
            settings=lambda: head.settings,
            node_port=lambda: self._node_port,
            started_s=self._started_s,
            reload=self._reloading.reload,
        )
        files = HostFiles(self._links, self._hosts, lambda: head.settings)
        self._deliveries = Deliveries(head, files, Reader(self._store.path), self._clock)
        self._outputs = Outputs(
            state=head.state,
            find=self._queries.find,
            callers=callers,
            bodies=self._bodies,
            links=self._links,
            deliveries=self._deliveries,
        )
        self._code = CodeSnapshots(
            self._code_store,
            state=head.state,
            callers=callers,
            bodies=self._bodies,
            clock=self._clock,
        )
        self._joining = Joining(
            authority=self._authority,
            members=members,
            peers=peers,
            callers=callers,
            bodies=self._bodies,
            links=self._links,
            logins=self._hosts.connected,
            settings=lambda: head.settings,
            known_nodes=lambda: list(head.state.nodes),
            node_port=lambda: self._node_port,
            web_address=lambda: self._web_address,
            node_settings=self._reloading.nodes,
            clock=self._clock,
        )
        self._user_tokens = UserTokens(
            self._store,
            in_writer=self._engine.in_writer,
            callers=callers,
            bodies=self._bodies,
            address=lambda: self._web_address,
            clock=self._clock,
        )
        self._channel = NodeChannel(
            engine=self._engine,
            links=self._links,
            clock=self._clock,
            handshake=handshake,
            witnesses=self._witnesses,
            safe_mode=self._safe_mode,
            legs=self._legs,
            hosts=self._hosts,
            code=self._code,
            deliveries=self._deliveries,
            joining=self._joining,
            on_fenced=self._on_successor,
            timeout_s=self._config.head.node_timeout_s,
        )
        self._texts = TextQuota(
            self._text_reader.text_bytes,
            most_bytes=self._config.limits.texts_per_user_bytes,
            clock=self._clock,
        )
        parts = Parts(
            engine=self._engine,
            callers=callers,
            bodies=self._bodies,
            blobs=blobs,
            space=self._space,
            store=self._store,
            clock=self._clock,
            queries=self._queries,
            members=self._joining.members,
            safe_mode=self._safe_mode,
            forecasts=self._forecasts,
            expect_client=self._sessions.waiting.expect,
            code=self._code,
            texts=self._texts,
        )
        self._commands = Commands(parts)
        self._resubmissions = Resubmissions(parts)

    def _make_workers(self) -> None:
        """Make the processes that tell of jobs and serve the page; they are not started yet."""
        head = self._head
        self._notify_after = self._store.reached[0]
        path = self._store.path

        def notifying() -> NotifierBegin | None:
            return begin_notifying(head.settings, newest=self._notify_after, database=path)

        def monitoring() -> MonitorBegin | None:
            return begin_monitoring(head.settings, database=path)

        self._notifier = KeptWorker(
            "notifier", "gschedd.notify.worker", notifying, NotifierReport()
        )
        self._monitor = KeptWorker("monitor", "gschedd.monitor.worker", monitoring, MonitorReport())

    def _make_tasks(self) -> PeriodicTasks:
        """Return what is done periodically: a row for each task, whose name is a key of [tasks]."""
        rows = (
            PeriodicTask(name="purge", run=self._housekeeping.purge),
            PeriodicTask(name="purge_users", run=self._housekeeping.purge_users),
            PeriodicTask(name="check_rows", run=self._check.look, at_start=True),
        )
        return PeriodicTasks(
            rows,
            self._config.tasks,
            store=self._store,
            in_writer=self._engine.in_writer,
            clock=self._clock,
        )

    def _take(self, config: Config) -> None:
        """Give a configuration that was read again to the parts that do not ask the core."""
        before = self._reloading.config
        self._housekeeping.keep = keep_from(config)
        self._code_store.limits = config.limits
        self._tasks.configure(config.tasks)
        self._texts.most_bytes = config.limits.texts_per_user_bytes
        if config.notify != before.notify:
            if not before.notify.is_on:
                self._notify_after = self._store.reached[0]
            self._notifier.restart()
        both = (before, config)
        watched = [(each.web, each.history, each.notify, *privileges(each.head)) for each in both]
        if watched[0] != watched[1]:
            self._monitor.restart()

    def _worker(self, name: str) -> Worker | None:
        """Return a process in which policies run, not started yet; None where none do."""
        rounds = self._head.rounds
        if rounds is None:
            return None
        limit_s = self._config.training.planning_limit_s
        return Worker(rounds.policy, name=name, time_limit_s=limit_s, clock=self._clock)

    async def _listen_for_users(self, open_files: int) -> None:
        parts = (
            *(self._queries, self._predictions, self._snapshots, self._sessions),
            *(self._task_routes, self._queues, self._running, self._commands, self._resubmissions),
            *(self._code, self._outputs, self._samples, self._internals),
            *(self._hosts, self._joining, self._user_tokens, self._reloading.nodes),
        )
        lease = self._lease
        changes = reads_only_if(lease.refusal)
        outer = (measured(self._engine.measures), watched, self._audit.middleware())
        inner = (counted(self._bodies), errors, changes)

        def served(*gates: Middleware) -> web.Application:
            app = web.Application(middlewares=[*outer, *gates, *inner], logger=log)
            app.add_routes([OPENAPI, *(route for part in parts for route in part.routes())])
            warn_in_headers(app, lambda: lease.warning(self._engine.warning), lease.refusal)
            return app

        self._hosts.relays.door = await serve_users(
            self._doors,
            served(),
            self._config.head.socket,
            operator_uids=lambda: self._head.settings.operators.uids,
            open_files=open_files,
            listener=lease.listener,
        )
        if self._config.https.listen:
            self._web_address = await serve_programs(
                self._doors, self._config.https, served, self._user_tokens, self._authority
            )

    def _why_stopped(self, work: Iterable[asyncio.Task[None]]) -> int:
        ended = [task for task in work if task.done()]
        if self._fenced:
            error = FencedError(self._fenced, hint=self._lease.advice)
            log.critical("%s: stopping. %s", error, error.hint)
            return error.exit_code
        if not ended:
            log.info("stopping: running jobs go on under their supervisors")
            return 0
        fault = ended[0].exception()
        if isinstance(fault, StorageError):
            log.critical("%s: stopping at once, nothing more is guaranteed. %s", fault, fault.hint)
            return fault.exit_code
        log.critical("the head's own fault", exc_info=fault)
        return 70

    async def _shut(self, *tasks: asyncio.Task[object]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._doors.close()
        await self._forecasts.close()
        for worker in (self._notifier, self._monitor):
            await worker.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SHUTDOWN_S):
                await self._sessions.close()
                await self._links.close()
                await self._doors.cleanup()
        self._audit.close()
        self._engine.close()
        if self._planner is not None:
            await self._planner.close()
        for part in (
            *(self._queries, self._predictions, self._blob_reader, self._text_reader),
            *(self._check_reader, self._deliveries, self._store, self._lease),
        ):
            part.close()
        self._space.keep_room()
        self._lock.release()

    def _notify_row(self) -> NotifyRow | None:
        if not self._notifier.is_on:
            return None
        report = msgspec.to_builtins(self._notifier.report)
        return NotifyRow(trouble=self._notifier.trouble, **report)

    def _damaged_rows(self) -> tuple[str, ...]:
        """Return the rows of the database that cannot be read, in words."""
        return tuple(
            text
            for text, row in self._check.damaged.items()
            if row.job not in self._set_aside or row.job in self._head.state.damaged
        )

    def _condition(self) -> Condition:
        workers = (self._notifier, self._monitor)
        troubles = {each.name: each.trouble for each in workers if each.is_on}
        if self._planner is not None:
            troubles |= {"planner": self._planner.trouble, "forecaster": self._forecasts.trouble}
        return Condition(
            started_s=self._started_s,
            database_bytes=os.path.getsize(self._store.path),
            damaged=len(self._damaged_rows()),
            troubles=troubles,
            notify=self._notify_row(),
        )

    def _status(self) -> api.StatusReply:
        head = self._head
        return api.StatusReply(
            server=head.settings.server,
            version=VERSION,
            api_version=api.API_VERSION,
            cluster=self._opened.cluster,
            epoch=self._safe_mode.opened.epoch,
            epoch_id=self._safe_mode.opened.epoch_id,
            quarantined=dict(self._witnesses.quarantined),
            pid=os.getpid(),
            started_s=self._started_s,
            now_s=self._clock.wall_s(),
            jobs=jobs_by_state(head.state),
            nodes_up=up_nodes(head),
            nodes=len(head.state.nodes),
            cycles=head.cycles,
            last_cycle_s=self._engine.last_cycle_s,
            safe_mode=head.safe_mode,
            policy=self._chosen.name,
            socket=self._config.head.socket,
            node_address=f"{self._config.head.node_host}:{self._node_port}",
            database=self._store.path,
            dropped=dict(head.oddities),
            scheduling=head.settings.scheduling,
            planner=self._planner.trouble if self._planner is not None else "",
            forecaster=self._forecasts.trouble,
            monitor=self._monitor.complaint,
            notify=self._notify_row(),
            queues=tuple(head.settings.queues),
            stalled=self._engine.stalled or self._engine.waiting,
            disk=self._space.row(),
            config=self._reloading.row,
            queue_rows=queue_rows(head.state, head.settings.queues),
            damaged=self._damaged_rows(),
        )

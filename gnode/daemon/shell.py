"""Runs the agent: takes inputs in order, lets it decide, and does what it wants done."""

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial, singledispatchmethod

from gnode.core import effects as do
from gnode.core import probe
from gnode.core.agent import Agent
from gnode.core.inputs import (
    AlarmRang,
    BindingChanged,
    Disconnected,
    EpilogEnded,
    Input,
    LaunchFailed,
    LeftoverGone,
    ProblemChanged,
    Recalled,
    SpoolFound,
    StopAllRequested,
    Welcomed,
)
from gnode.core.task import AttemptKey
from gnode.daemon import leftovers, native_build, starts
from gnode.daemon.accounts import Accounts
from gnode.daemon.channel import Channel, TakeSettings
from gnode.daemon.commands import CommandSocket
from gnode.daemon.deliveries import Outboxes
from gnode.daemon.dialling import HeadDialler
from gnode.daemon.elastic import ElasticServer
from gnode.daemon.ended import EndedLog
from gnode.daemon.ends import AttemptEnds
from gnode.daemon.launching import LauncherClient
from gnode.daemon.measuring import LoadAfterEnds, Meters, measure
from gnode.daemon.neighbours import Neighbours
from gnode.daemon.parts import DaemonIdentity
from gnode.daemon.reading import OutputReader
from gnode.daemon.registration import node_registration
from gnode.daemon.removals import TRASH_PREFIX, RecordRemoval, Remover
from gnode.daemon.sessions import NodeSessions
from gnode.daemon.shared_gpus import SharedGpus
from gnode.daemon.space import LOOK_S
from gnode.daemon.spool import NodeSpool
from gnode.daemon.steps import StepServer
from gnode.daemon.writes import Writes
from gsched import watchdog
from gsched.clock import Clock
from gsched.failpoint import failpoint
from gsched.model.job import LaunchFailure
from gsched.model.states import LaunchStage, Subject
from gsched.model.wording import binding_words
from gsched.protocol.framing import known_pieces

log = logging.getLogger(__name__)

INPUTS_AT_ONCE = 500  # then the loop serves connections again
SPOOL_LOOK_S = 5.0
EPILOG_AGAIN_S = 1.0  # the process that ran it was killed, or could not be forked


class Shell:
    """One node daemon, without process-wide matters (signals, lock): those are `main`'s.

    Args:
        has_spool: whether the state directory is still the one that gnode has locked.

    Attributes:
        spool_lost: it ended since that was not so.
        beside: what else runs until it ends.
        take_settings: takes settings of the cluster; set before `run`.
    """

    take_settings: TakeSettings

    def __init__(
        self,
        *,
        identity: DaemonIdentity,
        agent: Agent,
        spool: NodeSpool,
        meters: Meters,
        clock: Clock,
        has_spool: Callable[[], bool],
    ) -> None:
        self.spool_lost = False
        self.beside: list[Callable[[], Coroutine[None, None, None]]] = []
        self._has_spool = has_spool
        self._identity = identity
        self._agent = agent
        self._spool = spool
        self._clock = clock
        self._meters = meters
        self._sharing = identity.sharing
        self._inputs: deque[Input] = deque()
        self._drain_planned = False
        self._load_after_ends = LoadAfterEnds(meters.load)
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at_s: float | None = None
        self._finished = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._killing: set[AttemptKey] = set()
        self._reader = OutputReader()
        self._remover = Remover()
        self._ended = EndedLog(spool.state_dir)
        self._writes = Writes()
        self._ways: dict[type[do.Effect], Callable[[Shell, do.Effect], None]] = {}
        self._starts = starts.Starts(spool, self.post)
        self._answers = starts.Answers(spool, self.post)
        self._launcher = LauncherClient(
            spool.state_dir,
            self.post,
            lambda *end: self._ends.launcher_says(*end),  # noqa: PLW0108 # it is made below
            self._on_epilog,
            identity.rules,
            partial(native_build.library, spool.state_dir) if identity.native_supervisor else str,
        )
        self._ends = AttemptEnds(
            agent,
            spool,
            load=self._load_after_ends,
            starts=self._starts,
            answers=self._answers,
            post=self.post,
            kept=self._launcher.kept,
            start=self._start,
        )
        self._records = RecordRemoval(
            self._ended,
            remove=spool.remove,
            clear=self._remover.remove,
            gone=self._ends.removed,
            start=self._start,
        )
        self._steps = StepServer(
            node=identity.node,
            attempts=agent.attempts,
            send=lambda message: self._channel.send(message),  # noqa: PLW0108 # it is made below
            is_connected=lambda: agent.welcomed,
            takes_logins=lambda: agent.takes_logins,
            clock=clock,
        )
        self._elastic = ElasticServer(
            path=identity.elastic_socket,
            attempts=agent.attempts,
            post=self.post,
            steps=self._steps,
            clock=clock,
        )
        self._neighbours = Neighbours(
            identity.cpus, self._on_neighbours, prefix=identity.neighbours
        )
        self._channel = Channel(
            heads=identity.heads,
            trusted=identity.trusted,
            node=identity.node,
            certificates=identity.certificates,
            post=self.post,
            on_job=self._steps.take,
            on_relay=lambda answer: self._commands.take(answer),  # noqa: PLW0108 # it is made below
            lookup=Accounts(clock),
            files=identity.rules.owner_files(spool.outboxes.root),
            on_delivery=lambda answer: self._outboxes.take(answer),  # noqa: PLW0108 # it is made below
            on_settings=lambda message: self.take_settings(message),  # noqa: PLW0108 # made later
        )
        self._outboxes = Outboxes(
            node=identity.node,
            places=spool.outboxes,
            state_dir=spool.state_dir,
            send=self._channel.send,
            is_connected=lambda: agent.welcomed,
            post=self.post,
            remover=self._remover,
            clock=clock,
        )
        self._shared_gpus = SharedGpus(
            node=identity.node,
            sharing=identity.sharing,
            post=self.post,
            renew=self._channel.renew,
            live=agent.live,
        )
        dialler = HeadDialler(identity)
        self._commands = CommandSocket(
            identity, dialler, send=self._channel.send, is_connected=lambda: agent.welcomed
        )
        self._sessions = NodeSessions(
            node=identity.node, dialler=dialler, directory=spool.directory, send=self._channel.send
        )

    # --- life ---

    @property
    def lacks_library(self) -> bool:
        """Return whether the library that runs plain jobs cannot be had."""
        return self._launcher.lacks_library

    async def run(self) -> None:
        """Run until `finish`, or until the agent says that all its attempts have ended."""
        self._shared_gpus.notify()
        ended = self._ended.keys()
        found = self._ends.find(ended)
        tasks = [each.task for each in found if each.task is not None and each.record is None]
        prepared = self._begin(self._shared_gpus.prepare(tasks))
        self._step(SpoolFound(found=found, ended=ended))
        for path in self._spool.scratch.abandoned({found.key.name for found in found}):
            is_trash = os.path.basename(path).startswith(TRASH_PREFIX)
            # what is not may get its name again: a new attempt of the same number may come
            (self._remover.remove if is_trash else self._remover.add)(path)
        self._outboxes.resume({found.key for found in found})
        self._step(self._meters.health.pending())
        if self._identity.cpus:
            await self._neighbours.start()
        async with asyncio.TaskGroup() as group:
            running = [
                group.create_task(self._launcher.run()),
                group.create_task(self._connect(prepared)),
                group.create_task(self._elastic.run()),
                group.create_task(self._commands.run()),
                group.create_task(
                    measure(self._agent, self._meters, self._sharing, self._clock, self.post)
                ),
                group.create_task(self._remover.run()),
                group.create_task(self._watch_spool()),
                group.create_task(self._outboxes.run()),
                group.create_task(self._watch_space()),
                group.create_task(
                    self._meters.health.run(self._clock, lambda: not self._agent.live(), self.post)
                ),
                group.create_task(self._shared_gpus.watch()),
                group.create_task(watchdog.feed()),
            ]
            running += [group.create_task(run()) for run in self.beside]
            await self._finished.wait()
            for task in running:
                task.cancel()
            for helper in self._tasks:
                helper.cancel()
        mark = self._agent.unsaved_mark
        if mark is not None:
            self._spool.write_mark(mark)
        self._launcher.stop()
        self._writes.close()
        self._starts.close()
        self._answers.close()
        self._sharing.close()
        self._neighbours.close()
        self._steps.close()
        self._ends.close()
        if self._alarm is not None:
            self._alarm.cancel()

    async def _connect(self, prepared: "asyncio.Task[None]") -> None:
        """Serve the head; no job may come to a GPU while its MIG instances are made."""
        if self._sharing.changes_gpus:
            await asyncio.wait([prepared])
        await self._channel.run()

    async def _watch_spool(self) -> None:
        """End the daemon once its spool was wiped: it knows nothing of what it will find there."""
        while True:
            await asyncio.sleep(SPOOL_LOOK_S)
            if not self._has_spool():
                self.spool_lost = True
                self.finish()

    async def _watch_space(self) -> None:
        """Tell the agent when the spool's space gets short, and when it is enough again."""
        known = ""
        while True:
            problem = await asyncio.to_thread(self._meters.space.problem)
            if problem != known:
                known = problem
                if problem:
                    log.warning("taking no new jobs: %s", problem)
                else:
                    log.info("taking new jobs again")
                self.post(ProblemChanged(problem=problem))
                self._writes.again()
            await asyncio.sleep(LOOK_S)

    def _on_neighbours(self, count: int) -> None:
        """Bind jobs to CPUs only where no other node of this machine does."""
        others = f"{count} other node{'s' * (count != 1)}"
        reason = f"{others} on this machine use{'s' * (count == 1)} the same CPUs" if count else ""
        if reason:
            log.info("new jobs are not bound to CPUs: %s", binding_words(f"none: {reason}"))
        else:
            log.info("new jobs are bound to CPUs again")
        self.post(BindingChanged(reason=reason))

    def finish(self) -> None:
        """End the daemon and leave the jobs to their supervisors."""
        self._finished.set()

    def stop_all(self) -> None:
        """End all attempts, then the daemon."""
        self.post(StopAllRequested())

    def shut_down(self) -> None:
        """End all attempts, as the machine shuts down, then the daemon."""
        self.post(ProblemChanged(problem="the machine shuts down"))
        self.post(StopAllRequested(shuts_down=True))

    # --- inputs ---

    def post(self, event: Input) -> None:
        """Take an input; it is handled in this turn of the event loop or the next."""
        self._inputs.append(event)
        if not self._drain_planned:
            self._drain_planned = True
            asyncio.get_running_loop().call_soon(self._drain)

    def _drain(self) -> None:
        self._drain_planned = False
        for measured in self._load_after_ends.take():
            self._step(measured)
        for _ in range(min(len(self._inputs), INPUTS_AT_ONCE)):
            self._step(self._inputs.popleft())
        self._launcher.flush()
        self._plan_alarm()
        if self._inputs and not self._drain_planned:
            self._drain_planned = True
            asyncio.get_running_loop().call_soon(self._drain)

    def _step(self, event: Input) -> None:
        if isinstance(event, Disconnected):
            self._sessions.close_all()
            self._commands.close_all()
        elif isinstance(event, Welcomed):
            self._commands.welcomed(is_here=self._channel.is_local)
            asyncio.get_running_loop().call_soon(self._outboxes.connected)
            self._steps.pieces.connected()
        for effect in self._agent.step(event, self._clock.monotonic_s(), self._clock.wall_s()):
            self._carry_out(effect)

    def _plan_alarm(self) -> None:
        due_s = self._agent.next_alarm_s()
        if due_s == self._alarm_at_s:
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at_s, self._alarm = due_s, None
        if due_s is not None:
            wait_s = max(0.0, due_s - self._clock.monotonic_s())
            self._alarm = asyncio.get_running_loop().call_later(wait_s, self._ring)

    def _ring(self) -> None:
        self._alarm, self._alarm_at_s = None, None
        self.post(AlarmRang())

    def _kill_again(self, effect: do.KillLeftover) -> None:
        attempt = self._agent.attempts.get(effect.key)
        if effect.key.job == probe.JOB or (attempt is not None and attempt.live):
            self._do(effect)

    def _on_epilog(self, key: AttemptKey) -> None:
        """Take the result of an epilog; one whose process was killed runs again."""
        try:
            fault = self._spool.read_epilog(key)
        except OSError as error:
            self._ends.unreadable.again(key, str(error), "epilog", partial(self._on_epilog, key))
            return
        if fault is not None:
            self.post(EpilogEnded(key=key, fault=fault))
        else:
            self._start(self._run_epilog_again(key))

    async def _run_epilog_again(self, key: AttemptKey) -> None:
        await asyncio.sleep(EPILOG_AGAIN_S)
        self._launcher.run_epilog(key)
        self._launcher.flush()

    # --- effects ---

    def _carry_out(self, effect: do.Effect) -> None:
        way = self._ways.get(type(effect))
        if way is None:  # `_do` itself looks it up more slowly, each time
            way = vars(Shell)["_do"].dispatcher.dispatch(type(effect))
            self._ways[type(effect)] = way
        way(self, effect)

    @singledispatchmethod
    def _do(self, effect: do.Effect) -> None:
        raise TypeError(f"no such effect: {effect!r}")

    @_do.register
    def _(self, effect: do.AcceptTask) -> None:
        key = effect.task.key
        try:
            self._spool.write_task(effect.task)
        except OSError as error:
            message = f"node {self._identity.node} cannot keep the job: {error}"
            failure = LaunchFailure(
                stage=LaunchStage.SPOOL, subject=Subject.NODE, errno=error.errno or 0
            )
            self.post(LaunchFailed(key=key, message=message, failure=failure))
            return
        failpoint("node.launch.after_accepted")

    @_do.register
    def _(self, effect: do.AdmitSharing) -> None:
        self._start(self._shared_gpus.admit(effect))

    @_do.register
    def _(self, effect: do.EndSharing) -> None:
        self._start(self._shared_gpus.end(effect))

    @_do.register
    def _(self, effect: do.AttendSharing) -> None:
        self._start(self._shared_gpus.attend(effect))

    @_do.register
    def _(self, effect: do.AskLaunch) -> None:
        self._launcher.ask(effect.key, confined=effect.confined)

    @_do.register
    def _(self, effect: do.SendToHead) -> None:
        self._channel.send(effect.message)

    @_do.register
    def _(self, effect: do.TellJob) -> None:
        self._elastic.tell(effect)

    @_do.register
    def _(self, effect: do.AwaitStart) -> None:
        self._starts.await_start(effect.key)

    @_do.register
    def _(self, effect: do.AwaitAnswer) -> None:
        self._answers.await_answer(effect)

    @_do.register
    def _(self, effect: do.CommandSupervisor) -> None:
        def write() -> None:
            if effect.key not in self._agent.attempts or self._spool.read_exit(effect.key):
                return  # it is over: nobody reads orders any more
            self._spool.append_command(effect.key, effect.command)
            starts.wake(effect.pid, effect.start_ticks)

        self._writes.do(_orders_for(effect.key), write)

    @_do.register
    def _(self, effect: do.KeepLaunched) -> None:
        task = effect.task
        self._writes.do(_orders_for(task.key), lambda: self._spool.write_launched(task))

    @_do.register
    def _(self, effect: do.RemoveContainer) -> None:
        if not self._spool.was_cleaned(effect.key):  # by its supervisor
            self._launcher.clean(effect.key)

    @_do.register
    def _(self, effect: do.RunEpilog) -> None:
        self._launcher.run_epilog(effect.key)

    @_do.register
    def _(self, effect: do.DeliverOutput) -> None:
        self._outboxes.deliver(effect)

    @_do.register
    def _(self, effect: do.RemoveFiles) -> None:
        if not os.path.lexists(effect.user_dir):
            return  # its supervisor has removed it
        if self._spool.scratch.owns(effect.user_dir):
            self._remover.add(effect.user_dir)

    @_do.register
    def _(self, effect: do.Bury | do.RemoveSpool) -> None:
        self._records.add(effect)

    @_do.register
    def _(self, effect: do.RecallEnded) -> None:
        self._start(self._recall(effect))

    @_do.register
    def _(self, effect: do.TellKnown) -> None:
        self._start(self._tell_known(effect))

    @_do.register
    def _(self, effect: do.WriteExit) -> None:
        record = effect.record
        key = AttemptKey(record.job, record.attempt)
        if os.path.isdir(self._spool.directory(key)):  # else it was never accepted
            self._writes.do(
                f"the exit record of {key.name}", lambda: self._spool.write_exit(record)
            )

    @_do.register
    def _(self, effect: do.LookAtSpool) -> None:
        self.post(SpoolFound(found=self._ends.look(*effect.keys)))

    @_do.register
    def _(self, effect: do.KillLeftover) -> None:
        try:
            is_over = self._spool.read_exit(effect.key) is not None
        except OSError as error:  # its supervisor may serve another attempt by now
            self._ends.unreadable.again(
                effect.key, str(error), "kill", partial(self._kill_again, effect)
            )
            return
        if is_over:
            self._ends.read(effect.key)  # it has just ended, so its supervisor is not to be harmed
        elif effect.key not in self._killing:
            self._killing.add(effect.key)
            self._start(self._kill(effect))

    @_do.register
    def _(self, effect: do.SetAside) -> None:
        self._writes.do(
            f"{effect.key.name} to lost+found", lambda: self._spool.set_aside(effect.key)
        )

    @_do.register
    def _(self, effect: do.SendRegister) -> None:
        self._channel.register(
            lambda address: node_registration(
                self._identity,
                effect,
                address,
                inventory=self._sharing.shareable(self._identity.inventory),
                load=self._meters.load.load(),
                sharing=self._sharing.offered,
            )
        )

    @_do.register
    def _(self, effect: do.RefuseHead) -> None:
        self._channel.refuse(effect.message)

    @_do.register
    def _(self, effect: do.SaveMark) -> None:
        mark = effect.mark
        self._writes.replace("the mark of the head", lambda: self._spool.write_mark(mark))

    @_do.register
    def _(self, effect: do.KeepRenewal) -> None:
        for key in effect.keys:
            try:
                self._spool.write_renewal(key, effect.renewed_s)
            except OSError as error:
                log.warning("attempt %s: its lease cannot be renewed: %s", key.name, error)

    @_do.register
    def _(self, effect: do.ReadFile) -> None:
        self._start(self._read(effect))

    @_do.register
    def _(self, effect: do.ConnectTerminal) -> None:
        self._start(self._sessions.connect(effect))

    @_do.register
    def _(self, effect: do.Warn) -> None:
        log.warning("%s", effect.text)

    @_do.register
    def _(self, effect: do.Finish) -> None:  # noqa: ARG002 - chosen by its type
        self.finish()

    # --- effects that take time ---

    def _start(self, work: Coroutine[None, None, None]) -> None:
        _ = self._begin(work)

    def _begin(self, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.result()  # a fault of ours ends the daemon: see the loop's exception handler

    async def _recall(self, effect: do.RecallEnded) -> None:
        key = AttemptKey(effect.launch.job, effect.launch.attempt)
        found = await asyncio.to_thread(self._ended.find, key)
        self.post(Recalled(launch=effect.launch, found=found))

    async def _tell_known(self, effect: do.TellKnown) -> None:
        pieces = await asyncio.to_thread(lambda: tuple(known_pieces(self._ended.answer(effect))))
        for piece in pieces:
            self._channel.send(piece)

    async def _kill(self, effect: do.KillLeftover) -> None:
        await leftovers.kill_leftover(effect)
        self._killing.discard(effect.key)
        self.post(LeftoverGone(key=effect.key))

    async def _read(self, effect: do.ReadFile) -> None:
        self._channel.send(await self._reader.read(effect))


def _orders_for(key: AttemptKey) -> str:
    """Return the subject of what is written for a supervisor: it is written in order."""
    return f"an order for attempt {key.name}"

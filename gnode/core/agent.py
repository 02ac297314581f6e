"""The node's agent: every decision a node takes, as one function of inputs and time.

The daemon drives it with real processes and a real connection, the simulator with modelled ones.
"""

from collections.abc import Iterable
from dataclasses import replace

from msgspec import structs

from gnode.core import lives, orders, preparing, probe, sessions, training_jobs
from gnode.core.cpus import CpuMap
from gnode.core.effects import (
    Effect,
    Finish,
    RefuseHead,
    SaveMark,
    SendRegister,
    SendToHead,
    TellKnown,
    Warn,
)
from gnode.core.inputs import (
    Admitted,
    AlarmRang,
    BindingChanged,
    ConfigRead,
    Disconnected,
    HeadOffered,
    HeadOrder,
    HealthChanged,
    Input,
    InventoryChanged,
    LauncherDown,
    LauncherUp,
    LaunchOrder,
    LeaseRenewed,
    Measured,
    OutputReturned,
    ProblemChanged,
    Recalled,
    ShareAbused,
    SharingChanged,
    SharingStatus,
    SiteChanged,
    SpoolFound,
    StopAllRequested,
    SupervisorAnswered,
    SurveyReceived,
    TrainingMessage,
    Welcomed,
)
from gnode.core.live import LiveReports
from gnode.core.mark import HeadMark, objection_to
from gnode.core.site import Site
from gnode.core.table import NodeAttempt, Table
from gnode.core.task import AttemptKey
from gnode.core.transitions import Phase
from gsched.model.gpu_outside import GpuUse
from gsched.model.gpu_tokens import sharing_state
from gsched.model.health import HealthResult
from gsched.model.resources import Inventory, Usage
from gsched.model.states import StopReason
from gsched.protocol.node import (
    HEARTBEAT_S,
    ExitAck,
    GoOn,
    Heartbeat,
    HighWater,
    Probe,
    ReadOutput,
    Retime,
    Signal,
    StopAttempt,
    TakeCheckpoint,
    TuneTraining,
)
from gsched.protocol.sessions import OpenSession

MachineEvent = (
    Measured
    | InventoryChanged
    | ProblemChanged
    | HealthChanged
    | ConfigRead
    | BindingChanged
    | SharingStatus
    | ShareAbused
    | SharingChanged
    | SiteChanged
    | StopAllRequested
)

#: How old the durable mark may be, seconds: each time costs a flush.
MARK_SAVE_S = 2.0
FIRST_USAGE_S = 5.0  # of its run time, when an attempt's use is told first
SHARING_HEARTBEAT_S = 60.0  # the most between two while jobs share GPUs
LAST_WORDS_S = 10.0  # how long a node that ends its jobs waits for the head to hear of it


class Agent:
    """One node's agent.

    Args:
        site: what the machine is and allows.
        inventory: what the machine has.
        mark: of the heads that were obeyed, as `SaveMark` kept it; one without a cluster joins
            whichever head knows the key.
        heartbeat_s: seconds between two heartbeats.
    """

    def __init__(
        self,
        site: Site,
        inventory: Inventory,
        *,
        mark: HeadMark | None = None,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        kept = mark or HeadMark()
        self._table = Table(
            site=site,
            inventory=inventory,
            mark=kept,
            saved_mark=kept,
            cpu_map=CpuMap(site.cpus),
        )
        self._save_at_s: float | None = None
        self._live = LiveReports()
        self._prober = probe.Prober(self._table)
        self._heartbeat_s = heartbeat_s
        self._heartbeat_at_s: float | None = None
        self._beaten_s = 0.0
        self._finish_at_s: float | None = None
        self._finished = False

    # --- what the shell may look at ---

    @property
    def attempts(self) -> dict[AttemptKey, NodeAttempt]:
        """Return the attempts that are known; only to be read."""
        return self._table.attempts

    def live(self) -> list[NodeAttempt]:
        """Return the attempts that may have processes; only to be read."""
        return self._table.live()

    @property
    def dropped(self) -> dict[str, int]:
        """Return counted warnings by name; only to be read."""
        return self._table.dropped

    @property
    def welcomed(self) -> bool:
        """Return whether a head is being obeyed."""
        return self._table.welcomed

    @property
    def closed(self) -> str:
        """Return why the node takes no new jobs; empty: it does."""
        return self._table.closed

    @property
    def takes_logins(self) -> bool:
        """Return whether a head is being obeyed that opens parts of jobs for logins."""
        return self._table.welcomed

    @property
    def unsaved_mark(self) -> HeadMark | None:
        """Return the mark if the durable one is older; None: there is nothing to save."""
        table = self._table
        return table.mark if table.mark != table.saved_mark and table.mark.cluster else None

    def next_alarm_s(self) -> float | None:
        """Return when `AlarmRang` is due next, on the clock of ``now_s``; None for never."""
        table = self._table
        beat_s = self._beat_due_s()
        times = [] if beat_s is None else [beat_s]
        if self._save_at_s is not None:
            times.append(self._save_at_s)
        if self._finish_at_s is not None and not self._finished:
            times.append(self._finish_at_s)
        if table.stopping:
            kills = (attempt.kill_at_s for attempt in table.stopping.values())
            times.extend(kill_at_s for kill_at_s in kills if kill_at_s is not None)
        if table.removals:
            times.append(table.removals[0][0])
        if self._prober.due_s is not None:
            times.append(self._prober.due_s)
        lease_s = table.leases.next_alarm_s()
        if lease_s is not None:
            times.append(lease_s)
        return min(times, default=None)

    # --- the one step ---

    def step(self, event: Input, now_s: float, wall_s: float) -> list[Effect]:
        """Take in one event and return what is to be done, in order.

        Args:
            event: what has happened.
            now_s: a clock that never jumps, for intervals.
            wall_s: seconds since the epoch, for records.
        """
        table = self._table
        match event:
            case LaunchOrder() | HeadOrder():
                self._on_order(event, now_s, wall_s)
            case Recalled() | SurveyReceived() | LeaseRenewed():
                self._on_past(event, now_s, wall_s)
            case HeadOffered() | Welcomed() | Disconnected():
                self._on_connection(event, now_s)
            case AlarmRang():
                self._on_alarm(now_s)
            case TrainingMessage():
                training_jobs.report(table, event.message)
            case (
                Measured()
                | InventoryChanged()
                | SharingStatus()
                | ShareAbused()
                | SharingChanged()
                | SiteChanged()
                | ProblemChanged()
                | HealthChanged()
                | ConfigRead()
                | BindingChanged()
                | StopAllRequested()
            ):
                self._on_machine(event, now_s, wall_s)
            case SpoolFound():
                self._on_spool(event, now_s, wall_s)
            case _:
                self._on_supervisor(event, wall_s)
        preparing.launch_waiting(table, now_s, wall_s)
        if self.unsaved_mark is not None:
            self._plan_save(now_s)
        table.leases.plan(now_s)
        if table.ending is not None:
            self._maybe_finish(now_s)
        effects, table.out = table.out, []
        return effects

    def _on_spool(self, event: SpoolFound, now_s: float, wall_s: float) -> None:
        for key in event.ended:
            self._table.remember(key)
        for found in sorted(event.found, key=lambda found: found.key):
            if found.key.job == probe.JOB:
                self._prober.on_found(found)
            else:
                lives.spool_found(self._table, found, now_s, wall_s)

    def _on_supervisor(self, event: lives.SupervisorEvent, wall_s: float) -> None:
        if isinstance(event, LauncherUp | LauncherDown):
            lives.supervisor_event(self._table, event, wall_s)
            self._prober.on_launcher_up()
        elif isinstance(event, Admitted | SupervisorAnswered) or event.key.job != probe.JOB:
            lives.supervisor_event(self._table, event, wall_s)
        elif not isinstance(event, OutputReturned):  # a probe has none
            self._prober.on_event(event)

    def _maybe_finish(self, now_s: float) -> None:
        if self._finished or self._table.live_of_job:
            return
        if self._finish_at_s is None:
            self._finish_at_s = now_s + LAST_WORDS_S
        attempts = self._table.attempts.values()
        unheard = any(attempt.phase is Phase.ENDED for attempt in attempts)
        if not unheard or not self._table.welcomed or now_s >= self._finish_at_s:
            self._finished = True
            self._table.out.append(Finish())

    def _on_past(
        self, event: Recalled | SurveyReceived | LeaseRenewed, now_s: float, wall_s: float
    ) -> None:
        table = self._table
        match event:
            case Recalled():
                orders.recalled(table, event, wall_s)
            case SurveyReceived():
                known = tuple(each.known() for each in table.attempts.values() if not each.prepared)
                table.out.append(TellKnown(attempts=known, survey=event.survey))
                table.out.extend(table.leases.connected(now_s))
            case LeaseRenewed():
                self._on_renewed(event.number, now_s, wall_s)

    # --- the connection ---

    def _on_connection(self, event: HeadOffered | Welcomed | Disconnected, now_s: float) -> None:
        match event:
            case HeadOffered():
                self._on_offer(event)
            case Welcomed():
                self._on_welcome(event, now_s)
            case Disconnected():
                preparing.discard_all(self._table, now_s)
                self._table.welcomed = False
                self._table.leases.disconnected()
                self._heartbeat_at_s = None

    def _on_offer(self, event: HeadOffered) -> None:
        table = self._table
        objection = self._objection(event)
        if objection is not None and event.cluster != table.mark.cluster:
            table.out.append(RefuseHead(message=objection))
            return
        if objection is not None:
            # It must hear of it: our mark tells it to start nothing. Should it welcome us all the
            # same, it is refused then.
            table.out.append(Warn(text=objection))
        reports = tuple(
            attempt.report()
            for attempt in table.attempts.values()
            if attempt.phase is not Phase.ACKED and not (attempt.prepared and attempt.live)
        )
        table.out.append(
            SendRegister(
                attempts=reports,
                mark=table.mark,
                probes=table.site.probe_account is not None,
                problem=table.closed,
                health=table.health,
                config=table.config,
                cpu_binding=table.cpu_binding,
                gpu_sharing=table.gpu_sharing,
                gpu_use=table.gpu_use,
            )
        )

    def _objection(self, event: HeadOffered | Welcomed) -> str | None:
        return objection_to(
            self._table.mark, cluster=event.cluster, epoch=event.epoch, epoch_id=event.epoch_id
        )

    def _on_welcome(self, event: Welcomed, now_s: float) -> None:
        table = self._table
        objection = self._objection(event)
        if objection is not None:
            table.out.append(RefuseHead(message=objection))
            return
        before = table.mark
        table.mark = structs.replace(
            before,
            cluster=event.cluster,
            epoch=event.epoch,
            epoch_id=event.epoch_id,
            seq=event.seq,
            next_job=event.next_job,
        )
        if (before.cluster, before.epoch, before.epoch_id) != (
            event.cluster,
            event.epoch,
            event.epoch_id,
        ):
            self._save_mark()  # before anything that this head orders is done
        table.welcomed = True
        self._beaten_s, self._heartbeat_at_s = now_s, now_s + self._heartbeat_s
        table.out.extend(table.leases.connected(now_s))
        self._live.connected()
        for attempt in table.attempts.values():
            if attempt.phase is not Phase.ACKED:
                orders.answer_state(table, attempt)
                training_jobs.repeat(table, attempt)

    def _on_high_water(self, message: HighWater) -> None:
        mark = self._table.mark
        self._table.mark = structs.replace(
            mark,
            seq=max(mark.seq, message.seq),
            next_job=max(mark.next_job, message.next_job),
        )

    def _plan_save(self, now_s: float) -> None:
        """Save the mark soon: not each time that it changes, as that costs a flush."""
        if self._save_at_s is None:
            self._save_at_s = now_s + MARK_SAVE_S
        elif self._save_at_s <= now_s:
            self._save_mark()

    def _save_mark(self) -> None:
        table = self._table
        self._save_at_s = None
        table.saved_mark = table.mark
        table.out.append(SaveMark(mark=table.mark))

    # --- orders ---

    def _on_renewed(self, number: int, now_s: float, wall_s: float) -> None:
        """Take in an answer to `Renew`: also of a head in safe mode, which is not obeyed."""
        table = self._table
        table.out.extend(table.leases.renewed(number))
        for launch in table.leases.take_held():
            self._on_order(launch, now_s, wall_s)

    def _on_order(self, event: LaunchOrder | HeadOrder, now_s: float, wall_s: float) -> None:
        table = self._table
        if not table.welcomed:
            table.drop("an order from a head that has not welcomed this node")
            return
        if isinstance(event, LaunchOrder):
            preparing.on_launch(table, event, now_s, wall_s)
            return
        message = event.message
        match message:
            case StopAttempt():
                orders.stop(table, message, now_s, wall_s)
            case Signal() | Retime():
                orders.command(table, message)
            case ExitAck():
                orders.acknowledge(table, message, now_s)
            case ReadOutput() | OpenSession():
                _on_question(table, message)
            case TakeCheckpoint() | GoOn() | TuneTraining():
                training_jobs.order(table, message)
            case Probe():
                self._prober.on_order(message, now_s)
            case HighWater():
                self._on_high_water(message)

    # --- the machine ---

    def _on_machine(
        self,
        event: MachineEvent,
        now_s: float,
        wall_s: float,
    ) -> None:
        table = self._table
        match event:
            case Measured():
                self._on_measured(event, now_s)
            case InventoryChanged():
                table.inventory = event.inventory
            case (
                ProblemChanged()
                | HealthChanged()
                | ConfigRead()
                | BindingChanged()
                | SharingStatus()
            ):
                self._on_condition(event, now_s)
            case ShareAbused():
                orders.note_abuse(table, event)
            case SharingChanged():
                access = event.access or table.site.gpu_access
                table.site = replace(table.site, sharing=event.sharing, gpu_access=access)
            case SiteChanged():
                self._heartbeat_s = event.heartbeat_s
                table.site = replace(
                    table.site,
                    memory_root=event.memory_root,
                    limits=event.limits,
                    containers=event.containers,
                    staging=event.staging,
                    programs=event.programs,
                )
            case StopAllRequested():
                reason = StopReason.SHUTDOWN if event.shuts_down else StopReason.NODE_STOP
                orders.stop_all(table, reason, now_s, wall_s)

    def _on_measured(self, event: Measured, now_s: float) -> None:
        table = self._table
        table.load = event.load
        for key, usage in event.usage.items():
            attempt = table.attempts.get(key)
            if attempt is not None and attempt.live:
                attempt.usage = usage
        if table.welcomed and event.usage:
            self._tell_young(now_s)
        if table.welcomed and event.live is not None:
            news = self._live.due(event.live, event.load, now_s)
            if news is not None:
                table.out.append(SendToHead(message=news))
        known, table.gpu_use = table.gpu_use, event.gpu_use
        if table.welcomed and _places(known) != _places(event.gpu_use):
            self._beat(now_s)

    def _on_condition(
        self,
        event: ProblemChanged | HealthChanged | ConfigRead | BindingChanged | SharingStatus,
        now_s: float,
    ) -> None:
        """Take in what the head is to hear at once: of sharing GPUs, that it is another state."""
        table = self._table
        match event:
            case ProblemChanged():
                table.problem = event.problem
                self._remove_due(now_s)
            case HealthChanged():
                before, table.health = table.health, event.results
                if _verdicts(before) == _verdicts(event.results):
                    return
            case ConfigRead():
                table.config = event.config
            case BindingChanged():
                table.unbound = event.reason
            case SharingStatus():
                known, table.gpu_sharing = table.gpu_sharing, event.sharing
                if known is not None and sharing_state(known) == sharing_state(event.sharing):
                    return
        if table.welcomed:
            self._beat(now_s)

    def _on_alarm(self, now_s: float) -> None:
        table = self._table
        self._remove_due(now_s)
        if table.stopping:
            lives.kill_disobedient(table, now_s)
        table.out.extend(table.leases.on_alarm(now_s))
        for attempt in table.leases.take_late(now_s):
            lives.kill_expired(table, attempt)
        self._prober.on_alarm(now_s)
        beat_s = self._beat_due_s()
        if beat_s is not None and beat_s <= now_s:
            self._beat(now_s)

    def _remove_due(self, now_s: float) -> None:
        """Remove the records whose time has come; where space is short, all that nobody needs."""
        table = self._table
        while table.removals and (table.removals[0][0] <= now_s or table.problem):
            orders.remove(table, table.removals.popleft()[1])

    def _tell_young(self, now_s: float) -> None:
        """Tell what young attempts use long before the next heartbeat, twice as late each time.

        Else a user who looks at a job in its first minutes would see nothing.
        """
        table = self._table
        young = [
            (attempt, attempt.usage)
            for attempt in table.live()
            if attempt.usage is not None
            and max(FIRST_USAGE_S, 2 * attempt.reported_wall_s) <= attempt.usage.wall_s
            and attempt.usage.wall_s < self._heartbeat_s
        ]
        if not young or self._heartbeat_at_s is None or self._heartbeat_at_s <= now_s:
            return
        used = tuple((each.key.job, each.key.attempt, usage) for each, usage in young)
        for attempt, usage in young:
            attempt.reported_wall_s = usage.wall_s
        self._send_heartbeat(used)

    def _beat_due_s(self) -> float | None:
        """Return when the load is sent, None while no head listens.

        While jobs share GPUs that is each minute: the head chooses GPUs by their utilisation.
        """
        if self._heartbeat_at_s is None or not self._table.sharers:
            return self._heartbeat_at_s
        return min(self._heartbeat_at_s, self._beaten_s + SHARING_HEARTBEAT_S)

    def _beat(self, now_s: float) -> None:
        """Send how the node is."""
        table = self._table
        self._beaten_s, self._heartbeat_at_s = now_s, now_s + self._heartbeat_s
        usage = tuple(
            (attempt.key.job, attempt.key.attempt, attempt.usage)
            for attempt in table.live()
            if attempt.usage is not None
        )
        self._send_heartbeat(usage)

    def _send_heartbeat(self, usage: tuple[tuple[int, int, Usage], ...]) -> None:
        table = self._table
        message = Heartbeat(
            load=table.load,
            usage=usage,
            problem=table.closed,
            health=table.health,
            config=table.config,
            cpu_binding=table.cpu_binding,
            gpu_sharing=table.gpu_sharing,
            gpu_use=table.gpu_use,
        )
        table.out.append(SendToHead(message=message))


def _places(use: GpuUse | None) -> tuple[object, ...]:
    """Return what the head hears at once: who is on GPUs, and whether that counts."""
    if use is None:
        return ()
    outside = tuple((each.index, each.pid, each.ends_s) for each in use.outside)
    return (outside, use.avoid)


def _verdicts(results: Iterable[HealthResult]) -> list[tuple[str, bool, str]]:
    return [(each.name, each.passed, "" if each.passed else each.text) for each in results]


def _on_question(table: Table, order: ReadOutput | OpenSession) -> None:
    if isinstance(order, ReadOutput):
        orders.read_output(table, order)
    else:
        sessions.open_session(table, order)

"""The node's agent: every decision a node takes, as one function of inputs and time.

The daemon drives it with real processes and a real connection, the simulator with modelled ones.
"""

from gnode.core import lives, orders, probe, trainings
from gnode.core.binding import Site
from gnode.core.effects import Effect, Finish, RefuseHead, SaveMark, Send, SendRegister, Warn
from gnode.core.inputs import (
    AlarmRang,
    Disconnected,
    HeadOffered,
    HeadSaid,
    Input,
    InventoryChanged,
    JobSaid,
    LaunchAsked,
    LauncherDown,
    LauncherUp,
    Measured,
    ProblemChanged,
    SpoolFound,
    StopAllAsked,
    Welcomed,
)
from gnode.core.table import Attempt, Table
from gnode.core.task import AttemptKey
from gnode.core.transitions import Phase
from gsched.model.resources import Inventory
from gsched.protocol.node import (
    HEARTBEAT_S,
    Checkpoint,
    ExitAck,
    GoOn,
    Heartbeat,
    Probe,
    ReadOutput,
    Retime,
    Signal,
    Stop,
)

LAST_WORDS_S = 10.0  # how long a node that ends its jobs waits for the head to hear of it


class Agent:
    """One node's agent.

    Args:
        site: what the machine is and allows.
        inventory: what the machine has.
        mark: the cluster, the highest epoch obeyed and the highest job seen, as `SaveMark` kept
            them; an empty cluster joins whichever head knows the key.
        heartbeat_s: seconds between two heartbeats.
    """

    def __init__(
        self,
        site: Site,
        inventory: Inventory,
        *,
        mark: tuple[str, int, int] = ("", 0, 0),
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        cluster, epoch, highest_job = mark
        self._table = Table(
            site=site,
            inventory=inventory,
            cluster=cluster,
            highest_epoch=epoch,
            highest_job=highest_job,
            saved_job=highest_job,
        )
        self._prober = probe.Prober(self._table)
        self._heartbeat_s = heartbeat_s
        self._heartbeat_at_s: float | None = None
        self._finish_at_s: float | None = None
        self._finished = False

    # --- what the shell may look at ---

    @property
    def attempts(self) -> dict[AttemptKey, Attempt]:
        """Return the attempts that are known; only to be read."""
        return self._table.attempts

    @property
    def dropped(self) -> dict[str, int]:
        """Return counted warnings by name; only to be read."""
        return self._table.dropped

    @property
    def welcomed(self) -> bool:
        """Return whether a head is being obeyed."""
        return self._table.welcomed

    def next_alarm_s(self) -> float | None:
        """Return when `AlarmRang` is due next, on the clock of ``now_s``; None for never."""
        table = self._table
        times = [] if self._heartbeat_at_s is None else [self._heartbeat_at_s]
        if self._finish_at_s is not None and not self._finished:
            times.append(self._finish_at_s)
        if table.stopping:
            kills = (attempt.kill_at_s for attempt in table.stopping.values())
            times.extend(kill_at_s for kill_at_s in kills if kill_at_s is not None)
        if table.removals:
            times.append(table.removals[0][0])
        if self._prober.due_s is not None:
            times.append(self._prober.due_s)
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
            case LaunchAsked() | HeadSaid():
                self._on_order(event, now_s, wall_s)
            case HeadOffered() | Welcomed() | Disconnected():
                self._on_connection(event, now_s)
            case AlarmRang():
                self._on_alarm(now_s)
            case JobSaid():
                trainings.said(table, event.message)
            case Measured() | InventoryChanged() | ProblemChanged() | StopAllAsked():
                self._on_machine(event, now_s, wall_s)
            case SpoolFound():
                self._on_spool(event, now_s, wall_s)
            case _:
                self._on_supervisor(event, wall_s)
        if table.ending:
            self._maybe_finish(now_s)
        effects, table.out = table.out, []
        return effects

    def _on_spool(self, event: SpoolFound, now_s: float, wall_s: float) -> None:
        for found in sorted(event.found, key=lambda found: found.key):
            if found.key.job == probe.JOB:
                self._prober.on_found(found)
            else:
                lives.spool_found(self._table, found, now_s, wall_s)

    def _on_supervisor(self, event: lives.SupervisorEvent, wall_s: float) -> None:
        if isinstance(event, LauncherUp | LauncherDown):
            lives.supervisor_event(self._table, event, wall_s)
            self._prober.on_launcher_up()
        elif event.key.job == probe.JOB:
            self._prober.on_event(event)
        else:
            lives.supervisor_event(self._table, event, wall_s)

    def _maybe_finish(self, now_s: float) -> None:
        attempts = self._table.attempts.values()
        if self._finished or any(attempt.live for attempt in attempts):
            return
        if self._finish_at_s is None:
            self._finish_at_s = now_s + LAST_WORDS_S
        unheard = any(attempt.phase is Phase.ENDED for attempt in attempts)
        if not unheard or not self._table.welcomed or now_s >= self._finish_at_s:
            self._finished = True
            self._table.out.append(Finish())

    # --- the connection ---

    def _on_connection(self, event: HeadOffered | Welcomed | Disconnected, now_s: float) -> None:
        match event:
            case HeadOffered():
                self._on_offer(event)
            case Welcomed():
                self._on_welcome(event, now_s)
            case Disconnected():
                self._table.welcomed = False
                self._heartbeat_at_s = None

    def _on_offer(self, event: HeadOffered) -> None:
        table = self._table
        objection = self._objection(event.cluster, event.epoch)
        if objection is not None and event.cluster != table.cluster:
            table.out.append(RefuseHead(message=objection))
            return
        if objection is not None:
            # It must hear of it: our mark tells it to start nothing. Should it welcome us all the
            # same, it is refused then.
            table.out.append(Warn(text=objection))
        reports = tuple(
            attempt.report()
            for attempt in table.attempts.values()
            if attempt.phase is not Phase.ACKED
        )
        table.out.append(
            SendRegister(
                attempts=reports,
                highest_epoch=table.highest_epoch,
                highest_job=table.highest_job,
                probes=table.site.probe_account is not None,
                problem=table.problem,
            )
        )

    def _objection(self, cluster: str, epoch: int) -> str | None:
        table = self._table
        if table.cluster and cluster != table.cluster:
            return (
                f"the head is of cluster {cluster}, but this node has obeyed {table.cluster}: "
                "give it another state_dir to join another cluster"
            )
        if epoch < table.highest_epoch:
            return (
                f"the head's epoch is {epoch}, but this node has obeyed epoch "
                f"{table.highest_epoch}: it is an old copy"
            )
        return None

    def _on_welcome(self, event: Welcomed, now_s: float) -> None:
        table = self._table
        objection = self._objection(event.cluster, event.epoch)
        if objection is not None:
            table.out.append(RefuseHead(message=objection))
            return
        if (table.cluster, table.highest_epoch) != (event.cluster, event.epoch):
            table.cluster, table.highest_epoch = event.cluster, event.epoch
            self._save_mark()
        table.welcomed = True
        self._heartbeat_at_s = now_s + self._heartbeat_s
        for attempt in table.attempts.values():
            if attempt.phase is not Phase.ACKED:
                orders.answer_state(table, attempt)
                trainings.repeat(table, attempt)

    def _save_mark(self) -> None:
        table = self._table
        table.saved_job = table.highest_job
        table.out.append(
            SaveMark(
                cluster=table.cluster, epoch=table.highest_epoch, highest_job=table.highest_job
            )
        )

    # --- orders ---

    def _on_order(self, event: LaunchAsked | HeadSaid, now_s: float, wall_s: float) -> None:
        table = self._table
        if not table.welcomed:
            table.drop("an order from a head that has not welcomed this node")
            return
        if isinstance(event, LaunchAsked):
            orders.launch(table, event, now_s, wall_s)
            return
        message = event.message
        match message:
            case Stop():
                orders.stop(table, message, now_s, wall_s)
            case Signal() | Retime():
                orders.command(table, message)
            case ExitAck():
                orders.acknowledge(table, message, now_s)
            case ReadOutput():
                orders.read_output(table, message)
            case Checkpoint() | GoOn():
                trainings.order(table, message)
            case Probe():
                self._prober.on_order(message, now_s)

    # --- the machine ---

    def _on_machine(
        self,
        event: Measured | InventoryChanged | ProblemChanged | StopAllAsked,
        now_s: float,
        wall_s: float,
    ) -> None:
        table = self._table
        match event:
            case Measured():
                table.load = event.load
                for key, usage in event.usage.items():
                    attempt = table.attempts.get(key)
                    if attempt is not None and attempt.live:
                        attempt.usage = usage
            case InventoryChanged():
                table.inventory = event.inventory
            case ProblemChanged():
                table.problem = event.problem
                self._remove_due(now_s)
                if table.welcomed:
                    self._beat(now_s)
            case StopAllAsked():
                orders.stop_all(table, now_s, wall_s)

    def _on_alarm(self, now_s: float) -> None:
        table = self._table
        self._remove_due(now_s)
        lives.kill_disobedient(table, now_s)
        self._prober.on_alarm(now_s)
        if table.highest_job != table.saved_job and table.cluster:
            self._save_mark()
        if self._heartbeat_at_s is not None and self._heartbeat_at_s <= now_s:
            self._beat(now_s)

    def _remove_due(self, now_s: float) -> None:
        """Remove the records whose time has come; where space is short, all that nobody needs."""
        table = self._table
        while table.removals and (table.removals[0][0] <= now_s or table.problem):
            orders.remove(table, table.removals.popleft()[1])

    def _beat(self, now_s: float) -> None:
        """Send how the node is."""
        table = self._table
        self._heartbeat_at_s = now_s + self._heartbeat_s
        usage = tuple(
            (attempt.key.job, attempt.key.attempt, attempt.usage)
            for attempt in table.attempts.values()
            if attempt.live and attempt.usage is not None
        )
        table.out.append(
            Send(message=Heartbeat(load=table.load, usage=usage, problem=table.problem))
        )

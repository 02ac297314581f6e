"""A modelled node daemon: the real agent, with a modelled shell on a modelled machine."""

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from msgspec import structs

from gnode.core import effects as do
from gnode.core.agent import Agent
from gnode.core.inputs import (
    Admitted,
    AlarmRang,
    Disconnected,
    HeadOffered,
    HeadOrder,
    Input,
    Launched,
    LauncherDown,
    LauncherUp,
    LaunchOrder,
    LeaseRenewed,
    LeftoverGone,
    Measured,
    Recalled,
    SpoolFound,
    SupervisorEnded,
    SupervisorSeen,
    SurveyReceived,
    TrainingMessage,
    Welcomed,
)
from gnode.core.site import Site
from gnode.core.task import Account, AttemptKey
from gsched.model.job import Owner
from gsched.model.resources import Load
from gsched.protocol import node as n
from gsched.protocol.code import CodeRead
from gsched.protocol.deliveries import FileOrder, PieceDelivered, StagedRead
from gsched.protocol.job_steps import LoginAnswer, StepOrder, StepRefused
from gsched.protocol.joining import CertificateIssued, TrustChanged
from gsched.protocol.relays import RelayAnswer
from gsched.protocol.sessions import OpenSession
from gsched.protocol.settings import ClusterSettings, SettingsWanted
from gsched.protocol.uses import Uses
from gschedd.sim.agenda import FOREVER, Agenda
from gschedd.sim.machine import SimMachine
from gschedd.sim.plain import PlainAttempts

#: From the agent's wish that leftovers be killed to their end, seconds.
KILL_S: Final = 0.1
_RANG: Final = AlarmRang()
#: How often it is looked whether a machine that is suspended goes on.
SUSPENDED_S: Final = 1.0


class Uplink(Protocol):
    """A node daemon's end of its connection to the head."""

    def to_head(self, message: n.NodeMessage) -> None:
        """Send a message."""

    def hang_up(self) -> None:
        """Close the connection, and dial again after a while."""


class NodeProcess:
    """One node daemon, restarted whenever it was killed.

    Attributes:
        incarnation: which start of the daemon this is.
        agent: None while none runs.
        link: the connection to the head, None while there is none.
        heartbeat_s: how often its load is sent; `FOREVER` for never.

    Args:
        undisturbed: nothing fails here and no message is lost: attempts that need no agent have
            none (`gschedd.sim.plain`), and the tasks of others lack what programs need.
        fork_s, flush_s: return how long the fork of a supervisor and the flush of an exit record
            take; None: no time.
    """

    def __init__(
        self,
        machine: SimMachine,
        *,
        agenda: Agenda,
        heartbeat_s: float = FOREVER,
        undisturbed: bool = False,
        fork_s: Callable[[], float] | None = None,
        flush_s: Callable[[], float] | None = None,
    ) -> None:
        self.machine = machine
        self.heartbeat_s = heartbeat_s
        self.incarnation = 0
        self.agent: Agent | None = None
        self._agenda = agenda
        self.link: Uplink | None = None
        self._plain: PlainAttempts | None = None
        if undisturbed:
            self._plain = PlainAttempts(
                machine, tell=self._to_head, load=self.load, samples=heartbeat_s < FOREVER
            )
        self._fork_s = fork_s
        self._flush_s = flush_s
        self._launcher = 1
        self._inputs: deque[Input] = deque()
        self._draining = False
        self._awaited: set[AttemptKey] = set()
        self._alarm_s = FOREVER
        self._alarm = 0
        self._measured: Load | None = None  # what the daemon was told last
        self._load: Load | None = None  # when so many CPUs, bytes and GPUs were in use
        self._busy = (0.0, 0, 0)
        self._accounts: dict[Owner, Account] = {}
        self._doers: dict[type[do.Effect], Callable[..., None]] = {
            do.AcceptTask: self._accept_task,
            do.AdmitSharing: self._admit_sharing,
            do.EndSharing: self._pass,
            do.AttendSharing: self._pass,
            do.KeepLaunched: self._keep_launched,
            do.AskLaunch: self._ask_launch,
            do.LookAtSpool: self._look_at_spool,
            do.AwaitStart: self._await_start,
            do.AwaitAnswer: self._pass,
            do.CommandSupervisor: self._command,
            do.KillLeftover: self._kill_leftover,
            do.WriteExit: self._write_exit,
            do.RemoveContainer: self._pass,
            do.RemoveFiles: self._pass,
            do.Bury: self._bury,
            do.RecallEnded: self._recall,
            do.TellKnown: self._tell_known,
            do.RemoveSpool: self._remove_spool,
            do.SetAside: self._set_aside,
            do.SendRegister: self._register,
            do.RefuseHead: self._refuse_head,
            do.SendToHead: self._send,
            do.TellJob: self._tell_job,
            do.SaveMark: self._save_mark,
            do.KeepRenewal: self._keep_renewal,
            do.ReadFile: self._pass,
            do.Warn: self._pass,
            do.Finish: self._pass,
        }

    @property
    def name(self) -> str:
        """Return the node's name."""
        return self.machine.name

    # --- life ---

    def start(self) -> None:
        """Start the daemon: it looks into its spool, then takes up the launcher."""
        assert self.agent is None, "one daemon runs on a machine"
        machine = self.machine
        self.incarnation += 1
        site = Site(
            node=machine.name,
            user_root="/gsched/user",
            agent_path="/gsched/agent",
            version="sim",
            boot_id=machine.boot_id,
            uid=0,
            sharing=machine.sharing,
            runs_programs=self._plain is None,
        )
        self.agent = Agent(
            site, machine.inventory, mark=machine.spool.mark, heartbeat_s=self.heartbeat_s
        )
        self._alarm_s = FOREVER
        self._measured = None
        self._awaited.clear()
        machine.on_seen = self._on_seen
        machine.on_ended = self._on_ended
        machine.on_progress = self._on_progress
        self.post(SpoolFound(found=machine.spool.all_found()))
        self.post(LauncherUp())

    def kill(self) -> None:
        """Kill the daemon; launcher, supervisors and jobs live on."""
        self._die()
        self.machine.spool.unflushed.clear()  # by the launcher, which loses its connection

    def _die(self) -> None:
        self.agent = None
        self.machine.on_seen = self.machine.on_ended = self.machine.on_progress = None
        self._inputs.clear()
        if self._plain is not None:
            self._plain.forget()

    def suspend(self) -> None:
        """The machine sleeps, and the daemon with it."""
        self.machine.suspend()

    def resume(self) -> None:
        """The machine wakes up; what came meanwhile is taken in now."""
        if self.machine.suspended:
            self.machine.resume()
            self._drain()

    def lose_power(self) -> None:
        """The machine dies, with the daemon and the launcher."""
        self._die()
        self._launcher += 1
        self.machine.lose_power()

    def restart_launcher(self) -> None:
        """The launcher dies, with all that was asked of it and not done; another one starts."""
        self._launcher += 1
        self.post(LauncherDown())
        self.post(LauncherUp())

    # --- inputs ---

    def post(self, event: Input) -> None:
        """Let the agent take in an event, after those before it; nothing if no daemon runs."""
        if self.agent is None:
            return
        self._inputs.append(event)
        if self._draining or self.machine.suspended:
            return
        self._drain()

    def _drain(self) -> None:
        if self.agent is None:
            return
        self._draining = True
        now_s, agent, doers = self._agenda.now_s, self.agent, self._doers
        while self._inputs and self.agent is agent:
            for effect in agent.step(self._inputs.popleft(), now_s, self.machine.wall_s()):
                doers[type(effect)](effect)
        self._draining = False
        self._plan_alarm()

    def _plan_alarm(self) -> None:
        due_s = self.agent.next_alarm_s() if self.agent is not None else None
        if due_s is not None and due_s < self._alarm_s:
            if self._alarm_s < FOREVER:
                self._agenda.cancel(self._alarm)
            self._alarm_s = due_s
            if due_s < FOREVER:
                self._alarm = self._agenda.at(due_s, self._ring, due_s, self.incarnation)

    def _ring(self, due_s: float, incarnation: int) -> None:
        if self.machine.suspended:
            number = self._agenda.after(SUSPENDED_S, self._ring, due_s, incarnation)
            self._alarm = number if incarnation == self.incarnation else self._alarm
        elif incarnation == self.incarnation and due_s == self._alarm_s:
            self._alarm_s = FOREVER
            if self.heartbeat_s < FOREVER and self.agent is not None:
                load = self.load()
                if load != self._measured:  # mostly nothing has changed, and there are many nodes
                    self._measured = load
                    self._inputs.append(Measured(load=load, usage={}))
            self.post(_RANG)

    # --- the head ---

    def offer(self, cluster: str, epoch: int, epoch_id: str = "") -> None:
        """A head has answered the call."""
        self.post(HeadOffered(cluster=cluster, epoch=epoch, epoch_id=epoch_id))

    def hear(self, message: n.HeadMessage) -> None:
        """Take in a message of the head."""
        if self._plain is not None and self._plain.hear(message):
            return
        match message:
            case n.Launch():
                self.post(LaunchOrder(launch=message, account=self._account(message.spec.owner)))
            case n.Prepare():
                launch = message.launch
                account = self._account(launch.spec.owner)
                self.post(LaunchOrder(launch=launch, account=account, prepare=True))
            case n.Welcome():
                self.post(
                    Welcomed(
                        cluster=message.cluster,
                        epoch=message.epoch,
                        epoch_id=message.epoch_id,
                        seq=message.seq,
                        next_job=message.next_job,
                    )
                )
            case (
                n.StopAttempt()
                | n.Signal()
                | n.Retime()
                | n.ExitAck()
                | n.ReadOutput()
                | n.TakeCheckpoint()
                | n.GoOn()
                | n.TuneTraining()
                | n.Probe()
                | n.HighWater()
                | OpenSession()
            ):
                self.post(HeadOrder(message=message))
            case n.Renewed():
                self.post(LeaseRenewed(number=message.number))
            case n.SurveyAttempts():
                self.post(SurveyReceived(survey=message))
            case (
                n.Challenge()
                | n.Refused()
                | n.Ping()
                | RelayAnswer()
                | TrustChanged()
                | CertificateIssued()
                | PieceDelivered()
                | StagedRead()
                | FileOrder()
                | ClusterSettings()
                | SettingsWanted()
            ):
                pass
            case StepOrder() | StepRefused() | LoginAnswer() | CodeRead():
                pass

    def disconnected(self) -> None:
        """Notice that the connection is gone."""
        self.post(Disconnected())

    def _account(self, owner: Owner) -> Account:
        account = self._accounts.get(owner)
        if account is None:
            account = self._accounts[owner] = Account(  # noqa: S604 - no subprocess: a field
                user=owner.user,
                uid=owner.uid,
                gid=owner.gid,
                home="/",
                shell="/bin/sh",
            )
        return account

    # --- the machine ---

    def load(self) -> Load:
        """Return how busy the machine is."""
        machine = self.machine
        used, gpus = machine.work.cpus_used, machine.gpus_used
        busy = (used, machine.work.memory_bytes, gpus)
        if self._load is None or busy != self._busy:  # mostly nothing has changed
            idle = max(len(machine.inventory.gpus) - gpus, 0)
            self._busy = busy
            self._load = Load(
                load1=used,
                cpu_percent=100.0 * used / machine.inventory.cores,
                memory_used_bytes=busy[1],
                gpu_util_percent=(100.0,) * (len(machine.inventory.gpus) - idle) + (0.0,) * idle,
            )
        minute = machine.gpu_minute_percent()
        return structs.replace(self._load, gpu_minute_percent=minute) if minute else self._load

    def _on_seen(self, key: AttemptKey) -> None:
        if self._plain is not None and self._plain.seen(key):
            return
        if key in self._awaited:
            self._see(key)

    def _see(self, key: AttemptKey) -> None:
        self._awaited.discard(key)
        self.post(SupervisorSeen(key=key, info=self.machine.spool.infos[key]))
        process = self.machine.processes.get(key)
        if process is not None and process.gated:
            self._ready(key)

    def _ready(self, key: AttemptKey) -> None:
        """A modelled training waits as soon as it is started."""
        self.post(TrainingMessage(message=n.Prepared(job=key.job, attempt=key.attempt)))

    def _on_ended(self, key: AttemptKey) -> None:
        if self._plain is not None and self._plain.ended(key):
            return
        if self._flush_s is None or key not in self.machine.spool.unflushed:
            self._take_end(key)
        else:
            self._agenda.after(self._flush_s(), self._flushed, key, self.incarnation)

    def _flushed(self, key: AttemptKey, incarnation: int) -> None:
        if incarnation != self.incarnation or self.agent is None:
            return
        if self.machine.suspended:
            self._agenda.after(SUSPENDED_S, self._flushed, key, incarnation)
        else:
            self._take_end(key)

    def _take_end(self, key: AttemptKey) -> None:
        spool = self.machine.spool
        spool.unflushed.discard(key)
        info = spool.infos.get(key) if key in self._awaited else None
        self._awaited.discard(key)
        if self.heartbeat_s < FOREVER:
            usage = {key: self.machine.usage(key)} if key in spool.records else {}
            self._measured = self.load()
            self.post(Measured(load=self._measured, usage=usage))
        self.post(SupervisorEnded(key=key, record=spool.records.get(key), info=info))

    def _on_progress(self, message: n.TrainingProgress) -> None:
        self.post(TrainingMessage(message=message))

    def _launched(self, key: AttemptKey, launcher: int) -> None:
        """The launcher forks a supervisor and says so, if it still is the one that was asked."""
        if launcher != self._launcher:
            return
        if self.machine.suspended:
            self._agenda.after(SUSPENDED_S, self._launched, key, launcher)
            return
        pid = self.machine.fork(key)
        if pid is not None:
            self.post(Launched(key=key, pid=pid, start_ticks=pid))
        elif key in self.machine.spool.records:
            self._take_end(key)

    # --- what the agent wants done ---

    def _accept_task(self, effect: do.AcceptTask) -> None:
        self.machine.spool.tasks[effect.task.key] = effect.task
        if effect.task.lease_s:
            self.machine.spool.renewals[effect.task.key] = effect.task.lease_from_s

    def _admit_sharing(self, effect: do.AdmitSharing) -> None:
        """A modelled runtime refuses nobody."""
        self.post(Admitted(task=effect.task))

    def _keep_launched(self, effect: do.KeepLaunched) -> None:
        task = effect.task
        self.machine.spool.launched[task.key] = task
        if task.lease_s:
            self.machine.spool.renewals[task.key] = task.lease_from_s

    def _ask_launch(self, effect: do.AskLaunch) -> None:
        if self._fork_s is None:
            self._launched(effect.key, self._launcher)
        else:
            self._agenda.after(self._fork_s(), self._launched, effect.key, self._launcher)

    def _look_at_spool(self, effect: do.LookAtSpool) -> None:
        self.post(SpoolFound(found=tuple(self.machine.spool.found(key) for key in effect.keys)))

    def _await_start(self, effect: do.AwaitStart) -> None:
        self._awaited.add(effect.key)
        if effect.key in self.machine.spool.infos:
            self._see(effect.key)

    def _command(self, effect: do.CommandSupervisor) -> None:
        self.machine.command(effect.key, effect.command)

    def _kill_leftover(self, effect: do.KillLeftover) -> None:
        if effect.key in self.machine.spool.records:
            self._take_end(effect.key)
        else:
            self._agenda.after(KILL_S, self._killed, effect.key, self.incarnation)

    def _killed(self, key: AttemptKey, incarnation: int) -> None:
        if self.machine.suspended:
            self._agenda.after(SUSPENDED_S, self._killed, key, incarnation)
            return
        self.machine.kill_leftover(key)
        if incarnation == self.incarnation:
            self.post(LeftoverGone(key=key))

    def _write_exit(self, effect: do.WriteExit) -> None:
        record = effect.record
        self.machine.spool.records[AttemptKey(record.job, record.attempt)] = record

    def _bury(self, effect: do.Bury) -> None:
        self.machine.spool.bury(effect.known)

    def _recall(self, effect: do.RecallEnded) -> None:
        launch = effect.launch
        found = self.machine.spool.ended.get(AttemptKey(launch.job, launch.attempt))
        self.post(Recalled(launch=launch, found=found))

    def _tell_known(self, effect: do.TellKnown) -> None:
        ended = tuple(self.machine.spool.ended.values())
        self._to_head(n.KnownAttempts(attempts=(*ended, *effect.attempts), done=True))

    def _remove_spool(self, effect: do.RemoveSpool) -> None:
        self.machine.spool.remove(effect.key)

    def _set_aside(self, effect: do.SetAside) -> None:
        self.machine.spool.remove(effect.key)

    def _register(self, effect: do.SendRegister) -> None:
        machine = self.machine
        self._to_head(
            n.Register(
                boot_id=machine.boot_id,
                incarnation=f"{machine.boot_id}.{self.incarnation}",
                address=machine.name,
                gnode_version="sim",
                inventory=machine.inventory,
                attempts=effect.attempts,
                load=self.load(),
                highest_epoch=effect.mark.epoch,
                highest_job=effect.mark.highest_job,
                epoch_id=effect.mark.epoch_id,
                seq=effect.mark.seq,
                next_job=effect.mark.next_job,
                probes=effect.probes,
                sharing=machine.sharing,
            ),
        )

    def _refuse_head(self, _effect: do.RefuseHead) -> None:
        if self.link is not None:
            self.link.hang_up()

    def _send(self, effect: do.SendToHead) -> None:
        if not isinstance(effect.message, Uses):  # the simulated head shows no live use
            self._to_head(effect.message)

    def _to_head(self, message: n.NodeMessage) -> None:
        if self.link is not None:
            self.link.to_head(message)

    def _tell_job(self, effect: do.TellJob) -> None:
        """A modelled training saves its state at once, and waits; a batch size it takes at once."""
        order, course = effect.message, self.machine.course(effect.key)
        if course is not None and isinstance(order, n.TuneTraining):
            course.tune(order.batching)
        done = self.machine.work_done(effect.key)
        if not isinstance(order, n.TakeCheckpoint):
            return
        if done is None:
            message: n.Checkpointed | n.CheckpointFailed = n.CheckpointFailed(
                job=order.job,
                attempt=order.attempt,
                request=order.request,
                message="it does not run yet, or has no checkpoints",
            )
        else:
            message = n.Checkpointed(
                job=order.job,
                attempt=order.attempt,
                request=order.request,
                work_done=done,
                work_total=course.run.truth.work if course is not None else 0.0,
                waits=True,
            )
        self.post(TrainingMessage(message=message))

    def _save_mark(self, effect: do.SaveMark) -> None:
        self.machine.spool.mark = effect.mark

    def _keep_renewal(self, effect: do.KeepRenewal) -> None:
        for key in effect.keys:
            self.machine.spool.renewals[key] = effect.renewed_s

    def _pass(self, _effect: do.Effect) -> None:
        """Do nothing: output is not modelled, warnings are counted by the agent itself."""

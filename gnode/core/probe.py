"""The node's own probe: can a job be started here?

A program that does nothing is started by the way that jobs take: the spool, the launcher, a
supervisor, control groups, the change of user, the exec. It runs as an ordinary user who owns
nothing, so that nothing a user does can make it fail. Its attempts belong to job 0, which no head
gives out; the head never hears of them but for the answer.
"""

import posixpath
from dataclasses import dataclass
from typing import Final

from gnode.core.binding import LEAST_MEMORY_LIMIT_BYTES, private_tmp
from gnode.core.effects import (
    AcceptTask,
    AskLaunch,
    KillLeftover,
    RemoveFiles,
    RemoveSpool,
    RunEpilog,
    SendToHead,
    Warn,
)
from gnode.core.environment import DEFAULT_PATH, FALLBACK_SHELL, NODEFILE_NAME
from gnode.core.inputs import (
    EpilogEnded,
    Launched,
    LaunchFailed,
    LeftoverGone,
    SpoolEntry,
    SupervisorEnded,
    SupervisorSeen,
)
from gnode.core.site import Site
from gnode.core.site_programs import programs_of_probe
from gnode.core.table import Table
from gnode.core.task import AcceptedTask, Account, AttemptKey
from gnode.task import MemoryCgroup, TaskFile
from gsched.model.job import ExitRecord, LaunchFailure
from gsched.model.states import Join, LaunchStage, OutcomeKind, Subject
from gsched.protocol.node import Probe, Probed

#: The job that probes belong to.
JOB: Final = 0
#: A probe that has not ended after so long has failed, seconds.
LIMIT_S: Final = 60.0
_GRACE_S: Final = 1.0

ProbeEvent = Launched | LaunchFailed | SupervisorSeen | SupervisorEnded | LeftoverGone | EpilogEnded


@dataclass(slots=True, kw_only=True)
class RunningProbe:
    """The probe that runs now.

    Attributes:
        request: the number of the head's request, the newest if there were several.
        until_s: when it has failed if it has not ended, on the clock of ``now_s``.
        launch_requested: the launcher was requested it.
        record: how its program has ended, once its epilog runs.
    """

    key: AttemptKey
    request: int
    until_s: float
    launch_requested: bool = False
    pid: int = 0
    start_ticks: int = 0
    record: ExitRecord | None = None


class Prober:
    """Runs one probe at a time."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._running: RunningProbe | None = None
        self._number = 0

    @property
    def due_s(self) -> float | None:
        """Return when `on_alarm` has to be called, None for never."""
        return self._running.until_s if self._running is not None else None

    def on_order(self, order: Probe, now_s: float) -> None:
        """Start a probe; one that runs already answers this request, too."""
        table = self._table
        if self._running is not None:
            self._running.request = order.request
            return
        account = table.site.probe_account
        if account is None:
            table.drop("a probe, but there is no user for it here")
            return
        self._number += 1
        key = AttemptKey(JOB, self._number)
        limit_s = LIMIT_S + table.site.programs.limit_s
        self._running = RunningProbe(key=key, request=order.request, until_s=now_s + limit_s)
        table.out.append(AcceptTask(task=_task(key, account, table.site)))
        self.on_launcher_up()

    def on_launcher_up(self) -> None:
        """Ask the launcher for what is still to be started; to ask twice does no harm."""
        running = self._running
        if running is None or not self._table.launcher_up:
            return
        if running.record is not None:
            self._table.out.append(RunEpilog(key=running.key))
        else:
            running.launch_requested = True
            self._table.out.append(AskLaunch(key=running.key))

    def on_event(self, event: ProbeEvent) -> None:
        """Take in what the launcher or a supervisor did with a probe."""
        running = self._running
        mine = running is not None and running.key == event.key
        match event:
            case Launched() if running is not None and mine:
                running.pid, running.start_ticks = event.pid, event.start_ticks
            case LaunchFailed() if mine:
                self._finish(event.message, event.failure)
                self._remove(event.key)
            case SupervisorEnded():
                self._ended(event)
            case EpilogEnded():
                if running is not None and mine:
                    self._judge_epilog(running, event.fault)
                self._remove(event.key)
            case LeftoverGone():
                self._remove(event.key)
            case _:
                pass

    def on_found(self, found: SpoolEntry) -> None:
        """Clear away what an earlier gnode has left of a probe."""
        self._number = max(self._number, found.key.attempt)
        programs = found.task.programs if found.task is not None else None
        if found.record is not None and programs and programs.epilog and found.epilog is None:
            self._table.out.append(RunEpilog(key=found.key))
        elif found.record is not None:
            self._remove(found.key)
        else:
            pid, ticks = (found.info.pid, found.info.start_ticks) if found.info else (0, 0)
            self._kill(found.key, pid, ticks)

    def on_alarm(self, now_s: float) -> None:
        """End a probe that takes too long."""
        running = self._running
        if running is None or running.until_s > now_s:
            return
        failure = LaunchFailure(stage=LaunchStage.FORK, subject=Subject.NODE)
        limit_s = LIMIT_S + self._table.site.programs.limit_s
        self._finish(f"a program that does nothing did not end within {limit_s:.0f} s", failure)
        self._kill(running.key, running.pid, running.start_ticks)

    def _ended(self, event: SupervisorEnded) -> None:
        running = self._running
        mine = running is not None and running.key == event.key
        if event.record is not None and self._table.site.programs.epilog:
            if running is not None and mine:
                running.record = event.record
            self._table.out.append(RunEpilog(key=event.key))
            return
        if mine:
            self._judge(event.record)
        self._remove(event.key)

    def _judge_epilog(self, running: RunningProbe, fault: str) -> None:
        if fault:
            self._finish(fault, LaunchFailure(stage=LaunchStage.PROLOG, subject=Subject.NODE))
        else:
            self._judge(running.record)

    def _judge(self, record: ExitRecord | None) -> None:
        if record is None:
            self._finish("the supervisor of the probe was lost", None)
        elif record.kind is OutcomeKind.EXITED and record.exit_code == 0:
            self._finish("", None)
        else:
            code = f" (exit code {record.exit_code})" if record.exit_code is not None else ""
            words = record.message or f"a program that does nothing {record.kind.value}{code}"
            self._finish(words, record.failure)

    def _finish(self, message: str, failure: LaunchFailure | None) -> None:
        """Answer the head; it asks again where it is not there to hear it."""
        table, running = self._table, self._running
        assert running is not None, "the caller has looked"
        self._running = None
        if message:
            table.out.append(Warn(text=f"the probe has failed: {message}"))
        if table.welcomed:
            result = Probed(
                request=running.request, passed=not message, message=message, failure=failure
            )
            table.out.append(SendToHead(message=result))

    def _kill(self, key: AttemptKey, pid: int, start_ticks: int) -> None:
        site = self._table.site
        self._table.out.append(
            KillLeftover(
                key=key,
                cgroup=posixpath.join(site.cgroup_root, key.name) if site.cgroup_root else None,
                user_dir=_user_dir(key, site),
                supervisor_pid=pid,
                supervisor_start_ticks=start_ticks,
            )
        )

    def _remove(self, key: AttemptKey) -> None:
        out, site = self._table.out, self._table.site
        out.append(RemoveFiles(user_dir=_user_dir(key, site)))
        out.append(RemoveSpool(key=key))


def _user_dir(key: AttemptKey, site: Site) -> str:
    return posixpath.join(site.user_root, key.name)


def _task(key: AttemptKey, account: Account, site: Site) -> AcceptedTask:
    """Return a program that does nothing, with all that a job may need."""
    memory = None
    if site.memory_root is not None:
        version, root = site.memory_root
        memory = MemoryCgroup(
            version=version,
            path=posixpath.join(root, key.name),
            limit_bytes=LEAST_MEMORY_LIMIT_BYTES,
        )
    user_dir = _user_dir(key, site)
    described = {"GSCHED_JOB_ID": "0", "GSCHED_NODE": site.node, "GSCHED_NODELIST": site.node}
    return AcceptedTask(
        job=key.job,
        attempt=key.attempt,
        user=account.user,
        uid=account.uid,
        gid=account.gid,
        switch_user=site.uid == 0 and account.uid != 0,
        argv=(FALLBACK_SHELL, "-c", ":"),
        env={"PATH": DEFAULT_PATH, "GSCHED_JOB_DIR": user_dir},
        cwd="/",
        stdout_path="/dev/null",
        stderr_path="/dev/null",
        stdout_name="probe.o",
        stderr_name="probe.e",
        join=Join.NO,
        append=True,
        umask=0o077,
        files=(TaskFile(name=NODEFILE_NAME, mode=0o400, content=f"{site.node}\n"),),
        user_dir=user_dir,
        cgroup=posixpath.join(site.cgroup_root, key.name) if site.cgroup_root else None,
        memory_cgroup=memory,
        walltime_s=LIMIT_S,
        grace_s=_GRACE_S,
        boot_id=site.boot_id,
        private=private_tmp(site, (user_dir,), memory, shares=False),
        programs=programs_of_probe("probe", account, site.programs, described),
    )

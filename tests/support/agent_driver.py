"""Drives the node's agent by hand: short orders in, effects out, no machine behind it."""

from typing import Any, TypeVar

from gnode.core import effects as do
from gnode.core.agent import Agent
from gnode.core.inputs import (
    Admitted,
    HeadOrder,
    Input,
    Launched,
    LauncherUp,
    LaunchOrder,
    SpoolFound,
    SupervisorEnded,
    SupervisorSeen,
    Welcomed,
)
from gnode.core.mark import HeadMark
from gnode.core.site import Site
from gnode.core.task import Account, AttemptKey
from gnode.task import SupervisorInfo
from gsched.model.job import ExitRecord
from gsched.model.resources import Gpu, Inventory, Share
from gsched.model.states import OutcomeKind, StopReason, Subject
from gsched.protocol.node import ExitAck, Exited, Launch, Started, StopAttempt
from tests.support.launches import launch_of

EffectT = TypeVar("EffectT")
ALICE = Account(user="alice", uid=1000, gid=1000, home="/home/alice", shell="/bin/bash")


def site(**settings: object) -> Site:
    """Return a site that runs as root on node n1."""
    values: dict[str, object] = {
        "node": "n1",
        "user_root": "/s/user",
        "agent_path": "/lib/torchrun_agent.py",
        "version": "1.2",
        "boot_id": "boot-1",
        "uid": 0,
        **settings,
    }
    return Site(**values)  # type: ignore[arg-type]  # as the tests state them


def order(
    job: int = 1, attempt: int = 1, *, gpus: tuple[int, ...] = (), cpus: int = 1, **settings: Any
) -> Launch:
    """Return a launch of alice's script on n1; see `launch_of`."""
    share = Share(node="n1", cpus=cpus, gpu_indices=gpus)
    return launch_of(job, attempt, **{"share": share, **settings})


def info(pid: int = 50) -> SupervisorInfo:
    """Return what a supervisor says of itself."""
    return SupervisorInfo(
        pid=pid,
        start_ticks=pid * 10,
        job_pid=pid + 1,
        job_start_ticks=pid * 10,
        started_s=100.0,
        started_boottime_s=10.0,
        stdout_path="/home/alice/runs/train.o1",
        stderr_path="/home/alice/runs/train.e1",
    )


def record(job: int = 1, attempt: int = 1, code: int = 0) -> ExitRecord:
    """Return the record of a program that ended by itself."""
    return ExitRecord(job=job, attempt=attempt, kind=OutcomeKind.EXITED, exit_code=code)


class Driver:
    """An agent with a clock that tests turn, and everything it wanted done."""

    def __init__(
        self,
        *,
        gpus: int = 0,
        gpu_memory_bytes: int = 0,
        mark: HeadMark | None = None,
        welcome: bool = True,
        launcher: bool = True,
        **settings: object,
    ) -> None:
        inventory = Inventory(
            cpus=8,
            memory_bytes=1 << 34,
            gpus=tuple(Gpu(index=i, memory_bytes=gpu_memory_bytes) for i in range(gpus)),
        )
        self.agent = Agent(site(**settings), inventory, mark=mark, heartbeat_s=300.0)
        self.now_s = 1000.0
        self.done: list[do.Effect] = []
        self.admits = True
        self.step(SpoolFound(found=()))
        if launcher:
            self.step(LauncherUp())
        if welcome:
            self.step(Welcomed(cluster="c", epoch=max(1, mark.epoch if mark else 0)))
        self.done.clear()

    def step(self, event: Input) -> list[do.Effect]:
        """Take one input and return its effects."""
        effects = self.agent.step(event, self.now_s, 5_000.0 + self.now_s)
        self.done += effects
        return effects

    # --- short orders ---

    def launch(self, launch: Launch, account: Account | None = ALICE) -> list[do.Effect]:
        """Order a launch; a job that shares a GPU is admitted at once, unless `admits` is false."""
        effects = self.step(LaunchOrder(launch=launch, account=account))
        asked = only(effects, do.AdmitSharing) if self.admits else []
        return [*effects, *(one for each in asked for one in self.admitted(each))]

    def admitted(self, asked: do.AdmitSharing) -> list[do.Effect]:
        """Let the runtime for shared GPUs admit a task."""
        return self.step(Admitted(task=asked.task))

    def stop(
        self, job: int = 1, attempt: int = 1, reason: StopReason = StopReason.DELETE
    ) -> list[do.Effect]:
        """Order a stop with a grace of 30 s."""
        return self.step(
            HeadOrder(message=StopAttempt(job=job, attempt=attempt, reason=reason, grace_s=30.0))
        )

    def ack(self, job: int = 1, attempt: int = 1) -> list[do.Effect]:
        """Acknowledge an exit."""
        return self.step(HeadOrder(message=ExitAck(job=job, attempt=attempt)))

    def forked(self, job: int = 1, attempt: int = 1, pid: int = 50) -> list[do.Effect]:
        """Let the launcher answer."""
        key = AttemptKey(job, attempt)
        return self.step(Launched(key=key, pid=pid, start_ticks=pid * 10))

    def seen(self, job: int = 1, attempt: int = 1, pid: int = 50) -> list[do.Effect]:
        """Let the supervisor's record appear."""
        return self.step(SupervisorSeen(key=AttemptKey(job, attempt), info=info(pid)))

    def ended(self, job: int = 1, attempt: int = 1, code: int = 0) -> list[do.Effect]:
        """Let the attempt end with a record."""
        return self.step(
            SupervisorEnded(
                key=AttemptKey(job, attempt), record=record(job, attempt, code), info=None
            )
        )

    def run(self, job: int = 1, attempt: int = 1, **settings: object) -> None:
        """Launch an attempt and let it run."""
        self.launch(order(job, attempt, **settings))  # type: ignore[arg-type]  # as `order` takes
        self.forked(job, attempt)
        self.seen(job, attempt)
        self.done.clear()


def only(effects: list[do.Effect], kind: type[EffectT]) -> list[EffectT]:
    """Return the effects of one kind."""
    return [effect for effect in effects if isinstance(effect, kind)]


def exits(effects: list[do.Effect]) -> list[ExitRecord]:
    """Return the exit records that are sent."""
    return [
        effect.message.record
        for effect in only(effects, do.SendToHead)
        if isinstance(effect.message, Exited)
    ]


def starts(effects: list[do.Effect]) -> list[Started]:
    """Return the starts that are sent."""
    return [
        effect.message
        for effect in only(effects, do.SendToHead)
        if isinstance(effect.message, Started)
    ]


def refusal(driver: Driver, **settings: object) -> str:
    """Return why a launch is refused."""
    account = settings.pop("account", ALICE)
    assert account is None or isinstance(account, Account)
    effects = driver.launch(order(9, **settings), account)  # type: ignore[arg-type]  # as `order`
    assert only(effects, do.AcceptTask) == []
    (ended,) = exits(effects)
    assert ended.kind is OutcomeKind.LAUNCH_FAILED
    assert ended.failure is not None
    assert ended.failure.subject is not Subject.JOB
    return ended.message

"""What a site saves: nodes that are powered down, and GPUs that jobs hold and do not use.

The head decides both by its own code and the site's configuration; the windows in which a GPU is
idle are those of gnode. Modelled are the machines, which take a while to go down and to boot, the
use of GPUs over time, and owners of jobs that the head holds: they cancel them.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple, Protocol

from msgspec import Struct

from gnode.core.task import AttemptKey
from gnode.hw.idle import GpuActivity, GpuWindow, with_samples
from gsched.config.tables import Config
from gsched.model.job import ExitRecord
from gsched.model.resources import LiveUse
from gsched.model.states import HoldKind
from gsched.protocol.actions import DeleteJob
from gsched.protocol.uses import Uses
from gschedd.core.attempts.idle_gpus import HELD_FOR
from gschedd.core.requests import commands as c
from gschedd.core.state import facts as f
from gschedd.core.state.records import Job
from gschedd.core.state.settings import Caller
from gschedd.sim.agenda import Agenda
from gschedd.sim.cluster import ClusterNode
from gschedd.sim.head import Downlink, HeadProcess, Watcher
from gschedd.sim.machine import SimMachine
from gschedd.sim.node import NodeProcess, Uplink

#: How often a modelled node looks at its GPUs, seconds.
SAMPLE_S: Final = 60.0
#: From the program that powers a node down to its end, seconds; sooner where the site waits less.
DOWN_S: Final = 30.0
HOUR_S: Final = 3600.0
DIGITS: Final = 6


class Savings(Struct, kw_only=True):
    """What was saved, and what it has cost.

    Attributes:
        off_node_h: node-hours in which nodes were powered down.
        energy_kwh: what these would have used idle; None: the cluster states no ``idle_watts``.
        power_ups: how often a node was powered up.
        idle_gpu_h: GPU-hours in which jobs held GPUs that were idle.
        returned_gpu_h: GPU-hours that jobs would have held had they not been ended for that.
        lost_gpu_h: of these, in which they would have used their GPUs.
        warned_jobs, ended_jobs: whose GPUs were idle.
        wait_added_s: by how much the mean wait is longer than without; below 0: shorter.
    """

    off_node_h: float = 0.0
    energy_kwh: float | None = None
    power_ups: int = 0
    idle_gpu_h: float = 0.0
    returned_gpu_h: float = 0.0
    lost_gpu_h: float = 0.0
    warned_jobs: int = 0
    ended_jobs: int = 0
    wait_added_s: float = 0.0


class SwitchedLink(Uplink, Downlink, Protocol):
    """Both ends of a node's connection."""


class PowerModel:
    """Powers modelled machines down and up."""

    def __init__(
        self,
        agenda: Agenda,
        daemon: HeadProcess,
        nodes: Sequence[ClusterNode],
        *,
        down_s: float,
        boot_s: float,
    ) -> None:
        self._agenda = agenda
        self._daemon = daemon
        self._watts = {node.name: node.idle_watts for node in nodes}
        self._down_s = down_s
        self._boot_s = boot_s
        self._links: dict[str, tuple[NodeProcess, SwitchedLink]] = {}
        self._off_s: dict[str, float] = {}
        self._booting: set[str] = set()
        self._spent_s: dict[str, float] = dict.fromkeys(self._watts, 0.0)
        self.ups = 0

    def connected(self, node: NodeProcess, link: SwitchedLink) -> None:
        """Take in a node that can be switched."""
        self._links[node.name] = (node, link)

    def switch(self, name: str, up: bool) -> None:  # noqa: FBT001 - as the head calls it
        """Do what the site's programs would do."""
        if not up:
            self._agenda.after(self._down_s, self._off, name)
        elif name in self._off_s:
            self._spent_s[name] += self._agenda.now_s - self._off_s.pop(name)
            self.ups += 1
            self._booting.add(name)
            self._agenda.after(self._boot_s, self._on, name)

    def _off(self, name: str) -> None:
        if name in self._off_s or name in self._booting:
            return
        node, link = self._links[name]
        self._off_s[name] = self._agenda.now_s
        node.lose_power()
        self._daemon.lost(link, "powered down")

    def _on(self, name: str) -> None:
        self._booting.discard(name)
        node, link = self._links[name]
        node.start()
        challenge = self._daemon.offer(link)
        assert challenge is not None, "the head runs"
        node.offer(challenge.cluster, challenge.epoch)

    def add_to(self, savings: Savings, until_s: float) -> None:
        """Add what was saved by a moment."""
        off_s = dict(self._spent_s)
        for name, since_s in self._off_s.items():
            off_s[name] += max(0.0, until_s - since_s)
        savings.power_ups = self.ups
        savings.off_node_h = round(sum(off_s.values()) / HOUR_S, DIGITS)
        if any(self._watts.values()):
            watt_hours = sum(off_s[name] * watts for name, watts in self._watts.items()) / HOUR_S
            savings.energy_kwh = round(watt_hours / 1000, DIGITS)


class _Attempt(NamedTuple):
    """An attempt on a machine whose GPUs are looked at."""

    begun_s: float
    window: GpuWindow
    gpus: tuple[int, ...]
    uses: tuple[tuple[float, float], ...]
    work_s: float


_OF_IDLE_GPUS: Final = frozenset({f.GpusIdleWarned, f.IdleGpusReclaimed, f.JobHeld})


class IdleGpuModel:
    """Lets machines tell of idle GPUs, owners cancel what is held, and adds up what that gives.

    Args:
        caller_of: returns the owner of a job.
        next_watcher: is told after this one.
    """

    def __init__(
        self,
        agenda: Agenda,
        config: Config,
        *,
        caller_of: Callable[[int], Caller],
        next_watcher: Watcher,
    ) -> None:
        self._agenda = agenda
        self._config = with_samples(config.idle_gpus, SAMPLE_S)
        self._caller_of = caller_of
        self._next = next_watcher
        self._links: dict[str, Uplink] = {}
        self._attempts: dict[tuple[str, AttemptKey], _Attempt] = {}
        self._idle: set[tuple[str, AttemptKey]] = set()
        self._reclaimed: set[tuple[int, int]] = set()
        self._warned: set[int] = set()
        self._ended: set[int] = set()
        self._sums = Savings()
        self.daemon: HeadProcess | None = None

    def connected(self, machine: SimMachine, link: Uplink) -> None:
        """Look at the jobs of a machine."""
        self._links[machine.name] = link
        machine.on_begin = self._begun
        machine.on_record = self._recorded

    def _begun(self, machine: SimMachine, key: AttemptKey) -> None:
        process = machine.processes[key]
        gpus, uses = process.task.gpu_indices, process.program.gpu_uses
        if not gpus or not uses or not self._config.window_s:
            return
        at = (machine.name, key)
        window = GpuWindow(self._config)
        work_s = process.program.work_s
        self._attempts[at] = _Attempt(self._agenda.now_s, window, gpus, uses, work_s)
        self._look(at)

    def _look(self, at: tuple[str, AttemptKey]) -> None:
        """Take a sample, and tell the head of GPUs that are idle, or are not any more."""
        attempt = self._attempts.get(at)
        if attempt is None:
            return
        passed_s = self._agenda.now_s - attempt.begun_s
        percent = 100.0 * use_at(attempt.uses, passed_s)
        activity = GpuActivity(util_percent=percent, memory_bytes=0, has_process=True)
        attempt.window.note(activity, passed_s)
        idle = [attempt.window.idle(index) for index in attempt.gpus]
        found = tuple(gpu for gpu in idle if gpu is not None)
        if found or at in self._idle:
            (self._idle.add if found else self._idle.discard)(at)
            name, key = at
            use = LiveUse(gpus_idle=found)
            self._links[name].to_head(Uses(uses=((key.job, key.attempt, use),)))
        self._agenda.after(SAMPLE_S, self._look, at)

    def _recorded(self, machine: SimMachine, record: ExitRecord) -> None:
        key = AttemptKey(record.job, record.attempt)
        attempt = self._attempts.pop((machine.name, key), None)
        self._idle.discard((machine.name, key))
        if attempt is None:
            return
        gpus, ran_s = len(attempt.gpus), self._agenda.now_s - attempt.begun_s
        self._sums.idle_gpu_h += gpus * attempt.window.idle_sum_s / HOUR_S
        if (record.job, record.attempt) in self._reclaimed:
            left_s = max(0.0, attempt.work_s - ran_s)
            self._sums.returned_gpu_h += gpus * left_s / HOUR_S
            busy_s = used_s(attempt.uses, ran_s, attempt.work_s)
            self._sums.lost_gpu_h += gpus * busy_s / HOUR_S

    def committed(self, facts: Sequence[f.AnyFact], done: Iterable[Job]) -> None:
        """Take in facts, and the jobs that are done by them."""
        for fact in facts:
            if type(fact) not in _OF_IDLE_GPUS:
                continue
            match fact:
                case f.GpusIdleWarned():
                    self._warned.add(fact.job)
                case f.IdleGpusReclaimed():
                    self._reclaimed.add((fact.job, fact.attempt))
                    self._ended.add(fact.job)
                case f.JobHeld(by="gsched") if (
                    HoldKind.USER in fact.holds and HELD_FOR in fact.reason
                ):
                    self._agenda.soon(self._cancel, fact.job)
                case _:
                    pass
        self._next.committed(facts, done)

    def _cancel(self, job: int) -> None:
        assert self.daemon is not None, "a head has held the job"
        self.daemon.ask(c.ActOnJob(caller=self._caller_of(job), job=job, action=DeleteJob(ids=())))

    def add_to(self, savings: Savings) -> None:
        """Add what jobs have held and given back."""
        for name in ("idle_gpu_h", "returned_gpu_h", "lost_gpu_h"):
            setattr(savings, name, round(getattr(self._sums, name), DIGITS))
        savings.warned_jobs, savings.ended_jobs = len(self._warned), len(self._ended)


def use_at(uses: Sequence[tuple[float, float]], passed_s: float) -> float:
    """Return for which part of the time GPUs are busy so long after the start of their job."""
    found = 1.0
    for from_s, use in uses:
        if from_s > passed_s:
            break
        found = use
    return found


def used_s(uses: Sequence[tuple[float, float]], begin_s: float, end_s: float) -> float:
    """Return for how many seconds between two moments of a run its GPUs are busy."""
    moments = [begin_s, *(at for at, _ in uses if begin_s < at < end_s), end_s]
    spans = pairwise(moments)
    return sum((after - at) * use_at(uses, at) for at, after in spans if after > at)

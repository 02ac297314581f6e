"""What is asked of a supervisor: the content of ``task.json``, and orders in the journal."""

from typing import NamedTuple

from msgspec import Struct

from gsched.errors import InvalidRequestError
from gsched.model.job import EarlySignal
from gsched.model.origin import Origin
from gsched.model.resources import GpuShare
from gsched.model.states import Join, StopReason


class AttemptKey(NamedTuple):
    """Identity of one attempt: the job's number and which of its starts this is."""

    job: int
    attempt: int

    @property
    def name(self) -> str:
        """Return ``JOB.ATTEMPT``, the name of its directories and control groups."""
        return f"{self.job}.{self.attempt}"


def parse_key(name: str) -> AttemptKey:
    """Return the key that ``JOB.ATTEMPT`` names.

    Raises:
        InvalidRequestError: the text is no such name.
    """
    job, _, attempt = name.partition(".")
    if not (job.isascii() and job.isdigit() and attempt.isascii() and attempt.isdigit()):
        raise InvalidRequestError(f"{name!r} is not the name of an attempt (JOB.ATTEMPT)")
    return AttemptKey(int(job), int(attempt))


class TaskFile(Struct, frozen=True, kw_only=True):
    """A file that the supervisor writes into ``user_dir`` as the owner: the script, say."""

    name: str
    mode: int
    content: str


class MemoryCgroup(Struct, frozen=True, kw_only=True):
    """The control group that limits memory: ``version`` 1 or 2, its directory, and the limit."""

    version: int
    path: str
    limit_bytes: int


class CpusetCgroup(Struct, frozen=True, kw_only=True):
    """The control group that limits CPUs: ``version`` 1 or 2, and its directory.

    That of version 2 is the one for tracking.
    """

    version: int
    path: str


class GpuFence(Struct, frozen=True, kw_only=True):
    """The control group that keeps the attempt from the GPUs of others.

    Attributes:
        version: 1 (devices controller) or 2 (BPF); the group of 2 is the one for tracking.
        path: its directory.
        denied, allowed: character devices, ``MAJOR:MINOR`` or ``MAJOR:FIRST-LAST``; all that are in
            neither stay allowed.
    """

    version: int
    path: str
    denied: tuple[str, ...]
    allowed: tuple[str, ...]


class PrivateTmp(Struct, frozen=True, kw_only=True):
    """The attempt has a /tmp, and with ``shm`` a /dev/shm, of its own.

    Attributes:
        visible: directories of the node that are there as before, where they are below /tmp.
        shm_bytes: the size of /dev/shm; 0: half of the machine's memory.
    """

    visible: tuple[str, ...]
    shm: bool
    shm_bytes: int = 0


class ContainerRemoval(Struct, frozen=True, kw_only=True):
    """The command that removes what the attempt's container has left, as its owner.

    ``env``: what of the job's environment tells where the owner's containers are.
    """

    argv: tuple[str, ...]
    env: dict[str, str]


class Task(Struct, frozen=True, kw_only=True):
    """Everything a supervisor needs to run one attempt's part.

    Attributes:
        switch_user: whether the job must become ``uid``; false where gnode is that user itself.
        stdout_path, stderr_path: absolute; a directory (or an ending ``/``) means the file
            ``stdout_name`` or ``stderr_name`` in it.
        join: ``n``, ``oe`` or ``eo``.
        append: write behind what an earlier attempt wrote.
        user_dir: directory of the owner (mode 0700) for ``files``; removed after the end.
        cgroup: directory of a version 2 group to make and join, or None.
        walltime_s: limit from the start, None for none.
        failure_report: file in which torchrun's agent leaves the first failing rank, or None.
        boot_id: of the machine's start in which this was accepted; another one proves death.
        gpu_indices, gpu_shares: what the attempt owns here, so that a restarted gnode knows it.
        no_new_privileges: programs gain no rights by being setuid.
        open_files: soft limit on open files; the hard one is gnode's.
        processes: limit on processes and threads; 0: none. ``processes_cgroup``, of either version,
            counts those of the attempt; without it those of its user count.
        origin: where it comes from, so that a head on a restored database can adopt it.
        lease_s: it is ended when the head was not reached for so long; 0: never.
        lease_from_s: when the head was reached last before it was accepted, CLOCK_BOOTTIME.
        early_signal: sent before the walltime ends; None: there is none.
        lease_grace_s: from TERM to KILL when its lease has expired.
        cpus: CPUs that are the attempt's alone, ascending; empty: those of the node.
        cpuset: the control group that confines it to them; None: its processes' affinity does.
        fence: of its GPUs; None: it can open all of the machine.
        removal: of its container, once nothing of it runs; None: there is nothing to remove.
        gate: it is started before its attempt is launched, and waits for that.
        yields: it has a lower priority until then.
        detach_timeout_s: it runs on a terminal, and is hung up when nobody was attached for so
            long; 0: never; None: it has no terminal.
        stage_in, stage_out: commands that copy files before the start and after the end; all of
            either at most ``stage_timeout_s`` long together.
        directory_wait_s: for how long a working or output directory that does not exist is looked
            for, each.
        private: its own /tmp and /dev/shm; None: those of the node.
    """

    job: int
    attempt: int
    user: str
    uid: int
    gid: int
    switch_user: bool
    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    stdout_path: str
    stderr_path: str
    stdout_name: str
    stderr_name: str
    join: Join
    append: bool
    umask: int
    files: tuple[TaskFile, ...]
    user_dir: str
    walltime_s: float | None
    grace_s: float
    cgroup: str | None = None
    memory_cgroup: MemoryCgroup | None = None
    failure_report: str | None = None
    nice: int = 0
    boot_id: str = ""
    gpu_indices: tuple[int, ...] = ()
    gpu_shares: tuple[GpuShare, ...] = ()
    no_new_privileges: bool = False
    open_files: int = 1024
    processes: int = 0
    processes_cgroup: str | None = None
    origin: Origin | None = None
    lease_s: float = 0.0
    lease_from_s: float = 0.0
    lease_grace_s: float = 0.0
    early_signal: EarlySignal | None = None
    gate: bool = False
    yields: bool = False
    cpus: tuple[int, ...] = ()
    cpuset: CpusetCgroup | None = None
    fence: GpuFence | None = None
    detach_timeout_s: float | None = None
    removal: ContainerRemoval | None = None
    stage_in: tuple[tuple[str, ...], ...] = ()
    stage_out: tuple[tuple[str, ...], ...] = ()
    stage_timeout_s: float = 0.0
    directory_wait_s: float = 0.0
    private: PrivateTmp | None = None

    @property
    def key(self) -> AttemptKey:
        """Return the attempt's identity."""
        return AttemptKey(self.job, self.attempt)


class SupervisorInfo(Struct, frozen=True, kw_only=True):
    """From the journal: which processes run the attempt, and its real files."""

    pid: int
    start_ticks: int
    job_pid: int
    job_start_ticks: int
    started_s: float
    started_boottime_s: float
    stdout_path: str = ""
    stderr_path: str = ""


class StopCommand(Struct, frozen=True, kw_only=True, tag_field="do", tag="stop"):
    """End the job: TERM, ``grace_s`` seconds, KILL of everything."""

    reason: StopReason
    grace_s: float


class SignalCommand(Struct, frozen=True, kw_only=True, tag_field="do", tag="signal"):
    """Send a signal to the job's processes.

    Attributes:
        request: the move for which it is to save its state; 0: none. Repeated ones are left out.
    """

    signal: int
    request: int = 0


class RetimeCommand(Struct, frozen=True, kw_only=True, tag_field="do", tag="retime"):
    """The limit is now ``walltime_s`` from the start, None for none."""

    walltime_s: float | None


class LaunchCommand(Struct, frozen=True, kw_only=True, tag_field="do", tag="launch"):
    """Open the gate of a prepared task: ``at_s`` (CLOCK_BOOTTIME) its attempt was launched.

    The limit is ``walltime_s`` from then on, None for none.
    """

    at_s: float
    walltime_s: float | None


class ShellCommand(Struct, frozen=True, kw_only=True, tag_field="do", tag="shell"):
    """Start a further shell of the job on a terminal.

    Attributes:
        session: 32 hex digits that name its terminal.
        argv: what it runs; none: its user's shell.
        env: variables beside those of the job.
        linger_s: how long it waits for its user when the connection is lost.
        forward: instead of a program it relays connections to ports of the node.
    """

    session: str
    argv: tuple[str, ...]
    env: dict[str, str]
    linger_s: float
    forward: bool = False


Command = StopCommand | SignalCommand | RetimeCommand | LaunchCommand | ShellCommand

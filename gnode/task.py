"""What runs for an attempt on this node: the content of ``task.json``.

gnode writes it, and a supervisor reads it. It needs the standard library alone, as supervisors do.
Launcher and supervisors outlive an upgrade of gnode, and so do the files: a new field needs a
default, and a field of a newer version is ignored.
"""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Final, TypeVar, dataclass_transform

#: How long leftovers of a job that has ended by itself get between TERM and KILL, in seconds:
#: long enough to flush a file; the next job waits meanwhile.
LEFTOVER_GRACE_S: Final = 2.0
#: What a job gets at most between its signal and TERM when its machine shuts down.
NOTICE_MOST_S: Final = 60.0


#: Names of the files in the outbox of an attempt, and of the directory of what is staged out.
STDOUT: Final = "stdout"
STDERR: Final = "stderr"
FILES: Final = "files"
#: The word in a command that stages files in through the head.
STAGE_WORD: Final = "gsched-stage-in"


@dataclass_transform(kw_only_default=True)
class TaskRecord:
    """A record of annotated fields with defaults, as a dataclass has them.

    `dataclasses` imports `inspect`, `ast` and others: 1.4 MB that each fork of the launcher would
    copy the page tables of. In gnode, `gnode.core.task` makes dataclasses of these classes.

    Attributes:
        fields: names of the fields.
    """

    fields: ClassVar[tuple[str, ...]] = ()
    _names: ClassVar[frozenset[str]] = frozenset()
    _defaults: ClassVar[dict[str, object]] = {}

    def __init_subclass__(cls) -> None:
        own = vars(cls).get("__annotations__", {})
        cls.fields = (*cls.fields, *own)
        cls._names = frozenset(cls.fields)
        cls._defaults = cls._defaults | {name: vars(cls)[name] for name in own if name in vars(cls)}

    def __init__(self, **values: object) -> None:
        self.__dict__ = self._defaults | values
        if self.__dict__.keys() != self._names:
            raise TypeError(f"{type(self).__name__} has fields {self.fields}, not {tuple(values)}")


class TaskFile(TaskRecord):
    """A file that the supervisor writes into ``user_dir`` as the owner: the script, say."""

    name: str
    mode: int
    content: str


class MemoryCgroup(TaskRecord):
    """The control group that limits memory: ``version`` 1 or 2, its directory, and the limit."""

    version: int
    path: str
    limit_bytes: int


class CpusetCgroup(TaskRecord):
    """The control group that limits CPUs: ``version`` 1 or 2, and its directory.

    That of version 2 is the one for tracking.
    """

    version: int
    path: str


class GpuFence(TaskRecord):
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


class PrivateTmp(TaskRecord):
    """The attempt has a /tmp, and with ``shm`` a /dev/shm, of its own.

    Attributes:
        visible: directories of the node that are there as before, where they are below /tmp.
        shm_bytes: the size of /dev/shm; 0: half of the machine's memory.
    """

    visible: tuple[str, ...]
    shm: bool
    shm_bytes: int = 0


class SitePrograms(TaskRecord):
    """The site's programs around a job, by their paths; empty: there is none.

    Attributes:
        checks: health checks before the prolog: name, path and limit of time of each.
        prolog, epilog: run as gnode's user; ``prolog_user`` and ``epilog_user`` as the owner.
        prolog_timeout_s, epilog_timeout_s: limits of either part.
        name: of the job.
        arguments: job id, requested resources, queue and account.
        variables: of the programs that gnode's user runs.
    """

    variables: dict[str, str]
    prolog: str = ""
    epilog: str = ""
    prolog_user: str = ""
    epilog_user: str = ""
    prolog_timeout_s: float = 0.0
    epilog_timeout_s: float = 0.0
    checks: tuple[tuple[str, str, float], ...] = ()
    name: str = ""
    arguments: tuple[str, ...] = ("", "", "", "")


class ContainerRemoval(TaskRecord):
    """The command that removes what the attempt's container has left, as its owner.

    ``env``: the variables of the job's environment that lead to the owner's containers.
    """

    argv: tuple[str, ...]
    env: dict[str, str]


class AwayFiles(TaskRecord):
    """What a job does where its node lacks the directory of submission.

    Attributes:
        mark: of that directory, ``submit_dir``: see `gsched.directories`.
        host: of submission, by the name that is shown.
        outbox: the directory of the owner that holds what is to return; it outlives the attempt.
        scratch: the directory below ``user_dir`` in which the job starts; empty: in ``cwd``.
        kept: ``o`` and ``e``: output files that stay on the node under their own names.
        stage_in, stage_out: in place of the task's.
        leave: what is put into the outbox after the end: its name there, and its path.
        rank: of the node: only the first one must have all of it.
    """

    mark: str
    submit_dir: str
    host: str
    outbox: str
    scratch: str = ""
    kept: str = ""
    stage_in: tuple[tuple[str, ...], ...] = ()
    stage_out: tuple[tuple[str, ...], ...] = ()
    leave: tuple[tuple[str, str], ...] = ()
    rank: int = 0


class TaskEarlySignal(TaskRecord):
    """A signal before the walltime ends: see `gsched.model.job.EarlySignal`."""

    signal: int
    before_s: float = 60.0
    script_only: bool = False


class JobOptions(TaskRecord):
    """Options of the job that its supervisor reads: fields of `gsched.model.job.JobSpec`, by name.

    A new option of the supervisor is a field here; `gnode.core.binding` copies all of them.

    Attributes:
        join: ``n``, ``oe`` or ``eo``.
        grace_s: from TERM to KILL.
        early_signal: sent before the walltime ends, or again if its supervisor was lost meanwhile;
            None: there is none.
        checkpoint_signal: by which it saves its state and ends; 0: there is none.
    """

    join: str
    umask: int
    grace_s: float
    early_signal: TaskEarlySignal | None = None
    checkpoint_signal: int = 0


class TaskCgroups(TaskRecord):
    """What a task says of its control groups, in the fields of `Task`."""

    cgroup: str | None = None
    memory_cgroup: MemoryCgroup | None = None
    processes: int = 0
    processes_cgroup: str | None = None
    cpus: tuple[int, ...] = ()
    cpuset: CpusetCgroup | None = None
    fence: GpuFence | None = None


class Task(JobOptions):
    """Everything that a supervisor needs to run an attempt on this node.

    Attributes:
        switch_user: whether the job must become ``uid``; false where gnode is that user itself.
        stdout_path, stderr_path: absolute; a directory (or an ending ``/``) means the file
            ``stdout_name`` or ``stderr_name`` in it.
        append: add to the output files instead of emptying them first.
        user_dir: directory of the owner (mode 0700) for ``files``; removed after the end.
        cgroup: directory of a version 2 group to make and join, for tracking and killing; or None.
        walltime_s: limit from the start, None for none.
        leftover_grace_s: as ``grace_s``, for processes that the job has left, at most as long.
        launch_timeout_s: how long the steps before the program may take: a dead file server hangs
            for ever, a slow one answers within this.
        failure_report: file in which torchrun's agent leaves the first failing rank, or None.
        no_new_privileges: programs gain no rights by being setuid.
        open_files: soft limit on open files; the hard one is gnode's.
        processes: limit on processes and threads; 0: none. ``processes_cgroup``, of either version,
            counts those of the attempt; without it those of its user count.
        lease_s: it is ended when the head was not reached for so long; 0: never.
        lease_from_s: when the head was reached last before it was accepted, CLOCK_BOOTTIME.
        lease_grace_s: from TERM to KILL when its lease has expired.
        gate: it is started before its attempt is launched, and waits for that.
        yields: it has a lower priority until then.
        cpus: CPUs that are the attempt's alone, ascending; empty: those of the node.
        cpuset: the control group that confines it to them; None: its processes' affinity does.
        fence: of its GPUs; None: it can open all of the machine.
        detach_timeout_s: it runs on a terminal, and is hung up when nobody was attached for so
            long; 0: never; None: it has no terminal.
        removal: of its container, once nothing of it runs; None: there is nothing to remove.
        stage_in, stage_out: commands that copy files before the start and after the end; all of
            either at most ``stage_timeout_s`` long together.
        directory_wait_s: for how long a working or output directory that does not exist is looked
            for, each.
        private: its own /tmp and /dev/shm; None: those of the node.
        programs: of the site, around the job; None: there are none.
        away: of a job whose directory of submission may not be here; None: it is.
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
    append: bool
    files: tuple[TaskFile, ...]
    user_dir: str
    walltime_s: float | None
    leftover_grace_s: float = LEFTOVER_GRACE_S
    launch_timeout_s: float = 120.0
    cgroup: str | None = None
    memory_cgroup: MemoryCgroup | None = None
    failure_report: str | None = None
    nice: int = 0
    no_new_privileges: bool = False
    open_files: int = 1024
    processes: int = 0
    processes_cgroup: str | None = None
    lease_s: float = 0.0
    lease_from_s: float = 0.0
    lease_grace_s: float = 0.0
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
    programs: SitePrograms | None = None
    away: AwayFiles | None = None


class SupervisorInfo(TaskRecord):
    """From the journal: which processes run the attempt, and its real files.

    ``away``: the node lacks the directory of submission: what is in the outbox is to return there.
    """

    pid: int
    start_ticks: int
    job_pid: int
    job_start_ticks: int
    started_s: float
    started_boottime_s: float
    stdout_path: str = ""
    stderr_path: str = ""
    away: bool = False


RecordT = TypeVar("RecordT", bound=TaskRecord)

#: The records that a task holds.
_RECORDS: Final[Mapping[str, type[TaskRecord]]] = MappingProxyType(
    {
        "files": TaskFile,
        "memory_cgroup": MemoryCgroup,
        "early_signal": TaskEarlySignal,
        "cpuset": CpusetCgroup,
        "fence": GpuFence,
        "removal": ContainerRemoval,
        "private": PrivateTmp,
        "programs": SitePrograms,
        "away": AwayFiles,
    }
)

#: Fields of all records that are sequences of texts or numbers.
_SEQUENCES: Final = (
    *("argv", "cpus", "stage_in", "stage_out", "visible", "denied", "allowed"),
    *("checks", "arguments", "leave"),
)


def decode(kind: type[RecordT], content: bytes) -> RecordT:
    """Return the `Task` or `SupervisorInfo` that is written as JSON.

    Raises:
        ValueError: the content is no such record.
    """
    try:
        return _record(kind, json.loads(content))
    except TypeError as error:  # a field is missing
        raise ValueError(str(error)) from error


def _record(kind: type[RecordT], stated: Any) -> RecordT:
    """Return a record from what JSON decodes to; fields of newer versions are left out."""
    if not isinstance(stated, dict):
        raise ValueError(f"no record of type {kind.__name__}")  # noqa: TRY004 - as of no JSON
    # by the names of the fields: Python passes arguments by other, equal texts far more slowly
    values = {name: stated[name] for name in kind.fields if name in stated}
    for name, record in _RECORDS.items():
        value = values.get(name)
        if isinstance(value, dict):
            values[name] = _record(record, value)
        elif isinstance(value, list):
            values[name] = tuple(_record(record, each) for each in value)
    for name in _SEQUENCES:
        if name in values:
            values[name] = _tuple(values[name])
    return kind(**values)


def _tuple(value: Any) -> Any:
    """Return a list, and those in it, as tuples."""
    return tuple(map(_tuple, value)) if isinstance(value, list) else value

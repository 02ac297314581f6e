"""The tables of the configuration file that nodes read."""

import re
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Struct

from gsched.config.environment import (
    DEFAULT_SOCKET,
    HEAD_ACCOUNT,
)
from gsched.config.words import (
    AbsolutePath,
    CgroupPlace,
    CommandSocketPath,
    Feature,
    MetricsPlace,
    MigProfile,
    OptionalPath,
    Period,
    Quantity,
    form,
    node_socket_of,
)
from gsched.errors import ConfigError
from gsched.model.container import RUNTIMES, Runtime

#: The built-in health check.
GPU_CHECK: Final = "gpus"
#: Of a health check.
CheckName = Annotated[
    str,
    form(
        r"\A[a-z0-9][a-z0-9_.-]{0,31}\Z",
        ": invalid name {!r}",
        "write at most 32 lower-case letters, digits and ._- with a letter or digit in front",
    ),
]
#: How long a program of the site may take, seconds.
ProgramLimit = Annotated[float, msgspec.Meta(ge=1, le=86400)]
_FILES_MAX = 16 * 1024
_RANGES = re.compile(r"\[([0-9,-]+)\]")

#: What ``[gpu_share] runtime`` may name, beside runtimes of other packages.
SHARE_RUNTIMES: Final = ("none", "mps", "mig", "hami-core", "colocate", "interception")
#: Entry points by which a site's packages add runtimes.
RUNTIME_GROUP: Final = "gsched.gpu_runtimes"
#: C compilers for the runtime ``interception``, the first that there is.
SHARE_COMPILERS: Final = ("cc", "gcc", "clang")
#: Where NVIDIA's driver puts its library, for the runtime ``interception``.
SHARE_DRIVERS: Final = (
    "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    "/usr/lib/aarch64-linux-gnu/libcuda.so.1",
    "/usr/lib64/libcuda.so.1",
    "/usr/local/nvidia/lib64/libcuda.so.1",
    "/usr/lib/libcuda.so.1",
)


class GpuConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[[node.gpu]]``: declared GPUs, for a machine that has none that NVML sees.

    Attributes:
        rate_mhz: multiprocessors times their highest clock, of each; 0: as ``gpu_rate_mhz`` of
            the node.
        files: device files, as ``/dev/nvidia[0-3]``, in the order of the GPUs, as many for each;
            jobs are kept from those of other GPUs.
    """

    count: Annotated[int, msgspec.Meta(ge=0, le=1024)]
    type: str = "declared"
    memory: str = "16gb"
    rate_mhz: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0
    files: tuple[str, ...] = ()


class HealthCheckConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[[node.health_check]]``: a program that tells whether the node is fit for jobs.

    Attributes:
        name: of the check, in reasons and lists.
        program: its path; exit code 0 is a pass, the first line of its output is the text.
        interval_s: from the end of a run to the next one; not of ``when = "job"``.
        timeout_s: after which it has failed.
        when: ``any``: at all times; ``idle``: while no job is on the node; ``job``: before each
            job, as a part of its start.
    """

    name: CheckName
    program: AbsolutePath
    interval_s: Annotated[float, msgspec.Meta(ge=1, le=86400)] = 300.0
    timeout_s: ProgramLimit = 60.0
    when: Literal["any", "idle", "job"] = "any"


class NodeConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[node]``: the node daemon.

    Attributes:
        name: of this node; empty: this machine's name.
        role: ``compute``: it runs jobs; ``login``: it only serves commands of users.
        head: the head's node channel: ``unix:/path`` on the same machine, else ``host:port``.
        command_socket: path of the Unix socket for commands of users on this host, which gnode
            relays to the head; empty: that of ``socket`` in ``[head]``, unless the head is on this
            machine; ``none``: there is none.
        head_user: the account that a head on the same machine runs as, besides root and gnode's.
        state_dir: spool, logs of supervisors, locks; empty: DEFAULT_NODE_STATE_DIR.
        allow_root_jobs: whether jobs of uid 0 run here, whatever the head says.
        min_uid: the lowest uid of other users whose jobs run here; 0: ``UID_MIN`` of
            /etc/login.defs.
        address: where other nodes reach this one for rendezvous; empty: the connection's own.
        cpus: how many to offer; 0: all that gnode may use.
        cpu_capacity_cores: cores' worth of CPU time that they are; 0: as measured.
        cpu_clock_mhz: their clock; 0: the highest, as the machine tells it.
        memory: how much to offer, as ``64gb``; empty: all that gnode may use.
        gpu_rate_mhz: multiprocessors times clock, of each GPU; 0: as NVML tells them.
        gpu: declared GPUs; with none, NVML is asked.
        features: words that a request can name (``nodes=1:bigmem``).
        resources: consumable resources by name.
        cgroup: directory below which attempts get a control group; ``auto`` finds one, ``none``
            tracks processes by descent.
        cpu_binding: how jobs are kept on the CPUs that they were given: ``cpuset`` (control
            groups), ``affinity``, ``none``, or ``auto``: the strongest that works.
        gpu_fence: what keeps jobs from GPUs of others: ``bpf`` or ``devices`` (control groups of
            version 2 or 1), ``none``, or ``auto``: the first of them that works.
        container_runtimes: those that jobs may use here, in order of preference, if installed.
        tmp_dir: below which each job gets a directory of its own, its TMPDIR, which is removed at
            its end; empty: ``/tmp``.
        least_spool: free space in the file system of ``state_dir`` below which the node takes no
            new jobs, as ``32mb``.
        heartbeat_s, sample_s: how often load is sent, and each job's use is sampled.
        metrics_listen: where gnode serves metrics: path of a Unix socket, or address and port of
            this machine, as ``127.0.0.1:15081``; empty: nowhere.
        metrics_labels: labels of the metrics of jobs, which need ``job``.
        enforce_memory: kill a job that uses more memory than it requested.
        no_new_privileges: setuid programs in jobs gain no rights.
        job_open_files: soft limit on open files of each process of a job.
        job_processes: processes and threads of a job, 0: no limit; by a control group, or without
            one of all that its user has on the machine.
        login_shell: scripts are run by login shells, which read the profiles of system and user.
        directory_wait_s: for how long a start waits for a working directory that does not exist,
            and for a directory of the output files; then the job waits, and is tried again.
        prolog, epilog: programs that gnode's user runs before each job on this node, and after it,
            before its resources are free; empty: none.
        prolog_user, epilog_user: likewise, as the owner of the job, and within its limits.
        prolog_timeout_s, epilog_timeout_s: of each part.
        health_check: programs that tell whether the node is fit for jobs.
        gpu_check_interval_s: how often the GPUs are checked by NVML; 0: never.
        private_tmp: each job has a /tmp and a /dev/shm of its own; needs root.
        native_supervisor: gnode compiles a library that runs plain jobs with less CPU time.
        log_format, log_file: as in ``[head]``, of gnode.
    """

    name: str = ""
    role: Literal["compute", "login"] = "compute"
    head: str = f"unix:{node_socket_of(DEFAULT_SOCKET)}"
    command_socket: CommandSocketPath = ""
    head_user: str = HEAD_ACCOUNT
    state_dir: str = ""
    allow_root_jobs: bool = False
    min_uid: Annotated[int, msgspec.Meta(ge=0, le=65533)] = 0
    address: str = ""
    cpus: Annotated[int, msgspec.Meta(ge=0, le=65536)] = 0
    cpu_capacity_cores: Quantity = 0.0
    cpu_clock_mhz: Quantity = 0.0
    memory: str = ""
    gpu_rate_mhz: Quantity = 0.0
    gpu: tuple[GpuConfig, ...] = ()
    features: tuple[Feature, ...] = ()
    resources: dict[str, Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]] = {}
    cgroup: CgroupPlace = "auto"
    cpu_binding: Literal["auto", "cpuset", "affinity", "none"] = "auto"
    gpu_fence: Literal["auto", "bpf", "devices", "none"] = "auto"
    container_runtimes: tuple[Runtime, ...] = RUNTIMES
    tmp_dir: OptionalPath = ""
    least_spool: str = "32mb"
    heartbeat_s: Period = 300.0
    sample_s: Period = 5.0
    metrics_listen: MetricsPlace = ""
    metrics_labels: tuple[Literal["job", "user"], ...] = ("job",)
    enforce_memory: bool = True
    no_new_privileges: bool = False
    job_open_files: Annotated[int, msgspec.Meta(ge=64, le=1_048_576)] = 1024
    job_processes: Annotated[int, msgspec.Meta(ge=0, le=4_194_304)] = 0
    login_shell: bool = False
    directory_wait_s: Annotated[float, msgspec.Meta(ge=0, le=600)] = 5.0
    private_tmp: bool = False
    native_supervisor: bool = True
    log_format: Literal["text", "json"] = "text"
    log_file: OptionalPath = ""
    prolog: OptionalPath = ""
    prolog_user: OptionalPath = ""
    prolog_timeout_s: ProgramLimit = 300.0
    epilog: OptionalPath = ""
    epilog_user: OptionalPath = ""
    epilog_timeout_s: ProgramLimit = 300.0
    health_check: tuple[HealthCheckConfig, ...] = ()
    gpu_check_interval_s: Annotated[float, msgspec.Meta(ge=0, le=86400)] = 60.0


class MigConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[[gpu_share.mig]]``: MIG instances that gnode makes (runtime ``mig``).

    Attributes:
        gpus: by index; None: all that no other table names.
        instances: names of profiles, as ``1g.10gb``; none: MIG is turned off.
    """

    instances: tuple[MigProfile, ...]
    gpus: tuple[Annotated[int, msgspec.Meta(ge=0, le=1023)], ...] | None = None


class SharingRules(Struct, frozen=True, kw_only=True):
    """How the head places jobs that share GPUs.

    Attributes:
        low_max: jobs of the class ``low`` on one GPU.
        low_max_printed: as the listing of the published algorithm compares, which lets one more
            share a GPU than its text says.
        utilisation_max: with a higher utilisation in the last minute, a GPU gets no further job of
            the class ``low``; a fraction.
        utilisation_assumed: added to it for each job that has come since that was measured; 0: as
            in the published algorithm.
    """

    low_max: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 3
    low_max_printed: bool = False
    utilisation_max: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.8
    utilisation_assumed: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.3


class GpuShareConfig(SharingRules, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[gpu_share]``: how jobs share GPUs on a node, and the rules of the head.

    Attributes:
        runtime: how this node isolates them: one of `share_runtimes`; ``none``: they share none.
        driver: path of the CUDA driver's library, ``libcuda.so.1``; empty: found.
        fail: whether launches pass (``open``) or are refused (``closed``) without token daemon.
        patience_s: how long a job waits for the token daemon before ``fail`` applies, seconds.
        drain_max_s: a job that keeps the GPU busy so long after it lost the token is overtaken.
        overlaps_max: a job that is overtaken so often in a row is demoted or killed; 0: never.
        opportunistic_percent: part of the time in which low jobs launch beside a high one that is
            never idle, percent; 0: none.
        overlap_action: which of the two.
        watchdog_s: how often NVML is compared with what jobs may use; 0: never.
        context_memory: GPU memory of a process that interception does not see, as ``1gb``.
        context_reserve: GPU memory of each process that is taken from its job's share, for what
            interception does not see; ``0``: none.
        mps_pipe_dir: directory of the pipes of the MPS control daemon (runtime ``mps``).
        hami_library: path of ``libvgpu.so`` (runtime ``hami-core``).
        hami_sm_limit: whether that library also limits the use of multiprocessors.
        mig: MIG instances that gnode makes; none: it takes those that are there.
        options: of a runtime of another package, which reads and checks them.
    """

    runtime: str = "none"
    driver: OptionalPath = ""
    fail: Literal["closed", "open"] = "open"
    patience_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 60.0
    drain_max_s: Annotated[float, msgspec.Meta(ge=0.01, le=3600)] = 0.5
    overlaps_max: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 3
    opportunistic_percent: Annotated[float, msgspec.Meta(ge=0, le=50)] = 2.0
    overlap_action: Literal["demote", "kill"] = "demote"
    watchdog_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 5.0
    context_memory: str = "1gb"
    context_reserve: str = "0"
    mps_pipe_dir: AbsolutePath = "/tmp/nvidia-mps"  # noqa: S108 - NVIDIA's default
    hami_library: OptionalPath = ""
    hami_sm_limit: bool = False
    mig: tuple[MigConfig, ...] = ()
    options: dict[str, str | int | float | bool] = {}


class OutsideConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[outside_gpu_use]``: processes on the GPUs of a node that belong to none of its jobs.

    Attributes:
        action: ``ignore`` them, ``warn`` (show them), ``avoid`` their GPUs, or ``end`` them.
        grace_s: for how long a process may stay that is ended; seconds.
        ignored: names of programs that may use GPUs in no job.
    """

    action: Literal["ignore", "warn", "avoid", "end"] = "avoid"
    grace_s: Annotated[float, msgspec.Meta(ge=0, le=86400)] = 300.0
    ignored: tuple[str, ...] = ("nvidia-cuda-mps-server",)


class StagingConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[staging]``: how a node copies files for ``-W stagein=`` and ``stageout=``.

    Attributes:
        usecp: pairs of ``HOST:PREFIX`` and the directory of the node that is the same as PREFIX on
            HOST, which may have wildcards; files below it are copied with cp.
        copy: the command for all other files, as words; source and target follow.
        timeout_s: of all copies of a job before its start together, and of all after its end.
    """

    usecp: tuple[tuple[str, str], ...] = ()
    copy: tuple[str, ...] = ("scp", "-Brp")
    timeout_s: Annotated[float, msgspec.Meta(ge=1, le=86400)] = 600.0


class LoginConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[login]``: who may log in to a node where PAM runs ``gnode.pam``, besides root.

    Attributes:
        allow_users, allow_groups: come in without a job, and are in no job's control groups.
        when_unknown: what becomes of others where it cannot be told whether they have a job on the
            node, as gnode or the head does not answer: ``deny`` or ``allow``, as those above.
        timeout_s: until then it is not known.
    """

    allow_users: tuple[str, ...] = ()
    allow_groups: tuple[str, ...] = ()
    when_unknown: Literal["deny", "allow"] = "deny"
    timeout_s: Annotated[float, msgspec.Meta(ge=1, le=60)] = 10.0


def expanded(declared: GpuConfig) -> tuple[str, ...]:
    """Return the device files of declared GPUs: those of the first one, of the second one, ….

    Several patterns are of different files of each GPU: ``["/dev/nvidia[0-1]",
    "/dev/dri/renderD[128-129]"]``.

    Raises:
        ConfigError: a pattern cannot be read, or names not one file for each GPU.
    """
    columns = [_names(pattern) for pattern in declared.files]
    for pattern, names in zip(declared.files, columns, strict=True):
        if len(names) != declared.count:
            raise ConfigError(
                f"{pattern} names {len(names)} files for {declared.count} GPUs",
                hint="name one file for each GPU, as /dev/nvidia[0-3] for count = 4",
            )
    return tuple(name for row in zip(*columns, strict=True) for name in row)


def _names(pattern: str) -> list[str]:
    """Return what a pattern stands for: ``/dev/nvidia[0-1,4]`` is three files."""
    parts = _RANGES.split(pattern)
    bad = ConfigError(
        f"{pattern!r} cannot be read",
        hint="give absolute paths with at most one range, as /dev/nvidia[0-3]",
    )
    if not pattern.startswith("/") or len(parts) > 3 or set("".join(parts[::2])) & set("[]*?"):
        raise bad
    if len(parts) == 1:
        return [pattern]
    before, ranges, after = parts
    found: list[str] = []
    for term in ranges.split(","):
        first, dash, last = term.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise bad
        numbers = range(int(first), int(last or first) + 1)
        if not numbers or len(found) + len(numbers) > _FILES_MAX:
            raise bad
        found += [f"{before}{number}{after}" for number in numbers]
    return found


def share_runtimes() -> tuple[str, ...]:
    """Return what ``[gpu_share] runtime`` may name here, with the runtimes of other packages."""
    from importlib.metadata import entry_points  # late: it looks at all installed packages

    others = {entry.name for entry in entry_points(group=RUNTIME_GROUP)}
    return (*SHARE_RUNTIMES, *sorted(others.difference(SHARE_RUNTIMES)))

"""What the doctor looks at on this machine: interpreter, files, disks, GPUs, control groups."""

import importlib.util
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil

from gsched import file_systems, trust
from gsched.cli.local.cluster import head_daemon, host_name, node_daemon
from gsched.cli.local.daemons import Daemon, read_pid, running_process
from gsched.cli.local.findings import Finding, collected, fail, ok, warn
from gsched.cli.local.layout import ClusterLayout
from gsched.cli.times import format_time
from gsched.clock import SystemClock
from gsched.config.environment import (
    DEFAULT_NODE_STATE_DIR,
    config_path,
)
from gsched.config.load import load_config
from gsched.config.nodes import SHARE_COMPILERS
from gsched.config.tables import Config
from gsched.cuda_driver import find_driver
from gsched.errors import ConfigError
from gsched.model.units import format_size
from gsched.model.wording import binding_words
from gsched.pki.files import AUTHORITY, CertificateFiles, check_file, files_of
from gsched.pki.names import CertificateError, Role

BAD_PYTHON = (3, 12, 0)
OLDEST_PYTHON = (3, 11)
INODES_WARN = 10_000
DISK_WARN_BYTES = 1024**3
DISK_FAIL_BYTES = 50 * 1024**2  # SQLite's log and one backup of a middling database
CGROUP_ROOT = Path("/sys/fs/cgroup")
DEV = Path("/dev")


def check_python(version: tuple[int, int, int]) -> Finding:
    """Say whether gsched's daemons may run under this interpreter."""
    shown = ".".join(map(str, version))
    if version == BAD_PYTHON:
        return fail(
            "python",
            f"{shown} starts programs with root's groups (CVE-2023-6507)",
            "use Python 3.12.1 or later, or 3.11",
        )
    if version < OLDEST_PYTHON:
        return fail("python", f"{shown} is too old", "use Python 3.11 or later")
    return ok("python", f"{shown} ({sys.executable})")


def check_config(path: str | None) -> tuple[Finding, Config | None]:
    """Read the configuration; None where it cannot be used."""
    try:
        config = load_config(path)
    except ConfigError as error:
        return fail("configuration", error.message, error.hint or "see gsched.toml(5)"), None
    name = config_path(path)
    if not os.path.exists(name):
        return ok("configuration", f"{name} does not exist: all values are defaults"), config
    return ok("configuration", f"{name} is valid"), config


def check_certificates(files: CertificateFiles) -> Finding:
    """Say whether the head's certificate and authority are there, and nobody else's business."""
    if not os.access(os.path.dirname(files.directory), os.X_OK):
        return warn("certificates", f"{files.directory}: no permission", "run this check as root")
    authority = os.path.join(files.directory, AUTHORITY)
    if not os.path.exists(files.certificate if files.is_of_site else authority):
        return ok("certificates", "none yet: the head creates them at its first start")
    try:
        files.check()
        if not files.is_of_site:
            check_file(authority, is_secret=True)
    except PermissionError:
        return warn("certificates", f"{files.directory}: no permission", "run this check as root")
    except ConfigError as error:
        return fail("certificates", error.message, error.hint)
    return ok("certificates", f"{files.directory} is private")


def check_node_certificate(config: Config) -> Iterator[Finding]:
    """Say whether a node or a login host can show its certificate to a head on another machine."""
    node = config.node
    if not node.head or node.head.startswith("unix:"):
        return
    from gsched.pki import issuing  # late: others need no cryptography

    files = files_of(node.state_dir or DEFAULT_NODE_STATE_DIR, config.tls)
    if os.geteuid() != 0 and not os.access(files.directory, os.X_OK):
        yield warn("node certificate", f"{files.directory} cannot be read", "run this as root")
        return
    role: Role = "login" if node.role == "login" else "node"
    try:
        own = issuing.own_identity(
            files, role=role, name=node.name or host_name(), now_s=SystemClock().wall_s()
        )
    except CertificateError as error:
        what, _, todo = str(error).partition(": ")
        yield fail("node certificate", what, todo)
    except ConfigError as error:
        yield fail("node certificate", error.message, error.hint)
    else:
        yield ok("node certificate", f"that of {own.words}, until {format_time(own.expires_s)}")


def check_private(path: Path, subject: str) -> Finding:
    """Say whether a file that holds users' scripts and environments is closed to others."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        return fail(
            subject, f"{path} has mode {mode:04o}: other users can read it", f"chmod 600 {path}"
        )
    return ok(subject, f"{path} is private (mode {mode:04o})")


@collected
def check_state_directory(path: Path) -> Iterator[Finding]:
    """Say whether the head can keep its database in ``path``, and for how long."""
    subject = "state directory"
    if not os.path.isdir(path):
        todo = "create it with `gsched init`, or run this check as root"
        yield fail(subject, f"{path} does not exist, or you have no permission to see it", todo)
        return
    if not os.access(path, os.W_OK | os.X_OK):
        yield warn(
            subject, f"no permission to write {path}", "correct for a user; the head needs it"
        )
    else:
        yield ok(subject, f"{path} is writable")
    yield check_disk(path)
    objection = file_systems.objection(path)
    if objection:
        todo = "choose a state directory on a local disk"
        yield fail("file system", objection, todo)


def check_spool(path: Path) -> list[Finding]:
    """Say whether root's node would use its spool, if there is one and we are root."""
    if os.geteuid() != 0 or not os.path.isdir(path):
        return []
    try:
        trust.check_directory(str(path))
    except trust.UntrustedError as error:
        text = f"{error}: whoever can change the spool can run programs as any user"
        return [fail("spool", text, f"{error.hint}; check its files before gnode starts again")]
    return [ok("spool", f"only root can change {path}")]


def check_disk(path: Path, subject: str = "disk space") -> Finding:
    """Say how much room the file system of a daemon's directory has."""
    status = os.statvfs(path)
    free_inodes = status.f_favail if status.f_files else None
    return check_space(path, status.f_bavail * status.f_frsize, free_inodes, subject=subject)


def check_space(
    path: Path | str,
    free_bytes: int,
    free_inodes: int | None = None,
    *,
    subject: str = "disk space",
    refuses: bool = False,
) -> Finding:
    """Say whether there is room for a daemon's files.

    Args:
        path: where.
        free_bytes: left there.
        free_inodes: likewise; None: the file system does not count them.
        subject: of the finding.
        refuses: the daemon refuses jobs for it.
    """
    text = f"{format_size(free_bytes)} free at {path}"
    if free_inodes is not None:
        text = f"{text}, {free_inodes:,} inodes"
    if refuses or free_bytes < DISK_FAIL_BYTES or free_inodes == 0:
        return fail(subject, text, "free space: no job is accepted while the disk is full")
    if free_bytes < DISK_WARN_BYTES or (free_inodes is not None and free_inodes < INODES_WARN):
        return warn(subject, text, "free space before jobs are refused")
    return ok(subject, text)


def check_node_disks(config: Config) -> list[Finding]:
    """Say how much room a node of this machine has for its spool and for temporary directories."""
    places = {
        "spool space": config.node.state_dir or DEFAULT_NODE_STATE_DIR,
        "tmp space": config.node.tmp_dir or "/tmp",  # noqa: S108 - the default of tmp_dir
    }
    if not os.path.isdir(places["spool space"]):
        return []  # no node here
    findings = []
    for subject, place in places.items():
        try:
            findings.append(check_disk(Path(place), subject))
        except OSError as error:
            todo = f"create {place} or change its mode"
            findings.append(warn(subject, f"{place}: {error.strerror}", todo))
    return findings


def check_pid_files(layout: ClusterLayout) -> list[Finding]:
    """Say which daemons of a ``gsched up`` cluster run, and which have left a pid file behind."""
    daemons = [head_daemon(layout), *(node_daemon(node) for node in layout.nodes())]
    return [_check_daemon(daemon, layout.directory) for daemon in daemons]


def _check_daemon(daemon: Daemon, directory: Path) -> Finding:
    process = running_process(daemon)
    if process is not None:
        return ok(daemon.label, f"runs as process {process.pid}")
    pid = read_pid(daemon.pid_file)
    if pid is None:
        text = "is down"
    elif psutil.pid_exists(pid):
        text = f"is down; {daemon.pid_file} is stale: process {pid} is another program"
    else:
        text = f"is down; {daemon.pid_file} is stale: there is no process {pid}"
    return fail(daemon.label, text, f"gsched up --dir {directory}; its log is {daemon.log}")


def check_cgroup(root: Path = CGROUP_ROOT) -> Finding:
    """Say how gnode will keep hold of everything that a job starts."""
    subject = "control groups"
    without = "processes are tracked by descent, which suffices for well-behaved jobs"
    trees = [tree for tree in (root, root / "unified") if (tree / "cgroup.procs").exists()]
    if not trees:
        return warn(subject, f"no cgroup v2 tree at {root}; {without}", "mount cgroup2 if you can")
    if os.geteuid() != 0 and not os.access(trees[0], os.W_OK):
        return warn(
            subject,
            f"{trees[0]} exists but is not writable; {without}",
            "run gnode as root, or under systemd with Delegate=yes, for containment and OOM limits",
        )
    controllers = _words(trees[0] / "cgroup.controllers")
    if "memory" not in controllers:
        return warn(
            subject,
            f"{trees[0]} is writable but has no memory controller: jobs are contained, "
            "memory limits are enforced by sampling",
            "boot with systemd.unified_cgroup_hierarchy=1 for exact memory limits",
        )
    return ok(subject, f"{trees[0]} is writable ({' '.join(controllers)})")


def check_cpu_binding(config: Config, root: Path = CGROUP_ROOT) -> Finding:
    """Say how the jobs of a node on this machine are kept on their CPUs."""
    subject = "CPU binding"
    mode, usable = config.node.cpu_binding, len(os.sched_getaffinity(0))
    if mode == "none":
        return ok(subject, binding_words('none: cpu_binding = "none" in [node]'))
    if config.node.cpus > usable:
        reason = f"the node offers {config.node.cpus} CPUs, but this machine has only {usable}"
        return warn(
            subject,
            binding_words(f"none: {reason}"),
            f"set cpus in [node] to {usable} or less, or leave it out",
        )
    if mode == "affinity":
        return ok(subject, "by affinity: programs can change it")
    if config.node.cgroup != "none" and _has_cpusets(root):
        return ok(subject, "by cpuset control groups")
    todo = "run gnode as root, or under systemd with Delegate=yes, for cpuset control groups"
    if mode == "cpuset":
        return fail(subject, "cpuset control groups cannot be made here", todo)
    return ok(subject, "by affinity: programs can change it; no cpuset control groups here")


def check_gpu_fence(config: Config, root: Path = CGROUP_ROOT, dev: Path = DEV) -> list[Finding]:
    """Say what keeps the jobs of a node here from GPUs of others; nothing where there are none."""
    subject = "GPU fence"
    mode, declared = config.node.gpu_fence, config.node.gpu
    if not (any(each.count for each in declared) if declared else any(dev.glob("nvidia[0-9]*"))):
        return []
    if mode == "none":
        return [warn(subject, "none: gpu_fence in [node] is none", "leave gpu_fence out")]
    if any(each.count and not each.files for each in declared):
        return [ok(subject, "none: the GPUs are declared, and their files are not")]
    if os.geteuid() != 0 or config.node.cgroup == "none":
        todo = "run gnode as root, with control groups"
        return [warn(subject, "none: any job can open every GPU of this machine", todo)]
    trees = [tree for tree in (root, root / "unified") if (tree / "cgroup.procs").exists()]
    if trees and mode != "devices":
        return [ok(subject, f"BPF programs at control groups below {trees[0]}")]
    if (root / "devices" / "devices.deny").exists() and mode != "bpf":
        return [ok(subject, f"control groups below {root / 'devices'}")]
    return [fail(subject, f"no control groups for it at {root}", "mount cgroup2")]


def check_private_tmp(config: Config) -> list[Finding]:
    """Say whether jobs of a node here can have a /tmp of their own; nothing where they are not to.

    Whether it may mount file systems, gnode finds out when it starts.
    """
    if not config.node.private_tmp:
        return []
    subject = "private /tmp"
    if os.geteuid() != 0:
        text = "private_tmp in [node] is true, and only root can mount file systems"
        return [warn(subject, text, "run gnode, and this check, as root, or remove the key")]
    return [ok(subject, "each job has a /tmp and a /dev/shm of its own")]


def _has_cpusets(root: Path) -> bool:
    """Return whether the cpuset controller is there, of either version, and can be used."""
    trees = [tree for tree in (root, root / "unified") if (tree / "cgroup.procs").exists()]
    own = [tree for tree in trees if "cpuset" in _words(tree / "cgroup.controllers")]
    old = root / "cpuset"
    found = [*own, *([old] if (old / "cpuset.cpus").exists() else [])]
    return any(os.geteuid() == 0 or os.access(tree, os.W_OK) for tree in found)


def _words(path: Path) -> Sequence[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except OSError:
        return ()


def check_gpus() -> Finding:
    """Say which GPUs NVIDIA's library sees here."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return ok("GPUs", f"NVML sees none ({error}); GPUs can be declared")
    try:
        count = int(pynvml.nvmlDeviceGetCount())
        names = [
            pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(count)
        ]
    except pynvml.NVMLError as error:
        return warn("GPUs", f"NVML fails: {error}", "see nvidia-smi; the driver may need a restart")
    finally:
        pynvml.nvmlShutdown()
    return ok("GPUs", f"{count}: {', '.join(sorted(set(map(str, names))))}")


def check_gpu_share(
    config: Config, path: str | None = None, driver: Callable[[], str | None] = find_driver
) -> list[Finding]:
    """Say whether jobs can share GPUs as the configuration wants.

    Args:
        path: replaces $PATH.
        driver: finds the CUDA driver's library, if the configuration does not name it.
    """
    if config.gpu_share.runtime != "interception":
        return []
    subject = "GPU sharing"
    compilers = (shutil.which(name, path=path) for name in SHARE_COMPILERS)
    found = next((compiler for compiler in compilers if compiler), None)
    if found is None:
        return [
            warn(
                subject,
                "no C compiler: this node cannot run jobs that share a GPU by interception",
                "install gcc and libc6-dev, or choose another runtime in [gpu_share]",
            )
        ]
    named = config.gpu_share.driver
    library = named if named and os.access(named, os.R_OK) else None if named else driver()
    if library is None:
        return [
            warn(
                subject,
                f"no CUDA driver ({named or 'libcuda.so.1'}): this node cannot run jobs that share "
                "a GPU by interception",
                "install NVIDIA's driver, or name its libcuda.so.1 with driver in [gpu_share]",
            )
        ]
    return [ok(subject, f"by interception; its library is compiled with {found}")]


def check_torchrun() -> Finding:
    """Say whether ``gsub --torchrun`` can work with this interpreter."""
    if importlib.util.find_spec("torch") is not None:
        return ok("torchrun", f"PyTorch is installed for {sys.executable}")
    found = shutil.which("torchrun")
    if found:
        return ok("torchrun", f"{found}; give its interpreter with gsub --python")
    return warn(
        "torchrun",
        "PyTorch is not installed for this interpreter, and torchrun is not on PATH",
        "install PyTorch, or give an interpreter that has it with gsub --python",
    )

"""The node daemon's program: configuration, lock, signals; the rest is `gnode.daemon`."""

import gsched.start  # isort: skip - before all that it speeds up

import argparse
import asyncio
import errno
import logging
import os
import pwd
import resource
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from msgspec import structs

from gnode.core import containers
from gnode.core.agent import Agent
from gnode.core.gpu_access import GpuAccess
from gnode.core.inputs import SiteChanged
from gnode.core.site import REMOVE_DELAY_S, NodeLimits, ProgramRules, Site
from gnode.core.staging import Staging
from gnode.core.task import Account
from gnode.daemon import leftovers, neighbours, spool
from gnode.daemon.elastic import socket_path
from gnode.daemon.health import HealthChecks
from gnode.daemon.launching import LaunchRules
from gnode.daemon.login_host import LoginHost
from gnode.daemon.measuring import Meters
from gnode.daemon.parts import DaemonIdentity, host_identity, socket_of_jobs
from gnode.daemon.peer import socket_path as socket_of
from gnode.daemon.reloading import Configured, NodeReload, configured
from gnode.daemon.scratch import DEFAULT_TMP_DIR
from gnode.daemon.sharing import Sharing
from gnode.daemon.shell import Shell
from gnode.daemon.space import SpoolSpace
from gnode.daemon.spool import NodeSpool
from gnode.gpushare import make_runtime
from gnode.hw import cgroups
from gnode.hw.confinement import Confinement, find_confinement
from gnode.hw.gpu_files import find_gpu_access
from gnode.hw.gpu_health import GpuHealth
from gnode.hw.idle import with_samples
from gnode.hw.inventory import find_runtimes, take_inventory, usable_cores
from gnode.hw.load import LoadMeter
from gnode.hw.machine import own_names
from gnode.hw.nvml import Nvml
from gnode.hw.outside import OutsideWatch
from gnode.hw.sampling import Sampler
from gnode.hw.topology import find_binding
from gnode.supervisor import __file__ as supervisor_file
from gnode.supervisor import fence, private
from gsched import trust
from gsched.clock import SystemClock
from gsched.config.environment import (
    DEFAULT_NODE_STATE_DIR,
    environment,
)
from gsched.config.load import ConfigFile, read_config
from gsched.config.nodes import GpuShareConfig, NodeConfig
from gsched.config.tables import Config
from gsched.daemon_files import begin_log, check_config
from gsched.errors import CannotWriteError, ConfigError, GschedError, InternalError
from gsched.hangup import OnHangup, survive_hangups
from gsched.logs import FORMATS, Complaints, set_up
from gsched.model.container import SHARE_FEATURE
from gsched.model.outputs import FILES_FEATURE
from gsched.model.resources import Inventory
from gsched.model.units import format_size, parse_size_bytes
from gsched.model.wording import binding_words
from gsched.trust import UntrustedError
from gsched.version import VERSION

log = logging.getLogger(__name__)

LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s"
PROBE_USER = "nobody"
SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
#: Isolated (-I), so that nothing of the user's is imported; so it must be told where gsched lies.
STEP_BOOT = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from gnode.steps.{} import main; main()"
)
SYSTEMD_S = 5.0  # which answers within milliseconds


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the node daemon and exit with its status."""
    gsched.start.imported()
    parser = argparse.ArgumentParser(
        prog="gnode",
        description="Node daemon of gsched: starts, monitors and ends jobs on this machine.",
        epilog="SIGTERM stops gnode, and jobs keep running unless the machine shuts down; "
        "SIGUSR2 ends all jobs first.",
    )
    parser.add_argument("--config", metavar="FILE", help="configuration file (gsched.toml)")
    parser.add_argument(
        "--foreground", action="store_true", help="run in the foreground (the default)"
    )
    parser.add_argument("--verbose", action="store_true", help="log debug messages, too")
    parser.add_argument(
        "--log-format",
        choices=FORMATS,
        help="text, or json: an object a line; instead of log_format in [node]",
    )
    parser.add_argument(
        "--role",
        choices=("compute", "login"),
        help="login: run no jobs, and only serve commands of users; instead of role in [node]",
    )
    parser.add_argument("--version", action="version", version=f"gnode {VERSION}")
    given = parser.parse_args(arguments)
    level = "debug" if given.verbose else "info"
    survive_hangups()
    set_up(level, log_format=given.log_format or "text", path="", line=LOG_FORMAT)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    try:
        check_config(given.config)
        file = read_config(given.config)
        begin_log(level, file.config.node, given.log_format, line=LOG_FORMAT)
        if (given.role or file.config.node.role) == "login":
            serve_login(file.config)
        else:
            serve(file, given.config)
    except GschedError as error:
        hint = f"       hint: {error.hint}\n" if error.hint else ""
        sys.stderr.write(f"gnode: {error.message}\n{hint}")
        sys.exit(error.exit_code)


def serve(file: ConfigFile, given: str | None) -> None:
    """Run the daemon until it is told to end; ``given`` names the file that SIGHUP reads again.

    Raises:
        GschedError: it cannot start, or something inside it broke.
    """
    node = file.config.node
    state = NodeSpool(node.state_dir or DEFAULT_NODE_STATE_DIR, node.tmp_dir or DEFAULT_TMP_DIR)
    state.prepare()
    lock_fd = spool.lock(state.state_dir)
    try:
        has_spool = partial(state.is_locked_by, lock_fd)
        begun = configured(file, given, state.state_dir)
        try:
            shell, reloading, roots = _compose(begun, state, has_spool)
        except ConfigError as error:
            if not begun.kept.settings:
                raise
            shell, reloading, roots = _compose(begun.without(error), state, has_spool)
        _raise_open_files()
        asyncio.run(_run(shell, reloading))
        cgroups.remove_if_empty(roots)
    finally:
        if state.is_locked_by(lock_fd):  # else what is there is another gnode's
            Path(state.state_dir, "gnode.pid").unlink(missing_ok=True)
            if not state.attempts():
                state.scratch.close()
            state.outboxes.close()
        os.close(lock_fd)
    if shell.spool_lost:
        raise CannotWriteError(
            f"the state directory {state.state_dir} was removed or replaced while gnode ran",
            hint="start gnode again: it kills what is left of unknown jobs",
        )


def serve_login(config: Config) -> None:
    """Run the daemon on a login host until it is told to end.

    Raises:
        GschedError: it cannot start, or something inside it broke.
    """
    node = config.node
    state = NodeSpool(node.state_dir or DEFAULT_NODE_STATE_DIR, node.tmp_dir or DEFAULT_TMP_DIR)
    state.prepare()
    lock_fd = spool.lock(state.state_dir)
    _raise_open_files()
    try:
        own = host_identity(config, state.state_dir, "login")
        log.info("gnode %s serves login host %s", own.version, own.node)
        rules = LaunchRules(allow_root=node.allow_root_jobs, uid_min=node.min_uid)
        asyncio.run(_run(LoginHost(own, rules, SystemClock()), None))
    finally:
        os.close(lock_fd)


def _compose(
    begun: Configured, state: NodeSpool, has_spool: Callable[[], bool]
) -> tuple[Shell, NodeReload, cgroups.Roots]:
    config = begun.config
    node = config.node
    _check_private_tmp(config)
    roots = cgroups.find_roots(
        node.cgroup,
        state.state_dir,
        limit_processes=node.job_processes > 0,
        limit_cpus=node.cpu_binding in {"auto", "cpuset"},
        gpu_fence=node.gpu_fence,
        attach=fence.attach,
    )
    state.outboxes.prepare()
    own = host_identity(config, state.state_dir)
    nvml = Nvml()
    confinement = find_confinement()
    runtimes = find_runtimes(
        node.container_runtimes, path=environment("GSCHED_TEST_CONTAINER_PATH")
    )
    inventory = take_inventory(node, nvml, confinement, runtimes)
    binding = find_binding(node, offered=inventory.cpus, roots=roots, confinement=confinement)
    find_access = partial(find_gpu_access, node, nvml, inventory.gpus, roots)
    access = find_access()
    tracking = cgroups.group_name(roots.tracking) if roots.tracking else ""
    sharing = _sharing(config.gpu_share, state, nvml, inventory, find_access, tracking)
    if runtimes and sharing.containers:
        inventory = structs.replace(inventory, features=(*inventory.features, SHARE_FEATURE))
    inventory = structs.replace(inventory, features=(*inventory.features, FILES_FEATURE))
    _kill_strays(roots, state)
    rules = LaunchRules(allow_root=node.allow_root_jobs, uid_min=node.min_uid)
    of_config = partial(_of_jobs, runtimes=runtimes, memory_root=roots.memory)
    of_jobs = of_config(config)
    site = Site(
        node=own.node,
        user_root=state.scratch.root,
        outbox_root=state.outboxes.root,
        agent_path=str(Path(supervisor_file).with_name("torchrun_agent.py")),
        version=VERSION,
        boot_id=own.boot_id,
        uid=os.geteuid(),
        root_jobs=node.allow_root_jobs,
        cgroup_root=roots.tracking,
        memory_root=of_jobs.memory_root,
        elastic_socket=socket_path(state.state_dir),
        probe_account=_probe_account(rules),
        limits=of_jobs.limits,
        processes_root=roots.processes,
        sharing=sharing.offered,
        containers=of_jobs.containers,
        cpus=binding.cpus,
        cpu_binding=binding.words,
        cpuset_root=roots.cpuset if binding.method == "cpuset" else None,
        gpu_access=access,
        cpu_count=inventory.cpus,
        step_agent=(sys.executable, "-I", "-c", STEP_BOOT.format("agent"), _own_root()),
        unpacker=(sys.executable, "-I", "-c", STEP_BOOT.format("code"), _own_root()),
        carrier=(sys.executable, "-I", "-c", STEP_BOOT.format("stage_in"), _own_root()),
        launch_agent=_launch_agent(),
        staging=of_jobs.staging,
        programs=of_jobs.programs,
        visible=_needed_by_jobs(config, state.state_dir),
        command_socket=socket_of_jobs(config),
        remove_delay_s=float(environment("GSCHED_TEST_REMOVE_DELAY_S") or REMOVE_DELAY_S),
    )
    agent = Agent(site, inventory, mark=state.read_mark(), heartbeat_s=node.heartbeat_s)
    identity = DaemonIdentity(
        **own.fields(),
        inventory=inventory,
        elastic_socket=site.elastic_socket,
        rules=rules,
        sharing=sharing,
        gpu_fence=access.words,
        cpus=tuple(cpu.number for cpu in binding.cpus),
        neighbours=environment("GSCHED_TEST_NEIGHBOURS") or neighbours.PREFIX,
        native_supervisor=node.native_supervisor,
    )
    log.info(
        "gnode %s on %s (identity %s…): %d CPUs, %d GPUs, state in %s, groups in %s",
        site.version,
        own.node,
        identity.identity[:8],
        inventory.cpus,
        len(inventory.gpus),
        state.state_dir,
        roots.tracking or "none",
    )
    _log_confinement(confinement)
    log.info("binding of jobs to CPUs: %s", binding_words(binding.words))
    if access.words:
        log.info("fence around the GPUs of each job: %s", access.words)
    clock = SystemClock()
    meters = Meters(
        load=LoadMeter(
            clock,
            confinement,
            cores=usable_cores(node, confinement),
            per_minute=bool(sharing.offered),
        ),
        attempts=Sampler(nvml, with_samples(config.idle_gpus, config.node.sample_s)),
        sample_s=node.sample_s,
        space=SpoolSpace(state.state_dir, parse_size_bytes(node.least_spool)),
        outside=OutsideWatch(config.outside_gpu_use, tracking),
        health=_health(config, own.node, len(inventory.gpus) if not node.gpu else 0),
    )
    shell = Shell(
        identity=identity,
        agent=agent,
        spool=state,
        meters=meters,
        clock=clock,
        has_spool=has_spool,
    )
    if node.metrics_listen:
        from gnode.daemon.metrics import NodeMetrics

        served = NodeMetrics(node.metrics_listen, node.metrics_labels, agent, meters)
        shell.beside.append(served.run)
    reloading = NodeReload(
        begun,
        state_dir=state.state_dir,
        site=of_config,
        check_start=_check_private_tmp,
        post=shell.post,
        meters=meters,
        unused=lambda: _unused(node, lacks_library=shell.lacks_library),
        clock=clock,
    )
    shell.take_settings = reloading.take
    return shell, reloading, roots


def _unused(node: NodeConfig, *, lacks_library: bool) -> dict[str, str]:
    """Return keys of ``[node]`` that have no effect on this host, with the reasons."""
    if not node.native_supervisor:
        return {}
    words = "there is no C compiler, or it fails: see the log of gnode"
    return {"native_supervisor": words} if lacks_library else {}


def _of_jobs(
    config: Config,
    *,
    runtimes: tuple[containers.ContainerRuntime, ...],
    memory_root: tuple[int, str] | None,
) -> SiteChanged:
    """Return what a configuration says of jobs that start from now on."""
    node = config.node
    return SiteChanged(
        memory_root=memory_root if node.enforce_memory else None,
        limits=NodeLimits(
            no_new_privileges=node.no_new_privileges,
            open_files=node.job_open_files,
            processes=node.job_processes,
            login_shell=node.login_shell,
            directory_wait_s=node.directory_wait_s,
            private_tmp=node.private_tmp,
        ),
        containers=containers.ContainerRules(
            runtimes=runtimes,
            mount_home=config.containers.mount_home,
            mounts=config.containers.mounts,
        ),
        staging=Staging(
            usecp=config.staging.usecp,
            copy=config.staging.copy,
            timeout_s=config.staging.timeout_s,
            own_names=own_names(),
        ),
        programs=_programs(config),
        heartbeat_s=node.heartbeat_s,
    )


def _check_private_tmp(config: Config) -> None:
    """Refuse to start jobs in the node's /tmp where they are to have their own.

    Raises:
        ConfigError: they cannot have it.
    """
    problem = private.problem() if config.node.private_tmp else ""
    if problem:
        raise ConfigError(
            f"private_tmp in [node] is true, but {problem}",
            hint="run gnode as root with the right to mount (CAP_SYS_ADMIN), or remove the key",
        )


def _programs(config: Config) -> ProgramRules:
    """Return the site's programs around jobs.

    Raises:
        ConfigError: one of them cannot be run, or others could change what root would run.
    """
    node = config.node
    for key in ("prolog", "epilog", "prolog_user", "epilog_user"):
        check_program(getattr(node, key), f"{key} in [node]")
    for check in node.health_check:
        check_program(check.program, f"program of the health check {check.name}")
    return ProgramRules(
        prolog=node.prolog,
        epilog=node.epilog,
        prolog_user=node.prolog_user,
        epilog_user=node.epilog_user,
        prolog_timeout_s=node.prolog_timeout_s,
        epilog_timeout_s=node.epilog_timeout_s,
        checks=tuple(
            (check.name, check.program, check.timeout_s)
            for check in node.health_check
            if check.when == "job"
        ),
    )


def _health(config: Config, name: str, gpus: int) -> HealthChecks:
    return HealthChecks(
        node=name,
        programs=tuple(each for each in config.node.health_check if each.when != "job"),
        gpus=GpuHealth(gpus) if gpus else None,
        gpu_interval_s=config.node.gpu_check_interval_s,
    )


def check_program(path: str, key: str) -> None:
    """Refuse a program of the site that cannot be run, or that others can change.

    Raises:
        ConfigError: it is so; the message names the configuration key.
    """
    if not path:
        return
    try:
        os.stat(path)
        trust.check_configuration(path)
    except UntrustedError as error:
        raise ConfigError(f"{key} = {path!r} cannot be used: {error}", hint=error.hint) from error
    except OSError as error:
        raise ConfigError(
            f"{key} = {path!r} cannot be used: {error.strerror}",
            hint="install the program, or remove the key",
        ) from error
    if not os.access(path, os.X_OK):
        raise ConfigError(f"{key} = {path!r} is not executable", hint=f"chmod +x {path}")


def _needed_by_jobs(config: Config, state_dir: str) -> tuple[str, ...]:
    """Return the directories that jobs need beside their own and their users'.

    The node's, the head's and the commands' sockets, what shares GPUs, and gsched itself.
    """
    sockets = [path for path in (socket_of(config.node.head), socket_of_jobs(config)) if path]
    by_mps = config.gpu_share.runtime == "mps"  # else jobs may have an MPS of their own there
    found = [
        state_dir,
        os.path.realpath(state_dir),
        *(os.path.dirname(os.path.abspath(path)) for path in sockets),
        *([os.path.abspath(config.gpu_share.mps_pipe_dir)] if by_mps else []),
        _own_root(),
        sys.prefix,
    ]
    return tuple(dict.fromkeys(found))


def _own_root() -> str:
    return str(Path(supervisor_file).resolve().parent.parent.parent)


def _launch_agent() -> str:
    """Return the path of gsched-launch-agent beside this Python; empty: it is not there.

    MPI takes a path with blanks for several words.
    """
    path = Path(sys.executable).with_name("gsched-launch-agent")
    return str(path) if path.exists() and " " not in str(path) else ""


def _sharing(
    config: GpuShareConfig,
    state: NodeSpool,
    nvml: Nvml,
    inventory: Inventory,
    access: Callable[[], GpuAccess],
    tracking: str,
) -> Sharing:
    runtime = None
    if config.runtime != "none":
        runtime = make_runtime(config, state_dir=state.state_dir, nvml=nvml, tracking=tracking)
    return Sharing(config.runtime, runtime, inventory.gpus, access)


def _probe_account(rules: LaunchRules) -> Account | None:
    """Return as whom this node probes itself: as root an ordinary user who owns nothing."""
    try:
        entry = pwd.getpwnam(PROBE_USER) if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    except KeyError as error:
        log.warning("this node cannot probe itself: %s", error)
        return None
    if os.geteuid() == 0 and entry.pw_uid < rules.uid_min:
        log.warning("this node cannot probe itself: %s is below min_uid", PROBE_USER)
        return None
    return Account(
        user=entry.pw_name,
        uid=entry.pw_uid,
        gid=entry.pw_gid,
        home=entry.pw_dir,
        shell=entry.pw_shell,
    )


def _log_confinement(confinement: Confinement) -> None:
    """Say what is less than the machine, or people wonder where the rest is."""
    quota, limit = confinement.cpu, confinement.memory
    if quota is not None:
        log.info("%s confines this node to %.2f cores", quota.path, quota.cores)
    if limit is not None:
        log.info("%s confines this node to %s", limit.path, format_size(limit.limit_bytes))


def _kill_strays(roots: cgroups.Roots, state: NodeSpool) -> None:
    """Kill what runs without an attempt in the spool: a spool that was wiped.

    It happens before the head hears that there is no such attempt, and starts another one.
    """
    keep = {key.name for key in state.attempts()}
    killed = leftovers.kill_foreign(state.state_dir, state.scratch.roots(), keep)
    if killed:
        log.warning("killed processes of attempts that are not in the spool: %s", killed)
    for root in roots.all:
        for name in leftovers.kill_strays(root, keep):
            log.warning("killed the processes of %s, which is not in the spool", name)


def _raise_open_files() -> None:
    """Allow as many open files as the system does: connections, readers, a full node."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def is_shortage_at_accept(context: Mapping[str, object]) -> bool:
    """Return whether asyncio tells of an accept() that lacked resources; it tries again."""
    exception = context.get("exception")
    return "socket" in context and isinstance(exception, OSError) and exception.errno in SHORTAGES


async def _run(shell: Shell | LoginHost, reloading: NodeReload | None) -> None:
    loop = asyncio.get_running_loop()
    broken: list[str] = []

    complaints = Complaints(log, SystemClock())

    def on_fault(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        if is_shortage_at_accept(context):
            complaints.say("a connection waits", str(context["exception"]))
            return
        loop.default_exception_handler(context)
        broken.append(str(context.get("exception") or context.get("message")))
        shell.finish()

    loop.set_exception_handler(on_fault)
    endings: list[asyncio.Task[None]] = []
    loop.add_signal_handler(signal.SIGTERM, lambda: endings.append(loop.create_task(_end(shell))))
    loop.add_signal_handler(signal.SIGINT, shell.finish)
    loop.add_signal_handler(signal.SIGUSR2, shell.stop_all)
    if reloading is not None:
        OnHangup(reloading.reload).install()
        reloading.begin()
    await shell.run()
    if broken:
        raise InternalError(
            f"internal error of gnode: {broken[0]}",
            hint="details are in its log; jobs keep running; start gnode again",
        )


async def _end(shell: Shell | LoginHost) -> None:
    """End the daemon; if the machine shuts down, first all attempts, while there is time."""
    if await is_shutting_down():
        log.info("the machine shuts down: its jobs are stopped; rerunnable jobs are requeued")
        shell.shut_down()
    else:
        shell.finish()


async def is_shutting_down() -> bool:
    """Return whether systemd shuts the machine down: then its jobs end, too."""
    try:
        process = await asyncio.create_subprocess_exec(
            *("systemctl", "is-system-running"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        state, _ = await asyncio.wait_for(process.communicate(), SYSTEMD_S)
    except (OSError, TimeoutError):  # there is no systemd, or it hangs
        return False
    return state.strip() == b"stopping"


if __name__ == "__main__":
    main()

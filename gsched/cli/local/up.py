"""``gsched up``: a throw-away cluster on this machine, as the calling user."""

import contextlib
import fcntl
import hashlib
import os
import shlex
import shutil
import socket
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click
import msgspec

from gsched.cli.common import (
    is_terminal,
    option,
    print_json,
    print_note,
)
from gsched.cli.local import cluster
from gsched.cli.local.cluster import ClusterRequest, check_wanted
from gsched.cli.local.daemons import (
    Daemon,
    StartedDaemon,
    log_tail,
    pause,
    read_pid,
    running_process,
    start,
    stop,
)
from gsched.cli.local.head_checks import safe_mode_reason
from gsched.cli.local.layout import ClusterLayout, NodeLayout, layout_of
from gsched.cli.local.options import directory_option, subcommand, teller
from gsched.cli.local.toml import write_file
from gsched.client import HeadClient
from gsched.clock import SystemClock
from gsched.config.tables import Config
from gsched.errors import (
    CannotWriteError,
    ConfigError,
    GschedError,
    HeadUnreachableError,
    TryAgainError,
)
from gsched.model.gpu_tokens import UNSHARED
from gsched.model.states import NodeState
from gsched.protocol.api import StatusReply
from gsched.protocol.node_rows import NodeRow

#: A node tells how its GPUs are shared after it has connected, when it has looked.
SHARING_S = 5.0

EPILOG = """\b
Examples:
  eval "$(gsched up --nodes 2 --cpus 4 --gpus 2 --policy goodput --share)"
  gsched up --dir /tmp/try --nodes 4 --memory 8gb
"""


@subcommand("up", epilog=EPILOG)
@directory_option
@option("--nodes", type=int, metavar="N", help="Number of nodes [default: 1].")
@option(
    "--cpus", type=int, metavar="C", help="CPUs per node [default: an equal share of this machine]."
)
@option(
    "--gpus",
    type=int,
    metavar="G",
    help="Declared GPUs per node [default: none, or this machine's if there is one node].",
)
@option("--gpu-type", metavar="T", help="Type of the declared GPUs [default: declared].")
@option(
    "--memory",
    metavar="M",
    help="Memory per node, such as 8gb [default: an equal share of this machine].",
)
@option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME",
    help="Policy of the queues (such as fifo) or for training jobs (such as goodput); may be "
    "repeated for one of each [default: balance and deadline].",
)
@option(
    "--share",
    is_flag=False,
    flag_value="colocate",
    metavar="[RUNTIME]",
    help="Let jobs share GPUs (gsub --gpu-share): mps, mig, hami-core, interception, colocate or "
    "none [default without RUNTIME: colocate].",
)
@option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0.1),
    default=60.0,
    show_default=True,
    metavar="S",
    help="Seconds to wait until all of them are up.",
)
def up(  # noqa: PLR0913 - one parameter for each option
    *,
    directory: str | None,
    nodes: int | None,
    cpus: int | None,
    gpus: int | None,
    gpu_type: str | None,
    memory: str | None,
    policies: tuple[str, ...],
    share: str | None,
    timeout_s: float,
    as_json: bool,
) -> int:
    """Start a head and N nodes on this machine, with all of their files in D.

    Returns when all of them are up, and prints the shell commands that set the environment. If D
    contains a stopped or crashed cluster, it restarts what is down, and no job is lost. Of a
    cluster that exists, --policy, --share and a larger --nodes change it; other options do not.
    """
    wanted = ClusterRequest(
        nodes=nodes,
        cpus=cpus,
        gpus=gpus,
        gpu_type=gpu_type,
        memory=memory,
        policies=tuple(dict.fromkeys(policies)),
        share=share,
    )
    check_wanted(wanted)
    layout = layout_of(directory)
    tell = teller(quiet=as_json or not is_terminal(sys.stderr))
    report = Bringup(layout, timeout_s=timeout_s, tell=tell).run(wanted)
    exports = export_lines(layout)
    if as_json:
        print_json(msgspec.to_builtins(report) | {"exports": exports})
    else:
        _print(report, exports)
    return 0


Tell = Callable[[str], None]


@dataclass(kw_only=True)
class UpReport:
    """What ``up`` found and did.

    Attributes:
        started, kept: labels of daemons.
        changed: what is other than before in a cluster that was there.
        notes: what the caller should know.
        safe_mode: why the head dispatches nothing, or empty.
    """

    directory: str
    head: str
    nodes: tuple[str, ...] = ()
    started: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    safe_mode: str = ""


class Bringup:
    """One run of ``gsched up`` on one directory.

    Args:
        layout: of the cluster.
        timeout_s: how long it may take until all is up.
        tell: is told what is being done.
        leave_broken: nodes with a broken configuration are left as they are, running or not.
    """

    def __init__(
        self, layout: ClusterLayout, *, timeout_s: float, tell: Tell, leave_broken: bool = False
    ) -> None:
        self._layout = layout
        self._leaves_broken = leave_broken
        self._left: set[str] = set()
        self._deadline_s = SystemClock().monotonic_s() + timeout_s
        self._timeout_s = timeout_s
        self._tell = tell
        self._started: list[StartedDaemon] = []
        self._connected_after_s: dict[str, float] = {}  # of nodes started here, wall-clock time
        self._report = UpReport(directory=str(layout.directory), head=str(layout.socket))

    def run(self, wanted: cluster.ClusterRequest) -> UpReport:
        """Return once the head answers and every node is up.

        Raises:
            GschedError: a configuration is broken, a daemon failed (its log's end is in the
                message), or not all were up in time.
        """
        layout = self._layout
        cluster.make_directory(layout)
        with only_one(layout):
            if layout.exists:
                cluster.drop_key_file(layout)
                cluster.read_head(layout)
                if self._leaves_broken:
                    self._leave_broken()
                else:
                    self._report.notes.extend(cluster.differences(layout, wanted))
            self._prepare_head(wanted)
            status = self._bring_head()
            port = self._wait_for_port(status)
            if wanted.share is not None:
                self._report.changed.extend(cluster.set_share(layout, wanted.share))
            if not self._leaves_broken:
                added = cluster.add_nodes(layout, wanted)
                self._report.notes.extend(cluster.few_cpus(layout, added))
            cluster.pin_port(layout, port, self._nodes())
            self._let_read(status)
            self._bring_nodes()
            rows = self._wait_for_nodes(status.started_s)
            if wanted.share not in {None, "none"}:
                rows = self._wait_for_sharing(rows)
                if not any(row.gpus for row in rows):
                    self._report.notes.append("no node has a GPU to share: --gpus N declares some")
            self._report.notes.extend(_unshared(rows))
        self._report.safe_mode = safe_mode_reason(status)
        return self._report

    # --- head ---

    def _bring_head(self) -> StatusReply:
        daemon = cluster.head_daemon(self._layout)
        process = running_process(daemon)
        if process is not None and not self._has_read():
            self._tell(f"restarting {daemon.label}: its configuration changed")
            stop(process)
            process = None
        if process is not None:
            self._report.kept.append(daemon.label)
        else:
            self._free_port()
            self._tell("starting the head")
            self._start(daemon)
        return self._wait_for_head()

    def _has_read(self) -> bool:
        """Return whether the running head has the configuration that is there now."""
        try:
            row = self._client.status().config
        except GschedError:
            return True  # it does not answer yet
        return row is not None and row.digest == _digest(self._layout.config) and not row.waits

    def _let_read(self, status: StatusReply) -> None:
        """Let the head read the configuration again, in which its port stands now."""
        if status.config is None or status.config.digest != _digest(self._layout.config):
            with contextlib.suppress(GschedError):  # the next start reads it
                self._client.reload()

    @property
    def _client(self) -> HeadClient:
        return HeadClient(str(self._layout.socket), patience_s=0.0)

    def _prepare_head(self, wanted: cluster.ClusterRequest) -> None:
        """Store the configuration with which the head is to run."""
        layout = self._layout
        is_new = not layout.exists
        if is_new:
            cluster.write_head(layout, Config(head=cluster.new_head(layout)))
        changed = cluster.set_policies(layout, wanted.policies)
        if not is_new:
            self._report.changed.extend(changed)

    def _free_port(self) -> None:
        """Have the head take another port if its own is in use, and forget the last start's."""
        self._layout.port.unlink(missing_ok=True)
        port = cluster.read_head(self._layout).head.node_port
        if port and not _is_free(port):
            self._report.notes.append(f"port {port} is in use by another program; using a new one")
            cluster.change(self._layout.config, ("head", "node_port"), 0)

    def _wait_for_head(self) -> StatusReply:
        last: GschedError | None = None
        while True:
            try:
                return self._client.status()
            except (HeadUnreachableError, TryAgainError) as error:
                last = error
            self._check_alive()
            self._check_time(cluster.head_daemon(self._layout), f"does not answer: {last}")
            pause()

    def _wait_for_port(self, status: StatusReply) -> int:
        """Return the port for nodes, which a head opens a moment after it has begun to answer."""
        while True:
            port = read_pid(self._layout.port) or int(status.node_address.rpartition(":")[2])
            if port:
                return port
            self._check_alive()
            self._check_time(cluster.head_daemon(self._layout), "opens no port for nodes")
            pause()
            status = self._wait_for_head()

    # --- nodes ---

    def _nodes(self) -> tuple[NodeLayout, ...]:
        """Return the nodes that are to be up."""
        return tuple(node for node in self._layout.nodes() if node.name not in self._left)

    def _leave_broken(self) -> None:
        for node in self._layout.nodes():
            try:
                cluster.read_node(node)
            except ConfigError as error:
                self._left.add(node.name)
                self._tell(f"node {node.name} is not restarted: {error.message}")

    def _bring_nodes(self) -> None:
        self._report.nodes = tuple(node.name for node in self._nodes())
        for node in self._nodes():
            daemon = cluster.node_daemon(node)
            process = running_process(daemon)
            if process is not None and not _has_read(node):
                self._tell(f"restarting {daemon.label}: its configuration changed")
                stop(process)
                process = None
            if process is not None:
                self._report.kept.append(daemon.label)
                continue
            write_file(node.config_read, _digest(node.config) + "\n")
            self._connected_after_s[node.name] = SystemClock().wall_s()
            self._start(daemon)

    def _wait_for_nodes(self, head_started_s: float) -> Sequence[NodeRow]:
        """Wait until each node has connected to this very head; return the nodes.

        The state alone does not say it: a head may not have noticed yet that a node was killed a
        moment ago. The connection must be younger than the head and than the node.
        """
        wanted = set(self._report.nodes)
        missing_count = -1
        while True:
            rows = self._node_rows()
            after_s = self._connected_after_s
            there = {
                row.name
                for row in rows
                if row.state == NodeState.UP
                and row.since_s >= max(head_started_s, after_s.get(row.name, 0.0))
            }
            missing = sorted(wanted - there)
            if not missing:
                return rows
            if missing_count != len(missing):
                missing_count = len(missing)
                self._tell(f"{len(wanted) - len(missing)} of {len(wanted)} nodes are up")
            self._check_alive()
            daemon = cluster.node_daemon(self._layout.node(missing[0]))
            self._check_time(daemon, f"the head does not see it ({_states(rows, missing)})")
            pause()

    def _wait_for_sharing(self, rows: Sequence[NodeRow]) -> Sequence[NodeRow]:
        """Wait for some seconds until nodes tell how their GPUs are shared; return the nodes."""
        end_s = SystemClock().monotonic_s() + SHARING_S
        while any(row.gpus and row.gpu_tokens is None for row in rows):
            if SystemClock().monotonic_s() > end_s:
                break
            pause()
            rows = self._node_rows() or rows
        return rows

    def _node_rows(self) -> Sequence[NodeRow]:
        try:
            return HeadClient(str(self._layout.socket), patience_s=0.0).nodes().nodes
        except (HeadUnreachableError, TryAgainError):
            return ()

    # --- both ---

    def _start(self, daemon: Daemon) -> None:
        self._started.append(start(daemon))
        self._report.started.append(daemon.label)

    def _check_alive(self) -> None:
        for started in self._started:
            status = started.exit_status
            if status is not None:
                how = f"exit status {status}" if status >= 0 else f"signal {-status}"
                raise _failed(started.daemon, f"exited with {how}", started.log_offset)

    def _check_time(self, daemon: Daemon, what: str) -> None:
        if SystemClock().monotonic_s() > self._deadline_s:
            offsets = {each.daemon.label: each.log_offset for each in self._started}
            what = f"not ready after {self._timeout_s:g} s: {what}"
            raise _failed(daemon, what, offsets.get(daemon.label, 0))


def _failed(daemon: Daemon, what: str, log_offset: int) -> TryAgainError:
    lines = log_tail(daemon.log, first_byte=log_offset)
    shown = "".join(f"\n    {line}" for line in lines) if lines else " nothing"
    return TryAgainError(
        f"{daemon.label}: {what}; its log {daemon.log} ends with:{shown}",
        hint="fix the cause, then run the same `gsched up` again; `gsched down` stops the rest",
    )


def _unshared(rows: Iterable[NodeRow]) -> list[str]:
    """Say which nodes cannot share their GPUs, though they are to."""
    sharing_of = [(row.name, row.gpu_tokens) for row in rows if row.gpus]
    return [
        f"node {name} cannot share its GPUs: {sharing.words.removeprefix(UNSHARED)}"
        for name, sharing in sharing_of
        if sharing is not None and sharing.words.startswith(UNSHARED)
    ]


def _has_read(daemon: NodeLayout) -> bool:
    """Return whether a running gnode was started with the configuration that is there now."""
    try:
        return daemon.config_read.read_text(encoding="ascii").strip() == _digest(daemon.config)
    except FileNotFoundError:
        return False


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _states(rows: Sequence[NodeRow], missing: Sequence[str]) -> str:
    known = {row.name: row.state for row in rows}
    return ", ".join(f"{name}: {known.get(name, 'never registered')}" for name in missing[:5])


def _is_free(port: int) -> bool:
    """Return whether nobody listens on this port of the loopback interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@contextmanager
def only_one(layout: ClusterLayout) -> Iterator[None]:
    """Keep a second ``up`` or ``down`` on the same directory out."""
    try:
        handle = os.open(layout.directory / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CannotWriteError(
            f"{layout.directory}: {error.strerror}",
            hint="only the user who started a cluster can manage it",
        ) from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TryAgainError(
                f"another `gsched up` or `gsched down` is running in {layout.directory}",
                hint="wait until it has finished",
            ) from None
        yield
    finally:
        os.close(handle)


def export_lines(layout: ClusterLayout) -> tuple[str, ...]:
    """Return the shell lines after which the commands find this cluster."""
    lines = [f"export GSCHED_HEAD={shlex.quote(str(layout.socket))}"]
    scripts = sysconfig.get_path("scripts")
    if shutil.which("gsub") is None and (Path(scripts) / "gsub").exists():
        lines.append(f'export PATH={shlex.quote(scripts)}:"$PATH"')
    return tuple(lines)


def _print(report: UpReport, exports: tuple[str, ...]) -> None:
    for text in report.changed:
        print_note(text, command="gsched")
    for note in report.notes:
        print_note(f"note: {note}", command="gsched")
    if report.safe_mode:
        print_note(
            f"the head is in safe mode and starts no job: {report.safe_mode}; see `gsched recover`",
            command="gsched",
        )
    what = f"started {', '.join(report.started)}" if report.started else "all were running"
    count = f"{len(report.nodes)} node{'' if len(report.nodes) == 1 else 's'}"
    print_note(f"head and {count} are up ({what})", command="gsched")
    for line in exports:
        print(line)

"""A real cluster on loopback: a head and nodes as processes, in the directory of one test."""

import os
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from gsched.client import HeadClient
from gsched.errors import GschedError
from gsched.model.states import AttemptState
from gsched.pki.names import Role
from tests.support.certificates import give_certificate
from tests.support.forks import NONE, ForkServer, popen
from tests.support.processes import MARKER, PATIENCE_S, attempts, kill_all, processes_of

ROOT = Path(__file__).resolve().parents[2]
LOG_TAIL_BYTES = 8_000
#: Rendezvous ports of one cluster's jobs, below those that Linux gives to any process.
MASTER_PORTS = 100
MASTER_PORT_FIRST, MASTER_PORT_LAST = 20_000, 29_999

#: What gnode logs once the head has registered it.
REGISTERED = b"registered with the head"
#: Looks into a node's log for one request to the head, which costs a hundred times as much.
LOOKS = 10
#: What gnode logs once it has told its launcher of the library that runs plain jobs.
NATIVE_WORDS = "plain jobs are run by the native supervisor"

T = TypeVar("T")


def wait_until(predicate: Callable[[], T], timeout_s: float = PATIENCE_S, *, what: str = "") -> T:
    """Call ``predicate`` until it returns something true, and return that.

    Raises:
        AssertionError: it did not within ``timeout_s``; the message says what was waited for and
            what the predicate returned last.
    """
    last: T | None = None
    for _ in attempts(timeout_s):
        last = predicate()
        if last:
            return last
    raise AssertionError(
        f"waited {timeout_s:.0f} s for {what or predicate}, which was at last {last!r}"
    )


class Cluster:
    """A head and its nodes; `stop` ends everything that was ever started, jobs included.

    Attributes:
        directory: where everything lies: ``head/``, ``nodes/NAME/``, ``head.sock``, logs.
        jobs: an empty directory that jobs can work and write in.
        share_runtimes: by which jobs share GPUs, by node; others do not let them.
    """

    def __init__(self, directory: Path, marker: str) -> None:
        self.directory = directory
        self.jobs = directory / "jobs"
        self.socket = directory / "head.sock"
        self.state_dir = directory / "head"
        self.tmp_dir = directory / "tmp"
        self.head_settings: dict[str, object] = {}
        self.tls: str = ""  # [tls] of the head, as TOML text
        self.queues: str = ""  # [[queue]] tables, as TOML text
        self.has_monitor = False  # it takes half a second of CPU to start
        self.web_settings: dict[str, object] = {}
        self.is_native = False  # plain jobs; see `builds.give_native_library`
        self.wrapper = NONE  # what is done before each daemon starts
        self.trains: ForkServer | None = None  # nodes' training jobs find torch in memory
        self.share_runtimes: dict[str, str] = {}
        self.share_settings: dict[str, object] = {}  # more of [gpu_share] of these nodes
        self.cuda_driver = ""  # of nodes that share GPUs by interception
        self.node_tables = ""  # further tables of nodes, as TOML text
        self.head_module = "gschedd.main"
        self.others: frozenset[str] = frozenset()  # processes that are not its own, if known
        self._marker = marker
        self._head_process: subprocess.Popen[bytes] | None = None
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._log_ends: dict[str, int] = {}  # of nodes, when they were started last
        self._client = HeadClient(str(self.socket))
        self._node_port = 0
        self._keep_port: Callable[[], object] | None = None
        for path in (directory, self.jobs, self.state_dir, self.tmp_dir):
            path.mkdir(parents=True, exist_ok=True)

    # --- the head ---

    def start_head(self, env: Mapping[str, str] | None = None, *, wait: bool = True) -> None:
        """Start the head, with ``env`` added to its environment (``GSCHED_FAIL`` say).

        With ``wait`` it answers when this returns. Its node port stays the same over restarts.
        """
        settings: dict[str, object] = {
            "server_name": "test",
            "socket": str(self.socket),
            "state_dir": str(self.state_dir),
            "node_port": self._node_port,
            "single_user": True,
            "allow_root_jobs": os.getuid() == 0,
            "node_timeout_s": 15.0,
            **_master_ports(),
            **self.head_settings,
        }
        if not self._node_port and settings["node_port"] == 0:
            settings["node_port"] = self._node_port = self._reserve_port()
        config = self.directory / "head.toml"
        web = _table("web", {"enabled": self.has_monitor, **self.web_settings})
        config.write_text(_table("head", settings) + web + self.tls + self.queues, encoding="utf-8")
        port_file = self.state_dir / "gschedd.port"
        port_file.unlink(missing_ok=True)
        self._head_process = self._spawn(self.head_module, config, "head.log", env)
        if not wait:
            return
        process = self._head_process

        def answers() -> bool:
            assert process.poll() is None, (
                f"gschedd ended with {process.returncode}:\n{self.log('head.log')}"
            )
            if not port_file.exists():
                return False
            try:
                self.head.status()
            except GschedError:
                return False
            return True

        wait_until(answers, what="gschedd to answer")
        self._node_port = int(port_file.read_text().strip().rpartition(":")[2])

    def _reserve_port(self) -> int:
        """Return a free port that no connection gets by chance, also while no head listens there.

        A socket that is bound and does not listen keeps it. The head may listen beside it, as both
        reuse their address.
        """
        own = socket.socket()
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        own.bind(("127.0.0.1", 0))
        port = int(own.getsockname()[1])
        self._keep_port = weakref.finalize(self, os.close, own.detach())
        return port

    def kill_head(self) -> None:
        """Kill the head with SIGKILL and wait until it is gone."""
        assert self._head_process is not None
        _kill(self._head_process)

    def stop_head(self) -> int:
        """Ask the head to stop (SIGTERM) and return its exit code."""
        assert self._head_process is not None
        self._head_process.send_signal(signal.SIGTERM)
        return self._head_process.wait(PATIENCE_S)

    @property
    def head_process(self) -> subprocess.Popen[bytes]:
        """Return the head's process, the last one started."""
        assert self._head_process is not None, "start_head() first"
        return self._head_process

    @property
    def head(self) -> HeadClient:
        """Return a client of the head; it outlives the head's restarts."""
        return self._client

    # --- nodes ---

    @property
    def node_port(self) -> int:
        """Return the port on which the head listens for nodes."""
        return self._node_port

    def start_node(
        self,
        name: str,
        *,
        cpus: int = 4,
        gpus: int = 0,
        gpu_type: str = "",
        gpu_files: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        wait: bool = True,
        **settings: object,
    ) -> None:
        """Start a node (again) with ``cpus`` and ``gpus`` declared; ``settings`` are of ``[node]``.

        Its GPUs are of ``gpu_type`` and have device files ``gpu_files``, if these are given.

        With ``wait`` the head counts it as up when this returns.
        """
        directory = self.node_dir(name)
        directory.mkdir(parents=True, exist_ok=True)
        values: dict[str, object] = {
            "name": name,
            "head": f"127.0.0.1:{self._node_port}",
            "state_dir": str(directory),
            "tmp_dir": str(self.tmp_dir),
            "address": "127.0.0.1",
            "cpus": cpus,
            "memory": "8gb",
            "container_runtimes": [],  # what is installed here must not show
            "allow_root_jobs": os.getuid() == 0,
            "native_supervisor": self.is_native,
            **settings,
        }
        text = _table("node", values)
        if gpus:
            text += f"[[node.gpu]]\ncount = {gpus}\n"
            text += f'type = "{gpu_type}"\n' if gpu_type else ""
            text += f"files = {_toml(list(gpu_files))}\n" if gpu_files else ""
        if name in self.share_runtimes:
            text += f'[gpu_share]\nruntime = "{self.share_runtimes[name]}"\n'
            text += f'driver = "{self.cuda_driver}"\n'
            text += "".join(f"{key} = {_toml(each)}\n" for key, each in self.share_settings.items())
        text += self.node_tables
        config = self.directory / f"{name}.toml"
        config.write_text(text, encoding="utf-8")
        if not str(values["head"]).startswith("unix:") and "[tls]" not in self.node_tables:
            role: Role = "login" if values.get("role") == "login" else "node"
            give_certificate(self.state_dir, Path(str(values["state_dir"])), name, role=role)
        log = self.directory / f"{name}.log"
        self._log_ends[name] = log.stat().st_size if log.exists() else 0
        process = self._spawn("gnode.main", config, log.name, env)
        self._nodes[name] = process
        if wait:
            self.wait_for_node(name)

    def wait_for_node(self, name: str, state: str = "up", timeout_s: float = PATIENCE_S) -> None:
        """Wait until the head says that the node is in ``state``."""
        looks = 0

        def there() -> bool:
            nonlocal looks
            looks += 1
            process = self._nodes[name]
            if state == "up":
                assert process.poll() is None, (
                    f"gnode {name} ended with {process.returncode}:\n{self.log(f'{name}.log')}"
                )
                if looks % LOOKS and not self._has_registered(name):
                    return False
            nodes = {row.name: row.state for row in self.head.nodes().nodes}
            return nodes.get(name) == state

        wait_until(there, timeout_s, what=f"node {name} to be {state}")

    def _has_registered(self, name: str) -> bool:
        """Return whether a node has written that it is registered, since its start."""
        with (self.directory / f"{name}.log").open("rb") as file:
            file.seek(self._log_ends[name])
            return REGISTERED in file.read()

    def wait_for_start(self, job: int | str) -> None:
        """Wait until the head knows of a job's start: its state is "running" from the launch on."""

        def runs() -> bool:
            attempts = self.head.job(job).attempts
            return bool(attempts) and attempts[-1].state == AttemptState.RUNNING

        wait_until(runs, what=f"the start of job {job}")

    def kill_node(self, name: str) -> None:
        """Kill the node daemon with SIGKILL; its supervisors and jobs live on."""
        _kill(self._nodes[name])

    def stop_node(self, name: str) -> int:
        """Ask the node daemon to stop (SIGTERM) and return its exit code."""
        process = self._nodes[name]
        process.send_signal(signal.SIGTERM)
        return process.wait(PATIENCE_S)

    def node_process(self, name: str) -> subprocess.Popen[bytes]:
        """Return the node daemon's process, the last one started under this name."""
        return self._nodes[name]

    def node_dir(self, name: str) -> Path:
        """Return the node's state directory."""
        return self.directory / "nodes" / name

    # --- the end ---

    def is_alive(self) -> bool:
        """Return whether all daemons run that were started last."""
        return all(each.poll() is None for each in (self.head_process, *self._nodes.values()))

    def stop(self) -> None:
        """End the daemons, then everything that belongs to this test, by process id."""
        for process in (*self._nodes.values(), self._head_process):
            if process is not None and process.poll() is None:
                _kill(process)
        kill_all(lambda: processes_of(self._marker, self.directory, self.others))
        if self._keep_port is not None:
            self._keep_port()

    def pids(self) -> list[int]:
        """Return the processes that belong to this test."""
        return [each.pid for each in processes_of(self._marker, self.directory, self.others)]

    def log(self, name: str) -> str:
        """Return the end of one log."""
        return _end_of(self.directory / name)

    def runs_natively(self, name: str) -> bool:
        """Return whether the launcher of a node was told of the library that runs plain jobs."""
        return NATIVE_WORDS in (self.directory / f"{name}.log").read_text(encoding="utf-8")

    def logs(self) -> dict[str, str]:
        """Return the end of every log, and of what every job wrote, by file name."""
        paths = [*sorted(self.directory.glob("*.log")), *sorted(self.jobs.glob("*.[oe][0-9]*"))]
        return {path.name: _end_of(path) for path in paths}

    def _spawn(
        self, module: str, config: Path, log: str, env: Mapping[str, str] | None
    ) -> subprocess.Popen[bytes]:
        with open(self.directory / log, "ab") as stream:
            is_trainer = module == "gnode.main" and self.trains and self.trains.trains
            return popen(
                [sys.executable, "-m", module, "--config", str(config)],
                wrapper=self.wrapper,
                server=self.trains if is_trainer else None,
                cwd=ROOT,
                env={**os.environ, MARKER: self._marker, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )


def _master_ports() -> dict[str, object]:
    """Return rendezvous ports that no cluster of another process of these tests gives out.

    Processes that were started together have process ids close to each other.
    """
    blocks = (MASTER_PORT_LAST + 1 - MASTER_PORT_FIRST) // MASTER_PORTS
    first = MASTER_PORT_FIRST + os.getpid() % blocks * MASTER_PORTS
    return {"master_port_first": first, "master_port_last": first + MASTER_PORTS - 1}


def _end_of(path: Path) -> str:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return "(none)"
    return content[-LOG_TAIL_BYTES:].decode("utf-8", "backslashreplace")


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(PATIENCE_S)


def _table(name: str, values: Mapping[str, object]) -> str:
    return f"[{name}]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in values.items())


def _toml(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            escaped = value.replace("\\", "\\\\").replace('"', '\\"')
            return f'"{escaped}"'
        case list() | tuple():
            return "[" + ", ".join(_toml(item) for item in value) + "]"
        case dict():
            return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
        case _:
            raise TypeError(f"no TOML for {value!r}")

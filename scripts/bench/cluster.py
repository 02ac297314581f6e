"""A throw-away gsched cluster of one node for the benchmarks, and what its processes cost."""

import fcntl
import os
import sqlite3
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil
from budget import Snapshot, snapshot

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gsched.cli.local.cluster import (
    node_daemon,
    read_head,
    read_node,
    write_head,
    write_node,
)
from gsched.cli.local.daemons import running_process, start, stop
from gsched.cli.local.layout import ClusterLayout, layout_of
from gsched.client import HeadClient
from tests.support.certificates import give_certificate

# linux/fs.h: "top of directory hierarchies" makes ext4 choose places for the directories below it
# by free space. Otherwise they share the place of /tmp, where inodes that any program has deleted
# in the last minutes make every new one slow, if the file system has no journal.
FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_TOPDIR_FL = 0x80086601, 0x40086602, 0x20000
BIN = Path(sys.executable).parent
LOOK_S = 0.02


@dataclass(frozen=True, kw_only=True)
class CpuTimes:
    """CPU seconds, user and system, of the parts of a cluster since they were started.

    Attributes:
        supervisors: the launcher and its supervisors, also those that have ended.
        jobs: what the supervisors have reaped.
        database: PostgreSQL, where it has the state.
        workers: the head's workers: monitor, planner, forecaster.
    """

    head: float = 0.0
    gnode: float = 0.0
    supervisors: float = 0.0
    jobs: float = 0.0
    database: float = 0.0
    workers: float = 0.0

    @property
    def total(self) -> float:
        """Return the sum of all parts."""
        daemons = self.head + self.workers + self.gnode
        return daemons + self.supervisors + self.jobs + self.database

    def since(self, before: "CpuTimes") -> "CpuTimes":
        """Return what was used after ``before``."""
        return CpuTimes(
            head=self.head - before.head,
            gnode=self.gnode - before.gnode,
            supervisors=self.supervisors - before.supervisors,
            jobs=self.jobs - before.jobs,
            database=self.database - before.database,
            workers=self.workers - before.workers,
        )


class Cluster:
    """One head and one node, both up."""

    def __init__(self, layout: ClusterLayout) -> None:
        self.layout = layout
        self._database: psutil.Process | None = None
        self.address = str(layout.socket)
        self.environment = os.environ | {"GSCHED_HEAD": self.address}

    def up(self, *arguments: str) -> None:
        """Run ``gsched up``: it brings back what is down and restarts what has changed."""
        _gsched("up", "--dir", str(self.layout.directory), *arguments)

    def choose(self, policy: str, *, learn: bool) -> None:
        """Let the head choose jobs by another policy, and learn of what they cost or not."""
        self.down()
        config = read_head(self.layout)
        queues = tuple(msgspec.structs.replace(queue, policy=policy) for queue in config.queue)
        write_head(self.layout, msgspec.structs.replace(config, queue=queues))
        with self.layout.config.open("a") as file:
            file.write(f"\n[history]\nlearn = {str(learn).lower()}\n")
        self.up()

    def use_database(self, url: str, process: psutil.Process) -> None:
        """Let the head keep its state in a database, which this process serves."""
        self.down()
        self._database = process
        with self.layout.config.open("a") as file:
            file.write(f'\n[store]\nurl = "{url}"\n')
        _gsched("store", "copy", "--config", str(self.layout.config))
        self.up()

    def use_tls(self) -> None:
        """Connect the node by TCP and TLS on loopback, as another host, until the next `up`."""
        layout = self.layout
        node = layout.nodes()[0]
        gnode = running_process(node_daemon(node))
        assert gnode is not None, "it is up"
        stop(gnode)
        give_certificate(layout.directory, node.directory, node.name)
        address = f"127.0.0.1:{int(layout.port.read_text())}"
        write_node(node, msgspec.structs.replace(read_node(node), head=address))
        start(node_daemon(node))
        head = HeadClient(self.address)
        while not any(row.name == node.name and row.state == "up" for row in head.nodes().nodes):
            time.sleep(LOOK_S)

    def down(self) -> None:
        """End jobs and daemons."""
        _gsched("down", "--dir", str(self.layout.directory), "--kill-jobs")

    def head_process(self) -> psutil.Process:
        """Return the head's process."""
        return psutil.Process(int(self.layout.pid.read_text()))

    def budget(self) -> Snapshot:
        """Return what each process, its threads and the disk have done up to now."""
        node = self.layout.nodes()[0]
        launcher = _launcher(node.directory / "launcher.json")
        processes = {
            "head": [self.head_process().pid],
            "gnode": [int(node.pid.read_text())],
            "launcher": [launcher.pid],
            "supervisors": [each.pid for each in launcher.children()],
        }
        found = snapshot(processes, self.layout.directory)
        if self._database is not None:
            return found
        path = f"file:{self.layout.directory}/gsched.db?mode=ro"
        with closing(sqlite3.connect(path, uri=True)) as db:
            pages, size = (
                db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size")
            )
        found.others["database_bytes"] = pages * size
        return found

    def cpu_times(self) -> CpuTimes:
        """Return what the parts have used up to now; of supervisors and jobs to 10 ms."""
        node = self.layout.nodes()[0]
        launcher = _launcher(node.directory / "launcher.json")
        own = launcher.cpu_times()
        # A supervisor that has ended counts here, with its jobs: one in 500 attempts does.
        supervisors = own.user + own.system + own.children_user + own.children_system
        jobs = 0.0
        for process in launcher.children():
            times = process.cpu_times()
            supervisors += times.user + times.system
            jobs += times.children_user + times.children_system
        head = self.head_process()
        return CpuTimes(
            head=_own_s(head),
            gnode=_own_s(psutil.Process(int(node.pid.read_text()))),
            supervisors=supervisors,
            jobs=jobs,
            database=_family_s(self._database) if self._database is not None else 0.0,
            workers=sum(_own_s(each) for each in head.children(recursive=True)),
        )


def _launcher(record: Path) -> psutil.Process:
    """Return the launcher's process; gnode starts it beside connecting to the head."""
    while True:
        try:
            return psutil.Process(msgspec.json.decode(record.read_bytes())["pid"])
        except (FileNotFoundError, psutil.NoSuchProcess):
            time.sleep(LOOK_S)


def _own_s(process: psutil.Process) -> float:
    """Return the CPU time of the threads that a process has now."""
    taken_ns = 0
    for path in Path(f"/proc/{process.pid}/task").glob("*/schedstat"):
        with suppress(OSError):  # a thread that has just ended
            taken_ns += int(path.read_text().split()[0])
    return taken_ns / 1e9


def _family_s(process: psutil.Process) -> float:
    """Return the CPU time of a server, of its processes, and of those that have ended."""
    times = process.cpu_times()
    own = times.user + times.system + times.children_user + times.children_system
    return float(own + sum(_own_s(each) for each in process.children()))


def _gsched(*arguments: str) -> None:
    subprocess.run([BIN / "gsched", *arguments], check=True, stdout=subprocess.DEVNULL)


def _place_apart(directory: str) -> None:
    """Have the file system, if it can, put what is made in a directory away from its parent's."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        flags = struct.unpack("i", fcntl.ioctl(fd, FS_IOC_GETFLAGS, struct.pack("i", 0)))[0]
        fcntl.ioctl(fd, FS_IOC_SETFLAGS, struct.pack("i", flags | FS_TOPDIR_FL))
    except OSError:
        return  # another file system
    finally:
        os.close(fd)


@contextmanager
def one_node(*, cpus: int, cgroup: str = "auto", native: bool = True) -> Iterator[Cluster]:
    """Yield a cluster in a temporary directory; it is ended and removed afterwards.

    Args:
        cpus: declared on the node.
        cgroup: as in the node's configuration: ``auto``, ``none`` or a directory.
        native: whether plain jobs are run by the native supervisor.
    """
    with tempfile.TemporaryDirectory(prefix="gsched-bench-") as directory:
        _place_apart(directory)
        # The place goes by the name, so it must be another one in every run.
        cluster = Cluster(layout_of(tempfile.mkdtemp(prefix="", dir=directory)))
        try:
            cluster.up("--nodes", "1", "--cpus", str(cpus))
            node = cluster.layout.nodes()[0]
            jobs_dir = os.path.join(directory, "jobs")
            os.mkdir(jobs_dir, 0o711)
            config = msgspec.structs.replace(
                read_node(node), cgroup=cgroup, tmp_dir=jobs_dir, native_supervisor=native
            )
            write_node(node, config)
            cluster.up()
            yield cluster
        finally:
            cluster.down()

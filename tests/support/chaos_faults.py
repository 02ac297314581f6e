"""Faults of a chaos run beyond killed daemons: launchers, twins, full disks, restores, floods."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from gnode.supervisor import proc, spool
from gsched.errors import GschedError
from tests.support.cluster import ROOT, Cluster, wait_until
from tests.support.disks import fill, free
from tests.support.processes import MARKER, attempts
from tests.support.users import User
from tests.support.worst_requests import WORST

RECOVER_TIMEOUT_S = 240.0
TWIN_S_MAX = 1.5
FULL_S_MAX = 1.5
FLOOD_S = 2.0
SOCKET_TIMEOUT_S = 30.0


def kill_launcher(cluster: Cluster, node: str) -> bool:
    """Kill a node's launcher; return whether there was one."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        pid = int(json.loads((cluster.node_dir(node) / "launcher.json").read_bytes())["pid"])
        os.kill(pid, signal.SIGKILL)
        return True
    return False


class Twins:
    """Second gnodes with the name of one that is there, with a new spool or a copy of its own."""

    def __init__(self, cluster: Cluster, marker: str) -> None:
        self._cluster = cluster
        self._marker = marker
        self._count = 0

    def appear(self, node: str, chance: random.Random) -> None:
        """Run one for a moment."""
        self._count += 1
        directory = self._cluster.directory / f"twin{self._count}"
        original = self._cluster.node_dir(node)
        if chance.random() < 0.5:
            ignored = shutil.ignore_patterns("attempts", "*.sock", "jobs", "*.tmp")
            with contextlib.suppress(shutil.Error):  # files that went while they were copied
                shutil.copytree(original, directory, ignore=ignored, dirs_exist_ok=True)
        directory.mkdir(exist_ok=True)
        config = self._cluster.directory / "twin.toml"
        text = (self._cluster.directory / f"{node}.toml").read_text()
        config.write_text(text.replace(str(original), str(directory)))
        with open(self._cluster.directory / "twin.log", "ab") as log:
            twin = subprocess.Popen(
                [sys.executable, "-m", "gnode.main", "--config", str(config)],
                cwd=ROOT,
                env={**os.environ, MARKER: self._marker},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        time.sleep(chance.uniform(0.5, TWIN_S_MAX))
        twin.kill()
        twin.wait()


def fill_for_a_moment(directory: Path, chance: random.Random) -> None:
    """Fill a file system, and free it again."""
    fill(directory)
    time.sleep(chance.uniform(0.2, FULL_S_MAX))
    free(directory)


def restore_snapshot(cluster: Cluster, *, snapshot: Path, nodes: tuple[str, ...]) -> None:
    """Kill the head, put an old copy of its whole state in place, and let an operator accept it.

    The caller sees to it that nodes know all that was acknowledged since the copy was made.
    """
    cluster.kill_head()
    for entry in cluster.state_dir.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    shutil.copytree(snapshot, cluster.state_dir, dirs_exist_ok=True)
    cluster.start_head()

    def is_noticed() -> bool:
        with contextlib.suppress(GschedError):
            status = cluster.head.status()
            return bool(status.safe_mode) and status.nodes_up >= len(nodes)
        return False

    def is_accepted() -> bool:
        with contextlib.suppress(GschedError):  # a node is away: what it knows is needed
            return not cluster.head.recover(accept=True).safe_mode
        return False

    wait_until(is_noticed, RECOVER_TIMEOUT_S, what="the head to notice that it was restored")
    wait_until(is_accepted, RECOVER_TIMEOUT_S, what="the head to accept what nodes know")


def take_snapshot(cluster: Cluster, copy: Path) -> None:
    """Copy the head's whole state while it is down, as one moment."""
    cluster.kill_head()
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(cluster.state_dir, copy)
    cluster.start_head()


class Latencies:
    """How long others wait for answers while somebody sends the worst requests.

    Attributes:
        quiet_s, flooded_s: of each answer, without such requests and beside them.
    """

    def __init__(self, cluster: Cluster, marker: str, user: User | None) -> None:
        self._cluster = cluster
        self._marker = marker
        self._user = user
        self.quiet_s: list[float] = []
        self.flooded_s: list[float] = []

    def measure(self, chance: random.Random) -> None:
        """Measure for a while, then as long beside one of the worst requests, sent for ever."""
        self.quiet_s += self._ask_for(FLOOD_S)
        flood = self._flood(chance.randrange(len(WORST)))
        try:
            self.flooded_s += self._ask_for(FLOOD_S)
        finally:
            flood.kill()
            flood.wait()

    def _ask_for(self, seconds: float) -> list[float]:
        found: list[float] = []
        for _ in attempts(seconds):
            began_s = time.perf_counter()
            self._cluster.head.jobs([1])
            found.append(time.perf_counter() - began_s)
        return found

    def _flood(self, number: int) -> subprocess.Popen[bytes]:
        words = [str(self._cluster.socket), str(number)]
        return subprocess.Popen(
            [sys.executable, "-m", "tests.support.flood", *words],
            cwd=ROOT,
            env={**os.environ, MARKER: self._marker},
            stdin=subprocess.DEVNULL,
            user=None if self._user is None else self._user.uid,
            group=None if self._user is None else self._user.gid,
        )


def quantile(values: list[float], part: float) -> float:
    """Return the value below which a part of them lie; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0


def kill_supervisor(path: Path) -> bool:
    """Kill the supervisor of an attempt; return whether that came before the attempt's end."""
    try:
        info = spool.read_started(str(path))
        if info is None:
            return False
        fd = os.pidfd_open(info.pid)
    except OSError:
        return False
    try:
        # The supervisor may serve another attempt by now; killing it is as good.
        if not proc.lives(info.pid, info.start_ticks):
            return False
        signal.pidfd_send_signal(fd, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True

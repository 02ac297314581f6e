"""J10: daemons tell systemd that their event loops run, and a stopped one falls silent."""

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, wait_until

USEC = 200_000


class Systemd:
    """What systemd is to a daemon: a socket that hears how it is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.socket.bind(str(path))

    def environment(self) -> dict[str, str]:
        """Return what a unit with ``WatchdogSec=`` adds to the environment."""
        return {"NOTIFY_SOCKET": str(self.path), "WATCHDOG_USEC": str(USEC)}

    def heard(self) -> int:
        """Return how often the daemon has said that it is alive since the last look."""
        count = 0
        while True:
            try:
                count += self.socket.recv(100) == b"WATCHDOG=1"
            except BlockingIOError:
                return count


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    made = Systemd(tmp_path / "notify")
    yield made
    made.socket.close()


@pytest.mark.parametrize("daemon", ["gschedd", "gnode"])
def test_a_daemon_tells_the_watchdog_while_its_loop_runs(
    cluster: Cluster, systemd: Systemd, daemon: str
) -> None:
    cluster.start_head(systemd.environment() if daemon == "gschedd" else None)
    cluster.start_node("n1", env=systemd.environment() if daemon == "gnode" else None)
    process = cluster.head_process if daemon == "gschedd" else cluster.node_process("n1")

    wait_until(lambda: systemd.heard() >= 1, what="the daemon to say that it is alive")
    wait_until(lambda: systemd.heard() >= 1, what="it to say so again")
    os.kill(process.pid, signal.SIGSTOP)
    wait_until(lambda: systemd.heard() == 0, what="all that it had said")
    silent = systemd.heard()
    os.kill(process.pid, signal.SIGCONT)

    assert silent == 0
    wait_until(lambda: systemd.heard() >= 1, what="the daemon to go on")


def test_the_watchdog_of_another_process_is_not_fed(cluster: Cluster, systemd: Systemd) -> None:
    """``WATCHDOG_PID`` names whom systemd means."""
    cluster.start_head({**systemd.environment(), "WATCHDOG_PID": "1"})

    assert cluster.head.status().pid == cluster.head_process.pid
    assert systemd.heard() == 0

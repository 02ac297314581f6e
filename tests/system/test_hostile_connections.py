"""A real head and node under connections, requests and signals that mean them no good."""

import json
import os
import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import psutil
import pytest

from tests.support.cluster import Cluster, wait_until
from tests.support.forks import NONE, Wrapper
from tests.support.processes import PATIENCE_S
from tests.support.worst_requests import WORST, Worst

MIB = 1 << 20


@pytest.fixture
def cluster_up(cluster: Cluster) -> Cluster:
    cluster.start_head()
    return cluster


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a cluster with a head that all tests of this module use."""
    made = Cluster(tmp_path_factory.mktemp("shared"), f"hostile-{os.getpid()}")
    made.start_head()
    yield made
    made.stop()


def dialled(cluster: Cluster) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(PATIENCE_S)
    connection.connect(str(cluster.socket))
    return connection


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="prlimit(1) is not there")
def test_idle_connections_keep_neither_nodes_nor_the_head_from_working(cluster: Cluster) -> None:
    """They once took all descriptors; here they are one user's, and the node's are others."""
    cluster.wrapper = Wrapper(("prlimit", "--nofile=300:300"))
    cluster.start_head()
    cluster.wrapper = NONE
    with ExitStack() as stack:
        for _ in range(400):
            with suppress(OSError):
                stack.enter_context(dialled(cluster)).settimeout(0.1)
        cluster.start_node("n1", wait=False)
        wait_until(lambda: "n1 registered" in cluster.log("head.log"), what="the node")

    wait_until(lambda: cluster.head.nodes().nodes[0].state == "up", what="an answer")
    assert "Traceback" not in cluster.log("head.log")


def test_large_bodies_of_one_user_do_not_fill_the_memory(cluster_up: Cluster) -> None:
    """60 connections that send 12 MiB each, and wait before the last byte."""
    process = psutil.Process(cluster_up.head_process.pid)
    before = process.memory_info().rss
    head = f"POST /v1/jobs HTTP/1.1\r\nHost: h\r\nContent-Length: {13 * MIB}\r\n\r\n".encode()
    most = 0
    with ExitStack() as stack:
        for _ in range(60):
            connection = stack.enter_context(dialled(cluster_up))
            connection.settimeout(0.5)
            with suppress(OSError):
                connection.sendall(head + b" " * 12 * MIB)
            most = max(most, process.memory_info().rss)

    assert most - before < 200 * MIB


def test_garbage_on_the_node_port_leaves_few_lines(cluster_up: Cluster) -> None:
    port = int((cluster_up.state_dir / "gschedd.port").read_text())
    words = [
        b"\x16\x00\x00\x02\r\n\r\n",  # no version of TLS
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x1b[31m\r\n\r\n",
        b"x" * 9000,
    ]
    for number in range(200):
        address = ("127.0.0.1", port)
        with socket.create_connection(address, 20.0) as connection, suppress(OSError):
            connection.sendall(words[number % len(words)])
            connection.recv(1000)
    cluster_up.head.status()

    log = (cluster_up.directory / "head.log").read_text()
    assert "Traceback" not in log
    assert len(log.splitlines()) < 40
    assert "\x1b" not in log


@pytest.mark.parametrize("worst", WORST, ids=lambda worst: worst.name.replace(" ", "-"))
def test_the_worst_requests_are_answered_and_the_head_lives(shared: Cluster, worst: Worst) -> None:
    answer = shared.head.transport.exchange(worst.method, worst.target, worst.make())

    assert answer.status < 500
    if not worst.taken and answer.status == 200:
        reply = json.loads(bytes(answer.body))
        assert all("error" in result for result in reply["results"])
    assert len(answer.body) < 4 * MIB
    assert shared.head.health().ok


def test_a_hangup_ends_neither_head_nor_node(cluster_up: Cluster) -> None:
    """Nor do a thousand: each reads the configuration again, once a second at most."""
    cluster_up.start_node("n1")
    for _ in range(500):
        cluster_up.head_process.send_signal(signal.SIGHUP)
        cluster_up.node_process("n1").send_signal(signal.SIGHUP)
    wait_until(lambda: "SIGHUP: " in cluster_up.log("head.log"), what="a line")
    wait_until(lambda: "reload: " in cluster_up.log("n1.log"), what="a line")

    assert cluster_up.head.nodes().nodes[0].state == "up"
    for name in ("head.log", "n1.log"):
        assert cluster_up.log(name).count("states nothing that is new") < 10

"""The link between a node and its head fails, over TLS (E1 to E6, E11, E12), or a head (A14, E18).

What a link does not carry stays in the kernel, as with a cable that was pulled: neither side is
told. Cuts of machines with network namespaces are in `scripts/chaos`.
"""

import signal
import socket
from collections.abc import Iterator

import pytest

from tests.support.cluster import Cluster, wait_until
from tests.support.commands import run_command
from tests.support.processes import PATIENCE_S, attempts
from tests.support.wire import Side, Wire

TIMEOUT_S = 4.0
pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def wire(cluster: Cluster) -> Iterator[Wire]:
    """Return the link of node n1, on which a job runs."""
    cluster.head_settings["node_timeout_s"] = TIMEOUT_S
    cluster.start_head()
    with Wire(cluster.node_port) as wire:
        cluster.start_node("n1", head=f"127.0.0.1:{wire.port}")
        submit(cluster)
        yield wire


def submit(cluster: Cluster) -> None:
    script = "echo start >> starts; exec sleep 1d"
    ran = run_command(
        *("gsub", "-l", "nodes=n1", "--", "sh", "-c", script),
        head=cluster.socket,
        cwd=cluster.jobs,
    )
    assert ran.status == 0, ran.stderr
    wait_until((cluster.jobs / "starts").exists, what="the job to start")


def check_one_attempt(cluster: Cluster) -> None:
    """Check that the job runs as it was started."""
    story = cluster.head.job(1)
    assert story.row.state == "running"
    assert [each.attempt for each in story.attempts] == [1]
    assert (cluster.jobs / "starts").read_text() == "start\n"


def state_of(cluster: Cluster) -> str:
    return next(str(row.state) for row in cluster.head.nodes().nodes)


def let_pass(seconds: float, cluster: Cluster) -> set[str]:
    """Return the states that the node had meanwhile."""
    seen = set()
    for _ in attempts(seconds):
        seen.add(state_of(cluster))
    return seen


def test_e1_a_short_cut_is_not_noticed(cluster: Cluster, wire: Wire) -> None:
    wire.stalled = frozenset({"node", "head"})
    seen = let_pass(TIMEOUT_S / 4, cluster)
    wire.stalled = frozenset()
    seen |= let_pass(TIMEOUT_S / 4, cluster)

    assert seen == {"up"}
    assert wire.connections == 1
    check_one_attempt(cluster)


@pytest.mark.parametrize(
    "stalled",
    [
        pytest.param(("node", "head"), id="e2-e11-both"),
        pytest.param(("head",), id="e4-orders"),
        pytest.param(("node",), id="e5-reports"),
    ],
)
def test_e2_e4_e5_e11_a_long_cut_makes_the_node_unreachable_and_changes_no_job(
    cluster: Cluster, wire: Wire, stalled: tuple[Side, ...]
) -> None:
    """In both directions, and in one: the other side answers no pings."""
    wire.stalled = frozenset(stalled)
    cluster.wait_for_node("n1", "unreachable")
    check = cluster.head.job(1).row
    assert check.state == "running"

    wire.stalled = frozenset()
    wire.cut()  # what waits in the kernel is of connections that both have given up
    cluster.wait_for_node("n1")
    check_one_attempt(cluster)


def test_e6_a_link_that_flaps_starts_nothing_again_and_fills_no_log(
    cluster: Cluster, wire: Wire
) -> None:
    for number in range(12):
        connections = wire.connections
        wire.cut()
        wait_until(
            lambda before=connections: wire.connections > before,  # type: ignore[misc] # a default
            what=f"connection {number}",
        )

    cluster.wait_for_node("n1")
    check_one_attempt(cluster)
    assert wire.connections <= 40, "it dials again after a pause"
    lines = (cluster.directory / "n1.log").read_text().splitlines()
    assert sum("connection" in line for line in lines) <= 4 * wire.connections


@pytest.mark.parametrize("which", ["head", "node"])
def test_a14_e12_a_daemon_that_is_stopped_for_a_while_changes_no_job(
    cluster: Cluster, wire: Wire, which: str
) -> None:
    """A head that wakes up counts from then on; a node is unreachable meanwhile."""
    del wire
    process = cluster.head_process if which == "head" else cluster.node_process("n1")
    process.send_signal(signal.SIGSTOP)
    try:
        if which == "node":
            cluster.wait_for_node("n1", "unreachable")
        else:
            for _ in attempts(1.5 * TIMEOUT_S):
                pass
    finally:
        process.send_signal(signal.SIGCONT)

    cluster.wait_for_node("n1")
    check_one_attempt(cluster)


def test_e18_a_head_whose_port_is_taken_ends_with_what_to_do(cluster: Cluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        cluster.head_settings["node_port"] = port
        cluster.start_head(wait=False)
        assert cluster.head_process.wait(PATIENCE_S) == 78
    log = cluster.log("head.log")
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in log
    assert "change [head] node_port" in log
    assert "Traceback" not in log

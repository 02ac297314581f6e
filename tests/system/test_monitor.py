"""The monitor's process: it answers, survives, and reads events again where it must."""

import contextlib
import os
import signal
import socket
import sqlite3

import psutil
import pytest

from tests.support.cluster import Cluster, wait_until
from tests.support.commands import run_command
from tests.support.monitor import UnixConnection, address, get, is_ready, send, socket_of


@pytest.fixture
def watched(cluster: Cluster) -> Cluster:
    cluster.has_monitor = True
    cluster.start_head()
    wait_until(lambda: is_ready(cluster), what="the monitor to be ready")
    return cluster


def monitor_pid(cluster: Cluster) -> int:
    for each in psutil.Process(cluster.head_process.pid).children():
        if "gschedd.monitor.worker" in each.cmdline():
            return each.pid
    return 0


def gsub(cluster: Cluster) -> None:
    ran = run_command("gsub", "--", "true", head=cluster.socket, cwd=cluster.jobs)
    assert ran.status == 0, ran.stderr


def cursor(cluster: Cluster) -> int:
    with sqlite3.connect(f"file:{cluster.state_dir}/monitor.db?mode=ro", uri=True) as db:
        row = db.execute("SELECT seq FROM cursor").fetchone()
    return 0 if row is None else int(row[0])


def newest_event(cluster: Cluster) -> int:
    with sqlite3.connect(f"file:{cluster.state_dir}/gsched.db?mode=ro", uri=True) as db:
        return int(db.execute("SELECT max(seq) FROM events").fetchone()[0])


def test_it_is_started_again_and_goes_on(watched: Cluster) -> None:
    gsub(watched)
    wait_until(lambda: cursor(watched) == newest_event(watched) > 0, what="all events to be read")
    first = monitor_pid(watched)
    os.kill(first, signal.SIGKILL)
    gsub(watched)

    wait_until(lambda: cursor(watched) == newest_event(watched), what="the new events to be read")
    wait_until(lambda: is_ready(watched), what="the monitor to be ready again")
    assert monitor_pid(watched) != first
    assert watched.stop_head() == 0


def test_a_damaged_database_of_its_own_is_made_anew(watched: Cluster) -> None:
    watched.stop_head()
    (watched.state_dir / "monitor.db").write_bytes(b"no database" * 1000)
    for name in ("monitor.db-wal", "monitor.db-shm"):
        (watched.state_dir / name).unlink(missing_ok=True)
    watched.start_head()

    wait_until(lambda: is_ready(watched), what="the monitor to be ready")
    assert (watched.state_dir / "monitor.db.damaged").exists()


def test_an_address_that_cannot_be_had_is_named_without_a_traceback(cluster: Cluster) -> None:
    """By the doctor and ``gsched web``; the monitor is started again less and less often."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        cluster.has_monitor = True
        cluster.web_settings = {"listen": f"127.0.0.1:{taken.getsockname()[1]}"}
        cluster.start_head()
        wait_until(lambda: cluster.head.status().monitor, what="the monitor's words")
        wait_until(lambda: "again in 2.0 s" in cluster.log("head.log"), what="a longer pause")
        doctor = run_command("gsched", "doctor", head=cluster.socket)
        page = run_command("gsched", "web", "--print", head=cluster.socket)

    why = f"cannot listen on {cluster.web_settings['listen']}: another program uses it"
    assert "FAIL  monitor" in doctor.stdout
    assert why in doctor.stdout
    assert page.status == 69
    assert why in page.stderr
    assert "Traceback" not in cluster.log("head.log")
    wait_until(lambda: is_ready(cluster), what="the monitor to listen once it can")
    assert cluster.head.status().monitor == ""
    kept = cluster.state_dir / "monitor.port"
    assert not kept.exists(), "a configured port is not the one that port 0 gets later"


def test_a_token_begins_one_session_of_its_user(watched: Cluster) -> None:
    found = address(watched)

    assert found.token
    kept = (watched.state_dir / "monitor.port").read_text()
    assert found.address == f"127.0.0.1:{kept}"
    assert address(watched).token != found.token


def test_only_the_heads_own_account_speaks_for_others(watched: Cluster) -> None:
    connection = UnixConnection(watched.socket)
    own = send(connection, "GET", "/v1/samples", headers={})
    odd = send(connection, "GET", "/v1/status", headers={"Gsched-On-Behalf-Of": "me"})

    assert own.status == 200
    assert odd.status == 400
    assert "is not UID:GID" in odd.text
    assert get(watched, "/livez").text == "ok\n"
    assert socket_of(watched).stat().st_mode & 0o777 == 0o666


def test_a_request_without_a_form_is_refused_as_one_of_another_page(watched: Cluster) -> None:
    gsub(watched)
    with contextlib.closing(UnixConnection(socket_of(watched))) as connection:
        connection.putrequest("POST", "/jobs/1/hold", skip_host=True)
        connection.putheader("Host", "localhost")
        connection.endheaders()  # no length of a body
        assert connection.getresponse().status == 403

"""Metrics and health of head and monitor, as Prometheus and a load balancer see them."""

import getpass
import http.client
import os
import re
import shutil
import signal
import subprocess

import psutil
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

from tests.support.cluster import ROOT, Cluster, wait_until
from tests.support.commands import run_command
from tests.support.monitor import Response, UnixConnection, address, get, is_ready, send, socket_of
from tests.support.processes import PATIENCE_S

PROMTOOL = shutil.which("promtool")


@pytest.fixture
def watched(cluster: Cluster) -> Cluster:
    cluster.has_monitor = True
    cluster.web_settings = {"sample_period_s": 1}
    cluster.start_head()
    cluster.start_node("a")
    wait_until(lambda: is_ready(cluster), what="the monitor to be ready")
    return cluster


def run_job(cluster: Cluster, *options: str, command: str = "true") -> str:
    ran = run_command("gsub", *options, "--", command, head=cluster.socket, cwd=cluster.jobs)
    assert ran.status == 0, ran.stderr
    return ran.stdout.strip()


def value(cluster: Cluster, name: str, path: str = "/metrics", **labels: str) -> float | None:
    response = get(cluster, path)
    assert response.status == 200, response.text
    for family in plain(response.text):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return sample.value
    return None


def check_metrics(text: str) -> None:
    assert PROMTOOL is not None
    ran = subprocess.run(
        [PROMTOOL, "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout + ran.stderr) == (0, "")


def over_tcp(cluster: Cluster, path: str, **headers: str) -> Response:
    host, _, port = address(cluster).address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)
    return send(connection, "GET", path, headers=headers)


def test_jobs_are_counted_once_also_over_a_restart_of_the_head(watched: Cluster) -> None:
    for command in ("true", "false"):
        run_command("gwait", run_job(watched, command=command), head=watched.socket)

    def ended(outcome: str) -> float | None:
        return value(watched, "gsched_jobs_ended_total", outcome=outcome)

    wait_until(lambda: ended("succeeded") == ended("failed") == 1.0, what="two ends")
    assert value(watched, "gsched_jobs_submitted_total") == 2.0
    assert value(watched, "gsched_wait_seconds_count") == 2.0
    assert value(watched, "gsched_cycle_seconds_count", "/metrics/scheduler")
    assert value(watched, "gsched_up") == 1.0
    watched.stop_head()
    watched.start_head()
    wait_until(lambda: is_ready(watched), what="the monitor to be ready")

    assert ended("succeeded") == 1.0


def test_waiting_elements_of_an_array_count_each(watched: Cluster) -> None:
    run_job(watched, "-J", "0-399", "-h", command="true")

    wait_until(
        lambda: value(watched, "gsched_jobs", "/metrics/jobs", state="held") == 400.0,
        what="400 held jobs",
    )


def test_both_formats_are_accepted_by_promtool(watched: Cluster) -> None:
    run_job(watched)
    text = get(watched, "/metrics")
    connection = UnixConnection(socket_of(watched))
    other = send(
        connection,
        "GET",
        "/metrics",
        headers={"Accept": "application/openmetrics-text;version=1.0.0"},
    )

    assert "openmetrics" in other.headers["content-type"]
    families = openmetrics(other.text)  # type: ignore[no-untyped-call] # of the library
    assert {family.name for family in families} >= {"gsched_jobs", "gsched_up"}
    if PROMTOOL is None:
        pytest.skip("promtool is not installed")
    check_metrics(text.text)


def test_alerts_and_dashboards_use_metrics_that_exist(watched: Cluster) -> None:
    run_command("gwait", run_job(watched), head=watched.socket)
    wait_until(lambda: value(watched, "gsched_jobs_ended_total"), what="the end to be counted")
    families = {family.name: family.type for family in plain(get(watched, "/metrics").text)}
    suffixes = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",)}
    known = {
        name + suffix for name, kind in families.items() for suffix in suffixes.get(kind, ("",))
    }
    files = [*(ROOT / "etc/grafana").glob("*.json"), *(ROOT / "etc/prometheus").glob("*.yml")]
    used = {name for path in files for name in re.findall(r"\bgsched_\w+", path.read_text("utf-8"))}

    assert used
    assert used <= known


def test_a_scrape_over_tcp_needs_the_token(watched: Cluster) -> None:
    token = (watched.state_dir / "metrics.token").read_text().strip()

    assert over_tcp(watched, "/metrics").status == 403
    assert over_tcp(watched, "/metrics", Authorization="Bearer no").status == 403
    assert over_tcp(watched, "/metrics", Authorization=f"Bearer {token}").status == 200
    assert (watched.state_dir / "metrics.token").stat().st_mode & 0o777 == 0o600
    assert over_tcp(watched, "/livez").status == 200


def on_head(cluster: Cluster, path: str, **headers: str) -> Response:
    return send(UnixConnection(cluster.socket), "GET", path, headers=headers)


def test_the_socket_of_the_head_has_the_metrics_too(watched: Cluster) -> None:
    def names(text: str) -> set[str]:
        return {family.name for family in plain(text)}

    for path in ("/metrics", "/metrics/nodes"):
        response = on_head(watched, path)
        assert response.status == 200
        assert names(response.text) == names(get(watched, path).text)
    other = on_head(watched, "/metrics", Accept="application/openmetrics-text;version=1.0.0")
    assert "openmetrics" in other.headers["content-type"]
    unknown = on_head(watched, "/metrics/none")
    assert (unknown.status, "partitions" in unknown.text) == (400, True)
    for path in ("/metrics/..", "/metrics/%2e%2e", "/metrics/../nodes", "/metrics/jobs/1"):
        assert on_head(watched, path).status == 404, path


def test_a_head_says_why_it_has_no_metrics(watched: Cluster) -> None:
    (monitor,) = (
        each
        for each in psutil.Process(watched.head_process.pid).children()
        if "gschedd.monitor.worker" in each.cmdline()
    )
    monitor.suspend()
    try:
        response = on_head(watched, "/metrics")
    finally:
        monitor.resume()
    assert (response.status, "the monitor does not answer" in response.text) == (503, True)
    watched.stop_head()
    watched.has_monitor = False
    watched.start_head()

    refused = on_head(watched, "/metrics")
    assert (refused.status, "set enabled in [web] to true" in refused.text) == (400, True)


def test_users_are_named_only_where_the_site_wants_it(watched: Cluster) -> None:
    refused = get(watched, "/metrics/users")

    assert refused.status == 400
    assert "user_metrics" in refused.text
    assert "user=" not in get(watched, "/metrics").text
    watched.stop_head()
    watched.web_settings = {"sample_period_s": 1, "user_metrics": True}
    watched.start_head()
    wait_until(lambda: is_ready(watched), what="the monitor to be ready")
    run_job(watched, "-h")

    wait_until(
        lambda: value(watched, "gsched_user_jobs", "/metrics/users", state="held") == 1.0,
        what="the job of the user",
    )


def test_a_stopped_head_is_noticed_with_the_reason(watched: Cluster) -> None:
    os.kill(watched.head_process.pid, signal.SIGSTOP)
    try:
        wait_until(lambda: get(watched, "/readyz").status == 503, what="the head to be missed")
        response = get(watched, "/readyz")
        assert value(watched, "gsched_up") == 0.0
        assert get(watched, "/livez").status == 200
    finally:
        os.kill(watched.head_process.pid, signal.SIGCONT)

    assert response.status == 503
    assert "SIGSTOP" in response.text
    wait_until(lambda: is_ready(watched), what="the head to be ready again")


def test_a_node_serves_its_own_metrics_where_the_site_wants_them(cluster: Cluster) -> None:
    path = cluster.directory / "gnode.sock"
    cluster.start_head()
    cluster.start_node("a", metrics_listen=str(path), metrics_labels=["job", "user"], sample_s=0.2)
    ran = run_command("gsub", "--", "sleep", "60", head=cluster.socket, cwd=cluster.jobs)
    assert ran.status == 0, ran.stderr

    def text() -> str:
        return send(UnixConnection(path), "GET", "/metrics").text

    wait_until(lambda: "gsched_gnode_connected 1.0" in text(), what="the connection")
    labels = f'{{job="1",user="{getpass.getuser()}"}}'
    wait_until(lambda: f"gsched_job_memory_bytes{labels}" in text(), what="the job's memory")
    assert send(UnixConnection(path), "GET", "/readyz").status == 200
    cluster.start_node("b", metrics_listen=str(cluster.directory / "none" / "gnode.sock"))
    cluster.stop_head()
    wait_until(
        lambda: "not connected" in send(UnixConnection(path), "GET", "/readyz").text,
        what="the lost head",
    )
    assert send(UnixConnection(path), "GET", "/livez").text == "ok\n"
    if PROMTOOL is not None:
        check_metrics(text())

"""A running head reads its configuration again: all that can change at once does, or nothing."""

import json
import os
import signal
import socket
import threading
from functools import partial
from pathlib import Path

import pytest

from gsched.protocol.queues import QueueChange
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import Ran, run_command
from tests.support.monitor import address, is_ready
from tests.support.processes import PATIENCE_S

QUEUES = """
[[queue]]
name = "batch"
[[queue]]
name = "night"
started = false
"""


@pytest.fixture
def running(cluster: Cluster) -> Cluster:
    cluster.queues = QUEUES
    cluster.start_head()
    return cluster


def file_of(cluster: Cluster) -> Path:
    return cluster.directory / "head.toml"


def edit(cluster: Cluster, old: str, new: str) -> None:
    file = file_of(cluster)
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def reload(cluster: Cluster, *words: str) -> Ran:
    return run_command("gsched", "reload", *words, head=cluster.socket)


def gsub(cluster: Cluster, *words: str) -> Ran:
    return run_command("gsub", *words, "--", "true", head=cluster.socket, cwd=cluster.jobs)


def submit(cluster: Cluster, *words: str) -> int:
    ran = gsub(cluster, *words)
    assert ran.status == 0, ran.stderr
    return int(ran.stdout.partition(".")[0].rstrip("[]"))


def test_keys_that_can_change_do_at_once_and_the_others_are_named(running: Cluster) -> None:
    edit(running, 'name = "batch"', 'name = "batch"\nmax_walltime_s = "1h"\npriority = 5')
    edit(running, "[head]", "[head]\nmax_array_elements = 3\nlease_s = 60")
    edit(running, "node_timeout_s = 15.0", "node_timeout_s = 20.0")
    more = '\n[[queue]]\nname = "new"\n[[qos]]\nname = "slow"\neach_user = { max_running = 2 }\n'
    file_of(running).write_text(file_of(running).read_text() + more)

    ran = reload(running)

    lines = ran.stdout.splitlines()
    assert (ran.status, ran.stderr) == (0, "")
    assert lines[0] == f"{file_of(running)}: in force now"
    assert "  queue batch: max_walltime_s: 0.0 -> 3600.0" in lines
    assert "  [head] max_array_elements: 100000 -> 3" in lines
    assert "  queue new: added" in lines
    assert lines[-2].startswith("need a restart of the head")
    assert lines[-1] == "  [head] node_timeout_s: 15.0 -> 20.0"
    assert "over the limit of queue batch" in gsub(running, "-l", "walltime=7200").stderr
    assert "array" in gsub(running, "-t", "1-4").stderr
    submit(running, "-q", "new")
    edit(running, "{ max_running = 2 }", "{ max_running = 3 }")
    changed = "  qos slow.each_user: max_running: 2 -> 3"
    assert reload(running).stdout.splitlines()[1] == changed
    again = json.loads(reload(running, "--json").stdout)
    assert again["changed"] == []
    assert [each["key"] for each in again["waits"]] == ["node_timeout_s"]
    env = {"GSCHED_CONFIG": str(file_of(running))}
    shown = run_command("gsched", "config", "show", "--diff", env=env)
    assert "max_walltime_s = 3600.0  # line" in shown.stdout
    assert "[qos.each_user]\nmax_running = 3  # line" in shown.stdout
    assert "line 10 of the file has 20.0: restart the head to use it" in shown.stdout
    found = run_command("gsched", "doctor", head=running.socket)
    assert "1 key of " in found.stdout
    assert "need a restart: [head] node_timeout_s" in found.stdout


def test_a_file_with_a_mistake_changes_nothing_and_everybody_is_told(running: Cluster) -> None:
    edit(running, "[head]", "[head]\nmax_array_elements = 3\nmax_queued_per_user = 0")

    ran = reload(running)

    assert ran.status == 78
    words = f"{file_of(running)}:3: [head] max_queued_per_user must be "
    assert words in ran.stderr
    assert "the head keeps the configuration that it has" in ran.stderr
    assert words in running.log("head.log")
    found = run_command("gsched", "doctor", head=running.socket)
    assert words in found.stdout
    assert found.status == 1
    submit(running, "-t", "1-4")
    edit(running, "max_queued_per_user = 0", "max_queued_per_user = 9")
    assert reload(running).status == 0
    assert running.head.status().config is not None
    assert running.head.status().config.problem == ""  # type: ignore[union-attr] # as just seen


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("[head]", "[head"), "TOML"),
        (("[head]", "[head]\noperators = ['no-such-user']"), "unknown user 'no-such-user'"),
        (("[head]", "[head]\nmax_walltime_s = 3"), "'max_walltime_s' is a key of [[queue]]"),
        (('name = "night"', 'name = "nights"'), "queue night has 1 unfinished job"),
    ],
)
def test_what_is_refused_is_refused_whole(
    running: Cluster, change: tuple[str, str], words: str
) -> None:
    job = submit(running, "-q", "night")
    edit(running, "server_name", "max_array_elements = 3\nserver_name")
    edit(running, *change)

    ran = reload(running)

    assert ran.status == 78
    assert words in ran.stderr
    assert str(file_of(running)) in ran.stderr
    assert running.head.job(job).row.queue == "night"
    submit(running, "-t", "1-4")


def test_a_file_that_is_gone_unreadable_or_writable_by_others_is_refused(running: Cluster) -> None:
    file = file_of(running)
    text = file.read_text()
    file.unlink()
    ran = reload(running)
    assert f"{file}: no such file" in ran.stderr
    assert "put it back, then reload again" in ran.stderr
    file.write_text(text[: len(text) // 2])
    assert reload(running).status in {0, 78}, "half of a file may be a file"
    file.write_text(text)
    file.chmod(0o666)
    assert "can be written by others" in reload(running).stderr
    file.chmod(0o600)
    if os.getuid():
        file.chmod(0)
        assert "ermission denied" in reload(running).stderr
        file.chmod(0o600)
    assert reload(running).status == 0


def test_what_an_operator_has_set_stays_and_is_named(running: Cluster) -> None:
    change = QueueChange(verb="set", queue="night", attribute="started", value=True)
    running.head.change_queues([change])
    edit(running, "started = false", "started = false\nmax_walltime_s = 60")
    assert reload(running).status == 0
    edit(running, "started = false", "started = true")
    ran = reload(running)
    assert "queue night: started" in ran.stdout.split("an operator has set")[1]
    edit(running, "started = true", "started = false")
    assert reload(running).status == 0
    rows = {row.name: row for row in running.head.status().queue_rows}
    assert (rows["night"].started, rows["night"].max_walltime_s) == (True, 60)


def test_waiting_jobs_take_the_places_of_their_new_priorities(running: Cluster) -> None:
    edit(running, "started = false", "started = true")
    reload(running)
    first, second = submit(running, "-h"), submit(running, "-q", "night")
    third = submit(running)
    edit(running, 'name = "night"', 'name = "night"\npriority = 10')
    assert reload(running).status == 0
    edit(running, "priority = 10", "priority = -10")
    assert reload(running).status == 0
    running.start_node("n1", cpus=1)
    wait_until(
        lambda: all(running.head.job(job).row.state == "done" for job in (second, third)),
        what="ends",
    )
    ends = {job: running.head.job(job).row.started_s or 0.0 for job in (second, third)}
    assert ends[third] < ends[second]
    assert running.head.job(first).row.state == "held"


def test_sighup_reloads_and_never_ends_the_head(running: Cluster) -> None:
    edit(running, "[head]", "[head]\nmax_array_elements = 3")
    running.head_process.send_signal(signal.SIGHUP)
    wait_until(lambda: "max_array_elements: 100000 -> 3" in running.log("head.log"), what="a line")
    file_of(running).unlink()
    for _ in range(50):
        running.head_process.send_signal(signal.SIGHUP)
    wait_until(lambda: "SIGHUP refused" in running.log("head.log"), what="a refusal")
    assert running.head.health().ok


def test_reloads_beside_each_other_and_submissions_lose_nothing(running: Cluster) -> None:
    """Two files take turns while jobs come; the head is killed in the middle."""
    text = file_of(running).read_text()
    others = text.replace("[head]", "[head]\nmax_array_elements = 3\n").replace(
        'name = "batch"', 'name = "batch"\npriority = 3'
    )
    stop = threading.Event()
    jobs: list[int] = []

    def reloads(number: int) -> None:
        while not stop.is_set():
            for each in (others, text):
                part = file_of(running).with_suffix(f".{number}")
                part.write_text(each)
                part.replace(file_of(running))
                running.head.reload()

    threads = [threading.Thread(target=reloads, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        jobs += [submit(running, "-q", "night") for _ in range(20)]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    running.kill_head()
    running.start_head()

    assert {row.id for row in running.head.jobs().jobs} >= set(jobs)


def test_gnode_reloads_its_own_keys_for_sighup(cluster: Cluster) -> None:
    """Jobs that start from then on have them; a file with a mistake changes nothing."""
    cluster.start_head()
    cluster.start_node("n1", cpus=1)
    file = cluster.node_dir("n1").parent.parent / "n1.toml"
    text = file.read_text()
    limit = "job_open_files = 256\ncpus"
    file.write_text(text.replace("cpus", limit, 1).replace("cpus = 1", "cpus = 2"))
    cluster.node_process("n1").send_signal(signal.SIGHUP)
    wait_until(lambda: "job_open_files: 1024 -> 256" in cluster.log("n1.log"), what="a line")
    words = "1 key waits for a restart of gnode: [node] cpus"
    wait_until(lambda: words in cluster.log("n1.log"), what="a warning")
    node_says(cluster, f"configuration = {file}, read at ", "needs_restart = [node] cpus")

    file.write_text(text.replace("cpus", "job_open_files = 1\ncpus", 1))
    cluster.node_process("n1").send_signal(signal.SIGHUP)
    wait_until(lambda: "reload refused: " in cluster.log("n1.log"), what="a refusal")
    assert "[node] job_open_files must be" in cluster.log("n1.log")
    node_says(cluster, "reload_refused = ", "[node] job_open_files must be", "needs_restart = ")
    ran = run_command(
        *("gsub", "-o", str(cluster.jobs / "out"), "--", "sh", "-c", "ulimit -n"),
        head=cluster.socket,
        cwd=cluster.jobs,
    )
    job = int(ran.stdout.partition(".")[0])
    wait_until(lambda: cluster.head.job(job).row.state == "done", what="an end")
    assert (cluster.jobs / "out").read_text() == "256\n"


def node_says(cluster: Cluster, *words: str) -> None:
    """Wait until ``gnodes n1`` has all words."""

    def has(text: str) -> bool:
        ran = run_command("gnodes", "n1", head=cluster.socket)
        return any(text in " ".join(line.split()) for line in ran.stdout.splitlines())

    for each in words:
        wait_until(partial(has, each), what=f"{each!r} of gnodes")


def test_gnode_reloads_its_health_checks(cluster: Cluster) -> None:
    """A new check runs, one with another program too, and the result of one that is gone goes."""
    cluster.start_head()
    check = '[[node.health_check]]\nname = "{}"\nprogram = "/bin/{}"\ninterval_s = 1\n'
    cluster.node_tables = check.format("disk", "true")
    cluster.start_node("n1", cpus=1)
    node_says(cluster, "health_disk = passed")
    file = cluster.directory / "n1.toml"
    text = file.read_text()

    file.write_text(text.replace("/bin/true", "/bin/false"))
    cluster.node_process("n1").send_signal(signal.SIGHUP)
    node_says(cluster, "health_disk = failed", "state = up, closed")

    file.write_text(text.replace('"disk"', '"scratch"'))
    cluster.node_process("n1").send_signal(signal.SIGHUP)
    node_says(cluster, "health_scratch = passed")
    shown = run_command("gnodes", "n1", head=cluster.socket).stdout
    assert "health_disk" not in shown
    assert "closed" not in shown
    assert "needs_restart" not in shown


def test_an_address_that_the_monitor_cannot_have_is_refused(cluster: Cluster) -> None:
    cluster.has_monitor = True
    cluster.start_head()
    wait_until(lambda: is_ready(cluster), what="the monitor to be ready")
    before = address(cluster)
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        edit(cluster, "[web]", f'[web]\nlisten = "{taken}"')

        ran = reload(cluster)

        assert ran.status == 78
        assert f"cannot listen on {taken}: another program uses it" in ran.stderr
        assert "the head keeps the configuration that it has" in ran.stderr
        assert address(cluster).address == before.address
    ran = reload(cluster)
    assert (ran.status, ran.stderr) == (0, "")
    wait_until(lambda: is_ready(cluster) and address(cluster).address == taken, what="the address")


def test_mail_and_hooks_follow_the_file(cluster: Cluster) -> None:
    """Turned on, changed and turned off; nothing that was committed meanwhile is left out."""
    cluster.start_head()
    assert cluster.head.status().notify is None
    out = cluster.directory / "events"
    hook = cluster.directory / "hook"
    hook.write_text(f"#!/bin/sh\ncat >> {out}\n")
    hook.chmod(0o700)
    text = file_of(cluster).read_text()
    table = f'[notify]\ncommand = "{hook}"\nhook_jobs = "all"\n'
    file_of(cluster).write_text(text + table)
    assert reload(cluster).status == 0
    cluster.start_node("n1", cpus=1)
    submit(cluster)
    wait_until(lambda: out.exists() and '"event":"end"' in out.read_text(), what="an event")
    file_of(cluster).write_text(text)
    assert reload(cluster).status == 0
    wait_until(lambda: cluster.head.status().notify is None, what="no notifier")


def test_the_log_is_json_in_a_file_that_can_be_rotated(cluster: Cluster) -> None:
    """Also of the worker processes; messages of a start that fails go to stderr."""
    log = cluster.directory / "json.log"
    cluster.head_settings |= {"log_format": "json", "log_file": str(log)}
    cluster.start_head()
    wait_until(lambda: "serves" in log.read_text(), what="a line")
    log.rename(cluster.directory / "json.log.1")
    cluster.head_process.send_signal(signal.SIGHUP)
    wait_until(log.exists, what="a new file")
    wait_until(lambda: "states nothing that is new" in log.read_text(), what="a line")
    for line in (log.read_text() + (cluster.directory / "json.log.1").read_text()).splitlines():
        assert {"time", "level", "logger", "message"} <= json.loads(line).keys()

    cluster.stop_head()
    cluster.head_settings["log_file"] = str(cluster.directory / "none" / "log")
    cluster.start_head(wait=False)
    assert cluster.head_process.wait(PATIENCE_S) == 78
    assert "log_file " in cluster.log("head.log")

"""Two heads and one store in PostgreSQL: one rules, the other follows and goes on."""

import json
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gsched.errors import GschedError
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import Ran, command_environment, run_command
from tests.support.monitor import UnixConnection, send
from tests.support.ports import free_port
from tests.support.postgres import Postgres, postgres_server
from tests.support.processes import PATIENCE_S
from tests.support.two_heads import (
    LEASE_S,
    answers,
    contents,
    follows,
    give_authority,
    head_of,
    heads,
    jobs,
    newest,
    rules,
    server,
    stand_by,
    store,
    store_command,
    submit,
)

__all__ = ["heads", "server", "store"]
pytest.importorskip("psycopg", reason="psycopg is not installed")
pytestmark = [pytest.mark.timeout(120), pytest.mark.xdist_group("postgres")]


def test_a_second_head_follows_and_goes_on_when_the_first_is_killed(
    heads: tuple[Cluster, Cluster], store: Postgres
) -> None:
    first, second = heads
    first.start_head()
    before = [submit(first) for _ in range(3)]
    give_authority(first, second)
    second.start_head(wait=False)
    wait_until(lambda: "standing by" in second.log("head.log"), what="the second head")
    before.append(submit(first, "-l", "walltime=60"))
    wait_until(lambda: follows(second, newest(store)), what="the records")
    assert not rules(second)

    first.kill_head()
    wait_until(lambda: rules(second), what="the second head to rule")
    wait_until((second.state_dir / "gschedd.port").exists, what="its port")

    assert jobs(second) == before
    assert submit(second) == "5"


def test_a_head_that_stands_by_answers_reads_with_their_age_and_refuses_changes(
    heads: tuple[Cluster, Cluster], store: Postgres
) -> None:
    first, second = heads
    first.start_head()
    submit(first, "-N", "early")
    run_command("gsub", "-l", "ncpus=4", "--", "true", head=first.socket, cwd=first.jobs)
    stand_by(first, second)
    run_command("gsub", "-N", "late", "-h", "--", "true", head=first.socket, cwd=first.jobs)
    wait_until(lambda: follows(second, newest(store)), what="the records")

    def shown(*words: str) -> Ran:
        ran = run_command(*words, head=second.socket, cwd=second.jobs)
        assert ran.status == 0, (words, ran.stderr)
        assert "test stands by" in ran.stderr, words
        assert f"{first.state_dir} rules" in ran.stderr, words
        assert "ago" in ran.stderr, words
        return ran

    wait_until(lambda: "late" in shown("gstat").stdout, what="the new job in the list")
    assert "early" in shown("gstat", "-f", "1").stdout
    assert "no node" in shown("gstat", "--why", "2").stdout
    shown("ghist")
    shown("gnodes")
    shown("gstat", "-Q")
    health = {
        path: send(UnixConnection(second.socket), "GET", path).status
        for path in ("/livez", "/readyz", "/metrics")
    }
    assert health == {"/livez": 200, "/readyz": 503, "/metrics": 503}
    for words in (("gsub", "-h", "--", "true"), ("gdel", "1"), ("gpeek", "1")):
        ran = run_command(*words, head=second.socket, cwd=second.jobs)
        assert ran.status == 69, (words, ran.stderr)
        assert f"{first.state_dir} rules" in ran.stderr, words
        assert "GSCHED_HEAD" in ran.stderr, words


def test_a_command_with_both_addresses_finds_the_head_that_rules(
    heads: tuple[Cluster, Cluster],
) -> None:
    first, second = heads
    first.start_head()
    stand_by(first, second)
    both = f"{second.socket},{first.socket}"
    ran = run_command("gsub", "-h", "--", "true", head=both, cwd=first.jobs)
    assert ran.status == 0, ran.stderr
    first.head_process.send_signal(signal.SIGSTOP)
    try:
        read = run_command("gstat", head=both, cwd=first.jobs)
        assert "stands by" in read.stderr or rules(second), read.stderr
        ran = run_command("gsub", "-h", "--", "true", head=both, cwd=first.jobs)
        assert ran.status == 0, ran.stderr
        assert jobs(second) == ["1", "2"]
    finally:
        first.head_process.send_signal(signal.SIGCONT)


def test_a_read_that_comes_while_a_head_takes_over_waits_for_it(
    heads: tuple[Cluster, Cluster],
) -> None:
    """Its socket listens all the time, also between its life as a stand-by and its first answer."""
    first, second = heads
    first.start_head()
    submit(first)
    stand_by(first, second)
    refused: list[str] = []
    over = threading.Event()

    def knock() -> None:
        while not over.wait(0.002):
            try:
                with socket.socket(socket.AF_UNIX) as knocking:
                    knocking.connect(str(second.socket))
            except OSError as error:
                refused.append(str(error))

    thread = threading.Thread(target=knock)
    thread.start()
    try:
        first.kill_head()
        wait_until(lambda: rules(second), what="the second head to rule")
        read = run_command("gstat", head=second.socket, cwd=second.jobs)
        changed = submit(second)
    finally:
        over.set()
        thread.join()

    assert (read.status, read.stderr) == (0, ""), "the head that rules has answered"
    assert changed == "2"
    assert refused == []


def test_requests_wait_that_come_when_a_head_has_taken_the_lease_and_still_stands_by(
    heads: tuple[Cluster, Cluster],
) -> None:
    """A busy head may need a moment until it no longer answers as one that stands by."""
    first, second = heads
    first.start_head()
    submit(first)
    give_authority(first, second)
    second.start_head({"GSCHED_FAIL": "head.replicated.after_lease:sleep=1"}, wait=False)
    wait_until(lambda: answers(second), what="the second head to answer")
    first.kill_head()
    wait_until(lambda: rules(second), what="the second head to rule")
    health = send(UnixConnection(second.socket), "GET", "/v1/health")
    changed = submit(second)
    read = run_command("gstat", head=second.socket, cwd=second.jobs)

    assert health.status == 200 or health.headers["retry-after"] == "1"
    assert "gsched-standby" not in health.headers
    assert changed == "2"
    assert (read.status, read.stderr) == (0, "")


def test_nodes_and_login_hosts_go_to_the_head_that_rules(
    heads: tuple[Cluster, Cluster],
) -> None:
    """They know the second head from the first one, and keep it over a restart of their own."""
    first, second = heads
    port = free_port()
    first.start_head()
    addresses = [f"127.0.0.1:{first.node_port}", f"127.0.0.1:{port}"]
    assert first.stop_head() == 0
    for each in heads:
        each.head_settings = {"addresses": addresses, "operator_hosts": ["here"]}
    first.start_head()
    first.start_node("n1", cpus=2)
    first.start_node(
        "here", role="login", command_socket=str(first.directory / "commands.sock"), wait=False
    )
    assert "n1" in run_command("gnodes", head=first.socket).stdout
    second.head_settings["node_port"] = port
    stand_by(first, second)
    kept = first.node_dir("n1") / "heads"
    wait_until(kept.exists, what="the addresses on the node")
    assert kept.read_text().split() == addresses
    running = run_command("gsub", "--", "sleep", "30", head=first.socket, cwd=first.jobs)
    wait_until(lambda: first.head.job(1).row.state == "running", what="the job to run")
    first.kill_head()
    wait_until(lambda: rules(second), what="the second head to rule")

    def is_up() -> bool:
        try:
            return [row.state for row in second.head.nodes().nodes] == ["up"]
        except GschedError:
            return False

    wait_until(is_up, what="the node at the second head")
    assert running.status == 0
    assert second.head.job(1).row.state == "running"
    assert second.head.job(1).row.attempt == 1
    commands = first.directory / "commands.sock"

    def relays() -> bool:
        return run_command("gstat", head=commands, cwd=first.jobs).status == 0

    wait_until(relays, what="the login host at the second head")
    first.kill_node("n1")
    first.start_node("n1", cpus=2, wait=False)
    wait_until(is_up, what="the node that was started again")


def test_a_head_that_is_cut_off_from_its_store_sends_hosts_and_commands_to_the_other_one(
    heads: tuple[Cluster, Cluster], store: Postgres
) -> None:
    first, second = heads
    way = first.directory / "db"
    way.symlink_to(store.directory)
    first.queues = first.queues.replace(str(store.directory), str(way))
    port = free_port()
    first.start_head()
    assert first.stop_head() == 0
    addresses = [f"127.0.0.1:{first.node_port}", f"127.0.0.1:{port}"]
    for each in heads:
        each.head_settings = {"addresses": addresses}
    second.head_settings["node_port"] = port
    first.start_head()
    first.start_node("n1", cpus=2)
    stand_by(first, second)
    both = f"{first.socket},{second.socket}"
    assert run_command("gsub", "-h", "--", "true", head=both, cwd=first.jobs).status == 0
    way.unlink()
    store.psql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        f"WHERE application_name LIKE '%{str(first.state_dir)[-40:]}'"
    )
    waiting = run_command("gsub", "-h", "--", "true", head=both, cwd=first.jobs)

    assert waiting.status == 0, waiting.stderr
    assert jobs(second) == ["1", "2"]
    wait_until(lambda: [row.state for row in second.head.nodes().nodes] == ["up"], what="the node")
    assert "another one may rule" in run_command("gstat", head=first.socket).stderr
    refused = run_command("gdel", "1", head=first.socket)
    assert refused.status == 69
    assert "another one may rule" in refused.stderr
    way.symlink_to(store.directory)
    assert first.head_process.wait(PATIENCE_S) == 78


def test_a_head_that_stands_by_ends_in_order(heads: tuple[Cluster, Cluster]) -> None:
    first, second = heads
    first.start_head()
    stand_by(first, second)

    assert second.stop_head() == 0
    assert submit(first) == "1"


def test_changes_of_queues_survive_the_head(heads: tuple[Cluster, Cluster]) -> None:
    first, second = heads
    first.start_head()
    created = run_command("gmgr", "create", "queue", "night", head=first.socket)
    assert created.status == 0, created.stderr
    stand_by(first, second)
    assert "night" in run_command("gstat", "-Q", head=second.socket).stdout
    first.kill_head()
    wait_until(lambda: rules(second), what="the second head to rule")
    wait_until(lambda: answers(second), what="the second head")

    assert "night" in run_command("gstat", "-Q", head=second.socket).stdout
    assert "night" in (second.state_dir / "queues.json").read_text()


def test_a_head_that_was_stopped_meanwhile_writes_nothing_and_ends(
    heads: tuple[Cluster, Cluster],
) -> None:
    first, second = heads
    first.start_head()
    submit(first)
    give_authority(first, second)
    second.start_head(wait=False)
    wait_until(lambda: "standing by" in second.log("head.log"), what="the second head")
    first.head_process.send_signal(signal.SIGSTOP)
    try:
        wait_until(lambda: rules(second), what="the second head to rule")
        wait_until((second.state_dir / "gschedd.port").exists, what="its port")
        assert submit(second) == "2"
    finally:
        first.head_process.send_signal(signal.SIGCONT)
    run_command("gsub", "-h", "--", "true", head=first.socket, cwd=first.jobs)

    assert first.head_process.wait(PATIENCE_S) != 0
    assert "another head rules" in first.log("head.log")
    assert "started again, it stands by" in first.log("head.log")
    assert jobs(second) == ["1", "2"]


def test_a_head_that_ends_in_order_leaves_the_lease_at_once(
    heads: tuple[Cluster, Cluster], store: Postgres
) -> None:
    first, second = heads
    first.start_head()
    give_authority(first, second)
    second.start_head(wait=False)
    wait_until(lambda: "standing by" in second.log("head.log"), what="the second head")

    assert first.stop_head() == 0
    left_s = float(store.psql("SELECT extract(epoch FROM until_at - now()) FROM gsched_lease"))
    assert left_s <= 0 or rules(second)
    wait_until(lambda: rules(second), what="the second head to rule")


def test_a_server_that_is_away_delays_a_submission_and_loses_none(tmp_path: Path) -> None:
    with postgres_server() as own:
        head = head_of(own, tmp_path)
        try:
            head.start_head()
            submit(head)
            own.stop()
            command = [sys.executable, "-m", "gsched.cli.commands.gsub", "-h", "--", "true"]
            waiting = subprocess.Popen(
                command,
                env=command_environment(head.socket),
                cwd=head.jobs,
                stdout=subprocess.DEVNULL,
            )
            wait_until(lambda: "does not answer" in head.log("head.log"), what="a complaint")
            assert waiting.poll() is None

            def shown(*words: str) -> bool:
                ran = run_command(*words, head=head.socket, cwd=head.jobs)
                return ran.status == 0 and "PostgreSQL does not answer" in ran.stderr

            wait_until(lambda: shown("gstat"), what="a list with a warning")
            assert shown("gstat", "-f", "1")
            assert shown("ghist")
            own.start()

            assert waiting.wait(PATIENCE_S) == 0
            assert jobs(head) == ["1", "2"]
        finally:
            head.stop()


def test_both_databases_are_equal(heads: tuple[Cluster, Cluster], store: Postgres) -> None:
    first, second = heads
    first.start_head()
    first.start_node("n1", cpus=2)
    give_authority(first, second)
    second.start_head(wait=False)
    for words in ((), (), ("-J", "1-5")):
        run_command("gsub", *words, "--", "true", head=first.socket, cwd=first.jobs)
    first.head.wait(["3"], timeout_s=60)
    run_command("gdel", submit(first), head=first.socket, cwd=first.jobs)
    wait_until(lambda: follows(second, newest(store)), what="the records")

    wait_until(lambda: contents(second) == contents(first), what="equal databases")
    assert any("AttemptEnded" in line for line in contents(second))


def test_a_head_that_lost_its_database_copies_the_store(
    heads: tuple[Cluster, Cluster], store: Postgres
) -> None:
    first, _ = heads
    first.start_head()
    submitted = [submit(first), submit(first)]
    first.kill_head()
    for path in first.state_dir.glob("gsched.*"):
        path.unlink()
    first.start_head()

    assert jobs(first) == submitted
    assert "copying the whole store" in first.log("head.log")


def test_a_database_of_this_machine_alone_is_not_replaced(
    heads: tuple[Cluster, Cluster],
) -> None:
    first, second = heads
    first.start_head()
    submit(first)
    tables, second.queues = second.queues, ""
    second.start_head()
    submit(second)
    assert second.stop_head() == 0
    second.queues = tables
    second.start_head(wait=False)

    assert second.head_process.wait(PATIENCE_S) != 0
    assert "not of the store in [store] url" in second.log("head.log")
    assert "gsched store copy" in second.log("head.log")


def test_a_head_killed_between_the_two_commits_goes_on_with_the_record(
    heads: tuple[Cluster, Cluster], store: Postgres
) -> None:
    first, _ = heads
    first.start_head()
    submit(first)
    assert first.stop_head() == 0
    last = newest(store)
    first.start_head({"GSCHED_FAIL": "head.replicated.before_commit:kill"}, wait=False)
    first.head_process.wait(PATIENCE_S)
    assert newest(store) == last + 1
    assert not follows(first, last + 1)
    first.start_head()

    assert submit(first) == "2"
    assert f"at record {last + 1}" in first.log("head.log")


def test_a_site_moves_to_the_store_and_back(heads: tuple[Cluster, Cluster]) -> None:
    first, second = heads
    tables, first.queues = first.queues, ""
    first.start_head()
    submitted = [submit(first), submit(first)]
    assert first.stop_head() == 0
    first.queues = tables
    first.start_head(wait=False)
    assert first.head_process.wait(PATIENCE_S) != 0
    assert "gsched store copy" in first.log("head.log")

    copied = store_command(first, "copy")
    assert copied.status == 0, copied.stderr
    first.start_head()
    submitted.append(submit(first))
    assert jobs(first) == submitted
    assert store_command(first, "copy").status != 0, "a head runs"
    assert first.stop_head() == 0
    refused = store_command(first, "copy")
    assert "--replace" in refused.stderr

    give_authority(first, second)
    second.start_head()
    submitted.append(submit(second))
    assert second.stop_head() == 0
    back = store_command(first, "copy", "--back")
    assert back.status == 0, back.stderr
    first.queues = ""
    first.start_head()
    assert jobs(first) == submitted


def test_the_status_names_the_head_that_rules(heads: tuple[Cluster, Cluster]) -> None:
    first, _ = heads
    first.start_head()
    submit(first)
    shown = store_command(first, "status")

    assert shown.status == 0, shown.stderr
    assert str(first.state_dir) in shown.stdout
    rows = [line.split(": ", 1) for line in shown.stdout.splitlines()]
    assert {len(name) + 2 + len(value) - len(value.lstrip()) for name, value in rows} == {15}
    row = json.loads(store_command(first, "status", "--json").stdout)
    assert row["newest"] == row["here"] > 1
    assert 0 < row["ruler"]["left_s"] <= LEASE_S


def test_a_server_that_is_away_at_the_start_is_no_fault_of_the_configuration(
    heads: tuple[Cluster, Cluster],
) -> None:
    """The service manager starts the head again; a wrong URL is shown in the same words."""
    first, _ = heads
    first.queues = '[store]\nurl = "postgresql://gsched@127.0.0.1:1/gsched"\n'
    first.start_head(wait=False)

    assert first.head_process.wait(PATIENCE_S) == 3
    ran = store_command(first, "status")

    assert ran.status == 3
    for text in (ran.stderr, first.log("head.log")):
        assert "host=127.0.0.1 port=1" in text
        assert "start the server, or correct url in [store]" in text
        assert "Traceback" not in text


def test_a_server_that_has_lost_records_is_refused(
    heads: tuple[Cluster, Cluster], store: Postgres
) -> None:
    first, _ = heads
    first.start_head()
    submit(first)
    assert first.stop_head() == 0
    last = newest(store)
    store.psql(f"DELETE FROM gsched_log WHERE position = {last}")
    first.start_head(wait=False)

    assert first.head_process.wait(PATIENCE_S) != 0
    assert f"ends at record {last - 1}" in first.log("head.log")
    assert store_command(first, "copy", "--replace").status == 0
    first.start_head()
    assert jobs(first) == ["1"]


def test_heads_go_on_with_the_replica_when_the_primary_is_lost(tmp_path: Path) -> None:
    """As the administrators' guide says it: both servers in url, pg_ctl promote, no replica.

    The old primary, started again, gets no writes, and no head takes it for the store.
    """
    with postgres_server() as primary:
        replica = primary.replica(primary.directory / "replica")
        made = [head_of(primary, tmp_path / name) for name in ("one", "two")]
        hosts = f"{primary.directory},{replica.directory}"
        for each in made:
            each.queues = each.queues.replace(
                f"host={primary.directory}", f"host={hosts}&target_session_attrs=read-write"
            )
        first, second = made
        try:
            first.start_head()
            stand_by(first, second)
            submitted = [submit(first) for _ in range(3)]
            primary.stop()
            command = [sys.executable, "-m", "gsched.cli.commands.gsub", "-h", "--", "true"]
            both = f"{first.socket},{second.socket}"
            waiting = subprocess.Popen(
                command, env=command_environment(both), cwd=first.jobs, stdout=subprocess.DEVNULL
            )
            wait_until(lambda: "does not answer" in first.log("head.log"), what="a complaint")
            assert run_command("gstat", head=second.socket).status == 0, "reads are answered"
            replica.promote()

            assert waiting.wait(60) == 0
            ruling = second if rules(second) else first
            assert jobs(ruling) == [*submitted, "4"]
            newest_before = newest(replica)
            primary.start()
            assert submit(ruling) == "5"
            assert newest(replica) > newest_before
            assert newest(primary) <= newest_before
            for each in made:
                each.kill_head()
            ruling.queues = ruling.queues.replace(hosts, str(primary.directory))
            ruling.start_head(wait=False)
            assert ruling.head_process.wait(PATIENCE_S) == 78
            assert "the server has lost records" in ruling.log("head.log")
        finally:
            for each in made:
                each.stop()
            replica.stop()

"""Private mode (T69): users see names and commands of their own jobs only, on every way."""

import json
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from gsched.config.words import monitor_socket_of
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import Ran
from tests.support.users import User, Users, made_users

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

SECRETS = ("merger", "sekrit", "alice", "hush")  # name, argument, owner, account


class Site(NamedTuple):
    """A cluster in private mode: alice has a job that runs, one that waits, one that has ended."""

    cluster: Cluster
    users: Users
    alice: User
    bob: User

    def run(self, user: User, name: str, *words: str) -> Ran:
        """Run a command as a user."""
        return self.users.run(self.cluster, user, name, *words)


@pytest.fixture
def site(process_marker: str) -> Iterator[Site]:
    with made_users(Cluster, process_marker) as (cluster, users):
        cluster.head_settings["private"] = True
        cluster.has_monitor = True
        site = Site(cluster, users, users.add("alice"), users.add("bob"))
        cluster.start_head()
        cluster.start_node("n1", cpus=2)
        stated = ("-N", "merger", "-A", "hush", "-l", "nodes=1:ppn=2")
        users.submit(cluster, site.alice, *stated, "--", "sh", "-c", "exit 0 # sekrit")
        wait_until(lambda: cluster.head.job(1).row.state == "done", what="the first job")
        for _ in range(2):
            users.submit(cluster, site.alice, *stated, "--", "sh", "-c", "sleep 600 # sekrit")
        wait_until(lambda: cluster.head.job(2).row.state == "running", what="the second job")
        users.submit(cluster, site.bob, "-N", "own", "--", "sleep", "600")
        yield site


#: By each of them a user could see a job of another.
LISTS = (
    ("gstat",),
    ("gstat", "--json"),
    ("gstat", "2", "3"),
    ("gstat", "-f", "2"),
    ("gstat", "-f", "4"),
    ("gstat", "--why", "3"),
    ("gstat", "--user", "alice"),
    ("gstat", "--format", "id,name,user,account,reason"),
    ("ghist",),
    ("ghist", "--json"),
    ("ghist", "1"),
    ("ghist", "--user", "alice"),
    ("ghist", "--name", "mer*"),
    ("gseff", "1"),
    ("gwait", "1"),
    ("gpeek", "1"),
    ("gnodes", "--json"),
    ("gshare",),
    ("greport", "usage"),
    ("greport", "usage", "--user", "alice"),
    ("gdel", "2"),
    ("galter", "-N", "x", "3"),
    ("gsub", "-W", "depend=afterok:2", "--", "true"),
    ("gsub", "-W", "depend=before:3", "--", "true"),
    ("gprio",),
    ("gsched", "doctor"),
)


def test_t69_no_command_tells_of_a_job_of_another(site: Site) -> None:
    for words in LISTS:
        ran = site.run(site.bob, *words)
        # what bob has written himself may stand in a refusal
        shown = ran.stdout + ran.stderr
        for secret in SECRETS:
            assert secret not in shown or secret in words, (words, shown)
        assert "Traceback" not in shown


def test_t69_rows_of_others_have_resources_and_state_and_own_ones_all(site: Site) -> None:
    listed = json.loads(site.run(site.bob, "gstat", "--json").stdout)
    rows = {row["id"]: row for row in listed["jobs"]}
    by_alice = site.run(site.alice, "gstat").stdout
    by_root = site.run(User(name="root", uid=0, gid=0), "gstat", "-f", "2").stdout
    refused = site.run(site.bob, "gstat", "-f", "2")

    assert (rows[2]["user"], rows[2]["name"], rows[2]["state"]) == ("-", "-", "running")
    assert (rows[2]["cpus"], rows[2]["nodes"]) == (2, ["n1"])
    assert (rows[4]["user"], rows[4]["name"]) == ("bob", "own")
    assert "merger" in by_alice
    assert "merger" in by_root
    assert "job 2 belongs to another user" in refused.stderr


def test_t24_private_mode_changes_nothing_of_who_may_do_what(site: Site) -> None:
    by_bob = site.run(site.bob, "gdel", "3")
    by_alice = site.run(site.alice, "gdel", "3")

    assert by_bob.status != 0
    assert "job 3 belongs to another user" in by_bob.stderr
    assert by_alice.status == 0


def ask(site: Site, user: User, target: str) -> str:
    """Return the monitor's answer to a user on its socket."""
    script = (
        "import socket,sys\n"
        "s=socket.socket(socket.AF_UNIX)\ns.settimeout(30)\ns.connect(sys.argv[1])\n"
        "s.sendall(f'GET {sys.argv[2]} HTTP/1.1\\r\\nHost: localhost\\r\\nAccept: text/html\\r\\n"
        "Connection: close\\r\\n\\r\\n'.encode())\n"
        "while part:=s.recv(65536): sys.stdout.buffer.write(part)\n"
    )
    path = monitor_socket_of(str(site.cluster.socket))
    return site.users.run_program(user, "-c", script, path, target)


PAGES = (
    "/",
    "/?sort=name",
    "/?user=alice",
    "/?name=merger",
    "/jobs/2",
    "/nodes",
    "/nodes/n1",
    "/gpus",
    "/users",
    "/deadlines",
    "/reservations",
    "/reports",
    "/v1/usage?since=0&until=9000000000",
    "/v1/held?since=0&until=9000000000",
    "/v1/report?since=0&until=9000000000",
    "/v1/swf?since=0&until=9000000000",
    "/slurm/v0.0.43/jobs",
    "/slurm/v0.0.43/job/2",
    "/slurmdb/v0.0.43/jobs",
    "/slurmdb/v0.0.43/users",
    "/slurmdb/v0.0.43/associations",
)


def test_t69_no_page_and_no_rest_reply_tells_of_a_job_of_another(site: Site) -> None:
    wait_until(lambda: "200 OK" in ask(site, site.alice, "/livez"), what="the monitor")
    wait_until(lambda: "merger" in ask(site, site.alice, "/"), what="alice's own page")
    for target in PAGES:
        ask(site, site.alice, target)  # what one has seen is kept for others
        shown = ask(site, site.bob, target)
        for secret in SECRETS:
            assert secret not in shown or secret in target, (target, shown)


def test_the_page_shows_a_reservation_to_its_users_only(site: Site) -> None:
    root = User(name="root", uid=0, gid=0)
    terms = ("--start", "tomorrow 08:00", "--duration", "2h", "--nodes", "1", "--users", "alice")
    created = site.run(root, "gres", "create", "course", *terms)
    assert created.status == 0, created.stderr
    wait_until(lambda: "200 OK" in ask(site, site.alice, "/livez"), what="the monitor")

    assert "course" in ask(site, site.alice, "/reservations")
    assert "No reservation" in ask(site, site.bob, "/reservations")
    assert "course" in ask(site, root, "/reservations")


def test_t69_a_reload_ends_private_mode(site: Site) -> None:
    config = site.cluster.directory / "head.toml"
    config.write_text(config.read_text().replace("private = true", "private = false"))
    root = User(name="root", uid=0, gid=0)

    assert site.run(root, "gsched", "reload").status == 0
    assert "merger" in site.run(site.bob, "gstat").stdout

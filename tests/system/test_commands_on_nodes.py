"""Commands of users on other hosts: gnode serves their socket there, and the head decides."""

import asyncio
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from gsched.model.limits import MAX_USER_RELAYS
from gsched.model.resources import Load, Usage
from gsched.protocol.node import Exited, Welcome
from tests.support.agent_driver import record
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import NOWHERE, ROOT, Ran, command_environment
from tests.support.dialler import dialled
from tests.support.processes import PATIENCE_S
from tests.support.ptys import Sitting
from tests.support.users import User, Users, made_users

pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]

SLEEP = ("--", "sleep", "600")
ROOT_USER = User(name="root", uid=0, gid=0)


class Site(NamedTuple):
    """A head, a node n1 that serves the commands' socket, and accounts that both know.

    Attributes:
        there: the socket on the node.
    """

    cluster: Cluster
    users: Users
    alice: User
    bob: User
    there: Path

    def run(self, user: User, name: str, *words: str, gid: int = 0) -> Ran:
        """Run a command on the node."""
        return self.users.run(self.cluster, user, name, *words, gid=gid, head=self.there)

    def run_as_root(self, name: str, *words: str) -> Ran:
        """Run a command on the node as root."""
        return self.run(ROOT_USER, name, *words)

    def start(self, user: User) -> int:
        """Submit a job on the head's machine, and wait until it runs."""
        job = self.users.submit(self.cluster, user, *SLEEP)
        self.cluster.wait_for_start(job)
        return job


@pytest.fixture
def site(process_marker: str) -> Iterator[Site]:
    with made_users(Cluster, process_marker) as (cluster, users):
        there = cluster.directory / "n1" / "head.sock"
        site = Site(cluster, users, users.add("alice"), users.add("bob"), there)
        cluster.start_head()
        cluster.start_node("n1", command_socket=str(there))
        wait_until(there.exists, what="the socket on the node")
        yield site


def test_users_with_a_job_on_a_node_run_commands_there(site: Site) -> None:
    before = site.run(site.alice, "gstat")
    job = site.start(site.alice)

    submitted = site.run(site.alice, "gsub", *SLEEP)
    listed = site.run(site.alice, "gstat")
    deleted = site.run(site.alice, "gdel", str(job))

    assert before.status == 159
    assert "alice has no job on node n1" in before.stderr
    assert submitted.status == 0, submitted
    assert str(job) in listed.stdout
    assert deleted.status == 0, deleted
    row = site.cluster.head.job(int(submitted.stdout.partition(".")[0])).row
    assert row.user == "alice"


def test_terminals_work_from_a_node(site: Site) -> None:
    site.start(site.alice)
    sitting = Sitting(
        [sys.executable, "-m", "gsched.cli.commands.gsub", "-I", "-S", "/bin/sh"],
        env=command_environment(site.there, TERM="dumb"),
        cwd=site.users.home(site.alice),
        user=site.alice.uid,
    )
    sitting.until("ready on n1")
    sitting.type("id -u\n")
    sitting.match(rf"{site.alice.uid}\r\n")
    sitting.type("exit 3\n")
    assert sitting.code() == 3
    sitting.close()
    entered = site.run(site.alice, "gshell", "1", "id", "-un")
    refused = site.run(site.bob, "gshell", "1", "true")

    assert entered.stdout.strip() == str(site.alice.uid) or entered.stdout.strip() == "alice"
    assert refused.status == 159


def test_commands_work_in_jobs_and_in_their_shells(site: Site) -> None:
    """By the node's socket, although the jobs were submitted to the head's own."""
    script = site.users.home(site.alice) / "chain"
    script.write_text(
        f"#!/bin/sh\nexport PYTHONPATH={ROOT} GSCHED_CONFIG={NOWHERE}\n"
        f'run() {{ name=$1; shift; {sys.executable} -m gsched.cli.commands.$name "$@"; }}\n'
        "echo $GSCHED_HEAD >head\n"
        "run gsub -W depend=afterok:$PBS_JOBID -N second -- true >second\n"
        "run gstat $PBS_JOBID >listed\nrun gdel $(cat second)\n"
    )
    job = site.users.submit(site.cluster, site.alice, str(script))
    wait_until(lambda: site.cluster.head.job(job).row.state == "done", 60, what="the job's end")
    made = {name: (script.parent / name).read_text() for name in ("head", "second", "listed")}
    story = site.cluster.head.job(int(made["second"].partition(".")[0]))
    site.start(site.alice)
    shell = site.users.run(site.cluster, site.alice, "gshell", "3", "sh", "-c", "echo $GSCHED_HEAD")

    assert made["head"].strip() == shell.stdout.strip() == str(site.there)
    assert f"{job}.test" in made["listed"]
    assert story.row.outcome is not None
    assert (story.row.user, story.row.outcome.kind) == ("alice", "cancelled")


def test_t1_t6_the_kernel_of_the_node_says_who_connects(site: Site) -> None:
    """Neither a header nor a later change of the process's user says otherwise."""
    job = site.start(site.alice)
    site.start(site.bob)
    body = f'{{"jobs":[{{"job":"{job}","uid":0,"user":"alice"}}],"user":"alice"}}'
    lies = (f"Gsched-On-Behalf-Of: {site.alice.uid}:{site.alice.gid}\r\n", "")

    told = [ask(site, site.bob, "GET", "/v1/snapshot", header=lie) for lie in lies]
    deleted = ask(site, site.bob, "POST", f"/v1/jobs/{job}/actions", body=body)

    assert [text.split()[1] for text in told] == ["403", "403"]
    assert deleted.split()[1] != "200"
    assert site.cluster.head.job(job).row.state == "running"


def test_t2_a_command_that_claims_another_user_changes_nothing(site: Site) -> None:
    job = site.start(site.alice)
    site.start(site.bob)
    lies = {"USER": "alice", "LOGNAME": "alice", "PBS_O_LOGNAME": "alice", "SUDO_UID": "0"}

    deleted = subprocess.run(
        [sys.executable, "-m", "gsched.cli.commands.gdel", str(job)],
        env={**command_environment(site.there), **lies}, user=site.bob.uid, group=site.bob.gid,
        cwd="/", capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert deleted.returncode == 159
    assert "belongs to alice" in deleted.stderr


def test_t3_a_group_that_the_head_does_not_know_of_the_user_is_refused(site: Site) -> None:
    site.start(site.alice)

    ran = site.run(site.alice, "gsub", *SLEEP, gid=site.bob.gid)

    assert ran.status == 159
    assert f"group {site.bob.gid} of alice on n1 is not one of alice's groups" in ran.stderr


def test_t4_t5_t70_root_and_system_users_of_a_node_are_refused(site: Site) -> None:
    """Although this head accepts jobs of root, as its own user, on its own machine."""
    daemon, nobody = User(name="daemon", uid=1, gid=1), User(name="nobody", uid=65534, gid=65534)
    for name, words in (("gstat", ()), ("gsub", SLEEP)):
        by_root, by_daemon = site.run_as_root(name, *words), site.run(daemon, name, *words)
        by_nobody = site.run(nobody, name, *words)

        assert {by_root.status, by_daemon.status, by_nobody.status} == {159}
        assert "root of n1 is refused: [head] operator_hosts does not have n1" in by_root.stderr
        assert "daemon (uid 1) of n1 is a system account" in by_daemon.stderr
        assert "user id on n1 is 65534 (nobody" in by_nobody.stderr


def test_t70_operators_are_operators_where_the_configuration_says(site: Site) -> None:
    site.cluster.kill_head()
    site.cluster.head_settings["operator_hosts"] = ["n1"]
    site.cluster.start_head()
    site.cluster.wait_for_node("n1")

    drained = site.run_as_root("gnodes", "-o", "n1", "-m", "a test")
    submitted = site.run_as_root("gsub", *SLEEP)
    lied = ask(site, ROOT_USER, "GET", "/v1/jobs", header=(
        f"Gsched-On-Behalf-Of: {site.alice.uid}:{site.alice.gid}\r\n"
    ))  # fmt: skip

    assert drained.status == 0, drained
    assert submitted.status == 159
    assert "root of n1 may not submit jobs" in submitted.stderr
    assert lied.split()[1] == "403"


def test_users_are_refused_whose_number_differs(site: Site) -> None:
    """And the sentence has both numbers; else alice of the node would be bob of the head."""
    top = site.cluster.directory.parent / "other"
    top.mkdir()
    others = Users(top)
    for name in ("carol", "alice"):  # bob's number is alice's there
        others.add(name)
    site.cluster.wrapper = others.wrapper()
    there = site.cluster.directory / "n2" / "head.sock"
    site.cluster.start_node("n2", command_socket=str(there))
    wait_until(there.exists, what="the socket on the node")

    ran = site.users.run(site.cluster, site.bob, "gstat", head=there)
    carol = site.users.run(site.cluster, site.alice, "gstat", head=there)

    assert ran.status == 159
    assert (
        f"user 'alice' has uid {site.bob.uid} on n2, but on the head's machine 'alice' has uid "
        f"{site.alice.uid}, and uid {site.bob.uid} is bob there"
    ) in " ".join(ran.stderr.split())
    assert "the head's machine has no user 'carol'" in " ".join(carol.stderr.split())


def test_t9_a_node_speaks_only_for_users_who_have_a_job_on_it(site: Site) -> None:
    there = site.cluster.directory / "n2" / "head.sock"
    job = site.start(site.alice)
    site.cluster.start_node("n2", command_socket=str(there))
    wait_until(there.exists, what="the socket on the node")

    elsewhere = site.users.run(site.cluster, site.alice, "gstat", head=there)
    deleted = site.run(site.alice, "gdel", str(job))
    wait_until(lambda: site.cluster.head.job(job).row.state == "done", what="the job's end")
    just_ended = site.run(site.alice, "gstat")

    assert elsewhere.status == 159
    assert "alice has no job on node n2" in elsewhere.stderr
    assert (deleted.status, just_ended.status) == (0, 0)


def test_t67_without_the_head_nothing_is_accepted_and_the_user_is_told(site: Site) -> None:
    site.start(site.alice)
    site.cluster.kill_head()

    away = site.run(site.alice, "gstat")
    site.cluster.start_head()
    site.cluster.wait_for_node("n1")
    back = site.run(site.alice, "gstat")

    assert away.status == 69
    assert "gnode on n1 has no connection to the head" in away.stderr
    assert back.status == 0


def test_a_login_host_serves_all_users_and_runs_no_jobs(site: Site) -> None:
    there = site.cluster.directory / "login1" / "head.sock"
    site.cluster.start_node("login1", role="login", command_socket=str(there), wait=False)
    wait_until(
        lambda: site.users.run(site.cluster, site.bob, "gstat", head=there).status == 0,
        what="the login host to relay",
    )

    submitted = site.users.run(site.cluster, site.alice, "gsub", *SLEEP, head=there)
    nodes = site.users.run(site.cluster, site.bob, "gnodes", head=there)
    logins = site.users.run(site.cluster, site.bob, "gnodes", "--login", head=there)
    by_root = site.users.run(site.cluster, ROOT_USER, "gstat", head=there)
    assert site.cluster.stop_node("n1") == 0
    twin = site.cluster.directory / "n1-twin"
    site.cluster.start_node(
        "n1", role="login", command_socket=str(twin), state_dir=f"{twin}.state", wait=False
    )
    wait_until(
        lambda: "n1 is a node of this cluster" in site.cluster.log("n1.log"), what="the refusal"
    )
    assert site.cluster.stop_node("login1") == 0
    wait_until(
        lambda: (
            [row.connected for row in site.cluster.head.hosts().hosts if row.role == "login"]
            == [False]
        ),
        what="the head to see it",
    )

    assert submitted.status == 0, submitted
    assert "login1" not in nodes.stdout
    assert re.search(r"login1\tup\t.*\t127.0.0.1\t", logins.stdout), logins
    assert "root of login1 is refused" in by_root.stderr
    assert not there.exists()


def test_t10_a_login_host_that_acts_as_a_node_is_cut_off(site: Site) -> None:
    """It cannot report an end of a job, nor registers as a node by the way."""
    job = site.start(site.alice)
    end = Exited(
        record=record(job=job), usage=Usage(), load=Load(), token=""
    )  # of a job of another host

    async def act() -> bool:
        async with dialled(site.cluster, node="login9", path="/v1/login") as dialler:
            await dialler.call()
            welcome = await dialler.register()
            await dialler.say(end)
            await dialler.hear_all(20)
            return isinstance(welcome, Welcome)

    assert asyncio.run(act())
    assert site.cluster.head.job(job).row.state == "running"
    assert "a login host must not send" in site.cluster.log("head.log")


def test_readers_that_do_not_read_delay_nobody(site: Site) -> None:
    """Each has megabytes under way; the node stays up and serves others."""
    site.start(site.alice)
    script = site.users.home(site.alice) / "many"
    script.write_text("#!/bin/sh\n" + "#" * 100_000)
    for _ in range(10):
        site.users.submit(site.cluster, site.alice, "-h", str(script))
    silent = [connect(site, site.alice) for _ in range(20)]
    request = b"GET /v1/jobs/2?script=1 HTTP/1.1\r\nHost: x\r\n\r\n"
    for each in silent:
        each.sendall(request * 100)

    listed = site.run(site.alice, "gstat")
    states = {row.name: row.state for row in site.cluster.head.nodes().nodes}

    assert listed.status == 0
    assert states == {"n1": "up"}
    for each in silent:
        each.close()


def test_a_user_has_a_bounded_number_of_connections_on_a_node(site: Site) -> None:
    site.start(site.alice)
    site.start(site.bob)
    held = [connect(site, site.alice) for _ in range(MAX_USER_RELAYS)]

    with connect(site, site.alice) as more:
        refused = more.recv(65536)
    others = site.run(site.bob, "gstat")

    assert refused.startswith(b"HTTP/1.1 503 ")
    assert b"open connections on n1, the limit" in refused
    assert others.status == 0
    for each in held:
        each.close()


def test_the_socket_of_a_head_or_of_another_gnode_is_left_alone(site: Site) -> None:
    """By default where the head is on the same machine, and in any case while one listens."""
    unused = site.cluster.directory / "unused.sock"
    site.cluster.node_tables = f'[head]\nsocket = "{unused}"\n'
    site.cluster.start_node("n2")
    site.cluster.start_node("n3", command_socket=str(site.cluster.socket))
    wait_until(
        lambda: "another process serves commands" in site.cluster.log("n3.log"), what="n3's log"
    )

    assert not unused.exists()
    assert site.users.run(site.cluster, site.alice, "gstat").status == 0


def connect(site: Site, user: User) -> socket.socket:
    """Return a connection of a user to the socket on the node."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.settimeout(PATIENCE_S)
    os.setegid(user.gid)
    os.seteuid(user.uid)
    try:
        made.connect(str(site.there))
    finally:
        os.seteuid(0)
        os.setegid(0)
    return made


def ask(
    site: Site, user: User, method: str, target: str, *, header: str = "", body: str = ""
) -> str:
    """Return the answer to a request; it is sent by root, on a connection of the user's."""
    with connect(site, user) as made:
        made.sendall(
            f"{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{header}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        answer = b""
        while piece := made.recv(65536):
            answer += piece
    return answer.decode()

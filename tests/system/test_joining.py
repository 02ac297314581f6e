"""Hosts join a cluster with real daemons: tokens, certificates, revocation, a new authority."""

import asyncio
import http.client
import json
import stat
from pathlib import Path

import msgspec
import pytest

from gsched.config.load import load_config
from gsched.pki import issuing
from gsched.pki.contexts import joining_context
from gsched.pki.files import AUTHORITY, DIRECTORY, NEXT, OWN, TRUSTED, CertificateFiles
from gsched.protocol.joining import JoinHost
from gsched.protocol.node import Refused
from tests.support.certificates import give_certificate
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import Ran, run_command
from tests.support.dialler import dialled
from tests.support.processes import PATIENCE_S
from tests.support.wire import Side, Wire


def created(cluster: Cluster, *words: str) -> list[str]:
    """Create a token and return the words of its line after ``gsched join``."""
    ran = run_command("gsched", "token", "create", *words, "--json", head=cluster.socket)
    assert ran.status == 0, ran.stderr
    line = str(json.loads(ran.stdout)["line"])
    assert line.startswith("gsched join 127.0.0.1:")
    return line.split()[2:]


def join(cluster: Cluster, line: list[str], name: str = "", state: str = "") -> Ran:
    """Join as a host whose configuration is in its node's directory."""
    directory = cluster.node_dir(state or name or "n1")
    directory.mkdir(parents=True, exist_ok=True)
    config = directory / "gsched.toml"
    if not config.exists():
        config.write_text(f'[node]\nstate_dir = "{directory}"\ncpus = 2 # of this host\n')
    words = ["--name", name] if name else []
    return run_command("gsched", "join", "--config", str(config), *words, *line)


def test_a_host_joins_by_one_line_and_its_jobs_run(cluster: Cluster) -> None:
    cluster.start_head()

    ran = join(cluster, created(cluster, "--role", "node", "--name", "n1"), "n1")

    assert ran.status == 0, ran.stderr
    assert "this host is now node n1 of the cluster test" in ran.stdout
    own = cluster.node_dir("n1") / DIRECTORY / OWN
    assert stat.S_IMODE(own.stat().st_mode) == 0o600
    assert stat.S_IMODE(own.parent.stat().st_mode) == 0o700
    config = load_config(str(cluster.node_dir("n1") / "gsched.toml")).node
    assert (config.name, config.head, config.cpus) == ("n1", f"127.0.0.1:{cluster.node_port}", 2)
    cluster.start_node("n1")
    listed = run_command("gsched", "token", "list", head=cluster.socket)
    assert "used by n1" in listed.stdout
    shown = run_command("gsched", "authority", "show", "--json", head=cluster.socket).stdout
    rows = [(row["node"], row["connected"]) for row in json.loads(shown)["nodes"]]
    assert rows == [("n1", True)]


def test_t63_each_way_in_which_a_line_does_not_count_is_explained(cluster: Cluster) -> None:
    """Twice, late, for another name, deleted, changed, of another cluster: nothing is written."""
    cluster.start_head()
    once = created(cluster, "--role", "node")
    assert join(cluster, once, "n1").status == 0
    late = created(cluster, "--role", "node", "--ttl", "1s")
    scoped = created(cluster, "--role", "node", "--name", "n7")
    deleted = created(cluster, "--role", "node")
    token_id = deleted[1].partition(".")[0]
    gone = run_command("gsched", "token", "revoke", token_id, head=cluster.socket)
    assert gone.status == 0
    fresh = created(cluster, "--role", "node")
    listing = ("token", "list")
    wait_until(lambda: "expired" in run_command("gsched", *listing, head=cluster.socket).stdout)
    cases = (
        (once, "ago by node n1; each lets one host join"),
        (late, "the token has expired"),
        (scoped, "the token is for node n7, this host joins as 'n2'"),
        (deleted, "the token is unknown here"),
        ([fresh[0], "0" * 8 + "." + "0" * 32, fresh[2]], "the token is unknown here"),
        ([*fresh[:2], f"{fresh[2][:-4]}0000"], f"{fresh[2][7:-4]}0000; nothing was sent to it"),
        (["127.0.0.1:9", *fresh[1:]], "no answer of the head at 127.0.0.1:9"),
        (fresh[:1], "the line has 1 word, not 3"),
        (["nowhere", *fresh[1:]], "is not HOST:PORT"),
        ([fresh[0], "x", fresh[2]], "is not a token"),
        ([*fresh[:2], "x"], "is not sha256:"),
    )
    for line, words in cases:
        ran = join(cluster, line, "n2")
        assert ran.status != 0, words
        assert words in ran.stderr
        assert "hint: " in ran.stderr
        assert "Traceback" not in ran.stderr
    assert not (cluster.node_dir("n2") / DIRECTORY).exists()
    assert "head" not in (cluster.node_dir("n2") / "gsched.toml").read_text()
    assert join(cluster, fresh, "n2").status == 0


def test_a_login_host_joins_by_one_line_and_keeps_its_name(cluster: Cluster) -> None:
    """Its configuration has the role; no node takes its name, nor it that of a node."""
    cluster.start_head()
    cluster.start_node("n1")
    line = created(cluster, "--role", "login", "--name", "login1")
    ran = join(cluster, line, "login1")
    assert ran.status == 0, ran.stderr
    assert "systemctl enable --now gnode" in ran.stdout
    config = cluster.node_dir("login1") / "gsched.toml"
    assert load_config(str(config)).node.role == "login"

    cluster.start_node("login1", role="login", wait=False)
    wait_until(lambda: "registered" in cluster.log("login1.log"), what="the login host")

    for role, name, other in (("node", "login1", "login host"), ("login", "n1", "node")):
        taken = join(cluster, created(cluster, "--role", role), name, state="second")
        assert taken.status != 0
        assert f"{name} is a {other} of this cluster" in taken.stderr

    async def register_as_node() -> object:
        async with dialled(cluster, node="login1") as dialler:
            await dialler.call()
            return await dialler.register()

    refused = asyncio.run(register_as_node())
    assert isinstance(refused, Refused)
    assert "login1 is a login host of this cluster" in refused.message
    shown = run_command("gsched", "authority", "show", "--json", head=cluster.socket).stdout
    rows = [(row["node"], row.get("role", "node")) for row in json.loads(shown)["nodes"]]
    assert rows == [("n1", "node"), ("login1", "login")]
    cluster.kill_node("login1")
    cluster.kill_head()
    cluster.start_head()
    taken = join(cluster, created(cluster, "--role", "node"), "login1", state="second")
    assert "login1 is a login host of this cluster" in taken.stderr
    assert run_command("gnodes", "revoke", "login1", head=cluster.socket).status == 0
    free = join(cluster, created(cluster, "--role", "node"), "login1", state="second")
    assert free.status == 0, free.stderr
    again = join(cluster, created(cluster, "--role", "node"), "x", state="login1")
    assert again.status == 0, again.stderr
    assert load_config(str(config)).node.role == "compute"


def test_a_name_in_use_is_for_the_host_that_has_its_key_or_takes_its_place(
    cluster: Cluster,
) -> None:
    """It may also have expired. Who is replaced is cut off, and does not come back."""
    cluster.start_head()
    cluster.start_node("n1")
    for scope in ([], ["--name", "n1"]):
        line = created(cluster, "--role", "node", *scope)
        refused = join(cluster, line, "n1", state="second")
        assert refused.status == 159
        assert "n1 is a node of this cluster already" in refused.stderr
        assert "gsched join --name NAME" in refused.stderr
        assert "gsched token create --role node --name n1 --replace" in refused.stderr
        assert not (cluster.node_dir("second") / DIRECTORY).exists()
        same = join(cluster, line, "n1")
        assert same.status == 0, same.stderr
    cluster.stop_node("n1")
    head, host = cluster.state_dir, cluster.node_dir("n1")
    give_certificate(head, host, "n1", again=True, shift_s=-1000.0, lifetime_s=1.0)
    expired = join(cluster, created(cluster, "--role", "node"), "n1")
    assert expired.status == 0, expired.stderr
    other = give_certificate(head, cluster.node_dir("second"), "n9")
    stranger = join(cluster, created(cluster, "--role", "node"), "n1", state="second")
    assert stranger.status == 159, "its key is that of another name"
    cluster.start_node("n1")

    shown = run_command(
        *("gsched", "token", "create", "--role", "node", "--name", "n1"), head=cluster.socket
    )
    assert "only that host can join again" in shown.stderr
    line = created(cluster, "--role", "node", "--name", "n1", "--replace")
    listed = run_command("gsched", "token", "list", head=cluster.socket)
    assert "n1, replaced" in listed.stdout
    replaced = join(cluster, line, "n1", state="second")
    assert replaced.status == 0, replaced.stderr
    wait_until(lambda: "of node n1 was revoked" in cluster.log("n1.log"), what="the reason")
    taken = join(cluster, created(cluster, "--role", "node"), "n1")
    assert taken.status == 159, "the host that has replaced it has the name"
    assert run_command("gnodes", "revoke", "n1", head=cluster.socket).status == 0
    back = join(cluster, created(cluster, "--role", "node"), "n1")
    assert back.status == 0, "a revoked name is free"
    assert issuing.identity_in(Path(other.certificate).read_bytes()).name == "n1"
    for wrong in (("--role", "node"), ("--role", "head", "--name", "n1")):
        odd = run_command("gsched", "token", "create", "--replace", *wrong, head=cluster.socket)
        assert odd.status == 2
        assert "--replace is for a node or login host that has a name" in odd.stderr


@pytest.mark.parametrize("role", ["node", "login"])
def test_t63_a_name_is_taken_as_soon_as_a_host_has_joined_with_it(
    cluster: Cluster, role: str
) -> None:
    """Before its host has connected, too, and through a restart; who lost its key has two ways."""
    cluster.start_head()
    other = "login" if role == "node" else "node"
    assert join(cluster, created(cluster, "--role", role, "--name", "n1"), "n1").status == 0

    for scope in ([], ["--name", "n1"]):
        refused = join(cluster, created(cluster, "--role", role, *scope), "n1", state="second")
        assert refused.status == 159
        assert "cluster already, and this host does not have its key" in refused.stderr
        assert f"gsched token create --role {role} --name n1 --replace" in refused.stderr
        cluster.stop_head()
        cluster.start_head()
    crossed = join(cluster, created(cluster, "--role", other), "n1", state="second")
    assert "of this cluster: this host needs another name" in crossed.stderr
    shown = run_command("gsched", "authority", "show", "--json", head=cluster.socket).stdout
    assert [(row["node"], row["connected"]) for row in json.loads(shown)["nodes"]] == [
        ("n1", False)
    ]
    replacing = created(cluster, "--role", role, "--name", "n1", "--replace")
    assert join(cluster, replacing, "n1", state="second").status == 0
    late = join(cluster, created(cluster, "--role", role), "n1", state="third")
    assert late.status == 159, "the name is that of the second host now"
    first = join(cluster, created(cluster, "--role", role), "n1")
    assert first.status == 159, "the key of the first one does not count any more"

    revoked = run_command("gnodes", "revoke", "n1", head=cluster.socket)
    assert "no host n1" not in revoked.stderr
    assert join(cluster, created(cluster, "--role", role), "n1", state="third").status == 0


def test_a_removed_name_is_free_and_a_returned_one_is_taken_while_its_host_is_off(
    cluster: Cluster,
) -> None:
    """Removing a node frees its name; one that was revoked once and has come back keeps it."""
    cluster.start_head()
    for _ in range(2):
        assert join(cluster, created(cluster, "--role", "node"), "n1").status == 0
        cluster.start_node("n1")
        cluster.stop_node("n1")
        assert run_command("gnodes", "revoke", "n1", head=cluster.socket).status == 0
    assert join(cluster, created(cluster, "--role", "node"), "n1").status == 0
    cluster.start_node("n1")
    cluster.stop_node("n1")
    wait_until(lambda: cluster.head.nodes().nodes[0].state != "up", what="the node to be off")

    taken = join(cluster, created(cluster, "--role", "node"), "n1", state="second")
    assert "n1 is a node of this cluster already" in taken.stderr
    wait_until(
        lambda: run_command("gnodes", "remove", "n1", head=cluster.socket).status == 0,
        what="the node to be removed",
    )
    cluster.stop_head()
    cluster.start_head()
    free = join(cluster, created(cluster, "--role", "node"), "n1", state="second")
    assert free.status == 0, free.stderr


def test_a_host_that_has_only_joined_is_removed_and_a_revoked_name_keeps_no_token(
    cluster: Cluster,
) -> None:
    """The administrator has joined the wrong host, or has printed a line too many."""
    cluster.start_head()
    assert join(cluster, created(cluster, "--role", "node"), "n1").status == 0
    assert join(cluster, created(cluster, "--role", "node"), "n1", state="second").status

    ran = run_command("gnodes", "remove", "n1", "n2", head=cluster.socket)

    assert "n1" not in ran.stderr
    assert "unknown node 'n2'" in ran.stderr
    again = run_command("gnodes", "remove", "n1", head=cluster.socket)
    assert "unknown node 'n1'" in again.stderr
    line = created(cluster, "--role", "node", "--name", "n1")
    assert join(cluster, line, "n1", state="second").status == 0

    unused = [
        created(cluster, "--role", role, "--name", name)
        for role, name in (("node", "n1"), ("login", "n1"), ("node", "n2"))
    ]
    assert run_command("gnodes", "revoke", "n1", head=cluster.socket).status == 0
    cluster.stop_head()
    cluster.start_head()
    ran = join(cluster, unused[0], "n1", state="third")
    assert "the token is unknown here: it was deleted" in ran.stderr
    assert join(cluster, unused[2], "n2").status == 0
    listed = json.loads(
        run_command("gsched", "token", "list", "--json", head=cluster.socket).stdout
    )
    tokens = [(row.get("name", ""), row.get("used_by", "")) for row in listed["hosts"]["tokens"]]
    assert sorted(tokens) == [("", ""), ("", "n1"), ("n1", "n1"), ("n2", "n2")]


@pytest.mark.parametrize("role", ["node", "login"])
def test_t70_a_token_for_any_name_gives_no_name_of_operator_hosts(
    cluster: Cluster, role: str
) -> None:
    """Whoever is root there can do everything, so an operator must have meant this host."""
    cluster.head_settings["operator_hosts"] = ["admin1"]
    cluster.start_head()

    open_line = join(cluster, created(cluster, "--role", role), "admin1")
    named = join(cluster, created(cluster, "--role", role, "--name", "admin1"), "admin1")

    assert open_line.status == 159
    assert "only a token with this name lets a host join as it" in open_line.stderr
    assert f"gsched token create --role {role} --name admin1" in open_line.stderr
    assert named.status == 0, named.stderr


def test_a_host_whose_connection_is_cut_off_for_others_tries_again(cluster: Cluster) -> None:
    """A head cuts off who has waited longest while hundreds of hosts join at once."""
    cluster.start_head()
    line = created(cluster, "--role", "node")

    def cut(_side: Side, _before: int, part: bytes) -> bytes:
        if wire.connections <= 2:
            raise ConnectionResetError
        return part

    with Wire(cluster.node_port, cut) as wire:
        ran = join(cluster, [f"127.0.0.1:{wire.port}", *line[1:]], "n1")

    assert ran.status == 0, ran.stderr
    assert wire.connections == 4


@pytest.mark.parametrize("role", ["node", "login"])
def test_a_host_that_has_not_got_the_answer_gets_its_certificate_once_more(
    cluster: Cluster, role: str
) -> None:
    """Its token is used, and counts for the same request, as long as the host is not revoked."""
    cluster.start_head()
    line = created(cluster, "--role", role)

    def cut(side: Side, before: int, part: bytes) -> bytes:
        if wire.connections == 2 and side == "head" and before:  # after the handshake
            raise ConnectionResetError
        return part

    with Wire(cluster.node_port, cut) as wire:
        ran = join(cluster, [f"127.0.0.1:{wire.port}", *line[1:]], "n1")

    assert ran.status == 0, ran.stderr
    assert wire.connections == 3
    assert cluster.log("head.log").count(f"{role} n1 has joined") == 2
    again = join(cluster, line, "n1", state="second")
    assert "each lets one host join" in again.stderr

    key = issuing.make_key()
    request = JoinHost(token="", name="n2", request=issuing.make_request(key, "n2"))
    address, token, _ = created(cluster, "--role", role)
    request = msgspec.structs.replace(request, token=token)
    answers = []
    for revoked in (False, False, True):
        if revoked:
            assert run_command("gnodes", "revoke", "n2", head=cluster.socket).status == 0
        port = int(address.rpartition(":")[2])
        connection = http.client.HTTPSConnection("127.0.0.1", port, context=joining_context(""))
        connection.request("POST", "/v1/join", msgspec.json.encode(request))
        answers.append(connection.getresponse().status)
        connection.close()
    assert answers == [200, 200, 403]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_token_counts_once_through_a_killed_head(cluster: Cluster, moment: str) -> None:
    """Killed before the commit: nobody has joined, and the token counts. After it: it is used."""
    cluster.start_head(env={"GSCHED_FAIL": f"join.{moment}_commit:kill"})
    line = created(cluster, "--role", "node")
    ran = join(cluster, line, "n1")
    assert ran.status == 69
    assert "if the token was shown already, create a new one" in ran.stderr
    cluster.head_process.wait(PATIENCE_S)
    cluster.start_head()

    again = join(cluster, line, "n1")

    assert (again.status == 0) is (moment == "before")
    if moment == "after":
        assert "each lets one host join" in again.stderr


def test_a_secret_of_a_token_is_nowhere_but_in_its_line(cluster: Cluster) -> None:
    """T18: neither in lists, nor in the database or a log."""
    cluster.start_head()
    _, token, _ = created(cluster, "--role", "login", "--name", "l1")
    secret = token.partition(".")[2]

    listed = run_command("gsched", "token", "list", "--json", head=cluster.socket)

    assert "l1" in listed.stdout
    assert secret not in listed.stdout
    cluster.stop_head()
    for path in cluster.directory.rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes(), path


def test_a_certificate_is_renewed_over_the_open_connection(cluster: Cluster) -> None:
    """At two thirds of its life, again and again; the connection stays the same one."""
    cluster.tls = "[tls]\nlifetime_s = 6\n"
    cluster.start_head()
    give_certificate(cluster.state_dir, cluster.node_dir("n1"), "n1", lifetime_s=6.0)
    cluster.start_node("n1")
    own = cluster.node_dir("n1") / DIRECTORY / OWN
    head = cluster.state_dir / DIRECTORY / OWN
    seen = {own.read_bytes()}

    def renewed() -> bool:
        seen.add(own.read_bytes())
        return len(seen) >= 4

    wait_until(renewed, 60.0, what="three renewals")

    assert issuing.identity_in(own.read_bytes()).name == "n1"
    assert cluster.log("n1.log").count("registered with the head") == 1
    before = head.read_bytes()
    cluster.kill_node("n1")
    cluster.start_node("n1")
    assert head.read_bytes() != before, "the head's own is renewed, too"
    assert "Traceback" not in cluster.log("n1.log") + cluster.log("head.log")


def test_a_certificate_that_is_due_at_the_connection_is_renewed_in_it(cluster: Cluster) -> None:
    """The request comes before the head's welcome, which drops it; another one follows."""
    cluster.start_head()
    host = cluster.node_dir("n1")
    give_certificate(cluster.state_dir, host, "n1", shift_s=-3000.0, lifetime_s=4000.0)
    own = host / DIRECTORY / OWN
    before = own.read_bytes()
    cluster.start_node("n1")

    wait_until(lambda: own.read_bytes() != before, what="the renewal")
    validity = issuing.validity_of(own.read_bytes())
    assert validity.expires_s - validity.begins_s > 86_400.0
    assert cluster.log("n1.log").count("registered with the head") == 1
    shown = run_command("gsched", "authority", "show", "--json", head=cluster.socket)
    assert json.loads(shown.stdout)["nodes"][0]["current"] is True


def test_t64_a_revoked_node_is_cut_off_at_once_and_for_ever(cluster: Cluster) -> None:
    """Through a restart of the head; with a new line it may come back."""
    cluster.start_head()
    cluster.start_node("n1")
    cluster.start_node("n2")

    ran = run_command("gnodes", "revoke", "n1", head=cluster.socket)

    assert ran.status == 0, ran.stderr
    assert "has had no host" not in ran.stderr
    slip = run_command("gnodes", "revoke", "n11", head=cluster.socket)
    assert "the cluster has had no host n11 lately" in slip.stderr
    cluster.wait_for_node("n1", "unreachable")
    wait_until(lambda: "of node n1 was revoked" in cluster.log("n1.log"), what="the reason")
    cluster.stop_node("n1")
    cluster.kill_head()
    cluster.start_head()
    cluster.start_node("n1", wait=False)
    logged = cluster.log("head.log").count("node n1 was revoked")
    wait_until(lambda: cluster.log("head.log").count("node n1 was revoked") > logged)
    cluster.wait_for_node("n2")
    cluster.stop_node("n1")
    assert join(cluster, created(cluster, "--role", "node", "--name", "n1"), "n1").status == 0
    cluster.start_node("n1")


def test_t62_the_authority_is_replaced_while_the_cluster_runs(cluster: Cluster) -> None:
    """A node that was away keeps the old one in force, until it has a new certificate."""
    cluster.start_head()
    cluster.start_node("n1")
    cluster.start_node("n2")
    give_certificate(cluster.state_dir, cluster.node_dir("login1"), "login1", role="login")
    cluster.start_node("login1", role="login", wait=False)
    wait_until(lambda: "registered" in cluster.log("login1.log"), what="the login host")
    old = (cluster.node_dir("n1") / DIRECTORY / OWN).read_bytes()
    old_of_login = (cluster.node_dir("login1") / DIRECTORY / OWN).read_bytes()
    cluster.stop_node("n2")
    cluster.wait_for_node("n2", "unreachable")

    def authority(*words: str) -> Ran:
        return run_command("gsched", "authority", *words, head=cluster.socket)

    assert authority("replace").status == 0
    wait_until(
        lambda: (cluster.node_dir("n1") / DIRECTORY / OWN).read_bytes() != old, what="a new one"
    )
    early = authority("finish")
    assert early.status != 0
    assert "these hosts have no certificate of the new authority yet" in early.stderr
    assert "n2" in early.stderr
    cluster.start_node("n2")

    def finished() -> bool:
        return authority("finish").status == 0

    wait_until(finished, what="all hosts to have new certificates")
    assert (cluster.node_dir("login1") / DIRECTORY / OWN).read_bytes() != old_of_login
    audit = map(json.loads, (cluster.state_dir / "audit.log").read_text().splitlines())
    verbs = [line["verb"] for line in audit if line["status"] == 200]
    assert [verb for verb in verbs if verb.endswith("authority")] == [
        "replace authority",
        "finish authority",
    ]
    trusted = (cluster.state_dir / DIRECTORY / TRUSTED).read_text()
    wait_until(lambda: (cluster.node_dir("n1") / DIRECTORY / TRUSTED).read_text() == trusted)
    assert cluster.log("n1.log").count("registered with the head") == 1, "no connection was lost"
    for name in ("n1", "n2"):
        cluster.kill_node(name)
        cluster.start_node(name)
    (cluster.node_dir("n1") / DIRECTORY / OWN).write_bytes(old)
    cluster.kill_node("n1")
    cluster.start_node("n1", wait=False)
    words = "it is of an authority that does not count any more"
    wait_until(lambda: words in cluster.log("n1.log"), what="the old certificate to be refused")


@pytest.mark.parametrize("moment", ["note", "files"])
def test_t62_a_head_killed_as_it_ends_the_old_authority_goes_on_with_the_new_one(
    cluster: Cluster, moment: str
) -> None:
    """After the note in the database, and between the authority's file and what follows from it."""
    cluster.start_head({"GSCHED_FAIL": f"authority.after_{moment}:2:kill"})
    cluster.start_node("n1")
    pki, own = cluster.state_dir / DIRECTORY, cluster.node_dir("n1") / DIRECTORY / OWN
    before, old = (pki / AUTHORITY).read_text(), own.read_bytes()
    job = run_command(
        *("gsub", "-l", "nodes=n1", "--", "sleep", "1d"), head=cluster.socket, cwd=cluster.jobs
    )
    assert job.status == 0, job.stderr

    def authority(*words: str) -> Ran:
        return run_command("gsched", "authority", *words, head=cluster.socket)

    def is_current() -> bool:
        shown = json.loads(authority("show", "--json").stdout)
        return bool(own.read_bytes() != old and shown["nodes"][0]["current"])

    assert authority("replace").status == 0
    wait_until(is_current, what="a certificate of the new authority")
    new = (pki / NEXT).read_text()

    assert authority("finish").status != 0
    assert cluster.head_process.wait(PATIENCE_S) == -9
    cluster.start_head()

    cluster.wait_for_node("n1")
    assert new != before
    assert (pki / AUTHORITY).read_text() == new
    assert not (pki / NEXT).exists()
    assert (pki / TRUSTED).read_text().count("BEGIN CERTIFICATE") == 1
    assert "the authority is not being replaced" in authority("finish").stderr
    assert cluster.head.status().jobs == {"running": 1}
    assert join(cluster, created(cluster, "--role", "node", "--name", "n2"), "n2").status == 0


def test_certificates_of_the_site_are_used_and_read_again(cluster: Cluster, tmp_path: Path) -> None:
    """Head and node have files of the site's own authority; the head issues none."""
    cluster.start_head()  # it tells the cluster's id, which certificates need
    cluster.stop_head()
    own = give_certificate(cluster.state_dir, tmp_path / "site-n1", "n1")
    head = give_certificate(cluster.state_dir, tmp_path / "site-head", "test", role="head")
    for path in (AUTHORITY, OWN, TRUSTED):
        (cluster.state_dir / DIRECTORY / path).rename(tmp_path / path)

    def table(files: CertificateFiles) -> str:
        names = {"ca": files.trusted, "certificate": files.certificate, "key": files.key}
        return "".join(f'{name} = "{path}"\n' for name, path in names.items())

    cluster.tls = f"[tls]\n{table(head)}"
    cluster.start_head()
    cluster.node_tables = f"[tls]\n{table(own)}"
    cluster.start_node("n1")

    refused = run_command("gsched", "token", "create", "--role", "node", head=cluster.socket)
    assert refused.status != 0
    assert "this site issues certificates itself" in refused.stderr
    assert not (cluster.state_dir / DIRECTORY / AUTHORITY).exists()
    shown = run_command("gsched", "authority", "show", head=cluster.socket)
    assert "(of the site)" in shown.stdout


def test_t61_a_head_whose_authority_others_can_read_does_not_start(cluster: Cluster) -> None:
    cluster.start_head()
    cluster.stop_head()
    (cluster.state_dir / DIRECTORY / AUTHORITY).chmod(0o644)
    cluster.start_head(wait=False)

    assert cluster.head_process.wait(PATIENCE_S) == 78
    assert "authority.pem has mode 0644: other users can read it" in cluster.log("head.log")

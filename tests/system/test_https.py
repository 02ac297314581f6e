"""Programs use the head over HTTPS, with tokens of users (T53-T57, T70)."""

import http.client
import json
import os
import ssl
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from gsched.protocol.tokens import SCOPES, CreateUserToken
from gschedd.http.user_tokens import OF_USER_MAX
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import Ran, command_environment
from tests.support.ports import free_port
from tests.support.ptys import Sitting
from tests.support.users import User, Users, made_users

pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]


class Reply(NamedTuple):
    """An answer over HTTPS."""

    status: int
    body: dict[str, object]

    @property
    def message(self) -> str:
        """Return what the head says of a refusal."""
        error = self.body["error"]
        assert isinstance(error, dict)
        return str(error["message"])


class Site(NamedTuple):
    """A head with HTTPS, and users."""

    cluster: Cluster
    users: Users
    alice: User
    bob: User
    port: int
    authority: str  # of the cluster, in PEM

    def gsched(self, user: User, *words: str) -> Ran:
        """Run gsched as a user on the head's machine."""
        return self.users.run(self.cluster, user, "gsched", *words)

    def create(self, user: User, scope: str, *words: str) -> dict[str, object]:
        """Return a new token of a user, as --json prints it."""
        words = ("token", "create", "--role", "user", "--scope", scope, *words, "--json")
        ran = self.gsched(user, *words)
        assert ran.status == 0, ran
        made: dict[str, object] = json.loads(ran.stdout)
        return made

    def token(self, user: User, scope: str, *words: str) -> str:
        """Return the text of a new token of a user."""
        return str(self.create(user, scope, *words)["token"])

    def ask(
        self,
        token: str,
        method: str,
        target: str,
        body: object = None,
        headers: dict[str, str] | None = None,
    ) -> Reply:
        """Return the answer to a request of a program."""
        context = ssl.create_default_context(cadata=self.authority)
        connection = http.client.HTTPSConnection("localhost", self.port, context=context)
        head = {"Content-Type": "application/json"} if body is not None else {}
        if token:
            head["Authorization"] = f"Bearer {token}"
        data = None if body is None else json.dumps(body)
        connection.request(method, target, data, {**head, **(headers or {})})
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        try:
            return Reply(answer.status, json.loads(content))
        except ValueError:
            return Reply(answer.status, {"text": content.decode()})


@pytest.fixture
def site(process_marker: str) -> Iterator[Site]:
    with made_users(Cluster, process_marker) as (cluster, users):
        port = free_port()
        cluster.tls = f'[https]\nlisten = "127.0.0.1:{port}"\n'
        alice, bob = users.add("alice"), users.add("bob")
        cluster.start_head()
        shown = users.run(cluster, alice, "gsched", "authority", "certificate")
        yield Site(cluster, users, alice, bob, port, shown.stdout)


def job(site: Site) -> dict[str, object]:
    return {
        "jobs": [
            {"key": "1", "name": "j", "workdir": str(site.users.home(site.alice)), "script": "true"}
        ]
    }


def test_a_program_submits_as_its_user_as_far_as_the_scope_reaches(site: Site) -> None:
    tokens = {scope: site.token(site.alice, scope) for scope in SCOPES[:2]}

    submitted = site.ask(tokens["submit"], "POST", "/v1/jobs", job(site))
    story = site.ask(tokens["read"], "GET", "/v1/jobs/1")
    refused = site.ask(tokens["read"], "POST", "/v1/jobs", job(site))
    deleted = site.ask(
        tokens["submit"], "POST", "/v1/jobs/actions", {"action": "delete", "ids": ["1"]}
    )

    assert submitted.status == 200, submitted
    row = story.body["row"]
    assert isinstance(row, dict)
    assert row["user"] == "alice"
    assert refused.status == 403
    assert "has the scope read; it takes submit to change anything" in refused.message
    lines = (site.cluster.state_dir / "audit.log").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    (tried,) = [each for each in records if each["status"] == 403]
    assert (tried["user"], tried["request"]) == ("alice", "POST /v1/jobs")
    assert (tried["token"], tried["address"]) == (tokens["read"].split("_")[1], "127.0.0.1")
    assert deleted.status == 200, deleted


def test_t53_each_route_takes_a_token_that_counts(site: Site) -> None:
    read = site.token(site.alice, "read")
    document = site.ask(read, "GET", "/v1/openapi.json").body
    paths = document["paths"]
    assert isinstance(paths, dict)
    assert "/v1/jobs/{id}/session" not in paths
    for path, operations in paths.items():
        for method in operations:
            for token in ("", "gsched_00000000_0", read[:-1], read + "0"):
                target = path.replace("{id}", "1").replace("{name}", "n1")
                found = site.ask(token, method.upper(), target, {} if method == "post" else None)
                assert found.status == 401, (method, path, found)


def test_t54_t55_a_foreign_name_and_a_foreign_page_are_refused(site: Site) -> None:
    submit = site.token(site.alice, "submit")

    rebound = site.ask(submit, "GET", "/v1/jobs", headers={"Host": "evil.example"})
    foreign = site.ask(submit, "GET", "/v1/jobs", headers={"Origin": "https://evil.example"})
    form = site.ask(submit, "POST", "/v1/jobs", job(site), {"Content-Type": "text/plain"})
    own = site.ask(submit, "GET", "/v1/jobs", headers={"Origin": "https://localhost"})

    assert (rebound.status, foreign.status, form.status, own.status) == (421, 403, 415, 200)
    assert "not known as 'evil.example'" in rebound.message


def test_t56_no_get_opens_a_terminal(site: Site) -> None:
    found = site.ask(site.token(site.alice, "submit"), "GET", "/v1/jobs/1/session?start=1")

    assert found.status == 404


def test_t57_t62_a_token_counts_until_it_expires_or_is_revoked(site: Site) -> None:
    short, kept = site.token(site.alice, "read", "--ttl", "1s"), site.token(site.alice, "read")
    number = kept.split("_")[1]
    wait_until(lambda: site.ask(short, "GET", "/v1/health").status == 401, what="its end")

    before = site.ask(kept, "GET", "/v1/health")
    by_bob = site.gsched(site.bob, "token", "revoke", number)
    listed = site.gsched(site.alice, "token", "list")
    revoked = site.gsched(site.alice, "token", "revoke", number)
    after = site.ask(kept, "GET", "/v1/health")

    assert "has expired" in site.ask(short, "GET", "/v1/health").message
    assert before.status == 200
    assert by_bob.status != 0
    assert "unknown token" in by_bob.stderr
    assert number in listed.stdout
    assert revoked.status == 0, revoked
    assert after.status == 401
    site.cluster.kill_head()
    site.cluster.start_head()
    assert site.ask(kept, "GET", "/v1/health").status == 401


def test_valid_tokens_of_a_user_are_limited_and_expired_ones_are_not(site: Site) -> None:
    """A program that gets a token for each of its runs does not run out of them."""
    wanted = CreateUserToken(scope="read", user="bob", ttl_s=1.0)
    for _ in range(2):
        rows = [site.cluster.head.create_user_token(wanted).row for _ in range(60)]
        wait_until(lambda: time.time() > rows[-1].expires_s, what="their end")  # noqa: B023 - called at once
    wanted = CreateUserToken(scope="read", user="bob")
    kept = [site.cluster.head.create_user_token(wanted) for _ in range(OF_USER_MAX)]

    refused = site.gsched(site.bob, "token", "create", "--role", "user")
    listed = site.cluster.head.user_tokens()

    assert refused.status != 0
    assert f"bob has {OF_USER_MAX} valid tokens, the limit" in refused.stderr
    assert "gsched token revoke" in refused.stderr
    expired = [row for row in listed.tokens if row.expires_s <= listed.now_s]
    assert len(expired) == OF_USER_MAX, "the newest of them"
    assert site.gsched(site.bob, "token", "revoke", kept[0].row.id).status == 0
    assert site.gsched(site.bob, "token", "create", "--role", "user").status == 0


def test_tokens_outlive_the_head_and_are_hashes_in_its_database(site: Site) -> None:
    token = site.token(site.alice, "read")
    site.cluster.kill_head()
    site.cluster.start_head()

    found = site.ask(token, "GET", "/v1/jobs")
    secret = token.rpartition("_")[2].encode()
    files = [path for path in site.cluster.state_dir.rglob("*") if path.is_file()]

    assert found.status == 200
    assert not [path for path in files if secret in path.read_bytes()]


def test_t23_t70_who_gets_which_token(site: Site) -> None:
    for_bob = ("token", "create", "--role", "user", "--user", "bob")
    by_alice = site.gsched(site.alice, *for_bob)
    operate = site.gsched(site.alice, "token", "create", "--role", "user", "--scope", "operate")
    root = User(name="root", uid=0, gid=0)
    by_root = site.gsched(root, *for_bob)
    of_root = site.gsched(root, "token", "create", "--role", "user")
    submit = site.token(site.alice, "submit")
    by_token = site.ask(submit, "POST", "/v1/user-tokens", {"scope": "submit"})
    nodes = site.ask(submit, "POST", "/v1/tokens", {"role": "node"})

    assert by_alice.status != 0
    assert "only an administrator can create and revoke tokens of others" in by_alice.stderr
    assert operate.status != 0
    assert by_root.status == 0, by_root
    assert "root gets no token" in of_root.stderr
    assert by_token.status == nodes.status == 403


def test_commands_work_by_https(site: Site) -> None:
    home = site.users.home(site.alice)
    settings = home / ".config" / "gsched"
    settings.mkdir(parents=True)
    (settings / "ca.pem").write_text(site.authority)
    (settings / "token").write_text(site.token(site.alice, "submit"))
    (settings / "token").chmod(0o644)
    address = ("--head", f"https://localhost:{site.port}")

    open_to_all = site.users.run(site.cluster, site.alice, "gstat", *address)
    (settings / "token").chmod(0o600)
    for path in (settings / "token", settings, settings.parent):
        os.chown(path, site.alice.uid, site.alice.gid)
    submitted = site.users.run(site.cluster, site.alice, "gsub", *address, "--", "true")
    shown = site.users.run(site.cluster, site.alice, "gstat", *address)
    entered = site.users.run(site.cluster, site.alice, "gshell", *address, "1", "true")
    elsewhere = ("--head", f"https://127.0.0.2:{site.port}")
    wrong = site.users.run(site.cluster, site.alice, "gstat", *elsewhere)
    unnamed = ("--head", f"https://127.1:{site.port}")
    renamed = site.users.run(site.cluster, site.alice, "gstat", *unnamed)
    clear = site.users.run(
        site.cluster, site.alice, "gstat", "--head", f"http://localhost:{site.port}"
    )
    (settings / "ca.pem").unlink()
    untrusted = site.users.run(site.cluster, site.alice, "gstat", *address)

    assert "can be read by other users" in open_to_all.stderr
    assert submitted.status == 0, submitted
    assert "alice" in shown.stdout
    assert "there are no terminals by https://localhost" in entered.stderr, entered
    assert "no head answers" in wrong.stderr or "is not trusted" in wrong.stderr, wrong
    assert "gsched authority certificate" in untrusted.stderr
    assert "use a name of the head's host" in renamed.stderr, renamed
    assert "write https:// in place of http://" in clear.stderr, clear
    wait_until(
        lambda: "the host does not trust the head's certificate" in site.cluster.log("head.log"),
        what="the head's words",
    )
    assert "take this host's certificate" not in site.cluster.log("head.log")
    audit = (site.cluster.state_dir / "audit.log").read_text()
    (record,) = [json.loads(line) for line in audit.splitlines() if '"verb":"submit"' in line]
    assert (record["user"], record["address"]) == ("alice", "127.0.0.1")
    assert record["token"]


def test_no_interactive_job_is_submitted_where_no_terminal_is_served(site: Site) -> None:
    home, address = site.users.home(site.alice), f"https://localhost:{site.port}"
    (home / "ca.pem").write_text(site.authority)
    (home / "ca.pem").chmod(0o644)
    settings = {
        "HOME": str(home),
        "GSCHED_CA": str(home / "ca.pem"),
        "GSCHED_TOKEN": site.token(site.alice, "submit"),
    }
    words = [sys.executable, "-m", "gsched.cli.commands.gsub", "-I"]

    for head in (address, f"{address},{address}"):
        env = {**command_environment(site.cluster.socket, **settings), "GSCHED_HEAD": head}
        sitting = Sitting(words, env=env, cwd=home, user=site.alice.uid)
        assert sitting.code() != 0
        assert b"there are no terminals by https://localhost" in sitting.seen
        sitting.close()

    assert site.users.run(site.cluster, site.alice, "gstat", "1").status != 0


def test_a_host_that_joins_at_the_port_for_programs_is_shown_the_way(site: Site) -> None:
    root = User(name="root", uid=0, gid=0)
    line = json.loads(site.gsched(root, "token", "create", "--role", "node", "--json").stdout)
    config = site.cluster.directory / "joining.toml"

    ran = site.gsched(
        root,
        *("join", "--config", str(config), f"localhost:{site.port}"),
        *str(line["line"]).split()[-2:],
    )

    assert ran.status != 0
    assert "is the head's port for programs, not the one for hosts that join" in ran.stderr
    assert not config.exists()

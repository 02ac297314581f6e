"""Programs at a head that stands by: reads are answered by HTTPS, changes go to the other head."""

import getpass
import http.client
import json
import ssl
from functools import partial
from pathlib import Path

import pytest

from gsched.client import HeadClient
from gsched.jobs import ClusterClient
from gsched.protocol.actions import DeleteJob
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import Ran, run_command
from tests.support.ports import free_port
from tests.support.two_heads import (
    answers,
    heads,
    jobs,
    rules,
    server,
    stand_by,
    standing,
    store,
    submit,
)

__all__ = ["heads", "server", "store"]
pytest.importorskip("psycopg", reason="psycopg is not installed")
pytestmark = [pytest.mark.timeout(180), pytest.mark.xdist_group("postgres")]

USER = "nobody"


def with_https(cluster: Cluster) -> int:
    port = free_port()
    cluster.tls = f'[https]\nlisten = "127.0.0.1:{port}"\nnames = ["localhost"]\n'
    cluster.head_settings["operators"] = [USER]
    return port


def token(cluster: Cluster, *words: str) -> str:
    made = run_command(
        *("gsched", "token", "create", "--role", "user", "--user", USER, "--json", *words),
        head=cluster.socket,
    )
    assert made.status == 0, made.stderr
    return str(json.loads(made.stdout)["token"])


def authority(cluster: Cluster) -> str:
    return run_command("gsched", "authority", "certificate", head=cluster.socket).stdout


def ask(
    port: int, authority: str, token: str, target: str, method: str = "GET"
) -> tuple[http.client.HTTPResponse, str]:
    context = ssl.create_default_context(cadata=authority)
    connection = http.client.HTTPSConnection("localhost", port, context=context)
    connection.request(method, target, headers={"Authorization": f"Bearer {token}"})
    answer = connection.getresponse()
    content = answer.read().decode()
    connection.close()
    return answer, content


def sends_on(port: int, authority: str, token: str) -> bool:
    """Return whether a head sends changes to the one that rules, whose address it has heard."""
    return ask(port, authority, token, "/v1/x", "POST")[0].status == 307


def knows(port: int, authority: str, token: str) -> bool:
    return ask(port, authority, token, "/v1/jobs")[0].status == 200


def audited(cluster: Cluster) -> list[dict[str, object]]:
    path = cluster.state_dir / "audit.log"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def test_reads_are_answered_and_changes_sent_to_the_head_that_rules(
    heads: tuple[Cluster, Cluster], tmp_path: Path
) -> None:
    """With a token that is younger than the second head; one that was revoked counts nowhere."""
    first, second = heads
    ports = [with_https(each) for each in heads]
    first.start_head()
    stand_by(first, second)
    submit(first)
    trusted = authority(first)
    operating, revoked = token(first, "--scope", "operate"), token(first)
    ca, number = tmp_path / "ca.pem", revoked.split("_")[1]
    ca.write_text(trusted)

    def status(text: str) -> int:
        return ask(ports[1], trusted, text, "/v1/jobs")[0].status

    wait_until(
        lambda: status(operating) == status(revoked) == 200, what="the tokens at the second head"
    )
    answer, content = ask(ports[1], trusted, operating, "/v1/jobs")
    assert [row["id"] for row in json.loads(content)["jobs"]] == [1]
    assert f"{first.state_dir} rules: state of" in answer.headers["Gsched-Warning"]
    assert answer.headers["Gsched-Standby"].endswith(str(first.state_dir))
    assert ask(ports[1], trusted, operating, "/v1/openapi.json")[0].status == 200
    assert status("") == 401
    assert run_command("gsched", "token", "revoke", number, head=first.socket).status == 0
    wait_until(lambda: status(revoked) == 401, what="the revocation at the second head")

    wait_until(partial(sends_on, ports[1], trusted, operating), what="where the first head is")
    for target in ("/v1/jobs/actions?x=1", "//other.example/v1/jobs"):
        answer, content = ask(ports[1], trusted, operating, target, "POST")
        assert answer.status == 307
        location = answer.headers["Location"]
        assert location.startswith(f"https://localhost:{ports[0]}/")
        error = json.loads(content)["error"]
        assert error["code"] == "stands_by"
        assert "stands by" in error["message"]
        assert f"https://localhost:{ports[0]}" in error["hint"]

    def command(*words: str) -> Ran:
        env = {"GSCHED_CA": str(ca), "GSCHED_TOKEN": operating}
        return run_command(*words, head=f"https://localhost:{ports[1]}", env=env, cwd=first.jobs)

    listed = command("gstat")
    assert listed.status == 0, listed.stderr
    assert "stands by" in listed.stderr
    deleted = command("gdel", "1")
    assert deleted.status == 0, deleted.stderr
    assert jobs(first) == []

    first.kill_head()
    wait_until(lambda: rules(second), what="the second head to rule")
    wait_until(lambda: answers(second) and not standing(second), what="the second head")
    assert command("gstat").stderr == ""


def test_a_program_with_the_address_of_one_head_finds_the_one_that_rules_through_fail_overs(
    heads: tuple[Cluster, Cluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was sent on to a head that is dead when it asks next; then to the other one, and back."""
    first, second = heads
    ports = [with_https(each) for each in heads]
    first.start_head()
    stand_by(first, second)
    for _ in range(4):
        submit(first)
    trusted, text = authority(first), token(first, "--scope", "operate")
    ca = tmp_path / "ca.pem"
    ca.write_text(trusted)
    wait_until(partial(knows, ports[1], trusted, text), what="the token at the second head")
    wait_until(partial(sends_on, ports[1], trusted, text), what="where the first head is")
    monkeypatch.setenv("GSCHED_CA", str(ca))
    monkeypatch.setenv("GSCHED_TOKEN", text)
    at_first, at_second = (ClusterClient(f"https://localhost:{port}").head for port in ports)

    def deletes(client: HeadClient, job: str) -> bool:
        return client.act(DeleteJob(ids=(job,))).results[0].error is None

    assert deletes(at_second, "1")
    first.kill_head()
    assert deletes(at_second, "2"), "it waits until the second head rules"
    (first.directory / "head.log").write_text("")
    first.start_head(wait=False)
    wait_until(lambda: answers(first) and standing(first), what="the first head to stand by")
    wait_until(partial(sends_on, ports[0], trusted, text), what="where the second head is")
    assert deletes(at_first, "3"), "it is sent on to the second head"
    second.stop_head()
    assert deletes(at_first, "4"), "it waits until the first head rules again"
    assert jobs(first) == []


def test_a_change_that_was_sent_on_is_in_the_audit_log_once(
    heads: tuple[Cluster, Cluster], tmp_path: Path
) -> None:
    """Of the head that rules, with who, from where and the outcome: by HTTPS and by sockets."""
    first, second = heads
    ports = [with_https(each) for each in heads]
    first.head_settings["operator_hosts"] = ["here"]
    first.start_head()
    first.start_node(
        "here", role="login", command_socket=str(first.directory / "commands.sock"), wait=False
    )
    stand_by(first, second)
    for _ in range(4):
        submit(first)
    trusted, text = authority(first), token(first, "--scope", "operate")
    reading = token(first, "--scope", "read")
    ca = tmp_path / "ca.pem"
    ca.write_text(trusted)
    for each in (text, reading):
        wait_until(partial(knows, ports[1], trusted, each), what="the token at the second head")
    wait_until(partial(sends_on, ports[1], trusted, text), what="where the first head is")
    commands = str(first.directory / "commands.sock")
    wait_until(
        lambda: run_command("gstat", head=commands, cwd=first.jobs).status == 0,
        what="the login host",
    )

    def program(shown: str, *words: str) -> Ran:
        env = {"GSCHED_CA": str(ca), "GSCHED_TOKEN": shown}
        return run_command(*words, head=f"https://localhost:{ports[1]}", env=env, cwd=first.jobs)

    before = len(audited(first))
    assert program(text, "gdel", "1").status == 0
    assert program(text, "gdel", "999").status != 0
    assert program(reading, "gdel", "2").status != 0
    both = f"{second.socket},{first.socket}"
    assert run_command("gdel", "3", head=both, cwd=first.jobs).status == 0
    assert run_command("gdel", "4", head=commands, cwd=first.jobs).status == 0

    names = ("user", "token", "address", "host", "status", "done", "refused")
    number = text.split("_")[1]
    found = [tuple(each.get(name) for name in names) for each in audited(first)[before:]]
    assert found == [
        (USER, number, "127.0.0.1", None, 200, ["1"], None),
        (USER, number, "127.0.0.1", None, 200, None, {"999": "unknown_job"}),
        (USER, reading.split("_")[1], "127.0.0.1", None, 403, None, None),
        (getpass.getuser(), None, None, None, 200, ["3"], None),
        (getpass.getuser(), None, None, "here", 200, ["4"], None),
    ]
    assert audited(second) == []


def test_a_change_is_refused_while_nobody_knows_where_the_other_head_is(
    heads: tuple[Cluster, Cluster],
) -> None:
    """HTTPS is off there: the message names the head, and there is no redirect."""
    first, second = heads
    port = with_https(second)
    first.head_settings["operators"] = [USER]
    first.start_head()
    stand_by(first, second)
    trusted, text = authority(first), token(first, "--scope", "submit")
    wait_until(lambda: ask(port, trusted, text, "/v1/jobs")[0].status == 200, what="the token")
    answer, content = ask(port, trusted, text, "/v1/jobs", "POST")

    assert answer.status == 503
    assert "Location" not in answer.headers
    assert f"{first.state_dir} rules" in json.loads(content)["error"]["message"]


def test_a_head_stands_by_although_it_lacks_the_address_of_https(
    heads: tuple[Cluster, Cluster],
) -> None:
    """An address that moves to the head that rules."""
    first, second = heads
    port = with_https(first)
    second.tls = first.tls
    first.start_head()
    stand_by(first, second)

    assert "HTTPS is not served while this head stands by" in second.log("head.log")
    assert f"cannot listen on 127.0.0.1:{port}" in second.log("head.log")
    trusted = authority(first)
    text = token(first)
    first.kill_head()
    wait_until(lambda: rules(second), what="the second head to rule")
    wait_until(lambda: answers(second) and not standing(second), what="the second head")
    assert ask(port, trusted, text, "/v1/jobs")[0].status == 200


def test_the_certificate_is_of_the_new_authority_when_the_old_one_ends(
    heads: tuple[Cluster, Cluster],
) -> None:
    """At both heads, without a restart."""
    first, second = heads
    ports = [with_https(each) for each in heads]
    first.start_head()
    stand_by(first, second)
    text = token(first)
    for action in ("replace", "finish"):
        ran = run_command("gsched", "authority", action, head=first.socket)
        assert ran.status == 0, ran.stderr
    trusted = authority(first)
    assert trusted.count("BEGIN") == 1

    def answered(port: int) -> bool:
        try:
            return ask(port, trusted, text, "/v1/jobs")[0].status == 200
        except OSError:
            return False

    for port in ports:
        wait_until(partial(answered, port), what=f"port {port}")

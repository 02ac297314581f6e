"""The authority of the cluster on two heads: hosts must trust the second one when it rules."""

import shutil
import signal
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from gsched.clock import SystemClock
from gsched.errors import ConfigError
from gsched.pki import issuing
from gsched.pki.files import AUTHORITY, DIRECTORY, NEXT, OWN, TRUSTED
from gschedd.store.journal import Ruler
from gschedd.store.sqlite import DATABASE
from gschedd.store.standby import Follower
from tests.support.certificates import give_certificate
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import Ran, run_command
from tests.support.postgres import Postgres
from tests.support.processes import PATIENCE_S
from tests.support.two_heads import (
    LEASE_S,
    answers,
    give_authority,
    heads,
    jobs,
    join_as_head,
    newest,
    rules,
    server,
    stand_by,
    standing,
    store,
    store_command,
    submit,
)

__all__ = ["heads", "server", "store"]
pytest.importorskip("psycopg", reason="psycopg is not installed")
pytestmark = [pytest.mark.timeout(120), pytest.mark.xdist_group("postgres")]


def make_own_authority(cluster: Cluster) -> Path:
    """Make what gsched init makes; return its directory."""
    pki = cluster.state_dir / DIRECTORY
    pki.mkdir(mode=0o700, exist_ok=True)
    (pki / AUTHORITY).unlink(missing_ok=True)
    assert issuing.make_authority_file(str(pki), "second", 1_700_000_000.0)
    return pki


def noted(cluster: Cluster, store: Postgres) -> None:
    """Wait until the head that rules has left its note, and a second head could see it."""
    wait_until(lambda: b"ruling now" in database(cluster), what="the note")


def database(cluster: Cluster) -> bytes:
    return b"".join(path.read_bytes() for path in cluster.state_dir.glob("gsched.db*"))


def refusal(cluster: Cluster) -> str:
    """Return what a head says that does not stand by."""
    assert cluster.head_process.wait(PATIENCE_S) == 78, cluster.log("head.log")
    said = cluster.log("head.log")
    assert "Traceback" not in said
    return said


def test_a_second_head_with_an_authority_of_its_own_does_not_stand_by(
    heads: tuple[Cluster, Cluster], store: Postgres
) -> None:
    """What the message says to do makes it a head that stands by, and that nodes trust."""
    first, second = heads
    first.start_head()
    first.start_node("n1", cpus=2)
    noted(first, store)
    pki = make_own_authority(second)
    own = (pki / AUTHORITY).read_bytes()
    second.start_head(wait=False)

    said = refusal(second)
    assert not rules(second)
    assert f"the authority in {pki}" in said
    assert "is not that of the head" in said
    assert f"{first.state_dir}, which rules" in said
    assert f"move {pki} away" in said
    assert "gsched join --as-head" in said
    assert (pki / AUTHORITY).read_bytes() == own
    shutil.move(pki, second.directory / "away")
    joined = join_as_head(first, second)
    assert joined.status == 0, joined.stderr
    second.start_head(wait=False)
    wait_until(lambda: answers(second), what="the second head to answer")
    first.kill_head()
    wait_until(lambda: rules(second), what="the second head to rule")
    wait_until((second.state_dir / "gschedd.port").exists, what="its port")


def test_an_authority_that_cannot_be_used_is_named_before_this_head_rules(
    heads: tuple[Cluster, Cluster], store: Postgres
) -> None:
    first, second = heads
    first.start_head()
    give_authority(first, second)
    path = second.state_dir / DIRECTORY / AUTHORITY
    certificate = path.read_bytes().partition(b"-----BEGIN P")[0]
    wait_until(lambda: newest(store) > 1, what="records")
    for content, mode, words in (
        (certificate, 0o600, "it has no certificate and key in PEM"),
        (b"nothing", 0o600, "it has no certificate in PEM"),
        (certificate, 0o644, "other users can read it"),
    ):
        path.write_bytes(content)
        path.chmod(mode)
        second.start_head(wait=False)
        assert words in refusal(second)


def test_a_head_whose_authority_became_another_one_does_not_begin_to_rule(
    heads: tuple[Cluster, Cluster], store: Postgres
) -> None:
    first, second = heads
    first.start_head()
    noted(first, store)
    stand_by(first, second)
    second.head_process.send_signal(signal.SIGSTOP)  # it sees all of this at once
    make_own_authority(second)
    first.kill_head()
    wait_until(lambda: lease_left_s(store) < 0, what="the end of the lease")
    second.head_process.send_signal(signal.SIGCONT)

    said = refusal(second)
    assert not rules(second)
    assert f"{first.state_dir}, which has ruled last" in said
    assert lease_left_s(store) < 0
    first.start_head()
    assert submit(first) == "1"


def lease_left_s(store: Postgres) -> float:
    return float(store.psql("SELECT extract(epoch FROM until_at - now()) FROM gsched_lease"))


def test_the_check_under_the_lease_names_the_head_that_ruled_before(
    heads: tuple[Cluster, Cluster], store: Postgres
) -> None:
    """What it says would else be of this head, which has just taken the lease."""
    from gschedd.store.postgresql import PostgresLog  # psycopg is optional

    first, second = heads
    first.start_head()
    holder = store.psql("SELECT holder FROM gsched_lease")
    own = PostgresLog(store.url, holder="two", lease_s=LEASE_S)
    found: list[tuple[str, bool]] = []

    def check(_: sqlite3.Connection, ruler: Ruler) -> None:
        found.append((ruler.holder, ruler.left_s > 0.0))
        if own.ruler().holder == "two":
            raise ConfigError("stop")

    first.kill_head()
    path = str(second.state_dir / DATABASE)
    with closing(own), pytest.raises(ConfigError):
        Follower(path, own, SystemClock(), check).rule(lambda: time.sleep(0.1))

    assert found[-1] == (holder, False)


def test_the_error_of_a_lost_authority_names_the_remedy(
    heads: tuple[Cluster, Cluster], store: Postgres
) -> None:
    """A backup; without one the cluster goes on with a new authority, as the message says."""
    first, _ = heads
    first.start_head()
    noted(first, store)
    submit(first)
    assert first.stop_head() == 0
    pki = first.state_dir / DIRECTORY
    saved = first.directory / "saved"
    shutil.move(pki, saved)
    first.start_head(wait=False)
    assert "restore it from a backup" in refusal(first)
    make_own_authority(first)
    first.start_head(wait=False)
    said = refusal(first)
    assert "is not that of this head when it ruled last" in said
    assert f"restore {pki} from a backup" in said
    shutil.move(pki, first.directory / "second")
    shutil.copytree(saved, pki)
    first.start_head()
    assert first.stop_head() == 0
    make_own_authority(first)

    for words in (("copy", "--back"), ("copy", "--replace")):
        assert f"gsched store {' '.join(words)}" in said
        ran = store_command(first, *words)
        assert ran.status == 0, ran.stderr
    first.start_head()
    assert jobs(first) == ["1"]


def test_a_head_that_has_the_authority_from_before_follows_the_new_one(
    heads: tuple[Cluster, Cluster], store: Postgres
) -> None:
    """Both of its replacements, also where the first head is killed between note and files."""
    first, second = heads
    first.start_head({"GSCHED_FAIL": "authority.after_note:3:kill"})
    noted(first, store)
    stand_by(first, second)
    kept = second.directory / "kept"
    shutil.copytree(second.state_dir / DIRECTORY, kept)

    def authority(action: str) -> Ran:
        return run_command("gsched", "authority", action, head=first.socket)

    def files(cluster: Cluster, name: str) -> str:
        return (cluster.state_dir / DIRECTORY / name).read_text()

    assert authority("replace").status == 0
    wait_until((second.state_dir / DIRECTORY / NEXT).exists, what="the new authority")
    assert files(second, NEXT) == files(first, NEXT)
    assert authority("finish").status == 0
    wait_until(lambda: files(second, AUTHORITY) == files(first, AUTHORITY), what="the new one")
    assert not (second.state_dir / DIRECTORY / NEXT).exists()
    assert second.head_process.poll() is None
    assert second.stop_head() == 0
    shutil.rmtree(second.state_dir / DIRECTORY)
    shutil.copytree(kept, second.state_dir / DIRECTORY)
    second.start_head(wait=False)
    wait_until(lambda: files(second, AUTHORITY) == files(first, AUTHORITY), what="the new one")
    wait_until(lambda: answers(second), what="the second head to answer")

    assert authority("replace").status != 0  # the head is killed
    assert first.head_process.wait(PATIENCE_S) == -9
    assert not (first.state_dir / DIRECTORY / NEXT).exists()
    wait_until(lambda: rules(second), what="the second head to rule")
    wait_until((second.state_dir / DIRECTORY / NEXT).exists, what="the new authority")
    wait_until(lambda: answers(second) and not standing(second), what="the second head")
    first.start_head(wait=False)
    wait_until((first.state_dir / DIRECTORY / NEXT).exists, what="the first head to follow")
    assert files(first, NEXT) == files(second, NEXT)


def test_heads_of_a_site_with_its_own_certificates_are_compared_by_them(
    heads: tuple[Cluster, Cluster], store: Postgres, tmp_path: Path
) -> None:
    first, second = heads
    first.start_head()  # it tells the cluster's id, which certificates need
    assert first.stop_head() == 0
    pki = first.state_dir / DIRECTORY

    def table(name: str) -> str:
        files = give_certificate(first.state_dir, tmp_path / name, "test", role="head")
        names = {"ca": files.trusted, "certificate": files.certificate, "key": files.key}
        return "[tls]\n" + "".join(f'{key} = "{path}"\n' for key, path in names.items())

    first.tls, second.tls = table("site-one"), table("site-two")
    shutil.copytree(pki, tmp_path / "made")
    for path in (AUTHORITY, OWN, TRUSTED):
        (pki / path).unlink()
    first.start_head()
    wait_until(lambda: "ruling now" in str(database(first)), what="the note")
    second.start_head(wait=False)
    wait_until(lambda: answers(second), what="the second head to answer")
    assert second.stop_head() == 0

    ca = tmp_path / "site-two" / DIRECTORY / TRUSTED
    ca.write_bytes(
        issuing.make_authority("other site", 1_700_000_000.0).partition(b"-----BEGIN P")[0]
    )
    second.start_head(wait=False)
    said = refusal(second)
    assert f"none of the authorities in {ca} is trusted by the head" in said
    assert "let ca, certificate and key in [tls] be of the same authority" in said
    ca.write_text("nothing")
    second.start_head(wait=False)
    assert "it has no certificate in PEM" in refusal(second)


def test_a_second_head_without_the_authority_of_the_first_does_not_stand_by(
    heads: tuple[Cluster, Cluster],
) -> None:
    first, second = heads
    first.start_head()
    second.start_head(wait=False)

    assert second.head_process.wait(PATIENCE_S) == 78
    assert "has no authority" in second.log("head.log")
    assert "gsched token create --role head" in second.log("head.log")


def test_a_second_head_joins_and_takes_over_what_becomes_of_authority_and_hosts(
    heads: tuple[Cluster, Cluster],
) -> None:
    """Tokens, revocations, snapshots of code, and an authority that is replaced meanwhile."""
    first, second = heads
    first.start_head()
    joined = join_as_head(first, second)
    assert joined.status == 0, joined.stderr
    for name in ("pki", "pki/authority.pem"):
        assert (second.state_dir / name).stat().st_mode & 0o077 == 0
    assert "PRIVATE" not in joined.stdout + joined.stderr
    again = join_as_head(first, second)
    assert "there is an authority already" in again.stderr
    assert "made by gsched init" in again.stderr
    second.start_head(wait=False)
    wait_until(lambda: answers(second), what="the second head to answer")
    for words in (
        ("gnodes", "revoke", "n9"),
        ("gsched", "token", "create", "--role", "node", "--name", "n8"),
        ("gsched", "authority", "replace"),
        ("gsched", "authority", "finish"),
        ("gsched", "authority", "replace"),
    ):
        ran = run_command(*words, head=first.socket)
        assert ran.status == 0, (words, ran.stderr)
    (first.jobs / "program.py").write_text("print('from the snapshot')\n")
    run = ("gsub", "-h", "--snapshot", "--", sys.executable, "program.py")
    ran = run_command(*run, head=first.socket, cwd=first.jobs)
    assert ran.status == 0, ran.stderr
    first.kill_head()
    wait_until(lambda: rules(second), what="the second head to rule")
    wait_until(lambda: answers(second) and not standing(second), what="the second head")

    files = [(each.state_dir / "pki" / "next.pem").read_text() for each in heads]
    assert files[0] == files[1]
    files = [(each.state_dir / "pki" / "authority.pem").read_text() for each in heads]
    assert files[0] == files[1]
    assert "taken over" in second.log("head.log")
    assert "n8" in run_command("gsched", "token", "list", head=second.socket).stdout
    assert "node/n9" in second.head.authority().revoked
    second._node_port = int((second.state_dir / "gschedd.port").read_text())
    second.start_node("n1", cpus=2)
    assert run_command("grls", "1", head=second.socket).status == 0
    second.head.wait(["1"], timeout_s=60)
    outputs = [path.read_text() for path in first.jobs.glob("*.o1")]
    assert outputs == ["from the snapshot\n"]

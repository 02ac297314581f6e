"""The umbrella's sub-commands that need no cluster: doctor, init, config, recover, version."""

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gsched.config.load import load_config
from gsched.pki.issuing import make_authority_file
from gsched.protocol.node_rows import NodeList
from gsched.protocol.recover import RecoverCase, RecoverReply
from gsched.version import VERSION
from tests.support.canned_head import CannedHead, canned_head, node, status
from tests.support.commands import command_environment, run_command


@pytest.fixture
def head(tmp_path: Path) -> Iterator[CannedHead]:
    """Return a head in which nothing is wrong."""
    with canned_head(tmp_path / "s") as head:
        head.answers["GET /v1/status"] = status(version=VERSION)
        head.answers["GET /v1/nodes"] = NodeList(server="head", now_s=1.0, nodes=(node(),))
        yield head


# --- doctor ---


def found(output: str) -> dict[str, str]:
    """Return the level of each finding of ``gsched doctor --json``."""
    return {each["subject"]: each["level"] for each in json.loads(output)["findings"]}


def test_a_healthy_head_is_ok(head: CannedHead) -> None:
    """Exit code 0; nothing about the head is worse than a warning."""
    ran = run_command("gsched", "doctor", "--json", head=head.path)

    assert json.loads(ran.stdout)["ok"] is True
    assert found(ran.stdout)["head"] == "ok"
    assert found(ran.stdout)["nodes"] == "ok"
    assert "state directory" not in found(ran.stdout), "this machine's own is no concern here"
    assert ran.status == 0


def test_safe_mode_and_a_lost_node_are_broken(head: CannedHead) -> None:
    """Exit code 1; in words, with what to do."""
    head.answers["GET /v1/status"] = status(
        version=VERSION,
        safe_mode="safe mode (the log was cut); an operator ends it with gsched recover",
    )
    head.answers["GET /v1/nodes"] = NodeList(
        server="head", now_s=1.0, nodes=(node("n7", state="unreachable", reason="no word"),)
    )
    ran = run_command("gsched", "doctor", head=head.path)

    assert ran.status == 1
    assert "no job is started: the log was cut\n" in ran.stdout
    assert "gsched recover" in ran.stdout
    assert "is unreachable: no word" in ran.stdout
    assert "gnodes confirm-dead n7" in ran.stdout
    assert "FAIL  node n7" in ran.stdout


def test_a_mistake_in_a_token_has_a_message_of_one_line(head: CannedHead) -> None:
    """A role that is missing, and words that are too long, for which the head is not asked."""
    for words, told in (
        ((), "missing option '--role': choose from node, login, head, user\n"),
        (("--role", "user", "--label", "x" * 65), "--label has 65 characters, of at most 64\n"),
        (("--role", "user", "--user", "x" * 65), "--user has 65 characters, of at most 64\n"),
    ):
        ran = run_command("gsched", "token", "create", *words, head=head.path)
        assert ran.status == 2
        assert ran.stderr.startswith(f"gsched: {told}"), ran.stderr


def test_what_is_the_matter_with_nodes_is_told_by_the_head(head: CannedHead) -> None:
    """Nobody has to log in on each: room in the spool, failed starts, other versions."""
    rows = (
        node("n1", version=VERSION),
        node("n2", version="0.0.9", problem="32mb are free in the spool"),
        node("n3", version="0.0.9", faults=2),
        node("n4", version=VERSION, faults=1),
    )
    head.answers["GET /v1/nodes"] = NodeList(server="head", now_s=1.0, nodes=rows)
    ran = run_command("gsched", "doctor", head=head.path)

    text = " ".join(ran.stdout.split())
    assert "accepts no new jobs: 32mb are free in the spool" in text
    assert f"2 nodes (n2, n3) run 0.0.9, these commands are {VERSION}" in text
    assert "the last 2 starts of jobs failed, and the node is the cause" in text
    assert "the last start of a job failed, and the node is the cause" in text
    assert "run gsched doctor on n4" in text


def test_no_head_at_all_is_broken(tmp_path: Path) -> None:
    """The doctor does not advise to ask the doctor."""
    ran = run_command("gsched", "doctor", head=tmp_path / "none")

    assert ran.status == 1
    assert f"no head answers at {tmp_path}/none" in ran.stdout
    assert "gsched up" in ran.stdout
    assert "`gsched doctor`" not in ran.stdout


def test_the_files_of_a_stopped_cluster_are_looked_at(tmp_path: Path) -> None:
    """Its authority open to others, its pid file stale, its head down."""
    directory = tmp_path / "c"
    directory.mkdir()
    (directory / "gsched.toml").write_text(
        f'[head]\nsocket = "{directory}/head.sock"\nstate_dir = "{directory}"\n'
    )
    make_authority_file(str(directory / "pki"), "c", 1e9)
    (directory / "pki" / "authority.pem").chmod(0o644)
    (directory / "gschedd.pid").write_text(f"{os.getpid()}\n")
    ran = run_command("gsched", "doctor", "--dir", str(directory), "--json")

    findings = {each["subject"]: each for each in json.loads(ran.stdout)["findings"]}
    assert findings["certificates"]["level"] == "FAIL"
    assert "other users can read it" in findings["certificates"]["text"]
    assert findings["head"]["level"] == "FAIL"
    assert findings["state directory"]["level"] == "ok"
    assert any(
        f"process {os.getpid()} is another program" in each["text"]
        for each in json.loads(ran.stdout)["findings"]
    )
    assert ran.status == 1


@pytest.mark.skipif(os.getuid() != 0, reason="only root's spool must be root's alone")
def test_a_spool_that_another_account_can_change_is_broken(tmp_path: Path) -> None:
    spool = tmp_path / "gsched" / "node"
    spool.mkdir(parents=True)
    config = tmp_path / "gsched.toml"
    config.write_text(f'[head]\nstate_dir = "{tmp_path}/none"\n[node]\nstate_dir = "{spool}"\n')
    asked = ("doctor", "--config", str(config), "--json")
    assert found(run_command("gsched", *asked).stdout)["spool"] == "ok"
    os.chown(spool.parent, 54321, 54321)

    ran = run_command("gsched", *asked)

    assert found(ran.stdout)["spool"] == "FAIL"
    assert f"{spool.parent} belongs to uid 54321, not to root" in ran.stdout


# --- config, init ---


def test_config_check_says_what_a_file_makes(tmp_path: Path) -> None:
    """And is silent about nothing that is wrong."""
    good = tmp_path / "good.toml"
    good.write_text('[head]\nsocket = "/x/s"\n[[queue]]\nname = "long"\n[[queue]]\nname = "b"\n')
    ran = run_command("gsched", "config", "check", str(good))
    assert ran.status == 0
    assert f"{good} is valid" in ran.stdout
    assert "queues: long (balance), b (balance)" in ran.stdout

    document = json.loads(run_command("gsched", "config", "check", str(good), "--json").stdout)
    assert document["config"]["head"]["socket"] == "/x/s"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[head]\nsokcet = "/x"\n', "did you mean 'socket'?"),
        ("[head\n", "line 1"),
        ("[head]\nnode_port = 'x'\n", "int"),
        ('[node]\nmemory = "lots"\n', "invalid size 'lots'"),
        (
            "[head]\nmaster_port_first = 30000\nmaster_port_last = 20000\n",
            "exceeds master_port_last",
        ),
    ],
)
def test_config_check_names_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    """Exit code 78 (sysexits EX_CONFIG)."""
    bad = tmp_path / "bad.toml"
    bad.write_text(text)
    ran = run_command("gsched", "config", "check", str(bad))

    assert ran.status == 78
    assert message in ran.stderr
    assert str(bad) in ran.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '[[queue]]\nname = "a"\n[[queue]]\nname = "b"\npolicy = "fifo"\n',
            "5: [[queue]] policy 'fifo' of queue 'b' differs",
        ),
        ("[head]\nnode_port = 99999999\n", "2: [head] node_port must be an integer from 0"),
        ("[head]\nnode_timeout_s = -1\n", "2: [head] node_timeout_s must be from 0.1"),
        ("[node]\ncpus = -4\n", "2: [node] cpus must be an integer from 0 to 65536, got -4"),
        ("[node]\nheartbeat_s = 0\n", "2: [node] heartbeat_s must be from 0.05"),
        ('[fabric]\ninside = "fast"\n', "2: [fabric] inside: invalid bandwidth 'fast'"),
    ],
)
def test_config_check_and_the_daemons_refuse_the_same_files(
    tmp_path: Path, text: str, message: str
) -> None:
    """It called files good that gschedd refused, or that made gnode poll without a pause."""
    bad = tmp_path / "bad.toml"
    bad.write_text(text)
    checked = run_command("gsched", "config", "check", str(bad))
    daemons = [
        subprocess.run(
            [sys.executable, "-m", module, "--config", str(bad)],
            env=command_environment(), capture_output=True, text=True, timeout=60, check=False,
        )
        for module in ("gschedd.main", "gnode.main")
    ]  # fmt: skip

    assert checked.status == 78
    assert f"{bad}:{message}" in checked.stderr
    for daemon in daemons:
        assert daemon.returncode == 78, daemon
        assert f"{bad}:{message}" in daemon.stderr


def test_config_check_refuses_an_operator_whom_the_machine_does_not_have(tmp_path: Path) -> None:
    """As the head does when it starts."""
    bad = tmp_path / "bad.toml"
    bad.write_text('[head]\noperators = ["root", "no-such-user"]\n')
    ran = run_command("gsched", "config", "check", str(bad))

    assert ran.status == 78
    assert "[head] operators: unknown user 'no-such-user'" in ran.stderr


def test_config_check_warns_of_what_this_machine_does_not_have(tmp_path: Path) -> None:
    """Users and groups that come in without a job, and a right of root."""
    file = tmp_path / "node.toml"
    file.write_text(
        "[node]\nprivate_tmp = true\n[login]\n"
        'allow_users = ["root", "no-such-user"]\nallow_groups = ["root", "no-such-group"]\n'
    )
    ran = run_command("gsched", "config", "check", str(file))
    warned = [line for line in ran.stdout.splitlines() if line.startswith("warning: ")]

    assert ran.status == 0
    *tmp, user, group = warned
    assert "[login] allow_users: unknown user 'no-such-user': nobody logs in by it" in user
    assert "[login] allow_groups: unknown group 'no-such-group'" in group
    assert ["only root can mount" in each for each in tmp] == [True] * (os.geteuid() != 0)


def test_init_makes_a_site_that_can_be_read_back(tmp_path: Path) -> None:
    """Configuration, private authority, directories; a second time all is left as it is."""
    site = tmp_path / "site"
    ran = run_command("gsched", "init", "--dir", str(site), "--name", "atlas")
    assert ran.status == 0

    config = load_config(str(site / "gsched.toml"))
    assert config.head.server_name == "atlas"
    assert config.head.socket == str(site / "run/head.sock")
    assert config.node.no_new_privileges
    assert Path(config.head.state_dir).is_dir()
    path = site / "state/pki/authority.pem"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700

    key = path.read_bytes()
    again = run_command("gsched", "init", "--dir", str(site), "--name", "other")
    assert again.status == 0
    assert "made" not in again.stdout
    assert f"kept {site}/gsched.toml" in again.stdout
    assert f"kept the cluster's authority {path}" in again.stdout
    assert "server_name in " in again.stdout
    assert load_config(str(site / "gsched.toml")).head.server_name == "atlas"
    assert path.read_bytes() == key
    forced = run_command("gsched", "init", "--dir", str(site), "--force", "--json")
    assert json.loads(forced.stdout)["made_authority"] is False
    assert path.read_bytes() == key


def test_init_makes_what_is_missing_where_the_configuration_says(tmp_path: Path) -> None:
    """A file that came with the installation: authority and directories are made as it says."""
    site = tmp_path / "site"
    site.mkdir()
    text = f'[head]\nsocket = "{site}/sockets/s"\nstate_dir = "{site}/jobs"\n'
    (site / "gsched.toml").write_text(text)

    ran = run_command("gsched", "init", "--dir", str(site))

    assert ran.status == 0
    assert (site / "gsched.toml").read_text() == text
    assert stat.S_IMODE((site / "jobs").stat().st_mode) == 0o700
    assert stat.S_IMODE((site / "sockets").stat().st_mode) == 0o755
    assert f"created the cluster's authority {site}/jobs/pki/authority.pem" in ran.stdout

    (site / "jobs/pki/authority.pem").chmod(0o644)
    again = run_command("gsched", "init", "--dir", str(site), "--json")
    document = json.loads(again.stdout)
    assert (document["made"], document["made_authority"]) == ([], False)
    assert any("other users can read" in warning for warning in document["warnings"])


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to others")
def test_init_gives_the_heads_files_to_the_heads_account(tmp_path: Path) -> None:
    """The configuration stays root's: who may change it says what a node runs."""
    site = tmp_path / "site"

    assert run_command("gsched", "init", "--dir", str(site), "--user", "daemon").status == 0

    owners = {
        name: (site / name).owner()
        for name in ("state/pki/authority.pem", "state/pki", "state", "run")
    }
    assert owners == dict.fromkeys(owners, "daemon")
    assert {(site / name).owner() for name in (".", "gsched.toml")} == {"root"}


def test_init_names_an_account_that_is_not_there(tmp_path: Path) -> None:
    ran = run_command("gsched", "init", "--dir", str(tmp_path / "site"), "--user", "no-such-user")

    assert ran.status == 156
    assert "unknown account 'no-such-user'" in ran.stderr
    assert not (tmp_path / "site").exists()


# --- recover, version, completion ---


def test_recover_shows_why_and_ends_it_only_when_told(head: CannedHead) -> None:
    """Exit code 1 while nothing is dispatched."""
    head.answers["GET /v1/status"] = status(safe_mode="12 jobs are missing")
    head.answers["GET /v1/recover"] = RecoverReply(
        safe_mode="12 jobs are missing",
        nodes=("n1",),
        missing=("n2",),
        first_unknown=7,
        next_job=1042,
        cases=(
            RecoverCase(
                job=5,
                kind="finished",
                attempt=1,
                nodes=("n1",),
                user="alice",
                name="train",
                text="exit code 3",
            ),
            RecoverCase(job=9, kind="adopted", nodes=("n1",), user="bob", script="ab" * 32),
            RecoverCase(job=6, kind="held", user="bob", name="x\x1b[31m", text="may have run"),
        ),
    )
    ran = run_command("gsched", "recover", head=head.path)
    assert ran.status == 1
    assert "12 jobs are missing" in ran.stdout
    assert "5 alice train on n1: exit code 3" in ran.stdout
    assert "9 bob (script abababababab) on n1" in ran.stdout
    assert "\x1b" not in ran.stdout
    assert "Not connected: n2" in ran.stdout
    assert "next job gets number 1042" in ran.stdout
    assert [method for method, _, _ in head.asked] == ["GET", "GET"]

    head.answers["POST /v1/recover"] = status()
    ran = run_command("gsched", "recover", "--accept", head=head.path)
    assert [path for method, path, _ in head.asked if method == "POST"] == ["/v1/recover"]
    assert ran.status == 1  # this head says safe mode still: the command believes the head


def test_recover_on_a_healthy_head_does_nothing(head: CannedHead) -> None:
    """Also with --accept."""
    ran = run_command("gsched", "recover", "--accept", head=head.path)

    assert ran.status == 0
    assert "not in safe mode" in ran.stdout
    assert all(method == "GET" for method, _, _ in head.asked)


def test_version_names_all_that_are_at_work(head: CannedHead, tmp_path: Path) -> None:
    """A head that does not answer is no reason to fail."""
    ran = run_command("gsched", "version", "--json", head=head.path)
    versions = json.loads(ran.stdout)
    assert versions["gsched"] == VERSION == versions["head"]
    assert versions["api"] == "1"

    ran = run_command("gsched", "version", head=tmp_path / "none")
    assert ran.status == 0
    assert "head none (no head answers" in ran.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_covers_every_command(shell: str) -> None:
    """And the shell itself can read it, where it is here."""
    ran = run_command("gsched", "completion", shell)

    assert ran.status == 0
    for name in ("gsub", "gstat", "gdel", "gnodes", "ghist", "gsched"):
        assert f"_{name.upper()}_COMPLETE" in ran.stdout
    if shutil.which(shell):
        checked = subprocess.run(
            [shell, "-n"], input=ran.stdout, text=True, capture_output=True, check=False
        )
        assert (checked.returncode, checked.stderr) == (0, "")


def test_the_help_of_completion_keeps_its_lines() -> None:
    """One for each shell, without click's own mark."""
    ran = run_command("gsched", "completion", "--help")

    assert "\\b" not in ran.stdout
    lines = [line.strip() for line in ran.stdout.splitlines()]
    assert "bash: source <(gsched completion bash)" in lines
    assert "fish: gsched completion fish | source" in lines


@pytest.mark.parametrize("arguments", [[], ["config"]])
def test_a_group_alone_prints_its_help(arguments: list[str]) -> None:
    """As it is, without the command's name before each line."""
    ran = run_command("gsched", *arguments)

    assert (ran.status, ran.stdout) == (2, "")
    assert ran.stderr.startswith("Usage: gsched")
    assert "gsched: " not in ran.stderr


def test_up_and_down_refuse_nonsense_before_they_write(tmp_path: Path) -> None:
    """No directory is made for a request that cannot be."""
    missing = tmp_path / "none"
    assert run_command("gsched", "up", "--dir", str(missing), "--nodes", "0").status == 2
    assert not missing.exists()
    assert run_command("gsched", "up", "--dir", str(missing), "--memory", "lots").status == 2
    ran = run_command("gsched", "down", "--dir", str(missing))
    assert ran.status == 78
    assert "no cluster here" in ran.stderr
    long = run_command("gsched", "up", "--dir", "/" + "d" * 120)
    assert long.status == 2
    assert "shorter" in long.stderr
    if os.geteuid() == 0:
        return  # root may write anywhere
    assert run_command("gsched", "up", "--dir", "/proc/gsched").status == 73

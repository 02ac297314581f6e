"""Commands on a machine that reaches the head through ssh only, by a real sshd on loopback."""

import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.cluster import Cluster
from tests.support.commands import NOWHERE, ROOT, Ran, command_environment, run_command
from tests.support.ptys import Sitting
from tests.support.sshd import Sshd, serving
from tests.support.users import User, made_users

pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]


class Site(NamedTuple):
    """A cluster, and an sshd on the head's machine; commands here are on a laptop."""

    cluster: Cluster
    sshd: Sshd
    alice: User
    laptop: Path

    @property
    def address(self) -> str:
        return f"ssh://alice@127.0.0.1:{self.sshd.port}"

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of a command on the laptop."""
        words = self.sshd.options()
        at = words.index("-p")
        there = {"PYTHONPATH": ROOT, "GSCHED_HEAD": self.cluster.socket, "GSCHED_CONFIG": NOWHERE}
        relay = ["env", *(f"{name}={value}" for name, value in there.items()), sys.executable]
        return command_environment(
            self.address,
            GSCHED_SSH=shlex.join(["ssh", *words[:at], *words[at + 2 :]]),
            GSCHED_RELAY=shlex.join([*relay, "-m", "gsched.cli.commands.gsched", "relay"]),
            XDG_RUNTIME_DIR=str(self.laptop),
            HOME=str(self.laptop),
            **more,
        )

    def run(self, name: str, *words: str, **more: str) -> Ran:
        """Run a command on the laptop."""
        environment = {**self.environment(), **more}
        done = subprocess.run(
            [sys.executable, "-m", f"gsched.cli.commands.{name}", *words],
            env=environment, cwd="/tmp", stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        return Ran(status=done.returncode, stdout=done.stdout, stderr=done.stderr)


@pytest.fixture
def site(process_marker: str) -> Iterator[Site]:
    with (
        tempfile.TemporaryDirectory(prefix="gs-") as short,
        made_users(Cluster, process_marker) as (cluster, users),
    ):
        alice = users.add("alice")
        users.home(alice)
        cluster.node_tables = '[login]\nallow_users = ["alice"]\n'
        top = cluster.directory.parent / "sshd"
        with serving(users, top, cluster.directory / "n1.toml", process_marker) as sshd:
            cluster.start_head()
            cluster.start_node("n1")
            site = Site(cluster, sshd, alice, Path(short))
            yield site
            for control in Path(short).glob("gsched-ssh/*"):
                subprocess.run(
                    ["ssh", "-o", f"ControlPath={control}", "-O", "exit", "x"],
                    capture_output=True, check=False,
                )  # fmt: skip


def test_commands_reach_the_head_through_ssh(site: Site) -> None:
    """As the user of the other side, by one connection of ssh that stays for the next ones."""
    submitted = site.run("gsub", "-d", str(Path("/tmp")), "--", "sleep", "600")
    listed = site.run("gstat", "1")
    controls = list((site.laptop / "gsched-ssh").glob("*"))
    site.cluster.wait_for_start(1)
    entered = site.run("gshell", "1", "id", "-un")
    given = site.run("gstat", "--head", site.address, GSCHED_HEAD="/nowhere")

    assert submitted.status == 0, submitted
    assert "alice" in listed.stdout
    assert len(controls) == 1
    assert (entered.status, entered.stdout.strip()) == (0, "alice"), entered
    assert given.status == 0, given


def test_terminals_work_through_ssh(site: Site) -> None:
    sitting = Sitting(
        [sys.executable, "-m", "gsched.cli.commands.gsub", "-I", "-d", "/tmp", "-S", "/bin/sh"],
        env={**site.environment(), "TERM": "dumb"},
        cwd="/tmp",
    )
    sitting.until("ready on n1")
    sitting.type("id -u\n")
    sitting.match(rf"{site.alice.uid}\r\n")
    sitting.type("exit 3\n")
    assert sitting.code() == 3
    sitting.close()


def test_the_users_own_configuration_names_the_head(site: Site) -> None:
    own = site.laptop / ".config" / "gsched" / "gsched.toml"
    own.parent.mkdir(parents=True)
    own.write_text(f'[head]\nsocket = "{site.address}"\n')

    ran = site.run("gstat", GSCHED_HEAD="", GSCHED_CONFIG="")

    assert ran.status == 0, ran


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"GSCHED_HEAD": "ssh://no-such-host.invalid"}, "there is no host of this name"),
        ({"GSCHED_HEAD": "ssh://bob@127.0.0.1:{port}"}, "it refuses your login"),
        ({"GSCHED_HEAD": "ssh://127.0.0.1:1"}, "no sshd answers there"),
        ({"GSCHED_RELAY": "no-such-gsched relay"}, "there is no gsched on 127.0.0.1"),
        ({"GSCHED_RELAY": "echo gsched-relay 1 0.0.9 >&2"}, "is version 0.0.9, here it is"),
        ({"GSCHED_RELAY": "env GSCHED_HEAD=/no {relay}"}, "on 127.0.0.1: no head answers at /no"),
        ({"GSCHED_SSH": "/no/ssh"}, "cannot run ssh, which reaches 127.0.0.1"),
    ],
)
def test_a_failed_connection_has_its_reason_in_a_sentence(
    site: Site, changes: dict[str, str], words: str
) -> None:
    relay = site.environment()["GSCHED_RELAY"].replace(f"GSCHED_HEAD={site.cluster.socket}", "")
    filled = {
        name: value.replace("{port}", str(site.sshd.port)).replace("{relay}", relay)
        for name, value in changes.items()
    }

    ran = site.run("gstat", **filled)

    assert ran.status == 69, ran
    assert words in " ".join(ran.stderr.split())
    assert "hint:" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("address", ["ssh://", "ssh://-oProxyCommand=x", "ssh://a b", "ssh://h:0"])
def test_an_address_that_ssh_would_misread_is_refused(address: str) -> None:
    ran = run_command("gstat", head=address)

    assert ran.status == 78
    assert "invalid head address" in ran.stderr

"""Whose terminals users reach: their own, and nobody becomes root by one."""

import sys
from collections.abc import Iterator

import psutil
import pytest

from tests.support.cluster import Cluster
from tests.support.commands import command_environment, run_command
from tests.support.ptys import Sitting
from tests.support.users import User, Users, made_users

pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]

IDS = "id -u; id -g; grep -E 'Cap(Prm|Eff)' /proc/self/status | tr -s '\\t\\n' '  '; echo"


@pytest.fixture
def site(process_marker: str) -> Iterator[tuple[Cluster, Users]]:
    with made_users(Cluster, process_marker) as made:
        yield made


def sit(cluster: Cluster, users: Users, user: User | None, name: str, *words: str) -> Sitting:
    """Start a command of gsched at a terminal, as a user or (None) as root."""
    return Sitting(
        [sys.executable, "-m", f"gsched.cli.commands.{name}", *words],
        env=command_environment(cluster.socket, TERM="dumb"),
        cwd="/tmp" if user is None else users.home(user),
        user=None if user is None else user.uid,
    )


def test_only_the_owner_has_a_terminal_in_a_job(site: tuple[Cluster, Users]) -> None:
    """Another user is refused, an operator by default, root not; everybody's shell is the owner."""
    cluster, users = site
    alice, bob, olga = (users.add(name) for name in ("alice", "bob", "olga"))
    cluster.head_settings["operators"] = ["olga"]
    cluster.start_head()
    cluster.start_node("n1", cpus=8)
    opened: list[Sitting] = []

    def at_terminal(user: User | None, name: str, *words: str) -> Sitting:
        opened.append(sit(cluster, users, user, name, *words))
        return opened[-1]

    shell = at_terminal(alice, "gsub", "-I", "-S", "/bin/sh")
    shell.until("ready on n1")
    shell.type(f"{IDS}; echo pid=$$\n")
    shell.match(rf"{alice.uid}\r\n{alice.gid}\r\nCapPrm: 0+ CapEff: 0+")
    keeper = psutil.Process(int(shell.match(r"pid=(\d+)")[1])).parent()
    assert keeper is not None
    assert set(keeper.uids()) == {alice.uid}

    for name, user in (("bob", bob), ("olga", olga)):
        attaching = at_terminal(user, "gattach", "1")
        assert attaching.code() == 159, name
        assert "belongs to alice" in attaching.text
        entering = users.run(cluster, user, "gshell", "1", "id", "-u")
        assert (entering.status, entering.stdout) == (159, ""), name
        assert "belongs to alice" in entering.stderr
    own = users.run(cluster, alice, "gshell", "1", "sh", "-c", IDS)
    assert own.stdout.split()[:2] == [str(alice.uid), str(alice.gid)]
    assert set("".join(own.stdout.split()[3::2])) == {"0"}
    by_root = run_command("gshell", "1", "id", "-u", head=cluster.socket)
    assert by_root.stdout == f"{alice.uid}\n"

    cluster.kill_head()
    cluster.head_settings["operators_enter_jobs"] = True
    cluster.start_head()
    cluster.wait_for_node("n1")
    by_operator = users.run(cluster, olga, "gshell", "1", "id", "-u")
    assert by_operator.stdout == f"{alice.uid}\n"
    assert users.run(cluster, bob, "gshell", "1", "true").status == 159
    of_root = run_command("gsub", "--", "sleep", "600", head=cluster.socket, cwd=cluster.jobs)
    assert of_root.status == 0, of_root.stderr
    cluster.wait_for_start(2)
    refused = users.run(cluster, olga, "gshell", "2", "id", "-u")
    assert (refused.status, refused.stdout) == (159, "")
    assert "belongs to root, whom no operator becomes" in refused.stderr

    shell.until("connected again")
    shell.type("exit 3\n")
    assert shell.code() == 3
    for each in opened:
        each.close()


def test_the_way_to_a_terminal_is_closed_to_its_own_user(site: tuple[Cluster, Users]) -> None:
    """The keeper's socket lies where the user cannot go, and its process cannot be traced."""
    cluster, users = site
    alice = users.add("alice")
    cluster.start_head()
    cluster.start_node("n1", cpus=8)
    shell = sit(cluster, users, alice, "gsub", "-I", "-S", "/bin/sh")
    shell.until("ready on n1")
    socket = cluster.node_dir("n1") / "attempts" / "1.1" / "tty"
    assert socket.is_socket()
    shell.type(f"ls {socket.parent} || echo clo''sed; ls /proc/$PPID/fd || echo hid''den\n")
    shell.until("closed")
    shell.until("hidden")
    shell.type("exit\n")

    assert shell.code() == 0
    shell.close()

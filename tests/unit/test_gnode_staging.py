"""How files are copied for a job: by cp where they are on this machine, else by a command."""

import socket

import pytest
from msgspec import structs

from gnode.core.staging import Staging, StagingPlace, plan_staging
from gnode.core.task import Account
from gnode.hw.machine import own_names
from gsched.model.job import StagedFile
from tests.support.agent_driver import order
from tests.support.world import World, node

ACCOUNT = Account(user="alice", uid=1000, gid=1000, home="/home/alice", shell="/bin/sh")


def command_for(host: str, staging: Staging, remote: str = "/d/in") -> tuple[str, ...]:
    """Return the command that copies a file of a host to node n1."""
    world = World(node("n1"))
    spec = world.head.state.jobs[world.submit()].spec
    spec = structs.replace(spec, stage_in=(StagedFile(local="in", host=host, remote=remote),))
    place = StagingPlace(ACCOUNT, staging, "n1", "/tmp/7.1")
    (command,) = plan_staging(order(spec=spec), place).stage_in
    return command


@pytest.mark.parametrize(
    "host", ["n1", "N1", "localhost", "vm", "VM", "vm.lab.edu.", "10.0.0.7", "[fe80::1]"]
)
def test_files_of_this_machine_are_copied_without_a_network(host: str) -> None:
    """Whatever it is called: by the node's name, its host names, or an address."""
    names = frozenset({"vm", "vm.lab.edu", "10.0.0.7", "fe80::1"})

    assert command_for(host, Staging(own_names=names)) == (
        *("cp", "-rpHT", "--"),
        *("/d/in", "/home/alice/in"),
    )


@pytest.mark.parametrize("remote", ["/home/alice/in", "in", "./in", "/home/alice//x/../in"])
def test_a_file_is_not_copied_onto_itself(remote: str) -> None:
    """With shared home directories both names are often one path, and cp would fail."""
    assert command_for("n1", Staging(), remote)[0] == "stat"
    assert command_for("n2", Staging(), remote)[0] == "scp"


@pytest.mark.parametrize("host", ["vm2", "lab.edu", "10.0.0.70", "n2"])
def test_files_of_another_machine_are_not(host: str) -> None:
    names = frozenset({"vm", "vm.lab.edu", "10.0.0.7"})

    assert command_for(host, Staging(own_names=names))[0] == "scp"


def test_a_machine_knows_its_names_and_addresses() -> None:
    names = own_names()

    assert {socket.gethostname().lower(), "127.0.0.1"} <= names
    assert "" not in names


@pytest.mark.parametrize(
    ("local", "path"),
    [
        ("$TMPDIR/res", "/scratch/1.1/res"),
        ("${TMPDIR}/a/$TMPDIR", "/scratch/1.1/a/$TMPDIR"),
        ("$TMPDIR", "/scratch/1.1"),
        ("$TMPDIRS/res", "/home/alice/$TMPDIRS/res"),
        ("$HOME/res", "/home/alice/$HOME/res"),
        ("d/$TMPDIR", "/home/alice/d/$TMPDIR"),
    ],
)
def test_the_scratch_directory_of_the_job_is_known_at_the_begin_of_a_path(
    local: str, path: str
) -> None:
    """Of the path on the node only; no other variable is."""
    world = World(node("n1"))
    spec = world.head.state.jobs[world.submit()].spec
    file = StagedFile(local=local, host="far", remote="$TMPDIR/x")
    spec = structs.replace(spec, stage_in=(file,), stage_out=(file,))
    launch = order(spec=spec)

    plan = plan_staging(launch, StagingPlace(ACCOUNT, Staging(), "n1", "/scratch/1.1"))
    (before,), (after,) = plan.stage_in, plan.stage_out

    assert after == ("scp", "-Brp", path, "far:$TMPDIR/x")
    assert before == ("scp", "-Brp", "far:$TMPDIR/x", path)

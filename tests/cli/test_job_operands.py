"""What names a job on the command line: the same for every command, on a real head."""

import importlib

import click
import pytest

from gsched.cli.running import status_of
from gsched.client import new_job
from gsched.errors import UnknownJobError
from tests.support.cluster import Cluster
from tests.support.warm import Lender

pytestmark = pytest.mark.timeout(120)

#: Every command that takes job ids, in each of its ways to use them.
COMMANDS = (
    ("gdel",),
    ("gdel", "--dry-run"),
    ("gdel", "-W", "force"),
    ("ghold",),
    ("ghold", "-h", "n"),
    ("grls",),
    ("gsig",),
    ("gsig", "-s", "0"),
    ("grerun", "-f"),
    ("galter", "-p", "7"),
    ("gmigrate",),
    ("gmigrate", "--wait"),
    ("gpeek",),
    ("gpeek", "-e", "-n", "3"),
    ("gwait", "--timeout", "0.2"),
    ("gstat",),
    ("gstat", "-f"),
    ("gstat", "--why"),
    ("gstat", "--json"),
    ("ghist",),
    ("ghist", "--predictions"),
)
#: Operands made of the ids of two jobs, and a word of the message.
REFUSED = (
    ("{0}.otherhead", "belongs to 'otherhead'"),
    ("{0}.test@otherhead", "belongs to 'otherhead'"),
    ("{0}@otherhead", "belongs to 'otherhead'"),
    ("{0}.tes", "belongs to 'tes'"),
    ("{0}..{1}", "is a range"),
    ("{0}-{1}", "is a range"),
    ("{0},{1}", "is a list"),
    ("{0}[3]", "Unknown Job Id {0}[3]"),
    ("{0}[*].test", "no indices"),
    ("{0}[3].otherhead", "belongs to 'otherhead'"),
    ("00{0}", "starts with 0"),
    ("+{0}", "Unknown Job Id"),
    (" {0}", "contains blanks"),
    ("{0} {1}", "contains blanks"),
    ("٣", "ASCII"),
    ("{0}.", "Unknown Job Id"),
    ("{0}" + "0" * 18, "Unknown Job Id"),
    ("", "job id is empty"),
)


def run(name: str, *arguments: str) -> int:
    """Run a command in this process: there are many, and starting them is not what is tested."""
    command = getattr(importlib.import_module(f"gsched.cli.commands.{name}"), name)
    assert isinstance(command, click.Command)
    return status_of(command, arguments)


@pytest.fixture
def cluster(warm: Lender) -> Cluster:
    return warm.head_only()


@pytest.fixture
def jobs(cluster: Cluster) -> tuple[int, int]:
    """Return the ids of two held jobs."""
    held = [
        new_job(name=f"job{each}", workdir="/", script="exit 0", holds=("user",))
        for each in range(2)
    ]
    first, second = (result.id for result in cluster.head.submit(held).results)
    return first, second


def test_nothing_but_an_id_of_this_head_names_a_job(
    jobs: tuple[int, int], cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another head's job, a range, an array: refused by every command, and no job is touched."""
    before = cluster.head.jobs().jobs

    for name, *options in COMMANDS:
        for form, word in REFUSED:
            operand = form.format(*jobs)
            status = run(name, "--head", str(cluster.socket), *options, "--", operand)
            said = capsys.readouterr()

            assert status == UnknownJobError.exit_code, (name, operand, said)
            assert word.format(*jobs) in said.err, (name, operand)
            assert "job0" not in said.out, (name, operand)  # its name
    assert cluster.head.jobs().jobs == before


@pytest.mark.parametrize("form", ["{0}", "{0}.test", "{0}.TEST", "{0}@test", "{0}.test@test"])
def test_an_id_is_accepted_as_it_is_printed(
    form: str, jobs: tuple[int, int], cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """And without the head's name, and in Torque's way."""
    for name, *options in COMMANDS:
        if name == "gdel" and "--dry-run" not in options:
            continue
        run(name, "--head", str(cluster.socket), *options, form.format(*jobs))
        said = capsys.readouterr()
        assert "Unknown Job Id" not in said.err, (name, said.err)
        assert "belongs to" not in said.err, (name, said.err)


def test_a_wrong_operand_does_not_keep_the_others_from_being_done(
    jobs: tuple[int, int], cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """As POSIX has it for qdel."""
    status = run("gdel", "--head", str(cluster.socket), f"{jobs[0]}..{jobs[1]}", str(jobs[1]))

    assert status == UnknownJobError.exit_code
    assert "is a range" in capsys.readouterr().err
    assert [row.id for row in cluster.head.jobs().jobs] == [jobs[0]]


def test_one_job_named_twice_is_shown_once(
    jobs: tuple[int, int], cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """17 and 17.server are the same job."""
    assert run("gstat", "--head", str(cluster.socket), str(jobs[0]), f"{jobs[0]}.test") == 0
    assert capsys.readouterr().out.count(f"{jobs[0]}.test") == 1

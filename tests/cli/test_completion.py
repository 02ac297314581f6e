"""Shell completion: real shells at a terminal, and what the commands answer them."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gsched.client import new_job
from gsched.protocol import actions as a
from gsched.protocol.node_rows import NodeList
from tests.support.canned_head import canned_head, node
from tests.support.cluster import Cluster
from tests.support.commands import command_environment
from tests.support.shells import ALL_MATCHES, TAB, shell_with_completion

pytestmark = pytest.mark.timeout(120)
SHELLS = ("bash", "zsh", "fish")


def answer(command: str, line: str, *, head: Path | str = "", word: str | None = None) -> list[str]:
    """Return kind and value of each candidate that a command gives for a line."""
    module = "gschedd.sim.cli" if command == "gsim" else f"gsched.cli.commands.{command}"
    environment = command_environment(
        head or "/nonexistent/head.sock",
        COMP_LINE=line,
        **{f"_{command.upper()}_COMPLETE": "complete"},
    )
    if word is not None:
        environment["COMP_WORD"] = word
    done = subprocess.run(
        [sys.executable, "-m", module],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    return [" ".join(row.split("\t")[:2]) for row in done.stdout.splitlines()]


# --- real shells ---


@pytest.mark.parametrize("name", SHELLS)
def test_a_tab_completes_the_word_and_runs_nothing(name: str, tmp_path: Path) -> None:
    """Options, sub-commands, states and resources, in the order of a day's work."""
    (tmp_path / "train.sh").write_text("echo hi\n")
    with (
        canned_head(tmp_path / "s") as head,
        shell_with_completion(name, tmp_path, head=str(head.path)) as shell,
    ):
        assert shell.line_after(f"gsub --wal{TAB}") == "gsub --walltime"
        assert shell.line_after(f"gdel --mes{TAB}") == "gdel --message"
        assert shell.line_after(f"gsched doc{TAB}") == "gsched doctor"
        assert shell.line_after(f"gstat -s runn{TAB}") == "gstat -s running"
        assert shell.line_after(f"gstat --state=runn{TAB}") == "gstat --state=running"
        assert shell.line_after(f"gsub -l wall{TAB}1:00,nodes=2:gp{TAB}4").endswith(
            "-l walltime=1:00,nodes=2:gpus=4"
        )
        assert shell.line_after(f"gsub tr{TAB}") == "gsub train.sh"
        assert shell.line_after(f"gsim rep{TAB}") == "gsim replay"
        assert shell.line_after(f"gdel --nosuch{TAB}") == "gdel --nosuch"

        assert not re.search(r"gsub:|gdel:|gsched:|Traceback|rror", shell.seen), shell.seen
    assert head.asked == []


def test_bash_lists_all_candidates(tmp_path: Path) -> None:
    """Each once; behind two dashes the programs on the user's PATH."""
    with shell_with_completion("bash", tmp_path) as shell:
        options = shell.line_after(f"gsub --wa{ALL_MATCHES}").split()[1:]
        assert options == ["--wait", "--watch", "--walltime"]

        assert shell.line_after(f"gsub -- gsch{TAB}") == "gsub -- gsched"


@pytest.mark.parametrize("name", SHELLS)
def test_job_ids_and_node_and_queue_names_come_from_the_head(
    name: str, tmp_path: Path, cluster: Cluster
) -> None:
    """A job that has ended is not offered for deletion."""
    cluster.queues = '[[queue]]\nname = "long"\n[[queue]]\nname = "express"\n'
    cluster.start_head()
    cluster.start_node("rack7-node1", cpus=1)
    jobs = [new_job(name=f"job{each}", workdir="/", script="sleep 60") for each in range(2)]
    results = cluster.head.submit(jobs).results
    first, second = (result.id for result in results)
    cluster.head.act(deletion(second))
    cluster.head.wait([second], timeout_s=30)

    with shell_with_completion(name, tmp_path, head=str(cluster.socket)) as shell:
        assert shell.line_after(f"gdel {TAB}") == f"gdel {first}"
        assert shell.line_after(f"gnodes drain rack{TAB}") == "gnodes drain rack7-node1"
        assert shell.line_after(f"gsub -q exp{TAB}") == "gsub -q express"
        assert shell.line_after(f"gmgr delete lo{TAB}") == "gmgr delete long"
        assert shell.line_after(f"gsched tasks run ch{TAB}") == "gsched tasks run check_rows"

    assert len(cluster.head.jobs().jobs) == 1  # and nothing was submitted


def test_a_rerun_is_offered_what_has_failed(cluster: Cluster) -> None:
    """In the place of elements their array, once; without the option what runs."""
    cluster.start_head()
    cluster.start_node("n1", cpus=4)
    fails = new_job(name="fails", workdir="/tmp", script="exit 1", array="0-2")
    single = new_job(name="fails", workdir="/tmp", script="exit 1")
    works = new_job(name="works", workdir="/tmp", script="true")
    cluster.head.submit([fails, single, works])
    cluster.head.wait([1, 2, 3], timeout_s=60)

    assert sorted(answer("grerun", "grerun --failed ", head=cluster.socket)) == [
        "plain 1",
        "plain 2",
    ]
    assert answer("grerun", "grerun ", head=cluster.socket) == []


def deletion(job: int) -> a.DeleteJob:
    return a.DeleteJob(ids=(str(job),))


# --- the answers ---


@pytest.mark.parametrize(
    ("command", "line", "expected"),
    [
        ("gsub", "gsub --torchrun tr", ["file tr"]),
        ("gsub", "gsub --torchrun train.py --l", []),
        ("gsub", "gsub -- python tr", ["file tr"]),
        ("gsub", "gsub -o ", ["file "]),
        ("gsub", "gsub --nodes ", []),
        ("gsub", "gsub -l nodes=2:", ["open nodes=2:ppn=", "open nodes=2:gpus="]),
        ("gsub", "gsub 'unfinished --wal", ["file unfinished --wal"]),
        ("gstat", "gstat -s R", ["plain R"]),
        ("gstat", "gstat -s held,ru", ["plain held,running"]),
        ("gsig", "gsig -s USR", ["plain USR1", "plain USR2"]),
        ("gsched", "gsched ver", ["plain version"]),
        ("gsched", "gsched up --gpu-", ["plain --gpu-type"]),
        ("gsched", "gsched nosuch --x", []),
        ("gsched", "gsched --vers", ["plain --version"]),
        ("gsched", "gsched config check /etc/x", ["file /etc/x"]),
        ("gsched", "gsched completion f", ["plain fish"]),
        ("gsim", "gsim run --se", ["plain --seed"]),
        ("gnodes", "gnodes dr", ["plain drain"]),
        ("gmgr", "gmgr se", ["plain set"]),
        ("gmgr", "gmgr set night allow_", ["open allow_users=", "open allow_groups="]),
        ("gmgr", "gmgr unset night deny", ["plain deny_users"]),
        ("gdel", "gdel 1", []),  # no head: silent
    ],
)
def test_each_place_has_its_candidates(command: str, line: str, expected: list[str]) -> None:
    """The whole word is given, the kind tells the shell what to do."""
    assert answer(command, line) == expected


def test_bash_gets_only_the_part_that_it_replaces() -> None:
    """It breaks words at = and :, the other shells do not."""
    assert answer("gstat", "gstat --state=ru", word="ru") == ["plain running"]
    assert answer("gstat", "gstat --state=ru") == ["plain --state=running"]
    assert answer("gsub", "gsub -l nodes=2:gp", word="gp") == ["open gpus="]


def test_a_head_that_never_answers_costs_only_the_candidates(tmp_path: Path) -> None:
    """It accepts the connection and stays silent; without a limit this would take a minute."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        assert answer("gdel", "gdel 1", head=tmp_path / "s") == []
        assert answer("gdel", "gdel --dry", head=tmp_path / "s") == ["plain --dry-run"]
        assert answer("gnodes", "gnodes res", head=tmp_path / "s") == ["plain resume"]


def test_no_name_from_the_head_can_become_a_command(tmp_path: Path) -> None:
    """Shells put candidates on the command line without quotation marks."""
    with canned_head(tmp_path / "s") as head:
        names = ("n1", "$(reboot)", "n2;reboot", "`x`", "n 3", "*")
        head.answers["GET /v1/nodes"] = NodeList(
            server="head", now_s=1.0, nodes=tuple(node(name) for name in names)
        )

        assert answer("gnodes", "gnodes drain ", head=head.path) == ["plain n1"]


@pytest.mark.parametrize("request_", ["complete", "bash_complete", "source", "nonsense"])
def test_a_command_that_is_asked_for_completion_never_runs(request_: str, tmp_path: Path) -> None:
    """Also by a script of an older version, which asks in other words."""
    with canned_head(tmp_path / "s") as head:
        for name in ("gsub", "gdel"):
            environment = command_environment(
                head.path, COMP_WORDS=f"{name} 1", COMP_CWORD="1",
                **{f"_{name.upper()}_COMPLETE": request_},
            )  # fmt: skip
            done = subprocess.run(
                [sys.executable, "-m", f"gsched.cli.commands.{name}", "1"],
                input="echo hi\n", env=environment, capture_output=True, text=True, timeout=60,
                check=False,
            )  # fmt: skip
            assert (done.stdout, done.stderr) == ("", "")
        assert not [each for each in head.asked if each[0] == "POST"]


def test_the_head_daemon_does_not_start_for_a_completion() -> None:
    """It offers none, but somebody may set one up by hand."""
    program = "import sys; sys.argv[0] = 'gschedd'; from gschedd.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "--config", "/nonexistent"],
        env={**os.environ, "_GSCHEDD_COMPLETE": "complete"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "nonexistent" not in done.stderr

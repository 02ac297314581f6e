"""gres: reservations on a running head, in tables, in words and in a calendar."""

import getpass
import json
import re

import pytest

from tests.support.cluster import Cluster, wait_until
from tests.support.commands import Ran
from tests.support.in_process import run_here
from tests.support.slurm_commands import slurm

pytestmark = pytest.mark.timeout(120)
ME = getpass.getuser()


def run(cluster: Cluster, *words: str) -> Ran:
    return run_here(*words, head=cluster.socket)


def create(cluster: Cluster, name: str, *words: str) -> Ran:
    times = ("--start", "2030-01-07 08:00", "--duration", "4h")
    return run(cluster, "gres", "create", name, *times, *words)


@pytest.fixture
def two_nodes(cluster: Cluster) -> Cluster:
    cluster.start_head()
    for name in ("n1", "n2"):
        cluster.start_node(name, cpus=2)
    return cluster


def test_one_is_created_shown_altered_and_deleted(two_nodes: Cluster) -> None:
    made = create(two_nodes, "course", "--nodes", "n[1-2]", "--users", ME, "-m", "a course")
    assert (made.status, made.stderr) == (0, "")
    assert "holds = 2 nodes: n[1-2]" in made.stdout

    listed = run(two_nodes, "gres").stdout
    assert re.search(rf"^course\tplanned\t.*2 nodes: n\[1-2\]\tusers {ME}\t", listed, re.MULTILINE)
    assert run(two_nodes, "gres", "alter", "course", "--duration", "2h").status == 0
    (row,) = json.loads(run(two_nodes, "gres", "--json").stdout)["reservations"]
    assert row["reservation"]["to_s"] - row["reservation"]["from_s"] == 7200
    assert run(two_nodes, "gres", "delete", "course").status == 0
    assert json.loads(run(two_nodes, "gres", "--json").stdout)["reservations"] == []


def test_a_new_end_counts_from_the_beginning_that_is_kept(two_nodes: Cluster) -> None:
    create(two_nodes, "course", "--nodes", "n1", "--users", ME)

    def end_of() -> str:
        return str(re.findall(r"end = (.*)", run(two_nodes, "gres", "show", "course").stdout)[0])

    assert run(two_nodes, "gres", "alter", "course", "--end", "+2h").status == 0
    assert end_of().split()[1:4] == ["Jan", "07", "10:00:00"]
    assert run(two_nodes, "gres", "alter", "course", "--end", "11:30").status == 0
    assert end_of().split()[3] == "11:30:00"
    early = run(two_nodes, "gres", "alter", "course", "--end", "07:30")
    assert early.status != 0
    assert "--end: 07:30 is not after the beginning, 2030-01-07 08:00" in early.stderr
    moved = run(two_nodes, "gres", "alter", "course", "--start", "2030-01-07 09:00:00.1")
    assert "duration = 03:30:00" in run(two_nodes, "gres", "show", "course").stdout, moved.stderr


def test_where_one_of_several_is_unknown_none_is_changed(two_nodes: Cluster) -> None:
    create(two_nodes, "course", "--nodes", "n1", "--users", ME)
    for words in (("delete",), ("alter", "--end", "+9h")):
        refused = run(two_nodes, "gres", words[0], "course", "nope", *words[1:])
        assert refused.status != 0
        assert "unknown reservation 'nope'" in refused.stderr
    assert "duration = 04:00:00" in run(two_nodes, "gres", "show", "course").stdout


def test_where_one_of_several_is_refused_those_before_it_are_shown(two_nodes: Cluster) -> None:
    for name, node in (("a", "n1"), ("b", "n2"), ("c", "n2")):
        words = ("--start", "2031-01-07 08:00") if name == "c" else ()
        create(two_nodes, name, "--nodes", node, "--users", ME, *words)
    refused = run(two_nodes, "gres", "alter", "a", "b", "c", "--nodes", "n1", "-m", "moved")

    assert refused.status != 0
    assert refused.stdout.startswith("a\n")
    assert "\nb\n" not in refused.stdout
    assert re.search(r"gres: b: .*n1.*; unchanged: b, c\n", refused.stderr)
    rows = json.loads(run(two_nodes, "gres", "--json").stdout)["reservations"]
    assert [row["reservation"]["reason"] for row in rows] == ["moved", "", ""]


def test_a_dry_run_changes_nothing(two_nodes: Cluster) -> None:
    shown = create(two_nodes, "course", "--nodes", "1", "--users", ME, "--dry-run")

    assert "holds = 1 node: n1" in shown.stdout
    assert "state = not changed: a dry run" in shown.stdout
    assert json.loads(run(two_nodes, "gres", "--json").stdout)["reservations"] == []


@pytest.mark.parametrize("width", [80, 120])
def test_the_calendar_fits_the_width(
    two_nodes: Cluster, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each day has a line for each node that is not free all day."""
    monkeypatch.setenv("COLUMNS", str(width))
    run(two_nodes, "gres", "create", "all", "--duration", "3d", "--nodes", "n1", "--users", ME)
    run(
        *(two_nodes, "gnodes", "maintenance", "n2"),
        *("--from", "+30h", "--to", "+2h", "-m", "a switch"),
    )
    lines = run(two_nodes, "gres", "calendar").stdout.splitlines()

    assert max(map(len, lines)) <= width
    assert [line for line in lines if line.startswith("n2") and "#" in line]
    assert any(re.fullmatch(r"n1 +\.*A+", line) for line in lines), "from now on"
    assert any(line.startswith("A  all  ") for line in lines)
    assert lines[0].count("-") == 2


MISTAKES = (
    (("create",), "create: one name is needed"),
    (("create", "a", "--duration", "4h", "--nodes", "1"), "reservation a is for nobody"),
    (("create", "a", "--nodes", "1", "--users", ME), "needs either its end or its duration"),
    (("create", "1a", "--duration", "4h", "--nodes", "1", "--users", ME), "is not a name"),
    (
        ("create", "a", "--duration", "0", "--nodes", "1", "--users", ME),
        "time must be greater than zero",
    ),
    (("create", "a", "--duration", "4h", "--gpus", "x", "--users", ME), "invalid number 'x'"),
    (
        ("create", "a", "--duration", "4h", "--nodes", "1", "--users", "no-such-user"),
        "unknown user no-such-user",
    ),
    (("create", "a", "--start", "mondey"), "--start: invalid time 'mondey'"),
    (("create", "a", "--nodes", "9999999", "--users", ME), "--nodes: invalid number '9999999'"),
    (("create", "a", "--gpus", "1:", "--users", ME), "no type of GPUs in '1:'"),
    (("alter", "a"), "alter: nothing to change"),
    (("delete", "nix"), "unknown reservation nix"),
    (("show", "nix"), "unknown reservation 'nix'"),
    (("crate", "a"), "unknown command 'crate'"),
    (("delete", "a", "--users", ME), "takes no options"),
)


def test_a_mistake_is_a_sentence(cluster: Cluster) -> None:
    cluster.start_head()
    cluster.start_node("n1", cpus=2)
    for words, message in MISTAKES:
        ran = run(cluster, "gres", *words)

        assert ran.status != 0, words
        assert message.replace("'", "") in ran.stderr.replace("'", ""), words
        assert "Traceback" not in ran.stderr


def test_jobs_are_listed_by_their_reservation(
    two_nodes: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that a job names while it waits, and the one that it runs in."""
    monkeypatch.setenv("GSCHED_HEAD", str(two_nodes.socket))
    window = ("--duration", "4h", "--nodes", "n1", "--users", ME)
    assert run(two_nodes, "gres", "create", "now", *window, "--magnetic").status == 0
    assert create(two_nodes, "later", "--nodes", "n2", "--users", ME).status == 0
    sleep = ("-l", "walltime=60", "-o", "/dev/null", "-e", "/dev/null", "--", "sleep", "60")
    for words in ((), ("--reservation", "later"), ("-l", "nodes=n2")):
        assert run(two_nodes, "gsub", *words, *sleep).status == 0
    wait_until(lambda: two_nodes.head.job(1).row.state == "running")

    listed = slurm("squeue", "-h", "-S", "i", "-o", "%i %v").stdout.split()
    assert listed == ["1", "now", "2", "later", "3", "(null)"]
    assert slurm("squeue", "-h", "-R", "later,now", "-S", "i", "-o", "%i").stdout.split() == [
        *("1", "2"),
    ]
    shown = run(two_nodes, "gstat", "--format", "{number} {reservation}").stdout.splitlines()
    assert sorted(line.split() for line in shown) == [["1", "now"], ["2", "later"], ["3"]]
    assert slurm("scancel", "-R", "later").status == 0
    assert [job.id for job in two_nodes.head.jobs().jobs] == [1, 3]


def test_scontrol_creates_shows_changes_and_deletes_them(
    two_nodes: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with Slurm, whose maintenance has users."""
    monkeypatch.setenv("GSCHED_HEAD", str(two_nodes.socket))
    times = ("starttime=2030-01-07T08:00:00", "duration=2:00:00")
    made = slurm("scontrol", "create", "reservation", *times, f"user={ME}", "nodecnt=1")
    assert made.stdout == "Reservation created: reservation_1\n"
    words = ("reservationname=m", *times, "users=root", "nodes=n2", "flags=maint,ignore_jobs")
    assert slurm("scontrol", "create", *words).status == 0

    shown = slurm("scontrol", "show", "reservation", "reservation_1").stdout
    assert "StartTime=2030-01-07T08:00:00 EndTime=2030-01-07T10:00:00 Duration=02:00:00" in shown
    assert "Nodes=n1 NodeCnt=1 CoreCnt=2" in shown
    assert f"Users={ME} " in shown
    assert "Flags=MAINT,IGNORE_JOBS,SPEC_NODES" in slurm("scontrol", "show", "res", "m").stdout
    listed = slurm("sinfo", "-T").stdout.splitlines()
    assert listed[1].split()[:2] == ["m", "INACTIVE"]
    assert slurm("scontrol", "update", "reservationname=m", "duration=3:00:00").status == 0
    update = ("scontrol", "update", "reservationname=reservation_1")
    assert slurm(*update, "users+=root", "accounts+=lab,bio").status == 0
    assert slurm(*update, f"users-={ME},nobody", "accounts-=lab").status == 0
    (kept,) = [
        each["reservation"]
        for each in json.loads(run(two_nodes, "gres", "--json").stdout)["reservations"]
        if each["reservation"]["name"] == "reservation_1"
    ]
    assert (kept.get("users", []), kept["projects"]) == ([] if ME == "root" else ["root"], ["bio"])
    assert "cannot be excluded" in slurm(*update, "users=-root").stderr
    unknown = slurm("scontrol", "update", "reservationname=x", "users+=root")
    assert "unknown reservation x" in unknown.stderr
    assert "flag: FLEX" in slurm("scontrol", "update", "reservationname=m", "flags=flex").stderr
    assert slurm("scontrol", "delete", "reservation=m").status == 0
    assert "not found" in slurm("scontrol", "show", "reservation", "m").stderr

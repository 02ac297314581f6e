"""gnodes: the list, one node, drain, resume, confirm-dead."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gsched.cli.times import format_time
from gsched.model.resources import Load
from gsched.protocol import actions as a
from gsched.protocol.api import ActionReply, ActionResult, ErrorBody
from gsched.protocol.node_rows import NodeList
from tests.support.canned_head import CannedHead, canned_head, node
from tests.support.commands import run_at_terminal, run_command

GB = 1024**3
ROWS = (
    node(
        "n1",
        cpus_free=1,
        gpus=4,
        gpus_free=2,
        gpu_types=("a100",),
        memory_free_bytes=2 * GB,
        features=("big", "ssd"),
        generic={"licence": 3},
        generic_free={"licence": 1},
        load=Load(load1=2.5, memory_used_bytes=3 * GB),
        heartbeat_s=990.0,
        jobs=(17, 18),
        address="10.0.0.1",
        cpu_binding="none: the node offers 8 CPUs",
    ),
    node("n2", state="unreachable", reason="no word for 40 s"),
    node("n3", drained=True, reason="new driver", jobs=(19,)),
    node("n4", drained=True, reason="broken fan"),
)


@pytest.fixture
def head(tmp_path: Path) -> Iterator[CannedHead]:
    """Return a head with four nodes in all conditions."""
    with canned_head(tmp_path / "s") as head:
        head.answers["GET /v1/nodes"] = NodeList(server="head", now_s=1000.0, nodes=ROWS)
        head.answers["POST /v1/nodes/actions"] = ActionReply(results=(ActionResult(id="n1"),))
        yield head


def test_the_list_shows_used_over_there_is(head: CannedHead) -> None:
    """TAB-separated and whole in a pipe."""
    ran = run_command("gnodes", head=head.path)

    lines = [line.split("\t") for line in ran.stdout.splitlines()]
    assert lines[0][:5] == ["Node", "State", "Jobs", "CPUs", "GPUs"]
    assert lines[1] == [
        "n1",
        "up",
        "2",
        "3/4",
        "2/4",
        "-",
        "a100",
        "6gb/8gb",
        "3gb",
        "2.50",
        "big,ssd",
        "-",
    ]
    assert [line[1] for line in lines[2:]] == ["unreachable", "draining", "drained"]
    assert [line[-1] for line in lines[2:]] == ["no word for 40 s", "new driver", "broken fan"]
    assert (ran.status, ran.stderr) == (0, "")


def test_a_terminal_gets_a_table(head: CannedHead) -> None:
    """With the same words; no TABs."""
    ran = run_at_terminal("gnodes", typed="", head=head.path)

    assert "\t" not in ran.stdout
    assert not [line for line in ran.stdout.splitlines() if line.endswith(" ")]
    assert "no word for 40 s" in " ".join(ran.stdout.split())


def test_named_nodes_are_shown_in_full(head: CannedHead) -> None:
    """In the order of the operands; an unknown one does not hide the others."""
    ran = run_command("gnodes", "n3", "nope", "n1", head=head.path)

    assert ran.status == 68
    assert ran.stdout.index("n3\n") < ran.stdout.index("n1\n")
    assert "    reason = new driver\n" in ran.stdout
    assert "    jobs = 17 18\n" in ran.stdout
    assert "    licence = 2 of 3 in use\n" in ran.stdout
    assert "(10 s ago)" in ran.stdout
    assert "cpu_binding = none: jobs run on all CPUs of the node, and a job " in ran.stdout
    assert "reason: the node offers 8 CPUs\n" in ran.stdout
    assert ran.stderr.startswith("gnodes: Unknown node nope\n")


def test_l_shows_only_what_takes_no_jobs(head: CannedHead) -> None:
    """As pbsnodes -l: name and state in columns of twenty."""
    ran = run_command("gnodes", "-l", head=head.path)

    assert ran.stdout.splitlines() == [
        f"{'n2':<20} {'unreachable':<20} no word for 40 s",
        f"{'n3':<20} {'draining':<20} new driver",
        f"{'n4':<20} {'drained':<20} broken fan",
    ]


def test_a_node_that_was_drained_by_itself_shows_its_next_probe(head: CannedHead) -> None:
    """In the list, and with how often probes have failed and passed; else when there is none."""
    broken = node(
        "n5",
        drained=True,
        automatic=True,
        reason="it cannot start jobs: cannot fork",
        probe_due_s=1030.0,
        probes_failed=2,
        resumptions=3,
        faults=1,
    )
    given_up = node("n6", drained=True, automatic=True, reason="resumed 6 times within a day")
    rows = NodeList(server="head", now_s=1000.0, nodes=(broken, given_up))
    head.answers["GET /v1/nodes"] = rows

    listed = run_command("gnodes", head=head.path).stdout.splitlines()
    shown = run_command("gnodes", "n5", "n6", head=head.path).stdout

    due = format_time(1030.0)
    assert listed[1].endswith(f"\tit cannot start jobs: cannot fork (next probe {due})")
    assert listed[2].endswith("\tresumed 6 times within a day")
    assert f"    next_probe = {due}\n" in shown
    assert "    failed_starts = 1 in a row\n" in shown
    assert "    probes_failed = 2 in a row\n" in shown
    assert "    resumed_by_probes = 3 times within a day\n" in shown
    assert "    next_probe = none: see gnodes resume\n" in shown


def test_json_is_one_document(head: CannedHead) -> None:
    """Also of one node."""
    document = json.loads(run_command("gnodes", "--json", "n1", head=head.path).stdout)

    assert document["schema"] == 1
    assert [row["name"] for row in document["nodes"]] == ["n1"]
    assert document["nodes"][0]["memory_bytes"] == 8 * GB


@pytest.mark.parametrize(
    ("arguments", "request_"),
    [
        (
            ["drain", "n1", "n2", "-m", "new driver"],
            a.DrainNode(nodes=("n1", "n2"), reason="new driver"),
        ),
        (["resume", "n[1-2,07],x", "y"], a.ResumeNode(nodes=("n1", "n2", "n07", "x", "y"))),
        (["power", "down", "n[1-2]"], a.PowerNode(nodes=("n1", "n2"), up=False)),
        (["remove", "n1"], a.RemoveNode(nodes=("n1",))),
        (["replace", "n1"], a.ReplaceNode(nodes=("n1",))),
        (
            ["replace", "--identity", "3F2A…", "n1"],
            a.ReplaceNode(nodes=("n1",), identity="3f2a"),
        ),
        (["-o", "n1", "-N", "fan"], a.DrainNode(nodes=("n1",), reason="fan")),
        (["resume", "n1"], a.ResumeNode(nodes=("n1",))),
        (["-c", "n1"], a.ResumeNode(nodes=("n1",))),
        (["confirm-dead", "-y", "n2"], a.ConfirmDead(nodes=("n2",))),
    ],
)
def test_a_verb_is_sent_to_the_head(
    head: CannedHead, arguments: list[str], request_: a.AnyNodeAction
) -> None:
    """Ours and Torque's letters for it."""
    ran = run_command("gnodes", *arguments, head=head.path)

    assert (ran.status, ran.stderr) == (0, "")
    assert head.bodies(a.NODE_ACTION) == [request_]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["drain", "n1"], "drain needs a reason"),
        (["drain", "n1", "-m", "  "], "drain needs a reason"),
        (["drain", "-m", "x"], "needs at least one node"),
        (["-o", "-c", "n1"], "mutually exclusive"),
        (["n1", "-m", "x"], "-m is valid only with drain"),
        (["remove"], "needs at least one node"),
        (["remove", "n[1-"], "invalid list of nodes 'n[1-'"),
        (["n1", "--identity", "3f"], "--identity is valid only with replace"),
        (["drain", "n1", "-m", "x", "--identity", "3f"], "--identity is valid only with replace"),
        (["replace", "n1", "--identity", "xyz"], "is not the beginning of an identity"),
        (["dran", "n1", "-m", "x"], "unknown subcommand 'dran'"),
        (["drian", "n1", "--migrate"], "did you mean 'drain'?"),
    ],
)
def test_half_a_wish_is_refused(head: CannedHead, arguments: list[str], message: str) -> None:
    """The head is not asked."""
    ran = run_command("gnodes", *arguments, head=head.path)

    assert ran.status == 2
    assert message in ran.stderr
    assert head.asked == []


def test_a_misspelt_subcommand_is_no_unknown_node(head: CannedHead) -> None:
    """Unless there is a node of that name."""
    ran = run_command("gnodes", "dran", "n1", head=head.path)

    assert ran.status == 2
    assert "unknown subcommand 'dran'" in ran.stderr
    assert "did you mean 'drain'? gnodes drain NODE..." in ran.stderr


def test_an_unknown_node_is_told_and_the_rest_done(head: CannedHead) -> None:
    """The head does the others."""
    head.answers["POST /v1/nodes/actions"] = ActionReply(
        results=(
            ActionResult(id="x", error=ErrorBody(code="unknown_node", message="Unknown node x")),
            ActionResult(id="n1"),
        )
    )
    ran = run_command("gnodes", "resume", "x", "n1", head=head.path)

    assert ran.status == 68
    assert ran.stderr == "gnodes: Unknown node x\n"


@pytest.mark.parametrize(("typed", "sent"), [("n\n", 0), ("y\n", 1)])
def test_confirm_dead_tells_a_person_what_it_means(head: CannedHead, typed: str, sent: int) -> None:
    """Two jobs may run twice if the machine still lives."""
    ran = run_at_terminal("gnodes", "confirm-dead", "n1", typed=typed, head=head.path)

    assert "2 jobs on n1" in ran.stdout
    assert len(head.bodies(a.NODE_ACTION)) == sent
    assert ran.status == (0 if sent else 1)

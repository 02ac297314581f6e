"""Deadlines on a real head and node, under every policy that plans by them, and under another."""

import json
import uuid
from collections.abc import Iterator

import pytest

from gsched.protocol.job_rows import JobRow
from gschedd.policies.registry import INSTALLED
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import Ran, run_command

PLANNERS = tuple(name for name in sorted(INSTALLED.queue) if INSTALLED.choose(name).plans_training)
#: 40 s on one GPU, 20 s on both.
SIZE = "[training]\niterations = 400\nrates = { 1 = 10, 2 = 20 }\n"

pytestmark = pytest.mark.timeout(120)


class Desk:
    """Where a user sits: a cluster of one node with two GPUs, and a file with a training's size."""

    def __init__(self, cluster: Cluster, policy: str) -> None:
        self.cluster = cluster
        cluster.queues = f'\n[[queue]]\nname = "batch"\npolicy = "{policy}"\n'
        cluster.start_head()
        cluster.start_node("n1", cpus=4, gpus=2)
        (cluster.jobs / "size.toml").write_text(SIZE)

    def run(self, name: str, *arguments: str) -> Ran:
        return run_command(
            name, *arguments, head=self.cluster.socket, cwd=self.cluster.jobs, env={"TZ": "UTC"}
        )

    def gsub(self, *arguments: str, seconds: str = "30") -> Ran:
        options = ("--training", "size.toml", "--walltime", "60", *arguments)
        return self.run("gsub", *options, "--", "sleep", seconds)

    def row(self, ran: Ran) -> JobRow:
        """Return the line of the job that a submission made; its id was alone on stdout."""
        assert ran.status == 0, ran
        number, _, server = ran.stdout.removesuffix("\n").partition(".")
        assert (number.isdigit(), server) == (True, "test"), ran.stdout
        (row,) = self.cluster.head.jobs([int(number)]).jobs
        return row


@pytest.mark.parametrize("policy", [*PLANNERS, "balance"])
def test_the_answer_says_what_then_is_so(cluster: Cluster, policy: str) -> None:
    """The first is in time; the second would have to wait for it, and is late before it is late."""
    desk = Desk(cluster, policy)

    first = desk.gsub("--deadline", "90s", "--gpus", "2")
    row = desk.row(first)
    assert "planned on 2 GPUs, expected to finish at " in first.stderr
    assert "expected to be met with 00:0" in first.stderr
    assert row.meets_deadline is True
    assert row.slack_s is not None
    assert 50 < row.slack_s < 75, "20 s of 90"

    refused = desk.gsub("--deadline", "25s", "--gpus", "2", "--reject-if-late")
    assert (refused.status, refused.stdout) == (156, ""), refused
    assert "would miss its deadline" in refused.stderr
    assert "nothing was queued" in refused.stderr
    assert len(cluster.head.jobs().jobs) == 1

    late = desk.gsub("--deadline", "25s", "--gpus", "2")
    row = desk.row(late)
    assert "LATE: " in late.stderr
    assert "will be missed" in late.stderr
    shown = {each["id"]: each for each in json.loads(desk.run("gstat", "--json").stdout)["jobs"]}
    if shown[row.id]["state"] == "queued" and policy == "balance":
        return  # without a plan the list tells of a waiting job only what its start says
    assert shown[row.id]["meets_deadline"] is False
    line = next(
        each for each in desk.run("gstat").stdout.splitlines() if each.startswith(f"{row.id}.")
    )
    assert line.split("\t")[-1] == "late"
    assert "deadline_met = False (predicted)" in desk.run("gstat", "-f", str(row.id)).stdout


@pytest.mark.parametrize("policy", PLANNERS)
def test_a_deadline_that_is_moved_is_judged_anew(cluster: Cluster, policy: str) -> None:
    desk = Desk(cluster, policy)
    desk.row(desk.gsub("--deadline", "90s", "--gpus", "2"))
    late = desk.row(desk.gsub("--deadline", "25s", "--gpus", "2"))
    assert late.meets_deadline is False

    assert desk.run("galter", "--deadline", "10m", str(late.id)).status == 0

    def in_time() -> bool:
        (row,) = cluster.head.jobs([late.id]).jobs
        return row.meets_deadline is True

    wait_until(in_time, what="the new deadline to be met")
    assert cluster.head.job(late.id).guaranteed is not False, "what was refused is forgotten"
    assert desk.run("galter", "--deadline", "none", str(late.id)).status == 0
    (row,) = cluster.head.jobs([late.id]).jobs
    assert (row.deadline_s, row.meets_deadline) == (None, None)


@pytest.mark.parametrize("policy", [*PLANNERS[:1], "balance"])
def test_the_history_knows_which_deadlines_were_met(cluster: Cluster, policy: str) -> None:
    desk = Desk(cluster, policy)
    met = desk.row(desk.gsub("--deadline", "90s", "--gpus", "1", seconds="0"))
    desk.run("gwait", str(met.id))
    failed = desk.run("gsub", "--training", "size.toml", "--deadline", "90s", "--", "false")
    desk.run("gwait", str(desk.row(failed).id))

    lines = desk.run("ghist").stdout.splitlines()

    assert lines[0].endswith("\tDeadline\tMet")
    assert lines[1].endswith("\tmissed (job failed)")
    assert "\tmet, 00:01:" in lines[2]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """Return a desk on which nothing is ever queued."""
    cluster = Cluster(tmp_path_factory.mktemp("desk"), f"desk-{uuid.uuid4().hex}")
    try:
        yield Desk(cluster, PLANNERS[0] if PLANNERS else "balance")
    finally:
        cluster.stop()


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--deadline", "10s"], 156, ["cannot be met even if all nodes were idle", "earliest end"]),
        (["--deadline", "25s", "--gpus", "1"], 156, ["at least 00:00:40 on 1 GPU,"]),
        (["--deadline", "@1"], 2, ["is in the past"]),
        (["--gpus", "3..4"], 2, ["3"]),
        (["--params", "1M"], 156, ["given twice"]),
        (["--walltime", "5"], 156, ["its walltime of 00:00:05 ends it before"]),
        (["--reject-if-late"], 156, ["there is no deadline"]),
    ],
)
def test_what_cannot_be_is_refused_with_a_way_out(
    desk: Desk, arguments: list[str], status: int, words: list[str]
) -> None:
    ran = desk.gsub("--gpus", "1..2", *arguments)

    assert (ran.status, ran.stdout) == (status, ""), ran
    for each in words:
        assert each in ran.stderr, ran.stderr
    assert "hint: " in ran.stderr
    assert desk.cluster.head.jobs(finished=True).jobs == ()


def test_a_size_that_is_half_said_names_what_is_missing(desk: Desk) -> None:
    ran = desk.run("gsub", "--params", "138M", "--batch", "16", "--", "true")

    assert ran.status == 156
    assert "samples, epochs, step_time missing" in ran.stderr


def test_a_dry_run_tells_the_same_and_keeps_nothing(desk: Desk) -> None:
    ran = desk.gsub("--test-only", "--deadline", "90s", "--gpus", "1..2")
    document = json.loads(desk.gsub("--json", "--dry-run", "--urgency", "relaxed").stdout)

    assert ran.status == 0
    assert "plan: planned on " in ran.stdout
    assert "expected to be met" in ran.stdout
    assert document["meets_deadline"] is True
    assert document["deadline_s"] > document["predicted_end_s"]
    assert desk.cluster.head.jobs().jobs == ()

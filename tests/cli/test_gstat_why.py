"""gstat --why and -f on a real head: every waiting job is told when it starts, or why not."""

import json
from collections.abc import Mapping

import pytest

from gsched.model.limits import MAX_STORIES
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import run_command
from tests.support.desk import PLENTY_S
from tests.support.in_process import run_here

pytestmark = pytest.mark.timeout(240)


MINUTE = ("-l", "walltime=60", "--", "true")


class Desk:
    """A node with one CPU that is taken, and jobs that wait for all kinds of things."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.first = self.submit("-l", "walltime=3600", "--", "sleep", "3600")
        wait_until(lambda: self.state(self.first) == "running", PLENTY_S, what="a start")
        self.next = self.submit("-N", "next", "-l", "walltime=600", "--", "true")
        self.last = self.submit("-N", "last", *MINUTE)
        self.held = self.submit("-h", "--", "true")
        self.late = self.submit("-a", "203001010000", *MINUTE)
        self.after = self.submit("-W", f"depend=afterok:{self.next}", *MINUTE)
        self.never = self.submit("-W", f"depend=afternotok:{self.next}", "--", "true")
        self.array = self.submit("-t", "0-9%1", *MINUTE)

    def submit(self, *arguments: str) -> str:
        """Submit a job; return its number."""
        ran = run_command("gsub", *arguments, head=self.cluster.socket, cwd=self.cluster.jobs)
        assert ran.status == 0, ran.stderr
        return ran.stdout.partition(".")[0].partition("[")[0].strip()

    def state(self, job: str) -> str:
        return self.cluster.head.job(job).row.state

    def told(self, *arguments: str) -> str:
        """Return what gstat prints."""
        ran = run_here("gstat", *arguments, head=self.cluster.socket)
        assert ran.status == 0, ran.stderr
        return ran.stdout

    def rows(self) -> Mapping[str, dict[str, object]]:
        document = json.loads(self.told("--why", "--json"))
        return {str(row["id"]): row for row in document["jobs"]}


@pytest.fixture
def desk(cluster: Cluster) -> Desk:
    cluster.start_head()
    cluster.start_node("n1", cpus=1)
    return Desk(cluster)


def test_every_waiting_job_has_a_start_or_a_reason(desk: Desk) -> None:
    """In the list, of one job, with all details, as JSON, and of a job that is not submitted."""
    lines = {
        line.split("\t")[0].partition(".")[0].partition("[")[0]: line.split("\t")
        for line in desk.told("--why").splitlines()[1:]
    }
    assert set(lines) == {
        *(desk.next, desk.last, desk.held, desk.late, desk.after, desk.never, desk.array)
    }
    for job in (desk.next, desk.last, desk.after, desk.array):
        assert "(" in lines[job][4], lines[job]
    assert lines[desk.late][4] == "2030-01-01 00:00", "an interval without a width is none"
    assert lines[desk.held][4] == lines[desk.never][4] == "unknown"
    assert lines[desk.held][5] == f"held by user; release it with grls -h u {desk.held}"
    assert f"it starts only if job {desk.next} fails" in lines[desk.never][5]

    starts = desk.told("--format", "{number} {start}").splitlines()
    assert {desk.next, desk.last, desk.late, desk.after} <= {
        line.split()[0] for line in starts if len(line.split()) > 1
    }
    ordered = desk.told("--sort", "-start", "--format", "{number}").split()
    assert ordered[0] == desk.late
    last = desk.told("--why", desk.last)
    sentence, *rest = last.splitlines()
    assert sentence.startswith(f"Job {desk.last}.test (last) needs 1 CPU on one node; no node")
    assert [line[4:19].strip() for line in rest][:4] == [
        *("position:", "", "expected start:", "based on:"),
    ]
    texts = [line[20:] for line in rest]
    assert texts[0] == "2 in queue batch, 1 job ahead with 1 CPU in total"
    assert texts[1].split()[:2] == [desk.next, "next"]
    assert texts[1].endswith("1 CPU, walltime 00:10:00")
    assert "(between " in texts[2]
    assert texts[3] == "run times from walltimes"
    held = desk.told("--why", desk.held).splitlines()
    assert held == [
        f"Job {desk.held}.test (true) is held by user",
        "    expected start: cannot be predicted before it is released",
        f"    remedy:         release it with grls -h u {desk.held}",
    ]
    after = desk.told("--why", desk.after)
    assert after.startswith(f"Job {desk.after}.test (true) waits for its dependencies: afterok:")
    assert f"galter -W depend= {desk.after}" in after
    assert f"galter -a [CCYYMMDD]hhmm {desk.late}" in desk.told("--why", desk.late)
    array = desk.told("--why", desk.array)
    next_one = f"its next element {desk.array}[0] needs 1 CPU"
    assert array.startswith(f"Job {desk.array}[].test (true) is queued: {next_one}")
    element = desk.told("--why", f"{desk.array}[7]")
    assert "(between " in element

    full = desk.told("-f", desk.last)
    assert "predicted_start_between = " in full
    assert "predicted_start_basis = run times from walltimes" in full
    assert "predicted_start_unknown = the job is held" in desk.told("-f", desk.held)

    rows = desk.rows()
    start = rows[desk.last]["start"]
    assert isinstance(start, dict)
    assert start["early_s"] <= start["expected_s"] <= start["late_s"] <= start["planned_s"]
    assert start["scenarios"] == 20
    assert rows[desk.last]["predicted_start_s"] == start["expected_s"]

    ran = run_here(
        "gsub", "--test-only", "-l", "walltime=60", "--", "true", head=desk.cluster.socket
    )
    assert "expected start: " in ran.stdout
    assert "(between " in ran.stdout
    ran = run_here("gsub", "--test-only", "-h", "--", "true", head=desk.cluster.socket)
    assert "expected start: cannot be predicted: the job is held" in ran.stdout


def test_the_details_of_many_jobs_come_in_pages(cluster: Cluster) -> None:
    """Also of elements of arrays; an unknown id costs no other job."""
    cluster.start_head()
    desk = cluster.head
    ran = run_command(
        *("gsub", "-t", f"0-{MAX_STORIES + 20}", "--", "true"),
        head=cluster.socket,
        cwd=cluster.jobs,
    )
    assert ran.status == 0, ran.stderr
    ids = [f"1[{index}]" for index in range(MAX_STORIES + 5)]

    reply = desk.stories(["99", *ids, "1"])
    full = run_here("qstat", "-f", *ids, head=cluster.socket)

    assert [story.row.shown_id(story.server).partition(".")[0] for story in reply.jobs] == [
        *ids,
        "1[]",
    ]
    assert list(reply.errors) == ["99"]
    assert full.stdout.count("Job Id: ") == len(ids)


def test_the_remedy_of_a_smaller_request_is_a_command_that_works(cluster: Cluster) -> None:
    cluster.start_head()
    cluster.start_node("n1", cpus=4, gpus=2)

    def ran(*words: str) -> str:
        done = run_command(*words, head=cluster.socket, cwd=cluster.jobs)
        assert done.status == 0, done.stderr
        return done.stdout

    ran("gsub", "--gpus", "1", "--", "sleep", "600")
    job = ran("gsub", "--gpus", "2", "--cpus", "2", "--", "sleep", "600").partition(".")[0]
    wait_until(lambda: "no node" in ran("gstat", "--why", job), PLENTY_S, what="the reason")
    (remedy,) = (line for line in ran("gstat", "--why", job).splitlines() if "remedy:" in line)
    what, command = remedy.split(maxsplit=1)[1].split(": ")
    assert what == "1 GPU instead of 2 would fit now"
    ran(*command.split())

    wait_until(lambda: cluster.head.job(job).row.state == "running", PLENTY_S, what="its start")

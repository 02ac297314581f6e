"""gdel, ghold, grls, gsig, grerun, galter, gnodes and ghist on a real head and node."""

import json
import re
from pathlib import Path

import pytest

from gsched.client import new_job
from gsched.protocol.job_rows import JobRow, JobStory
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import Ran, run_command
from tests.support.warm import Lender

pytestmark = pytest.mark.timeout(120)


class Desk:
    """A cluster with one node of two CPUs, and the commands on it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.jobs = cluster.jobs

    def run(self, name: str, *arguments: str) -> Ran:
        """Run a command."""
        return run_command(name, *arguments, head=self.cluster.socket)

    def submit(self, script: str, *, name: str = "try", **more: object) -> str:
        """Submit a script that works in ``jobs``; return the job's number as text."""
        job = new_job(name=name, workdir=str(self.jobs), script=f"#!/bin/sh\n{script}", **more)
        result = self.cluster.head.submit([job]).results[0]
        assert result.error is None, result.error
        return str(result.id)

    def row(self, job: str) -> JobRow:
        """Return the job's line."""
        return self.cluster.head.jobs([job]).jobs[0]

    def ended(self, job: str) -> JobStory:
        """Return the job's story once it has ended."""
        story = self.cluster.head.wait([job], timeout_s=60.0)[0]
        assert story.row.state == "done", story
        return story

    def events(self, job: str) -> str:
        """Return what has happened to the job, in words."""
        return self.run("gstat", "-f", job).stdout.partition("Events:")[2]

    def wait_for(self, name: str) -> Path:
        """Wait until a job has written a file."""
        path = self.jobs / name
        wait_until(path.exists, what=str(path))
        return path


@pytest.fixture
def desk(warm: Lender) -> Desk:
    """Return a desk whose cluster is up."""
    return Desk(warm(cpus=2))


@pytest.fixture
def own_desk(cluster: Cluster) -> Desk:
    """Return a desk whose cluster has no past, and may be killed."""
    cluster.start_head()
    cluster.start_node("n1", cpus=2)
    return Desk(cluster)


def test_gdel_ends_a_running_and_a_waiting_job(desk: Desk) -> None:
    """With --wait they have ended when it returns; an unknown one does not keep it from them."""
    running = desk.submit("touch runs; exec sleep 600", resources=("nodes=1:ppn=2",))
    waiting = desk.submit("touch never")
    desk.wait_for("runs")
    ran = desk.run("gdel", "--wait", "-m", "wrong data", running, "999", f"{waiting}.test")

    assert ran.status == 153
    assert ran.stdout == ""
    assert ran.stderr.startswith("gdel: Unknown Job Id 999.test\n")
    for job in (running, waiting):
        row = desk.row(job)
        assert row.state == "done"
        assert row.outcome is not None
        assert row.outcome.kind == "cancelled"
    story = desk.cluster.head.job(running)
    assert any("wrong data" in event.text for event in story.events)
    assert not (desk.jobs / "never").exists()


def test_gdel_with_no_grace_kills_a_job_that_ignores_term(desk: Desk) -> None:
    """-W 0: at once, although the job's own grace is half a minute."""
    job = desk.submit("trap '' TERM; touch runs; while :; do sleep 0.05; done")
    desk.wait_for("runs")

    assert desk.run("gdel", "--wait", "-W", "0", job).status == 0
    outcome = desk.row(job).outcome
    assert outcome is not None
    assert (outcome.kind, outcome.exit_status) == ("cancelled", 265)


def test_gdel_of_an_ended_job_says_so(desk: Desk) -> None:
    """And does not touch its outcome."""
    done = desk.submit("true")
    desk.ended(done)
    ran = desk.run("gdel", done)

    assert ran.status in {153, 170}
    assert f"{done}.test" in ran.stderr
    outcome = desk.row(done).outcome
    assert outcome is not None
    assert outcome.exit_code == 0


def test_gdel_of_all_ends_jobs_that_depend_on_each_other_without_a_word(desk: Desk) -> None:
    """The end of the first one ends the others before their turn; one that is named twice, too."""
    first = desk.submit("true", holds=("user",))
    second = desk.submit("true", depends=(f"afterok:{first}",))
    desk.submit("true", depends=(f"afterok:{second}",))
    ran = desk.run("gdel", "all")

    assert (ran.status, ran.stderr) == (0, "")
    assert desk.cluster.head.jobs().jobs == ()
    again = desk.run("gdel", second)
    assert "has already finished" in again.stderr


def test_a_change_to_what_a_job_is_already_is_no_change(desk: Desk) -> None:
    job = desk.submit("true", holds=("user",))
    before = desk.events(job)
    for words in (("gmove", "batch", job), ("galter", "-N", "try", job)):
        trial = desk.run(words[0], "--dry-run", *words[1:])
        assert (trial.status, trial.stdout) == (0, f"{job}: nothing to change\n")
        assert desk.run(*words).status == 0
    assert desk.events(job) == before


def test_a_dry_run_changes_nothing(desk: Desk) -> None:
    """It names each job."""
    job = desk.submit("touch runs; exec sleep 600")
    desk.wait_for("runs")
    ran = desk.run("gdel", "--dry-run", "all")

    assert (ran.status, ran.stdout) == (0, f"{job}.test: would cancel\n")
    assert desk.row(job).state == "running"


def test_a_held_job_waits_until_it_is_released(desk: Desk) -> None:
    """A user's release does not take an operator's hold away."""
    blocker = desk.submit("touch blocks; exec sleep 600", resources=("nodes=1:ppn=2",))
    desk.wait_for("blocks")
    job = desk.submit("true")
    assert desk.run("ghold", job).status == 0
    assert desk.run("ghold", "-h", "o", job).status == 0
    assert desk.run("gdel", "--wait", "-W", "0", blocker).status == 0
    later = desk.submit("true")
    desk.ended(later)
    assert desk.row(job).state == "held"

    assert desk.run("grls", job).status == 0
    assert desk.row(job).state == "held"
    assert desk.run("grls", "-h", "o", job).status == 0
    assert desk.ended(job).row.outcome is not None


def test_a_comment_is_shown_and_altered(desk: Desk) -> None:
    """Also of a job that runs; and when it is done, by ghist."""
    said = ("-A", "lab", "-o", f"{desk.jobs}/", "-e", f"{desk.jobs}/", "--comment")
    refused = desk.run("gsub", *said, "lr \x1b[2J 0.1", "--", "true")
    assert "comment 'lr \\x1b[2J 0.1' has characters that cannot be shown" in refused.stderr
    job = desk.run("gsub", *said, "lr 0.1", "--", "sleep", "600").stdout.strip()
    wait_until(lambda: desk.row(job).state == "running", what="it runs")

    assert "    user_comment = lr 0.1\n" in desk.run("gstat", "-f", job).stdout
    (row,) = json.loads(desk.run("gstat", "--json", job).stdout)["jobs"]
    assert (row["comment"], row["account"]) == ("lr 0.1", "lab")

    assert desk.run("galter", "--comment", "lr 0.2", job).status == 0
    assert desk.run("gdel", "--wait", "-W", "0", job).status == 0
    (row,) = json.loads(desk.run("ghist", "--json", job).stdout)["jobs"]
    assert row["comment"] == "lr 0.2"
    long = desk.run("gsub", "--comment", "x" * 1025, "--", "true")
    assert "comment has 1025 characters; the limit is 1024" in long.stderr


def test_gsig_reaches_the_jobs_program(desk: Desk) -> None:
    """By name; a waiting job has nobody to hear it."""
    job = desk.submit(
        "trap 'echo heard > usr1; exit 5' USR1; touch runs; while :; do sleep 0.2; done"
    )
    desk.wait_for("runs")
    wait_until(lambda: desk.run("gsig", "-s", "SIGUSR1", job).status == 0, what="the head to know")

    outcome = desk.ended(job).row.outcome
    assert outcome is not None
    assert (desk.jobs / "usr1").read_text() == "heard\n"
    ran = desk.run("gsig", "-s", "0", job)
    assert ran.status == 170


def test_grerun_starts_the_job_anew_under_its_id(desk: Desk) -> None:
    """With the restart counted; one that is not rerunnable only with -f."""
    script = "echo $GSCHED_RESTART_COUNT >> counts; [ $GSCHED_RESTART_COUNT = 1 ] || sleep 600"
    job = desk.submit(script, rerunnable=False)
    desk.wait_for("counts")
    refused = desk.run("grerun", job)
    assert refused.status != 0
    assert "rerun" in refused.stderr

    assert desk.run("grerun", "-f", "-W", "0", "-m", "new driver", job).status == 0
    story = desk.ended(job)
    assert any("new driver" in event.text for event in story.events)
    assert (desk.jobs / "counts").read_text() == "0\n1\n"
    assert [attempt.attempt for attempt in story.attempts] == [1, 2]


def test_galter_changes_a_waiting_job_and_a_running_ones_walltime(desk: Desk) -> None:
    """What no node could hold is refused with the largest node."""
    running = desk.submit("touch runs; exec sleep 600", resources=("nodes=1:ppn=2,walltime=60:00",))
    desk.wait_for("runs")
    waiting = desk.submit("true")

    assert desk.run("galter", "-l", "walltime=+1:00:00", running).status == 0
    assert desk.row(running).walltime_s == 7200.0
    assert (
        desk.run("galter", "-N", "renamed", "-p", "7", "-l", "nodes=1:ppn=2", waiting).status == 0
    )
    row = desk.row(waiting)
    assert (row.name, row.priority, row.cpus) == ("renamed", 7, 2)
    huge = desk.run("galter", "-l", "nodes=1:ppn=64", waiting)
    assert huge.status == 2
    assert "64 CPUs" in huge.stderr
    assert "n1 with 2 CPUs" in huge.stderr
    assert desk.row(waiting).cpus == 2
    assert desk.run("galter", "-l", "nodes=1:ppn=1", running).status == 170


def test_a_drained_node_gets_no_job_until_it_is_resumed(desk: Desk) -> None:
    """Whoever asks why a job waits reads the reason."""
    assert desk.run("gnodes", "drain", "n1", "-m", "new driver").status == 0
    job = desk.submit("true")
    wait_until(lambda: desk.row(job).reason, what="a reason")

    assert desk.row(job).state == "queued"
    assert "drained\t" in desk.run("gnodes").stdout
    assert "new driver" in desk.run("gnodes", "n1").stdout
    unknown = desk.run("gnodes", "resume", "nX", "n1")
    assert unknown.status == 68
    assert desk.ended(job).row.outcome is not None
    alive = desk.run("gnodes", "confirm-dead", "-y", "n1")
    assert alive.status == 170, "a node that is connected is not dead"


def test_a_hold_of_a_running_job_says_when_it_takes_effect(desk: Desk) -> None:
    """As in PBS it is kept, and holds the job when it is requeued."""
    job = desk.submit("touch started; sleep 600")
    desk.wait_for("started")

    held = desk.run("ghold", job)

    assert (held.status, held.stdout) == (0, "")
    assert held.stderr == (
        f"ghold: job {job}.test is running and keeps running; "
        "the hold takes effect if it is requeued\n"
    )
    document = json.loads(desk.run("ghold", "--json", job).stdout)
    assert "takes effect if it is requeued" in document["results"][0]["note"]
    assert desk.run("grerun", "-W", "0", job).status == 0
    wait_until(lambda: desk.row(job).state == "held", what="the hold")
    assert desk.run("ghold", "-h", "o", job).stderr == ""  # it waits: nothing to explain


def test_ghist_filters_and_counts(own_desk: Desk) -> None:
    """From the database, also after the head was killed."""
    desk = own_desk
    good = desk.submit("true", name="good")
    bad = desk.submit("exit 3", name="bad-1")
    worse = desk.submit("kill -9 $$", name="bad-2")
    for job in (good, bad, worse):
        desk.ended(job)
    desk.cluster.kill_head()
    desk.cluster.start_head()

    failed = desk.run("ghist", "--failed", "--since", "1h")
    lines = [line.split("\t") for line in failed.stdout.splitlines()[1:]]
    assert {(line[1], line[-1]) for line in lines} == {
        ("bad-1", "exit 3"),
        ("bad-2", "signal KILL"),
    }
    assert "2 jobs, 2 failed" in failed.stderr
    assert "3 jobs (showing the newest 1" in desk.run("ghist", "--limit", "1").stderr
    assert "3 jobs, 2 failed" in desk.run("ghist", "--limit", "0").stderr
    unwanted = desk.submit("sleep 600", name="unwanted")
    assert desk.run("gdel", "-W", "0", "--wait", unwanted).status == 0
    assert "4 jobs, 2 failed, 1 cancelled" in desk.run("ghist", "--limit", "0").stderr
    assert "2 jobs, 2 failed" in desk.run("ghist", "--failed").stderr
    assert "1 job, 0 failed, 1 cancelled" in desk.run("ghist", unwanted).stderr
    named = json.loads(desk.run("ghist", "--name", "bad-*", "--json").stdout)
    assert sorted(row["name"] for row in named["jobs"]) == ["bad-1", "bad-2"]
    assert json.loads(desk.run("ghist", "--until", "1h", "--json").stdout)["jobs"] == []
    by_id = desk.run("ghist", bad, "999")
    assert by_id.status == 153
    assert "exit 3" in by_id.stdout


def test_maintenance_is_ordered_listed_kept_over_a_restart_and_cancelled(own_desk: Desk) -> None:
    """A job that would not end before it waits, and says for what and until when."""
    desk = own_desk
    ordered = desk.run("gnodes", "maintenance", "n1", "--from", "+1h", "--to", "+2h", "-m", "disks")
    day = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    told = rf"n1: maintenance 1 from {day} to {day} \(02:00:00\)\n"
    assert ordered.status == 0, ordered.stderr
    assert re.fullmatch(told, ordered.stdout), ordered.stdout
    long = desk.submit("true", resources=("walltime=3:00:00",))
    short = desk.submit("true", resources=("walltime=0:10:00",))
    desk.ended(short)

    why = desk.run("gstat", "--why", long).stdout
    assert "maintenance of n1 from " in why
    assert "disks; its walltime does not end before" in why
    (window,) = json.loads(desk.run("gnodes", "maintenance", "--json").stdout)["maintenance"][0][
        "windows"
    ]
    assert window["to_s"] - window["from_s"] == 7200
    said = desk.run("gstat", "--why", "--json", "job_id,start.expected_s", long).stdout
    assert str(window["to_s"]).rstrip("0").rstrip(".") in said, "the forecast counts with its end"
    desk.cluster.kill_head()
    desk.cluster.start_head()
    desk.cluster.wait_for_node("n1")
    listed = desk.run("gnodes", "maintenance").stdout
    assert "planned" in listed
    assert "disks" in listed
    assert "maintenance from " in desk.run("gnodes").stdout

    cancelled = desk.run("gnodes", "maintenance", "--cancel", "1")
    assert (cancelled.status, cancelled.stdout) == (0, "n1: maintenance 1 cancelled\n")
    desk.ended(long)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("maintenance", "n1", "--from", "+1h"), "maintenance needs its end"),
        (("maintenance", "--to", "+1h"), "maintenance needs at least one node"),
        (("maintenance", "n1", "--to", "2h"), "'2h' is a time ago"),
        (("maintenance", "n1", "--to", "+x"), "--to: "),
        (("maintenance", "n1", "--cancel", "9"), "node n1 has no maintenance 9"),
        (("maintenance", "--cancel", "9"), "there is no maintenance 9"),
        (("maintenance", "n1", "--cancel", "9", "--to", "+1h"), "mutually exclusive"),
        (("drain", "n1", "--to", "+1h"), "--to is valid only with maintenance"),
        (("n1", "--from", "+1h"), "--from is valid only with maintenance"),
        (("maintenance", "n9", "--to", "+1h"), "unknown node 'n9'"),
    ],
)
def test_mistakes_with_maintenance_say_what_is_wrong(
    desk: Desk, words: tuple[str, ...], message: str
) -> None:
    said = desk.run("gnodes", *words)

    assert said.status != 0
    assert message in said.stderr
    assert "Traceback" not in said.stderr

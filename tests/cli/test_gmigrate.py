"""gmigrate, gnodes drain --migrate, and what gstat and gsub say of moves."""

import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from gsched.client import new_job
from gsched.protocol.job_rows import JobStory
from tests.support import stand_in_training
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import Ran, command_environment, run_command
from tests.support.processes import PATIENCE_S

pytestmark = pytest.mark.timeout(180)
PROGRAM = Path(stand_in_training.__file__)


class Desk:
    """A cluster with two nodes of two GPUs, and the commands on it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def run(self, name: str, *arguments: str) -> Ran:
        """Run a command."""
        return run_command(name, *arguments, head=self.cluster.socket, cwd=self.cluster.jobs)

    def train(self, *words: str, gpus: int = 1, starts: bool = True, **more: object) -> str:
        """Submit the stand-in for a training, on GPUs of one node; return its number.

        Args:
            starts: wait for its first step; else until it is given to a node.
        """
        command = shlex.join([sys.executable, str(PROGRAM), *words])
        job = new_job(
            name="train",
            workdir=str(self.cluster.jobs),
            script=f"#!/bin/sh\nexec {command}\n",
            resources=(f"nodes=1:gpus={gpus}",),
            **{"movable": True, **more},
        )
        result = self.cluster.head.submit([job]).results[0]
        assert result.error is None, result.error
        number = str(result.id)
        if not starts:
            wait_until(lambda: self.story(number).row.state == "running", what="its assignment")
            return number
        wait_until(lambda: self.story(number).progress, what="its first step")
        self.cluster.wait_for_start(number)
        return number

    def story(self, job: str) -> JobStory:
        """Return all that is known of a job."""
        return self.cluster.head.job(job)

    def nodes(self, job: str) -> tuple[str, ...]:
        """Return where it is."""
        return self.story(job).row.nodes


@pytest.fixture
def desk(cluster: Cluster) -> Desk:
    """Return a desk whose cluster is up."""
    cluster.queues = '[[queue]]\nname = "batch"\npolicy = "fifo"\n'  # it fills n1 first
    cluster.start_head()
    for name in ("n1", "n2"):
        cluster.start_node(name, cpus=4, gpus=2)
    return Desk(cluster)


def test_a_job_moves_and_every_phase_is_told(desk: Desk) -> None:
    job = desk.train()
    assert desk.nodes(job) == ("n1",)

    would = desk.run("gmigrate", job, "--to", "n2", "--dry-run")
    assert (would.status, would.stdout) == (0, f"{job}: would migrate to n2 (1 CPU, GPU 0)\n")
    ran = desk.run("gmigrate", job, "--to", "n2", "--wait", "-m", "loud fan")

    assert ran.status == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[0] == f"{job}: migration to n2 (1 CPU, GPU 0) requested"
    phases = [line.split("  ")[1].strip() for line in lines[1:]]
    assert phases == [*("requested", "checkpointed", "stopped", "placed", "starting", "first step")]
    assert desk.nodes(job) == ("n2",)
    story = desk.story(job)
    assert (story.row.attempt, story.row.moves) == (2, 1)
    assert story.move is not None
    assert story.move.cost_s is not None
    assert any("loud fan" in event.text for event in story.events)
    shown = desk.run("gstat", "-f", job).stdout
    assert re.search(r"^    moves = 1, \d+\.\d+ s without progress$", shown, re.MULTILINE)
    listed = json.loads(desk.run("gstat", "--json", job).stdout)["jobs"][0]
    assert (listed["moves"], listed["moves_cost_s"]) == (1, story.move.cost_s)
    assert "    last_move = done, " in shown
    titles, line = desk.run("ghist", job).stdout.splitlines()
    past = dict(zip(titles.split("\t"), line.split("\t"), strict=True))
    assert re.fullmatch(r"1, \d\d:\d\d:\d\d lost", past["Moves"])
    assert f"    checkpoint_dir = {desk.cluster.jobs}/gsched-checkpoints/{job}\n" in shown
    assert "    checkpoint = step " in shown


def test_json_is_one_document(desk: Desk) -> None:
    job = desk.train()

    asked = json.loads(desk.run("gmigrate", job, "--json", "--dry-run").stdout)
    assert asked["results"][0]["text"] == "would migrate to n2 (1 CPU, GPU 0)"
    moved = json.loads(desk.run("gmigrate", job, "--json", "--wait").stdout)

    assert moved["job"]["nodes"] == ["n2"]
    assert moved["move"]["phase"] == "done"
    assert moved["move"]["saved_s"] <= moved["move"]["left_s"] <= moved["move"]["placed_s"]


def test_a_job_that_cannot_save_its_state_runs_on_and_the_reason_is_told(desk: Desk) -> None:
    job = desk.train("--fails", "no space left on device")

    ran = desk.run("gmigrate", job, "--wait")

    assert ran.status != 0
    assert f"job {job}.test: migration abandoned: no space left on device" in ran.stderr
    assert "the job keeps running where it was" in ran.stderr
    story = desk.story(job)
    assert (story.row.state, story.row.attempt, story.row.nodes) == ("running", 1, ("n1",))


def test_a_migration_that_is_under_way_is_waited_for_if_it_leads_there(desk: Desk) -> None:
    """A drain moves the job at the same moment as its user."""
    job = desk.train("--save-s", "8")
    assert desk.run("gnodes", "drain", "n1", "--migrate", "-m", "fan").status == 0
    wait_until(lambda: desk.story(job).moves_requested == 1, what="the drain's migration")

    other = desk.run("gmigrate", job, "--to", "n1", "--wait")
    plain = desk.run("gmigrate", job)
    ran = desk.run("gmigrate", job, "--to", "n2", "--wait")

    under_way = f"job {job} already migrates to n2, requested by gsched (n1 is drained: fan)"
    assert (other.status, plain.status) == (170, 170)
    assert under_way in plain.stderr
    assert f"hint: gmigrate --wait {job} waits for that migration" in plain.stderr
    assert ran.status == 0, ran.stderr
    assert f"{under_way}; waiting for that migration" in ran.stderr
    assert ran.stdout.splitlines()[-1].split()[1:3] == ["first", "step"]
    assert (desk.nodes(job), desk.story(job).moves_requested) == (("n2",), 1)


def test_with_wait_the_start_of_a_job_is_waited_for(cluster: Cluster) -> None:
    """Without it the request is refused; a job that is cancelled meanwhile is an error."""
    desk = Desk(cluster)
    cluster.queues = '[[queue]]\nname = "batch"\npolicy = "fifo"\n'
    cluster.start_head()
    for name in ("n1", "n2"):
        cluster.start_node(name, cpus=4, gpus=2)
    found = json.loads((cluster.node_dir("n1") / "launcher.json").read_text())
    launcher = psutil.Process(found["pid"])
    for ends in (True, False):
        starters = (launcher, *launcher.children())  # it keeps supervisors for the next jobs
        for each in starters:
            each.suspend()
        try:
            job = desk.train(starts=False)
            refused = desk.run("gmigrate", job)
            assert (refused.status, "is still starting" in refused.stderr) == (170, True)
            waiting = subprocess.Popen(
                [sys.executable, "-m", "gsched.cli.commands.gmigrate", job, "--wait"],
                env=command_environment(desk.cluster.socket),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            assert waiting.stderr is not None
            assert "is still starting: " in (line := waiting.stderr.readline())
            assert line.endswith("; waiting for its start\n")
            if ends:
                desk.run("gdel", job)
        finally:
            for each in starters:
                each.resume()
        printed, words = waiting.communicate(timeout=PATIENCE_S)
        if ends:
            assert waiting.returncode == 170
            assert re.search(r"already finished|only a running job can migrate", words)
        else:
            assert waiting.returncode == 0, words
            assert printed.splitlines()[-1].split()[1:3] == ["first", "step"]
            assert desk.nodes(job) == ("n2",)


def test_the_own_migration_is_waited_for_and_not_a_later_one(desk: Desk) -> None:
    """It is stopped while its migration completes and the next one is requested."""
    job = desk.train()
    waiting = subprocess.Popen(
        [sys.executable, "-m", "gsched.cli.commands.gmigrate", job, "--to", "n2", "--wait"],
        env=command_environment(desk.cluster.socket),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert waiting.stdout is not None
    first = waiting.stdout.readline()
    waiting.send_signal(signal.SIGSTOP)
    assert first.endswith("requested\n")
    wait_until(lambda: (move := desk.story(job).move) and move.resumed_s, what="its first step")
    asked = desk.run("gmigrate", job, "--to", "n1", "-m", "again")
    assert asked.status == 0, asked.stderr
    waiting.send_signal(signal.SIGCONT)

    out, told = waiting.communicate(timeout=60)

    assert waiting.returncode == 0, told
    assert out.splitlines()[-1].split()[1] in {"complete", "first"}
    assert "since then: migration to n1 (1 CPU, GPU 0) requested by " in told
    assert ": again; see gstat -f" in told


def test_what_cannot_be_is_refused(desk: Desk) -> None:
    job = desk.train(gpus=2)
    full = desk.train(gpus=2)
    for words, said in (
        ([job, "--to", "n3"], "unknown node 'n3'"),
        ([job, "--to", "n2"], f"n2 has no room for job {job} now"),
        ([job, "--to", "n2"], f"; GPUs 0,1 of n2 are in use by job {full} of "),
        ([job, "--to", "n2"], "hint: request it again when one of these jobs has ended, or name"),
        ([job, "--gpus", "1"], "runs on no other number"),
        ([job, "--gpus", "0"], "--gpus"),
        (["999"], "Unknown Job Id 999"),
        (["999", "--wait"], "Unknown Job Id 999"),
        (["x"], "x"),
    ):
        ran = desk.run("gmigrate", *words)
        assert ran.status != 0, words
        assert said in ran.stderr
        assert "Traceback" not in ran.stderr
    assert {desk.story(each).moves_requested for each in (job, full)} == {0}


def test_a_drain_with_migrate_moves_what_can_be_moved(desk: Desk) -> None:
    job = desk.train()
    plain = desk.run("gsub", "--gpus", "1", "--", "sleep", "600").stdout.strip()
    desk.cluster.wait_for_start(plain)
    assert desk.nodes(job) == desk.nodes(plain) == ("n1",)

    ran = desk.run("gnodes", "drain", "n1", "--migrate", "-m", "new driver")

    assert ran.status == 0, ran.stderr
    assert (
        ran.stdout == "n1: drained: 1 job migrates to other nodes, 1 cannot migrate and runs on\n"
    )
    wait_until(lambda: desk.nodes(job) == ("n2",), what="the move")
    assert desk.nodes(plain) == ("n1",)
    assert desk.story(plain).row.attempt == 1
    assert desk.run("gnodes", "resume", "--migrate", "n1").status == 2
    assert desk.run("gnodes", "--migrate").status == 2
    refused = desk.run("gmigrate", "ALL", "--wait")
    assert (refused.status, "--wait needs a single job" in refused.stderr) == (2, True)
    assert desk.run("gnodes", "resume", "n1").status == 0
    desk.cluster.wait_for_start(job)
    everything = desk.run("gmigrate", "all", "--dry-run")
    assert everything.stdout.startswith(f"{job}.test: would migrate to n1")
    assert f"job {plain.partition('.')[0]} does not say that" in everything.stderr


def test_a_drain_says_of_each_job_what_gmigrate_would_say(desk: Desk) -> None:
    """A job on both of two nodes was said to go on elsewhere; there is nowhere to go."""
    wide = desk.run(
        *("gsub", "-l", "nodes=2:gpus=1", "--every-node", "--checkpoint-signal", "USR1"),
        *("--", "sleep", "600"),
    ).stdout.strip()
    wait_until(
        lambda: {each.state for each in desk.story(wide).attempts} == {"running"}, what="its start"
    )

    assert desk.run("gmigrate", wide, "--dry-run").status != 0
    drained = desk.run("gnodes", "drain", "n2", "--migrate", "-m", "fans")

    assert drained.stdout == "n2: drained: 1 job cannot migrate and runs on\n"
    assert desk.run("gdel", "-W", "0", "--wait", wide).status == 0
    again = desk.run("gnodes", "drain", "n1", "--migrate", "-m", "fans")
    assert again.stdout == "n1: drained: no job runs there\n"


def test_gmigrate_without_wait_says_where_to_look(desk: Desk) -> None:
    """It has only asked: the move may still fail, as this one does."""
    job = desk.train("--fails", "no space left on device")

    ran = desk.run("gmigrate", job)

    assert (ran.status, ran.stdout) == (0, f"{job}: migration to n2 (1 CPU, GPU 0) requested\n")
    assert ran.stderr == f"gmigrate: gstat -f {job} shows the result; --wait waits for it\n"


def test_gsub_says_how_a_job_saves_its_state(desk: Desk) -> None:
    script = desk.cluster.jobs / "train.sh"
    script.write_text("#!/bin/sh\n#GSUB --checkpoint-signal USR1 --grace 120\nexec sleep 600\n")
    job = desk.run("gsub", "--requeue-on", "node-failure:5", str(script)).stdout.strip()
    shown = desk.run("gstat", "-f", job).stdout

    assert "    checkpoint_signal = 10 (USR1)\n" in shown
    assert "    requeue_on = node-failure, 0 of 5 restarts in a row\n" in shown
    assert "    movable = True\n" in shown
    elastic = ["--elastic", "--checkpoint-dir", "saved", "--checkpoint-interval", "10m"]
    asked = json.loads(desk.run("gsub", "--dry-run", "--json", *elastic, "--", "true").stdout)
    assert asked["job"]["checkpoint_dir"] == str(desk.cluster.jobs / "saved")
    assert asked["job"]["checkpoint_interval_s"] == 600.0
    for words, said in (
        (["--checkpoint-dir", "saved"], "the job saves none"),
        (["--checkpoint-interval", "10m"], "gsched.elastic"),
        (["--checkpoint-signal", "KILL"], "cannot be caught"),
        (["--checkpoint-signal", "FOO"], "--checkpoint-signal: unknown signal 'FOO'"),
        (["--requeue-on", "rain"], "--requeue-on: invalid value 'rain'"),
        (["--requeue-on", "node-failure:0"], "node-failure:0"),
    ):
        ran = desk.run("gsub", *words, "--", "true")
        assert ran.status != 0, words
        assert said in ran.stderr


def test_a_job_that_only_knows_a_signal_goes_on_elsewhere(desk: Desk) -> None:
    script = (
        "#!/bin/sh\ncount=$(cat count 2>/dev/null || echo 0)\n"
        "trap 'echo $count > count; exit 3' USR1\n"
        'echo "attempt $GSCHED_ATTEMPT from $count" >> story\n'
        "while :; do count=$((count + 1)); sleep 0.05; done\n"
    )
    job = new_job(
        name="old",
        workdir=str(desk.cluster.jobs),
        script=script,
        checkpoint_signal=10,
        grace_s=60.0,
    )
    number = str(desk.cluster.head.submit([job]).results[0].id)
    story = desk.cluster.jobs / "story"
    wait_until(
        lambda: story.exists() and desk.story(number).attempts[-1].state == "running",
        what="the head to know of its start",
    )

    ran = desk.run("gmigrate", number, "--to", "n2", "--wait")

    assert ran.status == 0, ran.stderr
    assert "checkpointed" not in ran.stdout
    wait_until(lambda: story.read_text().count("\n") == 2, what="the second start")
    lines = story.read_text().splitlines()
    assert lines[0] == "attempt 1 from 0"
    assert lines[1].startswith("attempt 2 from ")
    assert int(lines[1].split()[-1]) >= 0
    assert desk.nodes(number) == ("n2",)

"""``gsched up`` and ``gsched down``: a whole cluster, stopped, crashed and revived."""

import errno
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from gnode.compiling import find_compiler
from gsched.cli.local import cluster
from gsched.cli.local.daemons import launcher_process, read_pid
from gsched.cli.local.layout import ClusterLayout
from gsched.client import HeadClient, new_job
from gsched.config.tables import Config
from gsched.protocol.job_rows import JobStory
from tests.support import records
from tests.support.builds import give_native_library
from tests.support.cluster import NATIVE_WORDS, wait_until
from tests.support.commands import Ran, command_environment, run_command
from tests.support.processes import MARKER, kill_all, processes_of

pytestmark = pytest.mark.timeout(180)


class Site:
    """A directory, and the commands on it.

    The head's configuration is there already, without the monitor, unless it is ``fresh``. Then
    each daemon has an interpreter of its own, otherwise it is a fork. The ``library`` that runs
    plain jobs is there, if it is given.
    """

    def __init__(self, directory: Path, *, fresh: bool, library: str = "") -> None:
        self.layout = ClusterLayout(directory=directory)
        self._env = {"GSCHED_TEST_NO_FORKS": "1"} if fresh else {}
        if not fresh:
            directory.mkdir()
            cluster.write_head(self.layout, Config(head=cluster.new_head(self.layout)))
            cluster.change(self.layout.config, ("web", "enabled"), value=False)
        if library:
            for name in ("n1", "n2"):
                give_native_library(library, self.layout.node(name).directory)
        self.head = HeadClient(str(self.layout.socket))
        self.jobs = directory.parent / "jobs"
        self.jobs.mkdir()

    def up(self, *arguments: str) -> Ran:
        """Run ``gsched up`` and expect it to succeed."""
        words = ("gsched", "up", "--dir", str(self.layout.directory), *arguments)
        ran = run_command(*words, env=self._env)
        assert ran.status == 0, ran
        return ran

    def down(self, *arguments: str) -> Ran:
        """Run ``gsched down``."""
        return run_command("gsched", "down", "--dir", str(self.layout.directory), *arguments)

    def submit(self, script: str, *resources: str) -> int:
        """Submit a script that writes below ``jobs``; return the job's number."""
        job = new_job(
            name="try", workdir=str(self.jobs), script=f"#!/bin/sh\n{script}", resources=resources
        )
        result = self.head.submit([job]).results[0]
        assert result.error is None, result.error
        return result.id

    def outcome(self, job: int) -> JobStory:
        """Return the story of a job once it has ended."""
        story = self.head.wait([job], timeout_s=60.0)[0]
        assert story.row.state == "done", story
        return story

    def wait_for(self, name: str) -> Path:
        """Wait until a job has written a file below ``jobs``."""
        path = self.jobs / name
        wait_until(path.exists, what=str(path))
        return path

    def pids(self) -> dict[str, int]:
        """Return the process of each daemon by its label."""
        daemons = [cluster.head_daemon(self.layout)]
        daemons += [cluster.node_daemon(node) for node in self.layout.nodes()]
        found = {daemon.label: read_pid(daemon.pid_file) for daemon in daemons}
        return {label: pid for label, pid in found.items() if pid is not None}

    def kill_daemons(self) -> None:
        """Kill the head and all nodes with SIGKILL."""
        for pid in self.pids().values():
            process = psutil.Process(pid)
            process.kill()
            wait_until(functools.partial(_is_over, process), what=f"{process} to be gone")


def _is_over(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _binds(listener: socket.socket, port: int) -> bool:
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True


#: All of it runs, the monitor, too; with "bare" nodes also compile the library for plain jobs.
fresh = pytest.mark.parametrize("site", ["fresh"], indirect=True)
bare = pytest.mark.parametrize("site", ["bare"], indirect=True)


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path: Path, process_marker: str) -> Iterator[Site]:
    """Return a site whose processes are gone at the end, whatever a test did."""
    kind = getattr(request, "param", "")
    has_library = kind != "bare" and find_compiler() is not None
    library = request.getfixturevalue("native_library") if has_library else ""
    site = Site(tmp_path / "c", fresh=bool(kind), library=library)
    yield site
    kill_all(lambda: processes_of(process_marker, tmp_path))


@bare
def test_up_runs_a_job_and_down_leaves_nothing(site: Site, tmp_path: Path) -> None:
    """The whole life; the second `down` finds nothing to do."""
    ran = site.up("--nodes", "2", "--cpus", "2", "--gpus", "3", "--memory", "1gb")

    assert ran.stdout.splitlines()[0] == f"export GSCHED_HEAD={site.layout.socket}"
    nodes = {row.name: row for row in site.head.nodes().nodes}
    assert sorted(nodes) == ["n1", "n2"]
    assert {(row.state, row.cpus, row.gpus) for row in nodes.values()} == {("up", 2, 3)}
    assert {row.memory_bytes for row in nodes.values()} == {1024**3}
    job = site.submit("echo hello > out.txt")
    outcome = site.outcome(job).row.outcome
    assert outcome is not None
    assert (outcome.kind, outcome.exit_code) == ("exited", 0)
    assert (site.jobs / "out.txt").read_text() == "hello\n"
    if find_compiler() is not None:
        log = site.layout.node("n1").log
        wait_until(lambda: NATIVE_WORDS in log.read_text(), what="the library for plain jobs")

    down = site.down()
    assert down.status == 0
    assert "node n1" in down.stdout
    assert "head" in down.stdout
    assert processes_of(os.environ[MARKER], tmp_path) == []
    again = site.down()
    assert (again.status, again.stdout) == (
        0,
        f"nothing was running in {site.layout.directory}\n",
    )


@fresh
def test_up_twice_keeps_what_runs(site: Site) -> None:
    """The same processes; what was requested otherwise is told and not done."""
    site.up("--nodes", "1", "--cpus", "2")
    before = site.pids()
    ran = site.up("--cpus", "7", "--json")

    report = json.loads(ran.stdout)
    assert site.pids() == before
    assert report["started"] == []
    assert sorted(report["kept"]) == ["head", "node n1"]
    assert any("n1 keeps its --cpus 2" in note for note in report["notes"])
    assert site.head.nodes().nodes[0].cpus == 2


def test_up_changes_policy_and_shares_of_a_running_cluster(site: Site) -> None:
    """Head and node are restarted for it, jobs keep running; what was refused before is taken."""
    site.up("--nodes", "1", "--cpus", "4", "--gpus", "2")
    running = site.submit("echo x >> running; sleep 600")
    site.wait_for("running")
    share = new_job(
        name="s", workdir=str(site.jobs), script="#!/bin/sh\n", resources=("gpu_share=40%",)
    )
    adaptive = ["--adaptive", "--batch", "16", "--batch-max", "64", "--gpus", "1..2"]
    adaptive += ["--samples", "2048", "--epochs", "4", "--", "true"]
    error = site.head.submit([share]).results[0].error
    assert error is not None
    assert "gsched up --share" in error.hint
    warned = run_command("gsub", *adaptive, head=site.layout.socket, cwd=site.jobs)
    assert "gsched up --policy goodput" in warned.stderr, warned

    ran = site.up("--policy", "goodput", "--share", "--cpus", "7")

    assert "the policy of training jobs is now goodput instead of deadline" in ran.stderr
    assert "node n1 shares GPUs now: colocate" in ran.stderr
    assert "node n1 keeps its --cpus 4: edit " in ran.stderr
    assert site.head.submit([share]).results[0].error is None
    taken = run_command("gsub", *adaptive, head=site.layout.socket, cwd=site.jobs)
    assert (taken.status, "batch sizes" in taken.stderr) == (0, False), taken
    [job] = site.head.jobs([running]).jobs
    assert (job.state, (site.jobs / "running").read_text()) == ("running", "x\n")
    before = site.pids()
    site.up("--policy", "goodput", "--share")
    assert site.pids() == before, "nothing differs"
    shown = run_command("gsched", "config", "show", str(site.layout.config), "--diff")
    assert ("has not read" in shown.stderr, 'policy = "goodput"' in shown.stdout) == (False, True)
    cluster.change(site.layout.config, ("history", "learn"), value=False)
    shown = run_command("gsched", "config", "show", str(site.layout.config), "--diff")
    assert "has not read it as it is now: gsched reload" in shown.stderr
    site.up()
    assert site.pids()["head"] != before["head"], "an edited configuration restarts it"


def test_up_says_which_nodes_cannot_share_their_gpus(site: Site) -> None:
    """Here no MPS control daemon runs; the job that wants a share is told the same."""
    ran = site.up("--nodes", "1", "--cpus", "1", "--gpus", "1", "--share", "mps")

    assert "node n1 cannot share its GPUs: " in ran.stderr


def test_up_adds_nodes_to_a_running_cluster(site: Site) -> None:
    """The old ones go on; the new one is like them."""
    site.up("--nodes", "1", "--cpus", "3")
    before = site.pids()
    site.up("--nodes", "2")

    assert {row.name: row.cpus for row in site.head.nodes().nodes} == {"n1": 3, "n2": 3}
    assert before.items() <= site.pids().items()


def test_up_starts_a_cluster_of_before_certificates(site: Site) -> None:
    """It wrote the key of the cluster to each file itself; everything else in them stays."""
    site.up("--nodes", "1")
    assert site.down().status == 0
    files = (site.layout.config, site.layout.node("n1").config)
    before = [path.read_text() for path in files]
    for path, text in zip(files, before, strict=True):
        line = f'key_file = "{site.layout.directory}/cluster.key"\nstate_dir ='
        path.write_text(text.replace("state_dir =", line, 1))
        assert path.read_text() != text

    site.up()

    assert [path.read_text() for path in files] == before


def test_up_revives_a_cluster_of_which_everything_was_killed(site: Site) -> None:
    """Running, waiting and finished jobs: all are there, each ran once, each has its outcome.

    Launchers and supervisors are killed, too, so that the running job cannot have gone on.
    """
    site.up("--nodes", "2", "--cpus", "1")
    done = site.submit("echo once >> done.txt")
    site.outcome(done)
    lost = site.submit("echo start >> lost.txt; sleep 600", "nodes=1:ppn=1")
    held = [site.submit("sleep 600", "nodes=1:ppn=1"), site.submit("echo x >> waiting.txt")]
    site.wait_for("lost.txt")
    marker = os.environ[MARKER]
    kill_all(lambda: processes_of(marker, site.layout.directory.parent))
    # A pid file now names a process that is alive and somebody else's.
    site.layout.pid.write_text(f"{os.getpid()}\n")

    site.up()
    stories = {row.id: row for row in site.head.jobs([done, lost, *held]).jobs}
    assert sorted(stories) == [done, lost, *held]
    assert stories[done].state == "done"
    assert (site.jobs / "done.txt").read_text() == "once\n"
    assert site.down("--kill-jobs").status == 0


def test_a_job_outlives_the_daemons_and_its_outcome_is_found(site: Site) -> None:
    """kill -9 of head and nodes while it runs; it ends while nobody looks; `up` learns of it."""
    site.up("--nodes", "1")
    go = site.jobs / "go"
    job = site.submit("touch running; while [ ! -e go ]; do sleep 0.05; done; exit 7")
    site.wait_for("running")
    site.kill_daemons()
    go.touch()
    launcher = launcher_process(site.layout.node("n1").directory)
    assert launcher is not None
    wait_until(
        lambda: records.ended(site.layout.node("n1").directory / "attempts" / f"{job}.1"),
        what="the supervisor's exit record",
    )

    site.up()
    story = site.outcome(job)
    assert story.row.outcome is not None
    assert story.row.outcome.exit_code == 7
    assert len(story.attempts) == 1


def test_config_check_of_its_file_says_where_the_nodes_have_theirs(site: Site) -> None:
    site.up("--nodes", "2", "--cpus", "1")

    said = run_command("gsched", "config", "check", str(site.layout.config)).stdout
    of_node = run_command("gsched", "config", "check", str(site.layout.node("n2").config)).stdout

    assert "connects to" not in said
    assert f"nodes: each of 2 reads its own file: {site.layout.node('n1').config}" in said
    assert f"node: connects to unix:{site.layout.node_socket}\n" in of_node
    assert site.down().status == 0


def test_down_leaves_running_jobs_and_up_finds_them(site: Site) -> None:
    """The report says that they run on."""
    site.up("--nodes", "1")
    job = site.submit("touch running; while [ ! -e go ]; do sleep 0.05; done; echo end > end.txt")
    site.wait_for("running")
    down = site.down()
    assert down.status == 0
    assert "keep running under their supervisors: 1;" in down.stdout
    assert not (site.jobs / "end.txt").exists()

    site.up()
    (site.jobs / "go").touch()
    story = site.outcome(job)
    assert story.row.outcome is not None
    assert story.row.outcome.exit_code == 0
    assert len(story.attempts) == 1
    assert (site.jobs / "end.txt").read_text() == "end\n"


def test_kill_jobs_ends_running_and_waiting_jobs(site: Site, tmp_path: Path) -> None:
    """Also those that ignore TERM, also when the cluster had been killed; each has its outcome."""
    site.up("--nodes", "1", "--cpus", "1")
    running = site.submit("trap '' TERM; touch running; while :; do sleep 0.05; done")
    waiting = site.submit("touch never")
    site.wait_for("running")
    site.kill_daemons()

    down = site.down("--kill-jobs")
    assert down.status == 0, down
    assert "jobs ended: 2\n" in down.stdout
    assert processes_of(os.environ[MARKER], tmp_path) == []
    assert not (site.jobs / "never").exists()
    site.up()
    rows = site.head.jobs([running, waiting]).jobs
    assert [row.state for row in rows] == ["done", "done"]
    assert {row.outcome.kind for row in rows if row.outcome} == {"cancelled"}


@pytest.mark.parametrize("down", ["", "node n1"])
def test_kill_jobs_works_while_the_file_of_a_node_is_broken(site: Site, down: str) -> None:
    """Whether all daemons run, or another node has to be restarted for it."""
    site.up("--nodes", "2", "--cpus", "1")
    job = site.submit("touch running; sleep 600", "nodes=n1:ppn=1")
    site.wait_for("running")
    site.layout.node("n2").config.write_text("[node]\nnosuch = 1\n")
    if down:
        os.kill(site.pids()[down], signal.SIGKILL)

    ended = site.down("--kill-jobs")

    assert ended.status == 0, ended
    assert "jobs ended: 1\n" in ended.stdout
    site.layout.node("n2").config.unlink()
    site.up()
    [row] = site.head.jobs([job]).jobs
    assert (row.state, row.outcome and row.outcome.kind) == ("done", "cancelled")


def test_a_killed_head_alone_comes_back_on_its_port(site: Site) -> None:
    """The nodes are left alone and find it again."""
    site.up("--nodes", "1")
    before = site.pids()
    port = site.layout.port.read_text()
    os.kill(before["head"], signal.SIGKILL)
    with closing(socket.socket()) as probe:  # the kernel buries the head's last connection
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        wait_until(functools.partial(_binds, probe, int(port)), what="a free port")
    report = json.loads(site.up("--json").stdout)

    assert report["started"] == ["head"]
    assert site.pids()["node n1"] == before["node n1"]
    assert site.layout.port.read_text() == port
    site.outcome(site.submit("true"))


def test_a_port_that_was_taken_meanwhile_is_replaced(site: Site) -> None:
    """Nodes that still dial the old one are started again with the new."""
    site.up("--nodes", "1")
    port = int(site.layout.port.read_text())
    before = site.pids()
    os.kill(before["head"], signal.SIGKILL)
    with closing(socket.socket()) as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # the kernel gives the port back when it has buried the head's last connection
        wait_until(functools.partial(_binds, squatter, port), what="a free port")
        squatter.listen()
        report = json.loads(site.up("--json").stdout)

        assert int(site.layout.port.read_text()) != port
        assert any(f"port {port} is in use" in note for note in report["notes"])
        site.outcome(site.submit("true"))


def test_a_head_that_cannot_start_is_named_with_its_log(site: Site) -> None:
    """Exit code 75; the cause stands in what the user sees."""
    site.up("--nodes", "1")
    site.down()
    text = site.layout.config.read_text()
    site.layout.config.write_text(text.replace("[head]", '[head]\noperators = ["no-such-user"]'))
    ran = run_command("gsched", "up", "--dir", str(site.layout.directory))

    assert ran.status == 75
    assert "gsched: head: exited with exit status" in ran.stderr
    assert str(site.layout.log) in ran.stderr
    assert "unknown user 'no-such-user'" in ran.stderr
    assert "serves" not in ran.stderr, "the log of the last start has nothing to do with it"
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("crashed", [False, True], ids=["stopped", "crashed"])
def test_a_node_that_cannot_start_is_named_with_its_log(site: Site, *, crashed: bool) -> None:
    """Others can change its file. After a crash the head still shows it as up: no excuse."""
    site.up("--nodes", "1")
    if crashed:
        site.kill_daemons()
    else:
        assert site.down().status == 0
    node = site.layout.node("n1")
    node.config.chmod(0o666)
    ran = run_command("gsched", "up", "--dir", str(site.layout.directory))

    assert ran.status == 75
    assert "gsched: node n1: exited with exit status 78" in ran.stderr
    assert "gnode.toml" in ran.stderr
    doctor = run_command("gsched", "doctor", "--dir", str(site.layout.directory))
    assert doctor.status == 1
    assert "node n1" in doctor.stdout
    assert site.down().status == 0


@fresh
def test_two_ups_at_once_do_not_start_two_heads(site: Site) -> None:
    """The second waits for nobody: it is told, or finds all done."""
    words = [
        sys.executable,
        "-m",
        "gsched.cli.commands.gsched",
        "up",
        "--dir",
        str(site.layout.directory),
    ]
    both = [
        subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(2)
    ]
    statuses = sorted(process.wait(120) for process in both)

    assert statuses in ([0, 0], [0, 75])
    assert site.up().status == 0
    heads = [
        process
        for process in psutil.process_iter(["cmdline"])
        if str(site.layout.config) in (process.info["cmdline"] or [])
    ]
    assert len(heads) == 1


@fresh
def test_a_healthy_cluster_pleases_the_doctor(site: Site) -> None:
    """Also one that is found by GSCHED_HEAD alone."""
    site.up("--nodes", "1")
    ran = run_command("gsched", "doctor", "--json", head=site.layout.socket)

    report = json.loads(ran.stdout)
    assert [each for each in report["findings"] if each["level"] == "FAIL"] == []
    subjects = {each["subject"] for each in report["findings"]}
    assert {"head", "node n1", "certificates", "database", "nodes"} <= subjects
    assert ran.status == 0


def test_a_cut_database_is_told_shown_and_accepted(site: Site) -> None:
    """B6 for its operator: up, doctor and recover all say it; accepted, jobs start again."""
    site.up("--nodes", "1")
    for _ in range(3):
        site.outcome(site.submit("true"))
    site.kill_daemons()  # a clean stop would have folded the log into the database
    log = site.layout.directory / "gsched.db-wal"
    os.truncate(log, log.stat().st_size // 3)
    ran = site.up()

    assert "safe mode and starts no job" in ran.stderr
    head = site.layout.socket
    doctor = run_command("gsched", "doctor", "--json", head=head)
    assert '"subject":"safe mode"' in doctor.stdout
    assert doctor.status == 1
    shown = run_command("gsched", "recover", head=head)
    assert shown.status == 1
    assert shown.stdout.startswith("Safe mode: the database ends at event")
    assert run_command("gsub", "--", "true", head=head).status == 75
    assert run_command("gsched", "recover", "--accept", head=head).status == 0
    job = site.submit("true")
    assert job > 1000, "no number is handed out twice"
    site.outcome(job)
    assert run_command("gsched", "recover", head=head).status == 0


def test_a_lost_database_is_not_replaced_by_an_empty_one(site: Site) -> None:
    """A22: up fails, and the head's own words say what to do."""
    site.up("--nodes", "1")
    site.outcome(site.submit("true"))
    assert site.down().status == 0
    for path in site.layout.directory.glob("gsched.db*"):
        path.unlink()
    ran = run_command("gsched", "up", "--dir", str(site.layout.directory))

    assert ran.status == 75
    assert "gsched.db is gone" in ran.stderr
    assert not site.layout.database.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_another_user_may_look_but_not_touch(site: Site, tmp_path: Path) -> None:
    """Errors in words; the doctor does not take for broken what it may not see."""
    for directory in (tmp_path, *tmp_path.parents):
        if directory == Path(tempfile.gettempdir()):
            break
        directory.chmod(0o755)
    site.up("--nodes", "1")

    def as_daemon(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "gsched.cli.commands.gsched", *words],
            env=command_environment(site.layout.socket, HOME="/"),
            user="daemon",
            group="daemon",
            extra_groups=(),
            capture_output=True,
            text=True,
            check=False,
        )

    doctor = as_daemon("doctor", "--json")
    assert doctor.returncode == 0, doctor
    for verb in ("up", "down"):
        ran = as_daemon(verb, "--dir", str(site.layout.directory))
        assert ran.returncode == 73
        assert str(site.layout.directory) in ran.stderr
    assert site.pids().keys() == {"head", "node n1"}
    assert site.head.nodes().nodes[0].state == "up"

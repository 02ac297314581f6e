"""The site's programs around a job: prolog, epilog and the owner's parts, in real daemons."""

import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support import records
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import Ran, run_command

pytestmark = pytest.mark.timeout(120)

#: Each program does what the file of its name says, and keeps what it was given.
PROGRAM = """#!/bin/sh
here={directory}
echo "$GSCHED_STAGE" >> $here/calls
printf '%s\\n' "$@" > "$here/arguments.$GSCHED_STAGE"
env > "$here/environment.$GSCHED_STAGE"
if [ -f "$here/do.$GSCHED_STAGE" ]; then . "$here/do.$GSCHED_STAGE"; fi
"""


class Site:
    """A cluster of one node whose programs are what a test wants them to be."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "site"
        self.directory.mkdir()
        program = self.directory / "program"
        program.write_text(PROGRAM.format(directory=self.directory))
        program.chmod(0o755)
        self.cluster = Cluster(directory / "c", f"site-{uuid.uuid4().hex}")
        self.cluster.start_head()
        self.start_node()

    def start_node(self, prolog_timeout_s: int = 60) -> None:
        """Start gnode, or another one after the death of the last."""
        program = str(self.directory / "program")
        self.cluster.start_node(
            "n1",
            cpus=4,
            prolog=program,
            epilog=program,
            prolog_user=program,
            epilog_user=program,
            prolog_timeout_s=prolog_timeout_s,
            epilog_timeout_s=30,
        )

    def does(self, stage: str, script: str) -> None:
        """Let one of the programs do something."""
        (self.directory / "new").write_text(script)
        (self.directory / "new").rename(self.directory / f"do.{stage}")

    def does_nothing(self, stage: str) -> None:
        (self.directory / f"do.{stage}").unlink()

    def calls(self) -> list[str]:
        """Return which programs ran since the last call."""
        path = self.directory / "calls"
        found = path.read_text().split() if path.exists() else []
        path.unlink(missing_ok=True)
        return found

    def given(self, stage: str) -> tuple[list[str], dict[str, str]]:
        """Return the arguments and the environment that a program had last."""
        arguments = (self.directory / f"arguments.{stage}").read_text().split("\n")[:-1]
        lines = (self.directory / f"environment.{stage}").read_text().splitlines()
        pairs = (line.partition("=") for line in lines)
        return arguments, {name: value for name, _, value in pairs}

    def run(self, *words: str) -> Ran:
        return run_command(
            words[0], *words[1:], head=str(self.cluster.socket), cwd=self.cluster.jobs
        )

    def gsub(self, *words: str) -> str:
        job = self.run("gsub", *words)
        assert job.status == 0, job.stderr
        return job.stdout.strip()

    def reason(self, job: str) -> str:
        return self.run("gstat", "-f", job).stdout

    def nodes(self) -> str:
        return self.run("gnodes").stdout


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.cluster.stop()


def test_all_four_run_around_a_job_with_its_description(site: Site, tmp_path: Path) -> None:
    """Arguments as Torque's, variables of gsched, and the exit code for those after the job."""
    site.does("prolog_user", "echo before >&2; echo $PBS_O_WORKDIR")
    site.does("epilog_user", "test -d $TMPDIR && echo after")
    job = site.gsub(
        *("-N", "hello", "-l", "ncpus=2,walltime=60", "-e", f"{tmp_path}/err"),
        *("--", "sh", "-c", "exit 3"),
    )

    assert site.run("gwait", job).status == 3

    assert site.calls() == ["prolog", "prolog_user", "epilog_user", "epilog"]
    assert (tmp_path / "err").read_text() == f"before\n{site.cluster.jobs}\nafter\n"
    arguments, variables = site.given("prolog")
    assert arguments[0].split(".")[0] == job.split(".")[0]
    assert arguments[3:6] == ["hello", "nodect=1,ncpus=2,walltime=00:01:00", "batch"]
    assert variables["GSCHED_UID"] == str(os.getuid())
    assert variables["GSCHED_NODELIST"] == "n1"
    arguments, variables = site.given("epilog")
    assert arguments[-1] == "3"
    assert (variables["GSCHED_EXIT_CODE"], variables["GSCHED_EXIT_KIND"]) == ("3", "exited")
    assert site.given("epilog_user")[1]["GSCHED_EXIT_CODE"] == "3"


def test_a_job_does_not_start_after_a_failed_prolog_and_a_probe_drains_the_node(
    site: Site, tmp_path: Path
) -> None:
    """The job waits with the text, and the node is resumed once its prolog works again."""
    site.does("prolog", "echo one; echo no scratch disk; exit 4")

    job = site.gsub("-o", f"{tmp_path}/out", "--", "echo", "ran")
    wait_until(lambda: "drained" in site.nodes(), what="the drain")

    assert "no scratch disk" in " ".join(site.nodes().split())
    assert "exit code 4: one / no scratch disk" in site.reason(job)
    assert not (tmp_path / "out").exists()
    site.does_nothing("prolog")
    site.run("gnodes", "resume", "n1")
    assert site.run("gwait", job).status == 0


def test_a_prolog_that_hangs_is_killed_with_what_it_has_started(site: Site) -> None:
    """After prolog_timeout_s."""
    site.cluster.stop_node("n1")
    site.start_node(prolog_timeout_s=2)
    site.does("prolog", f"sleep 300 & echo $! > {site.directory}/pid; wait")

    job = site.gsub("--", "true")
    wait_until(lambda: "did not end within 2 s" in site.reason(job), what="the time-out")

    pid = int((site.directory / "pid").read_text())
    wait_until(lambda: not psutil.pid_exists(pid), what="the end of its process")


def test_a_failed_part_of_the_owner_is_not_the_fault_of_the_node(site: Site) -> None:
    """The job is held at last, and the node stays as it is."""
    site.does("prolog_user", "echo no licence >&2; exit 1")

    job = site.gsub("--", "true")
    wait_until(lambda: "no licence" in site.reason(job), what="the failure")

    assert "drained" not in site.nodes()
    assert "epilog_user" not in site.calls()


def test_an_epilog_is_a_gate_and_a_failed_one_drains_the_node(site: Site) -> None:
    """The next job starts only after it; a failed one does not touch the job's outcome."""
    go = site.directory / "go"
    site.does("epilog", f"while ! [ -f {go} ]; do sleep 0.05; done; echo GPU is stuck; exit 7")
    first = site.gsub("-l", "ncpus=4", "--", "true")
    second = site.gsub("-l", "ncpus=4", "--", "true")
    wait_until((site.directory / "arguments.epilog").exists, what="the epilog")

    assert "R" in site.run("gstat", first).stdout
    assert site.calls() == ["prolog", "prolog_user", "epilog_user", "epilog"]
    go.touch()

    assert site.run("gwait", first).status == 0
    wait_until(lambda: "drained" in site.nodes(), what="the drain")
    assert "exit code 7: GPU is stuck" in " ".join(site.nodes().split())
    assert site.calls() == [], "the next job has not begun"
    site.does_nothing("epilog")
    site.run("gnodes", "resume", "n1")
    assert site.run("gwait", second).status == 0


@pytest.mark.parametrize(
    "victims",
    [("gnode",), ("launcher",), ("gnode", "launcher"), ("runner",), ("supervisor",)],
)
def test_an_epilog_survives_the_death_of(site: Site, victims: tuple[str, ...]) -> None:
    """It is finished, or run again where it is not known to be finished, before the job is over."""
    if victims == ("supervisor",):
        _survive_a_lost_supervisor(site)
        return
    go = site.directory / "go"
    site.does("epilog", f"while ! [ -f {go} ]; do sleep 0.05; done; echo x >> {site.directory}/n")
    job = site.gsub("--", "sh", "-c", "exit 5")
    wait_until((site.directory / "arguments.epilog").exists, what="the epilog")

    for victim in victims:
        if victim == "gnode":
            site.cluster.kill_node("n1")
        else:
            _kill(site, victim)
    if "gnode" in victims:
        site.start_node()
    go.touch()

    assert site.run("gwait", job).status == 5
    if victims != ("runner",):
        assert (site.directory / "n").read_text() == "x\n"


def _survive_a_lost_supervisor(site: Site) -> None:
    """The launcher takes the job over, and its epilog runs all the same."""
    begun, go = site.directory / "begun", site.directory / "go"
    script = f"touch {begun}; while ! [ -e {go} ]; do sleep 0.1; done; exit 5"
    job = site.gsub("--", "sh", "-c", script)
    wait_until(begun.exists, what="the start")
    site.calls()
    wait_until(lambda: records.running(site.cluster.node_dir("n1") / "attempts"), what="its record")
    (directory,) = records.running(site.cluster.node_dir("n1") / "attempts")
    started = records.started(directory)
    assert started is not None
    os.kill(started["pid"], signal.SIGKILL)
    go.touch()

    assert site.run("gwait", job).status == 5
    assert site.calls() == ["epilog"]


def _kill(site: Site, name: str) -> None:
    """Kill the launcher, or the process that runs the epilog."""
    wanted = {"launcher": "gnode-launcher", "runner": "gsv epilog"}[name]
    state = str(site.cluster.node_dir("n1"))
    found = [
        process.pid
        for process in psutil.process_iter(
            ["name", "status", "cmdline"]
        )  # others may end meanwhile
        if process.info["name"] == wanted and process.info["status"] != psutil.STATUS_ZOMBIE
        if state in " ".join(process.info["cmdline"] or ())
    ]
    assert len(found) == 1, found
    os.kill(found[0], signal.SIGKILL)


def test_a_job_that_is_deleted_during_its_prolog_never_starts(site: Site, tmp_path: Path) -> None:
    """And its epilog runs: the prolog may have done a part of its work."""
    site.does("prolog", "sleep 300")
    job = site.gsub("-o", f"{tmp_path}/out", "--", "true")
    wait_until((site.directory / "arguments.prolog").exists, what="the prolog")

    site.run("gdel", job)
    site.run("gwait", job)

    assert site.calls() == ["prolog", "epilog"]
    assert "drained" not in site.nodes()

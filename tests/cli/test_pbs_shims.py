"""The programs of ``gsched install-shims`` on a real head and node."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, wait_until
from tests.support.commands import command_environment, run_command

pytestmark = pytest.mark.timeout(120)


class Shims:
    """The commands of PBS in a directory, and a cluster of one node with two CPUs.

    Attributes:
        home: the home directory of whoever submits; ``jobs`` is where he does.
    """

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.directory = directory
        self.jobs = cluster.jobs
        self.socket = cluster.socket
        self.home = directory / "home"
        self.home.mkdir()
        made = run_command("gsched", "install-shims", str(directory / "bin"))
        assert made.status == 0, made.stderr

    def run(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command of PBS in ``jobs``."""
        path = f"{self.directory / 'bin'}:{os.environ['PATH']}"
        return subprocess.run(
            words,
            env=command_environment(self.socket, PATH=path, HOME=str(self.home)),
            cwd=self.jobs,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture
def shims(cluster: Cluster, tmp_path: Path) -> Shims:
    """Return the commands, with a cluster that is up."""
    cluster.start_head()
    cluster.start_node("n1", cpus=2)
    return Shims(cluster, tmp_path)


def test_a_script_is_submitted_watched_and_deleted_by_the_commands_of_pbs(shims: Shims) -> None:
    script = "#PBS -N whole -l nodes=1:ppn=2,walltime=0:5:0\npwd; cat $PBS_NODEFILE; sleep 600\n"

    submitted = shims.run("qsub", stdin=script)
    job = submitted.stdout.strip()
    assert (submitted.returncode, submitted.stderr, job) == (0, "", "1.test")
    output = shims.jobs / "whole.o1"
    wait_until(lambda: output.exists() and output.read_text().count("n1") == 2, what=str(output))
    assert output.read_text().splitlines()[0] == str(shims.home), "Torque starts jobs at home"
    line = shims.run("qstat", job).stdout.splitlines()[2].split()
    assert line[:2] == ["1.test", "whole"]
    assert line[4:] == ["R", "batch"]
    assert "    exec_host = n1/0+n1/1\n" in shims.run("qstat", "-f", job).stdout
    assert "     state = job-exclusive\n     power" in shims.run("pbsnodes").stdout
    assert shims.run("qselect", "-s", "R").stdout == "1.test\n"

    assert shims.run("qdel", job).returncode == 0

    def finished() -> bool:
        return "job_state = C" in shims.run("qstat", "-f", job).stdout

    wait_until(finished, what="the end of the job")
    assert "    exit_status = 271\n" in shims.run("qstat", "-f", job).stdout
    assert shims.run("qstat").stdout == "", "finished jobs are not listed"
    again = shims.run("qdel", job)
    assert again.returncode == 170
    assert again.stderr.startswith("qdel: Request invalid for state of job")


def test_unknown_resources_are_ignored_with_a_warning(shims: Shims, cluster: Cluster) -> None:
    """Beside those of Torque that change nothing; gsub refuses them."""
    ran = shims.run("qsub", "-l", "ncpus=1,cput=1:00:00,nice=5,frobs=2", stdin="true\n")
    words = ("gsub", "-l", "frobs=2", "--", "true")
    refused = run_command(*words, head=cluster.socket, cwd=cluster.jobs)

    assert (ran.returncode, ran.stdout) == (0, "1.test\n")
    assert [line.split(":")[1].strip() for line in ran.stderr.splitlines()] == ["warning"] * 3
    assert "frobs" in ran.stderr
    assert (refused.status, "unknown resource 'frobs'" in refused.stderr) == (2, True)


def test_shims_replace_themselves_and_no_other_program(tmp_path: Path) -> None:
    directory = tmp_path / "bin"
    first = run_command("gsched", "install-shims", str(directory))
    second = run_command("gsched", "install-shims", str(directory), "--personality", "openpbs")
    (directory / "qsub").write_text("#!/bin/sh\necho the site's own\n", encoding="utf-8")
    third = run_command("gsched", "install-shims", str(directory))
    forced = run_command("gsched", "install-shims", str(directory), "--force")

    assert first.stdout == f"export PATH={directory}:$PATH\n"
    assert (first.status, second.status, forced.status) == (0, 0, 0)
    assert third.status == 73
    assert "qsub exists, and gsched did not make it" in third.stderr
    assert "main('qsub', 'torque')" in (directory / "qsub").read_text()


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")

    ran = run_command("gsched", "install-shims", str(tmp_path / "file" / "bin"))

    assert (ran.status, ran.stdout) == (73, "")
    assert "file/bin" in ran.stderr


def test_jobs_depend_on_others_also_on_those_that_ended_before_the_head_restarted(
    shims: Shims, cluster: Cluster
) -> None:
    """The database says how they ended; the job that is refused is refused as PBS does it."""
    for script in ("exit 0", "exit 3"):
        shims.run("qsub", "-N", "first", stdin=f"{script}\n")
    cluster.head.wait([1, 2], timeout_s=60)
    cluster.kill_head()
    cluster.start_head()

    well = shims.run("qsub", "-W", "depend=afterok:1.test:1,afternotok:2", stdin="true\n")
    never = shims.run("qsub", "-W", "depend=afterok:2", stdin="true\n")
    held = shims.run("qsub", "-h", stdin="true\n")
    waits = shims.run("qsub", "-W", "depend=afterok:4", stdin="true\n")
    job = ("--dependency", "afterok:1", "--deadline", "8h", "--walltime", "60", "--", "true")
    tried = run_command("gsub", "--dry-run", *job, head=shims.socket, cwd=shims.jobs)
    judged = run_command("gsub", "--reject-if-late", *job, head=shims.socket, cwd=shims.jobs)

    assert tried.stdout.startswith("would submit"), tried.stderr
    assert judged.stdout == "6.test\n", judged.stderr
    assert (well.stdout, held.stdout, waits.stdout) == ("3.test\n", "4.test\n", "5.test\n")
    assert (never.returncode, never.stdout) == (208, "")
    assert "afterok:2 can never be satisfied: job 2 failed" in never.stderr
    assert "    depend = afterok:4\n" in shims.run("qstat", "-f", "5").stdout
    assert shims.run("qstat", "5").stdout.splitlines()[2].split()[4] == "H"
    assert shims.run("qrls", "4").returncode == 0
    cluster.head.wait([3, 5], timeout_s=60)
    assert "    exit_status = 0\n" in shims.run("qstat", "-f", "5").stdout


def test_qstat_shows_where_and_how_a_job_was_submitted(shims: Shims) -> None:
    """As Torque: its command line, and PBS_O_PATH; the job itself does not have the former."""
    (shims.jobs / "job.sh").write_text("env >seen; echo done >ready\n")
    assert shims.run("qsub", "-l", "nodes=1:ppn=1", "-N", "told", "job.sh").returncode == 0
    wait_until((shims.home / "ready").exists, what="the job")

    shown = shims.run("qstat", "-f", "-1", "1").stdout
    assert "    submit_args = -l nodes=1:ppn=1 -N told job.sh\n" in shown
    assert f"PBS_O_PATH={shims.directory / 'bin'}:" in shown
    assert f"PBS_O_HOME={shims.home}," in shown
    seen = (shims.home / "seen").read_text()
    assert "PBS_O_PATH=" in seen
    assert "PBS_SUBMIT_ARGS" not in seen

"""One cluster for many short tests: the counter where users come with their mistakes."""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gsched.protocol.job_rows import JobRow, JobStory
from tests.support.cluster import Cluster
from tests.support.commands import Ran, command_environment, run_command

OTHER_USER = "daemon"  # exists wherever there is a /etc/passwd of Unix, and owns nothing
TIMEOUT_S = 60.0


class Counter:
    """Commands against one running cluster, as its owner or as somebody else.

    Attributes:
        cluster: with one node, ``n1``: 2 CPUs, 1 declared GPU, 8gb.
        work: an empty directory in which commands run.
    """

    def __init__(self, cluster: Cluster, work: Path) -> None:
        self.cluster = cluster
        self.work = work

    def run(self, name: str, *arguments: str, head: str = "") -> Ran:
        """Run a command."""
        return run_command(name, *arguments, head=head or self.cluster.socket, cwd=self.work)

    def run_as_other(self, name: str, *arguments: str) -> Ran:
        """Run a command as another user, who is no operator.

        The test is skipped where this process may not become another user, or where that one may
        not read the code.
        """
        if os.getuid() != 0:
            pytest.skip("only root can become another user")
        try:
            entry = pwd.getpwnam(OTHER_USER)
        except KeyError:
            pytest.skip(f"there is no user {OTHER_USER} here")
        probe = _run_as(entry, ["-c", "import gsched.cli.commands.gsub"], self)
        if probe.status:
            pytest.skip(f"{OTHER_USER} may not read the code or its Python")
        return _run_as(entry, ["-m", f"gsched.cli.commands.{name}", *arguments], self)

    def script(self, name: str, content: bytes) -> str:
        """Write a file into the working directory and return its name."""
        (self.work / name).write_bytes(content)
        return name

    def submit(self, *arguments: str) -> str:
        """Submit a job that is taken, and return its number."""
        ran = self.run("gsub", *arguments)
        assert ran.status == 0, ran.stderr
        return ran.stdout.partition(".")[0]

    def row(self, job: str) -> JobRow:
        """Return the job's line."""
        return self.cluster.head.jobs([job]).jobs[0]

    def ended(self, job: str) -> JobStory:
        """Return the job's story once it has ended."""
        story = self.cluster.head.wait([job], timeout_s=TIMEOUT_S)[0]
        assert story.row.state == "done", story
        return story


def _run_as(entry: pwd.struct_passwd, arguments: list[str], counter: Counter) -> Ran:
    done = subprocess.run(
        [sys.executable, *arguments],
        user=entry.pw_uid,
        group=entry.pw_gid,
        extra_groups=[],
        env=command_environment(counter.cluster.socket, HOME="/nonexistent"),
        cwd=counter.work,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return Ran(status=done.returncode, stdout=done.stdout, stderr=done.stderr)


@contextmanager
def open_counter() -> Iterator[Counter]:
    """Bring a cluster up where other users can reach its socket; take all of it down at the end."""
    directory = Path(tempfile.mkdtemp(prefix="gsched-counter-"))
    directory.chmod(0o755)
    cluster = Cluster(directory / "cluster", f"counter-{uuid.uuid4().hex}")
    cluster.head_settings = {"single_user": os.getuid() != 0}
    try:
        work = directory / "work"
        work.mkdir()
        cluster.start_head()
        cluster.start_node("n1", cpus=2, gpus=1)
        yield Counter(cluster, work)
    finally:
        cluster.stop()
        shutil.rmtree(directory)

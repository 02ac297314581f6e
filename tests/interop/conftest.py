"""A cluster with the commands of PBS on the PATH, for tools that know nothing of gsched."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.commands import command_environment, run_command


class Site:
    """What such a tool finds: commands on its PATH, a home, and a directory to work in."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.cluster = cluster
        self.work = cluster.jobs
        self.home = directory / "home"
        self.home.mkdir()
        self._directory = directory
        self.use("torque")

    def use(self, personality: str) -> None:
        """Put the commands of a personality at the front of the PATH."""
        shims = self._directory / personality
        made = run_command("gsched", "install-shims", str(shims), "--personality", personality)
        assert made.status == 0, made.stderr
        path = f"{shims}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        socket = self.cluster.socket
        self.environment = command_environment(socket, PATH=path, HOME=str(self.home))

    def run(self, *words: str, timeout_s: float = 90.0) -> subprocess.CompletedProcess[str]:
        """Run a program in ``work``."""
        return subprocess.run(
            words,
            env=self.environment,
            cwd=self.work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def python(self, program: str) -> subprocess.CompletedProcess[str]:
        """Run a Python program, from a file, as tools pickle what stands in one."""
        path = self.work / "program.py"
        path.write_text(program, encoding="utf-8")
        return self.run(sys.executable, str(path))


@pytest.fixture
def site(cluster: Cluster, tmp_path: Path) -> Site:
    """Return a site with one node of four CPUs."""
    cluster.start_head()
    cluster.start_node("n1", cpus=4)
    return Site(cluster, tmp_path)

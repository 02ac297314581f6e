"""Health checks: programs of the site, and the check of the GPUs, with a fake of NVML."""

import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.cluster import Cluster, wait_until
from tests.support.commands import run_command
from tests.support.nvml_machine import build_nvml

pytestmark = pytest.mark.timeout(120)

CHECK = """#!/bin/sh
echo "$GSCHED_STAGE $GSCHED_NODE" >> {directory}/calls
. {directory}/do
"""


class Site:
    """A cluster of one node with a health check that does what a test wants."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.program = directory / "check"
        self.program.write_text(CHECK.format(directory=directory))
        self.program.chmod(0o755)
        self.does("echo fine")
        self.cluster = Cluster(directory / "c", f"health-{uuid.uuid4().hex}")
        self.cluster.start_head()

    def start(self, when: str, timeout_s: int = 60) -> None:
        self.cluster.node_tables = (
            f'[[node.health_check]]\nname = "disk"\nprogram = "{self.program}"\n'
            f'interval_s = 1\ntimeout_s = {timeout_s}\nwhen = "{when}"\n'
        )
        self.cluster.start_node("n1", cpus=2)

    def start_with_gpus(self, library: Path) -> None:
        (self.directory / "health").write_text("")
        env = {
            "LD_LIBRARY_PATH": str(library),
            "FAKE_NVML_GPUS": "2",
            "FAKE_NVML_HEALTH": str(self.directory / "health"),
        }
        self.cluster.start_node("n1", cpus=2, env=env, gpu_check_interval_s=0.2)

    def gpus_are(self, *lines: str) -> None:
        """Let the GPUs be in a state: see tests/support/fake_nvml/health.c."""
        (self.directory / "new").write_text("".join(f"{line}\n" for line in lines))
        (self.directory / "new").rename(self.directory / "health")

    def does(self, script: str) -> None:
        (self.directory / "do.new").write_text(script)
        (self.directory / "do.new").rename(self.directory / "do")

    def checks(self) -> list[int]:
        """Return the processes that run the check."""
        every = psutil.process_iter(["cmdline"])
        return [each.pid for each in every if str(self.program) in (each.info["cmdline"] or ())]

    def run(self, *words: str) -> str:
        return run_command(*words, head=str(self.cluster.socket), cwd=self.cluster.jobs).stdout

    def node(self) -> str:
        return " ".join(self.run("gnodes", "n1").split())


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.cluster.stop()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_nvml(tmp_path_factory.mktemp("nvml"))


def test_a_check_that_fails_closes_the_node_until_it_passes(site: Site) -> None:
    """An operator's drain stays, whatever the check says."""
    site.start("any")
    wait_until(lambda: "health_disk = passed" in site.node(), what="the first result")
    assert site.node().count(": fine") == 1

    site.does("echo /scratch is full; echo more; exit 2")
    wait_until(lambda: "up, closed" in site.node(), what="the failure")

    assert "reason = health: disk: /scratch is full (exit code 2)" in site.node()
    job = site.run("gsub", "--", "true").strip()
    wait_until(lambda: "see gnodes for" in site.run("gstat", "--why", job), what="the reason")
    site.run("gnodes", "drain", "n1", "-m", "my own reason")
    site.does("exit 0")
    wait_until(lambda: "health_disk = passed" in site.node(), what="a pass")
    assert "state = drained" in site.node()
    site.run("gnodes", "resume", "n1")
    assert run_command("gwait", job, head=str(site.cluster.socket)).status == 0


def test_a_check_that_hangs_has_failed(site: Site) -> None:
    site.does("sleep 100")
    site.start("any", timeout_s=2)

    wait_until(lambda: "did not end within 2 s" in site.node(), what="the time-out")


def test_a_check_for_idle_nodes_does_not_run_beside_a_job(site: Site) -> None:
    site.start("idle")
    wait_until(lambda: "health_disk = passed" in site.node(), what="the first result")
    job = site.run("gsub", "--", "sleep", "60").strip()
    site.cluster.wait_for_start(job)
    wait_until(lambda: not site.checks(), what="the end of a check that had begun")
    site.does("exit 1")
    (site.directory / "calls").unlink()

    time.sleep(2.5)  # two intervals
    assert not (site.directory / "calls").exists()
    site.run("gdel", job)
    wait_until(lambda: "health_disk = failed" in site.node(), what="the check of the idle node")


def test_a_check_before_a_job_keeps_it_from_starting(site: Site) -> None:
    """And a probe, which runs it, too, drains the node."""
    site.does("echo no licence; exit 3")
    site.start("job")

    job = site.run("gsub", "--", "true").strip()
    wait_until(lambda: "drained" in site.node(), what="the drain")

    assert "health check disk" in site.node()
    assert "no licence" in site.run("gstat", "-f", job)
    site.does("true")
    site.run("gnodes", "resume", "n1")
    assert run_command("gwait", job, head=str(site.cluster.socket)).status == 0


@pytest.mark.parametrize(
    ("states", "words", "again"),
    [
        ((("1 ecc 2",),), "GPU 1: uncorrectable memory errors (ECC): 2", ()),
        ((("0 remap_failure 1",),), "GPU 0: a row of its memory could not be remapped", ()),
        ((("0 clocks 64",),), "GPU 0: its clocks are slowed down by temperature", ("0 clocks 4",)),
        ((("1 lost 1",),), "GPU 1 is lost: GPU is lost", ()),
        ((("0 xid 31", "1 xid 79"),), "GPU 1: Xid 79", None),
        (
            (("0 links 2",), ("0 links 2", "0 link_down 1")),
            "GPU 0: NVLink 1 is down",
            ("0 links 2",),
        ),
    ],
)
def test_a_gpu_that_is_broken_closes_the_node(
    site: Site,
    library: Path,
    states: tuple[tuple[str, ...], ...],
    words: str,
    again: tuple[str, ...] | None,
) -> None:
    """It opens again when the GPU is well; a critical Xid is forgotten with gnode only."""
    site.start_with_gpus(library)
    for state in states:
        wait_until(lambda: "health_gpus = passed" in site.node(), what="a pass")
        site.gpus_are(*state)
        time.sleep(1.0)  # two looks at each
    wait_until(lambda: f"reason = health: gpus: {words}" in site.node(), what=words)

    assert "up, closed" in site.node()
    if again is not None:
        site.gpus_are(*again)
        wait_until(lambda: "health_gpus = passed" in site.node(), what="a pass")
        assert "state = up" in site.node()

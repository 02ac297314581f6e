"""Power saving with real daemons: the site's programs stop and start gnode."""

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from gsched.cli.pbs.pbsnodes import node_state
from gsched.cli.pbs.vnodes import vnode_state
from tests.support.cluster import ROOT, Cluster, wait_until
from tests.support.commands import run_command
from tests.support.processes import MARKER
from tests.support.slurm_commands import slurm

pytestmark = pytest.mark.timeout(180)

#: Powers nodes down or up: gnode is what a machine is here.
PROGRAM = """#!{python}
import os, signal, subprocess, sys
from pathlib import Path
sys.path.insert(0, "{root}")
from gsched.model.host_lists import expanded
os.chdir("{root}")
here = Path("{directory}")
with open(here / "calls", "a") as calls:
    calls.write("{direction} " + sys.argv[1] + "\\n")
for name in expanded(sys.argv[1], option="nodes"):
    pid = here / (name + ".pid")
    if "{direction}" == "down":
        os.kill(int(pid.read_text()), signal.SIGTERM)
    elif not (here / (name + ".broken")).exists():
        config = str(here / "c" / (name + ".toml"))
        command = [sys.executable, "-m", "gnode.main", "--config", config]
        environment = dict(os.environ, {marker_name}="{marker}")
        with open(here / "c" / (name + ".log"), "ab") as log:
            started = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )
        pid.write_text(str(started.pid))
"""


class Site:
    """A cluster of two nodes that are powered down when they are idle for two seconds."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        marker = f"power-{uuid.uuid4().hex}"
        for direction in ("down", "up"):
            program = directory / direction
            program.write_text(
                PROGRAM.format(
                    python=sys.executable,
                    root=ROOT,
                    directory=directory,
                    direction=direction,
                    marker_name=MARKER,
                    marker=marker,
                )
            )
            program.chmod(0o755)
        self.cluster = Cluster(directory / "c", marker)
        self.cluster.queues = (
            f'[power]\nsuspend_program = "{directory}/down"\nresume_program = "{directory}/up"\n'
            "suspend_after_s = 2\nsuspend_timeout_s = 4\nresume_timeout_s = 20\n"
        )
        self.cluster.start_head()
        for name in ("n1", "n2"):
            self.cluster.start_node(name)
            (directory / f"{name}.pid").write_text(str(self.cluster.node_process(name).pid))

    def run(self, *words: str) -> str:
        return run_command(*words, head=str(self.cluster.socket), cwd=self.cluster.jobs).stdout

    def calls(self) -> list[str]:
        path = self.directory / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def wait_for(self, power: str, *names: str) -> None:
        def there() -> bool:
            rows = {row.name: row for row in self.cluster.head.nodes().nodes}
            return all(rows[name].power == power for name in names)

        wait_until(there, 60, what=f"{names} to be {power or 'on'}: {self.calls()}")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.cluster.stop()


def test_idle_nodes_go_down_and_come_up_for_a_job_over_a_restart_of_the_head(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.wait_for("powered_down", "n1", "n2")
    monkeypatch.setenv("GSCHED_HEAD", str(site.cluster.socket))
    assert " idle~ " in slurm("sinfo").stdout
    assert slurm("sinfo", "-h", "-o", "%D %t", "-t", "powered_down").stdout == "2 idle~\n"
    assert slurm("sinfo", "-h", "-R").stdout == ""
    assert "IDLE+POWERED_DOWN" in slurm("scontrol", "show", "node", "n1").stdout
    assert "powered down" in site.run("gnodes")
    assert site.run("gnodes", "-l") == ""
    listed = site.cluster.head.nodes().nodes
    assert {(node_state(row), vnode_state(row)) for row in listed} == {("free", "sleep")}

    site.cluster.kill_head()
    site.cluster.start_head()
    site.wait_for("powered_down", "n1", "n2")
    before = len(site.calls())

    site.run("gsub", "-l", "nodes=2:ppn=4,walltime=60", "--wait", "--", "sleep", "3")

    assert site.calls()[before:][0] == "up n[1-2]"
    rows = {row.name: row for row in site.cluster.head.nodes().nodes}
    assert [rows[name].state for name in ("n1", "n2")] == ["up", "up"]
    site.wait_for("powered_down", "n1", "n2")
    assert "reason = idle for" in site.run("gnodes", "n1")


def test_a_node_that_does_not_come_back_is_drained_and_an_operator_can_try_again(
    site: Site,
) -> None:
    site.wait_for("powered_down", "n1", "n2")
    (site.directory / "n1.broken").touch()

    site.run("gnodes", "power", "up", "n1")

    site.wait_for("powering_up", "n1")
    site.wait_for("", "n1")
    assert "it was powered up, and has not registered within" in site.run("gnodes", "-l")
    (site.directory / "n1.broken").unlink()
    site.run("gnodes", "power", "up", "n1")
    wait_until(lambda: site.calls()[-1] == "up n1", what="the program")
    listing = site.cluster.head.nodes
    wait_until(
        lambda: [row.state for row in listing().nodes if row.name == "n1"] == ["up"],
        what="n1 to have registered",
    )
    site.run("gnodes", "resume", "n1")
    assert site.run("gsub", "-l", "nodes=n1,walltime=60", "--wait", "--", "true")

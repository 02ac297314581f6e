"""The guides for newcomers run from their first command to the last, as they are printed."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.guide import DOCS
from tests.support.processes import kill_all, processes_of

_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TIMEOUT_S = 120.0


def follow(guide: str, home: Path, head: str = "") -> str:
    """Run all shell blocks of a guide as one script; return what it has written."""
    (home / "train.py").write_text("import time; time.sleep(1)\n")
    environment = {name: value for name, value in os.environ.items() if name != "GSCHED_HEAD"}
    environment |= {
        "HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    if head:
        environment["GSCHED_HEAD"] = head
    script = "set -e\n" + "\n".join(_BLOCK.findall((DOCS / guide).read_text(encoding="utf-8")))
    log = home / "log"
    with log.open("wb") as output:  # no pipe: daemons keep it open
        done = subprocess.run(
            ["/bin/bash", "-c", script],
            cwd=home,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT_S,
            check=False,
        )
    text = log.read_text(errors="replace")
    assert done.returncode == 0, text
    return text


@pytest.mark.parametrize("guide", ["from-torque.md", "from-slurm.md"])
def test_who_comes_from_another_scheduler_follows_the_guide(cluster: Cluster, guide: str) -> None:
    cluster.start_head()
    for name in ("n1", "n2"):
        cluster.start_node(name, cpus=2)

    text = follow(guide, cluster.jobs, str(cluster.socket))

    assert "finished with exit code 0: 4 of 4 elements succeeded" in text
    assert re.search(r"^on \S+, (with 1 CPU|job 1)$", text, re.MULTILINE)


@pytest.fixture
def home(tmp_path: Path, process_marker: str) -> Iterator[Path]:
    yield tmp_path
    kill_all(lambda: processes_of(process_marker, tmp_path))


def test_deadlines_and_sharing_work_as_the_guide_says(home: Path) -> None:
    text = follow("deadlines.md", home)

    assert "would submit: train.py" in text
    assert "cannot be met even if all nodes were idle" in text
    assert "40 % of GPU" in text
    assert text.endswith("stopped node n1, node n2, head\n")

"""The examples do what they say, on a real cluster."""

import importlib.util
import json
import os
import re
import sys
from pathlib import Path

import pytest

from gsched.client import new_job
from gsched.protocol.job_rows import JobStory
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import run_command
from tests.support.torch_python import TORCH_START

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
GUIDE = ROOT / "docs" / "training.md"
EPOCHS = 30
TRAINING_TIMEOUT_S = 240.0


def run(cluster: Cluster, timeout_s: float = 60.0, **job: object) -> JobStory:
    """Submit one job and return its story once it is done."""
    reply = cluster.head.submit([new_job(workdir=str(cluster.jobs), **job)])  # type: ignore[arg-type]  # the name is among them
    assert reply.results[0].error is None, reply.results[0].error
    (story,) = cluster.head.wait([reply.results[0].id], timeout_s=timeout_s)
    assert story.row.outcome is not None, f"not done after {timeout_s:.0f} s: {story.row}"
    return story


def test_pbs_script_prints_its_steps(cluster: Cluster) -> None:
    """Its output lies where it was submitted; the directory comes from PBS_O_WORKDIR."""
    cluster.start_head()
    cluster.start_node("n1")
    story = run(cluster, name="hello", join="oe", script=(EXAMPLES / "hello.pbs").read_text())
    output = (cluster.jobs / f"hello.o{story.row.id}").read_text()

    assert story.row.outcome is not None
    assert story.row.outcome.exit_status == 0, output
    assert f"job {story.row.id}.test (hello) in queue batch" in output
    assert output.endswith("step 3 of 3\ndone\n")


@pytest.mark.timeout(300)
@pytest.mark.skipif(
    not (importlib.util.find_spec("torch") and importlib.util.find_spec("sklearn")),
    reason="torch and scikit-learn are not installed (scripts/test installs them)",
)
def test_training_over_two_nodes_reaches_its_accuracy(cluster: Cluster) -> None:
    """A rank on each node; they train on real data and agree on the result."""
    cluster.start_head()
    cluster.start_node("n1", gpus=1)
    cluster.start_node("n2", gpus=1)
    result = cluster.jobs / "digits.json"
    story = run(
        cluster,
        timeout_s=TRAINING_TIMEOUT_S,
        name="digits",
        resources=("nodes=2:ppn=1:gpus=1,walltime=4:00",),
        launch="torchrun",
        python=sys.executable,
        environment={"PYTHONPATH": TORCH_START, "PATH": os.environ["PATH"]},
        arguments=(str(EXAMPLES / "digits/train.py"), "--device", "cpu", "--out", str(result)),
    )

    assert story.row.outcome is not None
    assert story.row.outcome.exit_status == 0, story.row.outcome
    assert set(story.row.nodes) == {"n1", "n2"}
    trained = json.loads(result.read_text())
    assert trained["world_size"] == 2
    assert trained["accuracy"] >= 0.95


@pytest.mark.timeout(600)
@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="torch is not installed")
def test_the_script_of_the_guide_is_moved_as_the_guide_says(cluster: Cluster) -> None:
    """With more and slower steps, or it would be over; each epoch is told once, in one file."""
    cluster.start_head()
    for name in ("n1", "n2"):
        cluster.start_node(name, gpus=1)
    code = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)[0]
    longer = code.replace("epochs=4)", f"epochs={EPOCHS})")
    assert longer != code
    slower = longer.replace("training.step()\n", "training.step(); time.sleep(0.02)\n")
    assert slower != longer
    (cluster.jobs / "train.py").write_text(f"import time\n{slower}")

    def ask(*words: str) -> str:
        ran = run_command(words[0], *words[1:], head=cluster.socket, cwd=cluster.jobs)
        assert ran.status == 0, ran
        return ran.stdout

    submit = ("gsub", "-N", "train", "-j", "oe", "--elastic", "--gpus", "1")
    job = ask(*submit, "--python", sys.executable, "--torchrun", "train.py").partition(".")[0]
    wait_until(lambda: "progress = step" in ask("gstat", "-f", job), 120.0, what="its first step")
    before = cluster.head.job(job).row.nodes
    there = "n2" if before == ("n1",) else "n1"
    assert ask("gmigrate", job, "--dry-run") == f"{job}: would migrate to {there} (1 CPU, GPU 0)\n"
    phases = ask("gmigrate", job, "--to", there, "--wait").splitlines()
    shown = ask("gstat", "-f", job)
    (story,) = cluster.head.wait([job], timeout_s=TRAINING_TIMEOUT_S)

    assert "s without progress, checkpoint read in" in phases[-1]
    assert re.search(r"^    moves = 1, \d+\.\d+ s without progress$", shown, re.MULTILINE)
    assert story.row.outcome is not None
    assert story.row.outcome.exit_status == 0
    assert (story.row.moves, story.row.nodes) == (1, (there,))
    told = (cluster.jobs / f"train.o{job}").read_text().splitlines()
    epochs = [line.split()[1].rstrip(":") for line in told if line.startswith("epoch")]
    assert epochs == [str(number) for number in range(EPOCHS)]


def test_cluster_survives_the_loss_of_its_daemons(cluster: Cluster) -> None:
    """The fixture's own verbs: what it kills is dead, what it starts is back, jobs live on."""
    cluster.start_head()
    cluster.start_node("n1")
    reply = cluster.head.submit(
        [new_job(name="sleeper", workdir=str(cluster.jobs), script="sleep 3\necho over\n")]
    )
    job = reply.results[0].id
    cluster.kill_head()
    cluster.kill_node("n1")
    assert cluster.head_process.poll() is not None
    assert cluster.node_process("n1").poll() is not None
    cluster.start_head()
    cluster.start_node("n1")
    (story,) = cluster.head.wait([job], timeout_s=60.0)

    assert story.row.state == "done"
    assert (cluster.jobs / f"sleeper.o{job}").read_text() == "over\n"
    assert cluster.stop_node("n1") == 0
    assert cluster.stop_head() == 0

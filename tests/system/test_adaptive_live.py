"""Three real adaptive training jobs under sia, on two types of GPUs: parts of a core of unequal
size.

They grow, shrink and change their type while they train, and converge to the accuracy of a run with
the tuned batch.
"""

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from gsched.errors import GschedError
from gsched.protocol.job_rows import JobStory
from scripts.reproduce.adaptive_gpus import declared_gpus
from tests.support.cluster import ROOT, Cluster, wait_until
from tests.support.commands import run_command
from tests.support.torch_python import TRAINING_PATH, torch_python
from tests.support.torchrun import run_torchrun

pytestmark = [pytest.mark.timeout(3600), pytest.mark.xdist_group("adaptive"), pytest.mark.sweep]

SCRIPT = ROOT / "scripts" / "reproduce" / "adaptive_train.py"
SETTINGS = """
[[queue]]
name = "batch"
[training]
policy = "sia"
[training.sia]
round_s = 10
lambda_n = 5
"""
#: Parts of a core of each GPU, and its type, by node.
CORES = {"n1": 0.2, "n2": 0.08}
TYPES = {"n1": "fast", "n2": "slow"}
EPOCHS, WIDTH = 150, 512
WAIT_S = 1200.0


class TrainingJobs:
    """What a user submits, and what becomes of it."""

    def __init__(self, cluster: Cluster, gpus: Path) -> None:
        self.cluster = cluster
        self.hold = cluster.jobs / "hold"
        self.hold.touch()
        self._gpus = gpus

    def out(self, name: str) -> Path:
        """Return where a training writes its result."""
        return self.cluster.jobs / f"{name}.json"

    def submit(self, name: str) -> str:
        """Submit a training, and return its number."""
        ran = run_command(
            *(
                "gsub",
                "-v",
                f"PYTHONPATH={TRAINING_PATH}",
                "-N",
                name,
                "--kind",
                name,
                "--adaptive",
                "--gpus",
                "1..2",
            ),
            *("--batch", "32", "--batch-max", "512", "--python", torch_python("sklearn")),
            *("--torchrun", str(SCRIPT), "--out", str(self.out(name)), "--gpus", str(self._gpus)),
            *("--hold", str(self.hold), "--epochs", str(EPOCHS), "--width", str(WIDTH)),
            head=self.cluster.socket,
            cwd=self.cluster.jobs,
        )
        assert ran.status == 0, ran.stderr
        return ran.stdout.split(".")[0]

    def story(self, number: str) -> JobStory:
        return self.cluster.head.job(number)

    def course(self, number: str) -> list[tuple[str, int]]:
        """Return type and number of the GPUs of each attempt that has done a step, in order."""
        return [
            (TYPES[part.node], len(part.gpu_indices))
            for attempt in self.story(number).attempts
            for part in attempt.parts[:1]
            if attempt.startup_s is not None
        ]

    def wait_for(self, number: str, gpus: tuple[str, int]) -> None:
        """Wait until a training has done a step on so many GPUs of a type, and has these last."""
        wait_until(lambda: self.course(number)[-1:] == [gpus], WAIT_S, what=f"{number} on {gpus}")


def test_training_jobs_grow_shrink_and_change_type_and_converge(
    cluster: Cluster, tmp_path: Path
) -> None:
    gpus = tmp_path / "gpus.json"
    with ExitStack() as stack:
        try:
            stack.enter_context(declared_gpus(CORES, 2, gpus))
        except GschedError as error:
            pytest.skip(str(error))
        stack.callback(cluster.stop)
        check_courses(cluster, gpus)


def check_courses(cluster: Cluster, gpus: Path) -> None:
    cluster.queues = SETTINGS
    cluster.start_head()
    cluster.start_node("n1", cpus=4, gpus=2, gpu_type="fast")
    cluster.start_node("n2", cpus=4, gpus=1, gpu_type="slow")
    training_jobs = TrainingJobs(cluster, gpus)
    assert run_command("gnodes", "drain", "n1", "-m", "later", head=cluster.socket).status == 0

    first = training_jobs.submit("first")
    training_jobs.wait_for(first, ("slow", 1))
    assert run_command("gnodes", "resume", "n1", head=cluster.socket).status == 0
    training_jobs.wait_for(first, ("fast", 2))
    others = [training_jobs.submit("second"), training_jobs.submit("third")]
    numbers = [first, *others]

    wait_until(
        lambda: (
            all(training_jobs.course(number) for number in others)
            and ("fast", 2) in training_jobs.course(first)[:-1]
        ),
        WAIT_S,
        what="a GPU for each of the others, of which the first one has left one",
    )
    assert training_jobs.course(first)[-1][1] == 1
    assert [training_jobs.story(number).advice for number in numbers] == [""] * 3
    training_jobs.hold.unlink()
    wait_until(
        lambda: all(training_jobs.story(number).row.state == "done" for number in numbers),
        WAIT_S,
        what="the ends of all training jobs",
    )

    fixed = cluster.jobs / "fixed.json"
    arguments = ("--out", str(fixed), "--epochs", str(EPOCHS), "--width", str(WIDTH))
    assert run_torchrun(SCRIPT, *arguments, ranks=1).returncode == 0
    expected = json.loads(fixed.read_text())["accuracy"]
    for name, number in zip(("first", "second", "third"), numbers, strict=True):
        outcome = training_jobs.story(number).row.outcome
        assert outcome is not None
        assert outcome.exit_code == 0, cluster.logs()
        told = json.loads(training_jobs.out(name).read_text())
        assert told["accuracy"] == pytest.approx(expected, abs=0.03)
        assert told["progress"] >= EPOCHS * (1280 // 32) - 1

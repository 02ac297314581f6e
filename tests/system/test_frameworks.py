"""Trainers of Hugging Face and Lightning, resized by gmigrate from one rank to two and back."""

import json
import os
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.commands import ROOT, run_command
from tests.support.forks import ForkServer, torch_server
from tests.support.frameworks import (
    HOLDS,
    FrameworkRun,
    samples_by_step,
    undisturbed,
    world_sizes,
)
from tests.support.torch_python import torch_python

pytestmark = [pytest.mark.timeout(1800), pytest.mark.xdist_group("frameworks")]

STEPS_PER_EPOCH, EPOCHS = 8, 4
NEEDS = {"huggingface": ("transformers", "accelerate"), "lightning": ("lightning",)}
#: What their scripts import, which takes several times as long as to train.
MODULES = {
    "huggingface": ("accelerate", "transformers.trainer", "transformers.models.gpt2.modeling_gpt2"),
    "lightning": ("lightning.pytorch",),
}
Forks = Callable[[str], ForkServer]


@pytest.fixture(scope="module")
def forks_of() -> Iterator[Forks]:
    """Return what gives the server for a framework."""
    made: dict[str, ForkServer] = {}

    def of(name: str) -> ForkServer:
        if name not in made:
            made[name] = torch_server(*NEEDS[name], modules=MODULES[name])
        return made[name]

    yield of
    for each in made.values():
        each.close()


@pytest.mark.parametrize("name", ["huggingface", "lightning"])
def test_a_training_of_a_framework_is_resized_to_two_ranks_and_back_with_the_same_samples(
    cluster: Cluster, tmp_path: Path, forks_of: Forks, name: str
) -> None:
    """No step and no sample is lost or done twice, and the network comes out the same."""
    run = FrameworkRun(cluster, forks_of(name), name, *NEEDS[name])
    expected = undisturbed(run, forks_of(name), tmp_path / "undisturbed")
    run.begin("--step-s=0.2")  # it must not end before it has moved for the second time

    cluster.start_node("n2", cpus=4, gpus=2)
    run.resize(HOLDS[0], 2, "n2")
    moved = run.story()
    assert moved.progress is not None
    assert moved.progress.gpus == 2
    assert moved.checkpoint is not None
    assert moved.checkpoint.size_bytes > 0
    run.resize(HOLDS[1], 1, "n1")
    result = run.finish()

    steps = STEPS_PER_EPOCH * EPOCHS
    assert result["steps"] == expected["steps"] == steps
    samples = samples_by_step(run.directory)
    assert samples == expected["samples"]
    for epoch in range(EPOCHS):
        of_epoch = range(epoch * STEPS_PER_EPOCH + 1, (epoch + 1) * STEPS_PER_EPOCH + 1)
        assert sum((samples[step] for step in of_epoch), Counter()) == Counter(range(64))
    sizes = world_sizes(run.directory)
    assert sizes[: HOLDS[0]] == [1] * HOLDS[0]
    assert sizes[HOLDS[1] - 1] == 2
    assert sizes[-1] == 1
    assert result["names"] == expected["names"]
    assert result["weights"] == pytest.approx(expected["weights"], rel=1e-3, abs=2e-3)
    story = run.story()
    assert (story.row.moves, story.row.attempt) == (2, 3)
    ends = [each.outcome.signal for each in story.attempts if each.outcome is not None]
    assert ends[:2] == [15, 15]  # they do not wait for KILL, whatever handlers there are
    assert story.progress is None or story.progress.step == steps
    kept = list((run.directory / "gsched-checkpoints" / run.number).glob("checkpoint-*"))
    assert len([path for path in kept if path.is_dir()]) == 1
    manifest = json.loads((kept[0] / "manifest.json").read_text())
    assert manifest["position"]["samples_done"] == 8 * manifest["position"]["step"]
    shown = run_command("gstat", "-f", run.number, head=cluster.socket).stdout
    assert "without progress" in shown


def train(
    forks_of: Forks, directory: Path, name: str, *options: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the script of a framework on one rank, without a cluster."""
    directory.mkdir(exist_ok=True)
    script = ROOT / "tests" / "support" / f"framework_{name}.py"
    return forks_of(name).run(
        [str(script), str(directory), "--step-s=0", *options],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables},
        timeout=300.0,
    )


def first_step(trace: Path) -> int:
    """Return the first step that an attempt has done."""
    step: int = json.loads(trace.read_text().partition("\n")[0])["step"]
    return step


@pytest.mark.parametrize(
    ("name", "accumulation", "saved"),
    [("huggingface", 2, 5), ("lightning", 2, 6)],  # Lightning counts batches, not its steps
)
def test_a_killed_training_goes_on_from_its_checkpoint_bit_for_bit(
    tmp_path: Path, forks_of: Forks, name: str, accumulation: int, saved: int
) -> None:
    """On as many ranks, with dropout, and with gradients that are accumulated."""
    options = ("--dropout=0.2", f"--accumulation={accumulation}", "--epochs=2")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert train(forks_of, whole, name, *options).returncode == 0
    places = {"GSCHED_CHECKPOINT_DIR": str(parts / "checkpoints")}

    killed = train(forks_of, parts, name, *options, "--save-at=5", "--die-at=8", **places)
    again = train(forks_of, parts, name, *options, **places, GSCHED_ATTEMPT="2")

    assert killed.returncode == 9, killed.stderr
    assert again.returncode == 0, again.stderr
    assert first_step(parts / "trace-2-0.jsonl") == saved + 1
    results = [json.loads((each / "result.json").read_text()) for each in (whole, parts)]
    assert results[0] == results[1]


def test_a_checkpoint_that_is_due_when_the_trainer_saves_its_own_is_there_twice(
    tmp_path: Path, forks_of: Forks
) -> None:
    """The Trainer's own stay where its save_strategy and save_total_limit expect them."""
    places = {"GSCHED_CHECKPOINT_DIR": str(tmp_path / "checkpoints")}
    own = ("--save-steps=4", "--save-total-limit=1", "--epochs=1")

    at_once = train(forks_of, tmp_path, "huggingface", *own, "--save-at=4", "--die-at=6", **places)

    assert at_once.returncode == 9, at_once.stderr
    (ours,) = (tmp_path / "checkpoints").iterdir()
    its = tmp_path / "out" / "checkpoint-4"
    names = {path.name for path in its.iterdir()}
    assert "trainer_state.json" in names
    assert {path.name for path in ours.iterdir()} == names | {
        "manifest.json",
        "objects.pt",
        "rank-00000.pt",
    }


@pytest.mark.parametrize("name", ["huggingface", "lightning"])
def test_a_damaged_checkpoint_is_told_and_the_one_before_it_is_taken(
    tmp_path: Path, forks_of: Forks, name: str
) -> None:
    """Its digest says so before the framework reads it."""
    places = {"GSCHED_CHECKPOINT_DIR": str(tmp_path / "checkpoints")}
    for save, die in ((2, 3), (5, 6)):
        train(forks_of, tmp_path, name, f"--save-at={save}", f"--die-at={die}", **places)
    newest = max((tmp_path / "checkpoints").glob("checkpoint-*.step-*5.*"))
    victim = max(newest.iterdir(), key=lambda path: path.stat().st_size)
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)

    again = train(forks_of, tmp_path, name, **places, GSCHED_ATTEMPT="3")

    assert again.returncode == 0, again.stderr
    assert f"{newest} cannot be used: {victim.name} was altered" in again.stderr
    assert first_step(tmp_path / "trace-3-0.jsonl") == 3


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
MISTAKES = str(ROOT / "tests" / "support" / "framework_mistakes.py")


def answers(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """Return what each mistake is told."""
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    return {key: words for key, _, words in (line.partition(": ") for line in lines)}


def test_mistakes_with_a_trainer_of_hugging_face_are_told(tmp_path: Path, forks_of: Forks) -> None:
    """Before a step is done; none of them would be seen otherwise."""
    words = [MISTAKES, "huggingface", str(tmp_path)]
    said = answers(forks_of("huggingface").run(words, env=ENVIRONMENT, timeout=300.0))

    assert "a step takes 4 samples on 1 ranks" in said["other batch"]
    assert "ElasticCallback says global_batch=8" in said["other batch"]
    assert "gradient_accumulation_steps=2" in said["other accumulation"]
    assert "save_only_model=True" in said["weights only"]
    assert "resume_from_checkpoint=elastic.checkpoint(args)" in said["not looked"]


def test_mistakes_with_a_trainer_of_lightning_are_told(tmp_path: Path) -> None:
    """Also where it is imported under its older name; a fork would have it by the new one."""
    words = [torch_python(*NEEDS["lightning"]), MISTAKES, "lightning", str(tmp_path)]
    said = answers(
        subprocess.run(
            words, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False
        )
    )

    assert "call elastic.checkpoint() before" in said["not looked"]
    assert "the data set has 9 samples, and Samples says 8" in said["other data"]
    assert "the same weight" in said["uneven"]
    assert "use_distributed_sampler=False" in said["its own samples"]
    assert said["as it should"] == "nothing"
    assert said["steps"] == "2"


@pytest.mark.parametrize(
    ("name", "words", "model"),
    [
        ("huggingface", "8 steps, 64 samples on 1 ranks", "count"),
        ("lightning", "8 steps, 64 samples on 1 ranks", "sums.pt"),
    ],
)
def test_an_example_trains_outside_gsched(
    tmp_path: Path, forks_of: Forks, name: str, words: str, model: str
) -> None:
    """As any other script, and its model is there at the end."""
    script = ROOT / "examples" / f"elastic_{name}.py"

    options = ("--samples=32", "--global-batch=8", "--epochs=2")
    done = forks_of(name).run([str(script), *options], cwd=tmp_path, env=ENVIRONMENT, timeout=300.0)

    assert done.returncode == 0, done.stderr
    assert words in done.stdout
    assert (tmp_path / model).exists()
    assert not (tmp_path / "gsched-checkpoints").exists()

"""Real training jobs with prepared attempts: moved warm, with exact results, and killed."""

import json
from pathlib import Path

import pytest

from tests.support import records
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import run_command
from tests.support.migration import FLUSHING, Migration, fault_at

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("moves")]


def test_a_training_moved_warm_ends_with_the_same_bits(
    cluster: Cluster, expected: dict[str, object]
) -> None:
    """By gmigrate: prepared while it trains, launched when it has ended, and said so."""
    migration = Migration(cluster, warm=True)
    migration.begin("--hold-at=60")  # of 72
    job = migration.number
    migration.ask("n2")
    prepared = cluster.node_dir("n2") / "attempts" / f"{job}.2"
    wait_until(lambda: migration.phase() == "prepared", 120.0, what="its next attempt to wait")
    story = migration.story()
    assert (story.row.nodes, story.row.attempt) == (("n1",), 1)  # it trains on
    assert records.started(prepared) is not None
    assert not (prepared / "launched.json").exists()
    assert json.loads((prepared / "task.json").read_text())["gpu_indices"] == []
    migration.release()
    wait_until(lambda: migration.story().row.moves == 1, 120.0, what="the move")
    wait_until(lambda: migration.phase() == "done", 120.0, what="its first step on n2")

    shown = run_command("gstat", "-f", job, head=cluster.socket)

    assert "; start warm" in shown.stdout
    assert (prepared / "launched.json").exists()
    story = migration.story()
    assert (story.row.nodes, story.row.attempt) == (("n2",), 2)
    migration.release(60, when_asked=False)
    result = migration.finish()
    assert result["weights"] == expected["weights"]
    assert result["steps"] == expected["steps"]
    print(f"without progress: {story.move}")


@pytest.mark.parametrize(
    ("victim", "phase"),
    [
        ("prepared-rank", "prepared"),
        ("rank", FLUSHING),
        pytest.param("prepared-supervisor", "prepared", marks=pytest.mark.sweep),
        pytest.param("target", "prepared", marks=pytest.mark.sweep),
        pytest.param("source", "prepared", marks=pytest.mark.sweep),
        pytest.param("target", "placed", marks=pytest.mark.sweep),
    ],
)
def test_whoever_dies_the_training_ends_with_the_same_bits(
    cluster: Cluster, expected: dict[str, object], victim: str, phase: str
) -> None:
    """What was prepared is lost at most: then it starts cold."""
    result = fault_at(cluster, victim, phase, warm=True)

    assert result["weights"] == expected["weights"]


def test_a_script_that_cannot_be_split_starts_cold(cluster: Cluster, tmp_path: Path) -> None:
    """One that used a process group before it called `elastic.ready`, say."""
    script = tmp_path / "late.py"
    script.write_text(
        "import time, torch\n"
        "from torch.distributed import init_process_group\n"
        "from gsched import elastic\n"
        "init_process_group('gloo')\n"
        "elastic.ready()\n"
        "model = torch.nn.Linear(2, 2)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "training = elastic.start(model, optimizer, elastic.Samples(4000, global_batch=4))\n"
        "for _ in training.epochs():\n"
        "    for _batch in training.batches():\n"
        "        time.sleep(0.02)\n"
        "        training.step()\n"
        "training.finish(end_process=True)\n"
    )
    migration = Migration(cluster, warm=True)
    migration.start(str(script))
    job = migration.number

    migration.ask("n2")
    wait_until(lambda: migration.story().row.moves == 1, 120.0, what="the move")
    wait_until(lambda: migration.phase() == "done", 120.0, what="its first step on n2")

    shown = run_command("gstat", "-f", job, head=cluster.socket)
    assert "start cold: its script does not call elastic.ready()" in shown.stdout
    output = "".join(path.read_text() for path in migration.directory.glob("train.o*"))
    assert "the process group was created before elastic.ready()" in output
    migration.watch.stop()
    assert migration.watch.overlaps == []

"""Real training jobs that are moved: the whole path, with exact results, and what may happen to it.

A few cases; ``scripts/migration-faults`` kills everything at every step.
"""

from pathlib import Path

import pytest

from tests.support.cluster import Cluster, wait_until
from tests.support.commands import run_command
from tests.support.forks import ForkServer
from tests.support.migration import Migration, fault_at, head_dies_at, undisturbed

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("moves")]


def test_a_moved_training_ends_with_the_same_bits(
    cluster: Cluster, expected: dict[str, object]
) -> None:
    """By gmigrate to the other node, and back."""
    migration = Migration(cluster)
    migration.begin("--hold-at=60")  # of 72
    job = migration.number
    assert migration.story().row.nodes == ("n1",)
    migration.ask("n2")
    migration.release()
    wait_until(lambda: migration.story().row.moves == 1, 120.0, what="the first move")
    wait_until(lambda: migration.phase() == "done", 120.0, what="its first step on n2")
    first = migration.story()
    assert first.row.nodes == ("n2",)
    migration.release(60)

    ran = run_command("gmigrate", job, "--to", "n1", "--wait", head=cluster.socket)

    assert ran.status == 0, ran.stderr
    assert "without progress, checkpoint read in" in ran.stdout
    migration.release(60, when_asked=False)  # it may have saved before that step
    result = migration.finish()
    assert result["weights"] == expected["weights"]
    assert result["steps"] == expected["steps"]
    story = migration.story()
    assert (story.row.moves, story.row.attempt) == (2, 3)
    kinds = [event.kind for event in story.events]
    assert kinds.count("MigrationMeasured") == 2  # what is expected of the next one comes from them
    assert "StepsMeasured" in kinds
    assert first.move is not None
    assert first.move.cost_s is not None
    print(f"without progress: {first.move.cost_s:.1f} s, phases {first.move}")


def test_a_network_with_running_averages_is_moved_with_the_same_bits_on_each_rank(
    cluster: Cluster, tmp_path: Path, forks: ForkServer
) -> None:
    """Batch normalisation, all random number generators, and a schedule of steps."""
    options = ("--model=batchnorm", "--count=256")
    expected = undisturbed(tmp_path / "undisturbed", forks, *options)
    migration = Migration(cluster)
    migration.begin(*options)
    migration.ask("n2")
    migration.release()

    result = migration.finish()

    assert migration.story().row.moves == 1
    assert result["steps"] == expected["steps"]
    assert result["weights"] == expected["weights"]
    assert result["ranks"] == expected["ranks"]
    ranks = result["ranks"]
    assert isinstance(ranks, list)
    assert len(set(ranks)) == 2  # each has its own


@pytest.mark.parametrize(
    ("victim", "phase"),
    [
        ("target", "placed"),
        pytest.param("source", "requested", marks=pytest.mark.sweep),
        pytest.param("rank", "requested", marks=pytest.mark.sweep),
        pytest.param("supervisor", "starting", marks=pytest.mark.sweep),
    ],
)
def test_i6_whatever_dies_on_the_way_the_training_ends_with_the_same_bits(
    cluster: Cluster, expected: dict[str, object], victim: str, phase: str
) -> None:
    assert fault_at(cluster, victim, phase)["weights"] == expected["weights"]


@pytest.mark.parametrize(
    ("when", "step"),
    [("after_commit", 1), pytest.param("before_commit", 2, marks=pytest.mark.sweep)],
)
def test_i6_a_head_that_dies_on_the_way_goes_on_with_the_move(
    cluster: Cluster, expected: dict[str, object], when: str, step: int
) -> None:
    assert head_dies_at(cluster, when, step)["weights"] == expected["weights"]


def test_i11_a_delete_wins_over_a_move(cluster: Cluster) -> None:
    """While it saves its state: nothing of it lives or comes back."""
    migration = Migration(cluster)
    migration.begin()
    migration.ask("n2")

    ran = run_command("gdel", "--wait", "-W", "0", migration.number, head=cluster.socket)

    assert ran.status == 0, ran.stderr
    story = migration.story()
    assert story.row.outcome is not None
    assert story.row.outcome.kind == "cancelled"
    assert story.row.attempt == 1
    migration.watch.stop()
    assert migration.watch.overlaps == []


def test_i5_a_training_that_cannot_write_its_checkpoint_is_not_moved(
    cluster: Cluster, expected: dict[str, object]
) -> None:
    """It says why, and goes on untouched."""
    migration = Migration(cluster)
    blocked = cluster.jobs / "gsched-checkpoints"
    blocked.write_text("in the way")  # root may write into every directory, but not into a file
    migration.begin()
    migration.ask("n2")
    migration.release()

    result = migration.finish()

    assert result["weights"] == expected["weights"]
    story = migration.story()
    assert story.row.attempt == 1
    told = [event.text for event in story.events if event.kind == "MigrationAbandoned"]
    assert len(told) == 1
    assert Path(blocked).read_text() == "in the way"
    print(told[0])


@pytest.mark.sweep
def test_a_training_on_two_nodes_goes_on_on_two_others_with_the_same_bits(
    cluster: Cluster, tmp_path: Path, forks: ForkServer
) -> None:
    """Two ranks on each; nothing of the old attempt lives anywhere when the new one starts."""
    expected = undisturbed(tmp_path / "undisturbed", forks, ranks=4)
    migration = Migration(cluster)
    migration.begin(
        nodes=dict.fromkeys(("n1", "n2", "n3", "n4"), 2), resources=("nodes=2:ppn=2:gpus=2",)
    )
    assert migration.story().row.nodes == ("n1", "n2")
    migration.ask("n3", "n4")
    migration.release()

    result = migration.finish()

    story = migration.story()
    assert (story.row.nodes, story.row.attempt, story.row.moves) == (("n3", "n4"), 2, 1)
    assert (result["weights"], result["steps"]) == (expected["weights"], expected["steps"])
    assert story.move is not None
    print(f"without progress: {story.move.cost_s} s")

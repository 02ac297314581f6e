"""Moves of real training jobs that cannot be: a clear word each, and they go on untouched."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, wait_until
from tests.support.commands import run_command
from tests.support.migration import TIMEOUT_S, Migration

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("moves")]


@contextlib.contextmanager
def useless(directory: Path) -> Iterator[str]:
    """Make a directory in which no checkpoint has room; give the word for it."""
    directory.mkdir()
    if os.geteuid() != 0:
        directory.chmod(0o500)
        yield "Permission denied"
        return
    command = ["mount", "-t", "tmpfs", "-o", "size=16k", "none", str(directory)]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"no mount here: {mounted.stderr.decode()}")
    try:
        yield "No space left on device"
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def test_i1_i5_i14_what_cannot_be_is_said_and_the_training_ends_with_the_same_bits(
    cluster: Cluster, tmp_path: Path, expected: dict[str, object]
) -> None:
    """It never answers, cannot take that many ranks, has no room there, and none for its files."""
    migration = Migration(cluster)
    cluster.queues += "[moves]\ncheckpoint_timeout_s = 2\n"
    with useless(tmp_path / "small") as fault:
        migration.begin(
            nodes={"n1": 4, "n2": 4, "n3": 1},
            resources=("select=2:ncpus=1:ngpus=1,place=pack",),
            checkpoint_dir=str(tmp_path / "small"),
        )
        job = migration.number
        for words, said in (
            (("--to", "n3"), f"n3 cannot hold job {job}, even with nothing else there"),
            (("--gpus", "3"), f"job {job} asks for 2 GPUs and runs on no other number"),
            (("--to", "n9"), "unknown node 'n9'"),
            (("--to", "n1"), f"job {job} already runs on n1"),
        ):
            ran = run_command("gmigrate", job, *words, head=cluster.socket)
            assert ran.status != 0, words
            assert said in ran.stderr
        assert migration.story().moves_requested == 0

        deaf = run_command("gmigrate", job, "--to", "n2", "--wait", head=cluster.socket)

        assert deaf.status != 0
        assert "it did not save its state within 2 s" in deaf.stderr
        assert "the job keeps running where it was" in deaf.stderr
        migration.ask("n2")
        migration.release()
        result = migration.finish()

    assert (result["weights"], result["steps"]) == (expected["weights"], expected["steps"])
    story = migration.story()
    assert (story.row.attempt, story.row.moves, story.moves_requested) == (1, 0, 2)
    told = [event.text for event in story.events if event.kind == "MigrationAbandoned"]
    assert len(told) == 2
    assert fault in told[1]


def test_i14_ranks_that_the_script_cannot_take_are_refused_with_those_that_it_can(
    cluster: Cluster,
) -> None:
    """Its global batch of eight samples has no three equal parts; four it has."""
    migration = Migration(cluster)
    migration.begin(
        nodes={"n1": 4}, resources=("select=1:ncpus=1:ngpus=1,place=free",), places_max=4
    )
    job = migration.number
    has = str(migration.story().progress.gpus)  # type: ignore[union-attr] # it has told

    ran = run_command("gmigrate", job, "--gpus", "3", head=cluster.socket)

    assert ran.status != 0
    assert (
        f"job {job} cannot go on on 3 ranks: its script says that it can on 1, 2, 4 or 8"
        in ran.stderr
    )
    other = "2" if has != "2" else "1"
    migration.ask_gpus(int(other))
    migration.release()
    migration.finish()
    story = migration.story()
    assert (story.row.moves, story.row.attempt) == (1, 2)


@pytest.mark.sweep
def test_i10_a_checkpoint_that_kills_every_start_holds_the_job_until_it_is_mended(
    cluster: Cluster, expected: dict[str, object]
) -> None:
    """Three starts die of it, the fourth says so: nothing is lost, or goes round for ever."""
    migration = Migration(cluster)
    migration.begin("--bad-state=load", requeue_on="", rerunnable=False)
    job = migration.number
    migration.ask("n2")
    migration.release()
    wait_until(lambda: migration.story().row.state == "held", TIMEOUT_S, what="the hold")

    story = migration.story()
    assert story.row.attempt == 5
    shown = run_command("gstat", "-f", job, head=cluster.socket).stdout
    directory = cluster.jobs / "gsched-checkpoints" / job
    assert "CKPT_BAD: it cannot go on from its checkpoints (exit code 78" in shown
    assert "none of the 1 checkpoints in" in shown
    assert str(directory) in shown
    assert f"release it with grls -h u {job}" in shown
    (loads,) = directory.glob("*.loads")
    loads.unlink()
    (cluster.jobs / "mended").touch()
    assert run_command("grls", "-h", "u", job, head=cluster.socket).status == 0

    result = migration.finish()
    assert (result["weights"], result["steps"]) == (expected["weights"], expected["steps"])
    assert migration.story().row.attempt == 6

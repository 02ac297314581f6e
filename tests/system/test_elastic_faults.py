"""What can happen to a training while it saves, waits and restores, with real processes.

Most ranks start without torchrun, since that is faster; the code is the same.
"""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator

import pytest

from gsched.failpoint import FAILPOINTS
from tests.support.cluster import wait_until
from tests.support.elastic_listener import Listener
from tests.support.elastic_runs import ROOT, TIMEOUT_S, Row, Run
from tests.support.forks import ForkServer

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("elastic")]

SHORT = ("--epochs=3", "--step-s=0.03")  # 72 steps, two seconds at least
OFTEN = {"GSCHED_CHECKPOINT_INTERVAL_S": "0.2"}
SAVE_POINTS = [point for point in FAILPOINTS if point.startswith("training.save.")]
COPY_POINTS = [point for point in FAILPOINTS if point.startswith("training.copy.")]
FLUSH_POINTS = [point for point in FAILPOINTS if point.startswith("training.flush.")]
RESTORE_POINTS = [point for point in FAILPOINTS if point.startswith("training.restore.")]


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener()
    yield made
    made.close()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, forks: ForkServer) -> Row:
    """Return the result of a training that nobody disturbs."""
    run = Run(tmp_path_factory.mktemp("undisturbed"), *SHORT, forks=forks)
    run.start(0)
    return run.finish()


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, forks: ForkServer) -> Run:
    """Return a training that was killed after two checkpoints: each test takes a copy."""
    run = Run(tmp_path_factory.mktemp("killed"), *SHORT, forks=forks)
    run.start(0, GSCHED_FAIL="training.save.after_publish:2:kill", **OFTEN)
    assert run.wait() == -signal.SIGKILL, run.output()
    assert len(run.published()) == 2
    return run


@pytest.fixture
def saved(tmp_path: pathlib.Path, killed: Run) -> Run:
    """Return a training of this test's that was killed after two checkpoints."""
    return killed.copy(tmp_path / "run")


@pytest.fixture
def run(tmp_path: pathlib.Path, forks: ForkServer) -> Run:
    """Return a training that has not begun."""
    return Run(tmp_path / "run", *SHORT, forks=forks)


def test_i2_killed_at_each_point_of_saving_and_restoring(run: Run, expected: Row) -> None:
    """One training, killed at every point there is; what comes out is what would have anyway."""
    assert [*SAVE_POINTS, *COPY_POINTS, "training.wait", *FLUSH_POINTS, *RESTORE_POINTS] == [
        point for point in FAILPOINTS if point.startswith("training.")
    ]
    for point in SAVE_POINTS:
        run.start(0, GSCHED_FAIL=f"{point}:2:kill", **OFTEN)
        assert run.wait() == -signal.SIGKILL, run.output()
    for point in RESTORE_POINTS:
        run.start(0, GSCHED_FAIL=f"{point}:kill", **OFTEN)
        assert run.wait() == -signal.SIGKILL, run.output()
    run.start(0, **OFTEN)
    result = run.finish()

    assert result["restored_step"] > 0
    assert result["weights"] == expected["weights"]
    assert [name for name in run.names() if not name.startswith("checkpoint-")] == []
    assert len(run.published()) == 1  # of a training that is over the newest stays


def test_i2_a_rank_killed_while_all_save(tmp_path: pathlib.Path, run: Run) -> None:
    """The others do not hang, nothing half is published, and the training goes on from before."""
    once = tmp_path / "once"
    point = "training.save.before_manifest"
    run.start(2, GSCHED_FAIL=f"{point}:2:kill-once={once}", **OFTEN)
    assert run.wait() != 0
    assert once.exists()
    # all has been written by then: where the other rank was killed, this one may still publish it
    assert len(run.published()) in {1, 2}
    before = run.published()
    run.start(2)
    result = run.finish()

    assert f"step-{result['restored_step']:09d}" in before[-1].name


def cut(checkpoint: pathlib.Path) -> None:
    data = next(checkpoint.glob("*.distcp"))
    data.write_bytes(data.read_bytes()[:-100])


def flip(checkpoint: pathlib.Path) -> None:
    data = next(checkpoint.glob("*.distcp"))
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)


def empty(checkpoint: pathlib.Path) -> None:
    (checkpoint / "objects.pt").write_bytes(b"")


def remove(checkpoint: pathlib.Path) -> None:
    (checkpoint / "rank-00000.pt").unlink()


def alter_manifest(checkpoint: pathlib.Path) -> None:
    manifest = checkpoint / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"step": ', '"step": 1', 1))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (flip, "was altered: its digest is wrong"),
        pytest.param(cut, "bytes and should have", marks=pytest.mark.sweep),
        pytest.param(empty, "has 0 bytes", marks=pytest.mark.sweep),
        pytest.param(remove, "No such file", marks=pytest.mark.sweep),
        pytest.param(alter_manifest, "manifest.json was altered", marks=pytest.mark.sweep),
    ],
)
def test_i3_a_bad_checkpoint_is_told_and_the_one_before_used(
    spoil: Callable[[pathlib.Path], None], words: str, saved: Run, expected: Row
) -> None:
    """Of what was loaded of it, as its files are still looked at then, nothing is left."""
    older, newer = saved.published()
    spoil(newer)
    saved.start(0)
    result = saved.finish()

    assert f"{newer} cannot be used" in saved.output()
    assert words in saved.output()
    assert f"step-{result['restored_step']:09d}" in older.name
    assert result["steps"] == 72
    assert result["weights"] == expected["weights"]
    assert not list(newer.parent.glob("*.loads"))  # it is not what a start did not survive


def test_i3_whatever_is_altered_is_refused_and_so_is_another_network(
    tmp_path: pathlib.Path, forks: ForkServer
) -> None:
    """Tensors are loaded before it is known whether they are what was saved."""
    script = ROOT / "tests" / "support" / "elastic_altered.py"
    command = [str(script), str(tmp_path / "checkpoints"), "200", "1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = forks.run(command, env=environment, timeout=TIMEOUT_S)

    assert done.returncode == 0, done.stderr[-4000:]
    other, last = done.stdout.splitlines()
    assert "cannot be used: rank 0: " in other
    assert "Size mismatch" in other
    assert last == "200 refused"


def test_i3_no_good_checkpoint_is_no_reason_to_begin_anew_silently(saved: Run) -> None:
    for checkpoint in saved.published():
        flip(checkpoint)
    saved.start(0)

    assert saved.wait() == 78
    assert "none of the 2 checkpoints" in saved.output()
    assert "Traceback" not in saved.output()


def test_i4_leftovers_of_a_killed_save_are_in_nobody_s_way(run: Run) -> None:
    run.start(0, GSCHED_FAIL="training.save.before_publish:kill", **OFTEN)
    assert run.wait() == -signal.SIGKILL
    (left,) = run.names()
    assert left.startswith("unfinished-1-")
    run.start(0, **OFTEN)
    run.finish()

    assert left not in run.names()
    assert len(run.published()) == 1


def asked_for(run: Run, listener: Listener, *, world_size: int = 0, **variables: str) -> None:
    """Start an attempt that holds after step 5 and is requested a checkpoint then."""
    run.start(world_size, "--hold-at=5", GSCHED_ELASTIC_SOCKET=listener.name, **variables)
    run.wait_until_held(5)
    listener.wait_for("hello")
    listener.say(checkpoint={"request": 1, "wait": True})
    run.release(5, when_asked=True)


def test_i5_unwritable_directory_is_told_and_the_training_goes_on(
    tmp_path: pathlib.Path, listener: Listener, run: Run
) -> None:
    """A file is where the directory should be: that stops root, too."""
    (tmp_path / "file").touch()
    asked_for(run, listener, GSCHED_CHECKPOINT_DIR=str(tmp_path / "file" / "checkpoints"))
    failed = listener.wait_for("checkpoint_failed")
    result = run.finish()

    assert failed["request"] == 1
    assert "Not a directory" in failed["message"]
    assert "the training goes on" in run.output()
    assert result["steps"] == 72


def fill(path: pathlib.Path) -> None:
    """Write a file until the disk is full."""
    with open(path, "wb", buffering=0) as ballast, contextlib.suppress(OSError):
        while ballast.write(b"x" * 4096):
            pass


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_i5_full_disk_keeps_the_old_checkpoint_and_the_training(
    listener: Listener, run: Run
) -> None:
    """Two ranks; the first checkpoint fits, the second does not."""
    run.checkpoints.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(run.checkpoints)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"no mount here: {mounted.stderr.decode()}")
    try:
        asked_for(run, listener, world_size=2)
        first = listener.wait_for("checkpointed")
        fill(run.checkpoints / "ballast")
        listener.say(go_on={"request": 1})
        listener.say(checkpoint={"request": 2, "wait": True})
        failed = listener.wait_for("checkpoint_failed")
        result = run.finish()
        names = run.names()
    finally:
        subprocess.run(["umount", "--lazy", str(run.checkpoints)], check=True)

    assert failed["request"] == 2
    assert "No space left" in failed["message"]
    assert names == ["ballast", pathlib.Path(first["path"]).name]
    assert result["steps"] == 72


def test_an_object_that_cannot_be_saved_is_told_and_the_training_goes_on(
    tmp_path: pathlib.Path, listener: Listener, forks: ForkServer
) -> None:
    run = Run(tmp_path / "run", *SHORT, "--bad-state=save", forks=forks)
    asked_for(run, listener)
    failed = listener.wait_for("checkpoint_failed")

    assert "this state is not for saving" in failed["message"]
    assert run.finish()["steps"] == 72
    assert run.names() == []


def test_i10_a_checkpoint_that_kills_every_start_is_left_alone(saved: Run) -> None:
    """Three starts die of it; the fourth takes the one before."""
    older, newer = saved.published()
    shutil.rmtree(older)  # so that there is nothing else yet
    for _ in range(3):
        saved.start(0, GSCHED_FAIL="training.restore.after_load:kill")
        assert saved.wait() == -signal.SIGKILL, saved.output()
    saved.start(0)

    assert saved.wait() == 78
    assert f"{newer} cannot be used: 3 starts from it did not get to their first step" in (
        saved.output()
    )
    pathlib.Path(f"{newer}.loads").unlink()
    saved.start(0)
    assert f"step-{saved.finish()['restored_step']:09d}" in newer.name
    assert not pathlib.Path(f"{newer}.loads").exists()


def test_a_training_that_waits_does_no_step_until_told(listener: Listener, run: Run) -> None:
    """Over a lost connection, too; the answer is given again, and the same."""
    asked_for(run, listener, world_size=2)
    saved = listener.wait_for("checkpointed")
    listener.drop()
    hello = listener.wait_for("hello", count=2)
    listener.say(checkpoint={"request": 1, "wait": True})
    again = listener.wait_for("checkpointed", count=2)
    steps_then = max(row["step"] for row in run.rows())
    listener.say(go_on={"request": 1})
    result = run.finish()

    assert hello["saved"] == saved == again
    assert hello["waiting"] == 1
    assert steps_then == saved["step"]
    assert saved["work_done"] == saved["step"] * 8
    assert result["steps"] == 72


def saved_for_one_that_waits(run: Run, listener: Listener) -> pathlib.Path:
    """Return what is published for a next attempt that waits, unless the disk was faster."""
    run.start(0, "--hold-at=60", GSCHED_ELASTIC_SOCKET=listener.name, **OFTEN)  # of 72
    run.wait_until_held(60)
    listener.wait_for("hello")
    listener.say(checkpoint={"request": 1, "wait": True, "prepared": True})
    run.release(60, when_asked=True)
    wait_until(lambda: run._answers(listener, 1), TIMEOUT_S, what="the checkpoint")
    return pathlib.Path(run._answers(listener, 1)[0]["path"])


def mark_of(checkpoint: pathlib.Path) -> pathlib.Path:
    return checkpoint.with_name(f"{checkpoint.name}.unflushed")


def test_i2_what_is_flushed_by_the_next_attempt_survives_its_death(
    listener: Listener, saved: Run, expected: Row
) -> None:
    """It was published without waiting for the disk, as an older one is there."""
    checkpoint = saved_for_one_that_waits(saved, listener)
    assert mark_of(checkpoint).exists()
    saved.stop()
    for point in FLUSH_POINTS:
        saved.start(0, GSCHED_FAIL=f"{point}:kill")
        assert saved.wait() == -signal.SIGKILL, saved.output()
        assert mark_of(checkpoint).exists()
    saved.start(0)
    result = saved.finish()

    assert f"step-{result['restored_step']:09d}" in checkpoint.name
    assert result["weights"] == expected["weights"]
    assert not mark_of(checkpoint).exists()


def test_i3_what_a_machine_that_failed_had_not_flushed_is_left_for_the_one_before(
    listener: Listener, saved: Run, expected: Row
) -> None:
    checkpoint = saved_for_one_that_waits(saved, listener)
    saved.stop()
    (checkpoint / "manifest.json").write_bytes(b"")  # as ext4 leaves files after a power failure
    empty(checkpoint)
    before = saved.published()[-2]
    saved.start(0)
    result = saved.finish()

    assert f"{checkpoint} cannot be used" in saved.output()
    assert f"step-{result['restored_step']:09d}" in before.name
    assert result["weights"] == expected["weights"]


def test_the_only_checkpoint_is_flushed_before_it_is_published(
    listener: Listener, run: Run
) -> None:
    """And what was published without that is flushed before the training goes on."""
    run.start(2, "--hold-at=5", GSCHED_ELASTIC_SOCKET=listener.name)
    run.wait_until_held(5)
    listener.wait_for("hello")
    listener.say(checkpoint={"request": 1, "wait": True, "prepared": True})
    run.release(5, when_asked=True)
    first = pathlib.Path(listener.wait_for("checkpointed")["path"])
    assert not mark_of(first).exists()
    listener.say(go_on={"request": 1})
    listener.say(checkpoint={"request": 2, "wait": True, "prepared": True})
    second = pathlib.Path(listener.wait_for("checkpointed", count=2)["path"])
    assert mark_of(second).exists()
    listener.say(go_on={"request": 2})
    result = run.finish()

    assert result["steps"] == 72
    assert run.names() == [second.name]


def awaited(
    run: Run, listener: Listener, *, hold_at: int = 5, world_size: int = 0, **variables: str
) -> None:
    """Start an attempt that is requested a checkpoint that processes wait for, after a step."""
    run.start(
        world_size,
        f"--hold-at={hold_at}",
        GSCHED_ELASTIC_SOCKET=listener.name,
        GSCHED_COPY_MIN_BYTES="0",
        **variables,
    )
    run.wait_until_held(hold_at)
    run.wait_for_hello(listener)
    listener.say(checkpoint={"request": 1, "wait": True, "prepared": True})
    run.release(hold_at, when_asked=True)


def unfinished(run: Run) -> list[str]:
    return [name for name in run.names() if name.startswith("unfinished-")]


def test_i2_killed_while_a_copy_is_written_beside_the_steps(
    listener: Listener, saved: Run, expected: Row
) -> None:
    """What it has written is no checkpoint, and goes with the next save."""
    before = saved.published()
    for point in COPY_POINTS:
        awaited(saved, listener, hold_at=60, GSCHED_FAIL=f"{point}:kill")
        assert saved.wait() == -signal.SIGKILL, saved.output()
        assert saved.published() == before
        assert len(unfinished(saved)) == 1
        (saved.directory / "held-60").unlink()
        (saved.directory / "go-60").unlink()
    saved.start(0)
    result = saved.finish()

    assert f"step-{result['restored_step']:09d}" in before[-1].name
    assert result["weights"] == expected["weights"]


@pytest.mark.parametrize("ranks", [0, 2])
def test_a_checkpoint_holds_what_was_trained_beside_its_copy(
    listener: Listener, run: Run, expected: Row, ranks: int
) -> None:
    """The training does steps meanwhile, and its next attempt those that come after it."""
    awaited(run, listener, world_size=ranks)
    saved = listener.wait_for("checkpointed")
    run.stop()
    run.start(ranks)
    result = run.finish()

    assert saved["step"] > 6  # two agreements at least, each between steps
    assert result["restored_step"] == saved["step"]
    assert result["steps"] == 72
    assert ranks or result["weights"] == expected["weights"]


def test_a_copy_for_a_move_that_is_abandoned_is_removed(
    tmp_path: pathlib.Path, listener: Listener, forks: ForkServer
) -> None:
    """By the training, soon after, and not only at its end."""
    run = Run(tmp_path / "run", "--epochs=10", "--step-s=0.03", "--hold-at=200", forks=forks)
    awaited(run, listener, world_size=2, GSCHED_FAIL="training.copy.complete:sleep=2")
    wait_until(lambda: run.checkpoints.exists() and unfinished(run), TIMEOUT_S, what="the copy")
    listener.say(go_on={"request": 1})
    run.wait_until_held(200)
    assert run.names() == []
    run.release(200)

    assert run.finish()["steps"] == 240
    assert not listener.all("checkpointed")


def test_a_signal_while_a_copy_is_written_saves_without_it(
    tmp_path: pathlib.Path, listener: Listener, forks: ForkServer, expected: Row
) -> None:
    run = Run(tmp_path / "run", *SHORT, f"--signal={int(signal.SIGUSR1)}", forks=forks)
    awaited(run, listener, GSCHED_FAIL="training.copy.before:sleep=3")
    wait_until(lambda: run.checkpoints.exists() and unfinished(run), TIMEOUT_S, what="the copy")
    (copy,) = unfinished(run)
    assert run._process is not None
    run._process.send_signal(signal.SIGUSR1)
    saved = listener.wait_for("checkpointed")
    assert copy not in run.names()
    run.stop()
    run.start(0)
    result = run.finish()

    assert result["restored_step"] == saved["step"]
    assert result["weights"] == expected["weights"]


def test_a_training_that_hears_nothing_goes_on_at_last(
    tmp_path: pathlib.Path, listener: Listener, forks: ForkServer
) -> None:
    run = Run(tmp_path / "run", *SHORT, "--wait-timeout=1", forks=forks)
    asked_for(run, listener, world_size=2)
    result = run.finish()

    assert "heard nothing for 1 s: the training goes on" in run.output()
    assert result["steps"] == 72


def test_a_signal_to_any_rank_saves(tmp_path: pathlib.Path, forks: ForkServer) -> None:
    run = Run(tmp_path / "run", *SHORT, f"--signal={int(signal.SIGUSR1)}", forks=forks)
    run.start(0, "--hold-at=5")
    run.wait_until_held(5)
    assert run._process is not None
    run._process.send_signal(signal.SIGUSR1)
    run.release(5)
    result = run.finish()

    assert result["steps"] == 72
    assert len(run.published()) == 1


def test_progress_is_told_with_the_first_step_and_at_the_end(
    listener: Listener, saved: Run
) -> None:
    saved.start(2, GSCHED_ELASTIC_SOCKET=listener.name)
    result = saved.finish()
    wait_until(lambda: listener.all("progress"), TIMEOUT_S)
    hello, progress = listener.all("hello")[0], listener.all("progress")

    assert (hello["version"], hello["job"], hello["attempt"]) == (1, 7, 2)
    assert (hello["world_size"], hello["world_sizes"]) == (2, [1, 2, 4, 8])
    assert progress[-1]["step"] == result["steps"]
    assert progress[-1]["work_done"] == progress[-1]["work_total"] == 72 * 8
    assert progress[-1]["gpus"] == 2
    # DistributedDataParallel tells of a step with the next one: not yet with the first.
    assert progress[-1]["communication_s"] > 0
    for said in progress:
        assert said["restored_step"] == result["restored_step"]
        assert said["restore_s"] > 0
        assert said["step_s"] > 0


def test_a_size_that_does_not_fit_is_refused_in_words(listener: Listener, run: Run) -> None:
    """Before a move, by the running training, which goes on; and at the start, before any step."""
    run.start(0, "--hold-at=5", GSCHED_ELASTIC_SOCKET=listener.name)
    run.wait_until_held(5)
    listener.wait_for("hello")
    listener.say(checkpoint={"request": 1, "wait": True, "world_size": 3})
    failed = listener.wait_for("checkpoint_failed")
    run.release(5)
    assert run.finish()["steps"] == 72
    words = "cannot run on 3 ranks: its global batch, 8 samples, does not split into equal parts"
    assert words in failed["message"]
    assert not run.checkpoints.exists()

    run.torchrun = True
    run.start(3)
    assert run.wait() != 0
    said = f"gsched.elastic: this training can not start: it {words}"
    assert run.output().count(said) == 1  # torchrun tells what each rank has left for it, besides
    assert "exitcode  : 78" in run.output()


def test_other_world_sizes_after_a_change_of_the_batch_are_told(
    tmp_path: pathlib.Path, listener: Listener, forks: ForkServer
) -> None:
    """What is left of the epoch ends with a batch of less than one sample for each of the ranks."""
    run = Run(
        tmp_path / "run", "--epochs=3", "--count=189", "--short-last", "--step-s=0.05", forks=forks
    )
    run.start(0, "--global-batch=6", "--hold-at=5", GSCHED_ELASTIC_SOCKET=listener.name)
    saved = run.save_and_stop(listener, request=1, hold_at=5)["step"]
    left = 189 - 6 * (saved % 32)  # an epoch has 32 steps of 6, the last of them shorter
    batch = next(size for size in (7, 9, 27) if left % size)  # all divide a whole epoch
    options = (f"--global-batch={batch}", f"--hold-at={saved + 1}")
    run.start(0, *options, GSCHED_ELASTIC_SOCKET=listener.name)
    run.wait_until_held(saved + 1)
    hello = listener.wait_for("hello", count=2)
    listener.say(checkpoint={"request": 2, "wait": True, "world_size": batch})
    failed = listener.wait_for("checkpoint_failed")
    run.release(saved + 1)
    run.finish()

    assert hello["world_sizes"] == list(range(1, left % batch + 1))
    assert f"cannot run on {batch} ranks: its last batch of an epoch is" in failed["message"]
    told = [said["world_sizes"] for said in listener.all("progress")]
    assert told[-1] == list(range(1, batch + 1))  # whole epochs split evenly


def test_other_data_than_the_checkpoint_s_is_refused(saved: Run) -> None:
    saved.start(0, "--seed=4")

    assert saved.wait() == 78
    assert "was saved with seed=3, and this script says seed=4" in saved.output()

"""A training that is stopped and restored, or resized, computes what one does that never was.

Real ranks, real gloo on loopback; only the node daemon's end of the socket is the test's.
tests/system/test_migration.py does it with gsched's agent for torchrun, in a cluster.
"""

import pathlib
import random
from collections.abc import Iterator

import pytest

from tests.support.elastic_listener import Listener
from tests.support.elastic_runs import Row, Run, losses, used
from tests.support.forks import ForkServer

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("elastic")]

#: 120 steps: 5 epochs of 192 lines in batches of 8; 128: 4 of 512 images in batches of 16.
OPTIONS = {
    "transformer": ("--model=transformer", "--epochs=5", "--global-batch=8"),
    "digits": ("--model=digits", "--epochs=4", "--global-batch=16"),
    "batchnorm": ("--model=batchnorm", "--epochs=4", "--global-batch=16"),
}
#: Of the mean loss of a step, absolute, without dropout, which draws other numbers on other ranks:
#: what is left is the order of additions. Measured: 2e-7; the losses are 1 to 2.5.
LOSS_TOLERANCE = 1e-5


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener()
    yield made
    made.close()


def undisturbed(
    directory: pathlib.Path, forks: ForkServer, world_size: int, *options: str
) -> tuple[Row, list[Row]]:
    """Train without a stop; return the result and what was logged."""
    run = Run(directory, *options, forks=forks)
    run.start(world_size)
    return run.finish(), run.rows()


@pytest.mark.parametrize(
    ("model", "world_size", "moves"),
    [
        ("transformer", 2, 3),
        ("batchnorm", 2, 2),
        pytest.param("digits", 2, 3, marks=pytest.mark.sweep),
        pytest.param("digits", 4, 1, marks=pytest.mark.sweep),
    ],
)
def test_moved_training_ends_with_the_same_bits(
    tmp_path: pathlib.Path,
    listener: Listener,
    forks: ForkServer,
    model: str,
    world_size: int,
    moves: int,
) -> None:
    """Three times at random steps; four ranks, as a sum of four depends on its order."""
    options = OPTIONS[model]
    expected, _ = undisturbed(tmp_path / "undisturbed", forks, world_size, *options)
    run = Run(tmp_path / "moved", *options, "--step-s=0.05", forks=forks)
    steps: list[int] = []
    for request in range(1, moves + 1):
        earliest = steps[-1] + 1 if steps else 1
        hold_at = random.randint(earliest, earliest + 10)
        run.start(world_size, f"--hold-at={hold_at}", GSCHED_ELASTIC_SOCKET=listener.name)
        answer = run.save_and_stop(listener, request, hold_at)
        assert answer["waits"]
        assert answer["step"] >= hold_at
        steps.append(answer["step"])
    run.start(world_size, GSCHED_ELASTIC_SOCKET=listener.name)
    result = run.finish()

    print(f"moved at steps {steps}")
    assert steps == sorted(set(steps))
    assert result["restored_step"] == steps[-1]
    assert result["steps"] == expected["steps"]
    assert result["learning_rate"] == expected["learning_rate"]
    assert result["weights"] == expected["weights"]
    assert result["ranks"] == expected["ranks"]
    # A training that waits to be moved does no further step: none was done twice.
    counted = [row["step"] for row in run.rows()]
    assert sorted(counted) == sorted(list(range(1, expected["steps"] + 1)) * world_size)


def test_resized_training_uses_every_sample_once(
    tmp_path: pathlib.Path, listener: Listener, forks: ForkServer
) -> None:
    """2 to 4 to 1 to 2 ranks with the same global batch, and an uneven rest in each epoch."""
    options = (
        "--model=transformer",
        "--epochs=5",
        "--global-batch=8",
        "--count=189",  # 23 batches of eight and one of five
        "--short-last",
        "--dropout=0",
    )
    expected, expected_rows = undisturbed(tmp_path / "undisturbed", forks, 2, *options)
    run = Run(tmp_path / "resized", *options, "--step-s=0.05", forks=forks)
    steps = [0]
    for request, world_size in enumerate((2, 4, 1), 1):
        hold_at = random.randint(steps[-1] + 1, steps[-1] + 10)
        run.start(world_size, f"--hold-at={hold_at}", GSCHED_ELASTIC_SOCKET=listener.name)
        steps.append(run.save_and_stop(listener, request, hold_at)["step"])
    run.start(2, GSCHED_ELASTIC_SOCKET=listener.name)
    result = run.finish()

    print(f"resized at steps {steps[1:]}")
    rows = run.rows()
    assert [hello["world_size"] for hello in listener.all("hello")] == [2, 4, 1, 2]
    assert {row["world_size"] for row in rows} == {1, 2, 4}
    assert result["samples"] == expected["samples"] == 5 * 189
    counts = used(rows)
    assert sorted(counts) == [0, 1, 2, 3, 4]
    for epoch, samples in counts.items():
        assert samples == dict.fromkeys(range(189), 1), f"epoch {epoch}"
    curve, expected_curve = losses(rows), losses(expected_rows)
    assert sorted(curve) == sorted(expected_curve) == list(range(1, 5 * 24 + 1))
    worst = max(abs(curve[step] - expected_curve[step]) for step in curve)
    print(f"largest difference of a step's loss: {worst:.2e}")
    assert worst < LOSS_TOLERANCE

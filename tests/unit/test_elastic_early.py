"""A copy of tensors that is written while they change, and brought up to date."""

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gsched.elastic import manifest
from gsched.elastic import tensors as saving
from gsched.elastic.manifest import describe_file
from gsched.elastic.ranks import Ranks
from gsched.elastic.samples import Samples
from gsched.elastic.shelf import Shelf
from gsched.elastic.tensors import copy_tensors, load_tensors, save_tensors
from tests.support.cluster import wait_until
from tests.support.late_torch import IN_ONE_WORKER, torch
from tests.support.processes import PATIENCE_S

if TYPE_CHECKING:
    from gsched.elastic.early import EarlyCopy

pytestmark = IN_ONE_WORKER

PART_BYTES = 4096


@pytest.fixture(autouse=True, name="early")
def small(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let tensors of some kilobytes have several blocks, parts and files; return the module."""
    from gsched.elastic import early  # it imports torch

    for module in (early, manifest):
        monkeypatch.setattr(module, "PART_BYTES", PART_BYTES)
    monkeypatch.setattr(early, "_BLOCK_BYTES", 1000)
    monkeypatch.setattr(saving, "_PART_MIN", 2000)
    monkeypatch.setattr(saving, "thread_count", lambda: 2)
    return early


def state() -> dict[str, Any]:
    """Return tensors of several kinds, some of which have no place in a copy."""
    torch.manual_seed(1)
    return {
        "frozen": {str(number): torch.randn(50, 60) for number in range(3)},
        "trained": {str(number): torch.randn(40, 70).bfloat16() for number in range(3)},
        "step": torch.tensor(3.0),
        "empty": torch.empty(0, 4),
        "transposed": torch.randn(30, 20).t(),
        "number": 7,
    }


def begun(state: dict[str, Any], directory: Path, *, only_constant: bool = False) -> "EarlyCopy":
    names = {f"frozen.{number}" for number in range(3)}
    copy = copy_tensors(state, str(directory), Ranks(), names, only_constant=only_constant)
    wait_until(lambda: not copy.is_running, PATIENCE_S, what="the copy")
    return copy


def train(state: dict[str, Any]) -> None:
    """Change what a step changes."""
    for each in state["trained"].values():
        each.add_(1)
    state["step"].add_(1)
    state["transposed"].mul_(2)
    state["number"] = 123456789


def loaded(state: dict[str, Any], directory: Path) -> dict[str, Any]:
    template: dict[str, Any] = {
        name: {key: torch.zeros_like(each) for key, each in state[name].items()}
        for name in ("frozen", "trained")
    }
    template |= {"number": 0}
    template |= {name: torch.zeros_like(state[name]) for name in ("step", "empty", "transposed")}
    load_tensors(template, str(directory), Ranks())
    return template


def check(state: dict[str, Any], directory: Path) -> None:
    found = loaded(state, directory)
    assert found["number"] == state["number"]
    for name in ("step", "empty", "transposed"):
        assert torch.equal(found[name], state[name]), name
    for name in ("frozen", "trained"):
        for key, each in state[name].items():
            assert torch.equal(found[name][key], each), (name, key)


@pytest.mark.parametrize("files", [2, 4])
def test_what_has_changed_since_the_copy_is_saved(tmp_path: Path, files: int) -> None:
    """In the places of the copy, and with the digests of what is in the files then."""
    now = state()
    copy = begun(now, tmp_path, only_constant=files == 2)
    inodes = {path.name: path.stat().st_ino for path in tmp_path.iterdir()}
    train(now)

    assert copy.end()
    known = save_tensors(now, str(tmp_path), Ranks(), copy)

    check(now, tmp_path)
    assert len(inodes) == len(known) == files
    for name, file in known.items():
        assert os.stat(tmp_path / name).st_ino == inodes[name]
        assert file == describe_file(str(tmp_path), name)


def test_what_is_not_trained_is_not_written_again_unless_it_has_changed(tmp_path: Path) -> None:
    """Whoever changes it, and however: the bytes are compared."""
    now = state()
    copy = begun(now, tmp_path)
    written = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    train(now)
    now["frozen"]["1"].data[49, 59] += 1  # torch does not count this one

    assert copy.end()
    save_tensors(now, str(tmp_path), Ranks(), copy)

    check(now, tmp_path)
    same = {name for name, at in written.items() if os.stat(tmp_path / name).st_mtime_ns == at}
    assert len(same) == 1
    assert all("same_" in name for name in same)


def test_tensors_that_are_others_now_are_written_as_without_a_copy(tmp_path: Path) -> None:
    """And the copy's files are no part of the checkpoint."""
    now = state()
    copy = begun(now, tmp_path)
    now["trained"]["3"] = torch.randn(40, 70).bfloat16()
    del now["frozen"]["0"]

    assert copy.end()
    assert save_tensors(now, str(tmp_path), Ranks(), copy) == {}

    check(now, tmp_path)
    assert not list(tmp_path.glob("*same_*"))


def test_a_tensor_that_lies_otherwise_now_is_written_as_without_a_copy(tmp_path: Path) -> None:
    now = state()
    copy = begun(now, tmp_path)
    now["trained"]["0"] = torch.randn(70, 40).bfloat16().t()

    assert copy.end()
    assert save_tensors(now, str(tmp_path), Ranks(), copy) == {}

    check(now, tmp_path)


def test_a_copy_that_is_ended_early_is_not_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, early: Any
) -> None:
    arrived, go = threading.Event(), threading.Event()
    write = early._write_all

    def slow(*arguments: Any) -> None:
        arrived.set()
        assert go.wait(PATIENCE_S)
        write(*arguments)

    monkeypatch.setattr(early, "_write_all", slow)
    now = state()
    names = {f"frozen.{number}" for number in range(3)}
    copy = copy_tensors(now, str(tmp_path), Ranks(), names, only_constant=False)
    assert arrived.wait(PATIENCE_S)
    threading.Timer(0.1, go.set).start()

    assert not copy.end()
    assert not copy.is_running


def test_a_copy_that_cannot_be_written_is_not_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, early: Any
) -> None:
    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(early, "_write_all", full)
    copy = begun(state(), tmp_path)

    assert not copy.end()


def test_a_copy_that_a_killed_attempt_has_left_is_removed_when_the_training_is_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from gsched.elastic.keeper import CheckpointKeeper  # it imports torch
    from gsched.elastic.state import TrainingState

    shelf, model = Shelf(str(tmp_path / "checkpoints")), torch.nn.Linear(2, 2)
    keeper = CheckpointKeeper(
        shelf,
        Ranks(),
        TrainingState(model, [torch.optim.SGD(model.parameters())], {}, {}),
        Samples(8, global_batch=4, epochs=1),
        job=1,
        attempt=2,
    )
    keeper.finish(keep=1)  # before there is any directory
    left = shelf.begin(1)
    (Path(left) / "__0_0.distcp").write_bytes(b"half of it")
    keeper.finish(keep=1)

    assert os.listdir(shelf.path) == []
    assert capsys.readouterr().err == ""


def test_tensors_on_gpus_are_read_only_when_the_training_has_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, early: Any
) -> None:
    """Their files get their memory early, with zeros."""
    read: list[int] = []

    class OnGpu(torch.Tensor):  # type: ignore[misc]  # torch is imported late
        is_cpu = False

        def cpu(self) -> Any:
            read.append(self.numel())
            return self.as_subclass(torch.Tensor)

    monkeypatch.setattr(early, "_BLOCK_BYTES_GPU", 3000)
    now = {"weight": torch.randn(50, 70).as_subclass(OnGpu)}
    copy = copy_tensors(now, str(tmp_path), Ranks(), {"weight"}, only_constant=False)
    wait_until(lambda: not copy.is_running, PATIENCE_S, what="the copy")
    assert read == []
    assert copy.end()
    now["weight"].add_(1)

    known = save_tensors(now, str(tmp_path), Ranks(), copy)

    template = {"weight": torch.zeros(50, 70)}
    load_tensors(template, str(tmp_path), Ranks())
    assert torch.equal(template["weight"], now["weight"].as_subclass(torch.Tensor))
    assert sum(read) >= 50 * 70 * 4
    assert max(read) <= 3000
    for name, file in known.items():
        assert file == describe_file(str(tmp_path), name)

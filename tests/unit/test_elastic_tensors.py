"""Tensors of a checkpoint come back bit by bit, read in place or by torch."""

import contextlib
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from gsched.elastic import tensors as saving
from gsched.elastic.errors import SaveError
from gsched.elastic.ranks import Ranks
from gsched.elastic.tensors import load_tensors, save_tensors
from tests.support.late_torch import IN_ONE_WORKER, torch

pytestmark = IN_ONE_WORKER

KINDS = ("float32", "float64", "float16", "bfloat16", "int64", "uint8", "bool", "complex64")


def tensors() -> dict[str, Any]:
    """Return tensors of many kinds and shapes, of random bits."""
    torch.manual_seed(1)
    found = {kind: torch.randn(7, 5).mul(9).to(getattr(torch, kind)) for kind in KINDS}
    found["transposed"] = torch.randn(4, 6).t()
    found["part"] = torch.randn(10, 3)[2:5]
    found["single"] = torch.tensor(3.0)
    found["empty"] = torch.empty(0, 4)
    found["conjugate"] = torch.randn(3, dtype=torch.complex64).conj()
    return found


def round_trip(state: dict[str, Any], directory: Path, template: dict[str, Any]) -> None:
    ranks = Ranks()
    save_tensors({"all": state}, str(directory), ranks)
    load_tensors({"all": template}, str(directory), ranks)


def test_each_tensor_comes_back(tmp_path: Path) -> None:
    state = tensors()
    template = {name: torch.full(each.shape, 1, dtype=each.dtype) for name, each in state.items()}

    round_trip(state, tmp_path, template)

    for name, each in state.items():
        assert torch.equal(template[name], each), name


def test_a_target_in_another_order_gets_the_same_values(tmp_path: Path) -> None:
    """Rows and columns that lie the other way round in memory, and a part of a larger tensor."""
    state = {"one": torch.randn(4, 6), "two": torch.randn(3, 5)}
    around = torch.zeros(5, 9)
    template = {"one": torch.zeros(6, 4).t(), "two": around[1:4, 2:7]}

    round_trip(state, tmp_path, template)

    assert torch.equal(template["one"], state["one"])
    assert torch.equal(around[1:4, 2:7], state["two"])
    assert around.count_nonzero() == 15


def test_memory_of_tensors_stays_where_it_is(tmp_path: Path) -> None:
    """Parameters that others look at are read into, not replaced."""
    state = {"weight": torch.randn(64, 64)}
    template = {"weight": torch.zeros(64, 64)}
    at = template["weight"].data_ptr()

    round_trip(state, tmp_path, template)

    assert template["weight"].data_ptr() == at
    assert torch.equal(template["weight"], state["weight"])


def test_a_file_that_ends_early_is_an_error(tmp_path: Path) -> None:
    """Nothing of it counts as loaded."""
    ranks = Ranks()
    save_tensors({"weight": torch.randn(512, 512)}, str(tmp_path), ranks)
    (file,) = tmp_path.glob("*.distcp")
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])

    with pytest.raises(BaseException, match=r"(?s).+") as failed:
        load_tensors({"weight": torch.zeros(512, 512)}, str(tmp_path), ranks)
    assert not isinstance(failed.value, KeyboardInterrupt | SystemExit)


def test_torch_computes_checksums_for_others_afterwards(tmp_path: Path) -> None:
    """The option is global: it is as before after a save, and after a save that failed."""
    serialization = torch.serialization
    if not hasattr(serialization, "get_crc32_options"):
        pytest.skip("this version of torch has no such option")
    assert serialization.get_crc32_options()
    save_tensors({"weight": torch.zeros(2)}, str(tmp_path / "good"), Ranks())
    assert serialization.get_crc32_options()

    (tmp_path / "file").touch()
    with pytest.raises(SaveError):
        save_tensors({"weight": torch.zeros(2)}, str(tmp_path / "file"), Ranks())
    assert serialization.get_crc32_options()


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_write_all_tensors_among_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    """Each a file of its own, of about the same size."""
    monkeypatch.setattr(saving, "thread_count", lambda: threads)
    monkeypatch.setattr(saving, "_PART_MIN", 100)
    state = {str(number): torch.randn(1000 * number) for number in range(1, 9)}
    template = {name: torch.zeros(each.shape) for name, each in state.items()}

    round_trip(state, tmp_path, template)

    assert all(torch.equal(template[name], each) for name, each in state.items())
    sizes = [path.stat().st_size for path in tmp_path.glob("__0_*.distcp")]
    assert len(sizes) == threads
    assert max(sizes) < min(sizes) + 4 * 8000


def test_a_thread_that_cannot_write_fails_the_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its own words; a save of the others alone would be no checkpoint."""
    monkeypatch.setattr(saving, "thread_count", lambda: 3)
    monkeypatch.setattr(saving, "_PART_MIN", 1)
    (tmp_path / "__0_2_0.distcp").mkdir()  # stops root, too

    with pytest.raises(SaveError, match="Is a directory"):
        save_tensors({"all": tensors()}, str(tmp_path), Ranks())


def test_a_full_disk_is_reported_while_another_error_is_handled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script may save its state because something else has failed."""
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def write(*_: object) -> None:
        try:
            raise full
        except OSError:
            raise RuntimeError("inline_container.cc: unexpected pos 704 vs 598")  # noqa: B904 # torch

    monkeypatch.setattr(torch.distributed.checkpoint.FileSystemWriter, "write_data", write)
    try:
        (tmp_path / "missing").stat()
    except FileNotFoundError:
        with pytest.raises(SaveError, match="No space left on device"):
            save_tensors({"all": tensors()}, str(tmp_path), Ranks())


def test_what_is_not_on_the_cpu_is_written_by_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device and its streams are those of a thread."""
    counts: list[int] = []
    in_parts = saving._in_parts

    def watched(write: Any, count: int) -> Any:
        counts.append(count)
        return in_parts(write, count)

    monkeypatch.setattr(saving, "_in_parts", watched)
    monkeypatch.setattr(saving, "thread_count", lambda: 3)
    cpu, other = torch.zeros(3), torch.zeros(3, device="meta")
    for number, tensor in enumerate((cpu, other)):
        with contextlib.suppress(SaveError):  # a tensor without content is not written
            save_tensors({"all": {"x": {"y": tensor}}}, str(tmp_path / str(number)), Ranks())

    assert counts == [3, 1]

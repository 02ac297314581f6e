"""What an outbox has to deliver."""

from pathlib import Path

from gnode.daemon.outbox import DEPTH_MAX, Outbox
from gsched.model.limits import MAX_DELIVERED_FILES


def test_a_directory_with_as_many_files_as_may_return_does(tmp_path: Path) -> None:
    """The output, and the directory itself, do not count; one more file is too much."""
    place = tmp_path / f"1.1.{'0' * 32}"
    (place / "files" / "0").mkdir(parents=True)
    for name in ("stdout", "stderr"):
        (place / name).touch()
    for number in range(MAX_DELIVERED_FILES):
        (place / "files" / "0" / f"{number}").symlink_to("x")
    box = Outbox(str(place), tmp_path / "progress")

    names, faults = box.listed()
    assert (len(names), faults) == (MAX_DELIVERED_FILES + 3, [])
    (place / "files" / "0" / "more").symlink_to("x")
    names, (fault,) = box.listed()
    assert names == {"stdout": False, "stderr": False}
    assert str(fault) == "files/0: more than 10000 files return: write an archive"


def test_a_directory_that_is_too_deep_does_not_keep_the_rest(tmp_path: Path) -> None:
    place = tmp_path / f"1.1.{'0' * 32}"
    (place / "files" / "0" / "/".join("x" * (DEPTH_MAX + 1))).mkdir(parents=True)
    (place / "files" / "1").mkdir()
    (place / "files" / "1" / "y").touch()
    (place / "stdout").touch()
    box = Outbox(str(place), tmp_path / "progress")

    names, (fault,) = box.listed()

    assert names == {"stdout": False, "files/1": True, "files/1/y": False}
    assert str(fault) == "files/0 is more than 32 directories deep: write an archive"

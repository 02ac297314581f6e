"""What an outbox has to deliver."""

from pathlib import Path

import pytest

from gnode.daemon.outbox import DeliveryError, Outbox
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

    assert len(box.listed()) == MAX_DELIVERED_FILES + 3
    (place / "files" / "0" / "more").symlink_to("x")
    with pytest.raises(DeliveryError, match="more than 10000 files: write an archive"):
        box.listed()

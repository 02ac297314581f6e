"""Small file systems that a test can fill, where this machine lets root mount them."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

FILLER = "filler"


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    """Mount an empty file system of ``size`` (``4m``) at a directory, or skip the test."""
    place.mkdir(parents=True, exist_ok=True)
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    options = f"size={size},mode=0755"
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(directory: Path) -> None:
    """Write a file until not a byte more is taken."""
    fd = os.open(directory / FILLER, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while os.write(fd, bytes(size)):
                    pass
            except OSError:
                continue
    finally:
        os.close(fd)


def free(directory: Path) -> None:
    """Give the space back that `fill` took."""
    (directory / FILLER).unlink()
